"""Benchmark stage: every variant in its own process, taking turns, so that a machine that drifts hurts all alike.

`record.py` is what is written down, `timed.py` runs inside the workers, `variants.py` says what is timed.
"""

import importlib.metadata
import json
import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pipeline.artifact import sha256_file
from pipeline.benchmark import timed
from pipeline.benchmark.record import (
    BackendInfo,
    BenchmarkRecord,
    Conditions,
    LengthTiming,
    Memory,
    ModelInfo,
    TextTiming,
    Timing,
    read_all,
    texts_digest,
)
from pipeline.benchmark.variants import Variant, of_student, of_target
from pipeline.devices import host
from pipeline.execution.worker import Worker
from pipeline.recipe.schema import BenchmarkSection

__all__ = ["VERSION", "BenchmarkRecord", "Variant", "make", "measure", "of_student", "of_target", "read_all"]

VERSION = 2
_WARMUP_PASSES = 1
_STARTING = 2
"""Processes that import their runtimes beside each other, before anything is timed."""
_WORD = "ocean"
"""One WordPiece token in every vocabulary at hand; a row of n of them is a full row of n tokens."""

Tell = Callable[[str, float], None]
"""Progress callback `(step, fraction done)`."""


@dataclass
class _Running:
    """A variant that is open in a worker, and its samples so far."""

    variant: Variant
    threads: int
    worker: Worker
    opened: timed.LoadTimes
    ran_at: dict[int, int] = field(default_factory=dict)
    wall: dict[int, list[float]] = field(default_factory=dict)
    cpu: dict[int, list[float]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    text_ran_at: list[int] = field(default_factory=list)
    text_wall: list[float] = field(default_factory=list)
    text_cpu: list[float] = field(default_factory=list)
    tokenise: list[float] = field(default_factory=list)


def make(
    variants: Sequence[Variant],
    lengths: Sequence[int],
    texts: Sequence[str],
    threads: Sequence[int],
    settings: BenchmarkSection,
    out: Path,
    *,
    log: Path,
    tell: Tell,
) -> dict[str, Any]:
    """Measure all variants and write one record each per thread count.

    Args:
        variants: what to time.
        lengths: full rows of these lengths are timed.
        texts: real texts, timed as they come.
        threads: thread counts; each is a run of its own over all variants.
        settings: the recipe's rounds and budgets.
        out: the artifact's directory.
        log: where the runtimes' own words go.
        tell: called with what is being done and the fraction done.

    Returns:
        Median wall time at the longest length, and mean over the texts, per record.
    """
    names = []
    summary = {}
    for number, count in enumerate(threads):
        share = partial(_part, tell, number, len(threads))
        for record in measure(variants, lengths, texts, count, settings, log=log, tell=share):
            name = f"{record.model.id}-threads{record.backend.threads}.json"
            (out / name).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
            names.append(name)
            summary[name.removesuffix(".json")] = {
                "p50_ms_longest": record.timing.lengths[-1].wall.p50,
                "mean_ms_per_text": record.timing.texts.mean_ms_per_text,
            }
    (out / "records.json").write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
    return {"records": summary}


def _part(tell: Tell, number: int, parts: int, what: str, fraction: float) -> None:
    tell(what, (number + fraction) / parts)


def measure(
    variants: Sequence[Variant],
    lengths: Sequence[int],
    texts: Sequence[str],
    threads: int,
    settings: BenchmarkSection,
    *,
    log: Path,
    tell: Tell,
) -> list[BenchmarkRecord]:
    """Run all variants at one thread count, interleaved, and return their records."""
    before = _Moment.now()
    workers = [Worker(log) for _ in variants]
    try:
        tell(f"starting {len(variants)} processes, {threads} thread{'s' if threads > 1 else ''}", 0.0)
        with ThreadPoolExecutor(_STARTING) as pool:
            list(pool.map(lambda one, variant: one.call(timed.prepare, variant.import_runtime), workers, variants))
        before = replace(before, busy=psutil.cpu_percent(interval=1.0) / 100)
        running = [_open(*pair, threads, texts[0]) for pair in zip(variants, workers, strict=True)]
        _time_lengths(running, lengths, settings, tell)
        _time_texts(running, texts, settings, tell)
        run = _Run(uuid.uuid4().hex[:12], before, _Moment.now(), texts_digest(texts))
        return [_record(one, run, settings) for one in running]
    finally:
        for worker in workers:
            worker.close()


def _open(variant: Variant, worker: Worker, threads: int, text: str) -> _Running:
    opened = worker.call(timed.open_variant, partial(variant.open_with_threads, threads), text)
    return _Running(variant, threads, worker, opened)


def _time_lengths(running: list[_Running], lengths: Sequence[int], settings: BenchmarkSection, tell: Tell) -> None:
    """Rounds over lengths and variants; the order of the variants turns from round to round."""
    for turn in range(settings.rounds):
        for length in lengths:
            tell(f"length {length}, round {turn + 1} of {settings.rounds}", 0.8 * turn / settings.rounds)
            for one in _turned(running, turn):
                ran_at, wall, cpu = one.worker.call(
                    timed.time_length, length, _WORD, settings.block_ms, settings.runs_per_block
                )
                one.ran_at[length] = ran_at
                one.wall.setdefault(length, []).extend(wall)
                one.cpu.setdefault(length, []).extend(cpu)


def _time_texts(running: list[_Running], texts: Sequence[str], settings: BenchmarkSection, tell: Tell) -> None:
    """Passes over all texts; the first is for warming up and is not kept."""
    for turn in range(settings.text_passes + _WARMUP_PASSES):
        tell(
            f"texts, pass {turn} of {settings.text_passes}", 0.8 + 0.2 * turn / (settings.text_passes + _WARMUP_PASSES)
        )
        for one in _turned(running, turn):
            tokens, ran_at, wall, cpu, tokenise = one.worker.call(timed.time_texts, texts)
            if turn < _WARMUP_PASSES:
                continue
            one.tokens, one.text_ran_at = tokens, ran_at
            one.text_wall += wall
            one.text_cpu += cpu
            one.tokenise += tokenise


def _turned(running: list[_Running], turn: int) -> list[_Running]:
    start = turn % len(running)
    return running[start:] + running[:start]


@dataclass(frozen=True)
class _Moment:
    """The machine's state before or after the run."""

    utc: str
    load: float | None
    temperature_c: float | None
    clocks_mhz: list[int] | None
    battery_fraction: float | None
    charging: bool | None
    busy: float | None = None

    @classmethod
    def now(cls) -> "_Moment":
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        return cls(
            utc=datetime.now(UTC).isoformat(timespec="seconds"),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            temperature_c=host.temperature_c(),
            clocks_mhz=host.clocks_mhz(),
            battery_fraction=battery.percent / 100 if battery else None,
            charging=battery.power_plugged if battery else None,
        )


@dataclass(frozen=True)
class _Run:
    """The values that all records of one run share."""

    id: str
    before: _Moment
    after: _Moment
    texts_sha256: str


def _record(one: _Running, run: _Run, settings: BenchmarkSection) -> BenchmarkRecord:
    variant = one.variant
    peak = one.worker.call(timed.peak_bytes)
    retained = one.worker.call(timed.close_variant)
    return BenchmarkRecord(
        run_id=run.id,
        started_utc=run.before.utc,
        source="host",
        device=host.describe(),
        app=_versions(),
        model=ModelInfo(
            id=variant.id,
            file=variant.file.name if variant.file else None,
            sha256=variant.sha256,
            file_sha256=sha256_file(variant.file) if variant.file and variant.file.is_file() else None,
            bytes=variant.bytes,
            scheme=variant.scheme,
            lengths=list(variant.lengths) if variant.lengths else None,
        ),
        backend=BackendInfo(
            runtime=variant.runtime,
            version=_version(variant.distribution) if variant.distribution else None,
            delegate=variant.delegate,
            compute_units=None,
            threads=one.threads,
            ops_delegated=variant.ops_delegated,
            ops_total=variant.ops_total,
        ),
        timing=Timing(
            clock="time.perf_counter (wall), time.process_time (cpu, all threads)",
            load_ms=one.opened.load_ms,
            first_inference_ms=one.opened.first_inference_ms,
            warmup_runs=settings.rounds,
            lengths=[
                LengthTiming(
                    seq_len=length,
                    ran_at=one.ran_at[length],
                    latencies_ms=_rounded(wall),
                    cpu_ms=_rounded(one.cpu[length]),
                )
                for length, wall in one.wall.items()
            ],
            texts=TextTiming(
                passes=settings.text_passes,
                texts=len(one.tokens),
                tokens=one.tokens,
                ran_at=one.text_ran_at,
                latencies_ms=_rounded(one.text_wall),
                cpu_ms=_rounded(one.text_cpu),
                tokenise_ms=_rounded(one.tokenise),
            ),
            texts_sha256=run.texts_sha256,
        ),
        memory=Memory(baseline_bytes=one.opened.baseline_bytes, peak_bytes=peak, retained_bytes=retained),
        conditions=_conditions(run.before, run.after),
        errors=[],
    )


def _conditions(before: _Moment, after: _Moment) -> Conditions:
    return Conditions(
        thermal_before=None,
        thermal_after=None,
        temperature_before_c=before.temperature_c,
        temperature_after_c=after.temperature_c,
        clocks_before_mhz=before.clocks_mhz,
        clocks_after_mhz=after.clocks_mhz,
        low_power=None,
        battery_fraction=before.battery_fraction,
        battery_after_fraction=after.battery_fraction,
        charging=before.charging,
        foreground=None,
        busy_before_fraction=before.busy,
        load_average_before=before.load,
        load_average_after=after.load,
    )


def _rounded(samples: Sequence[float]) -> list[float]:
    """Keep tenths of a microsecond; more is noise and makes the records large."""
    return [round(sample, 4) for sample in samples]


def _versions() -> dict[str, str]:
    names = ("pocketbert", "torch", "transformers", "ai-edge-litert", "executorch", "coremltools")
    return {name: version for name in names if (version := _version(name)) is not None}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
