"""iPhones: the way there by a script that plays devicectl, and what each failure is told as. Nothing here is a Mac.

The app's part is played by the stand-in of `tests/devices`, in the real runtime; see `tests/xcrun.py` for the rest.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, TinyLine, run_command_here

from pipeline.devices import devicectl, iphone, iphone_states, transport, usbmux_remote
from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError

UDID = "00008120-000A1D2E3F4B001E"
DEVICE: dict[str, Any] = {
    "identifier": "ABC",
    "hardwareProperties": {"udid": UDID, "marketingName": "iPhone 15", "productType": "iPhone15,4", "platform": "iOS"},
    "deviceProperties": {"name": "A phone", "osVersionNumber": "18.1", "developerModeStatus": "enabled"},
    "connectionProperties": {"pairingState": "paired", "tunnelState": "disconnected"},
}
"""One device of `devicectl list devices`. WRITTEN after Flutter's core_devices.dart, which reads them."""
OF_27: dict[str, Any] = {
    "identifier": "8648BE6E-199F-55FE-B508-5B42071FEE92",
    "connectionProperties": {"pairingState": "paired", "transportType": "localNetwork", "tunnelState": "disconnected"},
    "deviceProperties": {"bootState": "booted", "ddiServicesAvailable": False, "name": "An old name"},
    "hardwareProperties": {"deviceType": "iPhone", "platform": "iOS", "productType": "iPhone14,5", "udid": "OLD"},
    "properties": {
        "connection": {"pairingState": "paired", "state": "disconnected", "transportType": "localNetwork"},
        "hardware": {"deviceType": "iPhone", "platform": "iOS", "productType": "iPhone14,5", "udid": UDID},
        "software": {"osVersionNumber": {"components": [27, 0, 0, 0, 0], "stringValue": "27.0"}},
        "state": {"bootState": "booted", "name": "A phone"},
    },
}
"""The same from Xcode 27 (`jsonVersion` 5), which gives both shapes. After the listing that sweetpad's CLI tests by."""
OF_27_ALONE = {name: OF_27[name] for name in ("identifier", "properties")}
"""The shape that is left when the old one is gone."""
NAMELESS: dict[str, Any] = {
    "capabilities": [{"featureIdentifier": "com.apple.coredevice.feature.tags", "name": "Modify Tags"}],
    "connectionProperties": {"isMobileDeviceOnly": False, "pairingState": "unpaired", "tunnelState": "unavailable"},
    "deviceProperties": {"bootState": "booted", "ddiServicesAvailable": False},
    "hardwareProperties": {},
    "identifier": "781BF0DD-0000-5000-8000-000000000000",
    "visibilityClass": "default",
}
"""A phone of iOS 16 on a cable. RECORDED by others: tauri-apps/cargo-mobile2#443, sweetpad-dev/sweetpad#223."""


@dataclass
class Mac:
    """A folder that stands for an iPhone, and what goes before PATH."""

    home: Path

    def say(self, **state: Any) -> None:
        """Say how the phone is."""
        (self.home / "state.json").write_text(json.dumps({"devices": [DEVICE]} | state))

    def calls(self) -> list[list[str]]:
        """Return what devicectl was asked, without the file of its answer and its time limit."""
        lines = [json.loads(line) for line in (self.home / "calls.json").read_text().splitlines()]
        return [[one for place, one in enumerate(line) if not _noise(line, place)] for line in lines]


def _noise(line: list[str], place: int) -> bool:
    names = ("--json-output", "--timeout")
    return line[place] in names or (place > 0 and line[place - 1] in names)


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mac:
    """An xcrun on PATH."""
    home, tools = tmp_path / "iphone", tmp_path / "bin"
    (home / "container/Documents").mkdir(parents=True)
    tools.mkdir()
    script = tools / "xcrun"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {REPOSITORY / "tests/xcrun.py"} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_IPHONE", str(home))
    monkeypatch.delenv(usbmux_remote.VARIABLE, raising=False)
    # A phone is looked at every ten seconds, this one at once.
    monkeypatch.setattr(transport, "_pause_s", lambda *_: 0.05)
    found = Mac(home)
    found.say()
    return found


def test_there_and_back(mac: Mac, tiny_line: TinyLine, tmp_path: Path) -> None:
    """The app makes its folder, models come before the request, and nothing but the record stays on the phone."""
    line = tiny_line.copy(tmp_path / "line")
    text = line.recipe.read_text(encoding="utf-8")
    small = "\n[benchmark]\nlengths = [8]\nrounds = 4\nruns_per_block = 5\nblock_ms = 0\ntexts = 3\ntext_passes = 1\n"
    line.recipe.write_text(text + small, encoding="utf-8")
    steered = {name: os.environ[name] for name in ("PATH", "FAKE_IPHONE")}
    given = [
        "benchmark",
        str(line.recipe),
        "--target",
        "executorch:fp32",
        "--device",
        "iphone",
        "--build",
        str(line.build),
    ]
    (mac.home / "behaves").write_text("goes to the background")
    refused = run_command_here(*given, "--json", cwd=line.recipe.parent, **steered)
    assert refused.rc == 3
    assert "is refused: the app was in the background while it ran" in refused.document["error"]["message"]
    (mac.home / "behaves").unlink()
    (mac.home / "calls.json").unlink()
    outcome = run_command_here(*given, "--json", cwd=line.recipe.parent, **steered)
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    (one,) = outcome.document["records"]
    assert (one["source"], one["turns"], one["kept"]) == ("device", 1, False)
    verbs = [" ".join(call[1:4]) for call in mac.calls()]
    assert verbs[0] == "list devices"
    sent = [call for call in mac.calls() if call[1:4] == ["device", "copy", "to"]]
    launched = [call for call in mac.calls() if call[1:4] == ["device", "process", "launch"]]
    run = launched[0][-1]
    assert launched[0][-4:] == ["com.pocketbert.demo", "--", "-pocketbert.run", run]
    assert all(call[call.index("--device") + 1] == UDID for call in (*sent, *launched))
    fetched = [call for call in mac.calls() if call[1:4] == ["device", "copy", "from"]]
    assert all(call[call.index("--user") + 1] == "mobile" for call in (*sent, *fetched))
    where = [call[call.index("--destination") + 1] for call in sent]
    # What the earlier run left is emptied; then the models, the request, and at the end nothing in their place.
    folder = f"Documents/runs/{run}"
    assert where == [folder, folder, f"{folder}/request.json", folder]
    copies = [number for number, verb in enumerate(verbs) if verb == "device copy to"]
    assert copies[0] < verbs.index("device process launch") < copies[1]
    left = {
        str(file.relative_to(mac.home / "container/Documents/runs" / run)): file.stat().st_size
        for file in (mac.home / "container/Documents/runs" / run).rglob("*")
        if file.is_file()
    }
    assert {name for name, size in left.items() if size} == {"record.json", "status.json"}
    again = run_command_here(*given, "--json", cwd=line.recipe.parent, **steered)
    assert again.document["records"][0]["kept"]


def test_each_failure_is_a_sentence(mac: Mac) -> None:
    row = Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"})
    phone = iphone.reach(row)
    mac.say(app=False)
    with pytest.raises(DeviceError, match=r"mine has no app com\.pocketbert\.demo that Xcode put there"):
        phone.check(0)
    mac.say(unlocked=False)
    with pytest.raises(DeviceError, match="was not unlocked since it was switched on"):
        phone.check(0)
    mac.say(locked=True)
    with pytest.raises(DeviceError, match="mine is locked: unlock it"):
        phone.start("run")
    mac.say(devices=[])
    with pytest.raises(DeviceError, match="no iPhone is attached; there are: none"):
        iphone.reach(row)


@pytest.mark.parametrize("record", [DEVICE, OF_27, OF_27_ALONE], ids=["3", "5", "5 without the old shape"])
def test_a_phone_is_read_from_each_shape_of_its_record(record: dict[str, Any], mac: Mac) -> None:
    mac.say(devices=[record], jsonVersion=3 if record is DEVICE else 5)
    model = "iPhone 15" if record is DEVICE else "iPhone14,5"
    assert devicectl.attached() == [AttachedPhone(serial=UDID, state=iphone_states.READY, model=model)]


def test_files_that_are_there_are_read_for_their_user_alone(mac: Mac) -> None:
    """What keeps the stand-in honest: without the user it answers as if nothing were there, or refuses."""
    place = mac.home / "container/Documents/runs/run"
    place.mkdir(parents=True)
    (place / "request.json").write_bytes(b"{}")
    container = ("--domain-type", "appDataContainer", "--domain-identifier", "an.app")
    source = ("--source", "Documents/runs/run/request.json", "--destination", str(mac.home / "fetched"))

    def asked(*given: str) -> dict[str, Any]:
        answer = mac.home / "answer.json"
        answer.unlink(missing_ok=True)
        done = subprocess.run(
            ["xcrun", "devicectl", *given, "--device", UDID, "--json-output", str(answer)],
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(answer.read_text()) if answer.is_file() else {"stderr": done.stderr}

    absent = asked("device", "copy", "from", *container, *source)["error"]
    assert (absent["code"], "Failed to retrieve the file node" in str(absent)) == (7000, True)
    mistaken = asked("device", "copy", "from", "--username", "mobile", *container, *source)
    assert "Unknown option '--username'" in mistaken["stderr"]
    listed = ("device", "info", "files", *container, "--subdirectory", "Documents")
    assert "you must specify a username" in asked(*listed)["stderr"]
    assert "Unknown option '--user'" in asked(*listed, "--user", "mobile")["stderr"]
    phone = iphone.reach(Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"}))
    assert phone.read("run", "request.json") == b"{}"
    assert phone.read("run", "record.json") is None


def test_a_run_is_told_from_an_earlier_one_of_its_name(mac: Mac) -> None:
    """Its last status may be the earlier one's to the letter."""
    finished = {"schema_version": 1, "run_id": "run", "state": "finished", "done": 1.0, "doing": "finished",
                "message": None, "beats": 7}  # fmt: skip
    status = mac.home / "container/Documents/runs/run/status.json"
    status.parent.mkdir(parents=True)
    status.write_text(json.dumps(finished))
    phone = iphone.reach(Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"}))
    assert phone.read("run", "status.json") is None
    phone.put("run", {"request.json": b"{}"}, lambda what, share: None)
    assert phone.read("run", "status.json") is None
    status.write_text(json.dumps(finished))
    assert phone.read("run", "status.json") == status.read_bytes()


def test_a_run_that_was_killed_on_the_way_begins_anew(mac: Mac) -> None:
    """Its request still lies there, and the app would go on with it."""
    running = {"schema_version": 1, "run_id": "run", "state": "running", "done": 0.5, "doing": "length 8",
               "message": None, "beats": 7}  # fmt: skip
    folder = mac.home / "container/Documents/runs/run"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps(running))
    (folder / "request.json").write_text('{"run_id": "run"}')
    phone = iphone.reach(Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"}))
    phone.put("run", {"request.json": b"{}"}, lambda what, share: None)
    assert (folder / "request.json").read_bytes() == b"{}"
    launches = [number for number, call in enumerate(mac.calls()) if call[1:4] == ["device", "process", "launch"]]
    emptied = [number for number, call in enumerate(mac.calls()) if call[1:4] == ["device", "copy", "to"]]
    assert emptied[0] < launches[0]


def test_a_tool_that_fails_hides_no_phone_of_the_other_one(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[AttachedPhone]:
        raise DeviceError("it is of another release")

    old = AttachedPhone(serial="f" * 40, state=iphone_states.READY, model="iPhone X")
    monkeypatch.setattr(usbmux_remote, "interpreter", lambda: sys.executable)
    monkeypatch.setattr(usbmux_remote, "attached", fails)
    assert [one.serial for one in iphone.attached()] == [UDID]
    monkeypatch.setattr(devicectl, "attached", fails)
    with pytest.raises(DeviceError, match="of another release"):
        iphone.attached()
    monkeypatch.setattr(usbmux_remote, "attached", lambda: [old])
    assert iphone.attached() == [old]


def test_a_phone_that_devicectl_cannot_serve(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iPhone of iOS 16 on a Mac: it is listed, and reached by the other tool, where that is there."""
    row = Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"})
    mac.say(devices=[NAMELESS])
    assert [one.state for one in iphone.attached()] == [iphone_states.BEYOND]
    with pytest.raises(DeviceError, match=r"is not served by devicectl, .*pip install pymobiledevice3==11\.45\.0"):
        iphone.reach(row)
    # It may be a watch that was never paired: where a phone is ready, that one is meant.
    mac.say(devices=[NAMELESS, DEVICE])
    assert isinstance(iphone.reach(row), devicectl.DevicectlPhone)
    old = AttachedPhone(serial="f" * 40, state=iphone_states.READY, model="iPhone X")
    monkeypatch.setattr(usbmux_remote, "interpreter", lambda: sys.executable)
    # usbmuxd knows the new phone as well, without the dash.
    known = AttachedPhone(serial=UDID.replace("-", ""), state=iphone_states.READY, model="iPhone 15")
    monkeypatch.setattr(usbmux_remote, "attached", lambda: [known, old])
    assert [(one.serial, one.model) for one in iphone.attached()] == [(UDID, "iPhone 15"), (old.serial, "iPhone X")]
    with pytest.raises(DeviceError, match="several iPhones are attached"):
        iphone.reach(row)
    reached = iphone.reach(row.model_copy(update={"udid": old.serial}))
    assert isinstance(reached, usbmux_remote.RemoteUsbmuxPhone)
    assert isinstance(iphone.reach(row.model_copy(update={"udid": UDID})), devicectl.DevicectlPhone)


def _listed(**parts: dict[str, Any]) -> dict[str, Any]:
    return DEVICE | {name: DEVICE[name] | part for name, part in parts.items()}


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (_listed(connectionProperties={"pairingState": "unpaired"}), "does not trust this computer"),
        (_listed(deviceProperties={"developerModeStatus": "disabled"}), "has Developer Mode off"),
    ],
)
def test_a_phone_that_is_not_ready_says_why(device: dict[str, Any], said: str, mac: Mac) -> None:
    mac.say(devices=[device])
    with pytest.raises(DeviceError, match=said):
        iphone.reach(Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"}))


def test_two_iphones_and_no_udid(mac: Mac) -> None:
    other = _listed(hardwareProperties={"udid": "00008130-0001", "marketingName": "iPhone 16"})
    simulator = _listed(hardwareProperties={"udid": "SIM", "reality": "simulated"})
    mac.say(devices=[DEVICE, other, simulator])
    assert [one.serial for one in devicectl.attached()] == [UDID, "00008130-0001"]
    row = Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone"})
    with pytest.raises(DeviceError, match="several iPhones are attached"):
        iphone.reach(row)
    iphone.reach(row.model_copy(update={"udid": "00008130-0001"}))


def test_a_mac_without_devicectl(mac: Mac, tmp_path: Path) -> None:
    (tmp_path / "bin/xcrun").write_text(
        '#!/bin/sh\necho "xcrun: error: unable to find utility \\"devicectl\\"" >&2\nexit 72\n'
    )
    with pytest.raises(DeviceError, match="have no devicectl; Xcode 15 or newer has it"):
        devicectl.attached()


SAID = {
    "The device is not found": "was lost or did not answer",
    "Unable to launch: the certificate is not trusted": "does not trust who signed the app",
    "NSPOSIXErrorDomain error 28": "is full: free some room",
    "The developer disk image could not be mounted": "does not start its developer services",
    "No-root userspace tunnel unavailable: the device exposes no CoreDeviceProxy lockdown service (needs iOS 17.4+) "
    "and no RemotePairing service was found over bonjour.": "update it to iOS 17.4 or newer, or measure it from a Mac",
    "something that nobody knows": "cannot be used: something that nobody knows",
}


@pytest.mark.parametrize("said", SAID)
def test_what_tools_say_is_told_in_words(said: str) -> None:
    assert SAID[said] in iphone_states.sentence("mine", said, "an.app")


def test_a_udid_is_known_with_and_without_its_dash() -> None:
    found = [AttachedPhone(serial=UDID.replace("-", ""), state=iphone_states.READY, model=None)]
    row = Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone", "udid": UDID.lower()})
    assert iphone.choose(row, found) == UDID.replace("-", "")


def test_an_interpreter_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(usbmux_remote.VARIABLE, str(tmp_path / "python"))
    with pytest.raises(DeviceError, match=r"POCKETBERT_IPHONE_PYTHON names .*, which cannot be run"):
        iphone.attached()
    monkeypatch.setenv(usbmux_remote.VARIABLE, sys.executable)
    with pytest.raises(
        DeviceError, match=r"has pymobiledevice3 none, and 11\.45\.0 is the one that was tried: `.* pip"
    ):
        iphone.attached()
    monkeypatch.delenv(usbmux_remote.VARIABLE)
    with pytest.raises(DeviceError, match="there is neither xcrun"):
        iphone.attached()
