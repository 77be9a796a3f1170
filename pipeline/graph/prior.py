"""Checkpoints that other recipes end in: `recipe:NAME`, or `recipe:FILE.toml`, where a recipe names a checkpoint.

Two-stage distillation is two recipes of which the second names the first, and one command walks both.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pipeline import compress
from pipeline.checkpoint.source import RECIPE
from pipeline.compress.distil.checks import needs_teacher
from pipeline.errors import RecipeError
from pipeline.recipe import loading as recipes
from pipeline.recipe.schema import Recipe


def named(recipe: Recipe) -> list[str]:
    """Return the places of a recipe that name another one, each once; what no loss asks for is left out."""
    distil = recipe.distil
    places = [recipe.student.source]
    if distil is not None:
        places += [distil.teacher] if needs_teacher(distil) else []
        places += [distil.augment.model] if distil.augment else []
    return list(dict.fromkeys(place for place in places if place.startswith(RECIPE)))


def near(name: str, recipe_file: Path) -> tuple[Recipe, Path]:
    """Read a recipe that another one names: a ready one, or a file that is meant from the other's."""
    path = recipe_file.parent / os.path.expanduser(name)
    return recipes.read(str(path) if name.endswith(".toml") else name)


def read(place: str, recipe_file: Path, after: Mapping[Path, str]) -> tuple[Recipe, Path]:
    """Read the recipe that a place names.

    Args:
        place: one of `named`.
        recipe_file: of the recipe that names it; a file is meant from there.
        after: names of the recipes that wait for it by their files, the one that names it last.

    Raises:
        RecipeError: there is none, it makes no checkpoint of its student, or it waits for itself.
    """
    found, file = near(place.removeprefix(RECIPE), recipe_file)
    if file.resolve() in after:
        chain = " → ".join((*after.values(), found.name))
        raise RecipeError(f"{recipe_file}: {place}: recipes wait for each other: {chain}.")
    if found.train is None and not compress.stages(found):
        raise RecipeError(
            f"{recipe_file}: {place}: recipe {found.name} neither trains its student nor makes it smaller; name "
            f"what it begins with: {found.student.source!r}."
        )
    return found, file


def check_names(files: Iterable[tuple[Recipe, Path]]) -> None:
    """Refuse recipes of one name in two files: they would work in one folder.

    Raises:
        RecipeError: there are some.
    """
    known: dict[str, Path] = {}
    for recipe, file in files:
        other = known.setdefault(recipe.name, file)
        if other.resolve() != file.resolve():
            raise RecipeError(f"{other} and {file} are both named {recipe.name!r}, the folder of both; rename one.")


def until(recipe: Recipe) -> Literal["train", "compress"]:
    """Return the stage in which a recipe's checkpoint is finished."""
    return "compress" if compress.stages(recipe) else "train"
