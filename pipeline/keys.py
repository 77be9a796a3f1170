"""What a recipe can say: the keys of each section with their values, defaults and meaning, read off its models."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.distil.presets import PRESETS
from pipeline.errors import InputError
from pipeline.recipe import Recipe

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
    return dict(_walk("", whole, whole["$defs"]))


def section(name: str) -> Listed:
    """Return one section.

    Raises:
        InputError: there is none of this name.
    """
    known = sections()
    if name.strip("[]") not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"section {name!r} does not exist; there are: {', '.join(known)}.{hint}")
    return known[name.strip("[]")]


def _walk(path: str, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Iterator[tuple[str, Listed]]:
    """Yield a section and then those in it."""
    inner = {}
    keys = []
    for name, one in schema["properties"].items():
        below = _section_of(one, defs)
        if below is not None and _plain(one):
            at = ".".join(part for part in (path, name, _NAMED.get(name)) if part)
            inner[at] = below
            keys.append(Key(name, f"section [{at}]", "", _sentence(one.get("description", ""))))
        else:
            keys.append(_key(name, one, needed=name in schema.get("required", ())))
    if path == "distil":
        names = " | ".join(json.dumps(name) for name in PRESETS)
        keys.append(Key("preset", names, "", "Settings as published, for what is not given."))
    yield path or TOP, Listed(path or TOP, _sentence(schema.get("description", "")), keys)
    for name, below in inner.items():
        yield from _walk(name, below, defs)


def _key(name: str, one: Mapping[str, Any], *, needed: bool) -> Key:
    default = None if needed else "" if one.get("default") is None else json.dumps(one["default"])
    return Key(name, " or ".join(_values(one)), default, _sentence(one.get("description", "")))


def _section_of(one: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the section that a key holds, alone or by names of one's own; None for plain values."""
    more = one.get("additionalProperties")
    for part in (one, *one.get("anyOf", ()), *([more] if isinstance(more, dict) else [])):
        if "$ref" in part:
            found: Mapping[str, Any] = defs[part["$ref"].removeprefix(_REFERENCE)]
            return found
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
