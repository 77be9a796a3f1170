"""Android phones through adb: adbutils speaks with the server that Android's own tools use, or starts one."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from pipeline.devices.headless import FOLDER, RUN
from pipeline.devices.table import Attached, Device
from pipeline.devices.transport import DeviceError, Tell

APP = "pocketbert.app"
_ACTIVITY = f"{APP}/.MainActivity"
_SHELL_S, _CONNECT_S, _PROGRAM_S = 20.0, 10.0, 600.0
_STATES = {
    "unauthorized": "does not trust this computer: unlock it and tap Allow in its question about USB debugging",
    "offline": "is offline: pull the cable and plug it in again",
    # The first word of "no permissions", at which adbutils cuts.
    "no": "cannot be opened by this user: see the udev rules for Android devices of your system",
    "authorizing": "is still asking whether it trusts this computer: unlock it and tap Allow",
}
_Found = TypeVar("_Found")


def attached() -> list[Attached]:
    """Return the phones that the adb server sees.

    Raises:
        DeviceError: there is no adb server, and none can be started.
    """
    from adbutils import AdbClient

    with _words("adb"):
        found = AdbClient(socket_timeout=_SHELL_S).list(extended=True)
    return [
        Attached(serial=one.serial, state=one.state, model=(one.tags or {}).get("model", "").replace("_", " ") or None)
        for one in found
    ]


class AndroidPhone:
    """One phone, by its row."""

    def __init__(self, device: Device) -> None:
        """Find the phone.

        Raises:
            DeviceError: it is not there, not ready, or it is not clear which one is meant.
        """
        from adbutils import AdbClient

        self.name = device.name
        if device.address:
            with _words(device.name):
                AdbClient(socket_timeout=_SHELL_S).connect(device.address, timeout=_CONNECT_S)
        serial = _choose(device, attached())
        self._storage = device.storage
        self._device = AdbClient(socket_timeout=_SHELL_S).device(serial)

    def check(self, room_bytes: int) -> None:
        """Refuse a phone that is locked, full, or lacks the app."""
        if not self._shell("pm", "path", APP)[1].startswith("package:"):
            raise DeviceError(
                f"{self.name}: the demo app {APP} is not installed. Open android-demo/ in Android Studio and press Run."
            )
        window = self._shell("dumpsys", "window")[1]
        if re.search(r"mDreamingLockscreen=true|isKeyguardShowing=true|mShowingLockscreen=true", window):
            raise DeviceError(f"{self.name} is locked: unlock it, and keep its screen on while it is measured.")
        free = self.free_bytes()
        if free is not None and free < room_bytes:
            raise DeviceError(f"{self.name} has {free / 1e6:.0f} MB free, and the run needs {room_bytes / 1e6:.0f} MB.")

    def free_bytes(self) -> int | None:
        """Return the free bytes of the storage that the app's files lie in; None where `df` does not tell."""
        rows = self._shell("df", "-k", self._storage)[1].splitlines()
        fields = rows[-1].split() if len(rows) > 1 else []
        return int(fields[3]) * 1024 if len(fields) > 3 and fields[3].isdigit() else None

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Tell) -> None:
        """Push files into a run's folder, the request last."""
        self.remove(run)
        folder = self._folder(run)
        parents = sorted({str(Path(folder, path).parent) for path in files})
        self._must("mkdir", "-p", *parents)
        sizes = {path: one.stat().st_size if isinstance(one, Path) else len(one) for path, one in files.items()}
        whole, sent = max(1, sum(sizes.values())), 0
        for path, one in files.items():
            tell(f"pushing {path}", sent / whole)
            place = f"{folder}/{path}"
            # By its size on the phone: a server that lost its phone in between says so only there.
            self._call(partial(self._device.sync.push, one, place, 0o644, check=True))
            sent += sizes[path]

    def start(self, run: str) -> None:
        """Wake the phone, and start the app's activity with the run's name."""
        self._shell("input", "keyevent", "KEYCODE_WAKEUP")
        self._must("am", "force-stop", APP)
        code, out = self._shell("am", "start", "-W", "-n", _ACTIVITY, "--es", RUN, run)
        if code != 0 or "Error" in out:
            last = (out.strip().splitlines() or ["it says nothing"])[-1]
            raise DeviceError(f"{self.name}: the app cannot be started: {last}.")

    def read(self, run: str, file: str) -> bytes | None:
        """Pull a file of a run's folder; None where there is none."""
        place = f"{self._folder(run)}/{file}"
        sync = self._call(lambda: self._device.sync)
        if not self._call(lambda: sync.stat(place)).mode:
            return None
        data: bytes = self._call(lambda: sync.read_bytes(place))
        return data

    def alive(self) -> bool:
        """Return whether the app's process is there."""
        return self._shell("pidof", APP)[0] == 0

    def stop(self) -> None:
        """End the app."""
        self._shell("am", "force-stop", APP)

    def remove(self, run: str) -> None:
        """Remove a run's folder."""
        self._must("rm", "-rf", self._folder(run))

    def put_program(self, folder: str, files: Mapping[str, Path], program: str, tell: Tell) -> None:
        """Push a program and what it reads into a folder from which Android's shell may run it."""
        self._must("mkdir", "-p", folder)
        for number, (name, file) in enumerate(files.items()):
            tell(f"pushing {name}", number / len(files))
            mode = 0o755 if name == program else 0o644
            self._call(partial(self._device.sync.push, file, f"{folder}/{name}", mode, check=True))

    def run_program(self, command: Sequence[str]) -> str:
        """Run a program that was pushed, and return what it wrote.

        Raises:
            DeviceError: it ended with another exit code than 0, or not in its time.
        """
        code, out = self._shell(*command, timeout_s=_PROGRAM_S)
        if code:
            last = (out.strip().splitlines() or ["it says nothing"])[-1]
            raise DeviceError(f"{self.name}: {Path(command[0]).name} ended with exit code {code}: {last}.")
        return out

    def remove_program(self, folder: str) -> None:
        """Remove the folder of a program."""
        self._must("rm", "-rf", folder)

    def _folder(self, run: str) -> str:
        return f"{self._storage}/Android/data/{APP}/files/{FOLDER}/{run}"

    def _shell(self, *command: str, timeout_s: float = _SHELL_S) -> tuple[int, str]:
        """Run a command on the phone; return its exit code and what it wrote."""
        found = self._call(lambda: self._device.shell2(shlex.join(command), timeout=timeout_s, v2=True))
        return found.returncode, found.output

    def _must(self, *command: str) -> None:
        code, out = self._shell(*command)
        if code:
            last = (out.strip().splitlines() or ["it says nothing"])[-1]
            raise DeviceError(f"{self.name}: {command[0]} failed with exit code {code}: {last}.")

    def _call(self, act: Callable[[], _Found]) -> _Found:
        with _words(self.name):
            return act()


def _choose(device: Device, found: list[Attached]) -> str:
    """Return the serial of a row's phone."""
    wanted = device.serial or device.address
    there = ", ".join(f"{one.serial} ({one.model or one.state})" for one in found) or "none"
    if wanted is None and len(found) > 1:
        raise DeviceError(
            f"{device.name} has no serial in its row, and several phones are attached: {there}. Name one."
        )
    one = next((one for one in found if wanted in (None, one.serial)), None)
    if one is None:
        said = f"no phone with serial {wanted}" if wanted else "no phone"
        raise DeviceError(
            f"{device.name}: {said} is attached; there are: {there}. Plug it in, switch USB debugging on, and look at "
            "`pocketbert devices`."
        )
    if one.state != "device":
        raise DeviceError(f"{device.name} ({one.serial}) {_STATES.get(one.state, f'is in the state {one.state}')}.")
    return one.serial


@contextmanager
def _words(name: str) -> Iterator[None]:
    """Say an error of adb in one sentence."""
    from adbutils.errors import AdbError

    try:
        yield
    except (AdbError, OSError, TimeoutError) as error:
        said = str(error).strip().strip(".") or type(error).__name__
        gone = re.search(r"device .*not found|device offline|closed|reset|broken pipe|no devices", said, re.IGNORECASE)
        what = "was lost; pull the cable, plug it in and run it again" if gone else "did not answer as it should"
        raise DeviceError(f"{name} {what} ({said}). What was measured so far is kept.") from error
