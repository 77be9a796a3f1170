"""Format values for people. Each function returns None for absent or non-finite values, so the page can say why."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.verify.record import Parity

GAP = "—"
_EXACT_DB = 999.0
"""SQNR that a parity record has for identical outputs."""
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def ms(value: float | None) -> str | None:
    """Return milliseconds with three significant digits."""
    value = _number(value)
    if value is None:
        return None
    digits = next((digits for digits, floor in enumerate((100, 10, 0.1)) if value >= floor), 3)
    return f"{value:.{digits}f}"


def mb(value: float | None) -> str | None:
    """Return bytes as megabytes of 10⁶ bytes."""
    value = _number(value)
    return None if value is None else f"{value / 1e6:.1f}" if abs(value) >= 1e5 else f"{value / 1e6:.3f}"


def gib(value: float | None) -> str | None:
    """Return bytes as GiB."""
    value = _number(value)
    return None if value is None else f"{value / 2**30:.1f}"


def millions(value: float) -> str:
    """Return a count of parameters."""
    return f"{value / 1e6:.1f} million" if value >= 1e6 else f"{value:,.0f}"


def in_millions(value: float | None) -> str | None:
    """Return a count in millions, with two decimals."""
    return fixed(None if value is None else value / 1e6, 2)


def fixed(value: float | None, digits: int) -> str | None:
    """Return a number with so many decimals, never as minus zero."""
    value = _number(value)
    text = None if value is None else f"{value:.{digits}f}"
    return text.lstrip("-") if text is not None and not text.strip("-0.") else text


def short(value: float | None, digits: int = 6) -> str | None:
    """Return a number of any size with so many significant digits at most."""
    value = _number(value)
    return None if value is None else f"{value:.{digits}g}"


def score(value: float | None, kind: str) -> str | None:
    """Return a cosine with five decimals, or an SQNR in dB."""
    if kind == "cosine":
        return fixed(value, 5)
    value = _number(value)
    return None if value is None else "exact" if value >= _EXACT_DB else f"{value:.1f} dB"


def score_name(kind: str) -> str:
    """Return the name of a kind of score."""
    return "cosine" if kind == "cosine" else "SQNR"


def of_head(parity: Parity) -> str:
    """Return the verdict on another head of a file with its task and scores."""
    name = score_name(parity.score)
    parts = [parity.task, verdict(parity.verdict)]
    if parity.measures is not None:
        mean, worst = (score(one, parity.score) for one in (parity.measures.mean_score, parity.measures.worst_score))
        parts.append(f"{name} {mean} on average, {worst} at worst")
    return ", ".join(parts)


def times(value: float | None) -> str | None:
    """Return a ratio such as 2.41×."""
    value = _number(value)
    return None if value is None else f"{value:.2f}×" if value < 10 else f"{value:.1f}×"


def points(drop: float | None) -> str | None:
    """Return the change of a task metric in points, from its drop as a fraction of 1."""
    text = fixed(abs(drop) * 100 if drop is not None else None, 2)
    if text is None or drop is None:
        return None
    if not text.strip("0."):
        return "no change"
    return f"{'lost' if drop > 0 else 'gained'} {text} points"


def percent(value: float | None, digits: int = 0) -> str | None:
    """Return a fraction in percent."""
    value = _number(value)
    return None if value is None else f"{value * 100:.{digits}f} %"


def cut(text: str, most: int) -> str:
    """Return a text on one line, cut where it is longer than so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def threads(count: int) -> str:
    """Return a thread count in words."""
    return f"{count} thread" if count == 1 else f"{count} threads"


def linear(label: str) -> str:
    """Return a linear's path from its layer's number on, with the word before that."""
    parts = label.split(".")
    first = next((place for place, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[max(0, first - 1) :])


def power(value: float) -> str:
    """Return a power of ten as people write it."""
    exponent = round(math.log10(value))
    small = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:g}" if exponent > -4 else f"10{small}"


def lengths(functions: Sequence[tuple[int, int]]) -> str:
    """Return the lengths that a file's functions take."""
    return ", ".join(f"{low}" if low == high else f"any from {low} to {high}" for low, high in functions)


def verdict(value: str) -> str:
    """Return a verdict as people read it."""
    return value.replace("_", " ")


def visible(text: str) -> str:
    """Return text with every character that a page must not hold, or that reorders it, spelled as its code point."""
    return "".join(f"⟨U+{ord(char):04X}⟩" if _hidden(char) else char for char in text)


def for_markdown(value: Any) -> str:
    """Return a value that cannot end a table cell, open a tag or start a link; a gap for None."""
    return GAP if value is None else re.sub(r"([\\|<>*`\[\]])", r"\\\1", visible(str(value)))


def _hidden(char: str) -> bool:
    code = ord(char)
    not_a_character = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or code in _BIDI or code == 0xFEFF or not_a_character


def toml_lines(values: Mapping[str, Any], section: str = "") -> list[str]:
    """Return a recipe as lines of TOML: plain values first, then a section per table; unset keys are left out."""
    plain = {key: value for key, value in values.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    lines = [f"[{section}]", *lines] if section and lines else lines
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = toml_lines(value, f"{section}.{key}" if section else key)
            lines += ["", *inner] if lines and inner else inner
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"
