"""Embeddings as rows of an index, and the exact search over the rows; the apps' cores compute the same scores.

int8 rows are compared in integers, so that every language and processor gives the same score and the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ArtifactError
from pipeline.search.about import About
from pipeline.vectors.storage import STORAGES, StorageName, int8_codes, largest_query_code, packed

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

DTYPES: dict[StorageName, np.dtype[Any]] = {
    "int8": np.dtype("i1"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bits": np.dtype("u1"),
}
_DOUBLES_AT_ONCE = 200_000
"""Numbers that are turned into doubles together: 1.6 MB, which a core's own cache holds. Eight times as many take
twenty times as long."""


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
    if about.storage not in ("int8", "bits"):
        kept = _scaled_again(kept, about, whole=vectors.shape[1])
    stored: NDArray[Any] = STORAGES[about.storage].encode(kept, _scales(about)).astype(DTYPES[about.storage])
    return stored


def decode(codes: NDArray[Any], about: About) -> Floats:
    """Return the vectors that stored rows stand for, `(rows, width)`; of bits their signs."""
    decoded: Floats = STORAGES[about.storage].decode(codes, _scales(about)).astype(np.float32)
    return decoded


def _scales(about: About) -> Doubles:
    return np.ones(about.width) if about.scales is None else np.array(about.scales)


def _scaled_again(kept: Floats, about: About, *, whole: int) -> Floats:
    """Scale cut vectors to unit length again where the whole ones had it."""
    if not about.unit_length or about.width == whole:
        return kept
    norms = np.linalg.norm(kept.astype(np.float64), axis=1, keepdims=True)
    scaled: Floats = np.divide(kept, norms, out=np.zeros(kept.shape), where=norms > 0).astype(np.float32)
    return scaled


@dataclass(frozen=True)
class Score:
    """A row's score for a query."""

    row: int
    score: int | float
    """Of int8 rows the integer, of others the sum of products, before any norm."""
    cosine: float


class Scan:
    """Exact search over stored rows: every row is scored."""

    def __init__(self, codes: NDArray[Any], about: About, removed: NDArray[np.integer[Any]] | None = None) -> None:
        """Take stored rows, `(rows, columns)`, which may be a file in memory, and the numbers of removed ones."""
        self.codes, self._about = codes, about
        self._removed = removed
        self._norms: Doubles | None = None
        """Of each row, float32's precision; computed when first asked for."""

    def __len__(self) -> int:
        """Return how many rows there are, removed ones included."""
        return len(self.codes)

    def top(self, vector: Floats, top: int) -> list[Score]:
        """Return the best rows for a query of whole width, best first; of equal ones the lower number is first."""
        found = self._scored(vector, None)
        order = found[2]
        if self._removed is not None:
            order[self._removed] = -np.inf
        best = _first(order, top)
        return list(self._listed(best[order[best] > -np.inf], None, found))

    def ranked(self, vector: Floats, rows: NDArray[np.integer[Any]], top: int) -> list[Score]:
        """Return the best of some rows, with the scores of `top`; those who looked for candidates come here."""
        rows = np.sort(rows[~np.isin(rows, self._removed)] if self._removed is not None else rows)
        found = self._scored(vector, rows)
        return list(self._listed(_first(found[2], top), rows, found))

    def _listed(
        self,
        places: NDArray[np.integer[Any]],
        rows: NDArray[np.integer[Any]] | None,
        found: tuple[Doubles, Doubles, Doubles],
    ) -> Iterator[Score]:
        """Yield what was found at some places; `rows` are the rows' numbers, None where they are the places."""
        scores, cosines, _ = found
        for place in places:
            score = float(scores[place])
            row = int(place if rows is None else rows[place])
            yield Score(row, int(score) if self._about.storage == "int8" else score, float(cosines[place]))

    def _scored(self, vector: Floats, rows: NDArray[np.integer[Any]] | None) -> tuple[Doubles, Doubles, Doubles]:
        """Return each row's score, cosine, and the number by which rows are ordered.

        Raises:
            ArtifactError: one of them is not finite, as of damaged floats; it would hide other rows.
        """
        # Of damaged numbers NumPy warns in passing.
        with np.errstate(all="ignore"):
            found = self._computed(vector, rows)
        finite = np.isfinite(found).all(axis=0)
        if not finite.all():
            place = int(np.argmin(finite))
            row = place if rows is None else int(rows[place])
            raise ArtifactError(
                f"the index is damaged: the score of row {row} is not finite. Delete its folder and index the texts "
                "again."
            )
        return found

    def _computed(self, vector: Floats, rows: NDArray[np.integer[Any]] | None) -> tuple[Doubles, Doubles, Doubles]:
        about = self._about
        storage, scales = STORAGES[about.storage], _scales(about)
        query = vector[None, : about.width]
        codes = self.codes if rows is None else self.codes[rows]
        scores = np.empty(len(codes))
        for part in _parts(len(codes), about):
            scores[part] = storage.scores(query, codes[part], scales)[0]
        per_score, norm = 1.0, float(np.linalg.norm(query.astype(np.float64)))
        if about.storage == "int8":
            per_score = float(np.abs(query.astype(np.float64) * scales).max()) / largest_query_code(about.width)
        else:
            scores = scores.astype(np.float32).astype(np.float64)
        if about.storage == "bits":
            # Signs are all of one length.
            return scores, _quotient(scores, norm * np.sqrt(about.width)), scores
        if about.unit_length and len(vector) == about.width:
            return scores, _quotient(scores * per_score, norm), scores
        norms = self._row_norms() if rows is None else self._row_norms()[rows]
        order = scores
        if about.similarity == "cosine":
            order = _quotient(scores.astype(np.float32).astype(np.float64), norms)
        return scores, _quotient(scores * per_score, norm * norms), order

    def _row_norms(self) -> Doubles:
        if self._norms is None:
            storage, scales = STORAGES[self._about.storage], _scales(self._about)
            norms = np.empty(len(self.codes))
            for part in _parts(len(norms), self._about):
                norms[part] = np.linalg.norm(storage.decode(self.codes[part], scales).astype(np.float64), axis=1)
            self._norms = norms.astype(np.float32).astype(np.float64)
        return self._norms


def _parts(rows: int, about: About) -> Iterator[slice]:
    """Yield the rows in parts that are computed with together."""
    step = max(1, _DOUBLES_AT_ONCE // about.width)
    return (slice(begin, begin + step) for begin in range(0, rows, step))


def _first(order: Doubles, top: int) -> NDArray[np.integer[Any]]:
    """Return the places of the largest numbers, the largest first; of equal ones the lower place is first."""
    if top >= len(order):
        return np.argsort(-order, kind="stable")
    among = np.flatnonzero(order >= np.partition(order, -top)[-top])
    return among[np.argsort(-order[among], kind="stable")][:top]


def _quotient(numbers: Doubles, norms: Doubles | float) -> Doubles:
    """Divide; what has no direction has cosine 0."""
    result: Doubles = np.divide(numbers, norms, out=np.zeros_like(numbers), where=np.asarray(norms) > 0)
    return result


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
        coded: NDArray[Any] = int8_codes(kept, np.full(about.width, common_scale(about)))[0]
        return coded
    found: NDArray[Any] = packed(kept)[0] if about.storage == "bits" else kept[0].astype(DTYPES[about.storage])
    return found
