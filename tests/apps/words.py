"""The English strings of the iOS app's screens, found in the screens, with the plurals of `project.toml`."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SHOWN = re.compile(
    r"(?:\b(?:Text|Label|Button|Toggle|Picker|Section|TextField|Input|Fact|Tab|ProgressView|row|navigationTitle"
    r"|chartXAxisLabel|chartYAxisLabel)\(|\btitle: |\blocalized: )"
    r'(?:[\w. =]+ \? )?(?=")'
)
"""Behind it a screen's own words stand; what a model says is `verbatim`."""
_SPECIFIER = re.compile(r'specifier: "(%\w+)"\Z')


def of_screens(spec: Mapping[str, Any], home: Path) -> set[str]:
    """Return the words that the screens show, and that a translator would need, by the keys that the system makes."""
    screens = [place for target in spec["targets"] for place in (home / target["folder"]).rglob("*.swift")]
    return {word for place in screens for word in shown_in(place.read_text("utf-8"))}


def shown_in(source: str) -> Iterator[str]:
    """Yield the words of a source file that a person sees, by their keys."""
    for match in _SHOWN.finditer(source):
        word, end = _key(source, match.end())
        yield word
        # The other branch of a condition.
        if source.startswith(' : "', end):
            yield _key(source, end + 3)[0]


def _key(source: str, at: int) -> tuple[str, int]:
    """Read the literal that begins at a quote; return its key, interpolations as `%@` or as they say, and its end."""
    key, at = "", at + 1
    while source[at] != '"':
        if source.startswith("\\(", at):
            end = _closed(source, at + 2)
            specifier = _SPECIFIER.search(source[at + 2 : end - 1])
            key, at = key + (specifier.group(1) if specifier else "%@"), end
        elif source[at] == "\\":
            key, at = key + source[at : at + 2], at + 2
        else:
            key, at = key + source[at], at + 1
    return key, at + 1


def _closed(source: str, at: int) -> int:
    """Return where an interpolation ends that began before; literals may stand in it."""
    depth = 1
    while depth:
        if source[at] == '"':
            at = _key(source, at)[1]
            continue
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        at += 1
    return at


def catalog(spec: Mapping[str, Any], home: Path) -> str:
    """Return the catalog of the English strings.

    Raises:
        ValueError: a plural is of words that no screen shows.
    """
    shown, plurals = of_screens(spec, home), spec["plurals"]
    if unknown := sorted(set(plurals) - shown):
        raise ValueError(
            f"project.toml has plurals of {unknown}, which no screen shows; remove them, or mend their keys"
        )
    table = {word: {"extractionState": "manual"} | _forms(word, plurals.get(word)) for word in sorted(shown)}
    document = {"sourceLanguage": "en", "strings": table, "version": "1.0"}
    # As Xcode writes it, so that opening the project changes nothing.
    return json.dumps(document, indent=2, ensure_ascii=False, separators=(",", " : "))


def _forms(word: str, one: str | None) -> dict[str, Any]:
    """Return the English plural forms of a word, or nothing for one that has a single form."""
    if one is None:
        return {}
    forms = {
        name: {"stringUnit": {"state": "translated", "value": value}} for name, value in (("one", one), ("other", word))
    }
    return {"localizations": {"en": {"variations": {"plural": forms}}}}
