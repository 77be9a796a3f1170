"""Search by a file's vectors: what is left of the student's recall in an index, in each form of storage and width."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.metrics import ranking
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.ranking import Judgements
from pipeline.schemes import Gates
from pipeline.student.reference import Reference
from pipeline.vectors.contract import Vectors
from pipeline.vectors.storage import STORAGES, Storage, similarities
from pipeline.verify.record import GateResult, Ranked, Retrieval

ALL = "all"
"""Name of all collections together."""
_LEAST_QUERIES = 500
"""With fewer, one query is more than the fifth of a point, and a gate would be luck."""
ByQuery = dict[str, NDArray[np.float64]]


def measure(contract: Vectors | None, reference: Reference, outputs: RowOutputs) -> list[Retrieval]:
    """Return how search fares with the file's vectors, against the reference's in single precision.

    Args:
        contract: the contract of the vectors; without it there is no index.
        reference: has the collections, and the reference's vectors.
        outputs: the file's, of every row of the reference.
    """
    if contract is None or not reference.collections:
        return []
    expected = [
        _ranked(one, reference.outputs, contract, STORAGES["float32"], contract.width) for one in reference.collections
    ]
    found = []
    for width in contract.widths:
        for storage in STORAGES.values():
            of_index = [_ranked(one, outputs, contract, storage, width) for one in reference.collections]
            rows = list(zip(reference.collections, expected, of_index, strict=True))
            found += [_scored([row], storage, width) for row in rows]
            found += [_scored(rows, storage, width)] if len(rows) > 1 else []
    return found


def _ranked(judgements: Judgements, outputs: RowOutputs, contract: Vectors, storage: Storage, width: int) -> ByQuery:
    queries, documents = ranking.vectors_of(judgements, outputs)
    return ranking.by_query(judgements, similarities(queries, documents, storage, contract, width=width))


def _scored(rows: Sequence[tuple[Judgements, ByQuery, ByQuery]], storage: Storage, width: int) -> Retrieval:
    """Return the record of one collection, or of several together, each query counting once."""
    metrics = {}
    for name in ranking.METRICS:
        before = np.concatenate([expected[name] for _, expected, _ in rows])
        after = np.concatenate([found[name] for _, _, found in rows])
        low, high = ranking.interval(before, after)
        metrics[name] = Ranked(reference=float(before.mean()), found=float(after.mean()), low=low, high=high)
    return Retrieval(
        collection=rows[0][0].name if len(rows) == 1 else ALL,
        queries=sum(len(judgements.queries) for judgements, _, _ in rows),
        documents=sum(len(judgements.documents) for judgements, _, _ in rows),
        storage=storage.name,
        width=width,
        bytes_per_vector=storage.bytes_per_vector(width),
        metrics=metrics,
    )


def gates(bounds: Gates, contract: Vectors | None, found: Sequence[Retrieval]) -> Iterator[GateResult]:
    """Yield the gates on what search keeps, over the queries of all collections; too few queries decide nothing."""
    if contract is None or not found:
        return
    most = max(row.queries for row in found)
    together = {(row.storage, row.width): row for row in found if row.queries == most}
    if most < _LEAST_QUERIES:
        return
    judged = [
        ("min_recall_kept", bounds.min_recall_kept, "int8", contract.width),
        ("min_recall_kept_small", bounds.min_recall_kept_small, "bits", contract.width),
        ("min_recall_kept_small", bounds.min_recall_kept_small, "int8", contract.width // 2),
    ]
    for name, bound, storage, width in judged:
        row = together.get((storage, width))
        if bound is None or row is None:
            continue
        recall = row.metrics["recall_at_10"]
        detail = (
            f"{storage} of {width} numbers keep {row.recall_kept:.4f} of recall@10 over {row.queries} queries "
            f"({recall.found:.4f} of {recall.reference:.4f}, difference {recall.low:+.4f} to {recall.high:+.4f})"
        )
        passed = row.recall_kept >= bound
        name = f"{name}:{storage}" if width == contract.width else f"{name}:{storage} at {width}"
        yield GateResult(name=name, bound=bound, found=row.recall_kept, passed=passed, detail="" if passed else detail)
