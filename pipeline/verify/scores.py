"""Score every run of a file against the reference, and sum the scores up."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.signature import Signature
from pipeline.kinds import OutputKind
from pipeline.metrics import measures, scoring
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.scoring import Labels
from pipeline.student.reference import Reference
from pipeline.verify.measure import FileMeasurements, Run
from pipeline.verify.record import Evaluation, Group, Input, Measures, TaskScore

_WORST_KEPT = 8
_EXACT_DB = 999.0
_OPPOSITE = -1.0
"""The worst cosine, which an undefined one counts as: JSON has no NaN."""
_NUMBERS: tuple[OutputKind, ...] = ("value", "values")
"""Kinds whose outputs are numbers that people read, so that a shift of all of them matters."""
_USUAL = 0.98
"""Share of the padded rows among which the usual difference by padding is the largest."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """All runs of the verification texts with their scores, and the scores of every row at its natural length."""

    runs: list[Run]
    """Natural runs of the verification texts first, then the padded ones."""
    reference: RowOutputs
    outputs: RowOutputs
    scores: Scores
    natural_scores: Scores
    """Scores of every row of the reference."""
    unit: float
    """See `Measures.unit`."""


def score(signature: Signature, reference: Reference, measured: FileMeasurements) -> Scored:
    """Score every run by cosine for embeddings, by SQNR in dB for all other outputs."""
    runs = measured.natural[: reference.checked] + measured.padded
    checked = range(reference.checked)
    outputs = measured.outputs.take(checked) + measured.padded_outputs
    embedding = signature.output_kind == "embedding"
    by_row = _row_cosine if embedding else _row_sqnr_db
    values = reference.outputs.take(checked).values.astype(np.float64)
    unit = 1.0 if embedding else float(np.sqrt((values**2).mean())) or 1.0
    expected = reference.outputs.take([run.row for run in runs])
    scores = by_row(expected, outputs)
    return Scored(runs, expected, outputs, scores, by_row(reference.outputs, measured.outputs), unit)


def _row_cosine(reference: RowOutputs, values: RowOutputs) -> Scores:
    """Return each row's cosine; a row of zeros has none, and counts as −1, so that it is reported as the worst."""
    cosines = measures.cosine(reference.values, values.values)
    return np.where(np.isnan(cosines), _OPPOSITE, cosines)


def _row_sqnr_db(reference: RowOutputs, values: RowOutputs) -> Scores:
    decibels = [measures.sqnr_db(a, b) for a, b in zip(reference, values, strict=True)]
    return np.clip(decibels, -_EXACT_DB, _EXACT_DB)


def measure_all(signature: Signature, reference: Reference, measured: FileMeasurements, scored: Scored) -> Measures:
    """Return the measures over the verification texts."""
    by_padding = pad_differences(measured)
    again = measured.repeated
    known = again.outputs.values
    right, own = list(scored.reference), list(scored.outputs)
    threaded = None if again.threaded is None else measures.max_abs_error(known, again.threaded.values) / scored.unit
    all_pad = max(
        float(np.abs(outputs.values).max())
        for outputs in (measured.all_pad_outputs, measured.all_pad_flushed)
        if outputs is not None
    )
    return Measures(
        rows=reference.checked,
        padded_rows=len(measured.padded),
        all_pad_rows=len(measured.all_pad_lengths),
        repeated_rows=len(again.runs),
        unit=scored.unit,
        mean_score=float(scored.scores.mean()),
        worst_score=float(scored.scores.min()),
        sqnr_db=min(measures.sqnr_db(scored.reference.values, scored.outputs.values), _EXACT_DB),
        max_abs_error=measures.max_abs_error(scored.reference.values, scored.outputs.values) / scored.unit,
        mean_shift=_mean_shift(scored) if signature.output_kind in _NUMBERS else None,
        max_all_pad_error=all_pad if signature.output_kind == "embedding" else None,
        max_pad_difference=float(by_padding.max()) / scored.unit,
        usual_pad_difference=float(np.quantile(by_padding, _USUAL, method="lower")) / scored.unit,
        deterministic=known.tobytes() == again.again.values.tobytes(),
        max_thread_difference=threaded,
        value_range=float(np.ptp(scored.reference.values, axis=0).min()) if signature.output_kind in _NUMBERS else None,
        kendall_tau=_kendall_tau(scored) if signature.output_kind in _NUMBERS else None,
        agreement=measures.same_decisions(signature.output_kind, right, own, signature.thresholds),
        kl=measures.mean_kl_divergence(signature.output_kind, right, own),
    )


def pad_differences(measured: FileMeasurements) -> Scores:
    """Return each padded run's largest absolute difference from the row at its own length; 0 if none was run."""
    unpadded = measured.outputs.take([run.row for run in measured.padded])
    found = [np.abs(a - b).max() for a, b in zip(unpadded, measured.padded_outputs, strict=True)]
    return np.array(found or [0.0], np.float64)


def _mean_shift(scored: Scored) -> float:
    """Return the mean difference of an output in standard deviations of the reference; the largest of all outputs."""
    spread = scored.reference.values.std(axis=0, dtype=np.float64)
    shift = np.abs((scored.outputs.values.astype(np.float64) - scored.reference.values).mean(0))
    return float((shift / np.where(spread > 0, spread, 1.0)).max())


def _kendall_tau(scored: Scored) -> float:
    """Return how alike the file and the reference order the texts: Kendall's τ, the lowest of all outputs."""
    from scipy.stats import kendalltau

    columns = zip(scored.reference.values.T, scored.outputs.values.T, strict=True)
    found = [float(kendalltau(one, other).statistic) for one, other in columns]
    # Equal numbers for all texts have no order.
    return min((one for one in found if not np.isnan(one)), default=0.0)


def groups(reference: Reference, scored: Scored) -> dict[str, Group]:
    """Return the scores by kind of text."""
    kinds = np.array([reference.texts[run.row].kind for run in scored.runs])
    return {
        str(kind): Group(
            rows=int((kinds == kind).sum()),
            mean_score=float(scored.scores[kinds == kind].mean()),
            worst_score=float(scored.scores[kinds == kind].min()),
        )
        for kind in sorted(set(kinds))
    }


def worst(reference: Reference, scored: Scored) -> list[Input]:
    """Return the worst inputs, worst first."""
    order = np.argsort(scored.scores)[:_WORST_KEPT]
    return [describe(reference, scored.runs[number], float(scored.scores[number])) for number in order]


def describe(reference: Reference, run: Run, score: float | None) -> Input:
    """Return the record of one run's input."""
    text = reference.texts[run.row]
    return Input(
        id=text.id,
        kind=text.kind,
        text=text.first[:300],
        second=text.second[:300] if text.second else None,
        tokens=len(reference.rows[run.row]),
        length=run.length,
        score=score,
    )


def task_score(
    signature: Signature, row: Labels, reference: Reference, measured: FileMeasurements, scored: Scored
) -> TaskScore:
    """Return a dataset's metric on the reference and on the file, with the interval of the drop."""
    kind = signature.output_kind
    of_reference, of_file = scoring.score(kind, row, reference.outputs), scoring.score(kind, row, measured.outputs)
    low, high = scoring.interval_of_drop(kind, row, reference.outputs, measured.outputs)
    numbers = row.every_row()
    return TaskScore(
        dataset=row.name,
        metric=row.metric,
        rows=len(row.gold),
        chance=scoring.METRICS[row.metric].chance(row),
        reference=of_reference,
        found=of_file,
        drop=of_reference - of_file,
        drop_low=low,
        drop_high=high,
        undecided=scoring.undecided(kind, row, reference.outputs),
        mean_score=float(scored.natural_scores[numbers].mean()),
        worst_score=float(scored.natural_scores[numbers].min()),
    )


def evaluations(reference: Reference, measured: FileMeasurements) -> list[Evaluation]:
    """Return the errors of the format's other evaluators on the repeated rows."""
    again = measured.repeated
    expected = reference.outputs.take([run.row for run in again.runs]).values
    return [
        Evaluation(
            evaluator=name,
            rows=len(again.runs),
            sqnr_db=float(np.clip(measures.sqnr_db(expected, np.nan_to_num(rows.values)), -_EXACT_DB, _EXACT_DB)),
            max_difference=min(measures.max_abs_error(again.outputs.values, np.nan_to_num(rows.values)), _EXACT_DB),
        )
        for name, rows in again.others.items()
    ]
