"""iPhones without a Mac, from the environment in which pymobiledevice3 lives: each call is a process of its own there.

It cannot be installed beside the toolchains: pip finds no versions of FastAPI, which it wants, that go with their pins.
So it has an environment of its own, whose interpreter POCKETBERT_IPHONE_PYTHON names, and `usbmux` runs
there. It is under the GPL, and no part of PocketBERT.
"""

import base64
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError, Tell

VARIABLE = "POCKETBERT_IPHONE_PYTHON"
PACKAGE = "pymobiledevice3"
VERSION = "11.45.0"
"""The release whose functions `usbmux` was tried with; others before and after it have other names and arguments."""
INSTALL = f"`python3 -m venv iphone && iphone/bin/pip install {PACKAGE}=={VERSION}`, and {VARIABLE}=iphone/bin/python"
_ROOT = Path(__file__).parents[2]
_LIMIT_S, _BYTES_PER_S = 120.0, 1_000_000


def interpreter() -> str | None:
    """Return an interpreter with pymobiledevice3: the named one, or this one; None if neither has it."""
    if named := os.environ.get(VARIABLE):
        return named
    return sys.executable if importlib.util.find_spec(PACKAGE) else None


def attached() -> list[AttachedPhone]:
    """Return the iPhones that usbmuxd sees.

    Raises:
        DeviceError: there is no usbmuxd, or the interpreter cannot be used.
    """
    return [AttachedPhone.model_validate(one) for one in _call("the iPhone", {"method": "attached"})]


class RemoteUsbmuxPhone:
    """One iPhone, by its row; see `usbmux.UsbmuxPhone`, whose methods it calls."""

    def __init__(self, device: Device, udid: str) -> None:
        """Reach the phone with a UDID, see `iphone.reach`."""
        self.name = device.name
        # Without what the row does not say: a key of another transport is refused there.
        self._said = {"device": device.model_dump(mode="json", exclude_unset=True), "udid": udid}

    def check(self, room_bytes: int) -> None:
        """Refuse a phone that is full, lacks the app, or has no Developer Mode."""
        self._call("check", room_bytes)

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Tell) -> None:
        """Write files into a run's folder, the request last."""
        tell("copying the model", 0.0)
        given = {
            path: {"file": str(one.resolve())} if isinstance(one, Path) else {"data": base64.b64encode(one).decode()}
            for path, one in files.items()
        }
        size = sum(one.stat().st_size for one in files.values() if isinstance(one, Path))
        self._call("put", run, given, limit_s=_LIMIT_S + size / _BYTES_PER_S)

    def start(self, run: str) -> None:
        """End the app if it is running, and start it with the run's name."""
        self._call("start", run)

    def read(self, run: str, file: str) -> bytes | None:
        """Return a file of a run's folder; None if it does not exist."""
        found = self._call("read", run, file)
        return None if found is None else base64.b64decode(found)

    def alive(self) -> bool:
        """Return whether the app's process is there."""
        return bool(self._call("alive"))

    def stop(self) -> None:
        """End the app."""
        self._call("stop")

    def remove(self, run: str) -> None:
        """Remove a run's folder."""
        self._call("remove", run)

    def _call(self, method: str, *given: Any, limit_s: float = _LIMIT_S) -> Any:
        return _call(self.name, self._said | {"method": method, "given": list(given)}, limit_s)


def _call(name: str, said: Mapping[str, Any], limit_s: float = _LIMIT_S) -> Any:
    command = [interpreter() or sys.executable, "-P", "-m", "pipeline.devices.usbmux_guest"]
    # Nothing of this environment but the package itself.
    said = {**said, "version": VERSION}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"} | {"PYTHONPATH": str(_ROOT)}
    try:
        done = subprocess.run(
            command, input=json.dumps(said), capture_output=True, encoding="utf-8", errors="replace", timeout=limit_s,
            env=environment, check=False,
        )  # fmt: skip
    except OSError as error:
        raise DeviceError(f"{name}: {VARIABLE} names {command[0]}, which cannot be run: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{name} did not answer within {limit_s:.0f} s; unlock it and plug it in again.") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise DeviceError(f"{name}: {command[0]} cannot speak with iPhones: {last}.") from error
    if "error" in answer:
        raise DeviceError(answer["error"])
    return answer["result"]
