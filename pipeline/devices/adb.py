"""Android phones through adb: adbutils speaks with the server that Android's own tools use, or starts one.

Files reach the app in two steps: a push to `/data/local/tmp`, and a copy by the shell. What adbd is sent for a place
outside `/data/` it gives to an owner that only root may name, and fails (AOSP packages/modules/adb,
daemon/file_sync_service.cpp, `should_use_fs_config`; seen since Android 11).
And the app has to make its folder of external files before the shell makes one in it: vold sets the default ACL, by
which the app may use what others put there, only when it makes that folder for the app (AOSP system/vold, Utils.cpp,
`PrepareAppDirFromRoot`).
"""

import contextlib
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from pipeline.devices.headless import FOLDER, RUN
from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError, Tell

APP = "pocketbert.app"
_ACTIVITY = f"{APP}/.MainActivity"
_SHELL_S, _CONNECT_S, _PROGRAM_S, _OPEN_S, _SETTLE_S, _KNOCK_S = 20.0, 10.0, 600.0, 20.0, 0.2, 1.0
_COPY_BYTES_PER_S = 10_000_000
"""Slower than any phone's storage: how long a copy on the phone may take."""
TEMPORARY = "/data/local/tmp"
"""Folder to which adb may push files, and in which Android's shell may write and run programs."""
_OTHERS = ("0", "2000")
"""Users that are no apps and may have made an app's folder: root and the shell."""
_STATES = {
    "unauthorized": "does not trust this computer: unlock it and tap Allow in its question about USB debugging",
    "offline": "is offline: pull the cable and plug it in again",
    # The first word of "no permissions", at which adbutils cuts.
    "no": "cannot be opened by this user: see the udev rules for Android devices of your system",
    "authorizing": "is still asking whether it trusts this computer: unlock it and tap Allow",
}
_Found = TypeVar("_Found")


@contextmanager
def borrowed_server() -> Iterator[None]:
    """End the adb server at the end of the block, unless one ran before: listing phones leaves no daemon behind."""
    from adbutils import AdbClient
    from adbutils.errors import AdbError

    client = AdbClient(socket_timeout=_SHELL_S)
    try:
        socket.create_connection((client.host, client.port), _KNOCK_S).close()
        ran = True
    except OSError:
        ran = False
    try:
        yield
    finally:
        if not ran:
            with contextlib.suppress(AdbError, OSError):
                client.server_kill()


def attached() -> list[AttachedPhone]:
    """Return the phones that the adb server sees.

    Raises:
        DeviceError: there is no adb server, and none can be started.
    """
    from adbutils import AdbClient

    with _words("adb"):
        found = AdbClient(socket_timeout=_SHELL_S).list(extended=True)
    return [
        AttachedPhone(
            serial=one.serial, state=one.state, model=(one.tags or {}).get("model", "").replace("_", " ") or None
        )
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
            _connect(device.name, device.address)
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
        for place in (self._storage, TEMPORARY):
            free = self._free_bytes(place)
            if free is not None and free < room_bytes:
                raise DeviceError(
                    f"{self.name} has {free / 1e6:.0f} MB free in {place}, and the run needs {room_bytes / 1e6:.0f} MB."
                )

    def _free_bytes(self, place: str) -> int | None:
        """Return the free bytes of a path's file system; None if `df` does not tell."""
        rows = self._shell("df", "-k", place)[1].splitlines()
        fields = rows[-1].split() if len(rows) > 1 else []
        return int(fields[3]) * 1024 if len(fields) > 3 and fields[3].isdigit() else None

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Tell) -> None:
        """Copy files into a run's folder, the request last."""
        self.remove(run)
        self._have_the_app_make_its_folder()
        folder, aside = self._folder(run), self._aside(run)
        parents = sorted({str(Path(folder, path).parent) for path in files})
        self._must("mkdir", "-p", aside, *parents)
        sizes = {path: one.stat().st_size if isinstance(one, Path) else len(one) for path, one in files.items()}
        whole, sent = max(1, sum(sizes.values())), 0
        for path, one in files.items():
            tell(f"pushing {path}", sent / whole)
            # One after the other, so that no more room is taken twice than the largest file needs.
            self._put_one(one, f"{aside}/file", f"{folder}/{path}", sizes[path])
            sent += sizes[path]
        self._must("rm", "-rf", aside)

    def _put_one(self, one: Path | bytes, aside: str, place: str, size: int) -> None:
        """Push a file aside and copy it to its place, where its size is looked at."""
        # adbutils compares sizes on the phone: a server that lost its phone in between says so only there.
        self._call(partial(self._device.sync.push, one, aside, 0o644, check=True))
        self._must("cp", aside, place, timeout_s=_SHELL_S + size / _COPY_BYTES_PER_S)
        self._must("rm", aside)
        found = self._call(lambda: self._device.sync.stat(place)).size
        if found != size:
            raise DeviceError(f"{self.name}: {place} has {found} bytes after it was copied, and {size} were sent.")

    def _have_the_app_make_its_folder(self) -> None:
        """Start the app once if its folder of external files is missing, or was made by another than the app."""
        folder = f"{self._storage}/Android/data/{APP}"
        owner = self._owner(folder)
        if owner in _OTHERS:
            self._must("rm", "-rf", folder)
        elif owner is not None:
            return
        self._open()
        until = time.monotonic() + _OPEN_S
        while (owner := self._owner(folder)) is None:
            if time.monotonic() > until:
                raise DeviceError(
                    f"{self.name}: the app {APP} was started and made no folder {folder} within {_OPEN_S:.0f} s; open "
                    "it by hand once, and look at what it says."
                )
            time.sleep(0.5)
        self.stop()

    def _owner(self, place: str) -> str | None:
        """Return the number of the user who owns a file; None if there is no such file."""
        code, out = self._shell("stat", "-c", "%u", place)
        return out.strip() if code == 0 else None

    def start(self, run: str) -> None:
        """Wake the phone, and start the app's activity with the run's name."""
        self._open("--es", RUN, run)

    def _open(self, *extras: str) -> None:
        """Wake the phone, and start the app anew."""
        self._shell("input", "keyevent", "KEYCODE_WAKEUP")
        self._must("am", "force-stop", APP)
        code, out = self._shell("am", "start", "-W", "-n", _ACTIVITY, *extras)
        if code != 0 or "Error" in out:
            last = (out.strip().splitlines() or ["it says nothing"])[-1]
            raise DeviceError(f"{self.name}: the app cannot be started: {last}.")

    def read(self, run: str, file: str) -> bytes | None:
        """Return a file of a run's folder; None if it does not exist."""
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
        """Remove a run's folder, and the temporary folder of an interrupted push."""
        self._must("rm", "-rf", self._folder(run), self._aside(run))

    def put_program(self, folder: str, files: Mapping[str, Path], program: str, tell: Tell) -> None:
        """Push a program and its input files into a folder from which Android's shell may run it."""
        self._must("mkdir", "-p", folder)
        for number, (name, file) in enumerate(files.items()):
            tell(f"pushing {name}", number / len(files))
            mode = 0o755 if name == program else 0o644
            self._call(partial(self._device.sync.push, file, f"{folder}/{name}", mode, check=True))

    def run_program(self, command: Sequence[str]) -> str:
        """Run a program that was pushed, and return its output.

        Raises:
            DeviceError: it ended with another exit code than 0, or not in its time.
        """
        code, out = self._shell(*command, timeout_s=_PROGRAM_S)
        if code:
            last = (out.strip().splitlines() or ["it says nothing"])[-1]
            raise DeviceError(f"{self.name}: {Path(command[0]).name} ended with exit code {code}: {last}.")
        return out

    def clock(self) -> str:
        """Return the phone's own time, in the format in which `logged` takes it."""
        return self._shell("date", "+%Y-%m-%d %H:%M:%S.%N")[1].strip()

    def logged(self, tag: str, since: str) -> str:
        """Return the messages in the phone's log that have a tag, since a time that `clock` gave."""
        code, out = self._shell("logcat", "-d", "-v", "raw", "-T", since, "-s", tag)
        return "" if code else out

    def remove_program(self, folder: str) -> None:
        """Remove the folder of a program."""
        self._must("rm", "-rf", folder)

    def _folder(self, run: str) -> str:
        return f"{self._storage}/Android/data/{APP}/files/{FOLDER}/{run}"

    def _aside(self, run: str) -> str:
        return f"{TEMPORARY}/{APP}-{run}"

    def _shell(self, *command: str, timeout_s: float = _SHELL_S) -> tuple[int, str]:
        """Run a command on the phone; return its exit code and its output."""
        found = self._call(lambda: self._device.shell2(shlex.join(command), timeout=timeout_s, v2=True))
        return found.returncode, found.output

    def _must(self, *command: str, timeout_s: float = _SHELL_S) -> None:
        code, out = self._shell(*command, timeout_s=timeout_s)
        if code:
            last = (out.strip().splitlines() or ["it says nothing"])[-1]
            raise DeviceError(f"{self.name}: {command[0]} failed with exit code {code}: {last}.")

    def _call(self, act: Callable[[], _Found]) -> _Found:
        with _words(self.name):
            return act()


def _connect(name: str, address: str) -> None:
    """Connect to a phone in the network, and wait until it has answered: until then adb calls it offline.

    A connection that broke stays in adb's list under the same name, and is given up once for a new one.
    """
    from adbutils import AdbClient

    began, again = time.monotonic(), False
    with _words(name):
        AdbClient(socket_timeout=_SHELL_S).connect(address, timeout=_CONNECT_S)
        while any(one.serial == address and one.state in ("offline", "authorizing") for one in attached()):
            waited_s = time.monotonic() - began
            if waited_s > _CONNECT_S:
                return
            if waited_s > _CONNECT_S / 3 and not again:
                again = True
                client = AdbClient(socket_timeout=_SHELL_S)
                client.disconnect(address)
                client.connect(address, timeout=_CONNECT_S)
            time.sleep(_SETTLE_S)


def _choose(device: Device, found: list[AttachedPhone]) -> str:
    """Return the serial of a row's phone."""
    serial = device.serial or device.address
    there = ", ".join(f"{one.serial} ({one.model or one.state})" for one in found) or "none"
    if serial is None and len(found) > 1:
        raise DeviceError(
            f"{device.name} has no serial in its row, and several phones are attached: {there}. Name one."
        )
    one = next((one for one in found if serial in (None, one.serial)), None)
    if one is None:
        said = f"no phone with serial {serial}" if serial else "no phone"
        raise DeviceError(
            f"{device.name}: {said} is attached; there are: {there}. Plug it in, switch USB debugging on, and look at "
            "`pocketbert devices`."
        )
    if one.state != "device":
        raise DeviceError(f"{device.name} ({one.serial}) {_STATES.get(one.state, f'is in the state {one.state}')}.")
    return one.serial


@contextmanager
def _words(name: str) -> Iterator[None]:
    """Return an error of adb as one sentence."""
    from adbutils.errors import AdbError

    try:
        yield
    except (AdbError, OSError, TimeoutError) as error:
        said = str(error).strip().strip(".") or type(error).__name__
        gone = re.search(r"device .*not found|device offline|closed|reset|broken pipe|no devices", said, re.IGNORECASE)
        what = "was lost; pull the cable, plug it in and run it again" if gone else "did not answer as it should"
        raise DeviceError(f"{name} {what} ({said}). Finished measurements are kept.") from error
