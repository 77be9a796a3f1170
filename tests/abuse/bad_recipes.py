"""Recipes with wrong values, for every key by what its reference says that it accepts; and files that are no recipe."""

import copy
import math
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from conftest import recipe_values

from abuse.bad import FINE, LITERT, SOURCE, Bad, Write, arguments
from pipeline.recipe import reference

_BASES: dict[str, dict[str, Any]] = {
    "train": {"train_file": "train.csv", "dev_file": "dev.csv"},
    "start": {"kind": "random"},
    "prune": {"compute": 0.5},
    "factorise": {"embedding": {"rank": 8}},
    "adapter": {"into": "bundled:all-MiniLM-L6-v2", "texts": ["stsb"]},
    "distil": {"losses": {"sentence_mse": 1.0}, "dataset": "stsb"},
    "targets.FORMAT": {"schemes": ["fp32"]},
    "targets.coreml": {"schemes": ["fp32"]},
}
"""What a section needs so that one wrong key is its only fault."""
_HUGE = 10**30


def wrong_values(accepts: str) -> list[Any]:
    """Return values that are not what a key accepts."""
    if accepts.startswith("section"):
        return [3, "text", [], [1], True]
    if "whole number" in accepts or accepts.startswith("number") or "| 16 |" in accepts:
        if "list" in accepts:
            return ["text", 3.5, ["text"], [-5], {}, [[]], [_HUGE], True]
        found: list[Any] = ["three", [1], {}, True, math.nan, math.inf, -math.inf, "", "٣"]
        if "whole number" in accepts:
            found.append(1.5)
        for sign, bound in re.findall(r"([≥>≤<]) (-?[0-9.]+)", accepts):
            limit = float(bound) if "." in bound else int(bound)
            found += {"≥": [limit - 1], ">": [limit], "≤": [limit + 1, _HUGE], "<": [limit]}[sign]
        return found
    if accepts.startswith("true"):
        return ["yes", "true", 1, 0.0, [], {}]
    if accepts.startswith("a table"):
        return ["text", 3, [], {"no_such": 1.0}, {"": 1.0}]
    if "list" in accepts:
        return ["text", 3, [3], [[]], {}, [], [""], ["no-such", "no-such"], ["\x01"], True]
    if '"' in accepts:
        return ["no-such", "", 3, [], True, "NO", "\ufeff"]
    return [3, 1.5, True, [], {}, ["text"]]


def keys(seed: int, *, each: int) -> Iterator[Bad]:
    """Yield so many wrong values for each key of a recipe, and an unknown key for each section."""
    for name, section in reference.sections().items():
        for key in section.keys:
            draw = random.Random(f"{seed}-{name}-{key.name}")
            values = wrong_values(key.accepts)
            for value in draw.sample(values, min(each, len(values))):
                words = (f"{key.name}", name.split(".")[0])
                said = f"[{name}] {key.name} = {str(value)[:40]!r}"
                # A path or name of a nonsensical kind may be one that a user has.
                yield Bad("recipe: a key", said, _recipe(name, {key.name: value}), words)
        yield Bad("recipe: a key", f"[{name}] nonsense = 1", _recipe(name, {"nonsense": 1}), ("nonsense",))


def _recipe(section: str, changed: dict[str, Any]) -> Write:
    def write(folder: Path) -> list[str]:
        values = copy.deepcopy(recipe_values(student=SOURCE, targets=LITERT))
        if section in ("train", "train.sparse"):
            values["task"] = "classification"
        inside = values
        if section != reference.TOP:
            whole = section.replace("FORMAT", "litert").replace("SCHEME", "fp32").replace("RECIPE", "minilm")
            *outer, last = whole.split(".")
            path = ""
            for part in outer:
                path = f"{path}.{part}".strip(".")
                inside = inside.setdefault(part, dict(_BASES.get(path, {})))
            inside[last] = {**_BASES.get(section, {}), **(inside.get(last) or {})}
            inside = inside[last]
        inside |= changed
        for name in ("train", "dev"):
            (folder / f"{name}.csv").write_text("text,label\na,0\nb,1\n")
        (folder / "recipe.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
        return ["plan", "recipe.toml"]

    return write


def files() -> Iterator[Bad]:
    """Yield recipes that are no text, no TOML, no file, or strangely written."""
    good = tomli_w.dumps(recipe_values(student=SOURCE, targets=LITERT))
    contents: dict[str, tuple[bytes, bool]] = {
        "a byte order mark": (b"\xef\xbb\xbf" + good.encode(), True),
        "Windows line ends": (good.replace("\n", "\r\n").encode(), True),
        "a comment of ten megabytes": (b"# " + b"x" * 10_000_000 + b"\n" + good.encode(), True),
        "a comment in another script": (("# 日本語 \U0001f600\n" + good).encode(), True),
        "nothing": (b"", False),
        "white space": (b" \n\t\n", False),
        "Latin-1": (good.encode() + b'title = "\xe9"\n', False),
        "UTF-16": (good.encode("utf-16"), False),
        "UTF-32": (good.encode("utf-32"), False),
        "a NUL": (good.encode() + b"\0", False),
        "noise": (bytes(random.Random(1).randbytes(5000)), False),
        "JSON": (b'{"name": "tiny"}', False),
        "YAML": (b"name: tiny\ntask: embedding\n", False),
        "half a line": (good.encode()[: len(good) // 2], False),
        "a key twice": (b'name = "a"\n' + good.encode(), False),
        "a section twice": (good.encode() + b"[student]\n", False),
        "a number of a million digits": (b"number = " + b"9" * 1_000_000 + b"\n" + good.encode(), False),
        "a list nested ten thousand deep": (b"a = " + b"[" * 10_000 + b"]" * 10_000 + b"\n" + good.encode(), False),
        "a table nested five thousand deep": (b"[" + b".".join([b"a"] * 5000) + b"]\n", False),
        "a date for a name": (good.replace('"tiny"', "2026-01-01", 1).encode(), False),
        "a name with a line end": (good.replace('"tiny"', '"ti\\nny"', 1).encode(), False),
        "a name that leads out": (good.replace('"tiny"', '"../../tiny"', 1).encode(), False),
        "a name of two dots": (good.replace('"tiny"', '".."', 1).encode(), False),
        "the name of the store": (good.replace('"tiny"', '"store"', 1).encode(), False),
        "a name of one megabyte": (good.replace('"tiny"', '"' + "a" * 1_000_000 + '"', 1).encode(), False),
        "a surrogate": (good.encode() + b'x = "\\ud800"\n', False),
        "an escape that does not exist": (good.encode() + b'x = "\\q"\n', False),
    }
    for name, (content, fine) in contents.items():
        code = frozenset({0 if fine else 2})
        yield Bad("recipe: a file", name, _written(content), ("recipe.toml", "name"), code)
    yield Bad("recipe: a file", "a folder", _placed(lambda path: path.mkdir()), ("recipe.toml",))
    yield Bad("recipe: a file", "a pipe", _placed(os.mkfifo), ("recipe.toml",))
    yield Bad("recipe: a file", "a link to itself", _placed(lambda path: path.symlink_to(path)), ("recipe.toml",))
    yield Bad("recipe: a file", "a link to nowhere", _placed(lambda path: path.symlink_to("gone")), ("recipe.toml",))
    yield Bad("recipe: a file", "endless zeros", _placed(lambda path: path.symlink_to("/dev/zero")), ("recipe.toml",))
    yield Bad("recipe: a file", "a device without end", arguments("plan", "/dev/zero"), ("/dev/zero",))
    yield Bad("recipe: a file", "an empty device", arguments("plan", "/dev/null"), ("/dev/null", "null"))
    yield Bad("recipe: a file", "an empty name", arguments("plan", ""), ("''", "recipe"))
    yield Bad("recipe: a file", "a name of 5000 letters", arguments("plan", "a" * 5000), ("aaa",))
    yield Bad("recipe: a file", "a path of 5000 letters", arguments("plan", "a/" * 2500 + "b.toml"), ("a/a",))
    yield Bad("recipe: a file", "a name with a line end", arguments("plan", "a\nb"), ("a",))
    yield Bad("recipe: a file", "a name of signs", arguments("plan", "\x1b[31m\x07"), ("recipe", "there are"))
    yield Bad("recipe: a file", "the folder of the recipe", arguments("plan", "."), ("'.'", "."))
    yield Bad("recipe: a file", "a recipe without .toml", _other_name("recipe"), ("recipe",), FINE)


def _written(content: bytes) -> Write:
    return _placed(lambda path: path.write_bytes(content))


def _placed(make: Any) -> Write:
    def write(folder: Path) -> list[str]:
        make(folder / "recipe.toml")
        return ["plan", "recipe.toml"]

    return write


def _other_name(name: str) -> Write:
    def write(folder: Path) -> list[str]:
        (folder / name).write_text(tomli_w.dumps(recipe_values(student=SOURCE, targets=LITERT)))
        return ["plan", name]

    return write
