"""Targets: the files that a recipe asks for, a format and a scheme each."""

from collections.abc import Sequence
from pathlib import Path

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target, targets
from pipeline.errors import ArtifactError, RecipeError
from pipeline.recipe.schema import Recipe


def choose_targets(recipe: Recipe, names: Sequence[str]) -> list[Target]:
    """Return the recipe's targets, or only the ones that `--target backend[:scheme]` names.

    Raises:
        RecipeError: the recipe has no such target.
    """
    every = targets(recipe)
    if not names:
        return every
    chosen: list[Target] = []
    for text in names:
        backend, colon, scheme = text.partition(":")
        matching = [target for target in every if target.backend == backend and (not colon or target.scheme == scheme)]
        if not matching:
            exist = ", ".join(f"{target.backend}:{target.scheme}" for target in every)
            raise RecipeError(f"target {text!r} is not in recipe {recipe.name}; there are: {exist}.")
        chosen += [target for target in matching if target not in chosen]
    return chosen


def finished_model(folder: Path, target: Target) -> Artifact:
    """Return a target's checked model artifact.

    Raises:
        ArtifactError: it is absent, half-made or was changed.
    """
    place = folder / str(target) / "model"
    if not place.exists():
        raise ArtifactError(f"{place} does not exist; make it with `pocketbert run`.")
    return artifact.load(place)
