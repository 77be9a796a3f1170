"""`make core-check`: write the vectors, then build, lint and test both apps' cores, and print what was counted.

What the machine lacks is said in one line each, with how to get it; where CI is set, that is a failure.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from apps import contract, end_to_end, model_signing, outputs, schemas, tampered, toolchains
from apps.tokenizers import kit, tables

VECTORS = toolchains.APPS / "vectors"
SIGNING = toolchains.APPS / "model-signing"
_COUNTS = re.compile(
    r"^.*(?: rows, .* differ| cases(?:, .*)?| answers of .*|Tests run: \d+.*|Executed \d+ tests?.*)$", re.MULTILINE
)


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
        except toolchains.Lacking as error:
            print(f"{name}: not checked: {error}", flush=True)
            if os.environ.get("CI"):
                failed.append(name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: failed with exit code {error.returncode}", flush=True)
            failed.append(name)
        except (AssertionError, OSError, ValueError) as error:
            # `python -m` rewrites no asserts: without its line, one that has no message says nothing.
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{name}: what it wrote is not valid: {error!r}\n  {place.name}: {place.line}", flush=True)
            failed.append(name)
        else:
            print(f"{name}: checked in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


def _tables_are_right() -> bool:
    """Compare the tables in both cores with the library that is installed."""
    text = tables.write()
    wrong = [place for place in tables.PLACES if place.read_text(encoding="utf-8") != text]
    for place in wrong:
        where = place.relative_to(toolchains.REPOSITORY)
        print(f"{where} is not what `python -m apps.tokenizers.tables` writes; run it", flush=True)
    if not wrong:
        print(f"characters.txt: {len(text.splitlines()) - 1} tables, as the library has them", flush=True)
    return not wrong


def kotlin() -> None:
    """Compile, check against Android 8, lint and test the Kotlin core."""
    properties = {"vectors": VECTORS} | ({"endtoend": end_to_end.FOLDER} if _has_students() else {})
    _print_counts(toolchains.maven("verify", *(f"-Dpocketbert.{name}={place}" for name, place in properties.items())))


def swift() -> None:
    """Compile, lint and test the Swift core."""
    paths = {"POCKETBERT_VECTORS": VECTORS} | ({"POCKETBERT_ENDTOEND": end_to_end.FOLDER} if _has_students() else {})
    _print_counts(toolchains.swift_test(paths=paths, lint=("Sources", "Tests", "Package.swift")))


def _has_students() -> bool:
    return (end_to_end.FOLDER / "cases.json").is_file()


def _print_counts(log: str) -> None:
    # A test that is skipped says nothing.
    assert not _has_students() or "end to end: " in log, "the end-to-end tests did not run"
    print("\n".join(_COUNTS.findall(log)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
