"""What is asked of phones, how they are watched, what their records are made into, and which are refused."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adbutils import AdbClient
from apps import schemas

from pipeline import formats
from pipeline.benchmark.pooling import pool
from pipeline.benchmark.record import BenchmarkRecord, SustainedPart, unfit
from pipeline.benchmark.sustained import Energy, energy, slowdown
from pipeline.convert.stage import Target
from pipeline.devices import adb, transport
from pipeline.devices.headless import BenchmarkRequest, BenchmarkStatus, State
from pipeline.devices.table import Device
from pipeline.devices.transport import DeviceError, Patience
from pipeline.formats import signature
from pipeline.recipe.schema import BenchmarkSection
from pipeline.ship import phones
from pipeline.ship.placing import ShippedModel


def changed(**changes: Any) -> BenchmarkRecord:
    """Return a record of a phone, with parts of it replaced: `timing__load_ms=2.0`."""
    document = schemas.record().model_dump()
    for name, value in changes.items():
        *parents, last = name.split("__")
        here = document
        for parent in parents:
            here = here[parent]
        here[last] = value
    return BenchmarkRecord.model_validate(document)


def test_turns_are_put_together_in_their_order() -> None:
    first = changed(conditions__thermal_after="light", timing__load_ms=1.0)
    second = changed(
        timing__load_ms=5.0,
        timing__lengths=[{"seq_len": 16, "ran_at": 16, "latencies_ms": [3.0], "cpu_ms": [2.0]}],
        timing__texts={**first.timing.texts.model_dump(), "latencies_ms": [7.0], "cpu_ms": [1.0]},
        timing__sustained=None,
        memory={"baseline_bytes": 5, "peak_bytes": 9, "retained_bytes": 6, "kind": "rss"},
        conditions__thermal_after="none",
        conditions__temperature_after_c=33.0,
    )
    whole = pool([first, second], "both")
    assert (whole.run_id, whole.turns) == ("both", 2)
    assert [one.latencies_ms for one in whole.timing.lengths] == [[1.5, 2.0, 3.0]]
    assert whole.timing.texts.latencies_ms == [1.0, 7.0]
    assert whole.timing.texts.tokenise_ms == [0.1, 0.1]
    # One turn without processor time leaves none for the whole.
    assert whole.timing.texts.cpu_ms is None
    assert whole.timing.texts.passes == 2
    assert whole.timing.load_ms == 3.0
    assert whole.timing.sustained == first.timing.sustained
    assert whole.memory.peak_bytes == 9
    assert (whole.conditions.thermal_before, whole.conditions.thermal_after) == ("none", "light")
    assert whole.conditions.temperature_after_c == 33.0
    assert pool([first, changed(conditions__thermal_after="serious")], "both").conditions.thermal_after == "serious"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model__sha256": "1"}, "model"),
        ({"device__os": "Android 16"}, "device"),
        ({"backend__threads": 2}, "runtime"),
        ({"app": {"pocketbert": "0.2.0"}}, "app"),
        ({"timing__texts_sha256": "1"}, "set of texts"),
        ({"timing__lengths": []}, "list of lengths"),
        ({"timing__texts__tokens": [4]}, "tokenisation"),
    ],
)
def test_turns_of_two_runs_are_not_put_together(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"its turns are not of one {said}"):
        pool([changed(), changed(**change)], "both")


def _parts(charges: list[int | None], *, mv: int | None = 4000, runs: int = 100) -> list[dict[str, Any]]:
    empty = dict.fromkeys(SustainedPart.model_fields)
    return [
        {**empty, "begins_s": 60.0 * place, "seconds": 60.0, "runs": runs, "p50_ms": 10.0 + place,
         "battery_charge_uah": charge, "battery_mv": mv}
        for place, charge in enumerate(charges)
    ]  # fmt: skip


def _sustained(charges: list[int | None], *, charging: bool | None = False, mv: int | None = 4000) -> BenchmarkRecord:
    ran = {"seq_len": 128, "ran_at": 128, "parts": _parts(charges, mv=mv)}
    return changed(timing__sustained=ran, conditions__charging=charging)


def test_the_energy_of_an_inference_and_the_step_of_its_counter() -> None:
    charges: list[int | None] = [3_000_000 - 1000 * step for step in range(21)]
    found = energy(_sustained(charges))
    assert isinstance(found, Energy)
    # 20 mAh at 4 V are 288 J, spread over the 2,000 inferences of the last twenty parts.
    assert found.millijoules == pytest.approx(144.0)
    assert found.resolution_millijoules == pytest.approx(7.2)
    assert found.runs == 2000
    ran = _sustained(charges).timing.sustained
    assert ran is not None
    assert slowdown(ran) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (changed(timing__sustained=None), "no sustained run was asked for"),
        (_sustained([3, 2], charging=True), "the phone was charging"),
        (_sustained([3, 2], charging=None), "does not tell whether it was charging"),
        (_sustained([3, None]), "has no charge counter"),
        (_sustained([3, 2], mv=None), "does not tell its voltage"),
        (_sustained([3_000_000] * 5), "moved by 0 steps, and 10 are the least"),
        (_sustained([3_000_000, 2_900_000, 2_900_000, 2_800_000]), "moved by 2 steps, and 10 are the least"),
        # A counter that rises counts nothing that was used.
        (_sustained([2_000_000 + 1000 * step for step in range(21)]), "moved by -20 steps"),
    ],
)
def test_energy_that_was_not_measured_is_said_to_be_so(record: BenchmarkRecord, said: str) -> None:
    assert said in str(energy(record))


@contextmanager
def _server(devices: str) -> Iterator[int]:
    """Answer as adb's server does when it is asked for its devices; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    asked = connection.recv(int(connection.recv(4), 16)).decode()
                    assert asked in ("host:devices-l", "host:version"), asked
                    said = devices if asked == "host:devices-l" else "0029"
                    connection.sendall(f"OKAY{len(said):04x}{said}".encode())

        threading.Thread(target=answer, daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)


PIXEL = "37220DLJH001AB         {state} usb:1-2 transport_id:3\n"
"""A line of `adb devices -l`. RECORDED from Android's documentation and adb's source, not from a phone of ours."""
GALAXY = "R5CT30XYZAB            device usb:1-4 product:a52q model:SM_A525F device:a52q transport_id:4\n"
STATES = {
    "unauthorized": "pixel (37220DLJH001AB) does not trust this computer: unlock it and tap Allow",
    "offline": "is offline: pull the cable",
    "no permissions; see [http://developer.android.com/tools/device.html]": "see the udev rules",
    "recovery": "is in the state recovery",
}


@pytest.mark.parametrize("state", STATES)
def test_a_phone_that_cannot_be_used_is_told_from_one_that_is_not_there(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Device(name="pixel", transport="adb", summary="a phone")
    with _server(PIXEL.format(state=state)) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        with pytest.raises(DeviceError) as raised:
            adb.AndroidPhone(row)
    assert STATES[state] in str(raised.value)
    assert raised.value.exit_code == 3


def test_two_phones_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Device(name="pixel", transport="adb", summary="a phone")
    with _server(PIXEL.format(state="device") + GALAXY) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert [one.model for one in adb.attached()] == [None, "SM A525F"]
        with pytest.raises(DeviceError, match=r"several phones are attached: 37220DLJH001AB \(device\), R5CT30XYZAB"):
            adb.AndroidPhone(row)
        adb.AndroidPhone(row.model_copy(update={"serial": "R5CT30XYZAB"}))


def _clean(**changes: Any) -> BenchmarkRecord:
    """Return a record that a table takes, with parts of it replaced."""
    length = {"seq_len": 16, "ran_at": 16, "latencies_ms": [1.0] * 20, "cpu_ms": None}
    return changed(**{"timing__lengths": [length], "device__model_id": "Pixel 8", **changes})


def _ran(asked: str | None, **shares: float) -> dict[str, Any]:
    named = {name.replace("_", " "): share for name, share in shares.items()}
    return {"backend__compute_units": asked, "backend__share_by_unit": named}


REFUSED: dict[str, dict[str, Any]] = {
    "the app was in the background while it ran": {"conditions__foreground": False},
    "power saving was on, which slows the processor": {"conditions__low_power": True},
    "1 threads were asked for, and the runtime's pool had 4 at the end": {"backend__pool_threads": 4},
    "GPU was asked for, and LiteRT did not confirm what ran it": {"backend__compute_units": "GPU"},
    "GPU was asked for, and GPU ran none of it (CPU 100%)": _ran("GPU", CPU=1.0),
    "GPU was asked for, and GPU ran none of it (nothing)": _ran("GPU"),
    "NPU was asked for, and NPU ran none of it (CPU 20%, GPU 80%)": _ran("NPU", CPU=0.2, GPU=0.8, NPU=0.0),
    "CPU_AND_GPU was asked for, and GPU ran none of it (CPU 100%)": _ran("CPU_AND_GPU", CPU=1.0),
    "CPU_AND_NE was asked for, and Neural Engine ran none of it (CPU 100%)": _ran("CPU_AND_NE", CPU=1.0),
}
TAKEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "what it does not tell": {"conditions__foreground": None, "conditions__low_power": None},
    "its own pool": {"backend__pool_threads": 1},
    "the default's unit": _ran(None, CPU=1.0),
    "a choice of all": _ran("ALL", CPU=1.0),
    "the processor alone": {"backend__compute_units": "CPU_ONLY"},
    "a part on the unit": _ran("CPU_AND_NE", CPU=0.9, Neural_Engine=0.1),
    "all of it on the unit": _ran("GPU", GPU=1.0),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_record_that_would_mislead_is_in_no_table(said: str) -> None:
    assert said in str(unfit(_clean(**REFUSED[said])))
    # Who takes throttled phones does not take these.
    assert said in str(unfit(_clean(**REFUSED[said]), throttled=True))


@pytest.mark.parametrize("what", TAKEN)
def test_a_record_of_what_was_asked_for_is_taken(what: str) -> None:
    assert unfit(_clean(**TAKEN[what])) is None


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_what_disturbed_one_turn_has_disturbed_the_whole(turn: int) -> None:
    changes: list[dict[str, Any]] = [{"conditions__foreground": False}, {"conditions__low_power": True}]
    for change in changes:
        whole = pool([_clean(**(change if place == turn else {})) for place in range(3)], "all")
        assert unfit(whole) == unfit(_clean(**change))
    assert unfit(pool([_clean()] * 3, "all")) is None


def test_a_unit_is_confirmed_as_far_as_every_turn_confirms_it() -> None:
    def turn(**shares: float) -> BenchmarkRecord:
        return _clean(backend__compute_units="CPU_AND_GPU", backend__share_by_unit=shares or None)

    # A compute plan is made anew by each turn's process.
    whole = pool([turn(GPU=0.9, CPU=0.1), turn(GPU=0.8999, CPU=0.1001)], "all")
    assert whole.backend.share_by_unit == {"GPU": 0.8999, "CPU": 0.1}
    assert unfit(whole) is None
    assert pool([turn(GPU=0.9, CPU=0.1), turn()], "all").backend.share_by_unit is None
    assert "GPU ran none of it" in str(unfit(pool([turn(GPU=0.9, CPU=0.1), turn(GPU=0.0, CPU=1.0)], "all")))
    changed = pool(
        [_clean(backend__pool_threads=1), _clean(backend__pool_threads=4), _clean(backend__pool_threads=1)], "all"
    )
    assert "pool had 4" in str(unfit(changed))


def _shipped(**changes: Any) -> ShippedModel:
    given = {name: None for name in ("evaluator", "licence")} | {
        "recipe": "tiny", "target": "coreml-fp16", "backend": "coreml", "scheme": "fp16", "task": "embedding",
        "verdict": "passed", "reasons": [], "digest": "0", "files": [], "bytes": 1,
    }  # fmt: skip
    return ShippedModel.model_validate(given | changes)


IPHONE = Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"})
PHONE = Device.model_validate({"name": "pixel", "transport": "adb", "summary": "a phone"})


def test_units_on_which_no_such_file_has_passed_are_not_asked_for() -> None:
    coreml, litert = Target("coreml", "fp16"), Target("litert", "fp32")
    told: list[str] = []

    def units(target: Target, shipped: ShippedModel, device: Device) -> list[str | None]:
        return list(phones._units(target, shipped, device, lambda what, _: told.append(what)))

    every = _shipped(compute_units=["ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY"])
    assert units(coreml, every, IPHONE) == ["ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY"]
    assert units(litert, _shipped(compute_units=["CPU"]), PHONE) == [None]
    assert not told
    few = _shipped(compute_units=["CPU_ONLY"], untried_units={"CPU_AND_NE": "Nobody tried."})
    assert units(coreml, few, IPHONE) == ["CPU_ONLY"]
    # None of the row's units: the file's default, under its own name.
    ane = IPHONE.model_copy(update={"compute_units": ("CPU_AND_NE",)})
    assert units(coreml, few, ane) == ["CPU_ONLY"]
    assert told == [
        "coreml-fp16 is not measured on ALL, CPU_AND_NE, CPU_AND_GPU: no such file has passed there",
        "coreml-fp16 is not measured on CPU_AND_NE: no such file has passed there",
    ]


def test_a_request_says_until_when_a_phone_cools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(signature, "read", lambda path: SimpleNamespace(max_length=64))
    model: Any = SimpleNamespace(path=tmp_path, digest="0")

    def asked(device: Device, units: Any = None) -> BenchmarkRequest:
        settings = BenchmarkSection(lengths=(16, 128))
        return phones.requests_of(settings, model, _shipped(), ["A text."], device, units=units)[0]

    android, ios = asked(PHONE), asked(IPHONE, "CPU_ONLY")
    assert (android.start_below_c, android.start_thermal, android.compute_units) == (37.0, None, None)
    assert (ios.start_below_c, ios.start_thermal, ios.compute_units) == (None, "nominal", "CPU_ONLY")
    assert ios.lengths == [16]
    assert ios.run_id != asked(IPHONE, "ALL").run_id


class Watched:
    """A phone whose app runs by a clock of the test's: it cools for 30 s, and measures for 300 s."""

    name = "mine"

    def __init__(self) -> None:
        """Begin at nothing, and without a run."""
        self.now = 0.0
        self.began: float | None = None
        self.looked: list[float] = []
        """When its status was read."""
        self.dies_at: float | None = None

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def check(self, room_bytes: int) -> None:
        """Have room."""

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Any) -> None:
        """Take what is sent."""

    def start(self, run: str) -> None:
        """Begin."""
        self.began = self.now

    def read(self, run: str, file: str) -> bytes | None:
        """Say how far the run is, or give its record."""
        if self.began is None:
            return None
        if file == "record.json":
            return b"a record"
        self.looked.append(self.now)
        ran = min(self.now, self.dies_at or self.now) - self.began
        state: State = "cooling" if ran < 30 else "running" if ran < 330 else "finished"
        # Nothing is done yet in the first round.
        done = 0.0 if ran < 90 else min(1.0, (ran - 30) / 300)
        status = BenchmarkStatus(run_id=run, state=state, done=done, doing=state, message=None, beats=int(ran / 5))
        return status.model_dump_json().encode()

    def alive(self) -> bool:
        """Be there until it dies."""
        return self.dies_at is None or self.now < self.dies_at

    def stop(self) -> None:
        """End."""

    def remove(self, run: str) -> None:
        """Leave nothing."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A phone, and its clock as this computer's."""
    found = Watched()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: found.now, sleep=found.sleep))
    return found


REQUEST = BenchmarkRequest(
    run_id="run", model="tiny/coreml-fp16", compute_units=None, threads=1, lengths=[16], texts=["A text."], rounds=1,
    runs_per_round=20, round_ms=0.0, text_passes=1, time_limit_s=600.0, start_below_c=None,
)  # fmt: skip


def test_a_phone_that_measures_is_looked_at_every_ten_seconds(watched: Watched) -> None:
    assert transport.carry_out(watched, REQUEST, {}, lambda what, share: None) == b"a record"
    cooling = [at for at in watched.looked if at < 30]
    measuring = [at for at in watched.looked if 40 <= at < 320]
    assert len(cooling) == 30
    assert len(measuring) <= 28
    assert all(later - earlier >= 9.9 for earlier, later in pairwise(measuring))
    # Its end is not slept through.
    assert watched.looked[-1] - 330 <= 2


def test_an_app_that_dies_between_two_looks_is_noticed(watched: Watched) -> None:
    watched.dies_at = 200.0
    with pytest.raises(DeviceError, match="mine: the app was killed or has crashed"):
        transport.carry_out(watched, REQUEST, {}, lambda what, share: None)
    assert watched.now - 200 <= 40
    watched.began, watched.now = None, 0.0
    with pytest.raises(DeviceError, match="mine: the app was killed"):
        transport.carry_out(watched, REQUEST, {}, lambda what, share: None, Patience(poll_s=1.0, silent_s=6.0))
    assert watched.now - 200 <= 15


# --- adb's server ------------------------------------------------------------------------------------------------


def is_up(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def adb_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port of the test's own for adb's server; one that is left is ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    yield port
    AdbClient().server_kill()


def test_listing_devices_leaves_no_server_of_adb_behind(adb_port: int, command_here: Any) -> None:
    outcome = command_here("devices", "--json")
    assert (outcome.rc, outcome.document["problem"]) == (0, None)
    until = time.monotonic() + 10
    while is_up(adb_port):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_server_of_adb_that_ran_before_stays(adb_port: int, command_here: Any) -> None:
    adb.attached()
    assert is_up(adb_port)
    assert command_here("devices", "--json").document["problem"] is None
    time.sleep(0.2)
    assert is_up(adb_port)


@pytest.mark.parametrize("name", [name for name in formats.NAMES if formats.get(name).PHONE_RUNNER])
def test_a_runner_is_told_which_function_of_a_file_to_run(name: str) -> None:
    runner = formats.get(name).PHONE_RUNNER
    assert runner
    words = runner.command("program", "file", "the_function", 3)
    assert [word for word in words if word.endswith("=the_function")]
    assert [word for word in words if word.endswith("threads=3")]
