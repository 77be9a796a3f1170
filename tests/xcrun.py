"""Plays `xcrun devicectl` on a folder: no Mac and no iPhone. It takes the options that the tool's help names.

Help: github.com/StewartLynch/DevicectlHelpRef at 1c230d6. The shapes of its answers are those of recorded ones that
others have published, and nothing was recorded from a Mac of ours: failures with an error under an error (Flutter,
packages/flutter_tools/test/general.shard/ios/core_devices_test.dart; Qt Creator, tst_devicectlutils.cpp), the head with
`commandType` and `jsonVersion`, lists of files with folders among them, and error 7000 with the file's name (several
scripts that copy from containers). Who names no user is told of files that are there what is told of absent ones;
lists of files and copies to a container are refused as tvOS refuses them (dotnet/xharness#1440).
What it was asked is added to `calls.json` in the folder that FAKE_IPHONE names.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HOME = Path(os.environ["FAKE_IPHONE"])
CONTAINER = HOME / "container"
BUNDLE = "/private/var/containers/Bundle/Application/ABC/PocketBERT.app"
CORE = "com.apple.dt.CoreDeviceError"
_DEVICE = ("--device", "--timeout", "--json-output")
_DOMAIN = ("--domain-type", "--domain-identifier")
OPTIONS = {
    "list devices": ("--timeout", "--json-output"),
    "device info lockState": _DEVICE,
    "device info apps": (*_DEVICE, "--bundle-id"),
    "device info processes": _DEVICE,
    "device info files": (*_DEVICE, *_DOMAIN, "--subdirectory", "--username"),
    "device copy to": (*_DEVICE, *_DOMAIN, "--source", "--destination", "--user"),
    "device copy from": (*_DEVICE, *_DOMAIN, "--source", "--destination", "--user"),
    "device process launch": (*_DEVICE, "--terminate-existing"),
    "device process terminate": (*_DEVICE, "--pid", "--kill"),
}
"""The options of each verb that are used, by its help."""
_FLAGS = ("--terminate-existing", "--kill")


def main(given: list[str]) -> int:
    """Answer one call."""
    with (HOME / "calls.json").open("a") as calls:
        calls.write(json.dumps(given) + "\n")
    assert given[0] == "devicectl", given
    words, options, last = parsed(given[1:])
    verb = next(verb for verb in OPTIONS if words[: len(verb.split())] == verb.split())
    if unknown := next((name for name in options if name not in OPTIONS[verb]), None):
        return misused(f"Unknown option '{unknown}'")
    if verb in ("device info files", "device copy to") and "--username" not in options and "--user" not in options:
        return misused("If you are targeting a data container, you must specify a username.")
    state = json.loads((HOME / "state.json").read_text())
    version = state.get("jsonVersion", 3)
    info = {"arguments": given, "commandType": f"devicectl.{verb.replace(' ', '.')}", "jsonVersion": version}
    answer: dict[str, Any]
    try:
        answer = {"info": {**info, "outcome": "success"}, "result": act(verb, options, words, last, state)}
        code = 0
    except LookupError as error:
        answer = {"info": {**info, "outcome": "failed"}, "error": error.args[0]}
        code = 1
    Path(options["--json-output"]).write_text(json.dumps(answer))
    return code


def parsed(given: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the words of a call, its options, and what it gives to the app."""
    end = given.index("--") if "--" in given else len(given)
    words, options, place = list[str](), dict[str, str](), 0
    while place < end:
        one = given[place]
        if not one.startswith("--"):
            words.append(one)
        elif one in _FLAGS:
            options[one] = ""
        else:
            place += 1
            options[one] = given[place]
        place += 1
    return words, options, given[end + 1 :]


def misused(why: str) -> int:
    """Say what is wrong with a call, and write no file, as Swift's ArgumentParser does."""
    print(f"Error: {why}\nUsage: devicectl …", file=sys.stderr)
    return 64


def failed(code: int, words: str, domain: str = CORE, under: LookupError | None = None, **more: str) -> LookupError:
    """Return an error as devicectl writes one, with the one that lies under it."""
    about: dict[str, Any] = {"NSLocalizedDescription": {"string": words}}
    about |= {name: {"string": text} for name, text in more.items()}
    if under is not None:
        about["NSUnderlyingError"] = {"error": under.args[0]}
    return LookupError({"domain": domain, "code": code, "userInfo": about})


def act(verb: str, options: dict[str, str], words: list[str], last: list[str], state: dict[str, Any]) -> dict[str, Any]:
    """Do what a call asks for."""
    match verb.removeprefix("device "):
        case "list devices":
            return {"devices": state["devices"]}
        case "info lockState":
            return {"passcodeRequired": True, "unlockedSinceBoot": state.get("unlocked", True)}
        case "info apps":
            app = {"bundleIdentifier": options["--bundle-id"], "url": f"file://{BUNDLE}/"}
            return {"apps": [app] if state.get("app", True) else []}
        case "info processes":
            return {"runningProcesses": processes()}
        case "info files":
            return {"files": files(options["--subdirectory"])}
        case "copy to":
            return copy_to(options)
        case "copy from":
            return copy_from(options)
        case "process terminate":
            os.kill(int(options["--pid"]), 9)
            return {}
    if state.get("locked"):
        why = f"Unable to launch {words[-1]} because the device was not, or could not be, unlocked."
        locked = failed(
            7, f"The operation couldn’t be completed. {why}", "FBSOpenApplicationErrorDomain",
            NSLocalizedFailureReason=why, BSErrorCodeDescription="Locked",
        )  # fmt: skip
        said = f'The request to open "{words[-1]}" failed.'
        refused = failed(1, said, "FBSOpenApplicationServiceErrorDomain", locked)
        raise failed(10002, "The application failed to launch.", under=refused)
    return launch(words[-1], last)


def processes() -> list[dict[str, Any]]:
    """List the app's process, if there is one."""
    pid = HOME / "app.pid"
    if not pid.is_file() or not Path(f"/proc/{pid.read_text()}").exists():
        return []
    return [{"processIdentifier": int(pid.read_text()), "executable": f"file://{BUNDLE}/PocketBERT"}]


def files(folder: str) -> list[dict[str, Any]]:
    """List what lies in a folder and in those below it."""
    root = CONTAINER / folder
    return [
        {
            "name": place.name,
            "relativePath": str(place.relative_to(root)),
            "resources": {"isDirectory": place.is_dir(), "isSymbolicLink": False},
            "metadata": {"size": place.stat().st_size, "lastModDate": "2026-09-10T12:00:00Z"},
        }
        for place in sorted(root.rglob("*"))
    ]


def copy_to(options: dict[str, str]) -> dict[str, Any]:
    """Copy a file or folder to the phone."""
    source, target = Path(options["--source"]), CONTAINER / options["--destination"]
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
    return {}


def copy_from(options: dict[str, str]) -> dict[str, Any]:
    """Copy a file from the phone, for the user that its container belongs to."""
    source = CONTAINER / options["--source"]
    if options.get("--user") != "mobile" or not source.is_file():
        raise failed(7000, f"Failed to retrieve the file node for {options['--source']}")
    shutil.copyfile(source, options["--destination"])
    return {}


def launch(bundle: str, last: list[str]) -> dict[str, Any]:
    """Start the stand-in of the app; without a request it does what the app does, and makes its folder."""
    name, run = last
    assert (bundle, name) == ("com.pocketbert.demo", "-pocketbert.run"), last
    folder = CONTAINER / "Documents/runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "request.json").is_file() or not (folder / "request.json").stat().st_size:
        said = {"schema_version": 1, "run_id": run, "state": "refused", "done": 0.0, "doing": "refused",
                "message": "request.json: it is missing", "beats": 2}  # fmt: skip
        (folder / "status.json").write_text(json.dumps(said))
        return {"process": {"processIdentifier": 1}}
    app = Path(__file__).parent / "devices" / "phone_app.py"
    environment = os.environ | {"PYTHONPATH": str(app.parents[2])}
    started = subprocess.Popen(
        [sys.executable, str(app), str(folder), str(HOME)], env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=(HOME / "app.log").open("a"),
    )  # fmt: skip
    (HOME / "app.pid").write_text(str(started.pid))
    return {"process": {"processIdentifier": started.pid}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
