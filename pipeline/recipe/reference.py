"""The reference of a recipe's keys: what each accepts, its default and its meaning, read from the recipe's JSON schema.

Pydantic takes the meanings from the docstrings below the fields (`use_attribute_docstrings`).
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from pipeline.errors import InputError
from pipeline.recipe.losses import PRESETS
from pipeline.recipe.schema import TARGET_SECTIONS, Recipe

TOP = "recipe"
"""Name under which the keys above all sections are listed."""
_REFERENCE = "#/$defs/"
_PLACEHOLDERS = {"targets": "FORMAT", "gates": "SCHEME", "beside": "RECIPE", "heads": "NAME"}
"""What stands for the name in `[targets.FORMAT]`, where a recipe may have several sections of one kind."""
_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true | false"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Key:
    """One key of a section."""

    name: str
    accepts: str
    default: str | None
    """As JSON; None if the key is required, empty if leaving it out means that it is not used."""
    meaning: str


@dataclass(frozen=True)
class SectionKeys:
    """One section of a recipe and its keys."""

    name: str
    meaning: str
    keys: list[Key]


def sections(of: type[BaseModel] = Recipe) -> dict[str, SectionKeys]:
    """Return every section of a recipe, or of another file, by its name, in the file's order."""
    schema = of.model_json_schema()
    return {one.name: one for one in _sections("", schema, schema["$defs"])}


def section(name: str) -> SectionKeys:
    """Return one section.

    Raises:
        InputError: no section has this name.
    """
    known, bare = sections(), name.strip("[]")
    if bare not in known:
        close = difflib.get_close_matches(bare, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"section {name!r} does not exist; there are: {', '.join(known)}.{hint}")
    return known[bare]


def _sections(path: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[SectionKeys]:
    """Yield the section at a path, and then those below it.

    Args:
        path: the section's name, such as `distil.augment`; empty for the recipe itself.
        schema: the section's JSON schema.
        definitions: the schemas that it refers to.
    """
    keys, inner = [], {}
    for name, value in schema["properties"].items():
        meaning = _one_line(value.get("description", ""))
        reference = _reference(value)
        if reference is not None:
            inner_path = ".".join(part for part in (path, name, _PLACEHOLDERS.get(name)) if part)
            inner[inner_path] = definitions[reference]
            if name == "targets":
                inner |= {f"targets.{one}": model.model_json_schema() for one, model in TARGET_SECTIONS.items()}
            first_sentence = (
                _one_line(definitions[reference].get("description", "")).partition(". ")[0].rstrip(".") + "."
            )
            keys.append(Key(name, f"section [{inner_path}]", "", meaning or first_sentence))
        else:
            default = _default(value, required=name in schema.get("required", ()))
            keys.append(Key(name, " or ".join(_accepted(value)), default, meaning))
    if path == "distil":
        # It is replaced by its settings before the model is validated, so the schema does not know it.
        names = " | ".join(json.dumps(name) for name in PRESETS)
        keys.append(Key("preset", names, "", "Published settings for the keys that are not given."))
    yield SectionKeys(path or TOP, _one_line(schema.get("description", "")), keys)
    for inner_path, inner_schema in inner.items():
        yield from _sections(inner_path, inner_schema, definitions)


def _reference(value: Mapping[str, Any]) -> str | None:
    """Return the name of the schema of a key that holds a section or several by name; None for other keys.

    A key that takes a section or a plain value, such as a rank, is listed as an ordinary key.
    """
    alternatives = value.get("anyOf", ())
    if any("type" in part and part["type"] != "null" for part in alternatives):
        return None
    by_name = [one for one in (value.get("additionalProperties"),) if isinstance(one, dict)]
    # Where not every name will do.
    by_name += value.get("patternProperties", {}).values()
    for part in (value, *alternatives, *by_name):
        if "$ref" in part:
            return str(part["$ref"]).removeprefix(_REFERENCE)
    return None


def _default(value: Mapping[str, Any], *, required: bool) -> str | None:
    if required:
        return None
    return "" if value.get("default") is None else json.dumps(value["default"])


def _accepted(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield a phrase for each kind of value that a key accepts."""
    if "anyOf" in value:
        for part in value["anyOf"]:
            yield from _accepted(part)
    elif "enum" in value or "const" in value:
        yield " | ".join(json.dumps(choice) for choice in value.get("enum", [value.get("const")]))
    elif "$ref" in value:
        yield "a table"
    elif value.get("type") == "array":
        inner = " or ".join(_accepted(value.get("items", {})))
        yield f"a list of {inner}" if inner else "a list"
    elif value.get("type") == "object":
        yield f"a table of {' or '.join(_accepted(value.get('additionalProperties', {})))}"
    elif value.get("type") not in (None, "null"):
        bounds = ", ".join(f"{sign} {value[name]}" for name, sign in _BOUNDS.items() if name in value)
        yield f"{_TYPES[value['type']]} {bounds}".rstrip()


def _one_line(text: str) -> str:
    """Return a docstring as one line, without backticks."""
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()
