"""`make foreign`: files of other tools, right and silently wrong, and what `pocketbert verify --against` says of each.

The files are made by the tools themselves from small students; some with a mistake that people make. What was made and
judged is kept, so a stopped run goes on where it was. ONNX needs the extra `peers`.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.foreign_cases import CASES, Case, make
from benchmarks.foreign_modules import write_student
from pipeline.atomic import remove, write_text
from pipeline.errors import PipelineError
from pipeline.execution.worker import Worker
from pipeline.foreign.judge import Request, judge

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build" / "foreign"
RECORD = REPOSITORY / "benchmarks" / "results" / "foreign.json"
PAGE = REPOSITORY / "benchmarks" / "FOREIGN.md"


@dataclass(frozen=True)
class Result:
    """What was said of one file."""

    name: str
    verdict: str
    """Of the judgement; `error` where there was none."""
    cause: str
    said: str
    score: float | None
    """Mean cosine of an embedding, or mean SQNR in dB of a head's outputs."""
    seconds: float

    def fits(self, case: Case) -> bool:
        """Return whether it is what has to be said."""
        cause = self.cause.startswith(case.cause) if case.cause else self.cause == ""
        return self.verdict == case.verdict and cause

    def tells_apart(self, case: Case) -> bool:
        """Return whether right and wrong are told apart, whatever else is said."""
        return self.verdict != "error" and (self.verdict == "another") == (case.verdict == "another")


def main() -> int:
    """Make and judge the chosen files, and write record and page."""
    parser = argparse.ArgumentParser(prog="make foreign", description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="files with this in their name")
    parser.add_argument("--page", action="store_true", help="write the page of the record, judge nothing")
    parser.add_argument("--again", action="store_true", help="judge files again that were judged before")
    parser.add_argument("--list", action="store_true", help="name the files and stop")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{case.name}{case.suffix}: {case.verdict} {case.cause}".rstrip() for case in CASES))
        return 0
    results = _read()
    chosen = [case for case in CASES if not options.only or any(word in case.name for word in options.only)]
    todo = [] if options.page else [case for case in chosen if options.again or case.name not in results]
    if importlib.util.find_spec("onnxruntime") is None:
        print("the .onnx files are not run, since onnxruntime is not installed", file=sys.stderr)
        todo = [case for case in todo if case.suffix != ".onnx"]
    for case, found in _runs(todo):
        results[case.name] = found
        print(f"{'ok  ' if found.fits(case) else 'BAD '} {case.name}: {found.said}", file=sys.stderr, flush=True)
        _write(results)
    write_text(PAGE, "\n".join(page(results)) + "\n")
    judged = [case for case in CASES if case.name in results]
    bad = [case.name for case in judged if not results[case.name].fits(case)]
    print(
        "; not: ".join([f"{len(judged) - len(bad)} of {len(judged)} as expected", *([", ".join(bad)] if bad else [])])
    )
    return 1 if bad else 0


def _runs(cases: list[Case]) -> Iterator[tuple[Case, Result]]:
    """Yield each case with what was said of its file; one worker makes files until a tool takes it down."""
    log = BUILD / "making.log"
    maker = Worker(log)
    try:
        for case in cases:
            found = run(case, maker)
            if found.verdict == "error":
                maker.close()
                maker = Worker(log)
            yield case, found
    finally:
        maker.close()


def run(case: Case, maker: Worker) -> Result:
    """Make a case's file in a worker unless it is there, and judge it."""
    began = time.monotonic()
    student = BUILD / "students" / case.student
    file = BUILD / "files" / f"{case.name}{case.suffix}"
    try:
        if not student.is_dir():
            maker.call(write_student, case.student, student)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_name(f"making-{file.name}")
            remove(aside)
            maker.call(make, case.name, student, aside)
            aside.rename(file)
        found = judge(Request(file, str(student), None, None, thorough=False), lambda text: None)
    except PipelineError as error:
        said = str(error).replace(str(REPOSITORY), "").split("\n")[0]
        return Result(case.name, "error", "", said, None, time.monotonic() - began)
    return Result(
        case.name,
        found.verdict,
        found.cause.name if found.cause else "",
        found.said,
        found.mean_score,
        time.monotonic() - began,
    )


def _read() -> dict[str, Result]:
    if not RECORD.is_file():
        return {}
    return {row["name"]: Result(**row) for row in json.loads(RECORD.read_text(encoding="utf-8"))}


def _write(results: dict[str, Result]) -> None:
    rows = [asdict(results[case.name]) for case in CASES if case.name in results]
    write_text(RECORD, json.dumps(rows, indent=1) + os.linesep)


# --- the page ----------------------------------------------------------------------------------------------------


def page(results: dict[str, Result]) -> Iterator[str]:
    """Yield the lines of FOREIGN.md, from the record alone."""
    judged = [case for case in CASES if case.name in results]
    wrong = [case for case in judged if case.verdict == "another"]
    apart = sum(results[case.name].tells_apart(case) for case in judged)
    named = sum(results[case.name].fits(case) for case in wrong)
    yield from (
        "# Files of other tools",
        "",
        f"Generated by `make foreign`: of {len(judged)} files that other tools made, {len(judged) - len(wrong)} right",
        f"and {len(wrong)} with a mistake, {apart} are told apart by `pocketbert verify FILE --against CHECKPOINT`;",
        f"of the mistakes {named} are named as what they are. {len(CASES) - len(judged)} of the list were not run.",
        "",
        "Students have two layers of 64 and random weights of a wide spread. The tools are those of the environment",
        "and of the extra `peers`, called as their own documentation shows; each call is a function in",
        "`benchmarks/foreign_tools.py`. A score is a mean cosine, or a mean SQNR in dB for a head's outputs.",
        "",
        "| file | student | tool | verdict | score | what was said |",
        "|---|---|---|---|--:|---|",
    )
    for case in CASES:
        yield _line(case, results.get(case.name))


def _line(case: Case, result: Result | None) -> str:
    start = f"| {case.name}{case.suffix} | {case.student} | `{case.tool.__name__}`"
    if result is None:
        return f"{start} | not run | | |"
    mark = "" if result.fits(case) else f" (expected: {case.verdict} {case.cause})"
    score = "" if result.score is None else f"{result.score:.5g}"
    return f"{start} | {result.verdict}{mark} | {score} | {result.said.replace('|', '/')} |"


if __name__ == "__main__":
    sys.exit(main())
