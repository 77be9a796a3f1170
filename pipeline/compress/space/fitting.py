"""Fit a linear map on vectors of texts, in closed form and in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Candidate ridge penalties, as fractions of the inputs' mean variance; the best one on held-out texts is used."""


@dataclass(frozen=True)
class LinearMap:
    """x ↦ W x + b."""

    weight: Vectors
    """W, `(outputs, inputs)`."""
    bias: Vectors | None = None
    """b, `(outputs,)`; None for none."""

    def __call__(self, vectors: Vectors) -> Vectors:
        """Return the map of vectors, `(texts, inputs)` to `(texts, outputs)`."""
        mapped: Vectors = vectors @ self.weight.T
        return mapped if self.bias is None else mapped + self.bias


def least_squares(inputs: Vectors, targets: Vectors, *, ridge: float) -> LinearMap:
    """Return the affine map that fits targets best, Σ ‖y − W x − b‖², with a penalty on W alone.

    Args:
        inputs: x of each text, `(texts, inputs)`.
        targets: y of each text, `(texts, outputs)`.
        ridge: the penalty, as a fraction of the inputs' mean variance.

    Source: Hoerl and Kennard 1970 (ridge regression), on centred data.
    """
    mean, aim = inputs.mean(0), targets.mean(0)
    centred = inputs - mean
    covariance = centred.T @ centred / len(inputs)
    # Beyond any real variance, and enough to solve where a number is the same in every text.
    covariance[np.diag_indices_from(covariance)] += ridge * covariance.diagonal().mean() + 1e-12
    weight: Vectors = np.linalg.solve(covariance, centred.T @ (targets - aim) / len(inputs)).T
    return LinearMap(weight, aim - weight @ mean)


def best_ridge(inputs: Vectors, targets: Vectors, held_out: NDArray[np.bool_]) -> float:
    """Return the penalty of `RIDGES` whose map, fitted on the other texts, has the least error on the held-out ones."""
    fitted = ~held_out

    def error(ridge: float) -> float:
        mapped = least_squares(inputs[fitted], targets[fitted], ridge=ridge)(inputs[held_out])
        return float(np.square(mapped - targets[held_out]).sum())

    return min(RIDGES, key=error)


def orthogonal(inputs: Vectors, targets: Vectors) -> LinearMap:
    """Return the rotation, perhaps with a reflection, that brings inputs nearest to targets; it leaves their cosines.

    Inputs may be narrower than targets, and not wider.

    Source: Schönemann 1966 (the orthogonal Procrustes problem), by SciPy.
    """
    from scipy.linalg import orthogonal_procrustes

    width = inputs.shape[1]
    padded = np.pad(inputs, ((0, 0), (0, targets.shape[1] - width)))
    rotation, _ = orthogonal_procrustes(padded, targets)
    return LinearMap(rotation.T[:, :width])


def principal(vectors: Vectors) -> LinearMap:
    """Return the rotation to principal directions, the one with most of the vectors' squared length first.

    The directions are those of the second moment, not of the covariance: a mean that is taken off would change cosines.

    Source: Pearson 1901 (principal components), uncentred.
    """
    _, directions = np.linalg.eigh(vectors.T @ vectors / len(vectors))
    rows = directions[:, ::-1].T
    # An eigenvector's sign is arbitrary, and differs between processors.
    largest = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1)
    return LinearMap(rows * np.sign(largest))


def unit(vectors: Vectors) -> Vectors:
    """Return vectors of unit length; zero stays zero."""
    result: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return result


def found_among(queries: Vectors, index: Vectors, nearest: int) -> float:
    """Return the fraction of texts whose own vector in an index is among the nearest to their query's, by the cosine.

    Args:
        queries: the vector of each text that is looked for, `(texts, width)`.
        index: the vectors of the same texts that are searched, by another model.
        nearest: how many nearest count.
    """
    similarities = unit(queries) @ unit(index).T
    own = similarities.diagonal()[:, None]
    return float(((similarities > own).sum(1) < nearest).mean())


def every_fourth(count: int) -> NDArray[np.bool_]:
    """Return which of `count` texts, in a random order already, are held out: one in four."""
    chosen: NDArray[np.bool_] = np.arange(count) % 4 == 0
    return chosen


def shares_kept(vectors: Vectors, widths: Sequence[int]) -> dict[str, float]:
    """Return the share of squared length that vectors have in their first numbers, by how many those are."""
    squares = np.square(vectors).sum(0)
    return {str(width): float(squares[:width].sum() / squares.sum()) for width in widths}
