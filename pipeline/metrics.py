"""Pure NumPy measures. `truth` is always the fp32 reference; every fraction is in [0, 1].

A non-finite number is never a difference of zero: callers check `all_finite` first, and the measures propagate NaN.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def all_finite(values: Floats) -> bool:
    """Return whether there is neither NaN nor infinity."""
    return bool(np.isfinite(values).all())


def max_abs_error(truth: Floats, values: Floats) -> float:
    """Return the largest absolute difference; 0.0 for empty arrays."""
    return float(np.abs(truth.astype(np.float64) - values).max()) if truth.size else 0.0


def cosine(truth: Floats, values: Floats) -> NDArray[np.float64]:
    """Return the cosine of each row, `(rows, width) -> (rows,)`; NaN where a row is zero, which has no direction."""
    a, b = truth.astype(np.float64), values.astype(np.float64)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = (a * b).sum(-1) / norms
    return result


def sqnr_db(truth: Floats, values: Floats) -> float:
    """Return the signal to quantisation noise ratio, 10 log10(sum truth² / sum (truth - values)²); inf if equal."""
    a = truth.astype(np.float64)
    noise = float(((a - values) ** 2).sum())
    signal = float((a**2).sum())
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")


def agreement(truth: Floats, values: Floats) -> float:
    """Return the fraction of rows whose largest logit is the same."""
    return float((truth.argmax(-1) == values.argmax(-1)).mean())


def accuracy(values: Floats, labels: Floats) -> float:
    """Return the fraction of rows `(rows, classes)` whose largest logit is the label."""
    return float((values.argmax(-1) == labels).mean())


def spearman(values: Floats, labels: Floats) -> float:
    """Return the rank correlation of `(rows,)` scores with labels, in [-1, 1], ties given their mean rank.

    A constant side has no ranking and gives 0.0: it tells nothing, which is chance level.
    """
    if np.ptp(values) == 0 or np.ptp(labels) == 0:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(values, labels).statistic)


TASK_METRICS: dict[str, Callable[[Floats, Floats], float]] = {"accuracy": accuracy, "spearman": spearman}


def chance_level(metric: str, labels: Floats) -> float:
    """Return what knowing nothing scores: 0 for a correlation, the commonest class's share for accuracy."""
    if metric == "spearman":
        return 0.0
    _, counts = np.unique(labels, return_counts=True)
    return float(counts.max() / counts.sum())


def standard_error(metric: str, chance: float, rows: int) -> float:
    """Return the standard error of a metric at chance level, for telling a signal from luck.

    Source: Spearman under independence has variance 1 / (n - 1); accuracy is binomial.
    """
    if metric == "spearman":
        return float(1 / np.sqrt(max(rows - 1, 1)))
    return float(np.sqrt(chance * (1 - chance) / max(rows, 1)))
