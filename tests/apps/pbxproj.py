"""The text of an Xcode project: old-style property lists, written and read.

The reader is strict, and made for checking: what it takes, Xcode's own takes too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

HEADER = "// !$*UTF8*$!\n"
_PLAIN = re.compile(r"[A-Za-z0-9._/]+")
_TOKEN = re.compile(r'\s+|//[^\n]*\n|/\*.*?\*/|([{}()=;,])|"((?:[^"\\]|\\.)*)"|([A-Za-z0-9._/]+)', re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}

Value: TypeAlias = "str | list[Value] | dict[str, Value]"


def write(document: Mapping[str, Any]) -> str:
    """Return a document as Xcode writes it, objects one a line within their kind."""
    return HEADER + _written(document, 0) + "\n"


def _written(value: Any, depth: int) -> str:
    tabs = "\t" * (depth + 1)
    if isinstance(value, Mapping):
        lines = [f"{tabs}{_text(key)} = {_written(one, depth + 1)};\n" for key, one in value.items()]
        return "{\n" + "".join(lines) + "\t" * depth + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        lines = [f"{tabs}{_written(one, depth + 1)},\n" for one in value]
        return "(\n" + "".join(lines) + "\t" * depth + ")"
    return _text(str(value))


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and "//" not in text:
        return text
    for letter, character in (("\\", "\\"), ('"', '"'), ("n", "\n"), ("t", "\t")):
        text = text.replace(character, f"\\{letter}")
    return f'"{text}"'


def read(text: str) -> dict[str, Value]:
    """Read a document.

    Raises:
        ValueError: it is none; the message says where.
    """
    if not text.startswith(HEADER):
        raise ValueError("it does not begin as a project does")
    tokens = _tokens(text)
    try:
        value, at = _value(tokens, 0)
    except IndexError:
        raise ValueError("it ends too early") from None
    if at != len(tokens):
        raise ValueError(f"something follows the document: {tokens[at]}")
    if not isinstance(value, dict):
        raise ValueError("it holds no dictionary")
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            raise ValueError(f"line {line}: {text[at : at + 20]!r} is no part of a property list")
        mark, quoted, plain = found.groups()
        if mark is not None:
            tokens.append(("mark", mark))
        elif quoted is not None:
            tokens.append(("text", re.sub(r"\\(.)", lambda escape: _ESCAPES[escape[1]], quoted)))
        elif plain is not None:
            tokens.append(("text", plain))
        at = found.end()
    return tokens


def _value(tokens: list[tuple[str, str]], at: int) -> tuple[Value, int]:
    kind, text = tokens[at]
    if kind == "text":
        return text, at + 1
    if text == "{":
        found: dict[str, Value] = {}
        at += 1
        while tokens[at] != ("mark", "}"):
            kind, key = tokens[at]
            if kind != "text" or key in found:
                raise ValueError(f"{key} is no key, or comes twice")
            _expect(tokens, at + 1, "=")
            found[key], at = _value(tokens, at + 2)
            _expect(tokens, at, ";")
            at += 1
        return found, at + 1
    if text == "(":
        values: list[Value] = []
        at += 1
        while tokens[at] != ("mark", ")"):
            value, at = _value(tokens, at)
            values.append(value)
            if tokens[at] != ("mark", ")"):
                _expect(tokens, at, ",")
                at += 1
        return values, at + 1
    raise ValueError(f"{text} begins no value")


def _expect(tokens: list[tuple[str, str]], at: int, mark: str) -> None:
    if tokens[at] != ("mark", mark):
        raise ValueError(f"{tokens[at][1]} stands where {mark} has to")
