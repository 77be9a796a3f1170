"""Pure NumPy measures. `truth` is always the fp32 reference; every fraction is in [0, 1].

A non-finite number is never a difference of zero: callers check `all_finite` first, and the measures propagate NaN.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
_RESAMPLES = 1000
_TIE = 0.2


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
    """Return the fraction of rows whose largest logit is the same, over the rows that have a winner to keep.

    Left out are rows whose two best logits lie closer than a fifth of the truth's root mean square: rounding within an
    int8 scheme's promise decides those. If nothing else is there, all rows count.
    """
    best = np.sort(truth.astype(np.float64), axis=-1)[:, -2:]
    decided = best[:, -1] - best[:, 0] >= _TIE * np.sqrt((truth.astype(np.float64) ** 2).mean())
    same = truth.argmax(-1) == values.argmax(-1)
    return float(same[decided].mean() if decided.any() else same.mean())


def kl_divergence(truth: Floats, values: Floats) -> NDArray[np.float64]:
    """Return KL(truth || values) of each row's softmax, in nats, `(rows, classes) -> (rows,)`; at least 0.

    Source: Kullback and Leibler 1951.
    """
    p, q = _log_softmax(truth), _log_softmax(values)
    result: NDArray[np.float64] = np.maximum((np.exp(p) * (p - q)).sum(-1), 0.0)
    return result


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


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


def correlation_interval_of_drop(truth: Floats, values: Floats, labels: Floats) -> tuple[float, float]:
    """Return the bootstrap interval of Spearman's drop from `truth` to `values`, both `(rows,)` scores; see below."""
    from scipy.stats import rankdata

    def resampled(scores: Floats) -> Floats:
        ranks = rankdata(scores[draws], axis=1)
        ranks -= ranks.mean(1, keepdims=True)
        norms = np.linalg.norm(ranks, axis=1) * np.linalg.norm(wanted, axis=1)
        # Where a draw has one value only there is no ranking: 0.0, as `spearman` has it.
        return np.where(norms > 0, (ranks * wanted).sum(1) / np.where(norms > 0, norms, 1.0), 0.0)

    draws = _draws(len(labels))
    wanted = rankdata(labels[draws], axis=1)
    wanted -= wanted.mean(1, keepdims=True)
    return _percentiles(resampled(truth) - resampled(values))


def accuracy_interval_of_drop(truth: Floats, values: Floats, labels: Floats) -> tuple[float, float]:
    """Return the bootstrap interval of accuracy's drop from `truth` to `values`, both `(rows, classes)`."""
    change = (truth.argmax(-1) == labels).astype(np.float64) - (values.argmax(-1) == labels)
    return _percentiles(change[_draws(len(labels))].mean(1))


def _draws(rows: int) -> NDArray[np.int64]:
    """Draw rows with replacement, `(resamples, rows)`; the same for truth and file, so that the drop is paired."""
    return np.random.default_rng(0).integers(0, rows, (_RESAMPLES, rows))


def _percentiles(drops: Floats) -> tuple[float, float]:
    low, high = np.percentile(drops, (2.5, 97.5))
    return float(low), float(high)


INTERVALS: dict[str, Callable[[Floats, Floats, Floats], tuple[float, float]]] = {
    "accuracy": accuracy_interval_of_drop,
    "spearman": correlation_interval_of_drop,
}
"""Paired percentile bootstrap, 95 %: `(truth's scores, file's scores, labels) -> (low, high)` of the metric's drop.

Source: Efron and Tibshirani 1993, chapter 13; paired as Koehn 2004 has it for comparing two systems on one test set.
"""

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
