"""Names in place of paths: what a verb's recipe, model, report or folder means; the one resolver of all verbs.

A recipe's own name is known by two ways: the link to its file that a run leaves in the recipe's folder, and the .toml
files of the folder in which the user stands. Other places may begin with a recipe's name: `minilm/litert-fp32` is
below the build folder.
"""

import contextlib
import difflib
import os
import tomllib
from pathlib import Path

from pipeline.convert.model import model_folder, models_in
from pipeline.errors import InputError, RecipeError
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe

LINK = "link-to-recipe.toml"
"""In a recipe's folder: the link to the user's file of which the folder was made."""
_REPORT = "report.json"
_LARGEST_BYTES = 1 << 20
_SHOWN_CHARACTERS = 200


def remember(recipe: Recipe, file: Path, build: Path) -> None:
    """Link a user's recipe from its folder, if that shows anything that was made; a ready one needs no link.

    A file of the user's in the link's place stays. Where no link can be made, the recipe has its path.
    """
    folder = build / recipe.name
    with contextlib.suppress(OSError):
        link = folder / LINK
        ours = not link.exists() or link.is_symlink()
        if not ours or not any(path.is_symlink() for path in folder.iterdir()):
            return
        goal = os.path.relpath(file.resolve(), folder.resolve())
        if link.is_symlink() and os.readlink(link) == goal:
            return
        link.unlink(missing_ok=True)
        if file.resolve().parent != loading.RECIPES.resolve():
            link.symlink_to(goal)


def recipe(named: str, build: Path) -> tuple[Recipe, Path]:
    """Read a recipe by its path, its name, or its folder in the build folder.

    Raises:
        RecipeError: there is none, or several have the name, or its file is no recipe.
    """
    if os.path.isdir(named) and os.path.isfile(Path(named) / LINK):
        return loading.read_recipe(str((Path(named) / LINK).resolve()))
    if named.endswith(".toml") or os.sep in named or named in loading.names():
        return loading.read_recipe(named)
    link = build / named / LINK
    with contextlib.suppress(OSError):
        if _name_in(link) == named:
            return loading.read_recipe(str(link.resolve()))
    files = [file for file in _files_here() if _name_in(file) == named]
    if len(files) > 1:
        raise RecipeError(f"several recipes here have the name {named!r}: {', '.join(map(str, files))}. Name the file.")
    if not files:
        raise _unknown(named, build)
    return loading.read_recipe(str(files[0]))


def _unknown(named: str, build: Path) -> RecipeError:
    """Return the error for a name that no recipe has, with the names that exist."""
    links = sorted(build.glob(f"*/{LINK}")) if build.is_dir() else []
    own = list(dict.fromkeys(name for name in map(_name_in, [*links, *_files_here()]) if name))
    shown = named if len(named) <= _SHOWN_CHARACTERS else f"{named[:_SHOWN_CHARACTERS]}…"
    close = difflib.get_close_matches(named, [*own, *loading.names()], 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    yours = f" Your own: {', '.join(own)}." if own else ""
    with contextlib.suppress(OSError):
        link = build / named / LINK
        if link.is_symlink():
            was = os.path.normpath(link.parent / os.readlink(link))
            hint = f" {link.parent} was made of {was}, which no longer is a recipe of that name; name its file."
    ready = ", ".join(loading.names())
    return RecipeError(f"recipe {shown!r} does not exist; there are: {ready}, or a path to a .toml.{yours}{hint}")


def _files_here() -> list[Path]:
    return sorted(path for path in Path().glob("*.toml") if path.is_file())


def _name_in(file: Path) -> str | None:
    """Return the name in a recipe's file; None for another file."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
            return None
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    name = values.get("name")
    return name if isinstance(name, str) and "student" in values else None


def below(named: Path, build: Path) -> Path:
    """Return a path as it is if it leads anywhere, else below the build folder if that has its first folder."""
    known = named.parts and os.path.isdir(build / named.parts[0])
    return build / named if known and not os.path.exists(named) else named


def model(named: Path, build: Path, head: str | None = None) -> Path:
    """Return the folder of a model: by a path, by `RECIPE/TARGET`, or by a recipe's name if it has one file.

    Raises:
        InputError: there is none, it has no such head, or the recipe has several files.
    """
    place = below(named, build)
    if os.path.isdir(place) and (found := list(models_in(place))):
        if len(found) > 1:
            names = ", ".join(str(named / one.parent.relative_to(place)) for one in found)
            raise InputError(f"{named} has several files: {names}. Name one of them.")
        place = found[0]
    return model_folder(place, head)


def report(named: Path, build: Path) -> Path:
    """Return the file of a report: by its path, by its folder or the recipe's, or by a recipe's name.

    Raises:
        InputError: it is a folder without a report.
    """
    place = below(named, build)
    inside = (place / _REPORT, place / "report" / _REPORT)
    found = next((file for file in inside if os.path.isfile(file)), None)
    if found is None and os.path.isdir(place):
        raise InputError(f"{place} has no {_REPORT}, nor has a folder report in it; `pocketbert report` writes one.")
    return found or place
