"""Measures of how far values are from the fp32 reference; every fraction is in [0, 1].

Callers check `all_finite` first, and the measures propagate NaN, so that a non-finite number never counts as equal.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.kinds import KINDS, OutputKind

Floats = NDArray[np.floating]
_TIE = 0.2


def all_finite(values: Floats) -> bool:
    """Return whether there is neither NaN nor infinity."""
    return bool(np.isfinite(values).all())


def max_abs_error(reference: Floats, values: Floats) -> float:
    """Return the largest absolute difference; 0.0 for empty arrays."""
    return float(np.abs(reference.astype(np.float64) - values).max()) if reference.size else 0.0


def cosine(reference: Floats, values: Floats) -> NDArray[np.float64]:
    """Return the cosine of each row, `(rows, width) -> (rows,)`; NaN where a row is zero, which has no direction."""
    a, b = reference.astype(np.float64), values.astype(np.float64)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = (a * b).sum(-1) / norms
    return result


def sqnr_db(reference: Floats, values: Floats) -> float:
    """Return the signal to quantisation noise ratio, 10 log10(sum r² / sum (r - v)²) of reference and values.

    It is infinite if they are equal.
    """
    a = reference.astype(np.float64)
    noise = float(((a - values) ** 2).sum())
    signal = float((a**2).sum())
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")


def agreement(reference: Floats, values: Floats) -> float:
    """Return the fraction of rows whose largest logit is the same, over the rows that the reference decides clearly.

    Rows whose two best logits lie closer than a fifth of the reference's root mean square are left out: rounding within
    an int8 scheme's promise decides them. If there are no other rows, all rows count.
    """
    decided = ~near_ties(reference)
    same = reference.argmax(-1) == values.argmax(-1)
    return float(same[decided].mean() if decided.any() else same.mean())


def kl_divergence(reference: Floats, values: Floats) -> NDArray[np.float64]:
    """Return KL(reference || values) of each row's softmax, in nats, `(rows, classes) -> (rows,)`; at least 0.

    Source: Kullback and Leibler 1951.
    """
    p, q = _log_softmax(reference), _log_softmax(values)
    result: NDArray[np.float64] = np.maximum((np.exp(p) * (p - q)).sum(-1), 0.0)
    return result


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Return probabilities along the last axis."""
    result: NDArray[np.float64] = np.exp(_log_softmax(logits))
    return result


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def near_ties(reference: Floats) -> NDArray[np.bool_]:
    """Mark rows `(rows, classes)` whose two best logits lie closer than a fifth of the reference's root mean square."""
    best = np.sort(reference.astype(np.float64), axis=-1)[:, -2:]
    result: NDArray[np.bool_] = best[:, -1] - best[:, 0] < _TIE * np.sqrt((reference.astype(np.float64) ** 2).mean())
    return result


def label_margins(logits: Floats, thresholds: Sequence[float] | None) -> NDArray[np.float64]:
    """Return how far each logit `(rows, labels)` lies above its threshold's logit; the label is given from 0 on.

    Args:
        logits: before their sigmoids.
        thresholds: the probability of each label from which on it is given, above 0 and below 1; None for one half.
    """
    margins: NDArray[np.float64] = logits.astype(np.float64)
    if thresholds is not None:
        at = np.asarray(thresholds, np.float64)
        margins = margins - (np.log(at) - np.log1p(-at))
    return margins


def near_thresholds(margins: Floats, reference: Floats) -> NDArray[np.bool_]:
    """Mark labels `(rows, labels)` whose margin is below a fifth of the reference's root mean square; see `near_ties`.

    Args:
        margins: of the reference, see `label_margins`.
        reference: the logits that the margins are of.
    """
    result: NDArray[np.bool_] = np.abs(margins) < _TIE * np.sqrt((reference.astype(np.float64) ** 2).mean())
    return result


def label_agreement(reference: Floats, values: Floats, thresholds: Sequence[float] | None) -> float:
    """Return the fraction of rows with the same set of labels, over the labels that the reference decides clearly.

    A row without any such label is left out. If there is no other row, all rows and labels count.
    """
    margins = label_margins(reference, thresholds)
    same = (margins >= 0) == (label_margins(values, thresholds) >= 0)
    decided = ~near_thresholds(margins, reference)
    if not decided.any():
        return float(same.all(-1).mean())
    return float((same | ~decided).all(-1)[decided.any(-1)].mean())


def label_kl_divergence(reference: Floats, values: Floats) -> NDArray[np.float64]:
    """Return KL(reference || values) of each label's choice of yes or no, in nats, `(rows, labels)`; at least 0."""
    return kl_divergence(_yes_or_no(reference), _yes_or_no(values))


def sigmoid(logits: Floats) -> NDArray[np.float64]:
    """Return the probability of each logit by itself."""
    result: NDArray[np.float64] = softmax(_yes_or_no(logits))[..., 0]
    return result


def _yes_or_no(logits: Floats) -> NDArray[np.float64]:
    """Return logits `(…, 2)` whose softmax is the sigmoid and its complement."""
    return np.stack([logits.astype(np.float64), np.zeros(logits.shape)], axis=-1)


def span_agreement(reference: Sequence[Floats], values: Sequence[Floats]) -> float:
    """Return the fraction of rows, each `(tokens, 2)`, with the same best start and the same best end, as `agreement`.

    Rows in which the reference's best start or best end is a near tie are left out.
    """
    unit = np.sqrt((np.concatenate(reference).astype(np.float64) ** 2).mean())
    same, decided = [], []
    for a, b in zip(reference, values, strict=True):
        best = np.sort(a.astype(np.float64), axis=0)[-2:]
        decided.append(bool((best[-1] - best[0] >= _TIE * unit).all()) or len(a) == 1)
        same.append(bool((a.argmax(0) == b.argmax(0)).all()))
    counted = np.asarray(decided) if any(decided) else np.ones(len(same), bool)
    return float(np.asarray(same)[counted].mean())


def same_decisions(
    kind: OutputKind,
    reference: Sequence[Floats],
    values: Sequence[Floats],
    thresholds: Sequence[float] | None = None,
) -> float | None:
    """Return the fraction of rows, tokens or spans with the same decision; None for a kind that decides nothing.

    Args:
        kind: of the outputs.
        reference: of each row, `(items, width)`.
        values: the same.
        thresholds: of several labels at once, see `label_margins`.
    """
    match KINDS[kind].decision:
        case "span":
            return span_agreement(reference, values)
        case "each":
            return label_agreement(np.concatenate(reference), np.concatenate(values), thresholds)
        case "one":
            return agreement(np.concatenate(reference), np.concatenate(values))
        case None:
            return None


def mean_kl_divergence(kind: OutputKind, reference: Sequence[Floats], values: Sequence[Floats]) -> float | None:
    """Return the mean divergence over choices: rows, tokens, labels of their own, or the tokens of starts and ends.

    Args:
        kind: of the outputs; None is returned for one that decides nothing.
        reference: of each row, `(items, width)`.
        values: the same.
    """
    match KINDS[kind].decision:
        case "span":
            rows = zip(reference, values, strict=True)
            return float(np.mean([kl_divergence(a.T, b.T).mean() for a, b in rows]))
        case "each":
            return float(label_kl_divergence(np.concatenate(reference), np.concatenate(values)).mean())
        case "one":
            return float(kl_divergence(np.concatenate(reference), np.concatenate(values)).mean())
        case None:
            return None
