"""Make `.venv` ready for the pipeline, or find out in a moment that it is.

Runs before anything is installed: it uses the standard library alone, and it parses on any Python 3, so that an old
one can say which version is needed (annotations that newer versions alone understand are quoted).

`.venv/ready.json` is written last. Without it the environment is half-made, and is made again from pip's cache.
"""

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

OLDEST, NEWEST = (3, 11), (3, 13)
PLATFORMS = [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")]
EXIT_FAILED, EXIT_INTERRUPTED = 2, 130
# Downloads included, with a CPU wheel of torch. PyPI's on Linux brings CUDA along and takes 10.
NEED_GIB = 4
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
READY = os.path.join(VENV, "ready.json")
PROJECT = os.path.join(ROOT, "pyproject.toml")
CONSTRAINTS = os.path.join("pipeline", "constraints.txt")
LOG = os.path.join(ROOT, "build", "setup.log")


class SetupError(Exception):
    """Set-up cannot go on; the message is the one line that the user reads."""


def say(line: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    print("set-up: " + line, flush=True)


def main(argv: "list[str]") -> int:
    """Make the environment ready; `--extra NAME` adds an extra of pyproject.toml to `dev`. Return the exit code."""
    extras = {"dev", *argv} - {"--extra"}
    try:
        torch_source = os.environ.get("POCKETBERT_TORCH", "").strip()
        if torch_source and not re.match(r"https?://", torch_source):
            torch_source = os.path.abspath(os.path.expanduser(torch_source))
        if state(extras, torch_source) != "ready":
            set_up(extras, torch_source)
    except (SetupError, OSError) as error:
        print("set-up failed: %s" % error, file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("set-up stopped; the next make continues from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def set_up(extras: "set[str]", torch_source: str) -> None:
    """Make the environment, or bring it up to date, while no other set-up works on it."""
    options, python, lock, started = pip_options(torch_source), find_python(), take_lock(), time.monotonic()
    needed = state(extras, torch_source)
    if needed == "ready":
        return
    if needed == "build":
        make_venv(python)
    extras = extras.union(read_ready().get("extras", []))
    install(extras, options, lock)
    write_ready(extras, torch_source)
    say("done in %.0f s" % (time.monotonic() - started))


def state(extras: "set[str]", torch_source: str) -> str:
    """Return what is needed: "ready" for nothing, "update" for pip in place, or "build" for a new environment.

    Args:
        extras: extras of pyproject.toml that have to be installed.
        torch_source: where torch has to come from; empty accepts what is installed.
    """
    ready = read_ready()
    if not os.path.exists(PYTHON) or any(ready.get(name) != value for name, value in tied_to().items()):
        return "build"
    if torch_source and ready.get("torch_source") != torch_source:
        return "build"
    current = ready.get("inputs") == inputs_digest() and extras.issubset(ready.get("extras", []))
    return "ready" if current else "update"


def read_ready() -> "dict[str, Any]":
    """Return what the last complete set-up wrote, or an empty record."""
    try:
        with open(READY, encoding="utf-8") as file:
            ready = json.load(file)
    except (OSError, ValueError):
        return {}
    return ready if isinstance(ready, dict) else {}


def write_ready(extras: "set[str]", torch_source: str) -> None:
    """Record a complete set-up, whole or not at all."""
    ready = dict(tied_to(), inputs=inputs_digest(), extras=sorted(extras), torch_source=torch_source)
    with open(READY + ".new", "w", encoding="utf-8") as file:
        json.dump(ready, file)
    os.replace(READY + ".new", READY)


def tied_to() -> "dict[str, str]":
    """Return what an environment cannot be moved from: its folder, and the interpreter that it links to."""
    return {"root": ROOT, "python": os.path.realpath(PYTHON)}


def inputs_digest() -> str:
    """Return a hash of what decides the packages: the constraints, and pyproject.toml without the tools' settings."""
    with open(PROJECT, encoding="utf-8") as project, open(os.path.join(ROOT, CONSTRAINTS), encoding="utf-8") as pins:
        sections = re.split(r"(?m)^(?=\[)", project.read())
        kept = [text for text in sections if not text.startswith("[tool.") or text.startswith("[tool.setuptools")]
        return hashlib.sha256("\0".join([*kept, pins.read()]).encode()).hexdigest()


def pip_options(torch_source: str) -> "list[str]":
    """Return pip's options for a source of torch: a folder of wheels, an .html page of links, or an index."""
    if not torch_source:
        return []
    if re.match(r"https?://", torch_source):
        is_page = re.split(r"[?#]", torch_source)[0].endswith((".html", ".htm"))
        return ["--find-links" if is_page else "--extra-index-url", torch_source]
    if os.path.isdir(torch_source):
        return ["--find-links", torch_source]
    raise SetupError("POCKETBERT_TORCH=%s is neither a folder nor an http(s) URL of a wheel index" % torch_source)


def find_python() -> str:
    """Return a Python that fits and can make environments: this one, or one on PATH."""
    machine = (platform.system(), platform.machine())
    if machine not in PLATFORMS:
        raise SetupError(
            "found %s %s; torch, coremltools and LiteRT have wheels for Linux x86-64 and aarch64, and for macOS 14 or "
            "later on Apple silicon (with an arm64 Python, not one under Rosetta)" % machine
        )
    names = ["python%d.%d" % (OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
    check = "import ensurepip, sys, venv; sys.exit(not %r <= sys.version_info[:2] <= %r)" % (OLDEST, NEWEST)
    for python in filter(None, [sys.executable, *map(shutil.which, names)]):
        if subprocess.call([python, "-I", "-c", check], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return python
    this = "Python %d.%d (%s)" % (sys.version_info[0], sys.version_info[1], sys.executable)
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        raise SetupError("%s has no venv or no ensurepip; on Debian and Ubuntu: sudo apt install python3-venv" % this)
    raise SetupError(
        "found %s, need Python %d.%d to %d.%d; install one so that %s is on PATH, or name it: "
        "make setup PYTHON=/path/to/python" % (this, *OLDEST, *NEWEST, names[0])
    )


def take_lock() -> int:
    """Wait until no other set-up works on this folder, and return the descriptor that holds the lock."""
    import fcntl

    lock = os.open(os.path.join(ROOT, ".venv.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("another set-up works in this folder; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def make_venv(python: str) -> None:
    """Make an empty environment, in the place of one that is there."""
    if os.path.islink(VENV):
        # venv would clear the folder that it points to, which is another project's.
        raise SetupError(".venv is a link to %s, which set-up would clear; remove the link" % os.path.realpath(VENV))
    free = shutil.disk_usage(ROOT).free / 1024**3
    if free < NEED_GIB:
        raise SetupError("needs about %d GiB on the disk of %s, %.1f GiB are free" % (NEED_GIB, ROOT, free))
    say("making .venv with " + python)
    command = [python, "-I", "-m", "venv", "--clear", VENV]
    made = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode != 0:
        raise SetupError("python -m venv failed: " + " ".join(made.stdout.decode(errors="replace").split()))


def install(extras: "set[str]", options: "list[str]", lock: int) -> None:
    """Let pip install the project in place with its extras, and show the lines of it that take time.

    pip inherits the lock, so that a pip that outlives this process keeps other set-ups out.
    """
    say("installing the pinned packages (some minutes if they have to be downloaded)")
    command = [PYTHON, "-I", "-u", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-user"]
    command += ["--progress-bar", "off", "--use-pep517", *options, "-c", CONSTRAINTS]
    command += ["-e", ".[%s]" % ",".join(sorted(extras))]
    temporary = os.path.join(VENV, "tmp")  # /tmp may be too small for torch
    environment = dict(os.environ, PIP_CONSTRAINT=CONSTRAINTS, PIP_BUILD_CONSTRAINT=CONSTRAINTS, TMPDIR=temporary)
    os.makedirs(temporary, exist_ok=True)
    os.makedirs(os.path.dirname(LOG), exist_ok=True)
    pip = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[lock]
    )
    lines, found, pinned = [], set(), count_pins()
    with pip, open(LOG, "wb", buffering=0) as log:
        for raw in pip.stdout or ():
            log.write(raw)
            lines.append(raw.decode("utf-8", "replace"))
            if lines[-1].startswith("Installing collected packages:"):
                if os.path.exists(READY):
                    os.remove(READY)  # from here on packages may be half unpacked
                total = lines[-1].count(",") + 1
                threading.Thread(target=tell_unpacked, args=(pip, total, unpacked()), daemon=True).start()
            found.update(re.findall(r"^(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9_.-]+)", lines[-1]))
            if progress(lines[-1]):
                share = ", %d %% of the packages found" % min(99, 100 * len(found) // pinned)
                say(progress(lines[-1]) + (share if "downloading" in progress(lines[-1]) else ""))
    shutil.rmtree(temporary, ignore_errors=True)
    if pip.returncode != 0:
        raise SetupError("%s; pip's log: %s" % (explain(lines), LOG))


def count_pins() -> int:
    """Return the number of packages that the constraints pin: about as many as pip looks for."""
    with open(os.path.join(ROOT, CONSTRAINTS), encoding="utf-8") as pins:
        return max(1, sum("==" in line and not line.startswith("#") for line in pins))


def unpacked() -> int:
    """Return the number of packages in the environment."""
    pattern = os.path.join(VENV, "lib", "python3*", "site-packages", "*.dist-info")
    return len(glob.glob(pattern))


def tell_unpacked(pip: "subprocess.Popen[bytes]", total: int, before: int) -> None:
    """Say every ten percent how much pip has unpacked, which it does not say itself, until it ends."""
    said = 0
    while pip.poll() is None:
        share = 100 * (unpacked() - before) // total
        if share >= said + 10:
            said = share
            say("unpacked %d %% of %d packages" % (share, total))
        time.sleep(1)


def progress(line: str) -> str:
    """Return what is worth showing of a line that pip prints, or nothing."""
    download = re.match(r"\s*Downloading (?:\S*/)?([A-Za-z0-9_.]+)-\d\S* \((\d{2,}\.\d MB|[\d.]+ GB)\)", line)
    if download:
        return "downloading %s (%s)" % download.groups()
    if line.startswith("Installing collected packages:") and "," in line:
        return "unpacking %d packages, the longest step" % (line.count(",") + 1)
    return ""


def explain(lines: "list[str]") -> str:
    """Return in a few words why pip failed, from the lines that it printed."""
    text = "".join(lines)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        cpu = "POCKETBERT_TORCH=<folder or index with a CPU wheel of torch>"
        return "the disk is full: set-up needs 10 GiB with PyPI's torch on Linux, %d GiB with %s" % (NEED_GIB, cpu)
    network = r"NewConnectionError|[Nn]ame ?[Rr]esolution|Network is unreachable|timed out|Max retries|ProxyError"
    if re.search(network + r"|SSLError|CERTIFICATE_VERIFY|Connection (?:refused|reset|broken|aborted)", text):
        return "no connection to the package index (check the network, a proxy, pip's settings)"
    errors = [line for line in lines if line.startswith("ERROR:")]
    return errors[-1][len("ERROR:") :].strip() if errors else "pip failed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
