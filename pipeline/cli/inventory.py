"""The tables behind `pocketbert list` and `pocketbert recipes`. No toolchain is imported for them."""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline import architectures, compress, formats
from pipeline.architectures import ARCHITECTURES
from pipeline.checkpoint.source import RECIPE
from pipeline.data.corpus import PLAIN, absent_plain
from pipeline.data.datasets import DATA_VARIABLE, DATASETS, Dataset
from pipeline.devices.table import read_devices
from pipeline.planning.branches import recipe_sources
from pipeline.recipe.loading import names, read_recipe
from pipeline.recipe.losses import LOSSES, PRESETS
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES, UNSUPPORTED, Scheme, Unsupported
from pipeline.tasks import TASKS


def tables() -> dict[str, dict[str, str]]:
    """Return every table by its title: descriptions by name."""
    schemes: dict[str, Scheme | Unsupported] = {**SCHEMES, **UNSUPPORTED}
    return {
        "architectures": {name: ", ".join(row.inputs) for name, row in ARCHITECTURES.items()}
        | {name: f"UNSUPPORTED, {reason}" for name, reason in architectures.UNSUPPORTED.items()},
        "tasks": {name: f"{row.auto_class}: {row.output_kind}" for name, row in TASKS.items()},
        "formats": {name: _backend(name) for name in formats.NAMES},
        "schemes": {name: _scheme(row) for name, row in schemes.items()},
        "datasets": {name: _dataset(row) for name, row in DATASETS.items()},
        "losses": {name: row.summary for name, row in LOSSES.items()},
        "presets": {name: _preset(row) for name, row in PRESETS.items()},
        "devices": {name: row.summary for name, row in read_devices().items()},
        "recipes": {name: _recipe(name) for name in names()},
    }


def _backend(name: str) -> str:
    backend = formats.get(name)
    distribution = backend.DISTRIBUTIONS[0]
    try:
        installed = f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{backend.TITLE}: not installed, {distribution} is missing; run `make setup`"
    reason = backend.no_runtime()
    return f"{backend.TITLE}: {installed}" + (f"; converts, but {reason}" if reason else "")


def _scheme(row: Scheme | Unsupported) -> str:
    lines = [row.summary]
    for backend in formats.NAMES:
        reason = row.refusal(backend)
        if reason is not None:
            lines.append(f"{backend}: UNSUPPORTED, {reason}")
    return "\n".join(lines)


def _dataset(row: Dataset) -> str:
    files = " and ".join(dict.fromkeys(file for file in (row.train, row.file) if file))
    where = "comes with the package" if row.bundled else f"{files} of {DATA_VARIABLE}"
    reason = None if row.bundled else row.absent()
    return f"{row.metric}; {where}" + (f"; {reason}" if reason else "")


def _preset(settings: Mapping[str, Any]) -> str:
    """Return a preset as the lines of a recipe that it replaces."""
    losses = ", ".join(f"{name} = {weight:g}" for name, weight in settings["losses"].items())
    others = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key != "losses"]
    return ", ".join([f"losses = {{{losses}}}", *others])


def _recipe(name: str) -> str:
    recipe, _ = read_recipe(name)
    targets = sum(len(section.schemes) for section in recipe.targets.values())
    return f"{recipe.student.source}, {recipe.task}, {targets} targets"


@dataclass(frozen=True)
class ReadyRecipe:
    """One recipe that comes with the package."""

    name: str
    student: str
    task: str
    stages: list[str]
    """Stages that change the student before it is converted, in their order."""
    targets: list[str]
    needs: list[str]
    """What the recipe needs from outside and what is not known to be here; empty: it runs as it is."""
    twin: str | None
    """The recipe that does the same with the bundled student."""


def ready_recipes() -> list[ReadyRecipe]:
    """Return the recipes that come with the package."""
    return [_ready_recipe(name) for name in names()]


def _ready_recipe(name: str) -> ReadyRecipe:
    recipe, _ = read_recipe(name)
    stages = ["train"] if recipe.train else []
    return ReadyRecipe(
        name,
        recipe.student.source,
        recipe.task,
        stages + [stage.name for stage in compress.stages(recipe)],
        [f"{backend}:{scheme}" for backend, section in recipe.targets.items() for scheme in section.schemes],
        needs(name),
        recipe.student.twin,
    )


def needs(name: str) -> list[str]:
    """Return the downloads and datasets that a ready recipe needs and that may be absent; empty if there are none."""
    return list(dict.fromkeys(_needs(read_recipe(name)[0])))


def _needs(recipe: Recipe) -> Iterator[str]:
    """Yield the external inputs of a recipe: checkpoints of the hub, and datasets that are absent."""
    for place in recipe_sources(recipe):
        # A recipe of the package names only others of the package.
        yield from _needs(read_recipe(place.removeprefix(RECIPE))[0])
    kind, _, rest = recipe.student.source.partition(":")
    if kind == "hub":
        yield f"{rest.partition('@')[0]} from the hub, or in its cache"
    corpus = (recipe.vocabulary.corpus or ()) if recipe.vocabulary else ()
    named = [recipe.train and recipe.train.dataset, recipe.distil and recipe.distil.dataset, *corpus]
    for name in named:
        reason = DATASETS[name].absent("train") if name in DATASETS else None
        if reason:
            yield f"dataset {name}: {reason}"
        lacking = absent_plain(name) if name in PLAIN else None
        if lacking:
            yield f"text {name}: {lacking}"
