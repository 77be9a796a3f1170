"""iPhones through `xcrun devicectl` on a Mac: Xcode 15 or newer, iOS 17 or newer, Developer Mode on.

What is called is in the tool's own help ("devicectl Help Reference", github.com/StewartLynch/DevicectlHelpRef); what it
answers is read as others read it who have iPhones: Flutter (packages/flutter_tools/lib/src/ios/core_devices.dart),
appium/node-devicectl and coremltools 9.0 (models/ml_program/experimental/remote_device.py). The answers are taken from
the file of `--json-output`, which the help calls stable; nothing was run on an iPhone of ours.

Who works in an app's container names its user, by `--user` for copies and by `--username` for lists of files, as the
help has it. tvOS refuses a copy without (dotnet/xharness#1440), and of an iPhone it was reported that files which are
there are answered like absent ones (error 7000).

Two things that are not in the help shape this file, both from public reports. A folder that devicectl makes belongs to
root, and the app cannot write there: so the app is started once to make its run's folder, before anything is sent.
And devicectl has no verb that removes a file: `--remove-existing-content` was seen to clear all of Documents, so what
was sent is overwritten with nothing, and a run whose request is empty is none.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlparse

from pipeline.devices.headless import FINAL, FOLDER, MODELS, REQUEST, RUN, STATUS
from pipeline.devices.iphone_states import AWAY, BEYOND, LOST, NO_DEVELOPER, NOT_INSTALLED, READY, UNPAIRED, sentence
from pipeline.devices.table import AttachedPhone, Device
from pipeline.devices.transport import DeviceError, Tell

_TOOL = ("xcrun", "devicectl")
_QUICK_S, _COPY_S = 60, 120
_BYTES_PER_S = 1_000_000
"""Slower than any cable: how long a copy may take."""
_GRACE_S = 15
"""How much longer than its own time limit devicectl is waited for."""
_DOCUMENTS = "Documents"
_USER = "mobile"
"""Whose the containers of apps are."""
_NO_FILE = (7000, "Failed to retrieve the file node")
"""Error of `copy from` for an absent file: code of com.apple.dt.CoreDeviceError, and words of the message."""


def attached() -> list[AttachedPhone]:
    """Return the iPhones that this Mac knows, and whether each can be used; iOS 16 and older cannot.

    Raises:
        DeviceError: there is no devicectl, or it gave up.
    """
    return [_attached(record) for record in _listed("the iPhone")]


class DevicectlPhone:
    """One iPhone, by its row."""

    open_s = 30.0
    """How long the app may take until it has made its run's folder."""
    pause_s = 1.0

    def __init__(self, device: Device, udid: str) -> None:
        """Reach the phone with a UDID, see `iphone.reach`."""
        self.name = device.name
        self._app = device.app
        self._udid = udid
        self._there: dict[str, bool] = {}
        self._stale: dict[str, bytes | None] = {}

    def check(self, room_bytes: int) -> None:
        """Refuse a phone that lacks the app, or was not unlocked since it was switched on; its room it does not tell.

        Whether it is locked now is not asked: `passcodeRequired` is read in two ways by those who have phones, and the
        start of the app, which is the first thing that `put` does, cannot be mistaken.
        """
        lock = self._result("device", "info", "lockState")
        if lock.get("unlockedSinceBoot") is False:
            raise DeviceError(f"{self.name} was not unlocked since it was switched on: unlock it.")
        if self._bundle() is None:
            raise DeviceError(sentence(self.name, NOT_INSTALLED, self._app))

    def put(self, run: str, files: Mapping[str, Path | bytes], tell: Tell) -> None:
        """Have the app make the run's folder, copy the files into it, and the request last."""
        tell("opening the app", 0.0)
        self._stale[run] = self._folder_made(run)
        others = {path: one for path, one in files.items() if path != REQUEST}
        with TemporaryDirectory() as scratch:
            if others:
                tell("copying the model", 0.1)
                tree = Path(scratch) / run
                for path, one in others.items():
                    _lay(one, tree / path)
                self._copy_to(tree, self._place(run))
                self._check_sizes(run, {path: (tree / path).stat().st_size for path in others})
            tell("copying the request", 0.9)
            request = Path(scratch) / REQUEST
            _lay(files[REQUEST], request)
            self._copy_to(request, f"{self._place(run)}/{REQUEST}")
        self._there[run] = True

    def start(self, run: str) -> None:
        """End the app if it is running, and start it with the run's name."""
        # What follows `--` is the app's: devicectl takes `-pocketbert.run` for options of its own otherwise.
        self._result("device", "process", "launch", "--terminate-existing", last=(self._app, "--", f"-{RUN}", run))

    def read(self, run: str, file: str) -> bytes | None:
        """Return a file of a run that has a request; None if it is absent or is an earlier run's status."""
        if run not in self._there:
            self._there[run] = bool(self._pull(run, REQUEST))
        if not self._there[run]:
            return None
        data = self._pull(run, file)
        return None if file == STATUS and data == self._stale.get(run) else data

    def alive(self) -> bool:
        """Return whether the app's process is there."""
        return bool(self._processes())

    def stop(self) -> None:
        """End the app."""
        for process in self._processes():
            self._result("device", "process", "terminate", "--pid", str(process), "--kill")

    def remove(self, run: str) -> None:
        """Overwrite a run's request and model files with empty ones; its record stays, and the app lists it."""
        sent = [path for path in self._sizes(run) if path == REQUEST or path.startswith(f"{MODELS}/")]
        with TemporaryDirectory() as scratch:
            tree = Path(scratch) / run
            for path in sent:
                _lay(b"", tree / path)
            if sent:
                self._copy_to(tree, self._place(run))
        self._there[run] = False

    # --- folders and files -------------------------------------------------------------------------------------------

    def _place(self, run: str) -> str:
        return f"{_DOCUMENTS}/{FOLDER}/{run}"

    def _folder_made(self, run: str) -> bytes | None:
        """Have the app make a run's folder, by starting it without a request; return the status that lies there after.

        The app then says that it refused. An earlier run of the same name that finished leaves a status which the next
        one may repeat to the letter, and which could not be told from it.
        """
        before = self._pull(run, STATUS)
        if _state(before) == "refused":
            return before
        if before is not None:
            # A run that was killed on the way left its request, and would go on.
            self.remove(run)
        self.start(run)
        until = time.monotonic() + self.open_s
        while _state(status := self._pull(run, STATUS)) not in FINAL or status == before:
            if time.monotonic() > until:
                raise DeviceError(
                    f"{self.name}: the app {self._app} was started and made no folder for its run; open it by hand "
                    "once, and look at what it says. It has to be the app of this version."
                )
            time.sleep(self.pause_s)
        return status

    def _pull(self, run: str, file: str) -> bytes | None:
        with TemporaryDirectory() as scratch:
            place = Path(scratch) / "file"
            answer = self._answer(
                *("device", "copy", "from", "--user", _USER, *self._container()),
                *("--source", f"{self._place(run)}/{file}", "--destination", str(place)),
                repeat=True,
            )
            code, words = _NO_FILE
            errors = _errors(answer)
            if errors and errors[0][1] == code and words in errors[0][2] and len(errors) == 1:
                return None
            self._succeeded(answer)
            try:
                return place.read_bytes()
            except OSError as error:
                raise DeviceError(f"{self.name}: devicectl says that it copied {file}, and it is not there.") from error

    def _copy_to(self, source: Path, destination: str) -> None:
        size = sum(one.stat().st_size for one in (source, *source.rglob("*")) if one.is_file())
        self._result(
            *("device", "copy", "to", "--user", _USER, *self._container()),
            *("--source", str(source), "--destination", destination),
            limit_s=_COPY_S + size // _BYTES_PER_S,
        )

    def _check_sizes(self, run: str, sizes: Mapping[str, int]) -> None:
        """Refuse a copy that did not come whole, or came to another place."""
        found = self._sizes(run)
        wrong = next((path for path, size in sizes.items() if found.get(path) != size), None)
        if wrong is not None:
            there = "is not there" if wrong not in found else f"has {found[wrong]} bytes there"
            raise DeviceError(f"{self.name}: {wrong}, of {sizes[wrong]} bytes, {there} after it was copied.")

    def _sizes(self, run: str) -> dict[str, int]:
        """Return the bytes of the files that lie in a run's folder, by their paths in it."""
        place = self._place(run)
        listed = self._result(
            *("device", "info", "files", "--username", _USER, *self._container(), "--subdirectory", place), repeat=True
        )
        found = {}
        for entry in listed.get("files") or []:
            if not _at(entry, "resources", "isDirectory"):
                # Relative to the folder that was asked for in some versions, to the container in others.
                path = str(entry.get("relativePath") or entry.get("name")).removeprefix(f"{place}/")
                found[path] = int(_at(entry, "metadata", "size") or 0)
        return found

    def _container(self) -> tuple[str, ...]:
        return ("--domain-type", "appDataContainer", "--domain-identifier", self._app)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _bundle(self) -> str | None:
        """Return the folder of the app on the phone."""
        listed = self._result("device", "info", "apps", "--bundle-id", self._app, repeat=True)
        urls = [app.get("url") for app in listed.get("apps") or [] if app.get("bundleIdentifier") == self._app]
        return _path(urls[0]) if urls and urls[0] else None

    def _processes(self) -> list[int]:
        """Return the ids of the app's processes, without its extensions'."""
        bundle = self._bundle()
        listed = self._result("device", "info", "processes", repeat=True)
        return [
            int(process["processIdentifier"])
            for process in listed.get("runningProcesses") or []
            if bundle and str(Path(_path(process.get("executable") or "")).parent) == bundle
        ]

    # --- calls -------------------------------------------------------------------------------------------------------

    def _result(
        self, *command: str, last: Sequence[str] = (), limit_s: int = _QUICK_S, repeat: bool = False
    ) -> Mapping[str, Any]:
        return self._succeeded(self._answer(*command, last=last, limit_s=limit_s, repeat=repeat))

    def _answer(
        self, *command: str, last: Sequence[str] = (), limit_s: int = _QUICK_S, repeat: bool = False
    ) -> Mapping[str, Any]:
        """Run devicectl for this phone; `repeat` runs a read-only command again if the phone did not answer."""
        given = (*command, "--device", self._udid)
        answer = _devicectl(self.name, given, last, limit_s)
        if repeat and sentence(self.name, _words(answer), self._app) == sentence(self.name, LOST, self._app):
            time.sleep(self.pause_s)
            answer = _devicectl(self.name, given, last, limit_s)
        return answer

    def _succeeded(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        if _at(answer, "info", "outcome") == "success":
            result = answer.get("result")
            return result if isinstance(result, dict) else {}
        raise DeviceError(sentence(self.name, _words(answer), self._app))


def _devicectl(name: str, command: Sequence[str], last: Sequence[str] = (), limit_s: int = _QUICK_S) -> dict[str, Any]:
    """Run devicectl and return its JSON answer, also after a failure; the entry `stderr` has its error output.

    Raises:
        DeviceError: this is no Mac, or devicectl did not end.
    """
    with TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        given = [*_TOOL, *command, "--timeout", str(limit_s), "--json-output", str(answer), *last]
        try:
            done = subprocess.run(
                given, capture_output=True, encoding="utf-8", errors="replace", timeout=limit_s + _GRACE_S, check=False
            )
        except FileNotFoundError as error:
            raise DeviceError(f"{name}: there is no xcrun here; it comes with Xcode, on a Mac.") from error
        except subprocess.TimeoutExpired as error:
            raise DeviceError(sentence(name, LOST, "")) from error
        if "unable to find utility" in done.stderr:
            raise DeviceError(
                f"{name}: Xcode's command line tools have no devicectl; Xcode 15 or newer has it. Install it, and "
                "choose it by `sudo xcode-select -s /Applications/Xcode.app`."
            )
        try:
            found = json.loads(answer.read_bytes())
        except (OSError, ValueError):
            found = {}
    # Old versions write no file where they fail.
    return (found if isinstance(found, dict) else {}) | {
        "stderr": done.stderr.strip() or f"exit code {done.returncode}"
    }


def _errors(answer: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return domain, code and words of an answer's error, and of each that lies under it."""
    found = []
    error = answer.get("error")
    while isinstance(error, dict):
        about = error.get("userInfo") or {}
        texts = [_at(about, key, "string") for key in ("NSLocalizedDescription", "NSLocalizedFailureReason")]
        why = _at(about, "BSErrorCodeDescription", "string")
        words = " ".join([str(text) for text in texts if text] + ([f"= {why}"] if why else []))
        found.append((str(error.get("domain")), int(error.get("code") or 0), words))
        error = _at(about, "NSUnderlyingError", "error")
    return found


def _words(answer: Mapping[str, Any]) -> str:
    """Return the text of all errors in an answer, or its error output if it lists none."""
    said = [f"{words} ({domain} error {code})".strip() for domain, code, words in _errors(answer)]
    return " ".join(said) or str(answer.get("stderr"))


def _listed(name: str) -> list[Mapping[str, Any]]:
    """Return the records of iPhones and iPads, simulators excepted, which Xcode 27 lists as well.

    One of iOS 16 or older on a cable has a record that says nothing of what it is (sweetpad-dev/sweetpad#223).
    """
    answer = _devicectl(name, ("list", "devices"))
    if _at(answer, "info", "outcome") != "success":
        raise DeviceError(sentence(name, _words(answer), ""))
    return [
        record
        for record in _at(answer, "result", "devices") or []
        if _nameless(record)
        or (_of(record, "hardware", "platform") == "iOS" and _of(record, "hardware", "reality") != "simulated")
    ]


def _nameless(record: Mapping[str, Any]) -> bool:
    """Return whether a record has no hardware in it, of either shape."""
    return not _at(record, "properties", "hardware") and not _at(record, "hardwareProperties")


def _attached(record: Mapping[str, Any]) -> AttachedPhone:
    status = _of(record, "state", "developerModeStatus")
    # A word up to Xcode 26, `{"enabled": {"mode": 1}}` after.
    mode = next(iter(status), None) if isinstance(status, dict) else status
    if _nameless(record):
        state = BEYOND
    elif _of(record, "connection", "pairingState") not in (None, "paired"):
        state = UNPAIRED
    elif _of(record, "connection", "state") == "unavailable":
        state = AWAY
    else:
        # An idle phone is `disconnected`: devicectl connects when it is asked for something.
        state = NO_DEVELOPER if mode == "disabled" else READY
    model = _of(record, "hardware", "marketingName") or _of(record, "hardware", "productType")
    return AttachedPhone(
        serial=_of(record, "hardware", "udid") or str(record.get("identifier")), state=state, model=model
    )


_BEFORE_27 = {"hardware": "hardwareProperties", "state": "deviceProperties", "connection": "connectionProperties"}


def _of(record: Mapping[str, Any], part: str, key: str) -> Any:
    """Return a value of a device's record, in the format of Xcode 27 (`jsonVersion` 5) or in the older one."""
    found = _at(record, "properties", part, key)
    old = "tunnelState" if (part, key) == ("connection", "state") else key
    return found if found is not None else _at(record, _BEFORE_27[part], old)


def _at(found: Any, *keys: str) -> Any:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _path(url: str) -> str:
    """Return the path of a file URL, without the link `/private` and the slash at its end."""
    return unquote(urlparse(url).path).removeprefix("/private").rstrip("/")


def _state(status: bytes | None) -> str | None:
    """Return the state in a status file; None if it is absent or half-written."""
    try:
        return None if status is None else str(json.loads(status)["state"])
    except (ValueError, KeyError, TypeError):
        return None


def _lay(one: Path | bytes, place: Path) -> None:
    """Write a file that is to be copied; devicectl copies a link as a link."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(one, Path):
        shutil.copyfile(one, place)
    else:
        place.write_bytes(one)
