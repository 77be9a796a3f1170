"""`make search-speed`: an exact search of 10,000 passages in both cores, in int8 rows and in floats, in one run.

It prints a table and asserts nothing. A search is the median of a hundred in a warm process, the texts of its ten
passages included; added is the time in which all passages were written, in batches of 500.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from apps import toolchains

_LINE = re.compile(r"search: (\{.*\})")
_COLUMNS = {"search_ms": "search, ms", "p90_ms": "p90, ms", "add_ms": "added, ms", "held_kb": "held, kB"}


def main() -> int:
    """Time both cores, and print a table."""
    table = Table(Column("core", no_wrap=True), "rows", "width", "storage", *_COLUMNS.values())
    cores: dict[str, Callable[[], str]] = {"Kotlin": _kotlin, "Swift": _swift}
    for name, measure in cores.items():
        try:
            log = measure()
        except toolchains.Lacking as error:
            print(f"{name}: not measured: {error}")
            continue
        for row in map(json.loads, _LINE.findall(log)):
            numbers = (f"{row[key]:,.1f}" for key in _COLUMNS)
            table.add_row(name, f"{row['rows']:,}", str(row["width"]), row["storage"], *numbers)
    # A pipe has no width; nothing is cut there.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


def _kotlin() -> str:
    return toolchains.maven("test", "-Dtest=SearchSpeedTest", "-Dpocketbert.search.speed=yes")


def _swift() -> str:
    return toolchains.swift_test("--filter", "SearchSpeedTests", paths={"POCKETBERT_SEARCH_SPEED": Path("yes")})


if __name__ == "__main__":
    sys.exit(main())
