"""What phones' records are made into, and what adb's server says of phones that cannot be used."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from apps import schemas

from pipeline.benchmark.pooling import pool
from pipeline.benchmark.record import BenchmarkRecord, SustainedPart
from pipeline.benchmark.sustained import Energy, energy, slowdown
from pipeline.devices import adb
from pipeline.devices.table import Device
from pipeline.devices.transport import DeviceError


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
