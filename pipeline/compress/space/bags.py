"""Solve a table of tokens whose mean rows come nearest to vectors of texts: ridge regression on bags of tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, cg

from pipeline.compress.space.fitting import Vectors, unit
from pipeline.text.encoding import Row

RIDGES = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Candidate penalties, falling; a token's row is held to its beginning as if by so many texts of that token alone."""
_SIF = 1e-3
"""Share of all tokens at which a token's weight is halved. Source: Arora et al. 2017."""
_TOLERANCE = 1e-3
_MOST_ITERATIONS = 60


def bags_of(rows: Sequence[Row], tokens: int) -> csr_matrix:
    """Return the share that each token has in each row, `(rows, tokens)`; of a prompt that is not pooled, none."""
    pooled = [row.ids[row.unpooled :] for row in rows]
    counts = np.array([len(ids) for ids in pooled])
    columns = np.concatenate([np.asarray(ids, np.int64) for ids in pooled])
    shares = np.repeat(1.0 / np.maximum(counts, 1), counts).astype(np.float32)
    return csr_matrix((shares, (np.repeat(np.arange(len(rows)), counts), columns)), shape=(len(rows), tokens))


def rarity(bags: csr_matrix) -> NDArray[np.float64]:
    """Return a weight for each token, near 1 for one that few texts have; `(tokens,)`."""
    texts = bags.getnnz(axis=0) + 1.0
    weights: NDArray[np.float64] = _SIF / (_SIF + texts / texts.sum())
    return weights


def solve(bags: csr_matrix, targets: Vectors, prior: Vectors, *, ridge: float, begin: Vectors | None = None) -> Vectors:
    """Return the table E that has the least Σ ‖y − x E‖² + ridge ‖E − a P‖², by conjugate gradients.

    Args:
        bags: x of each text, `(texts, tokens)`.
        targets: y of each text, `(texts, width)`.
        prior: P, `(tokens, width)`; its scale a is the best for the targets.
        ridge: the penalty.
        begin: a table near the solution, such as that of a neighbouring penalty.

    Source: Hestenes and Stiefel 1952 (conjugate gradients), by SciPy; Hoerl and Kennard 1970 (ridge regression).
    """
    aim, first = targets.astype(np.float32), prior.astype(np.float32)
    mean = bags @ first
    first *= float((mean * aim).sum() / max(float((mean * mean).sum()), 1e-12))
    shape, transposed = first.shape, bags.T.tocsr()

    def normal(flat: NDArray[np.float32]) -> NDArray[np.float32]:
        table = flat.reshape(shape).astype(np.float32)
        result: NDArray[np.float32] = (transposed @ (bags @ table) + np.float32(ridge) * table).ravel()
        return result

    operator = LinearOperator((first.size, first.size), matvec=normal, dtype=np.float32)
    start = None if begin is None else (begin.astype(np.float32) - first).ravel()
    right = (transposed @ (aim - bags @ first)).ravel()
    moved, _ = cg(operator, right, x0=start, rtol=_TOLERANCE, maxiter=_MOST_ITERATIONS)
    table: Vectors = (first + moved.reshape(shape)).astype(np.float64)
    return table


def best_table(
    bags: csr_matrix, targets: Vectors, prior: Vectors, held_out: NDArray[np.bool_]
) -> tuple[float, Vectors]:
    """Return the penalty whose table has the highest mean cosine on held-out texts, and the table of the others."""
    fitted, aim = ~held_out, unit(targets[held_out])
    best: tuple[float, float, Vectors] | None = None
    table = None
    for ridge in RIDGES:
        table = solve(bags[fitted], targets[fitted], prior, ridge=ridge, begin=table)
        cosine = float((unit(bags[held_out] @ table) * aim).sum(1).mean())
        if best is not None and cosine <= best[0]:
            break
        best = cosine, ridge, table
    assert best
    return best[1], best[2]
