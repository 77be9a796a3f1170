"""Task metrics: from a model's outputs over a labelled dataset to one number, with the interval of its drop.

A metric is computed from parts, one row of numbers for each example, so that a bootstrap can draw examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kinds import KINDS, OutputKind
from pipeline.metrics import measures
from pipeline.metrics.outputs import RowOutputs, best_span

Floats = NDArray[np.floating]
_CHANCE_ERRORS = 2.0
"""The reference has to be this many standard errors above chance."""
_RESAMPLES = 1000
_HELD = 2_000_000
"""Resampled rows that are held at a time; a row of a correlation takes some hundred bytes."""
_USUAL_PARTS = 4
"""Numbers of an example from which on fewer rows are held."""


@dataclass(frozen=True)
class Labels:
    """A labelled dataset over the reference's rows."""

    name: str
    rows: list[int]
    """The first row of each example."""
    second: list[int] | None
    """The row of the other sentence, for graded pairs of embeddings."""
    gold: list[Any]
    """Label of each example: a number; where each output has one, a list; for tags `{at, tags}`; for answers
    `{windows, offsets, passage, answers}`."""
    metric: str
    names: list[str]
    """Names of the checkpoint's labels; empty where the outputs have none."""
    thresholds: list[float] | None = None
    """For several labels at once: the probability of each from which on it is given; None for one half."""

    def every_row(self) -> list[int]:
        """Return all rows that take part."""
        windows = [row for one in self.gold if isinstance(one, dict) for row in one.get("windows", [])]
        return sorted({*self.rows, *(self.second or []), *windows})


@dataclass(frozen=True)
class Metric:
    """One metric: a fraction in [0, 1] or a correlation in [-1, 1], larger is better."""

    parts: Callable[[OutputKind, Labels, RowOutputs], Floats]
    """`(examples, k)`."""
    value: Callable[[Floats], Floats]
    """`(…, examples, k) -> (…)`."""
    chance: Callable[[Labels], float]
    """The score of a model that knows nothing."""
    error: Callable[[float, int], float]
    """`(chance, examples)` -> standard error at chance level, for telling a signal from luck."""
    version: int = 1
    """Version of the metric and its gate; a verdict of another version is made again."""


def score(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> float:
    """Return a dataset's metric for some outputs."""
    row = METRICS[labels.metric]
    return float(row.value(row.parts(kind, labels, outputs)))


def interval_of_drop(
    kind: OutputKind, labels: Labels, reference: RowOutputs, outputs: RowOutputs
) -> tuple[float, float]:
    """Return the 95 % interval of the metric's drop from the reference to a file: paired percentile bootstrap.

    Source: Efron and Tibshirani 1993, chapter 13; paired as Koehn 2004 has it for two systems on one test set.
    """
    row, count = METRICS[labels.metric], len(labels.gold)
    before, after = row.parts(kind, labels, reference), row.parts(kind, labels, outputs)
    draw, drops = np.random.default_rng(0), []
    at_once = max(1, _HELD // (max(count, 1) * max(1, before.shape[-1] // _USUAL_PARTS)))
    for start in range(0, _RESAMPLES, at_once):
        # Drawn in parts, the numbers are those of a single draw.
        chosen = draw.integers(0, count, (min(at_once, _RESAMPLES - start), count))
        drops.append(row.value(before[chosen]) - row.value(after[chosen]))
    low, high = np.percentile(np.concatenate(drops), (2.5, 97.5))
    return float(low), float(high)


def undecided(kind: OutputKind, labels: Labels, reference: RowOutputs) -> float:
    """Return the largest drop that says nothing about a file, in the metric's unit.

    The metric moves that far with the rows whose two best classes nearly tie in the reference, or with the labels near
    their thresholds, since rounding decides them. For a reference that is not above chance it is at least the standard
    error at chance: such a metric is luck.
    """
    ranges = {"one": _range_of_ties, "each": _range_near_thresholds}
    find = ranges.get(KINDS[kind].decision or "")
    ties = find(kind, labels, reference) if find else 0.0
    if score(kind, labels, reference) > above_chance_bound(labels):
        return ties
    row = METRICS[labels.metric]
    return max(ties, row.error(row.chance(labels), len(labels.gold)))


def _range_of_ties(kind: OutputKind, labels: Labels, reference: RowOutputs) -> float:
    """Return the range of the metric as all near ties are decided for the label, against it, or for the second best.

    For the accuracy of two classes it is the share of near ties. A row weighs 1 / n in accuracy, several times that in
    Matthews' coefficient where one class is rare, and an entity fails by any of its tokens.
    """
    at, gold = _decisions(kind, labels, reference)
    if not len(at):
        return 0.0
    found = reference.values[at]
    tied = measures.near_ties(found)
    at, gold, two = at[tied], gold[tied], np.argsort(found[tied], axis=-1)[:, -2:]
    second, first = two.T
    # A label that is neither of the two cannot win: the first stays, and is wrong as well.
    right = np.where(second == gold, second, first)
    wrong = np.where(first == gold, second, first)
    values = [score(kind, labels, _decided(reference, at, classes)) for classes in (right, wrong, first, second)]
    return max(values) - min(values)


def _range_near_thresholds(kind: OutputKind, labels: Labels, reference: RowOutputs) -> float:
    """Return the range of the metric as all labels near their thresholds are given rightly, wrongly, all, or none."""
    at, gold = _item_positions(labels, reference), _gold(labels) == 1
    logits = reference.values[at]
    margins = measures.label_margins(logits, labels.thresholds)
    tied = measures.near_thresholds(margins, logits)
    values = [
        score(kind, labels, _with_labels(reference, at, np.where(tied, given, margins >= 0)))
        for given in (gold, ~gold, True, False)
    ]
    return max(values) - min(values)


def _with_labels(reference: RowOutputs, at: NDArray[np.int64], given: NDArray[np.bool_]) -> RowOutputs:
    """Return outputs by which, whatever the thresholds, exactly some labels are given."""
    values = reference.values.astype(np.float64)
    values[at] = np.where(given, np.inf, -np.inf)
    return RowOutputs(values.astype(np.float32), reference.counts)


def _item_positions(labels: Labels, reference: RowOutputs) -> NDArray[np.int64]:
    """Return the position of each example's first item in all rows' items."""
    starts: NDArray[np.int64] = (np.cumsum(reference.counts) - reference.counts)[labels.rows]
    return starts


def _decisions(kind: OutputKind, labels: Labels, reference: RowOutputs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the items that are judged, as positions in all rows' items, and the class that each should have."""
    starts = _item_positions(labels, reference)
    if kind == "logits":
        return starts, _gold(labels).astype(np.int64)
    pairs = [
        (start + at, tag)
        for start, gold in zip(starts, labels.gold, strict=True)
        for at, tag in zip(gold["at"], gold["tags"], strict=True)
        if at is not None
    ]
    at, tags = np.array(pairs, np.int64).reshape(-1, 2).T
    return at, tags


def _decided(reference: RowOutputs, at: NDArray[np.int64], classes: NDArray[np.int64]) -> RowOutputs:
    values = reference.values.copy()
    values[at, classes] = values.max(initial=0.0) + 1
    return RowOutputs(values, reference.counts)


def above_chance_bound(labels: Labels) -> float:
    """Return what a metric has to exceed to be so many standard errors above chance as tell it from luck."""
    row = METRICS[labels.metric]
    chance = row.chance(labels)
    return chance + _CHANCE_ERRORS * row.error(chance, len(labels.gold))


# --- parts -------------------------------------------------------------------------------------------------------


def _gold(labels: Labels) -> NDArray[np.float64]:
    return np.asarray(labels.gold, np.float64)


def _items(labels: Labels, outputs: RowOutputs) -> Floats:
    """Return the single item of each example, `(examples, width)`."""
    return np.stack([outputs[row][0] for row in labels.rows])


def _scores(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    """Return `(score, gold)`: the number itself, or the cosine of a pair of embeddings."""
    first = _items(labels, outputs)
    if kind == "embedding":
        assert labels.second is not None
        second = np.stack([outputs[row][0] for row in labels.second])
        # A row of zeros has no direction; its cosine counts as 0.
        return np.stack([np.nan_to_num(measures.cosine(first, second)), _gold(labels)], axis=1)
    return np.stack([first[:, 0], _gold(labels)], axis=1)


def _columns(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    """Return each output beside its gold number, one output after the other, `(examples, 2 · numbers)`."""
    pairs = np.stack([_items(labels, outputs), _gold(labels)], axis=-1)
    return pairs.reshape(len(pairs), -1)


def _label_counts(labels: Labels, outputs: RowOutputs) -> Floats:
    """Return for each label whether it is given rightly, given, and gold, `(examples, labels, 3)`."""
    given = measures.label_margins(_items(labels, outputs), labels.thresholds) >= 0
    true = _gold(labels) == 1
    return np.stack([given & true, given, true], axis=-1).astype(np.float64)


def _labels_together(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    """Return the numbers of correct, given and gold labels of each example, `(examples, 3)`."""
    counts: Floats = _label_counts(labels, outputs).sum(1)
    return counts


def _labels_apart(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    """Return the same of each label, one label after the other, `(examples, 3 · labels)`."""
    counts = _label_counts(labels, outputs)
    return counts.reshape(len(counts), -1)


def _right(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    right: Floats = (_items(labels, outputs).argmax(-1) == _gold(labels)).astype(np.float64)[:, None]
    return right


def _confusion(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    """Mark each example as a true or false positive, a true or false negative, of class 1, `(examples, 4)`."""
    positive, true = _items(labels, outputs).argmax(-1) == 1, _gold(labels) == 1
    return np.stack([positive & true, positive & ~true, ~positive & ~true, ~positive & true], axis=1).astype(np.float64)


def _entities(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
    """Return the numbers of correct, predicted and gold entities of each example, `(examples, 3)`."""
    parts = []
    for row, gold in zip(labels.rows, labels.gold, strict=True):
        winners = outputs[row].argmax(-1)
        # A word that truncation removed has no tag.
        predicted = ["O" if at is None else labels.names[int(winners[at])] for at in gold["at"]]
        entities, true = _spans_of(predicted), _spans_of([labels.names[tag] for tag in gold["tags"]])
        parts.append((len(entities & true), len(entities), len(true)))
    return np.asarray(parts, np.float64)


def _spans_of(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    from seqeval.metrics.sequence_labeling import get_entities

    return set(get_entities(list(tags)))


def _squad(name: str) -> Callable[[OutputKind, Labels, RowOutputs], Floats]:
    def parts(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> Floats:
        from torchmetrics.functional.text import squad

        values = []
        for gold in labels.gold:
            span = best_span([(outputs[row], at) for row, at in zip(gold["windows"], gold["offsets"], strict=True)])
            prediction = {"prediction_text": gold["passage"][span.start : span.end], "id": "0"}
            answers = {"answer_start": [0] * len(gold["answers"]), "text": gold["answers"]}
            values.append(float(squad(prediction, {"answers": answers, "id": "0"})[name]) / 100)
        return np.asarray(values)[:, None]

    return parts


# --- values ------------------------------------------------------------------------------------------------------


def _mean(parts: Floats) -> Floats:
    result: Floats = parts[..., 0].mean(-1)
    return result


def _f1(parts: Floats) -> Floats:
    """Return F1, which is 0 if there are neither predictions nor gold labels.

    Source: van Rijsbergen 1979; for entities as in CoNLL-2003.
    """
    right, found, true = np.moveaxis(parts.sum(-2), -1, 0)
    result: Floats = 2 * right / np.maximum(found + true, 1)
    return result


def _macro_f1(parts: Floats) -> Floats:
    """Return the mean of the labels' F1; that of a label which is neither given nor gold is 0.

    Source: scikit-learn, `f1_score(average="macro", zero_division=0)`.
    """
    result: Floats = np.mean([_f1(parts[..., at : at + 3]) for at in range(0, parts.shape[-1], 3)], axis=0)
    return result


def _f1_of_class(parts: Floats) -> Floats:
    true_positive, false_positive, _, false_negative = np.moveaxis(parts, -1, 0)
    counts = (true_positive, true_positive + false_positive, true_positive + false_negative)
    return _f1(np.stack(counts, axis=-1))


def _matthews(parts: Floats) -> Floats:
    """Return Matthews' coefficient, which is 0 if predictions or gold labels have one class only.

    Source: Matthews 1975.
    """
    tp, fp, tn, fn = np.moveaxis(parts.sum(-2), -1, 0)
    norm = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    result: Floats = (tp * tn - fp * fn) / np.where(norm > 0, norm, 1)
    return result


def _pearson(parts: Floats) -> Floats:
    """Return the correlation of the two columns; 0 where one is constant, since it is undefined there."""
    sides = parts - parts.mean(-2, keepdims=True)
    norm = np.sqrt((sides**2).sum(-2).prod(-1))
    result: Floats = sides.prod(-1).sum(-1) / np.where(norm > 0, norm, 1)
    return result


def _spearman(parts: Floats) -> Floats:
    """Return the correlation of the ranks; ties have their mean rank."""
    from scipy.stats import rankdata

    return _pearson(rankdata(parts, axis=-2))


def _mean_spearman(parts: Floats) -> Floats:
    """Return the mean over the outputs of each one's correlation of ranks with its gold numbers."""
    result: Floats = np.mean([_spearman(parts[..., at : at + 2]) for at in range(0, parts.shape[-1], 2)], axis=0)
    return result


# --- chance ------------------------------------------------------------------------------------------------------


def _nothing(labels: Labels) -> float:
    return 0.0


def _commonest(labels: Labels) -> float:
    _, counts = np.unique(_gold(labels), return_counts=True)
    return float(counts.max() / counts.sum())


def _always_one(labels: Labels) -> float:
    share = float((_gold(labels) == 1).mean())
    return 2 * share / (1 + share)


def _best_constant_labels(labels: Labels) -> float:
    """Return the best micro F1 of the same labels for every text: the commonest one, two, three and so on."""
    gold = _gold(labels)
    counts = np.sort(gold.sum(0))[::-1]
    given = len(gold) * np.arange(1, len(counts) + 1)
    return float((2 * counts.cumsum() / np.maximum(given + counts.sum(), 1)).max())


def _every_label(labels: Labels) -> float:
    """Return the macro F1 of giving every text every label, which is the best of all constants."""
    shares = _gold(labels).mean(0)
    return float((2 * shares / (1 + shares)).mean())


def _binomial(chance: float, examples: int) -> float:
    return float(np.sqrt(chance * (1 - chance) / max(examples, 1)))


def _of_correlation(chance: float, examples: int) -> float:
    """Return the standard error of a correlation of independent columns, whose variance is 1 / (n - 1)."""
    return float(1 / np.sqrt(max(examples - 1, 1)))


METRICS: dict[str, Metric] = {
    "accuracy": Metric(_right, _mean, _commonest, _binomial),
    "f1": Metric(_confusion, _f1_of_class, _always_one, _binomial, version=2),
    "matthews": Metric(_confusion, _matthews, _nothing, _of_correlation, version=2),
    "spearman": Metric(_scores, _spearman, _nothing, _of_correlation),
    "pearson": Metric(_scores, _pearson, _nothing, _of_correlation),
    "micro_f1": Metric(_labels_together, _f1, _best_constant_labels, _binomial),
    "macro_f1": Metric(_labels_apart, _macro_f1, _every_label, _binomial),
    "mean_spearman": Metric(_columns, _mean_spearman, _nothing, _of_correlation),
    "entity_f1": Metric(_entities, _f1, _nothing, _of_correlation, version=2),
    "squad_f1": Metric(_squad("f1"), _mean, _nothing, _of_correlation),
    "squad_em": Metric(_squad("exact_match"), _mean, _nothing, _of_correlation),
}
"""Metrics by the name that a dataset's row gives."""
BESIDE = {"micro_f1": ("macro_f1",)}
"""Metrics that are computed beside a dataset's own one, for people to read."""


def reported(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> dict[str, float]:
    """Return a dataset's metric and those beside it."""
    names = (labels.metric, *BESIDE.get(labels.metric, ()))
    return {name: score(kind, replace(labels, metric=name), outputs) for name in names}
