"""Plays `xcrun devicectl` on a folder: no Mac and no iPhone. It takes the arguments that the tool's help names.

Its answers are WRITTEN after the tool's documentation and public reports (see `pipeline/devices/devicectl.py`), and
recorded from no Mac of ours. What it was asked is added to `calls.json` in the folder that FAKE_IPHONE names.
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


def main(given: list[str]) -> int:
    """Answer one call."""
    with (HOME / "calls.json").open("a") as calls:
        calls.write(json.dumps(given) + "\n")
    assert given[0] == "devicectl", given
    options = {name: given[place + 1] for place, name in enumerate(given) if name.startswith("--") and name != "--"}
    verbs = [one for one in given[1:5] if not one.startswith("-")]
    answer: dict[str, Any]
    try:
        answer = {"info": {"outcome": "success", "jsonVersion": 2}, "result": act(verbs, options, given)}
        code = 0
    except LookupError as error:
        answer = {"info": {"outcome": "failed"}, "error": error.args[0]}
        code = 1
    Path(options["--json-output"]).write_text(json.dumps(answer))
    return code


def failed(code: int, words: str, domain: str = "com.apple.dt.CoreDeviceError") -> LookupError:
    """Return an error as devicectl writes one."""
    return LookupError({"domain": domain, "code": code, "userInfo": {"NSLocalizedDescription": {"string": words}}})


def act(verbs: list[str], options: dict[str, str], given: list[str]) -> dict[str, Any]:
    """Do what a call asks for."""
    state = json.loads((HOME / "state.json").read_text())
    if verbs[:2] == ["list", "devices"]:
        return {"devices": state["devices"]}
    what = " ".join(verbs[1:3])
    if what == "info lockState":
        return {"passcodeRequired": True, "unlockedSinceBoot": state.get("unlocked", True)}
    if what == "info apps":
        app = {"bundleIdentifier": options["--bundle-id"], "url": f"file://{BUNDLE}/"}
        return {"apps": [app] if state.get("app", True) else []}
    if what == "info processes":
        pid = HOME / "app.pid"
        alive = pid.is_file() and Path(f"/proc/{pid.read_text()}").exists()
        return {
            "runningProcesses": [
                {"processIdentifier": int(pid.read_text()), "executable": f"file://{BUNDLE}/PocketBERT"}
            ]
            if alive
            else []
        }
    if what == "info files":
        root = CONTAINER / options["--subdirectory"]
        files = [place for place in sorted(root.rglob("*")) if place.is_file()]
        return {
            "files": [
                {"relativePath": str(place.relative_to(root)), "metadata": {"size": place.stat().st_size}}
                for place in files
            ]
        }
    if what.startswith("copy"):
        return copy(what, options)
    if what == "process terminate":
        os.kill(int(options["--pid"]), 9)
        return {}
    assert what == "process launch", given
    if state.get("locked"):
        raise failed(10002, "The application failed to launch. Reason: device is locked.")
    return launch(given)


def copy(what: str, options: dict[str, str]) -> dict[str, Any]:
    """Copy a file or folder to the phone, or a file from it."""
    if what == "copy to":
        source, target = Path(options["--source"]), CONTAINER / options["--destination"]
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
        return {}
    source = CONTAINER / options["--source"]
    if not source.is_file():
        raise failed(7000, "Failed to retrieve the file node for the source.")
    shutil.copyfile(source, options["--destination"])
    return {}


def launch(given: list[str]) -> dict[str, Any]:
    """Start the stand-in of the app; without a request it does what the app does, and makes its folder."""
    bundle, dashes, name, run = given[-4:]
    assert (bundle, dashes, name) == ("com.pocketbert.demo", "--", "-pocketbert.run"), given
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
