"""The space of a study: what a trial may say of each key, and the recipe that comes of it."""

import math
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pipeline.convert.stage import Target
from pipeline.errors import RecipeError
from pipeline.fronts.spec import LEFT_OUT, TARGET, Range, Study, label
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe

Choice = Mapping[str, Any]
"""The value of each key of a space, as a study's file writes it."""
_OF_A_REPORT = ("beside", "benchmark", "regression")
"""Sections that say nothing of the student."""
_NOT_THE_STUDENT = ("name", "task", "verify", *_OF_A_REPORT)
"""Keys by which a trial would be another task's, or judged and reported in another way than the others."""


class Suggests(Protocol):
    """What proposes a value: a trial of Optuna."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Return one of some names."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return a whole number."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number."""


@dataclass(frozen=True)
class Base:
    """The recipe that every trial begins with."""

    values: Mapping[str, Any]
    """The file as TOML has it."""
    recipe: Recipe
    file: Path
    """Relative paths start at its folder."""


@dataclass(frozen=True)
class Candidate:
    """A recipe of a study, with one target."""

    recipe: Recipe
    values: Mapping[str, Any]
    """The recipe as TOML has it."""
    file: Path
    """Relative paths start at its folder."""
    target: Target


def base(study: Study, study_file: Path) -> Base:
    """Read the recipe of a study.

    Raises:
        RecipeError: there is no such recipe, or the space has a key or a target that does not fit it.
    """
    found = _read(study.recipe, study_file)
    check(study, found, study_file)
    return found


def beside(study: Study, study_file: Path) -> list[Base]:
    """Read the recipes that are shown beside a study's trials.

    Raises:
        RecipeError: one of them does not exist, or is for another task.
    """
    found = [_read(name, study_file) for name in study.beside or ()]
    task = _read(study.recipe, study_file).recipe.task
    for one in found:
        if one.recipe.task != task:
            raise RecipeError(
                f"{study_file}: beside: {one.recipe.name} is for {one.recipe.task}, the study for {task}."
            )
    return found


def _read(named: str, study_file: Path) -> Base:
    if named.endswith(".toml") or os.sep in named:
        named = str(study_file.parent / os.path.expanduser(named))
    file = loading.find(named)
    values = loading.read_values(file)
    return Base(values, loading.checked(values, file), file)


def check(study: Study, found: Base, study_file: Path) -> None:
    """Try every value of a space by itself, so that a misspelt key is told before the first trial.

    Raises:
        RecipeError: the first key or value that a recipe cannot have.
    """
    for key, values in study.space.items():
        _check_key(key, study_file)
        tried = (values.low, values.high) if isinstance(values, Range) else values
        for value in tried:
            try:
                candidate(found, {key: value}, "check")
            except RecipeError as error:
                said = str(error).removeprefix(f"{found.file}: ")
                if _needs_another_key(said):
                    continue
                raise RecipeError(f"{study_file}: space.{key} = {value!r}: {said}") from error
        if not isinstance(values, Range):
            _check_once(key, values, study_file)


def _check_key(key: str, study_file: Path) -> None:
    """Refuse a key that is no student's: trials that differ in it would be the same, or could not be compared."""
    parts = key.split(".")
    if key in _NOT_THE_STUDENT or (parts[0] in _NOT_THE_STUDENT and parts[0] != "name"):
        raise RecipeError(
            f"{study_file}: space.{key}: {parts[0]} is the same in all trials, which could not be compared otherwise. "
            f"Set it in the recipe."
        )
    if key == "targets" or (parts[0] == "targets" and parts[-1] == "schemes"):
        raise RecipeError(
            f"{study_file}: space.{key}: a trial has one format and scheme; give {TARGET}, such as "
            f'{TARGET} = ["litert:int8_dynamic", "executorch:int8_dynamic"].'
        )


def _check_once(key: str, values: Sequence[Any], study_file: Path) -> None:
    """Refuse a value that stands there twice, or two that are written alike: only one of them would be tried."""
    seen: dict[str, Any] = {}
    for value in values:
        name = label(int(value) if isinstance(value, float) and value.is_integer() else value)
        if name in seen:
            raise RecipeError(f"{study_file}: space.{key} has {seen[name]!r} and {value!r}, which are the same.")
        seen[name] = value


def _needs_another_key(message: str) -> bool:
    """Return whether a value only lacks a key that another one of the space may give, such as a section's required one.

    Pydantic says that a key is missing; a trial in which it is missing in truth fails by itself, and says so.
    """
    return message.endswith("is missing.")


def suggest(study: Study, trial: Suggests) -> Choice:
    """Let Optuna propose a value for each key."""
    return {key: _suggested(key, values, trial) for key, values in study.space.items()}


def _suggested(key: str, values: Any, trial: Suggests) -> Any:
    if not isinstance(values, Range):
        # Optuna keeps names alone, and a value may be a list or a table.
        names = [label(value) for value in values]
        return values[names.index(trial.suggest_categorical(key, names))]
    if values.whole:
        return trial.suggest_int(key, int(values.low), int(values.high), step=int(values.step or 1), log=values.log)
    found = trial.suggest_float(key, float(values.low), float(values.high), step=values.step, log=values.log)
    # What a person would write; and two that differ in the tenth digit are one artifact. Digits of the number, since
    # 0.0000001 of a range with log would be 0 to six places.
    return min(max(float(f"{found:.6g}"), values.low), values.high)


def size(study: Study) -> int | None:
    """Return the number of different choices, or None if there is no end of them."""
    total = 1
    for values in study.space.values():
        if isinstance(values, Range):
            if not values.whole and values.step is None:
                return None
            # A step that does not divide the range leaves its upper end out.
            total *= math.floor((values.high - values.low) / (values.step or 1) + 1e-9) + 1
        else:
            total *= len(values)
    return total


def candidate(found: Base, choice: Choice, name: str) -> Candidate:
    """Return a base recipe with other values, and one target.

    Raises:
        RecipeError: a key does not exist, or the values do not fit each other.
    """
    values = deepcopy(dict(found.values))
    for section in _OF_A_REPORT:
        values.pop(section, None)
    # A section before the keys inside it, in whichever order they are written.
    for key, value in sorted(choice.items(), key=lambda item: item[0].count(".")):
        if key != TARGET:
            _put(values, key.split("."), value, found)
    target = _target(found, choice.get(TARGET))
    own = dict(values.get("targets", {}).get(target.backend, {}))
    values["targets"] = {target.backend: {**own, "schemes": [target.scheme]}}
    values["name"] = name
    return Candidate(loading.checked(values, found.file), values, found.file, target)


def untrained(found: Candidate) -> Candidate:
    """Return a candidate whose student is compressed as it is, but learns nothing afterwards."""
    values = deepcopy(dict(found.values))
    values.pop("distil", None)
    if isinstance(values.get("prune"), dict):
        values["prune"].setdefault("refine", 0)
    if isinstance(values.get("quantize"), dict):
        values["quantize"].pop("training", None)
    return replace(found, recipe=loading.checked(values, found.file), values=values)


def _put(values: dict[str, Any], path: list[str], value: Any, found: Base) -> None:
    """Put a value at a dotted key, or take the key away; a section that has no keys left goes as well."""
    inside = values
    for part in path[:-1]:
        if value == LEFT_OUT and part not in inside:
            return
        inside = inside.setdefault(part, {})
        if not isinstance(inside, dict):
            raise RecipeError(f"{found.file}: {'.'.join(path)}: {part} is no table there, and has no keys.")
    if value != LEFT_OUT:
        inside[path[-1]] = deepcopy(value)
        return
    inside.pop(path[-1], None)
    for depth in range(len(path) - 1, 0, -1):
        above = values
        for part in path[: depth - 1]:
            above = above[part]
        if above.get(path[depth - 1]) == {}:
            del above[path[depth - 1]]


def _target(found: Base, named: Any) -> Target:
    """Return the target of a candidate: the one that is named, or the base recipe's first."""
    if named is None:
        backend = next(iter(found.recipe.targets))
        return Target(backend, found.recipe.targets[backend].schemes[0])
    backend, _, scheme = str(named).partition(":")
    # Whether there is such a format, and whether it has the scheme, the recipe's own check tells.
    return Target(backend, scheme)
