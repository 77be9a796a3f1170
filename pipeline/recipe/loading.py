"""Find and read recipes: TOML files become frozen models, and errors are told in TOML's words with file and key."""

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.artifact import check_size
from pipeline.errors import RecipeError, no_file
from pipeline.recipe.checks import check
from pipeline.recipe.schema import RENAMED, TARGET_SECTIONS, Recipe, TargetSection

RECIPES = Path(__file__).parent / "library"
_PLAIN_WORDS = {
    r"^Value error, ": "",
    r"a valid dictionary( or instance of \w+)?": "a table",
    r"^Dictionary": "table",
    r"a valid tuple": "a list",
    r"^Tuple": "list",
    r" after validation": "",
}
"""Pydantic's words for Python's types, and TOML's for the same."""
_OF_UNION = re.compile(r"int|float|str|tuple|list|[\w-]+\[.*\]", re.DOTALL)
"""Parts of an error's location that name one type of a union, not a key."""
_SHOWN_CHARACTERS = 200
"""Most of a name in a message that goes on with the names that exist."""


def find(name: str) -> Path:
    """Return the file of a recipe.

    Args:
        name: the name of a ready recipe, or a path.

    Raises:
        RecipeError: the recipe does not exist.
    """
    if name.endswith(".toml") or os.sep in name:
        path = Path(os.path.expanduser(name))
        # `os.path` answers False for a name that no file system takes; `Path` raises.
        if not os.path.isfile(path):
            shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…"
            raise RecipeError(f"recipe {shown} {no_file(path)}. Ready ones: {', '.join(names())}.")
        return path
    if name not in names():
        close = difflib.get_close_matches(name, names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise RecipeError(
            f"recipe {name!r} does not exist; there are: {', '.join(names())}, or a path to a .toml.{hint}"
        )
    return RECIPES / f"{name}.toml"


Validated = TypeVar("Validated", bound=BaseModel)


def names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(name: str) -> tuple[Recipe, Path]:
    """Read a recipe by path or by name.

    Returns:
        The recipe and its file; relative paths in the recipe are relative to the file's folder.

    Raises:
        RecipeError: the file is missing, is not TOML, or has a key or a value that cannot be.
    """
    path = find(name)
    return checked(read_values(path), path), path


def read_values(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        RecipeError: it cannot be read, is too large, or is not TOML.
    """
    # A pipe that nobody writes to, or a device, would never end.
    if not os.path.isfile(path):
        raise RecipeError(f"{path} {no_file(path)}.")
    try:
        check_size(path)
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path} is not valid TOML in UTF-8: {error}.") from error
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error


def checked(values: Mapping[str, Any], origin: Path) -> Recipe:
    """Build a recipe from parsed TOML.

    Raises:
        RecipeError: an unknown key, a wrong type or an impossible combination.
    """
    recipe = validated(values, origin, Recipe)
    try:
        check(recipe)
    except RecipeError as error:
        raise RecipeError(f"{origin}: {error}") from error
    return recipe


def validated(values: Mapping[str, Any], origin: Path, model: type[Validated]) -> Validated:
    """Build what a file describes from parsed TOML.

    Raises:
        RecipeError: an unknown key or a wrong type.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = error.errors()
        # A misspelt key is missing under its right name as well; the misspelling is what to tell.
        first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
        raise RecipeError(_explain(first, origin, model)) from error


def _explain(error: ErrorDetails, origin: Path, model: type[BaseModel]) -> str:
    """Turn one pydantic error into a line with file, key, what was found and what exists."""
    key = ".".join(str(part) for part in error["loc"] if not _OF_UNION.fullmatch(str(part)))
    found = key if error["type"] == "extra_forbidden" else f"{key} = {error['input']!r}"
    if found in RENAMED:
        return f"{origin}: {found} was renamed {RENAMED[found]}."
    if error["type"] == "extra_forbidden":
        known = _keys_beside(model, error["loc"])
        close = difflib.get_close_matches(str(error["loc"][-1]), known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"{origin}: key {key!r} does not exist; keys there: {', '.join(known)}.{hint}"
    if error["type"] == "missing":
        return f"{origin}: key {key!r} is missing."
    message = error["msg"]
    for pattern, plain in _PLAIN_WORDS.items():
        message = re.sub(pattern, plain, message)
    # What is wrong with a whole file has no key.
    where = f"{key} = {repr(error['input'])[:100]}: " if key else ""
    return f"{origin}: {where}{message[0].lower()}{message[1:]}."


def _keys_beside(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that exist where an unknown one was found."""
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        inner = _model_in(field.annotation) if field is not None else None
        # A name inside a table of sections, such as `targets.litert`, stays at the table's own model or has one itself.
        own = TARGET_SECTIONS.get(str(part)) if model is TargetSection else None
        model = inner or own or model
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section model that an annotation holds, directly or as a dict's or union's part."""
    if typing.get_origin(annotation) is None and isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)
