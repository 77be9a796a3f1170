"""Judge what was measured. Every gate here has a test in which it fires."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.quantize import Gates
from pipeline.reference import Labels, Reference, task_metric
from pipeline.signature import Signature
from pipeline.verify.measure import Measured, Run
from pipeline.verify.record import GateResult, Group, Input, Measures, Parity, TaskScore, Verdict

_WORST_KEPT = 8
_EXACT_DB = 999.0
_OPPOSITE = -1.0
"""The worst cosine and the worst rank correlation: what an undefined one counts as. JSON has no NaN."""
_GRAPH_BYTES = 500_000
"""Allowed for the graph itself and for scales of narrow rows; without it every tiny model would be too large."""
_CHANCE_ERRORS = 2.0
"""The reference has to be this many standard errors above chance."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class _Scored:
    """All runs of the verification texts with their scores, and the rows of the data sets."""

    runs: list[Run]
    """Natural runs of the verification texts first, then the padded ones."""
    truth: NDArray[np.float32]
    outputs: NDArray[np.float32]
    scores: Scores
    natural_scores: Scores
    """Of every row of the reference."""


def judge(
    signature: Signature,
    truth: Reference,
    found: Measured | None,
    gates: Gates,
    model_metrics: dict[str, Any],
    *,
    not_run: str | None,
    crash: str | None,
    random_weights: bool,
) -> Parity:
    """Return the verdict with everything behind it.

    Args:
        signature: of the file.
        truth: the reference.
        found: the file's outputs, or None if nothing ran.
        gates: bounds for this target.
        model_metrics: `file_bytes` and op counts from the convert stage.
        not_run: why the file could not be run here, or None.
        crash: how the runtime went down, or None.
        random_weights: exempts from the above-chance gate, and from that alone.
    """
    results = [] if random_weights else [_above_chance(row) for row in truth.datasets]
    results += _size_gate(signature, gates, model_metrics)
    measures, groups, scores, worst = None, {}, [], []
    if found is not None:
        results += [_finite_gate(truth, found), _tokenizer_gate(truth, found)]
        if all(gate.passed for gate in results if gate.name == "finite"):
            scored = _score(signature, truth, found)
            measures = _measures(signature, truth, found, scored)
            groups = _groups(truth, scored)
            worst = _worst(truth, scored)
            scores = [_task_score(row, found, scored) for row in truth.datasets]
            results += _bound_gates(gates, measures, scores, worst, truth, found)
    failed = [gate for gate in results if not gate.passed]
    verdict: Verdict = "failed" if failed or crash else "not_run" if not_run else "passed"
    reasons = [reason for reason in (crash, not_run) if reason] + [gate.detail for gate in failed]
    if random_weights:
        reasons.append("weights are declared random: the above-chance gate was not applied")
    return Parity(
        backend=signature.backend,
        scheme=signature.scheme,
        task=signature.task,
        output_kind=signature.output_kind,
        score="cosine" if signature.output_kind == "embedding" else "sqnr_db",
        evaluator=found.evaluator if found else None,
        verdict=verdict,
        reasons=reasons,
        file_bytes=model_metrics["file_bytes"],
        parameters=signature.parameters,
        ops_delegated=model_metrics.get("ops_delegated"),
        ops_total=model_metrics.get("ops_total"),
        random_weights=random_weights,
        measures=measures,
        gates=results,
        groups=groups,
        datasets=scores,
        datasets_skipped=truth.skipped,
        worst=worst,
    )


def _score(signature: Signature, truth: Reference, found: Measured) -> _Scored:
    """Score every run by the measure that fits the kind of output."""
    runs = found.natural[: truth.checked] + found.padded
    wanted = truth.outputs[[run.row for run in runs]]
    outputs = np.concatenate([found.outputs[: truth.checked], found.padded_outputs])
    score = _row_cosine if signature.output_kind == "embedding" else _row_sqnr_db
    return _Scored(runs, wanted, outputs, score(wanted, outputs), score(truth.outputs, found.outputs))


def _row_cosine(truth: NDArray[np.float32], values: NDArray[np.float32]) -> Scores:
    """A row of zeros has no direction: it counts as the opposite one, so that it is the worst and is blamed."""
    cosines = metrics.cosine(truth, values)
    return np.where(np.isnan(cosines), _OPPOSITE, cosines)


def _row_sqnr_db(truth: NDArray[np.float32], values: NDArray[np.float32]) -> Scores:
    decibels = [metrics.sqnr_db(a, b) for a, b in zip(truth, values, strict=True)]
    return np.clip(decibels, -_EXACT_DB, _EXACT_DB)


def _measures(signature: Signature, truth: Reference, found: Measured, scored: _Scored) -> Measures:
    embedding = signature.output_kind == "embedding"
    own = found.outputs[[run.row for run in found.padded]]
    return Measures(
        rows=truth.checked,
        padded_rows=len(found.padded),
        all_pad_rows=len(found.all_pad_lengths),
        mean_score=float(scored.scores.mean()),
        worst_score=float(scored.scores.min()),
        sqnr_db=min(metrics.sqnr_db(scored.truth, scored.outputs), _EXACT_DB),
        max_abs_error=metrics.max_abs_error(scored.truth, scored.outputs),
        max_all_pad_error=float(np.abs(found.all_pad_outputs).max()) if embedding else None,
        max_pad_difference=metrics.max_abs_error(own, found.padded_outputs),
        agreement=None if embedding else metrics.agreement(scored.truth, scored.outputs),
    )


def _groups(truth: Reference, scored: _Scored) -> dict[str, Group]:
    kinds = np.array([truth.texts[run.row].kind for run in scored.runs])
    return {
        str(kind): Group(
            rows=int((kinds == kind).sum()),
            mean_score=float(scored.scores[kinds == kind].mean()),
            worst_score=float(scored.scores[kinds == kind].min()),
        )
        for kind in sorted(set(kinds))
    }


def _worst(truth: Reference, scored: _Scored) -> list[Input]:
    order = np.argsort(scored.scores)[:_WORST_KEPT]
    return [_input(truth, scored.runs[number], float(scored.scores[number])) for number in order]


def _input(truth: Reference, run: Run, score: float | None) -> Input:
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


def _task_score(row: Labels, found: Measured, scored: _Scored) -> TaskScore:
    value = task_metric(row.metric, row.first, row.second, row.labels, found.outputs)
    value = _OPPOSITE if np.isnan(value) else value
    numbers = sorted(set(row.first) | set(row.second or []))
    return TaskScore(
        dataset=row.name,
        metric=row.metric,
        rows=len(row.labels),
        chance=row.chance,
        reference=row.truth,
        found=value,
        drop=row.truth - value,
        mean_score=float(scored.natural_scores[numbers].mean()),
        worst_score=float(scored.natural_scores[numbers].min()),
    )


def _above_chance(row: Labels) -> GateResult:
    error = metrics.standard_error(row.metric, row.chance, len(row.labels))
    bound = row.chance + _CHANCE_ERRORS * error
    passed = row.truth > bound
    why = f"the reference is broken: {row.metric} {row.truth:.3f} on {row.name} is not above chance ({bound:.3f})"
    name = f"reference_above_chance:{row.name}"
    return GateResult(name=name, bound=bound, found=row.truth, passed=passed, detail="" if passed else why)


def _size_gate(signature: Signature, gates: Gates, model_metrics: dict[str, Any]) -> list[GateResult]:
    if gates.max_bytes_per_parameter is None:
        return []
    found = max(0, model_metrics["file_bytes"] - _GRAPH_BYTES) / signature.parameters
    return [
        _at_most(
            "max_bytes_per_parameter",
            gates.max_bytes_per_parameter,
            found,
            "the file is larger than its scheme promises",
        )
    ]


def _finite_gate(truth: Reference, found: Measured) -> GateResult:
    for runs, outputs in ((found.natural, found.outputs), (found.padded, found.padded_outputs)):
        bad = np.flatnonzero(~np.isfinite(outputs).all(axis=1))
        if bad.size:
            blame = _input(truth, runs[int(bad[0])], None).short()
            return GateResult(
                name="finite", bound=None, found=None, passed=False, detail=f"NaN or infinity, first on {blame}"
            )
    bad = np.flatnonzero(~np.isfinite(found.all_pad_outputs).all(axis=1))
    if bad.size:
        length = found.all_pad_lengths[int(bad[0])]
        detail = f"NaN or infinity on a row of {length} padding tokens"
        return GateResult(name="finite", bound=None, found=None, passed=False, detail=detail)
    return GateResult(name="finite", bound=None, found=None, passed=True, detail="")


def _tokenizer_gate(truth: Reference, found: Measured) -> GateResult:
    wrong = found.wrong_ids
    detail = ""
    if wrong:
        detail = f"the shipped tokenizer gives other ids on {len(wrong)} texts, first {truth.texts[wrong[0]].id}"
    return GateResult(name="tokenizer", bound=0.0, found=float(len(wrong)), passed=not wrong, detail=detail)


def _bound_gates(
    gates: Gates, measures: Measures, scores: list[TaskScore], worst: list[Input], truth: Reference, found: Measured
) -> list[GateResult]:
    """Compare each bound that is set with what was found, and name the input that is to blame."""
    blame = f"worst on {worst[0].short()}"
    cosine = measures.agreement is None
    minima: list[tuple[str, float | None, float | None, str]] = [
        ("min_mean_cosine", gates.min_mean_cosine, measures.mean_score if cosine else None, blame),
        ("min_worst_cosine", gates.min_worst_cosine, measures.worst_score if cosine else None, blame),
        ("min_sqnr_db", gates.min_sqnr_db, measures.sqnr_db, blame),
        ("min_agreement", gates.min_agreement, measures.agreement, blame),
    ]
    maxima: list[tuple[str, float | None, float | None, str]] = [
        ("max_abs_error", gates.max_abs_error, measures.max_abs_error, blame),
        ("max_all_pad_error", gates.max_all_pad_error, measures.max_all_pad_error, "on a row that is all padding"),
        ("max_pad_difference", gates.max_pad_difference, measures.max_pad_difference, _blame_padding(truth, found)),
    ]
    maxima += [
        (
            f"max_task_drop:{s.dataset}",
            gates.max_task_drop,
            s.drop,
            f"{s.metric} {s.reference:.4f} fell to {s.found:.4f}",
        )
        for s in scores
    ]
    results = [
        _at_least(name, bound, value, why)
        for name, bound, value, why in minima
        if bound is not None and value is not None
    ]
    return results + [
        _at_most(name, bound, value, why)
        for name, bound, value, why in maxima
        if bound is not None and value is not None
    ]


def _blame_padding(truth: Reference, found: Measured) -> str:
    if not found.padded:
        return "no padded row was run"
    own = found.outputs[[run.row for run in found.padded]]
    number = int(np.abs(own - found.padded_outputs).max(axis=1).argmax())
    return f"worst on {_input(truth, found.padded[number], None).short()}"


def _at_least(name: str, bound: float, found: float, why: str) -> GateResult:
    # Written so that NaN fails.
    passed = bool(found >= bound)
    return GateResult(
        name=name,
        bound=bound,
        found=found,
        passed=passed,
        detail=f"{name}: {found:.6g} is below {bound:g}; {why}" if not passed else "",
    )


def _at_most(name: str, bound: float, found: float, why: str) -> GateResult:
    passed = bool(found <= bound)
    return GateResult(
        name=name,
        bound=bound,
        found=found,
        passed=passed,
        detail=f"{name}: {found:.6g} is above {bound:g}; {why}" if not passed else "",
    )
