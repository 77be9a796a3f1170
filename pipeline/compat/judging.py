"""From what a runtime did with a file to a verdict. The truth is the golden rows; the bounds are the target's gates."""

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.compat.operators import TooNew
from pipeline.compat.record import Verdict
from pipeline.compat.trials import Call, Trial, timed_call
from pipeline.metrics import measures
from pipeline.student.golden import Golden


def judge(trial: Trial, calls: Sequence[Call], rows: Golden, *, runtime: str) -> Verdict:
    """Return the verdict on a trial.

    Args:
        trial: how the run ended.
        calls: what was run.
        rows: the truth, with the target's gates.
        runtime: its name, for the reason.
    """
    if trial.ended == "not_importable":
        return Verdict(status="not_tried", reason=f"{runtime} does not start: {_line(trial.words)}")
    if trial.ended == "died":
        return Verdict(status="crashed", reason=f"its process {trial.words} while {trial.at}")
    if trial.ended == "error":
        return Verdict(status="refused", reason=f"{_line(trial.words)} ({trial.at})")
    return _numbers(trial, calls, rows)


def refused(found: Sequence[TooNew], verdict: Verdict, *, runtime: str) -> Verdict:
    """Return a refusal with the operations that are too new for the runtime, if there are such."""
    if not found:
        return verdict
    reason = f"{runtime}: {'; '.join(map(str, found))}"
    return verdict.model_copy(update={"reason": reason, "too_new": list(found)})


def _numbers(trial: Trial, calls: Sequence[Call], rows: Golden) -> Verdict:
    """Compare every output with the truth of its row."""
    truths = [np.asarray(rows.rows[call.row].output, np.float32) for call in calls]
    values = [
        _numbers_of(outputs, tokens=len(rows.rows[call.row].input_ids))
        for outputs, call in zip(trial.outputs, calls, strict=True)
    ]
    timed = calls[timed_call(calls)].function.max_length
    verdict = Verdict(status="wrong", runs=len(calls), p50_ms=round(statistics.median(trial.ms), 3), timed_length=timed)
    for value, truth, call in zip(values, truths, calls, strict=True):
        where = _where(call, rows)
        if value.shape != truth.shape:
            reason = f"{value.size} numbers instead of {truth.size}, {where}"
            return verdict.model_copy(update={"reason": reason})
        if not measures.all_finite(value):
            return verdict.model_copy(update={"reason": f"numbers that are not finite, {where}"})
    if not any(value.any() for value in values):
        return verdict.model_copy(update={"reason": "every output is zero"})
    return _against_gates(verdict, values, truths, calls, rows)


def _against_gates(
    verdict: Verdict,
    values: Sequence[NDArray[np.float32]],
    truths: Sequence[NDArray[np.float32]],
    calls: Sequence[Call],
    rows: Golden,
) -> Verdict:
    """Judge finite outputs of the right shapes; a row that is zero has no direction, and so no cosine that passes."""
    cosines = [
        float(measures.cosine(truth.reshape(1, -1), value.reshape(1, -1))[0])
        for truth, value in zip(truths, values, strict=True)
    ]
    worst = min(range(len(cosines)), key=lambda number: np.nan_to_num(cosines[number], nan=-np.inf))
    sqnr = measures.sqnr_db(_joined(truths), _joined(values))
    reasons = []
    if rows.min_cosine is not None and not cosines[worst] >= rows.min_cosine:
        figure = f"{cosines[worst]:.5f}" if np.isfinite(cosines[worst]) else "none, a row is zero"
        reasons.append(f"worst cosine {figure}, {rows.min_cosine} is asked for, {_where(calls[worst], rows)}")
    if rows.min_sqnr_db is not None and not sqnr >= rows.min_sqnr_db:
        reasons.append(f"SQNR {sqnr:.1f} dB, {rows.min_sqnr_db} is asked for")
    return verdict.model_copy(
        update={
            "status": "wrong" if reasons else "right",
            "reason": "; ".join(reasons),
            "worst_cosine": cosines[worst] if np.isfinite(cosines[worst]) else None,
            "sqnr_db": sqnr if np.isfinite(sqnr) else None,
        }
    )


def _numbers_of(outputs: Sequence[NDArray[np.float32]], *, tokens: int) -> NDArray[np.float32]:
    """Return a row's numbers as the golden rows have them: outputs side by side, of its tokens alone, in one line."""
    value = outputs[0][0] if len(outputs) == 1 else np.stack([output[0] for output in outputs], axis=-1)
    flat: NDArray[np.float32] = (value[:tokens] if value.ndim == 2 else value).reshape(-1)
    return flat


def _joined(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(arrays)


def _where(call: Call, rows: Golden) -> str:
    return f"{rows.rows[call.row].first[:30]!r} at length {call.function.max_length}"


def _line(words: str) -> str:
    return " ".join(words.split())[:300]
