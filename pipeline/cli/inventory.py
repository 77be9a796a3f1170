"""What exists: the tables behind `pocketbert list`."""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline import backends, compress, devices
from pipeline.checkpoint.architectures import ARCHITECTURES, UNSUPPORTED
from pipeline.checkpoint.source import RECIPE
from pipeline.data import datasets as data
from pipeline.data.datasets import Dataset
from pipeline.graph import checkpoints
from pipeline.recipe import loading as recipe
from pipeline.recipe.losses import LOSSES, PRESETS
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES
from pipeline.tasks import TASKS


def take() -> dict[str, dict[str, str]]:
    """Return every table, name to description; nothing heavy is imported."""
    return {
        "architectures": {name: ", ".join(row.inputs) for name, row in ARCHITECTURES.items()}
        | {name: f"UNSUPPORTED, {reason}" for name, reason in UNSUPPORTED.items()},
        "tasks": {name: f"{row.auto_class}: {row.output_kind}" for name, row in TASKS.items()},
        "backends": {name: _backend(name) for name in backends.NAMES},
        "schemes": {name: _scheme(name) for name in SCHEMES},
        "data sets": {name: _dataset(row) for name, row in data.DATASETS.items()},
        "losses": {name: row.summary for name, row in LOSSES.items()},
        "presets": {name: _preset(row) for name, row in PRESETS.items()},
        "devices": {name: row.summary for name, row in devices.read().items()},
        "recipes": {name: _recipe(name) for name in recipe.names()},
    }


def _backend(name: str) -> str:
    backend = backends.get(name)
    distribution = backend.DISTRIBUTIONS[0]
    try:
        installed = f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{backend.TITLE}: not installed, {distribution} is missing; run `make setup`"
    reason = backend.no_runtime()
    return f"{backend.TITLE}: {installed}" + (f"; converts, but {reason}" if reason else "")


def _scheme(name: str) -> str:
    lines = [SCHEMES[name].summary]
    for backend in backends.NAMES:
        reason = SCHEMES[name].refusal(backend)
        if reason is not None:
            lines.append(f"{backend}: UNSUPPORTED, {reason}")
    return "\n".join(lines)


def _dataset(row: Dataset) -> str:
    files = " and ".join(dict.fromkeys(file for file in (row.train, row.file) if file))
    where = "comes with the package" if row.bundled else f"{files} of {data.DATA_VARIABLE}"
    reason = None if row.bundled else row.absent()
    return f"{row.metric}; {where}" + (f"; {reason}" if reason else "")


def _preset(settings: Mapping[str, Any]) -> str:
    """Return a preset as the recipe that it stands in the place of."""
    losses = ", ".join(f"{name} = {weight:g}" for name, weight in settings["losses"].items())
    others = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key != "losses"]
    return ", ".join([f"losses = {{{losses}}}", *others])


def _recipe(name: str) -> str:
    parsed, _ = recipe.read(name)
    targets = sum(len(section.schemes) for section in parsed.targets.values())
    return f"{parsed.student.source}, {parsed.task}, {targets} targets"


@dataclass(frozen=True)
class Ready:
    """One recipe that comes with the package."""

    name: str
    student: str
    task: str
    stages: list[str]
    """What is done to the student before it is converted, in order."""
    targets: list[str]
    needs: list[str]
    """What has to come from outside and is not known to be there; empty: it runs as it is."""
    twin: str | None
    """The recipe that does the same with the bundled student."""


def ready() -> list[Ready]:
    """Return the recipes that come with the package."""
    return [_ready(name) for name in recipe.names()]


def _ready(name: str) -> Ready:
    parsed, _ = recipe.read(name)
    stages = ["train"] if parsed.train else []
    return Ready(
        name,
        parsed.student.source,
        parsed.task,
        stages + [stage.name for stage in compress.stages(parsed)],
        [f"{backend}:{scheme}" for backend, section in parsed.targets.items() for scheme in section.schemes],
        list(dict.fromkeys(_needs(parsed))),
        parsed.student.twin,
    )


def _needs(parsed: Recipe) -> Iterator[str]:
    """Yield what a recipe takes from outside: a checkpoint of the hub, and data that are not at hand."""
    for place in checkpoints.places(parsed):
        # A recipe of the package names other ones of the package.
        yield from _needs(recipe.read(place.removeprefix(RECIPE))[0])
    kind, _, rest = parsed.student.source.partition(":")
    if kind == "hub":
        yield f"{rest.partition('@')[0]} from the hub, or in its cache"
    corpus = parsed.vocabulary.corpus if parsed.vocabulary else ()
    named = [parsed.train and parsed.train.dataset, parsed.distil and parsed.distil.dataset, *corpus]
    for name in named:
        reason = data.DATASETS[name].absent("train") if name in data.DATASETS else None
        if reason:
            yield f"data set {name}: {reason}"
