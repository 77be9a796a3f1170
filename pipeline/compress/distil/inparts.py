"""Work over many rows that is kept in parts: a run that was stopped goes on behind the last whole one."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """Some rows, and the file of what was found of them."""

    path: Path
    first: int
    behind: int
    """The row behind the last."""


def parts(folder: Path, count: int, size: int, ending: str) -> list[Part]:
    """Return the parts of so many rows, `size` in each but the last.

    Where they are cut hangs on nothing else, since rows of a batch have some influence on each other's last bits.
    """
    starts = range(0, count, size)
    return [
        Part(folder / f"{number:05}{ending}", start, min(start + size, count)) for number, start in enumerate(starts)
    ]


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, and rename it at the end: what is killed before leaves no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    yield aside
    aside.replace(path)
