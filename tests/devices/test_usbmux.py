"""iPhones without a Mac: the real pymobiledevice3, against a program that plays usbmuxd and what lies behind it.

What it does not show: the tunnel of iOS 17 and later, and the start of an app.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices import usbmuxd
from devices.phone import TREE
from devices.usbmuxd import Phone
from pipeline.devices import iphone, iphone_states, usbmux_remote
from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError

PYTHON = os.environ.get(usbmux_remote.VARIABLE, str(TREE / "iphone/bin/python"))
pytestmark = [
    pytest.mark.devices,
    pytest.mark.skipif(
        not Path(PYTHON).exists(),
        reason=f"{PYTHON} is no interpreter with pymobiledevice3: {usbmux_remote.INSTALL}; .ci/devices makes one",
    ),
]
NEW, OLD = "00008120000A1D2E3F4B001E", "f" * 40


def row(udid: str = OLD) -> Device:
    """Return a row of a phone."""
    return Device.model_validate({"name": "mine", "transport": "ios", "summary": "a phone", "udid": udid})


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phone]:
    """An iPhone X on a cable, and a newer one that does not trust this computer."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(usbmux_remote.VARIABLE, PYTHON)
    address = tmp_path / "usbmuxd"
    monkeypatch.setenv("USBMUXD_SOCKET_ADDRESS", str(address))
    found = Phone(OLD, tmp_path / "old")
    with usbmuxd.plugged_in([found, Phone(NEW, tmp_path / "new", ios="18.1", paired=False)], address):
        yield found


def test_phones_are_listed_and_chosen(phone: Phone, monkeypatch: pytest.MonkeyPatch) -> None:
    assert iphone.attached() == [
        AttachedPhone(serial=NEW, state=iphone_states.UNPAIRED, model="iPhone X (Global)"),
        AttachedPhone(serial=OLD, state=iphone_states.READY, model="iPhone X (Global)"),
    ]
    assert isinstance(iphone.reach(row()), usbmux_remote.RemoteUsbmuxPhone)
    with pytest.raises(DeviceError, match=r"mine \(0000.*\) does not trust this computer: plug it in"):
        iphone.reach(row(NEW))
    with pytest.raises(DeviceError, match="several iPhones are attached"):
        iphone.reach(row().model_copy(update={"udid": None}))
    monkeypatch.setenv("USBMUXD_SOCKET_ADDRESS", "/nowhere")
    with pytest.raises(DeviceError, match="there is no usbmuxd, which speaks with iPhones on a cable"):
        iphone.attached()
    monkeypatch.setattr(usbmux_remote, "VERSION", "1.0")
    with pytest.raises(DeviceError, match=r"has pymobiledevice3 11\.45\.0, and 1\.0 is the one that was tried"):
        iphone.attached()


def test_files_go_there_and_come_back(phone: Phone, tmp_path: Path) -> None:
    reached, model = usbmux_remote.RemoteUsbmuxPhone(row(), OLD), tmp_path / "model.bin"
    model.write_bytes(os.urandom(5_000_000))
    folder = phone.container / "Documents/runs/run"
    (folder / "old").mkdir(parents=True)
    (folder / "old/status.json").write_text("of an earlier run")
    files: dict[str, Path | bytes] = {"models/a/model.bin": model, "models/empty": b"", "request.json": b"{}"}
    reached.put("run", files, lambda what, share: None)
    there = {str(place.relative_to(folder)): place.read_bytes() for place in folder.rglob("*") if place.is_file()}
    assert there == {"models/a/model.bin": model.read_bytes(), "models/empty": b"", "request.json": b"{}"}
    assert phone.written[-1] == "request.json"
    assert reached.read("run", "models/a/model.bin") == model.read_bytes()
    assert reached.read("run", "record.json") is None
    reached.remove("run")
    assert not folder.exists()
    reached.remove("run")


def test_each_failure_is_a_sentence(phone: Phone) -> None:
    reached = usbmux_remote.RemoteUsbmuxPhone(row(), OLD)
    reached.check(1_000)
    with pytest.raises(DeviceError, match="mine has 10000 MB free, and the run needs 20000 MB"):
        reached.check(20_000_000_000)
    phone.developer = None
    reached.check(1_000)
    phone.developer = False
    with pytest.raises(DeviceError, match="mine has Developer Mode off"):
        reached.check(1_000)
    phone.developer, phone.apps = True, ()
    with pytest.raises(DeviceError, match=r"mine has no app com\.pocketbert\.demo that Xcode put there"):
        reached.check(1_000)
    # Nothing here plays developer services, which is what a phone says whose image is not mounted.
    with pytest.raises(DeviceError, match="mine does not start its developer services"):
        reached.start("run")
    phone.paired = False
    with pytest.raises(DeviceError, match="mine does not trust this computer"):
        reached.alive()


def test_ios_17_before_its_tunnel_over_the_cable(phone: Phone) -> None:
    """No CoreDeviceProxy, and nobody in the Wi-Fi."""
    phone.ios = "17.2"
    with pytest.raises(DeviceError, match=r"mine has an iOS from 17\.0 to 17\.3, .* update it to iOS 17\.4 or newer"):
        usbmux_remote.RemoteUsbmuxPhone(row(), OLD).start("run")


_NOT_RUN = """
import inspect
from pymobiledevice3.remote.rsd_tunnel import PreferredRsdTunnel
from pymobiledevice3.services.dvt.instruments.dvt_provider import DvtProvider
from pymobiledevice3.services.dvt.instruments.process_control import ProcessControl

for function, names in (
    (PreferredRsdTunnel, ("serial", "autopair")),
    (DvtProvider, ("lockdown",)),
    (ProcessControl.launch, ("bundle_id", "arguments", "kill_existing")),
    (ProcessControl.process_identifier_for_bundle_identifier, ()),
    (ProcessControl.kill, ("pid",)),
):
    assert set(names) <= set(inspect.signature(function).parameters), function
"""


def test_what_no_program_plays_has_the_arguments_that_are_given() -> None:
    subprocess.run([PYTHON, "-c", _NOT_RUN], check=True)
