"""`make core-check`: write the vectors, then build, lint and test both apps' cores, and print what was counted.

What the machine lacks is said in one line each, with how to get it; where CI is set, that is a failure.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from apps import contract, end_to_end, model_signing, outputs, schemas, tampered
from apps.tokenizers import kit, tables

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS = REPOSITORY / "build" / "apps" / "vectors"
SIGNING = REPOSITORY / "build" / "apps" / "model-signing"
KOTLIN, SWIFT = REPOSITORY / "android-demo" / "core", REPOSITORY / "ios-demo" / "Core"
SWIFT_TREE = Path(os.environ.get("POCKETBERT_SWIFT", "/opt/pocketbert/swift"))
"""A Debian tree with Swift in it, for machines without a Swift of their own; `.ci/swift` makes it."""
_COUNTS = re.compile(
    r"^.*(?: rows, .* differ| cases(?:, .*)?| answers of .*|Tests run: \d+.*|Executed \d+ tests?.*)$", re.MULTILINE
)


class Lacking(Exception):
    """The machine has no such tool; the message says how to get it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make core-check", description=__doc__)
    parser.add_argument("--only", choices=("kotlin", "swift"), help="this core alone")
    parser.add_argument("--strings", type=int, default=kit.STRINGS, help="generated strings for each tokenizer")
    parser.add_argument("--no-students", action="store_true", help="leave out what needs the real student (minutes)")
    options = parser.parse_args(arguments)
    failed = [] if _tables_are_right() else ["characters.txt"]
    kit.write(VECTORS, strings=options.strings)
    print(f"post-processing: {outputs.write(VECTORS / 'outputs.jsonl'):,} cases", flush=True)
    cases = contract.write(VECTORS / "contract", VECTORS / "wordpiece" / "tokenizer.json")
    valid, invalid = schemas.write(VECTORS / "schemas.jsonl")
    print(
        f"contract: {cases} folders, {tampered.write(VECTORS / 'signed')} signed ones, documents of "
        f"seven schemas: {valid:,} right and {invalid:,} wrong",
        flush=True,
    )
    shutil.rmtree(SIGNING / "ours", ignore_errors=True)
    shutil.rmtree(SIGNING / "theirs", ignore_errors=True)
    SIGNING.mkdir(parents=True, exist_ok=True)
    try:
        print(f"model-signing {model_signing.VERSION}: {model_signing.check(SIGNING)} cases, as here", flush=True)
    except AssertionError as error:
        print(f"model-signing: {error}", flush=True)
        failed.append("model-signing")
    if options.no_students:
        (end_to_end.FOLDER / "cases.json").unlink(missing_ok=True)
    else:
        began = time.monotonic()
        print(f"end to end: {end_to_end.write()} answers, in {time.monotonic() - began:.0f} s", flush=True)
    checks: dict[str, Callable[[], None]] = {"kotlin": kotlin, "swift": swift}
    for name, check in checks.items():
        if options.only not in (None, name):
            continue
        began = time.monotonic()
        try:
            with contextlib.nullcontext() if options.no_students else end_to_end.serving():
                check()
            if not options.no_students:
                print(f"{name}: {end_to_end.check_runs(name)} records are valid", flush=True)
        except Lacking as error:
            print(f"{name}: not checked: {error}", flush=True)
            if os.environ.get("CI"):
                failed.append(name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: failed with exit code {error.returncode}", flush=True)
            failed.append(name)
        except (AssertionError, OSError, ValueError) as error:
            print(f"{name}: what it wrote is not valid: {error!r}", flush=True)
            failed.append(name)
        else:
            print(f"{name}: checked in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


def _tables_are_right() -> bool:
    """Compare the tables in both cores with the library that is installed."""
    text = tables.write()
    wrong = [place for place in tables.PLACES if place.read_text(encoding="utf-8") != text]
    for place in wrong:
        print(
            f"{place.relative_to(REPOSITORY)} is not what `python -m apps.tokenizers.tables` writes; run it", flush=True
        )
    if not wrong:
        print(f"characters.txt: {len(text.splitlines()) - 1} tables, as the library has them", flush=True)
    return not wrong


_SWIFT_TEST = "swift test -c release -Xswiftc -enable-testing"
"""Optimised: the rows are millions of tokens."""


def kotlin() -> None:
    """Compile, check against Android 8, lint and test the Kotlin core."""
    _print_counts(_maven("verify"))


def kotlin_speed(texts: Path) -> str:
    """Time the Kotlin tokenizers and return what was printed."""
    return _maven("test", "-Dtest=SpeedTest", f"-Dpocketbert.speed={texts}")


def _maven(*arguments: str) -> str:
    for tool, package in (("java", "openjdk-17-jdk"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            raise Lacking(f"there is no {tool}; install {package} (JDK 17 or later, Maven 3.8 or later)")
    students = [f"-Dpocketbert.endtoend={end_to_end.FOLDER}"] if _has_students() else []
    return _run(["mvn", "-q", "-B", *arguments, f"-Dpocketbert.vectors={VECTORS}", *students], KOTLIN)


def _has_students() -> bool:
    return (end_to_end.FOLDER / "cases.json").is_file()


def swift() -> None:
    """Compile, lint and test the Swift core."""
    _print_counts(_swift(_SWIFT_TEST, "swift-format lint --strict -r Sources Tests Package.swift"))


def swift_speed(texts: Path) -> str:
    """Time the Swift tokenizers and return what was printed."""
    return _swift(f"export POCKETBERT_SPEED=$POCKETBERT_VECTORS/{texts.name}", f"{_SWIFT_TEST} --filter SpeedTests")


def _swift(*commands: str) -> str:
    """Run commands in the Swift package, with the machine's own Swift or the one in a tree of its own."""

    def exports(root: str) -> str:
        named = {"POCKETBERT_VECTORS": VECTORS} | (
            {"POCKETBERT_ENDTOEND": end_to_end.FOLDER} if _has_students() else {}
        )
        return " ".join(f"{name}={root}/{place.relative_to(REPOSITORY)}" for name, place in named.items())

    if shutil.which("swift"):
        # Xcode and swift.org have it as `swift format`, Debian as a tool of its own.
        script = "; ".join(command.replace("swift-format", "swift format") for command in commands)
        return _run(["sh", "-ec", f"export {exports(str(REPOSITORY))}; {script}"], SWIFT)
    if not (SWIFT_TREE / "usr" / "libexec" / "swift").is_dir():
        raise Lacking(
            f"there is no swift, and none in {SWIFT_TREE}; install Swift 6, or on Debian run `sudo .ci/swift`, which "
            "makes that tree"
        )
    if os.geteuid() != 0:
        raise Lacking(f"Swift in {SWIFT_TREE} runs as root alone; use sudo, or install Swift 6")
    inside = "/pocketbert"
    environment = f"HOME=/root PATH=$PATH:/usr/libexec/swift/bin {exports(inside)}"
    script = "; ".join((f"cd {inside}/ios-demo/Core", f"export {environment}", *commands))
    script = script.replace(_SWIFT_TEST, f"{_SWIFT_TEST} --scratch-path {inside}/build/apps/swift")
    mounts = (
        f"mkdir -p {SWIFT_TREE}{inside}",
        f"mount -t proc proc {SWIFT_TREE}/proc",
        f"mount --rbind /dev {SWIFT_TREE}/dev",
        f"mount --bind {REPOSITORY} {SWIFT_TREE}{inside}",
        f"exec chroot {SWIFT_TREE} sh -ec {shlex.quote(script)}",
    )
    # The mounts are this process's alone and go with it.
    return _run(["unshare", "--mount", "sh", "-ec", "; ".join(mounts)], REPOSITORY)


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a tool and return what it printed; print that if it fails."""
    log = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if log.returncode != 0:
        print(log.stdout[-20_000:], flush=True)
        log.check_returncode()
    return log.stdout


def _print_counts(log: str) -> None:
    # A test that is skipped says nothing.
    assert not _has_students() or "end to end: " in log, "the end-to-end tests did not run"
    print("\n".join(_COUNTS.findall(log)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
