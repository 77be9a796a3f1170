"""What a model gives for each row: one item, or one for each of its tokens.

===============  ======================  ========================================================
kind             of a row                what it is
===============  ======================  ========================================================
`embedding`      `(1, hidden)`           a unit vector
`logits`         `(1, labels)`           scores of the classes, before any softmax
`value`          `(1, 1)`                the number that a regression gives
`token_logits`   `(tokens, labels)`      scores of the tags of each token, before any softmax
`spans`          `(tokens, 2)`           each token's score as the start and as the end of the answer
===============  ======================  ========================================================
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.schemes import OutputKind

Floats = NDArray[np.float32]
PER_TOKEN: tuple[OutputKind, ...] = ("token_logits", "spans")
"""Kinds with an item for each token; what a file gives for padding is left out."""


@dataclass(frozen=True)
class RowOutputs:
    """The outputs of several rows, of any number of items each."""

    values: Floats
    """`(items, width)`, row after row."""
    counts: NDArray[np.int64]
    """Items of each row, `(rows,)`."""

    @classmethod
    def of(cls, rows: Sequence[Floats]) -> "RowOutputs":
        """Join rows, each `(items, width)`, or `(width,)` for a single item."""
        whole = [np.atleast_2d(row) for row in rows]
        values = np.concatenate(whole) if whole else np.zeros((0, 0), np.float32)
        return cls(values, np.array([len(row) for row in whole], np.int64))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.counts)

    def __iter__(self) -> Iterator[Floats]:
        """Yield each row, `(items, width)`."""
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Floats:
        """Return one row, `(items, width)`."""
        end = int(self._ends[row])
        return self.values[end - int(self.counts[row]) : end]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    def take(self, rows: Sequence[int]) -> "RowOutputs":
        """Return some rows, in the order asked for."""
        return RowOutputs.of([self[row] for row in rows])

    def __add__(self, other: "RowOutputs") -> "RowOutputs":
        """Return these rows and then the others."""
        return RowOutputs.of([*self, *other])

    def rows_where(self, items: Any) -> list[int]:
        """Return the rows that hold a marked item, `(items,)`."""
        return sorted({int(row) for row in np.repeat(np.arange(len(self)), self.counts)[items]})
