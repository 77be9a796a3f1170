"""Tables of a study's front: its students beside the recipe as it is, and what others have published."""

import contextlib
from collections.abc import Sequence

from pipeline.fronts.front import PUBLISHED_HEAD, Front
from pipeline.report.table import Cell, Column, Part, Row, Table, name, number, words


def students(front: Front) -> Table:
    """Return a row for the recipe as it is, for each trial of the front, and for each recipe beside them."""
    # Names stand in the first column, and words in the last two.
    ends = (0, len(front.head) - 2, len(front.head) - 1)
    columns = [Column(title, number=place not in ends) for place, title in enumerate(front.head)]
    rows = [
        Row(_cells(front.base, columns), reference=True),
        *(Row(_cells(row.cells, columns)) for row in front.rows),
        *(Row(_cells(cells, columns)) for cells in front.beside),
    ]
    return Table(columns, [Part(rows)]).without_gaps()


def published(front: Front) -> Table:
    """Return a row for each student of others."""
    columns = [Column(title, number=title == "MB") for title in PUBLISHED_HEAD]
    return Table(columns, [Part([Row(_cells(cells, columns)) for cells in front.published])]).without_gaps()


def _cells(texts: Sequence[str], columns: Sequence[Column]) -> list[Cell]:
    found = [name(texts[0])]
    for text, column in zip(texts[1:], columns[1:], strict=True):
        value = None
        with contextlib.suppress(ValueError, IndexError):
            value = float(text.split()[0])
        found.append(number(value, text or None, "not measured") if column.number else words(text, "nothing to say"))
    return found
