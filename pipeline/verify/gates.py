"""Judge a file by its measurements. Every gate here has a test in which it fires."""

from typing import Any

import numpy as np

from pipeline import formats
from pipeline.formats.signature import Signature
from pipeline.metrics import scoring
from pipeline.metrics.scoring import Labels
from pipeline.schemes import SCHEMES, Gates
from pipeline.student.reference import Reference
from pipeline.verify import retrieval
from pipeline.verify.measure import FileMeasurements
from pipeline.verify.record import (
    EXEMPT,
    Control,
    Evaluation,
    GateResult,
    Input,
    Measures,
    Parity,
    Retrieval,
    TaskScore,
    Verdict,
    VerifyRequest,
)
from pipeline.verify.scores import (
    describe,
    evaluations,
    groups,
    measure_all,
    pad_differences,
    score,
    task_score,
    worst,
)
from pipeline.verify.structure import declared_sqnr_db
from pipeline.verify.wording import broken

_GRAPH_BYTES = 500_000
"""Bytes allowed for the graph itself and for scales of short rows; without them every tiny model would be too large."""
_RULE_OF_THREE = 3.0
_CONTROL_DB, _CONTROL_HALF_DB = 80.0, 60.0
"""Bounds for a graph in single precision, and for one whose constants, such as the attention's scale, are in half."""
_DECLARED_SLACK_DB, _ROW_SLACK_DB = 5.0, 10.0
_MASKED_DIFFERENCE = 1e-6
"""In single precision the exponential of a masked score is zero, so clean files change by nothing at all."""
_SWEEP_HALF_DB, _SWEEP_DYNAMIC_DB = 35.0, 5.0
"""Bounds for a row of arbitrary tokens in a file with rounded activations: no text, so lower than on texts."""
_SWEEP_STATIC_DB = 0.0
"""Calibrated ranges clip unusual inputs: rows of two rare tokens have 1.9 dB on a tiny random student."""


def judge(
    signature: Signature,
    reference: Reference,
    measured: FileMeasurements | None,
    request: VerifyRequest,
    model_metrics: dict[str, Any],
    *,
    not_run: str | None,
    crash: str | None,
    parameters: int | None = None,
) -> Parity:
    """Judge a file: apply every gate to its measurements, and return the whole record.

    Args:
        signature: of the file.
        reference: the reference.
        measured: the file's measurements, or None if nothing ran.
        request: the target with its bounds. Random weights are exempt from the above-chance gate, and from the bad
            end of what a task may lose: there is nothing to lose.
        model_metrics: `file_bytes` as measured, and op counts from the convert stage.
        not_run: why the file could not be run here, or None.
        crash: how the runtime went down, or None.
        parameters: unique parameters of a file that has several heads; None for those of the signature.
    """
    gates = request.gates
    results = [] if request.random_weights else [_above_chance(signature, row, reference) for row in reference.datasets]
    results += _size_gate(signature, gates, model_metrics["file_bytes"], parameters=parameters or signature.parameters)
    measures, by_kind, datasets, blamed, others = None, {}, [], [], []
    found: list[Retrieval] = []
    if measured is not None:
        results += [_finite_gate(reference, measured), _tokenizer_gate(reference, measured), *measured.static_gates]
        if all(gate.passed for gate in results if gate.name == "finite"):
            scored = score(signature, reference, measured)
            measures = measure_all(signature, reference, measured, scored)
            by_kind = groups(reference, scored)
            blamed = worst(reference, scored)
            datasets = [task_score(signature, row, reference, measured, scored) for row in reference.datasets]
            others = evaluations(reference, measured)
            results += _bound_gates(signature, gates, measures, blamed, reference, measured)
            results += _task_drop_gates(signature, request, datasets)
            found = retrieval.measure(signature.vectors, reference, measured.outputs)
            if not request.random_weights:
                results += retrieval.gates(gates, signature.vectors, found)
            results += [_deterministic_gate(measures), *_other_gates(signature, gates, others)]
        if measured.control is not None:
            results += _control_gates(signature, gates, reference, measured.control)
    failed = [gate for gate in results if not gate.passed]
    verdict: Verdict = "failed" if failed or crash else "not_run" if not_run else "passed"
    reasons = [reason for reason in (crash, not_run) if reason] + [gate.detail for gate in failed]
    if measured and measured.worst_linear and any(gate.name.startswith(_OF_OUTPUTS) for gate in failed):
        reasons.append(measured.worst_linear)
    if request.random_weights:
        reasons.append(EXEMPT)
    return Parity(
        backend=signature.backend,
        scheme=signature.scheme,
        task=signature.task,
        output_kind=signature.output_kind,
        score="cosine" if signature.output_kind == "embedding" else "sqnr_db",
        evaluator=measured.evaluator if measured else None,
        evaluator_stands_in=measured.evaluator_stands_in if measured else None,
        other_evaluators=others,
        verdict=verdict,
        reasons=reasons,
        file_bytes=model_metrics["file_bytes"],
        parameters=parameters or signature.parameters,
        ops_delegated=model_metrics.get("ops_delegated"),
        ops_total=model_metrics.get("ops_total"),
        random_weights=request.random_weights,
        thorough=request.thorough,
        measures=measures,
        control=measured.control if measured else None,
        gates=results,
        groups=by_kind,
        datasets=datasets,
        datasets_skipped=reference.skipped,
        retrieval=found,
        worst=blamed,
    )


_OF_OUTPUTS = ("min_", "max_kl", "max_mean_shift", "max_task_drop")
"""Gates that rounding alone may fail."""


def _above_chance(signature: Signature, row: Labels, reference: Reference) -> GateResult:
    bound = scoring.above_chance_bound(row)
    found = scoring.score(signature.output_kind, row, reference.outputs)
    passed = found > bound
    why = f"the reference is broken: {row.metric} {found:.3f} on {row.name} is not above chance ({bound:.3f})"
    name = f"reference_above_chance:{row.name}"
    return GateResult(name=name, bound=bound, found=found, passed=passed, detail="" if passed else why)


def _size_gate(signature: Signature, gates: Gates, file_bytes: int, *, parameters: int) -> list[GateResult]:
    if gates.max_bytes_per_parameter is None:
        return []
    found = max(0, file_bytes - _GRAPH_BYTES) / parameters
    return [
        _at_most(
            signature,
            "max_bytes_per_parameter",
            gates.max_bytes_per_parameter,
            found,
            "the file is larger than its scheme promises",
        )
    ]


def _finite_gate(reference: Reference, measured: FileMeasurements) -> GateResult:
    for runs, outputs in ((measured.natural, measured.outputs), (measured.padded, measured.padded_outputs)):
        bad = outputs.rows_where(~np.isfinite(outputs.values).all(axis=1))
        if bad:
            blame = describe(reference, runs[bad[0]], None).short()
            return GateResult(
                name="finite", bound=None, found=None, passed=False, detail=f"NaN or infinity, first on {blame}"
            )
    for all_pad, where in (
        (measured.all_pad_outputs, ""),
        (measured.all_pad_flushed, " where subnormal numbers of half precision are zero"),
    ):
        bad = [] if all_pad is None else all_pad.rows_where(~np.isfinite(all_pad.values).all(axis=1))
        if bad:
            length = measured.all_pad_lengths[bad[0]]
            detail = f"NaN or infinity on a row of {length} padding tokens{where}"
            return GateResult(name="finite", bound=None, found=None, passed=False, detail=detail)
    return GateResult(name="finite", bound=None, found=None, passed=True, detail="")


def _tokenizer_gate(reference: Reference, measured: FileMeasurements) -> GateResult:
    wrong = measured.wrong_ids
    detail = ""
    if wrong:
        detail = f"the shipped tokenizer gives other ids on {len(wrong)} texts, first {reference.texts[wrong[0]].id}"
    return GateResult(name="tokenizer", bound=0.0, found=float(len(wrong)), passed=not wrong, detail=detail)


def _bound_gates(
    signature: Signature,
    gates: Gates,
    measures: Measures,
    inputs: list[Input],
    reference: Reference,
    measured: FileMeasurements,
) -> list[GateResult]:
    """Compare each measure that has a bound with it, and name the worst input."""
    blame = f"worst on {inputs[0].short()}"
    cosine = signature.output_kind == "embedding"
    minima: list[tuple[str, float | None, float | None, str]] = [
        ("min_mean_cosine", gates.min_mean_cosine, measures.mean_score if cosine else None, blame),
        ("min_worst_cosine", gates.min_worst_cosine, measures.worst_score if cosine else None, blame),
        ("min_sqnr_db", _sqnr_bound(signature, gates, reference), measures.sqnr_db, blame),
        ("min_agreement", gates.min_agreement, measures.agreement, blame),
    ]
    maxima: list[tuple[str, float | None, float | None, str]] = [
        ("max_abs_error", gates.max_abs_error, measures.max_abs_error, blame),
        ("max_mean_shift", gates.max_mean_shift, measures.mean_shift, "mean over all rows"),
        ("max_all_pad_error", gates.max_all_pad_error, measures.max_all_pad_error, "on a row that is all padding"),
        (
            "max_pad_difference",
            gates.max_pad_difference,
            measures.max_pad_difference,
            _blame_padding(reference, measured),
        ),
        (
            "max_usual_pad_difference",
            gates.max_usual_pad_difference,
            measures.usual_pad_difference,
            "all padded rows but the 2 % that differ most",
        ),
        (
            "max_thread_difference",
            gates.max_thread_difference,
            measures.max_thread_difference,
            "two threads against one",
        ),
        ("max_kl", gates.max_kl, measures.kl, "mean over all rows"),
    ]
    results = [
        _at_least(signature, name, bound, value, why)
        for name, bound, value, why in minima
        if bound is not None and value is not None
    ]
    return results + [
        _at_most(signature, name, bound, value, why)
        for name, bound, value, why in maxima
        if bound is not None and value is not None
    ]


def _sqnr_bound(signature: Signature, gates: Gates, reference: Reference) -> float | None:
    """Return the scheme's bound, or a lower one that the format declares for its approximation of an activation."""
    declared = declared_sqnr_db(signature.backend, reference.checkpoint.get("activations", ()))
    return None if gates.min_sqnr_db is None else min(gates.min_sqnr_db, declared)


def _task_drop_gates(signature: Signature, request: VerifyRequest, datasets: list[TaskScore]) -> list[GateResult]:
    """Bound both ends of the drop's interval: the good end always, the bad end as far as the rows can tell.

    Many rows have to show that the drop is within its bound; few only fail a file whose drop is surely beyond it.
    Rule of three (Hanley and Lippman-Hand 1983): n rows bound a rate by 3 / n at best, however good the file is. Rows
    in which the reference nearly ties show nothing either; a trained classifier has few of them, one of random weights
    many. Nor does any dataset if the reference is at chance, which only a student of random weights may be.
    """
    bound = request.gates.max_task_drop
    if bound is None:
        return []
    results = []
    for row in datasets:
        why = f"{row.metric} {row.reference:.4f} fell to {row.found:.4f}, by {row.drop_low:.4f} to {row.drop_high:.4f}"
        name = f"max_task_drop:{row.dataset}"
        results.append(_at_most(signature, f"{name}, good end of the interval", bound, row.drop_low, why))
        if not request.random_weights:
            # The end is a whole number of rows as well: equal up to rounding is within.
            resolved = max(bound, _RULE_OF_THREE / row.rows, row.undecided) * (1 + 1e-9)
            results.append(_at_most(signature, f"{name}, bad end of the interval", resolved, row.drop_high, why))
    return results


def _deterministic_gate(measures: Measures) -> GateResult:
    why = f"the same {measures.repeated_rows} rows gave other bytes in a fresh session"
    passed = measures.deterministic
    return GateResult(name="deterministic", bound=None, found=None, passed=passed, detail="" if passed else why)


def _other_gates(signature: Signature, gates: Gates, others: list[Evaluation]) -> list[GateResult]:
    """Apply the scheme's bound to the real runtime where the verdict comes from another evaluator.

    On compute units that an app does not offer, its SQNR is only recorded.
    """
    bound = gates.min_sqnr_db
    why = "the runtime differs from the evaluator of the verdict"
    if bound is None:
        return []
    _, untried = formats.compute_units(signature.backend, signature.scheme)
    unused = {one.name for one in formats.get(signature.backend).evaluators() if one.unit in untried}
    return [
        _at_least(signature, f"min_sqnr_db:{one.evaluator}", bound, one.sqnr_db, why)
        for one in others
        if one.evaluator not in unused
    ]


def _control_gates(signature: Signature, gates: Gates, reference: Reference, control: Control) -> list[GateResult]:
    """Bound the errors of the file's graph in single precision, and those of the file itself on every length.

    A recipe that drops the bound on the outputs drops these as well.
    """
    if gates.min_sqnr_db is None:
        return []
    scheme = SCHEMES[signature.scheme]
    half = scheme.support[signature.backend].base == "float16"
    declared = declared_sqnr_db(signature.backend, reference.checkpoint.get("activations", ()))
    bound = min(_CONTROL_HALF_DB if half else _CONTROL_DB, declared - _DECLARED_SLACK_DB)
    results = [
        _at_least(signature, "control_sqnr_db", bound, control.sqnr_db, f"worst on {control.worst_row}"),
        _at_least(
            signature, "control_worst_row_db", bound - _ROW_SLACK_DB, control.worst_row_db, f"on {control.worst_row}"
        ),
    ]
    why = f"on {control.masked_row}"
    results.append(_at_most(signature, "masked_difference", _MASKED_DIFFERENCE, control.masked_difference, why))
    # A file that computes in single precision has passed the same comparison above.
    if scheme.rounds_activations(signature.backend):
        found = control.file_worst_row_db
        bounds = {"static_int8": _SWEEP_STATIC_DB, "dynamic_int8": _SWEEP_DYNAMIC_DB, "float": _SWEEP_HALF_DB}
        bound = bounds[scheme.activations]
        results.append(_at_least(signature, "every_length_worst_row_db", bound, found, f"on {control.file_worst_row}"))
    return results


def _blame_padding(reference: Reference, measured: FileMeasurements) -> str:
    if not measured.padded:
        return "no padded row was run"
    worst = int(np.argmax(pad_differences(measured)))
    return f"worst on {describe(reference, measured.padded[worst], None).short()}"


def _at_least(signature: Signature, name: str, bound: float, found: float, why: str) -> GateResult:
    # Written so that NaN fails.
    passed = bool(found >= bound)
    detail = "" if passed else broken(name, signature.output_kind, found, bound, least=True, why=why)
    return GateResult(name=name, bound=bound, found=found, passed=passed, detail=detail)


def _at_most(signature: Signature, name: str, bound: float, found: float, why: str) -> GateResult:
    passed = bool(found <= bound)
    detail = "" if passed else broken(name, signature.output_kind, found, bound, least=False, why=why)
    return GateResult(name=name, bound=bound, found=found, passed=passed, detail=detail)
