"""Checks of a recipe that concern several of its sections. Stages check what data and checkpoints decide."""

import math

from pipeline import tasks
from pipeline.errors import RecipeError
from pipeline.kinds import KINDS, OutputKind
from pipeline.recipe.schema import OF_A_CHECKPOINT, OtherHeadSection, Recipe, TargetSection
from pipeline.runtimes import minimum_refusal
from pipeline.schemes import (
    BACKENDS,
    FUNCTIONS_FROM_IOS,
    NEWEST_IOS,
    SCHEMES,
    UNSUPPORTED,
    Gates,
    Scheme,
    Unsupported,
    supported,
)
from pipeline.tasks import Task

RESERVED = ("store",)
"""Folders that lie beside those of recipes."""
_CHANGE_THE_ENCODER = ("train", "head", "start", "vocabulary", "prune", "factorise", "share", "distil")
_COSINES = {"min_mean_cosine", "min_worst_cosine", "max_all_pad_error"}
_CHOICES = {"min_agreement", "max_kl"}
_UNMEASURED: dict[OutputKind, set[str]] = {
    kind: (set() if kind == "embedding" else _COSINES) | (set() if row.decision else _CHOICES)
    for kind, row in KINDS.items()
}
"""Bounds of `Gates` that a kind of output has no measure for."""


def check(recipe: Recipe) -> None:
    """Refuse names that do not exist, and combinations that a task, a scheme or a runtime does not support.

    Raises:
        RecipeError: with the key, what was found there, and what exists.
    """
    if recipe.name in RESERVED:
        raise RecipeError(
            f"name = {recipe.name!r}: the build folder has a folder of its own of this name; choose another."
        )
    _check_judging(recipe)
    if "max_cosine_drop" in recipe.regression.model_fields_set and _kind(recipe) != "embedding":
        raise RecipeError(
            f"regression.max_cosine_drop: task {recipe.task} gives {_kind(recipe)}, which has no cosine; "
            "regression.max_sqnr_drop_db bounds it."
        )
    for backend, section in recipe.targets.items():
        _check_target(backend, section, recipe.minimum_ios(backend) or NEWEST_IOS)
    if recipe.heads:
        _check_other_heads(recipe)


def _kind(recipe: Recipe) -> OutputKind:
    return tasks.get(recipe.task).output_kind


def _check_judging(recipe: Recipe) -> None:
    """Refuse gates and datasets that do not exist for the recipe's task."""
    task = tasks.get(recipe.task)
    for scheme, gates in recipe.verify.gates.items():
        key = f"verify.gates.{scheme}"
        if isinstance(_row(scheme, key), Unsupported):
            raise RecipeError(
                f"{key}: no format supports {scheme}; `pocketbert list` says why. There are: {', '.join(SCHEMES)}."
            )
        _check_gates(gates, task, key)
    known = (*task.datasets, "none")
    for dataset in recipe.verify.datasets or ():
        if dataset not in known:
            raise RecipeError(
                f"verify.datasets: {dataset!r} does not exist for {task.name}; there are: {', '.join(known)}."
            )
    if "none" in (recipe.verify.datasets or ()) and len(recipe.verify.datasets or ()) > 1:
        others = ", ".join(name for name in recipe.verify.datasets or () if name != "none")
        raise RecipeError(f"verify.datasets: 'none' stands alone, and {others} is there too; take one of them out.")


def _check_other_heads(recipe: Recipe) -> None:
    """Refuse other heads with what would change the encoder for the student's own head alone."""
    for name in _CHANGE_THE_ENCODER:
        if getattr(recipe, name) is not None:
            raise RecipeError(
                f"[{name}] and [heads]: it changes the student's encoder, and the heads' checkpoints have the one "
                "that was there before. Do it in a recipe of its own, fit the heads on the encoder that comes out, and "
                "name that one here: student.source = 'recipe:NAME'."
            )
    for backend, section in recipe.targets.items():
        ios = recipe.minimum_ios(backend)
        if ios is not None and ios < FUNCTIONS_FROM_IOS:
            raise RecipeError(
                f"targets.{backend}.minimum_ios = {ios} and [heads]: a package has one function below iOS "
                f"{FUNCTIONS_FROM_IOS}, and each head is one. Set {FUNCTIONS_FROM_IOS}, or leave the heads out."
            )
        for scheme in section.schemes:
            row = SCHEMES[scheme]
            if row.calibrated or (recipe.quantize is not None and row.takes_calibration):
                able = [name for name in supported(backend) if not SCHEMES[name].calibrated]
                why = "without [quantize]" if not row.calibrated else f"of {', '.join(able)}"
                raise RecipeError(
                    f"targets.{backend}.schemes: {scheme} and [heads]: it is calibrated, which rewrites the weights "
                    f"for one head at a time, so the encoder would not be one any more. Take a scheme {why}."
                )
    for name, head in recipe.heads.items():
        try:
            _check_judging(recipe.of_head(name))
        except RecipeError as error:
            raise RecipeError(f"heads.{name}: {error}") from error
        _check_keys_of_head(f"heads.{name}", head)


def _check_keys_of_head(key: str, head: OtherHeadSection) -> None:
    """Refuse keys that would do nothing for a head."""
    given = [name for name in OF_A_CHECKPOINT if getattr(head, name) is not None]
    if given and tasks.get(head.task).output_kind != "embedding":
        raise RecipeError(f"{key}.{given[0]}: it is for embeddings, and the task is {head.task}. Leave it out.")
    sized = [scheme for scheme, gates in head.gates.items() if "max_bytes_per_parameter" in gates.model_fields_set]
    if sized:
        raise RecipeError(
            f"{key}.gates.{sized[0]}.max_bytes_per_parameter: heads share a file, whose size is judged once. Bound it "
            f"in verify.gates.{sized[0]}."
        )


def _row(scheme: str, key: str) -> Scheme | Unsupported:
    row = SCHEMES.get(scheme) or UNSUPPORTED.get(scheme)
    if row is None:
        raise RecipeError(f"{key}: scheme {scheme!r} does not exist; there are: {', '.join(SCHEMES)}.")
    return row


def _check_gates(gates: Gates, task: Task, key: str) -> None:
    """Refuse bounds that could never fire for the task, or that no number can be compared with."""
    for bound, value in gates.model_dump(exclude_unset=True).items():
        if bound in _UNMEASURED[task.output_kind]:
            raise RecipeError(f"{key}.{bound}: task {task.name} gives {task.output_kind}; it has no {bound}.")
        if value is not None and not math.isfinite(value):
            raise RecipeError(f"{key}.{bound} = {value}: a bound has to be a finite number.")


def _check_target(backend: str, section: TargetSection, minimum_ios: int) -> None:
    if backend not in BACKENDS:
        raise RecipeError(f"targets.{backend}: this format does not exist; there are: {', '.join(BACKENDS)}.")
    for scheme in section.schemes:
        reason = _row(scheme, f"targets.{backend}.schemes").refusal(backend, minimum_ios=minimum_ios)
        if reason is not None:
            able = supported(backend, minimum_ios=minimum_ios)
            raise RecipeError(
                f"targets.{backend}.schemes: {backend} does not support {scheme}: {reason} "
                f"It supports: {', '.join(able)}."
            )
    if section.minimum_runtime is not None:
        problem = minimum_refusal(backend, section.minimum_runtime, section.schemes)
        if problem:
            raise RecipeError(f"targets.{backend}.minimum_runtime: {problem}")
