"""Check that everything in an ExecuTorch file is read by something: unread content could be anything, and is shipped.

A conversion writes a program, segments at multiples of 128 bytes, and zeros between them, never more.
"""

from collections.abc import Iterable

import numpy as np

from pipeline.formats.columns import Columns, Ints, Rows

_SEGMENT_ALIGNMENT = 128
"""Alignment of segments in executorch/exir/_serialize/_program.py."""
_TABLE_ALIGNMENT = 16
"""Largest alignment in executorch's flatbuffers, that of vectors with tensors."""
CONSTANT_ALIGNMENT = 16
"""Alignment of constants in the constant segment."""


def check_between(columns: Columns, program_bytes: int, starts: Ints, ends: Ints) -> None:
    """Check that segments follow the program and each other with only zeros between, and end the file.

    Args:
        columns: the file.
        program_bytes: end of the program.
        starts: start of each segment.
        ends: end of each segment.

    Raises:
        ArtifactError: there are other bytes between or behind them.
    """
    order = np.lexsort((ends, starts))
    end = program_bytes
    for number in order.tolist():
        start = int(starts[number])
        if not 0 <= start - end < _SEGMENT_ALIGNMENT or columns.data[end:start].any():
            raise columns.refuse(f"between byte {end} and its segment {number} at {start} is more than zeros that fill")
        end = int(ends[number])
    if end != len(columns.data):
        raise columns.refuse(f"{len(columns.data) - end} bytes lie behind its last segment, and nothing reads them")


def check_rows(rows: Rows, read: Iterable[int], problem: str) -> None:
    """Check that every row is read by something."""
    rows.demand(np.isin(np.arange(len(rows)), list(read)), problem)


def check_tables(roots: Rows, head: int) -> None:
    """Check that flatbuffers hold only their tables and the data that these refer to.

    Args:
        roots: the root tables, with start and end of their flatbuffers.
        head: bytes at the start of each flatbuffer that are checked elsewhere.

    Raises:
        ArtifactError: there are other bytes than padding zeros.
    """
    covered = _Covered(roots)
    covered.add(roots, roots.low, roots.low + head)
    covered.add_tables(roots)
    place = covered.bare()
    if place is not None:
        raise roots.columns.refuse(f"{roots.where}: nothing in it leads to what lies at byte {place}")


class _Covered:
    """Marks the bytes of flatbuffers that their tables refer to."""

    def __init__(self, roots: Rows) -> None:
        self._data = roots.columns.data
        # Two delegates may share one payload.
        self._lows, chosen = np.unique(roots.low, return_index=True)
        self._sizes = roots.high[chosen] - self._lows
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._marks = np.zeros(int(self._sizes.sum()) + 1, np.int64)

    def add(self, rows: Rows, starts: Ints, ends: Ints) -> None:
        """Mark the bytes between starts and ends, one range for each row."""
        number = np.searchsorted(self._lows, rows.low)
        moved = self._firsts[number] - rows.low
        np.add.at(self._marks, starts + moved, 1)
        np.add.at(self._marks, ends + moved, -1)

    def add_tables(self, rows: Rows) -> None:
        """Mark tables, their vtables, and everything that they refer to."""
        schema = rows.columns.schema
        self.add(rows, rows.at, rows.at + rows._bytes)
        self.add(rows, rows._vtable, rows._vtable + rows._fields_bytes)
        vectors = list(rows._vectors.values())
        for name, entry in schema.tables[rows.kind].items():
            if entry.kind.startswith("[") and schema.scalar(entry.kind[1:-1]) is None:
                vectors.append(rows._vector(name, "<u4"))
        for vector in vectors:
            width = np.dtype(vector.code).itemsize
            # An absent vector starts nowhere.
            start = np.where(vector.start > 0, vector.start - 4, rows.low)
            self.add(rows, start, np.where(vector.start > 0, vector.start + width * vector.count, rows.low))
        for below in rows._below.values():
            self.add_tables(below)

    def bare(self) -> int | None:
        """Return the position of the first unmarked byte that is not padding, or None."""
        covered = np.cumsum(self._marks)[:-1] > 0
        for low, first, size in zip(self._lows.tolist(), self._firsts.tolist(), self._sizes.tolist(), strict=True):
            bare = np.flatnonzero(~covered[first : first + size])
            filled = bare[self._data[low + bare] > 0]
            runs = np.split(bare, np.flatnonzero(np.diff(bare) > 1) + 1)
            wrong = [*filled.tolist(), *(int(run[0]) for run in runs if len(run) >= _TABLE_ALIGNMENT)]
            if wrong:
                return int(low + wrong[0])
        return None
