"""Make `.venv` ready, or find out quickly that it is.

Runs before anything is installed, so it uses the standard library alone, and parses on any Python 3 so that an old
one can say which version is needed (annotations that newer versions alone understand are quoted).

`.venv/ready-EXTRA.json` is written last and atomically: without it, or with `.venv/installing` left behind by a
killed run, the environment is made anew (from pip's cache). A lock, inherited by pip, keeps two set-ups apart.
"""

import hashlib
import json
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import time
from typing import BinaryIO

OLDEST, NEWEST = (3, 11), (3, 13)
EXIT_ENVIRONMENT = 3
EXIT_INTERRUPTED = 130
GIB = 1024**3
# At the peak, downloads included: .venv ends at 6.2 GiB with PyPI's Linux torch, near 2.5 GiB with a CPU wheel.
NEED_CUDA_BYTES = 10 * GIB
NEED_CPU_BYTES = 4 * GIB
HEARTBEAT_S = 15.0
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
INSTALLING = os.path.join(VENV, "installing")
PROJECT = os.path.join(ROOT, "pyproject.toml")
CONSTRAINTS = os.path.join(ROOT, "pipeline", "constraints.txt")
LOG = os.path.join(ROOT, "build", "setup.log")


class SetupError(Exception):
    """Set-up cannot go on; the message is the one line that the user sees."""


def say(line: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    print("set-up: " + line, flush=True)


# What is wanted, and what is there


def inputs_digest() -> str:
    """Hash what decides the packages: the constraints, and pyproject.toml without the tools' settings."""
    with open(PROJECT, encoding="utf-8") as file:
        sections = re.split(r"(?m)^(?=\[)", file.read())
    kept = [text for text in sections if not text.startswith("[tool.") or text.startswith("[tool.setuptools")]
    with open(CONSTRAINTS, "rb") as binary:
        return hashlib.sha256("".join(kept).encode() + b"\0" + binary.read()).hexdigest()


def venv_python() -> str:
    """Return the path of the environment's interpreter, whether or not it exists."""
    return os.path.join(VENV, "bin", "python")


def venv_version() -> str:
    """Return the version of the environment's interpreter as "3.11", empty if it does not start."""
    command = [venv_python(), "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def stamp_path(extra: str) -> str:
    """Return where the stamp of one extra lies."""
    return os.path.join(VENV, "ready-%s.json" % extra)


def read_stamp(extra: str) -> "dict[str, str]":
    """Return what the last complete set-up of this extra wrote, or an empty record."""
    try:
        with open(stamp_path(extra), encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(extra: str, torch_source: str) -> None:
    """Record a complete set-up, atomically."""
    stamp = {"inputs": inputs_digest(), "python": venv_version(), "root": ROOT, "torch_source": torch_source}
    aside = stamp_path(extra) + ".tmp"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, stamp_path(extra))


def state(extra: str, torch_source: str) -> str:
    """Say what the environment needs for this extra.

    Args:
        extra: The extra of pyproject.toml whose stamp is read.
        torch_source: Where torch is asked to come from; empty accepts what is installed.

    Returns:
        "ready", "update" (pip can bring it up to date in place) or "build" (it has to be made anew).
    """
    base, stamp = read_stamp("dev"), read_stamp(extra)
    whole = bool(base) and not os.path.exists(INSTALLING) and base.get("root") == ROOT
    if not whole or base.get("python") != venv_version():
        return "build"
    if torch_source and base.get("torch_source") != torch_source:
        return "build"
    return "ready" if stamp.get("inputs") == inputs_digest() else "update"


def torch_arguments(value: str) -> "list[str]":
    """Turn POCKETBERT_TORCH into pip's arguments.

    Args:
        value: A folder with wheels, the URL of an .html page of links, or the URL of a package index; may be empty.

    Raises:
        SetupError: It is none of these.
    """
    if not value:
        return []
    if re.match(r"https?://", value):
        is_page = value.split("#")[0].split("?")[0].endswith((".html", ".htm"))
        return ["--find-links" if is_page else "--extra-index-url", value]
    if os.path.isdir(value):
        return ["--find-links", value]
    raise SetupError("POCKETBERT_TORCH=%s is neither a folder nor an http(s) URL of a wheel index" % value)


def torch_source_from_environment() -> str:
    """Return POCKETBERT_TORCH, a folder as its absolute path."""
    value = os.environ.get("POCKETBERT_TORCH", "").strip()
    if not value or re.match(r"https?://", value):
        return value
    return os.path.abspath(os.path.expanduser(value))


# The interpreter


def other_pythons() -> "list[str]":
    """Return the suitable interpreters on PATH that start (a pyenv shim may not)."""
    names = ["python%d.%d" % (OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
    found = [path for path in map(shutil.which, names) if path]
    check = "import sys, ensurepip, venv; sys.exit(not %r <= sys.version_info[:2] <= %r)" % (OLDEST, NEWEST)
    return [path for path in found if starts([path, "-I", "-c", check])]


def starts(command: "list[str]") -> bool:
    """Say whether a command starts and succeeds."""
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def require_python(argv: "list[str]") -> None:
    """Go on with a suitable Python: this one, or another on PATH in its place.

    Raises:
        SetupError: There is none, or it cannot make virtual environments.
    """
    this = "Python %d.%d (%s)" % (sys.version_info[0], sys.version_info[1], sys.executable)
    wanted = "%d.%d to %d.%d" % (OLDEST + NEWEST)
    fits = OLDEST <= sys.version_info[:2] <= NEWEST
    if fits and can_make_venv():
        return
    others = other_pythons()
    if others:
        say("%s %s; using %s" % (this, "has no ensurepip" if fits else "is not " + wanted, others[0]))
        os.execv(others[0], [others[0], "-I", os.path.abspath(__file__), *argv])
    if fits:
        raise SetupError("%s has no venv or no ensurepip; on Debian and Ubuntu: sudo apt install python3-venv" % this)
    raise SetupError(
        "found %s, need Python %s (coremltools 9 has no wheel for others); install one so that python%d.%d is on PATH, "
        "or name it: make setup PYTHON=/path/to/python" % (this, wanted, *OLDEST)
    )


def can_make_venv() -> bool:
    """Say whether this Python has what `python -m venv` needs (Debian packs it separately)."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def require_platform() -> None:
    """Refuse where the toolchains have no wheels.

    Raises:
        SetupError: Not Linux on x86-64 or aarch64, nor macOS on Apple silicon.
    """
    here = (platform.system(), platform.machine())
    if here not in [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")]:
        raise SetupError(
            "found %s %s; torch, coremltools and LiteRT have wheels together for Linux x86-64 and aarch64 and for "
            "macOS 14 or later on Apple silicon (there: an arm64 Python, not one under Rosetta)" % here
        )


# Disk and lock


def pip_has_other_sources() -> bool:
    """Say whether pip is configured with links or an index, which may offer a CPU wheel of torch."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode(errors="replace")
    return "find-links" in listed or "index-url" in listed


def disk_bytes_needed(torch_source: str) -> int:
    """Return the room that making the environment takes at its peak, downloads included."""
    if torch_source or platform.system() != "Linux" or pip_has_other_sources():
        return NEED_CPU_BYTES
    return NEED_CUDA_BYTES


def require_disk(free_bytes: int, need_bytes: int) -> None:
    """Refuse to start what would run out of room half-way.

    Raises:
        SetupError: Less room than needed.
    """
    if free_bytes >= need_bytes:
        return
    line = "needs about %.0f GiB on the disk of %s, %.1f GiB are free" % (need_bytes / GIB, ROOT, free_bytes / GIB)
    if need_bytes == NEED_CUDA_BYTES:
        line += "; %.0f GiB are enough with POCKETBERT_TORCH=<folder or index with a CPU wheel of torch>, " % (
            NEED_CPU_BYTES / GIB
        )
        line += "since PyPI's brings CUDA on Linux"
    raise SetupError(line)


def lock() -> int:
    """Wait until no other set-up works on this folder.

    Returns:
        The descriptor that holds the lock; pip inherits it, so that a pip outliving us still keeps others out.
    """
    import fcntl

    descriptor = os.open(os.path.join(ROOT, ".venv.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("another set-up is at work in this folder; waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


# Making it


def make_venv() -> None:
    """Make the environment anew.

    Raises:
        SetupError: .venv is a link, or `python -m venv` failed.
    """
    if os.path.islink(VENV):
        # venv would clear the folder that it points to, which is another project's.
        raise SetupError(".venv is a link to %s, which set-up would clear; remove the link" % os.path.realpath(VENV))
    say("making .venv with Python %d.%d.%d" % tuple(sys.version_info[:3]))
    with open(LOG, "ab") as log:
        code = subprocess.call([sys.executable, "-I", "-m", "venv", "--clear", VENV], stdout=log, stderr=log)
    if code != 0:
        raise SetupError("python -m venv failed; on Debian and Ubuntu: sudo apt install python3-venv; log: %s" % LOG)


def pip_command(extra: str, torch_source: str) -> "list[str]":
    """Return the command that installs the project in place with one extra."""
    flags = ["--no-input", "--disable-pip-version-check", "--no-user", "--progress-bar", "off", "--use-pep517"]
    command = [venv_python(), "-I", "-u", "-m", "pip", "install"]
    return command + flags + torch_arguments(torch_source) + ["-c", CONSTRAINTS, "-e", ".[%s]" % extra]


def pip_environment() -> "dict[str, str]":
    """Return pip's environment: the pins for build tools too, temporary files on the disk that was checked."""
    clashing = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_QUIET", "PIP_VERBOSE", "PIP_DRY_RUN", "PIP_NO_DEPS")
    environment = {name: value for name, value in os.environ.items() if name not in clashing}
    pins = os.path.relpath(CONSTRAINTS, ROOT)  # pip splits these variables at spaces, which a full path may have
    environment.update(PIP_CONSTRAINT=pins, PIP_BUILD_CONSTRAINT=pins, TMPDIR=os.path.join(VENV, "tmp"))
    return environment


def progress(line: str) -> str:
    """Return what is worth showing of a line that pip prints, or nothing."""
    download = re.match(r"\s*(Downloading|Using cached) (?:\S*/)?([A-Za-z0-9_.]+)-\d\S* \(([\d.]+) (MB|GB)\)", line)
    if download and (download.group(4) == "GB" or float(download.group(3)) >= 50):
        return "%s %s (%s %s)" % download.groups()
    if line.startswith("Installing collected packages:") and "," in line:
        return "unpacking %d packages, the longest step" % (line.count(",") + 1)
    return ""


def follow(output: int, lines: "list[str]", log: "BinaryIO") -> None:
    """Read pip's output to its end into the log, showing progress and a sign of life.

    Args:
        output: The descriptor of a pipe.
        lines: Gets every line.
        log: Gets every byte.
    """
    started, rest = time.monotonic(), b""
    while True:
        if not select.select([output], [], [], HEARTBEAT_S)[0]:
            say("… %.0f s" % (time.monotonic() - started))
            continue
        chunk = os.read(output, 65536)
        log.write(chunk)
        complete = (rest + chunk).split(b"\n")
        rest = complete.pop()
        for line in [text.decode("utf-8", "replace") for text in complete]:
            lines.append(line)
            if progress(line):
                say(progress(line))
        if not chunk:
            return


def why(lines: "list[str]") -> str:
    """Say in a few words why pip failed, from what it printed."""
    text = "\n".join(lines)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return "the disk is full"
    network = r"NewConnectionError|NameResolutionError|name resolution|Network is unreachable|timed out|Max retries"
    if re.search(
        network + r"|ProxyError|SSLError|CERTIFICATE_VERIFY|Connection (?:refused|reset|broken|aborted)", text
    ):
        return "no connection to the package index (check the network, a proxy, pip's settings)"
    errors = [line for line in lines if line.startswith("ERROR:")]
    return errors[-1][len("ERROR:") :].strip() if errors else "pip failed"


def install(extra: str, torch_source: str, lock_descriptor: int) -> None:
    """Run pip; leave the mark of an unfinished run only where packages may be half unpacked.

    Raises:
        SetupError: pip failed.
    """
    open(INSTALLING, "w").close()
    os.makedirs(os.path.join(VENV, "tmp"), exist_ok=True)
    lines = []  # type: list[str]
    child = subprocess.Popen(
        pip_command(extra, torch_source),
        cwd=ROOT,
        env=pip_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[lock_descriptor],
    )
    with child, open(LOG, "ab", buffering=0) as log:
        assert child.stdout is not None
        follow(child.stdout.fileno(), lines, log)
    shutil.rmtree(os.path.join(VENV, "tmp"), ignore_errors=True)
    began_unpacking = any(line.startswith("Installing collected packages:") for line in lines)
    if child.returncode == 0 or (child.returncode > 0 and not began_unpacking):
        os.remove(INSTALLING)
    if child.returncode != 0:
        raise SetupError("%s; pip's log: %s" % (why(lines), LOG))


def installed_torch() -> str:
    """Return the version of torch in the environment, with its local part ("2.13.0+cpu")."""
    library = os.path.join(VENV, "lib", "python" + venv_version(), "site-packages")
    found = [re.fullmatch(r"torch-(\d.*)\.dist-info", name) for name in os.listdir(library)]
    versions = [match.group(1) for match in found if match]
    return versions[0] if versions else "none"


def tree_bytes(folder: str) -> int:
    """Return the size of the files under a folder, links not followed."""
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(folder) for name in names)


def set_up(extra: str, torch_source: str, lock_descriptor: int) -> None:
    """Bring the environment to the state that this extra asks for.

    Raises:
        SetupError: It cannot be done.
    """
    started, todo = time.monotonic(), state(extra, torch_source)
    if todo == "ready":
        return
    torch_arguments(torch_source)
    os.makedirs(os.path.dirname(LOG), exist_ok=True)
    open(LOG, "w").close()
    if todo == "build":
        require_disk(shutil.disk_usage(ROOT).free, disk_bytes_needed(torch_source))
        make_venv()
    say("installing the pinned packages (some minutes when they have to be downloaded)")
    install(extra, torch_source, lock_descriptor)
    write_stamp(extra, torch_source)
    size = tree_bytes(VENV) / GIB
    say("done in %.0f s: torch %s, .venv is %.1f GiB" % (time.monotonic() - started, installed_torch(), size))


def main(argv: "list[str]") -> int:
    """Make the environment ready.

    Args:
        argv: Nothing, or `--extra NAME` for one more extra of pyproject.toml on top of `dev`.

    Returns:
        The exit code: 0, EXIT_ENVIRONMENT or EXIT_INTERRUPTED.
    """
    extras = ["dev"] + [name for name in argv if name != "--extra"]
    try:
        torch_source = torch_source_from_environment()
        if all(state(extra, torch_source) == "ready" for extra in extras):
            return 0
        require_python(argv)
        require_platform()
        descriptor = lock()
        for extra in extras:
            set_up(extra, torch_source, descriptor)
    except (SetupError, OSError) as error:
        print("set-up failed: %s" % error, file=sys.stderr)
        return EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        print("set-up stopped; the next make goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
