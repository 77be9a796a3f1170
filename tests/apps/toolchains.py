"""Maven and Swift, run in the apps' projects: the machine's own Swift, or the one of a Debian tree."""

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
APPS = REPOSITORY / "build" / "apps"
KOTLIN, SWIFT = REPOSITORY / "android-demo" / "core", REPOSITORY / "ios-demo" / "Core"
SWIFT_TREE = Path(os.environ.get("POCKETBERT_SWIFT", "/opt/pocketbert/swift"))
"""A Debian tree with Swift in it, for machines without a Swift of their own; `.ci/swift` makes it."""
SWIFT_SCRATCH = APPS / "swift" / "packages"
"""Where all packages are compiled: the view models' tests find the core compiled by its own, a minute's work."""
_INSIDE = "/pocketbert"
"""Where the tree sees the repository."""
LIMIT_SECONDS = 30 * 60
"""For one command. The longest takes five minutes on two cores; one that hangs may not take CI's whole time."""
SHORT_LIVED_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java's options for tools that end before its second compiler pays: half the processor time on two cores."""


class Lacking(Exception):
    """The machine has no such tool; the message says how to get it."""


def maven(*arguments: str, project: Path = KOTLIN, environment: Mapping[str, str] | None = None) -> str:
    """Run Maven in a project and return what it printed.

    Raises:
        Lacking: there is no Java or no Maven.
        subprocess.CalledProcessError: it failed; what it printed has been printed.
    """
    for tool, package in (("java", "openjdk-17-jdk"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            raise Lacking(f"there is no {tool}; install {package} (JDK 17 or later, Maven 3.8 or later)")
    # Kotlin's compiler is a process of its own, which later calls find warm.
    options = f"-Dkotlin.daemon.jvm.options={','.join(SHORT_LIVED_JAVA)}"
    # A caller's own options may name a proxy, or another collector, beside which ours would be refused.
    own = {"MAVEN_OPTS": os.environ.get("MAVEN_OPTS") or " ".join(SHORT_LIVED_JAVA)}
    return run(["mvn", "-q", "-B", options, *arguments], project, own | dict(environment or {}))


def swift_test(
    *arguments: str, package: Path = SWIFT, paths: Mapping[str, Path] | None = None, lint: Sequence[str] = ()
) -> str:
    """Test a Swift package, optimised since the rows are millions of tokens, and return what was printed.

    Args:
        arguments: more of `swift test`.
        package: the package's folder.
        paths: environment variables that name places within the repository.
        lint: what swift-format reads, relative to the package; nothing without.

    Raises:
        Lacking: there is no Swift.
        subprocess.CalledProcessError: it failed; what it printed has been printed.
    """
    # SwiftPM 6.0 does not see a new file of a package that another one depends on.
    (SWIFT_SCRATCH / "release.yaml").unlink(missing_ok=True)
    command = ["swift", "test", "-c", "release", "-Xswiftc", "-enable-testing", "--scratch-path", str(SWIFT_SCRATCH)]
    commands = [shlex.join([*command, *arguments])]
    if lint:
        commands.append(f"swift-format lint --strict -r {shlex.join(lint)}")
    return swift(*commands, package=package, paths=paths)


def swift(*commands: str, package: Path = SWIFT, paths: Mapping[str, Path] | None = None) -> str:
    """Run shell commands that need Swift in a package's folder, and return what they printed.

    Raises:
        Lacking: there is no Swift.
        subprocess.CalledProcessError: one failed; what was printed has been printed.
    """
    exports = [f"{name}={place}" for name, place in (paths or {}).items()]
    if shutil.which("swift"):
        # Xcode and swift.org have it as `swift format`, Debian as a tool of its own.
        script = "; ".join(command.replace("swift-format", "swift format") for command in commands)
        return run(["sh", "-ec", "; ".join(([f"export {shlex.join(exports)}"] if exports else []) + [script])], package)
    if not (SWIFT_TREE / "usr" / "libexec" / "swift").is_dir():
        raise Lacking(
            f"there is no swift, and none in {SWIFT_TREE}; install Swift 6, or on Debian run `sudo .ci/swift`, which "
            "makes that tree"
        )
    if os.geteuid() != 0:
        raise Lacking(f"Swift in {SWIFT_TREE} runs as root alone; use sudo, or install Swift 6")
    script = "; ".join(
        (
            f"cd {_INSIDE}/{package.relative_to(REPOSITORY)}",
            f"export HOME=/root PATH=$PATH:/usr/libexec/swift/bin {shlex.join(exports)}",
            *commands,
        )
    )
    script = script.replace(str(REPOSITORY), _INSIDE)
    mounts = (
        f"mkdir -p {SWIFT_TREE}{_INSIDE}",
        f"mount -t proc proc {SWIFT_TREE}/proc",
        f"mount --rbind /dev {SWIFT_TREE}/dev",
        f"mount --bind {REPOSITORY} {SWIFT_TREE}{_INSIDE}",
        f"exec chroot {SWIFT_TREE} sh -ec {shlex.quote(script)}",
    )
    # The mounts are this process's alone and go with it.
    return run(["unshare", "--mount", "sh", "-ec", "; ".join(mounts)], REPOSITORY)


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> str:
    """Run a tool and return what it printed; print that if it fails.

    Raises:
        subprocess.CalledProcessError: it failed, or had not ended within the limit; what it printed has been printed.
    """
    # A file and not a pipe: a daemon that a tool leaves behind holds a pipe open, and its reader would wait for it.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            print(f"not ended after {limit_seconds:.0f} s, so it was killed: {shlex.join(command)[:500]}", flush=True)
        finally:
            _kill(process)
        log.seek(0)
        printed = log.read().decode("utf-8", errors="replace")
    if process.returncode != 0:
        print(printed[-20_000:], flush=True)
        raise subprocess.CalledProcessError(process.returncode, command, printed)
    return printed


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that has not ended, and all that it started."""
    if process.poll() is not None:
        return
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(started, timeout=10)
