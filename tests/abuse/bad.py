"""One bad input: how it is written, and what the command has to say of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import recipe_file

Write = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Bad:
    """One bad input."""

    group: str
    name: str
    write: Write
    """Writes it into a folder in which `source` is a good checkpoint, and returns the command's arguments."""
    words: tuple[str, ...]
    """One of them has to be in the line of complaint: what was asked, or what was found."""
    codes: frozenset[int] = frozenset({2})
    """Right exit codes; 0 for what is in truth fine."""
    variables: dict[str, str] = field(default_factory=dict)


SOURCE = {"source": "source", "random_weights": True}
LITERT = {"litert": {"schemes": ["fp32"]}}
FINE = frozenset({0, 2})
"""Either is right: what is asked is odd, and nothing is wrong with it."""


def plan_of(**overrides: Any) -> Write:
    """Return what writes a recipe over the good checkpoint, with some sections replaced, and plans it."""

    def write(folder: Path) -> list[str]:
        recipe_file(folder, **{"student": SOURCE, "targets": LITERT, **overrides})
        return ["plan", "recipe.toml"]

    return write


def arguments(*given: str, prepare: Callable[[Path], object] | None = None) -> Write:
    """Return what writes nothing, or what `prepare` does, and passes arguments."""

    def write(folder: Path) -> list[str]:
        if prepare:
            prepare(folder)
        return list(given)

    return write


def problems(bad: Bad, code: int, said: str, seconds: float, *, limit_seconds: float) -> list[str]:
    """Say what is wrong with the way in which a command ended."""
    found = []
    if seconds > limit_seconds:
        return [f"it took more than {limit_seconds:.0f} s"]
    if "Traceback" in said:
        found.append(f"a traceback: {said.strip().splitlines()[-1][:200]}")
    if code not in bad.codes:
        found.append(f"exit code {code}, not {' or '.join(map(str, sorted(bad.codes)))}: {said.strip()[-300:]}")
    if code == 2 and not found:
        found += complaint(said, bad.words)
    return found


def complaint(said: str, words: Sequence[str]) -> list[str]:
    """Say what is wrong with a complaint: it is one line, and names what was asked or found."""
    lines = [line for line in said.splitlines() if line.startswith("error:")]
    if len(lines) != 1:
        return [f"{len(lines)} lines begin with `error:`: {said.strip()[-200:]}"]
    if words and not any(word in lines[0] for word in words):
        return [f"it names none of {', '.join(map(repr, words))}: {lines[0][:200]}"]
    return []
