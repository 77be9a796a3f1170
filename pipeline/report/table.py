"""A table as data: what the page and RESULTS.md both write. A column in which nothing is known is left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pipeline.report import wording


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    title: str
    unit: str = ""
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str | None
    """None: nothing is known, and a dash stands there."""
    small: str = ""
    """A second line, such as the bound of a number."""
    value: float | None = None
    """The number that sorting goes by."""
    why: str = ""
    """Why nothing is known."""
    badge: str = ""
    """The verdict whose colours the text has."""
    long: bool = False
    """Whether the text is prose that may be broken anywhere."""


@dataclass(frozen=True)
class Row:
    """One row; its first cell names it."""

    cells: Sequence[Cell]
    reference: bool = False


@dataclass(frozen=True)
class Part:
    """Rows with a title above them, or without."""

    rows: Sequence[Row]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Columns and rows, and what has to be said below them."""

    columns: Sequence[Column]
    parts: Sequence[Part]
    notes: Sequence[str] = field(default=())

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of all parts."""
        return (row for part in self.parts for row in part.rows)

    def __bool__(self) -> bool:
        """Return whether there is any row."""
        return any(True for _ in self.rows)

    def without_gaps(self) -> "Table":
        """Return the table without the columns in which no row has a text; the first column stays."""
        kept = [
            place
            for place in range(len(self.columns))
            if place == 0 or any(row.cells[place].text is not None for row in self.rows)
        ]
        parts = [
            replace(part, rows=[replace(row, cells=[row.cells[place] for place in kept]) for row in part.rows])
            for part in self.parts
            if part.rows
        ]
        return replace(self, columns=[self.columns[place] for place in kept], parts=parts)


def name(text: str, small: str = "") -> Cell:
    """Return a cell of words."""
    return Cell(text, small)


def number(value: float | None, text: str | None, why: str = "", *, small: str = "") -> Cell:
    """Return a cell of a number, or a gap with its reason."""
    return Cell(text, small if text is not None else "", value if text is not None else None, why)


def words(text: str | None, why: str = "") -> Cell:
    """Return a cell of words, or a gap with its reason."""
    return Cell(text or None, why=why)


def verdict(value: str, *, simulated: bool = False, reasons: Sequence[str] = ()) -> Cell:
    """Return a badge; a verdict that a stand-in for the runtime gave says so."""
    said = wording.verdict(value) + (", simulated" if simulated and value == "passed" else "")
    return Cell(said, "; ".join(reasons), badge=value, long=True)
