"""Score what was measured: every run against the truth, by the measure that fits the kind of output."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.reference import Labels, Reference, task_metric, task_scores
from pipeline.signature import Signature
from pipeline.verify.measure import Measured, Run
from pipeline.verify.record import Evaluation, Group, Input, Measures, TaskScore

_WORST_KEPT = 8
_EXACT_DB = 999.0
_OPPOSITE = -1.0
"""The worst cosine and the worst rank correlation: what an undefined one counts as. JSON has no NaN."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """All runs of the verification texts with their scores, and the rows of the data sets."""

    runs: list[Run]
    """Natural runs of the verification texts first, then the padded ones."""
    truth: NDArray[np.float32]
    outputs: NDArray[np.float32]
    scores: Scores
    natural_scores: Scores
    """Of every row of the reference."""
    unit: float
    """See `Measures`."""


def score(signature: Signature, truth: Reference, found: Measured) -> Scored:
    """Score every run by the measure that fits the kind of output."""
    runs = found.natural[: truth.checked] + found.padded
    wanted = truth.outputs[[run.row for run in runs]]
    outputs = np.concatenate([found.outputs[: truth.checked], found.padded_outputs])
    embedding = signature.output_kind == "embedding"
    by_row = _row_cosine if embedding else _row_sqnr_db
    unit = 1.0 if embedding else float(np.sqrt((truth.outputs[: truth.checked].astype(np.float64) ** 2).mean())) or 1.0
    return Scored(runs, wanted, outputs, by_row(wanted, outputs), by_row(truth.outputs, found.outputs), unit)


def _row_cosine(truth: NDArray[np.float32], values: NDArray[np.float32]) -> Scores:
    """A row of zeros has no direction: it counts as the opposite one, so that it is the worst and is blamed."""
    cosines = metrics.cosine(truth, values)
    return np.where(np.isnan(cosines), _OPPOSITE, cosines)


def _row_sqnr_db(truth: NDArray[np.float32], values: NDArray[np.float32]) -> Scores:
    decibels = [metrics.sqnr_db(a, b) for a, b in zip(truth, values, strict=True)]
    return np.clip(decibels, -_EXACT_DB, _EXACT_DB)


def measure_all(signature: Signature, truth: Reference, found: Measured, scored: Scored) -> Measures:
    """Return the figures over the verification texts."""
    embedding = signature.output_kind == "embedding"
    own = found.outputs[[run.row for run in found.padded]]
    again = found.repeated
    threaded = None if again.threaded is None else metrics.max_abs_error(again.outputs, again.threaded) / scored.unit
    return Measures(
        rows=truth.checked,
        padded_rows=len(found.padded),
        all_pad_rows=len(found.all_pad_lengths),
        repeated_rows=len(again.runs),
        unit=scored.unit,
        mean_score=float(scored.scores.mean()),
        worst_score=float(scored.scores.min()),
        sqnr_db=min(metrics.sqnr_db(scored.truth, scored.outputs), _EXACT_DB),
        max_abs_error=metrics.max_abs_error(scored.truth, scored.outputs) / scored.unit,
        max_all_pad_error=float(np.abs(found.all_pad_outputs).max()) if embedding else None,
        max_pad_difference=metrics.max_abs_error(own, found.padded_outputs) / scored.unit,
        deterministic=again.outputs.tobytes() == again.again.tobytes(),
        max_thread_difference=threaded,
        agreement=None if embedding else metrics.agreement(scored.truth, scored.outputs),
        kl=None if embedding else float(metrics.kl_divergence(scored.truth, scored.outputs).mean()),
    )


def groups(truth: Reference, scored: Scored) -> dict[str, Group]:
    """Return the scores by kind of text."""
    kinds = np.array([truth.texts[run.row].kind for run in scored.runs])
    return {
        str(kind): Group(
            rows=int((kinds == kind).sum()),
            mean_score=float(scored.scores[kinds == kind].mean()),
            worst_score=float(scored.scores[kinds == kind].min()),
        )
        for kind in sorted(set(kinds))
    }


def worst(truth: Reference, scored: Scored) -> list[Input]:
    """Return the worst inputs, worst first."""
    order = np.argsort(scored.scores)[:_WORST_KEPT]
    return [describe(truth, scored.runs[number], float(scored.scores[number])) for number in order]


def describe(truth: Reference, run: Run, score: float | None) -> Input:
    """Return one run as it is written down."""
    text = truth.texts[run.row]
    return Input(
        id=text.id,
        kind=text.kind,
        text=text.first[:300],
        second=text.second[:300] if text.second else None,
        tokens=len(truth.rows[run.row]),
        length=run.length,
        score=score,
    )


def task_score(row: Labels, truth: Reference, found: Measured, scored: Scored) -> TaskScore:
    """Return a data set's metric of truth and file, with the interval of the drop."""
    value = task_metric(row.metric, row.first, row.second, row.labels, found.outputs)
    value = _OPPOSITE if np.isnan(value) else value
    numbers = sorted(set(row.first) | set(row.second or []))
    low, high = _interval(row, truth, found)
    return TaskScore(
        dataset=row.name,
        metric=row.metric,
        rows=len(row.labels),
        chance=row.chance,
        reference=row.truth,
        found=value,
        drop=row.truth - value,
        drop_low=low,
        drop_high=high,
        mean_score=float(scored.natural_scores[numbers].mean()),
        worst_score=float(scored.natural_scores[numbers].min()),
    )


def _interval(row: Labels, truth: Reference, found: Measured) -> tuple[float, float]:
    scores = [np.nan_to_num(task_scores(row.first, row.second, values)) for values in (truth.outputs, found.outputs)]
    return metrics.INTERVALS[row.metric](scores[0], scores[1], np.asarray(row.labels))


def evaluations(truth: Reference, found: Measured) -> list[Evaluation]:
    """Return how the backend's other evaluators did on the repeated rows."""
    again = found.repeated
    wanted = truth.outputs[[run.row for run in again.runs]]
    return [
        Evaluation(
            evaluator=name,
            rows=len(again.runs),
            sqnr_db=float(np.clip(metrics.sqnr_db(wanted, np.nan_to_num(values)), -_EXACT_DB, _EXACT_DB)),
            max_difference=min(metrics.max_abs_error(again.outputs, np.nan_to_num(values)), _EXACT_DB),
        )
        for name, values in again.others.items()
    ]
