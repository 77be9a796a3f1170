"""Checkpoints that other recipes end in: `recipe:NAME`, or `recipe:FILE.toml`, where a recipe names a checkpoint.

Two-stage distillation is two recipes of which the second names the first, and one command walks both.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pipeline import compress
from pipeline import recipe as recipes
from pipeline.errors import RecipeError
from pipeline.recipe import Recipe
from pipeline.student import RECIPE


def named(recipe: Recipe) -> list[str]:
    """Return the places of a recipe that name another one, each once."""
    distil = recipe.distil
    places = [recipe.student.source]
    if distil is not None:
        places += [distil.teacher, *([distil.augment.model] if distil.augment else [])]
    return list(dict.fromkeys(place for place in places if place.startswith(RECIPE)))


def read(place: str, recipe_file: Path, after: Sequence[str]) -> tuple[Recipe, Path]:
    """Read the recipe that a place names.

    Args:
        place: one of `named`.
        recipe_file: of the recipe that names it; a file is meant from there.
        after: names of the recipes that wait for it, the one that names it last.

    Raises:
        RecipeError: there is none, it makes no checkpoint of its student, or it waits for itself.
    """
    name = place.removeprefix(RECIPE)
    found, file = recipes.read(str(recipe_file.parent / name) if name.endswith(".toml") else name)
    if found.name in after:
        raise RecipeError(f"{recipe_file}: {place}: recipes wait for each other: {' → '.join((*after, found.name))}.")
    if found.train is None and not compress.stages(found):
        raise RecipeError(
            f"{recipe_file}: {place}: recipe {found.name} neither trains its student nor makes it smaller; name "
            f"what it begins with: {found.student.source!r}."
        )
    return found, file


def until(recipe: Recipe) -> Literal["train", "compress"]:
    """Return the stage in which a recipe's checkpoint is finished."""
    return "compress" if compress.stages(recipe) else "train"
