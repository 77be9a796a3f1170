"""How vectors are stored, and the exact search over stored vectors; the apps' cores compute the same scores.

int8 rows are compared in integers, so that every language and processor gives the same score and the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.search.about import About, Storage
from pipeline.vectors.contract import LARGEST_CODE

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

DTYPES: dict[Storage, np.dtype[Any]] = {
    "int8": np.dtype("i1"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bits": np.dtype("u1"),
}
_INT16_MOST = 32767
_INT32_MOST = 2**31 - 1
_ROWS_AT_ONCE = 4096
"""Rows that are turned into doubles together: 12 MB at width 384."""


def columns(about: About) -> int:
    """Return how many elements of its dtype a stored row has."""
    return about.width // 8 if about.storage == "bits" else about.width


def row_bytes(about: About) -> int:
    """Return how many bytes a stored row takes."""
    return columns(about) * DTYPES[about.storage].itemsize


def encode(vectors: Floats, about: About) -> NDArray[Any]:
    """Return embeddings as an index stores them, `(rows, whole width) -> (rows, columns)`.

    int8 codes are of the numbers as they are. Floats that were cut are scaled to unit length again.
    """
    kept = vectors[:, : about.width]
    if about.storage == "int8":
        steps = np.rint(kept.astype(np.float64) / np.array(about.scales))
        clipped: NDArray[Any] = np.clip(steps, -LARGEST_CODE, LARGEST_CODE).astype(np.int8)
        return clipped
    if about.storage == "bits":
        return _bits(kept)
    stored: NDArray[Any] = _scaled_again(kept, about, whole=vectors.shape[1]).astype(DTYPES[about.storage])
    return stored


def _bits(numbers: Floats) -> NDArray[np.uint8]:
    """Pack the signs of rows; the order of bits is sqlite-vec's, and Hamming distances are the same in any."""
    packed: NDArray[np.uint8] = np.packbits(numbers > 0, axis=1, bitorder="little")
    return packed


def _scaled_again(kept: Floats, about: About, *, whole: int) -> Floats:
    """Scale cut vectors to unit length again where the whole ones had it."""
    if not about.unit_length or about.width == whole:
        return kept
    norms = np.linalg.norm(kept.astype(np.float64), axis=1, keepdims=True)
    scaled: Floats = np.divide(kept, norms, out=np.zeros(kept.shape), where=norms > 0).astype(np.float32)
    return scaled


def decode(codes: NDArray[Any], about: About) -> Floats:
    """Return the vectors that stored rows stand for, `(rows, width)`; of bits their signs."""
    numbers = _numbers(codes, about)
    if about.scales is not None:
        numbers = numbers * np.array(about.scales)
    return numbers.astype(np.float32)


@dataclass(frozen=True)
class Score:
    """A row's score for a query."""

    row: int
    score: float
    """Of int8 rows the integer, of others the sum that the order is by before the norms."""
    cosine: float


@dataclass(frozen=True)
class _Query:
    """A query as rows of a storage are multiplied with it."""

    weights: Doubles
    """int8: whole numbers of at most 16 bits."""
    norm: float
    """Of the query itself, cut to the index's width."""
    per_score: float
    """What one of a score is in products of numbers."""
    norms_are_one: bool
    """Whether rows are of unit length as they are stored."""


def _int8_query(kept: Doubles, about: About) -> tuple[Doubles, float]:
    """Return a query's codes, and what one of their score is worth.

    The codes are as large as int32 sums of `width` products with int8 allow.
    """
    scaled = kept * np.array(about.scales)
    largest = float(np.abs(scaled).max())
    most = min(_INT16_MOST, _INT32_MOST // (LARGEST_CODE * about.width))
    if largest == 0.0:
        return np.zeros_like(scaled), 0.0
    return np.rint(scaled / largest * most), largest / most


def _query(vector: Floats, about: About) -> _Query:
    kept = vector[: about.width].astype(np.float64)
    norm = float(np.linalg.norm(kept))
    whole = about.unit_length and len(vector) == about.width
    if about.storage == "int8":
        codes, per_score = _int8_query(kept, about)
        return _Query(codes, norm, per_score, whole)
    if about.storage == "bits":
        return _Query(kept, norm, 1 / np.sqrt(about.width), True)
    return _Query(kept, norm, 1.0, whole)


class Scan:
    """Exact search over stored rows: every row is scored."""

    def __init__(self, codes: NDArray[Any], about: About, removed: NDArray[np.integer[Any]] | None = None) -> None:
        """Take stored rows, `(rows, columns)`, which may be a file in memory, and the numbers of removed ones."""
        self._codes, self._about = codes, about
        self._removed = removed
        self._norms: Doubles | None = None
        """Of each row, float32's precision; computed when first asked for."""

    def __len__(self) -> int:
        """Return how many rows there are, removed ones included."""
        return len(self._codes)

    def top(self, vector: Floats, top: int) -> list[Score]:
        """Return the best rows for a query of whole width, best first; of equal ones the lower number is first."""
        found = self._scored(vector, None)
        order = found[2]
        if self._removed is not None:
            order[self._removed] = -np.inf
        best = np.argsort(-order, kind="stable")[:top]
        return [score for score in _listed(best, best, found) if order[score.row] > -np.inf]

    def ranked(self, vector: Floats, rows: NDArray[np.integer[Any]], top: int) -> list[Score]:
        """Return the best of some rows, with the scores of `top`; those who looked for candidates come here."""
        rows = np.sort(rows[~np.isin(rows, self._removed)] if self._removed is not None else rows)
        found = self._scored(vector, rows)
        best = np.argsort(-found[2], kind="stable")[:top]
        return list(_listed(best, rows[best], found))

    def _scored(self, vector: Floats, rows: NDArray[np.integer[Any]] | None) -> tuple[Doubles, Doubles, Doubles]:
        """Return each row's score, cosine, and the number by which rows are ordered."""
        query = _query(vector, self._about)
        codes = self._codes if rows is None else self._codes[rows]
        scores = np.empty(len(codes))
        for begin in range(0, len(codes), _ROWS_AT_ONCE):
            part = codes[begin : begin + _ROWS_AT_ONCE]
            # int8: products of whole numbers, whose sums are below 2^31 and so exact in doubles in any order.
            scores[begin : begin + _ROWS_AT_ONCE] = _numbers(part, self._about) @ query.weights
        if self._about.storage not in ("int8", "bits"):
            scores = scores.astype(np.float32).astype(np.float64)
        if query.norms_are_one:
            return scores, _quotient(scores * query.per_score, query.norm), scores
        norms = self._row_norms() if rows is None else self._row_norms()[rows]
        order = _quotient(scores.astype(np.float32).astype(np.float64), norms)
        return scores, _quotient(scores * query.per_score, query.norm * norms), order

    def _row_norms(self) -> Doubles:
        if self._norms is None:
            scales = np.array(self._about.scales) if self._about.scales else 1.0
            parts = (self._codes[at : at + _ROWS_AT_ONCE] for at in range(0, len(self._codes), _ROWS_AT_ONCE))
            norms = [np.linalg.norm(_numbers(part, self._about) * scales, axis=1) for part in parts]
            self._norms = np.concatenate(norms or [np.empty(0)]).astype(np.float32).astype(np.float64)
        return self._norms


def _quotient(numbers: Doubles, norms: Doubles | float) -> Doubles:
    """Divide; what has no direction has cosine 0."""
    result: Doubles = np.divide(numbers, norms, out=np.zeros_like(numbers), where=np.asarray(norms) > 0)
    return result


def _numbers(codes: NDArray[Any], about: About) -> Doubles:
    """Return stored rows as the numbers that a query is multiplied with; bits are -1 and 1."""
    if about.storage != "bits":
        return codes.astype(np.float64)
    bits = np.unpackbits(np.ascontiguousarray(codes), axis=1, count=about.width, bitorder="little")
    return bits.astype(np.float64) * 2 - 1


def _listed(
    places: NDArray[np.integer[Any]], rows: NDArray[np.integer[Any]], found: tuple[Doubles, Doubles, Doubles]
) -> Iterator[Score]:
    scores, cosines, _ = found
    for place, row in zip(places, rows, strict=True):
        yield Score(int(row), float(scores[place]), float(cosines[place]))


# --- for engines that compare vectors themselves -----------------------------------------------------------------


def common_scale(about: About) -> float:
    """Return the one step that all numbers of an int8 row get for engines that know no step of each number's own."""
    assert about.scales is not None
    return max(about.scales)


def comparable(codes: NDArray[Any], about: About) -> NDArray[Any]:
    """Return stored rows as an engine compares them by a cosine of its own, or for bits by Hamming distance.

    Between int8 codes whose steps differ a cosine is not that of the vectors, so they get one step.
    """
    if about.storage == "int8":
        steps = codes.astype(np.float64) * (np.array(about.scales) / common_scale(about))
        return np.rint(steps).astype(np.int8)
    return codes


def comparable_query(vector: Floats, about: About) -> NDArray[Any]:
    """Return a query of whole width in the form of `comparable`, `(columns,)`."""
    kept = vector[None, : about.width]
    if about.storage == "int8":
        steps = np.rint(kept.astype(np.float64) / common_scale(about))
        clipped: NDArray[Any] = np.clip(steps, -LARGEST_CODE, LARGEST_CODE).astype(np.int8)[0]
        return clipped
    if about.storage == "bits":
        packed: NDArray[Any] = _bits(kept)[0]
        return packed
    single: NDArray[Any] = kept[0].astype(DTYPES[about.storage])
    return single
