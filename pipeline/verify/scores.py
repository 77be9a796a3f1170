"""Score what was measured: every run against the truth, by the measure that fits the kind of output."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.backends.signature import Signature
from pipeline.metrics import measures, scoring
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.scoring import Labels
from pipeline.schemes import OutputKind
from pipeline.student.reference import Reference
from pipeline.verify.measure import Measured, Run
from pipeline.verify.record import Evaluation, Group, Input, Measures, TaskScore

_WORST_KEPT = 8
_EXACT_DB = 999.0
_OPPOSITE = -1.0
"""The worst cosine: what an undefined one counts as. JSON has no NaN."""
_HAS_WINNER = ("logits", "token_logits")

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """All runs of the verification texts with their scores, and the rows of the data sets."""

    runs: list[Run]
    """Natural runs of the verification texts first, then the padded ones."""
    truth: RowOutputs
    outputs: RowOutputs
    scores: Scores
    natural_scores: Scores
    """Of every row of the reference."""
    unit: float
    """See `Measures`."""


def score(signature: Signature, truth: Reference, found: Measured) -> Scored:
    """Score every run by the measure that fits the kind of output."""
    runs = found.natural[: truth.checked] + found.padded
    wanted = truth.outputs.take([run.row for run in runs])
    checked = range(truth.checked)
    outputs = found.outputs.take(checked) + found.padded_outputs
    embedding = signature.output_kind == "embedding"
    by_row = _row_cosine if embedding else _row_sqnr_db
    values = truth.outputs.take(checked).values.astype(np.float64)
    unit = 1.0 if embedding else float(np.sqrt((values**2).mean())) or 1.0
    return Scored(runs, wanted, outputs, by_row(wanted, outputs), by_row(truth.outputs, found.outputs), unit)


def _row_cosine(truth: RowOutputs, values: RowOutputs) -> Scores:
    """A row of zeros has no direction: it counts as the opposite one, so that it is the worst and is blamed."""
    cosines = measures.cosine(truth.values, values.values)
    return np.where(np.isnan(cosines), _OPPOSITE, cosines)


def _row_sqnr_db(truth: RowOutputs, values: RowOutputs) -> Scores:
    decibels = [measures.sqnr_db(a, b) for a, b in zip(truth, values, strict=True)]
    return np.clip(decibels, -_EXACT_DB, _EXACT_DB)


def measure_all(signature: Signature, truth: Reference, found: Measured, scored: Scored) -> Measures:
    """Return the figures over the verification texts."""
    own = found.outputs.take([run.row for run in found.padded]).values
    again = found.repeated
    known = again.outputs.values
    threaded = None if again.threaded is None else measures.max_abs_error(known, again.threaded.values) / scored.unit
    all_pad = float(np.abs(found.all_pad_outputs.values).max())
    return Measures(
        rows=truth.checked,
        padded_rows=len(found.padded),
        all_pad_rows=len(found.all_pad_lengths),
        repeated_rows=len(again.runs),
        unit=scored.unit,
        mean_score=float(scored.scores.mean()),
        worst_score=float(scored.scores.min()),
        sqnr_db=min(measures.sqnr_db(scored.truth.values, scored.outputs.values), _EXACT_DB),
        max_abs_error=measures.max_abs_error(scored.truth.values, scored.outputs.values) / scored.unit,
        max_all_pad_error=all_pad if signature.output_kind == "embedding" else None,
        max_pad_difference=measures.max_abs_error(own, found.padded_outputs.values) / scored.unit,
        deterministic=known.tobytes() == again.again.values.tobytes(),
        max_thread_difference=threaded,
        agreement=_agreement(signature.output_kind, scored),
        kl=_kl(signature.output_kind, scored),
    )


def _agreement(kind: OutputKind, scored: Scored) -> float | None:
    if kind == "spans":
        return measures.span_agreement(list(scored.truth), list(scored.outputs))
    return measures.agreement(scored.truth.values, scored.outputs.values) if kind in _HAS_WINNER else None


def _kl(kind: OutputKind, scored: Scored) -> float | None:
    """Return the mean over rows or tokens; of spans over starts and ends, whose choices are the tokens."""
    if kind == "spans":
        rows = zip(scored.truth, scored.outputs, strict=True)
        return float(np.mean([measures.kl_divergence(a.T, b.T).mean() for a, b in rows]))
    divergence = measures.kl_divergence
    return float(divergence(scored.truth.values, scored.outputs.values).mean()) if kind in _HAS_WINNER else None


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


def task_score(signature: Signature, row: Labels, truth: Reference, found: Measured, scored: Scored) -> TaskScore:
    """Return a data set's metric of truth and file, with the interval of the drop."""
    kind = signature.output_kind
    wanted, value = scoring.score(kind, row, truth.outputs), scoring.score(kind, row, found.outputs)
    low, high = scoring.interval_of_drop(kind, row, truth.outputs, found.outputs)
    numbers = row.every_row()
    return TaskScore(
        dataset=row.name,
        metric=row.metric,
        rows=len(row.gold),
        chance=scoring.METRICS[row.metric].chance(row),
        reference=wanted,
        found=value,
        drop=wanted - value,
        drop_low=low,
        drop_high=high,
        undecided=scoring.undecided(kind, row, truth.outputs),
        mean_score=float(scored.natural_scores[numbers].mean()),
        worst_score=float(scored.natural_scores[numbers].min()),
    )


def evaluations(truth: Reference, found: Measured) -> list[Evaluation]:
    """Return how the backend's other evaluators did on the repeated rows."""
    again = found.repeated
    wanted = truth.outputs.take([run.row for run in again.runs]).values
    return [
        Evaluation(
            evaluator=name,
            rows=len(again.runs),
            sqnr_db=float(np.clip(measures.sqnr_db(wanted, np.nan_to_num(rows.values)), -_EXACT_DB, _EXACT_DB)),
            max_difference=min(measures.max_abs_error(again.outputs.values, np.nan_to_num(rows.values)), _EXACT_DB),
        )
        for name, rows in again.others.items()
    ]
