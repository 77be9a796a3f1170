"""Typed latency records of host, Android, iOS and emulated ARM: one JSON a variant and thread count, raw samples kept.

What a machine does not tell is null, never -1. Fields with a default were added after the first records were kept; who
writes a record states them all (`docs/schemas/benchmark-record.schema.json`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.devices.host import Machine
from pipeline.errors import ArtifactError

_TAIL_SAMPLES = 2
"""A percentile is given only where at least so many samples lie beyond it."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelInfo(_Frozen):
    """The file that was measured."""

    id: str
    """Variant name, such as `litert-int8_dynamic`."""
    file: str | None
    sha256: str | None
    """Content digest of the model artifact, which covers the tokenizer too."""
    file_sha256: str | None = None
    """Digest of the model file itself; None for a package of several files."""
    bytes: int | None
    scheme: str
    lengths: list[int] | None
    """The fixed lengths of the file; None where any length runs."""


class BackendInfo(_Frozen):
    """What ran it."""

    runtime: str
    version: str | None = None
    """The runtime's version."""
    delegate: str | None
    compute_units: str | None
    """The compute units that were asked for, as the runtime names them: `GPU`, `CPU_AND_NE`; None for its default."""
    threads: int
    ops_delegated: int | None
    ops_total: int | None
    ops_by_unit: dict[str, int] | None = None
    """Operations of all functions by the unit that computes them, as the system plans it (`Neural Engine`, `GPU`,
    `CPU`); None if it does not tell."""
    share_by_unit: dict[str, float] | None = None
    """Share of the graph that each compute unit runs, as the runtime confirmed it, by the units' own words (`CPU`,
    `GPU`, `NPU`, `Neural Engine`); by estimated cost where the system estimates one, by operations elsewhere. None if
    the runtime confirmed nothing: no table names a unit then."""
    pool_threads: int | None = None
    """Threads of the runtime's process-wide pool after the last run; None for a runtime whose models have their own."""


class Percentiles(_Frozen):
    """Percentiles of samples in ms; None where the samples are too few to tell."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    n: int


class LengthTiming(_Frozen):
    """Runs at one fixed length, tokenisation excluded."""

    seq_len: int
    ran_at: int
    """The length at which the file really ran: the smallest of its own that fits."""
    latencies_ms: list[float]
    """Wall clock, in the order measured."""
    cpu_ms: list[float] | None
    """Processor time of all threads for the same runs."""

    @property
    def wall(self) -> Percentiles:
        """Percentiles of the wall clock."""
        return percentiles(self.latencies_ms)

    @property
    def cpu(self) -> Percentiles:
        """Percentiles of the processor time."""
        return percentiles(self.cpu_ms or [])


class TextTiming(_Frozen):
    """Real texts as they come, each at the smallest length that fits; every pass over all texts in the same order."""

    passes: int
    texts: int
    tokens: list[int]
    """Per text, special tokens included."""
    ran_at: list[int]
    latencies_ms: list[float]
    """Inference alone; `passes × texts` samples, pass by pass."""
    cpu_ms: list[float] | None
    tokenise_ms: list[float]
    """Text to padded arrays, for the same samples."""

    @property
    def wall(self) -> Percentiles:
        """Percentiles of inference alone."""
        return percentiles(self.latencies_ms)

    @property
    def cpu(self) -> Percentiles:
        """Percentiles of the processor time of inference alone."""
        return percentiles(self.cpu_ms or [])

    @property
    def wall_with_tokenisation(self) -> Percentiles:
        """Percentiles of tokenisation and inference together."""
        return percentiles([a + b for a, b in zip(self.latencies_ms, self.tokenise_ms, strict=True)])

    @property
    def mean_ms_per_text(self) -> float:
        """Mean over texts of each text's median pass: one slow pass of a noisy machine does not count."""
        return mean_of_medians(self.latencies_ms, self.passes)

    @property
    def mean_cpu_ms_per_text(self) -> float | None:
        """The same, in processor time."""
        return None if self.cpu_ms is None else mean_of_medians(self.cpu_ms, self.passes)


class ColdStart(_Frozen):
    """What a user waits for when the app was not running."""

    process_to_ready_ms: float | None
    """From the start of the process until the app took the request; None where the system does not tell."""
    tokenizer_ms: float
    """Read the tokenizer, for the first time in the process."""
    load_ms: float
    """As `Timing.load_ms`, for the first time in the process; whether the file cache was cold is not known."""
    first_inference_ms: float


class SustainedPart(_Frozen):
    """A minute, or another equal part, of a sustained run, and the phone's state at its end."""

    begins_s: float
    """Since the sustained run began."""
    seconds: float
    """What it really took: its last inference runs to its end."""
    runs: int
    p50_ms: float | None
    p90_ms: float | None
    thermal: str | None
    temperature_c: float | None
    clocks_mhz: list[int] | None
    battery_charge_uah: int | None
    battery_mv: int | None


class Sustained(_Frozen):
    """One inference after another for as long as was asked: what a phone that grows warm still does."""

    seq_len: int
    ran_at: int
    parts: list[SustainedPart]


class Timing(_Frozen):
    """All times of one record."""

    clock: str
    load_ms: float
    """From the call that opens the file until every function of it can run: weights packed, methods loaded, programs
    compiled or taken from the system's cache. The runtime is imported and the file cache warm."""
    first_inference_ms: float
    """The first run after that, of the first text at the length that it takes."""
    cold_start: ColdStart | None = None
    """None where it was not measured, as on the host, whose workers import the runtime before anything is timed."""
    warmup_runs: int
    lengths: list[LengthTiming]
    texts: TextTiming
    texts_sha256: str | None = None
    """Digest of the texts in UTF-8, each followed by a line feed."""
    sustained: Sustained | None = None
    """None where it was not asked for."""


class Memory(_Frozen):
    """Resident memory of the process; None where the system does not tell."""

    baseline_bytes: int | None
    """Runtime imported, no file open."""
    peak_bytes: int | None
    """Highest point from opening the file to the end of all runs."""
    retained_bytes: int | None = None
    """After the file was closed."""
    kind: Literal["rss", "pss", "footprint"] = "rss"
    """What is counted: resident set (hosts, Android), proportional set, physical footprint (iOS)."""
    pss_baseline_bytes: int | None = None
    """Proportional set, in which a page shared by n processes counts as an nth: before the file is opened. The system
    keeps no peak of it."""
    pss_open_bytes: int | None = None
    """After all runs, the file still open."""
    pss_retained_bytes: int | None = None
    """After the file was closed."""

    @property
    def model_bytes(self) -> int | None:
        """What the model adds: peak less baseline."""
        if self.baseline_bytes is None or self.peak_bytes is None:
            return None
        return self.peak_bytes - self.baseline_bytes


class Conditions(_Frozen):
    """Around the run."""

    thermal_before: str | None
    """The system's own word: `none` to `shutdown` on Android, `nominal` to `critical` on iOS."""
    thermal_after: str | None
    temperature_before_c: float | None = None
    """Degrees Celsius, of what the system lets an app read; on Android the battery."""
    temperature_after_c: float | None = None
    clocks_before_mhz: list[int] | None = None
    """Clock of each core, in the order of the cores."""
    clocks_after_mhz: list[int] | None = None
    governors: list[str] | None = None
    """The kernel's policy for the clock of each core."""
    cores_allowed: list[int] | None = None
    """Cores on which the system lets the process run."""
    low_power: bool | None
    """Whether power saving was on before or after the run."""
    battery_fraction: float | None
    """Before the run, 0 to 1."""
    battery_after_fraction: float | None = None
    battery_charge_before_uah: int | None = None
    """The battery's charge counter, in microampere hours."""
    battery_charge_after_uah: int | None = None
    charging: bool | None
    foreground: bool | None
    """Whether the app was in front all the time: one moment in the background makes it False."""
    busy_before_fraction: float | None
    """Share of all cores that other processes took in the second before the run."""
    load_average_before: float | None
    load_average_after: float | None


class BenchmarkRecord(_Frozen):
    """One variant at one thread count, on one device, in one run."""

    schema_version: Literal[1] = 1
    run_id: str
    started_utc: str
    source: Literal["host", "device", "simulator", "emulated-arm64"]
    """Where it ran. Only `host` and `device` are latency; the latency tables refuse the others."""
    device: Machine
    app: dict[str, str]
    """Versions of PocketBERT and of what ran."""
    model: ModelInfo
    backend: BackendInfo
    timing: Timing
    memory: Memory
    conditions: Conditions
    errors: list[str]
    turns: int = 1
    """Starts of the app over which the samples are spread, the variants taking turns."""


LEAST_SAMPLES = 20
"""Fewer than these of a length are no latency."""
HOT = ("severe", "critical", "emergency", "shutdown", "serious")
"""Thermal states, of Android and of iOS, in which a phone slows its processor."""
_EMULATORS = ("sdk_gphone", "emulator", "qemu", "generic", "cuttlefish", "goldfish", "ranchu", "simulator")
"""Words in the model names of emulated phones."""


def unfit(record: BenchmarkRecord, *, throttled: bool = False) -> str | None:
    """Return the reason why a record may not stand in any table of latencies, or None.

    Args:
        record: of any source.
        throttled: whether a phone may have been hot enough to slow down.
    """
    timing, machine = record.timing, record.device
    samples = [timing.texts.latencies_ms, *(one.latencies_ms for one in timing.lengths)]
    if record.source not in ("device", "host"):
        return f"its source is {record.source}, and only device and host are latencies"
    if record.source == "device" and (posing := _emulator(machine)):
        return f"its source is device, and {posing}: emulators are no latency"
    if any(sample <= 0 for part in samples for sample in part):
        return "a time is not positive: its clock ran backwards"
    if len(timing.texts.latencies_ms) != timing.texts.passes * timing.texts.texts:
        return f"its times of texts are not those of {timing.texts.passes} passes over {timing.texts.texts} texts"
    few = [one.seq_len for one in timing.lengths if len(one.latencies_ms) < LEAST_SAMPLES]
    if few or not timing.lengths:
        return f"it has fewer than {LEAST_SAMPLES} samples at {', '.join(map(str, few)) or 'every length'}"
    if record.conditions.thermal_after in HOT and not throttled:
        return f"the phone was throttled: its thermal state after the run is {record.conditions.thermal_after}"
    return disturbed(record) or _elsewhere(record.backend)


def disturbed(record: BenchmarkRecord) -> str | None:
    """Return the outside influence that changed the speed of the run, or None."""
    backend, conditions = record.backend, record.conditions
    if conditions.foreground is False:
        return "the app was in the background while it ran, where systems slow it; keep it in front and measure again"
    if conditions.low_power:
        return "power saving was on, which slows the processor; switch it off and measure again"
    if backend.pool_threads not in (None, backend.threads):
        return (
            f"{backend.threads} threads were asked for, and the runtime's pool had {backend.pool_threads} at the end: "
            "another model changed it"
        )
    return None


_NAMED_UNITS: Mapping[str, str] = {
    "GPU": "GPU",
    "NPU": "NPU",
    "CPU_AND_GPU": "GPU",
    "CPU_AND_NE": "Neural Engine",
}
"""The unit beside the CPU that each request for compute units names, in the words of `share_by_unit`."""


def _elsewhere(backend: BackendInfo) -> str | None:
    """Say that another unit ran the file than the one asked for, or return None.

    LiteRT and Core ML take what a unit cannot run to the CPU without a word.
    """
    unit = _NAMED_UNITS.get(backend.compute_units or "")
    if unit is None:
        return None
    if backend.share_by_unit is None:
        return f"{backend.compute_units} was asked for, and {backend.runtime} did not confirm what ran it"
    if not backend.share_by_unit.get(unit):
        ran = ", ".join(f"{name} {share:.0%}" for name, share in backend.share_by_unit.items() if share) or "nothing"
        return f"{backend.compute_units} was asked for, and {unit} ran none of it ({ran})"
    return None


def _emulator(machine: Machine) -> str | None:
    """Return the sign that a machine is an emulated phone, or None."""
    words = f"{machine.model_id} {machine.soc or ''}".lower()
    if found := next((word for word in _EMULATORS if word in words), None):
        return f"the machine is called {machine.model_id!r} ({found})"
    if machine.platform in ("android", "ios") and machine.abi.startswith("x86"):
        return f"no {machine.platform} phone has the ABI {machine.abi}"
    return None


def texts_digest(texts: Sequence[str]) -> str:
    """Return the digest of texts, each followed by a line feed."""
    return hashlib.sha256("".join(f"{text}\n" for text in texts).encode("utf-8")).hexdigest()


def percentiles(samples: Sequence[float]) -> Percentiles:
    """Return percentiles of samples in ms, None for those with fewer than two samples beyond them."""
    values = np.asarray(samples, np.float64)

    def at(fraction: float) -> float | None:
        return float(np.quantile(values, fraction)) if values.size * (1 - fraction) >= _TAIL_SAMPLES - 1e-9 else None

    mean = float(values.mean()) if values.size else None
    return Percentiles(p50=at(0.5), p90=at(0.9), p99=at(0.99), mean=mean, n=int(values.size))


def mean_of_medians(samples: Sequence[float], passes: int) -> float:
    """Return the mean over texts of each text's median over passes."""
    return float(np.median(np.asarray(samples, np.float64).reshape(passes, -1), axis=0).mean())


def read_all(folder: Path) -> list[BenchmarkRecord]:
    """Read the records of a benchmark artifact, in the order in which they were listed.

    Raises:
        ArtifactError: they are absent or cannot be read, or one is of no machine whose times are a latency.
    """
    try:
        names = json.loads((folder / "records.json").read_text(encoding="utf-8"))
        records = [BenchmarkRecord.model_validate_json((folder / name).read_bytes()) for name in names]
    except (OSError, ValidationError, json.JSONDecodeError) as error:
        raise ArtifactError(
            f"{folder} holds no readable records; make them again with `pocketbert benchmark`."
        ) from error
    for name, record in zip(names, records, strict=True):
        if record.source not in ("host", "device"):
            raise ArtifactError(f"{folder / name} is no latency: its source is {record.source}. Remove it.")
    return records
