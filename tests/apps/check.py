"""`make core-check`: write the vectors, then build, lint and test both apps' cores, and print what was counted."""

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from apps import contract, end_to_end, lanes, model_signing, outputs, schemas, search_cases, tampered, toolchains
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
    written: list[lanes.Checks] = [
        {"characters.txt": _tables, "vectors": partial(_vectors, options.strings), "model-signing": _signatures}
    ]
    if options.no_students:
        (end_to_end.FOLDER / "cases.json").unlink(missing_ok=True)
    else:
        written.append({"end to end": lambda: f"{end_to_end.write()} answers"})
    failed = lanes.beside(*written)
    if {"vectors", "end to end"} & set(failed):
        return 1
    chosen = [(name, check) for name, check in (("kotlin", kotlin), ("swift", swift)) if options.only in (None, name)]
    with end_to_end.serving():
        failed += lanes.beside(*({name: check} for name, check in chosen))
    return 1 if failed else 0


def _tables() -> str:
    """Compare the tables in both cores with the library that is installed."""
    text = tables.write()
    wrong = [place for place in tables.PLACES if place.read_text(encoding="utf-8") != text]
    where = " and ".join(str(place.relative_to(toolchains.REPOSITORY)) for place in wrong)
    assert not wrong, f"{where}: not what `python -m apps.tokenizers.tables` writes; run it"
    return f"{len(text.splitlines()) - 1} tables, as the library has them"


def _vectors(strings: int) -> str:
    """Write what both cores' tests read and need no model for."""
    kit.write(VECTORS, strings=strings)
    rows = outputs.write(VECTORS / "outputs.jsonl")
    cases = contract.write(VECTORS / "contract", VECTORS / "wordpiece" / "tokenizer.json")
    valid, invalid = schemas.write(VECTORS / "schemas.jsonl")
    searches = search_cases.write(VECTORS / "search")
    return (
        f"{rows:,} cases of post-processing, {searches} searches, {cases} folders, "
        f"{tampered.write(VECTORS / 'signed')} signed ones, "
        f"documents of seven schemas: {valid:,} right and {invalid:,} wrong"
    )


def _signatures() -> str:
    """Compare signatures with those of the library that others use."""
    shutil.rmtree(SIGNING / "ours", ignore_errors=True)
    shutil.rmtree(SIGNING / "theirs", ignore_errors=True)
    SIGNING.mkdir(parents=True, exist_ok=True)
    return f"{model_signing.check(SIGNING)} cases of version {model_signing.VERSION}, as here"


def kotlin() -> str:
    """Compile, check against Android 8, lint and test the Kotlin core; say how many records of its runs are valid."""
    log = toolchains.maven("verify", *(f"-Dpocketbert.{name}={place}" for name, place in _places().items()))
    return _counted("kotlin", log)


def swift() -> str:
    """Compile, lint and test the Swift core; say how many records of its runs are valid."""
    paths = {f"POCKETBERT_{name.upper()}": place for name, place in _places().items()}
    return _counted("swift", toolchains.swift_test(paths=paths, lint=("Sources", "Tests", "Package.swift")))


def _places() -> dict[str, Path]:
    return {"vectors": VECTORS} | ({"endtoend": end_to_end.FOLDER} if end_to_end.has_students() else {})


def _counted(name: str, log: str) -> str:
    print("\n".join(f"{name}: {line.strip()}" for line in _COUNTS.findall(log)), flush=True)
    indexes = f"{search_cases.check(VECTORS / 'search', name)} indexes of it are searched here with the same result"
    if not end_to_end.has_students():
        return f"checked without students; {indexes}"
    # A test that is skipped says nothing.
    assert "end to end: " in log, "the end-to-end tests did not run"
    return f"{end_to_end.check_runs(name)} records are valid; {indexes}"


if __name__ == "__main__":
    sys.exit(main())
