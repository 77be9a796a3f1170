"""`make core-check`: write the vectors, then build, lint and test both apps' cores, and print what was counted.

What the machine lacks is said in one line each, with how to get it; where CI is set, that is a failure.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from apps import contract, outputs
from apps.tokenizers import kit, tables

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS = REPOSITORY / "build" / "apps" / "vectors"
KOTLIN, SWIFT = REPOSITORY / "android-demo" / "core", REPOSITORY / "ios-demo" / "Core"
SWIFT_TREE = Path(os.environ.get("POCKETBERT_SWIFT", "/opt/pocketbert/swift"))
"""A Debian tree with Swift in it, for machines without a Swift of their own; `.ci/swift` makes it."""
_COUNTS = re.compile(
    r"^.*(?: rows, .* differ| cases(?:, none differs)?|Tests run: \d+.*|Executed \d+ tests?.*)$", re.MULTILINE
)


class Lacking(Exception):
    """The machine has no such tool; the message says how to get it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make core-check", description=__doc__)
    parser.add_argument("--only", choices=("kotlin", "swift"), help="this core alone")
    parser.add_argument("--strings", type=int, default=kit.STRINGS, help="generated strings for each tokenizer")
    options = parser.parse_args(arguments)
    failed = [] if _tables_are_right() else ["characters.txt"]
    kit.write(VECTORS, strings=options.strings)
    print(f"post-processing: {outputs.write(VECTORS / 'outputs.jsonl'):,} cases", flush=True)
    cases = contract.write(VECTORS / "contract", VECTORS / "wordpiece" / "tokenizer.json")
    print(f"contract: {cases} folders", flush=True)
    checks: dict[str, Callable[[], None]] = {"kotlin": kotlin, "swift": swift}
    for name, check in checks.items():
        if options.only not in (None, name):
            continue
        began = time.monotonic()
        try:
            check()
        except Lacking as error:
            print(f"{name}: not checked: {error}", flush=True)
            if os.environ.get("CI"):
                failed.append(name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: failed with exit code {error.returncode}", flush=True)
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


def kotlin() -> None:
    """Compile, check against Android 8, lint and test the Kotlin core."""
    for tool, package in (("java", "openjdk-17-jdk"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            raise Lacking(f"there is no {tool}; install {package} (JDK 17 or later, Maven 3.8 or later)")
    _run(["mvn", "-q", "-B", "verify", f"-Dpocketbert.vectors={VECTORS}"], KOTLIN, dict(os.environ))


def swift() -> None:
    """Compile, lint and test the Swift core, with the machine's own Swift or the one in a tree of its own."""
    # Optimised: the rows are a million tokens.
    test = "swift test -c release -Xswiftc -enable-testing"
    if shutil.which("swift"):
        _run(["sh", "-ec", f"{test} && swift format lint --strict -r Sources Tests Package.swift"], SWIFT,
             os.environ | {"POCKETBERT_VECTORS": str(VECTORS)})  # fmt: skip
        return
    if not (SWIFT_TREE / "usr" / "libexec" / "swift").is_dir():
        raise Lacking(
            f"there is no swift, and none in {SWIFT_TREE}; install Swift 6, or on Debian run `sudo .ci/swift`, which "
            "makes that tree"
        )
    if os.geteuid() != 0:
        raise Lacking(f"Swift in {SWIFT_TREE} runs as root alone; use sudo, or install Swift 6")
    vectors = Path("/pocketbert") / VECTORS.relative_to(REPOSITORY)
    inside = f"cd /pocketbert/ios-demo/Core; export HOME=/root POCKETBERT_VECTORS={vectors}"
    lint = "/usr/libexec/swift/bin/swift-format lint --strict -r Sources Tests Package.swift"
    script = f"""
        mkdir -p {SWIFT_TREE}/pocketbert
        mount -t proc proc {SWIFT_TREE}/proc
        mount --rbind /dev {SWIFT_TREE}/dev
        mount --bind {REPOSITORY} {SWIFT_TREE}/pocketbert
        exec chroot {SWIFT_TREE} sh -ec '{inside}; {test} --scratch-path /pocketbert/build/apps/swift; {lint}'
    """
    # The mounts are this process's alone and go with it.
    _run(["unshare", "--mount", "sh", "-ec", script], REPOSITORY, dict(os.environ))


def _run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a tool; print its counts, and everything if it fails."""
    log = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if log.returncode != 0:
        print(log.stdout[-20_000:], flush=True)
        log.check_returncode()
    print("\n".join(_COUNTS.findall(log.stdout)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
