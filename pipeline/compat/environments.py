"""Virtual environments for runtimes that cannot live beside the project's own packages.

Made by `python -m venv` and pip in `build/.compat/<name>/`, on request alone. `ready.json` is written last: without it,
or if its requirements are not the table's, an environment is half-made, and is made again from the start.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pipeline.atomic import write_aside
from pipeline.runtimes import Runtime, is_installed

MARKER = "ready.json"
FOLDER = ".compat"
"""In the build folder."""
_PIP_S = 3600
_LOOK_S = 120

Note = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """Where a runtime can be run, or why it cannot."""

    runtime: Runtime
    python: Path | None
    reason: str
    """Why there is no environment; empty if there is one."""


class _Failed(Exception):
    """A tool ended badly; its last line is the message."""


def prepare(runtime: Runtime, root: Path, *, install: bool, note: Note) -> Environment:
    """Return a runtime's environment: the project's own, an existing one, or one that is made now.

    Args:
        runtime: a row of the table.
        root: folder of all such environments.
        install: make it if it is not there, which downloads.
        note: told what is going to be downloaded.
    """
    if is_installed(runtime):
        return Environment(runtime, Path(sys.executable), "")
    place = root / runtime.name
    problem = _problem(runtime, place)
    if problem is None:
        return Environment(runtime, python_of(place), "")
    if not install:
        return Environment(runtime, None, f"{problem}; --install downloads about {runtime.download_mb} MB for it")
    base = _interpreter(runtime)
    if base is None:
        wheels = f"it has wheels for Python {', '.join(runtime.pythons)} alone"
        own = "Python {}.{}".format(*sys.version_info[:2])
        return Environment(runtime, None, f"{wheels}; this is {own}, and none of those is on the PATH")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{runtime.name}.lock"):
            # Another run may have made it while this one waited.
            if _problem(runtime, place) is not None:
                requirements = " ".join(runtime.requirements)
                note(f"{runtime.name}: downloading {requirements}, about {runtime.download_mb} MB, into {place}")
                _make(runtime, base, place)
    except (_Failed, OSError) as error:
        return Environment(runtime, None, str(error))
    return Environment(runtime, python_of(place), "")


def python_of(place: Path) -> Path:
    """Return the path of an environment's interpreter."""
    return place / "bin" / "python"


def _problem(runtime: Runtime, place: Path) -> str | None:
    """Return the reason why an environment cannot be used, or None."""
    if not place.exists():
        return "it has no environment yet"
    try:
        marker = json.loads((place / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "its environment is half-made"
    if not isinstance(marker, dict) or marker.get("requirements") != list(runtime.requirements):
        return "its environment was made for other requirements"
    try:
        found = _run([python_of(place), "-I", "-c", _LOOK, runtime.distribution], _LOOK_S)
    except (_Failed, OSError) as error:
        return f"its environment is damaged ({error})"
    return None if found == runtime.version else f"its environment holds {runtime.distribution} {found}"


_LOOK = "import importlib.metadata, sys, numpy; print(importlib.metadata.version(sys.argv[1]))"


def _make(runtime: Runtime, base: str, place: Path) -> None:
    """Make an environment from scratch; the marker file, written last, makes it valid."""
    shutil.rmtree(place, ignore_errors=True)
    _run([base, "-I", "-m", "venv", str(place)], _LOOK_S)
    python = python_of(place)
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--only-binary", ":all:"]
    _run([python, "-I", "-m", "pip", "install", *options, *runtime.requirements], _PIP_S)
    # The import itself: a wheel may install and not fit this machine.
    _run([python, "-I", "-c", f"from {runtime.module} import Interpreter"], _LOOK_S)
    with write_aside(place / MARKER) as aside:
        aside.write_text(json.dumps({"requirements": list(runtime.requirements)}) + "\n", encoding="utf-8")


def _interpreter(runtime: Runtime) -> str | None:
    """Return a Python that the runtime has wheels for: this one, or the newest on the PATH."""
    if "{}.{}".format(*sys.version_info[:2]) in runtime.pythons:
        return sys.executable
    found = (shutil.which(f"python{version}") for version in reversed(runtime.pythons))
    return next((path for path in found if path), None)


def _run(command: list[str | Path], seconds: float) -> str:
    """Run a tool to its end and return the last line that it printed."""
    # -I leaves PYTHONPATH out; a surrounding environment's activation must not steer pip either.
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise _Failed(f"{Path(command[0]).name} was not done after {seconds:.0f} s") from error
    if done.returncode:
        raise _Failed(_last_words(done.stderr or done.stdout) or f"exit code {done.returncode}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def _last_words(text: str) -> str:
    """Return pip's last error, or the last line of another tool."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1]
