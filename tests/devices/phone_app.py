"""Stands for the demo app on the phone of these tests: real files in the real LiteRT, by the headless contract.

    python phone_app.py RUN_FOLDER PHONE_FOLDER

How it behaves is what the file `behaves` in the phone's folder says. The apps' own code carries runs out in
`make core-check` and `make apps-check`; here it is the way to a phone and back that is tested.
"""

import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from pipeline import strict
from pipeline.artifact import sha256_file
from pipeline.benchmark import timed
from pipeline.benchmark.record import (
    BackendInfo,
    BenchmarkRecord,
    Conditions,
    LengthTiming,
    Memory,
    ModelInfo,
    Sustained,
    SustainedPart,
    TextTiming,
    Timing,
    percentiles,
    texts_digest,
)
from pipeline.benchmark.variants import TimedModel
from pipeline.devices import host
from pipeline.devices.headless import (
    FINAL,
    HEARTBEAT_S,
    MODELS,
    RECORD,
    REQUEST,
    STATUS,
    BenchmarkRequest,
    BenchmarkStatus,
    State,
)
from pipeline.ship.placing import Index

_CONDITIONS = {"goes to the background": {"foreground": False}, "saves power": {"low_power": True}}
"""What the record of an app says that behaves so."""


class App:
    """One run."""

    def __init__(self, folder: Path, behaves: str) -> None:
        """Read the request."""
        self.folder = folder
        self.behaves = behaves
        self.beats = 0
        self.said: tuple[State, float, str, str | None] | None = None
        self.lock = threading.Lock()
        self.request = strict.read(BenchmarkRequest, (folder / REQUEST).read_bytes())

    def tell(self, state: State, done: float, doing: str, message: str | None = None) -> None:
        """Write the status."""
        with self.lock:
            self.said = (state, done, doing, message)
            self._write(*self.said)

    def beat(self) -> None:
        """Say again what was said, as the apps do: on a busy machine opening a model takes longer than a heartbeat."""
        while True:
            time.sleep(HEARTBEAT_S / 2)
            with self.lock:
                if self.said is not None and self.said[0] not in FINAL:
                    self._write(*self.said)

    def _write(self, state: State, done: float, doing: str, message: str | None) -> None:
        """Write the status in one rename."""
        self.beats += 1
        said = BenchmarkStatus(
            run_id=self.folder.name, state=state, done=done, doing=doing, message=message, beats=self.beats
        )
        aside = self.folder / f"{STATUS}.new"
        aside.write_text(said.model_dump_json())
        aside.rename(self.folder / STATUS)

    def run(self) -> None:
        """Measure, or behave as it was told."""
        if self.behaves == "says nothing":
            time.sleep(60)
        self.tell("running", 0.1, "opening the model")
        if self.behaves == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.behaves == "stands still":
            time.sleep(60)
        threading.Thread(target=self.beat, daemon=True).start()
        if self.behaves == "is hot":
            self.tell("too_hot", 0.1, "too hot", "it did not cool down to 37 °C")
            return
        if self.behaves == "is slow":
            for step in range(12):
                time.sleep(0.5)
                self.tell("running", 0.1 + 0.05 * step, f"step {step}")
        record = self.measured()
        if self.behaves == "poses":
            record = record.model_copy(update={"source": "emulated-arm64"})
        if self.behaves == "mixes up":
            record = record.model_copy(update={"model": record.model.model_copy(update={"sha256": "0" * 64})})
        if self.behaves in _CONDITIONS:
            changed = record.conditions.model_copy(update=_CONDITIONS[self.behaves])
            record = record.model_copy(update={"conditions": changed})
        if self.behaves == "shares its pool":
            pool = {"pool_threads": self.request.threads + 3}
            record = record.model_copy(update={"backend": record.backend.model_copy(update=pool)})
        (self.folder / RECORD).write_text(record.model_dump_json())
        self.tell("finished", 1.0, "finished")

    def measured(self) -> BenchmarkRecord:
        """Time the pushed model in the real runtime."""
        asked = self.request
        root = self.folder / MODELS
        entry = next(
            one for one in strict.read(Index, (root / "models.json").read_bytes()).models if one.folder == asked.model
        )
        place = root / entry.folder
        opened = timed.open_variant(lambda: TimedModel(place, asked.threads), asked.texts[0])
        lengths = []
        for length in asked.lengths:
            least = asked.rounds * asked.runs_per_round
            ran_at, wall, cpu = timed.time_length(length, "ocean", asked.round_ms, least)
            lengths.append(LengthTiming(seq_len=length, ran_at=ran_at, latencies_ms=wall, cpu_ms=cpu))
            self.tell("running", 0.5, f"length {length}")
        tokens: list[int] = []
        at: list[int] = []
        walls: list[float] = []
        cpus: list[float] = []
        tokenise: list[float] = []
        for _ in range(asked.text_passes):
            tokens, at, wall, cpu, spent = timed.time_texts(asked.texts)
            walls, cpus, tokenise = walls + wall, cpus + cpu, tokenise + spent
        sustained = self.sustained(max(asked.lengths)) if asked.sustained_s else None
        file = next(place.glob("model.*"))
        peak, retained = timed.peak_bytes(), timed.close_variant()
        return BenchmarkRecord(
            run_id=asked.run_id,
            started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            source="device",
            device=host.describe(),
            app={"app": "the stand-in of PocketBERT's tests"},
            model=ModelInfo(
                id=asked.model, file=file.name, sha256=entry.digest, file_sha256=sha256_file(file), bytes=entry.bytes,
                scheme=entry.scheme, lengths=None,
            ),
            backend=BackendInfo(
                runtime="LiteRT", version=None, delegate="XNNPACK", compute_units=asked.compute_units,
                threads=asked.threads, ops_delegated=None, ops_total=None,
                # Whatever was asked for: this is a runtime without a GPU, and it says what ran.
                share_by_unit={"CPU": 1.0},
            ),
            timing=Timing(
                clock="time.perf_counter", load_ms=opened.load_ms, first_inference_ms=opened.first_inference_ms,
                warmup_runs=1, lengths=lengths, texts_sha256=texts_digest(asked.texts),
                sustained=sustained,
                texts=TextTiming(
                    passes=asked.text_passes, texts=len(asked.texts), tokens=tokens, ran_at=at, latencies_ms=walls,
                    cpu_ms=cpus, tokenise_ms=tokenise,
                ),
            ),
            memory=Memory(baseline_bytes=opened.baseline_bytes, peak_bytes=peak, retained_bytes=retained),
            conditions=Conditions(
                thermal_before="none", thermal_after="none", low_power=False, battery_fraction=0.8, charging=True,
                foreground=True, busy_before_fraction=None, load_average_before=None, load_average_after=None,
            ),
            errors=[],
        )  # fmt: skip

    def sustained(self, length: int) -> Sustained:
        """Run without a pause, in parts."""
        asked, parts, began, begins = self.request, [], time.monotonic(), 0.0
        ran_at = length
        while begins < asked.sustained_s:
            until, wall = min(begins + asked.sustained_part_s, asked.sustained_s), list[float]()
            while (ends := time.monotonic() - began) < until:
                ran_at, more, _ = timed.time_length(length, "ocean", 1.0, 1)
                wall += more
                self.tell("running", 0.9, f"sustained, {ends:.0f} s")
            found = percentiles(wall)
            parts.append(
                SustainedPart(
                    begins_s=begins,
                    seconds=ends - begins,
                    runs=len(wall),
                    p50_ms=found.p50,
                    p90_ms=found.p90,
                    thermal="none",
                    temperature_c=None,
                    clocks_mhz=None,
                    battery_charge_uah=None,
                    battery_mv=None,
                )
            )
            begins = ends
        return Sustained(seq_len=length, ran_at=ran_at, parts=parts)


if __name__ == "__main__":
    how = Path(sys.argv[2], "behaves")
    App(Path(sys.argv[1]), how.read_text().strip() if how.is_file() else "").run()
