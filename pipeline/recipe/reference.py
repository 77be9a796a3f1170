"""What a recipe can say: the keys of each section with their values, defaults and meaning, read off its models."""

import ast
import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from pipeline.errors import InputError
from pipeline.recipe.losses import PRESETS
from pipeline.recipe.schema import TARGET_SECTIONS, Recipe

_REFERENCE = "#/$defs/"
_NAMED = {"targets": "BACKEND", "gates": "SCHEME", "beside": "RECIPE"}
"""What the name of a section stands for where there may be several."""
TOP = "recipe"
"""Name of what stands above all sections."""


@dataclass(frozen=True)
class Key:
    """One key of a section."""

    name: str
    values: str
    default: str | None
    """As TOML has it; None where the key has to be given, empty where leaving it out says that it is not wanted."""
    said: str


@dataclass(frozen=True)
class Listed:
    """One section of a recipe."""

    name: str
    said: str
    keys: list[Key]


def sections() -> dict[str, Listed]:
    """Return every section of a recipe by its name, in a recipe's order."""
    whole = Recipe.model_json_schema()
    schemas = {model.__name__: model.model_json_schema() for model in TARGET_SECTIONS.values()}
    return dict(_walk("", Recipe.__name__, {**whole["$defs"], Recipe.__name__: whole, **schemas}, _meanings()))


def section(name: str) -> Listed:
    """Return one section.

    Raises:
        InputError: there is none of this name.
    """
    known, wanted = sections(), name.strip("[]")
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"section {name!r} does not exist; there are: {', '.join(known)}.{hint}")
    return known[wanted]


Meanings = Mapping[str, Mapping[str, str]]
"""Of keys, by the names of models."""


def _meanings() -> Meanings:
    """Return what stands below each field of each section's model.

    Pydantic can keep it, which costs each start of the command 45 ms; only this verb asks.
    """
    return {
        model.__name__: {name: text for one in reversed(model.__mro__) for name, text in _below(one)}
        for start in (Recipe, *TARGET_SECTIONS.values())
        for model in _models(start)
    }


def _models(inside: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type, and in the fields of those."""
    if isinstance(inside, type) and issubclass(inside, BaseModel):
        yield inside
        for field in inside.model_fields.values():
            yield from _models(field.annotation)
    else:
        for part in get_args(inside):
            yield from _models(part)


def _below(model: type) -> Iterator[tuple[str, str]]:
    """Yield the names of a class's own fields, and the string below each."""
    if not issubclass(model, BaseModel) or model is BaseModel:
        return
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(found, ast.ClassDef)
    for field, text in pairwise(found.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, ast.literal_eval(text.value)


def _walk(path: str, model: str, defs: Mapping[str, Any], meanings: Meanings) -> Iterator[tuple[str, Listed]]:
    """Yield a section and then those in it."""
    schema, said = defs[model], meanings[model]
    inner = {}
    keys = []
    for name, one in schema["properties"].items():
        below = _model_of(one)
        if below is not None and _plain(one):
            at = ".".join(part for part in (path, name, _NAMED.get(name)) if part)
            inner[at] = below
            if name == "targets":
                inner |= {f"{name}.{backend}": model.__name__ for backend, model in TARGET_SECTIONS.items()}
            keys.append(Key(name, f"section [{at}]", "", _sentence(said.get(name, ""))))
        else:
            default = _default(one, needed=name in schema.get("required", ()))
            keys.append(Key(name, " or ".join(_values(one)), default, _sentence(said.get(name, ""))))
    if path == "distil":
        names = " | ".join(json.dumps(name) for name in PRESETS)
        keys.append(Key("preset", names, "", "Settings as published, for what is not given."))
    yield path or TOP, Listed(path or TOP, _sentence(schema.get("description", "")), keys)
    for name, below in inner.items():
        yield from _walk(name, below, defs, meanings)


def _default(one: Mapping[str, Any], *, needed: bool) -> str | None:
    if needed:
        return None
    return "" if one.get("default") is None else json.dumps(one["default"])


def _model_of(one: Mapping[str, Any]) -> str | None:
    """Return the model of the section that a key holds, alone or by names of one's own; None for plain values."""
    more = one.get("additionalProperties")
    for part in (one, *one.get("anyOf", ()), *([more] if isinstance(more, dict) else [])):
        if "$ref" in part:
            return str(part["$ref"]).removeprefix(_REFERENCE)
    return None


def _plain(one: Mapping[str, Any]) -> bool:
    """Return whether a key holds a section and nothing else; a rank may be a number, too."""
    return not any("type" in part and part["type"] != "null" for part in one.get("anyOf", ()))


def _values(one: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of values that a key takes."""
    if "anyOf" in one:
        for part in one["anyOf"]:
            yield from _values(part)
    elif "enum" in one or "const" in one:
        yield " | ".join(json.dumps(value) for value in one.get("enum", [one.get("const")]))
    elif "$ref" in one:
        yield "a table"
    elif one.get("type") == "array":
        yield f"a list of {' or '.join(_values(one.get('items', {})))}"
    elif one.get("type") == "object":
        yield f"a table of {' or '.join(_values(one.get('additionalProperties', {})))}"
    elif one.get("type") not in (None, "null"):
        said = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true | false"}
        yield f"{said[one['type']]}{_bounds(one)}"


def _bounds(one: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {one[name]}" for name, sign in signs.items() if name in one]
    return f" {', '.join(found)}" if found else ""


def _sentence(text: str) -> str:
    """Return a docstring as one line, without the marks of code."""
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()
