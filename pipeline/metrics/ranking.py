"""Retrieval metrics: from similarities of queries and documents to recall, NDCG and MRR, query by query.

ir-measures computes them, with the evaluation code of TREC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.metrics.outputs import RowOutputs
from pipeline.vectors.contract import Similarity

Floats = NDArray[np.floating]
METRICS: Mapping[str, str] = {
    "recall_at_1": "R@1",
    "recall_at_10": "R@10",
    "ndcg_at_10": "nDCG@10",
    "mrr_at_10": "RR@10",
}
"""By name, as ir-measures writes it; each is a fraction of 1."""
DEPTH = 10
"""Documents of a query that count."""
_RESAMPLES = 1000


@dataclass(frozen=True)
class Judgements:
    """Which rows are queries, which are documents, and which of these answer which."""

    name: str
    queries: list[int]
    """The row of each query."""
    documents: list[int]
    """The row of each document."""
    relevant: list[list[tuple[int, int]]]
    """For each query the documents that answer it, by their place in `documents`, and their grades."""
    itself: list[int | None]
    """For each query the place of the document that is its own text; None for none."""

    @property
    def rows(self) -> list[int]:
        """All rows that take part."""
        return sorted({*self.queries, *self.documents})


def by_query(judgements: Judgements, similarities: Floats) -> dict[str, NDArray[np.float64]]:
    """Return each metric of each query, `(queries,)`.

    Args:
        judgements: which documents answer which query.
        similarities: `(queries, documents)`, larger is nearer; of equal ones the first document comes first.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise InputError(
            "verify.retrieval needs ir-measures, whose evaluation code has no wheel for this machine (Linux on arm64). "
            "Leave the key out here, and judge search on x86-64 or macOS."
        ) from error
    scores = np.asarray(similarities, np.float64).copy()
    for query, own in enumerate(judgements.itself):
        if own is not None:
            scores[query, own] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, : DEPTH + 1]
    run = {
        str(query): {str(document): float(-place) for place, document in enumerate(row)}
        for query, row in enumerate(order)
    }
    qrels = {
        str(query): {str(document): grade for document, grade in found}
        for query, found in enumerate(judgements.relevant)
    }
    wanted: dict[Any, str] = {ir_measures.parse_measure(one): name for name, one in METRICS.items()}
    found = {name: np.zeros(len(judgements.queries)) for name in METRICS}
    for one in ir_measures.iter_calc(list(wanted), qrels, run):
        found[wanted[one.measure]][int(one.query_id)] = one.value
    return found


def vectors_of(judgements: Judgements, outputs: RowOutputs) -> tuple[Floats, Floats]:
    """Return the embeddings of the queries and of the documents, `(queries, width)` and `(documents, width)`."""
    queries, documents = (outputs.take(rows).values for rows in (judgements.queries, judgements.documents))
    return queries, documents


def means(judgements: Judgements, outputs: RowOutputs, by: Similarity) -> dict[str, float]:
    """Return the mean of each metric over the queries, by the similarities of embeddings as they are."""
    found = by_query(judgements, near(*vectors_of(judgements, outputs), by))
    return {name: float(values.mean()) for name, values in found.items()}


def near(queries: Floats, documents: Floats, by: Similarity) -> NDArray[np.float64]:
    """Return the cosine, or the dot product, of each query and each document, `(queries, documents)`.

    The cosine of a vector of zeros is 0.
    """
    scaled = _unit if by == "cosine" else lambda vectors: vectors.astype(np.float64)
    result: NDArray[np.float64] = scaled(queries) @ scaled(documents).T
    return result


def _unit(vectors: Floats) -> NDArray[np.float64]:
    length = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def interval(before: Sequence[float] | Floats, after: Sequence[float] | Floats) -> tuple[float, float]:
    """Return the 95 % interval of the mean of `after - before`, by a paired percentile bootstrap over queries.

    Source: Efron and Tibshirani 1993, chapter 13.
    """
    differences = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    draw = np.random.default_rng(0).integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.percentile(differences[draw].mean(1), (2.5, 97.5))
    return float(low), float(high)
