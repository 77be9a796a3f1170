"""Pool the records of several app starts of one file into one record; the variants took turns."""

from collections.abc import Sequence
from statistics import median

from pipeline.benchmark.record import BackendInfo, BenchmarkRecord, Conditions, LengthTiming, TextTiming, Timing

_COOLEST_FIRST = (
    *("none", "nominal", "light", "fair", "moderate"),
    *("serious", "severe", "critical", "emergency", "shutdown"),
)
"""Thermal states of Android and iOS, in the order in which a phone goes through them."""


def pool(parts: Sequence[BenchmarkRecord], run_id: str) -> BenchmarkRecord:
    """Return the record of all turns: samples in the order in which they were measured.

    Load times and first inferences are medians over the turns; a cold start is the first turn's. Memory is that of the
    turn with the highest peak. The conditions are those before the first and after the last turn, the thermal state the
    warmest after any of them; a moment in the background or of power saving in any turn is one of the whole.

    Args:
        parts: one record of each turn.
        run_id: what they have in common.

    Raises:
        ValueError: they are not of one model, machine, runtime and set of texts.
    """
    first = parts[0]
    for part in parts[1:]:
        for name, one, other in (
            ("model", first.model, part.model),
            ("device", first.device, part.device),
            ("runtime", _runtime(first), _runtime(part)),
            ("app", first.app, part.app),
            ("set of texts", first.timing.texts_sha256, part.timing.texts_sha256),
            ("list of lengths", _lengths(first), _lengths(part)),
            ("tokenisation", first.timing.texts.tokens, part.timing.texts.tokens),
        ):
            if one != other:
                raise ValueError(f"its turns are not of one {name}")
    timings = [part.timing for part in parts]
    return first.model_copy(
        update={
            "run_id": run_id,
            "timing": Timing(
                clock=first.timing.clock,
                load_ms=median(one.load_ms for one in timings),
                first_inference_ms=median(one.first_inference_ms for one in timings),
                cold_start=first.timing.cold_start,
                warmup_runs=sum(one.warmup_runs for one in timings),
                lengths=[_of_length(rows) for rows in zip(*(one.lengths for one in timings), strict=True)],
                texts=_of_texts([one.texts for one in timings]),
                texts_sha256=first.timing.texts_sha256,
                sustained=next((one.sustained for one in timings if one.sustained is not None), None),
            ),
            "backend": _backend([part.backend for part in parts]),
            "memory": max((part.memory for part in parts), key=lambda memory: memory.peak_bytes or 0),
            "conditions": _conditions([part.conditions for part in parts]),
            "errors": [error for part in parts for error in part.errors],
            "turns": len(parts),
        }
    )


def _runtime(record: BenchmarkRecord) -> tuple[object, ...]:
    backend = record.backend
    return backend.runtime, backend.version, backend.compute_units, backend.threads


def _backend(parts: Sequence[BackendInfo]) -> BackendInfo:
    """Merge the runtime's facts over turns, which plan anew each time: each compute unit's share is its least one."""
    first = parts[0]
    shares = [part.share_by_unit for part in parts]
    known = [one for one in shares if one is not None]
    least = {unit: min(one.get(unit, 0.0) for one in known) for unit in known[0]} if len(known) == len(shares) else None
    counts = first.ops_by_unit if all(part.ops_by_unit == first.ops_by_unit for part in parts) else None
    pools = [part.pool_threads for part in parts]
    changed = next((one for one in pools if one != first.threads), first.threads)
    return first.model_copy(
        update={
            "share_by_unit": least,
            "ops_by_unit": counts,
            "pool_threads": None if None in pools else changed,
        }
    )


def _lengths(record: BenchmarkRecord) -> list[tuple[int, int]]:
    return [(one.seq_len, one.ran_at) for one in record.timing.lengths]


def _of_length(rows: Sequence[LengthTiming]) -> LengthTiming:
    cpu = [row.cpu_ms for row in rows]
    return rows[0].model_copy(
        update={"latencies_ms": _joined([row.latencies_ms for row in rows]), "cpu_ms": _joined_or_none(cpu)}
    )


def _of_texts(rows: Sequence[TextTiming]) -> TextTiming:
    return rows[0].model_copy(
        update={
            "passes": sum(row.passes for row in rows),
            "latencies_ms": _joined([row.latencies_ms for row in rows]),
            "cpu_ms": _joined_or_none([row.cpu_ms for row in rows]),
            "tokenise_ms": _joined([row.tokenise_ms for row in rows]),
        }
    )


def _joined(samples: Sequence[list[float]]) -> list[float]:
    return [sample for part in samples for sample in part]


def _joined_or_none(samples: Sequence[list[float] | None]) -> list[float] | None:
    known = [part for part in samples if part is not None]
    return _joined(known) if len(known) == len(samples) else None


def _conditions(moments: Sequence[Conditions]) -> Conditions:
    last = moments[-1]
    states = [one.thermal_after for one in moments if one.thermal_after is not None]
    after = {
        name: getattr(last, name)
        for name in Conditions.model_fields
        if "_after" in name or name in ("governors", "cores_allowed")
    }
    # What disturbed one turn has disturbed the whole.
    worst = {
        "thermal_after": max(states, key=_warmth, default=None),
        "foreground": _worst([one.foreground for one in moments], bad=False),
        "low_power": _worst([one.low_power for one in moments], bad=True),
    }
    return moments[0].model_copy(update=after | worst)


def _worst(moments: Sequence[bool | None], *, bad: bool) -> bool | None:
    """Return the bad value if any turn has it, else None if a turn's value is unknown, else the good value."""
    return bad if bad in moments else None if None in moments else not bad


def _warmth(state: str) -> int:
    """Return the rank of a thermal state, the coolest first; an unknown state counts as the warmest."""
    return _COOLEST_FIRST.index(state) if state in _COOLEST_FIRST else len(_COOLEST_FIRST)
