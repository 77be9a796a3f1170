"""`make coverage`: fifty encoders that people put on devices, each from a folder in the hub's layout to verified files.

Each row goes through `init`, and the drafted recipe, in all three formats at fp32 and int8, through `run` up to the
verdict. The student stage compares an embedding model or a cross-encoder with sentence-transformers on the same folder,
so a row that passes is what that library computes. What was made before by the same code is kept, so a stopped run goes
on where it was.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.coverage_folders import HEAD_WIDTH, LAYERS, VOCABULARY, write
from benchmarks.coverage_rows import ROWS, Row
from pipeline import artifact, formats
from pipeline.atomic import write_text
from pipeline.cli.progress import Progress
from pipeline.convert.stage import Target, targets
from pipeline.errors import PipelineError
from pipeline.execution.worker import Worker
from pipeline.planning import run as running
from pipeline.planning.draft import draft
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.verify import stage as verify

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build" / "coverage"
RECORD = REPOSITORY / "benchmarks" / "results" / "coverage.json"
PAGE = REPOSITORY / "benchmarks" / "COVERAGE.md"
TARGETS = (
    Target("litert", "fp32"),
    Target("litert", "int8_dynamic"),
    Target("coreml", "fp32"),
    Target("coreml", "int8_weight_only"),
    Target("executorch", "fp32"),
    Target("executorch", "int8_dynamic"),
)
LENGTHS = (32,)


@dataclass(frozen=True)
class Cell:
    """One file of a row."""

    target: str
    verdict: str
    file_bytes: int
    seconds: float
    """Of the conversion."""
    worst: float | None
    """Worst cosine of an embedding, or worst SQNR in dB of logits."""
    reason: str = ""


@dataclass(frozen=True)
class Result:
    """What became of a row."""

    number: int
    hub: str
    task: str = ""
    missing: str = ""
    """Why the row stopped before its files were judged; empty if they were."""
    cells: tuple[Cell, ...] = ()
    seconds: float = 0.0
    prompts: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every file passed."""
        return not self.missing and bool(self.cells) and all(cell.verdict == "passed" for cell in self.cells)


def main() -> int:
    """Take the chosen rows through the line, and write record and page."""
    parser = argparse.ArgumentParser(prog="make coverage", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="rows with this in their hub id, or of this number"
    )
    parser.add_argument("--page", action="store_true", help="write the page of the record, make nothing")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.only or any(_named(row, part) for part in options.only)]
    if options.list:
        print("\n".join(f"{row.number:3} {row.hub:60} {row.model_type}" for row in chosen))
        return 0
    results = _read()
    for row in () if options.page else chosen:
        print(f"{row.number} {row.hub}", file=sys.stderr)
        results[row.number] = run(row)
        _write(results)
    write_text(PAGE, "\n".join(page(results)) + "\n")
    passed = sum(one.passed for one in results.values())
    print(f"{passed} of {len(ROWS)} pass, {len(ROWS) - len(results)} were not run")
    return 0


def _named(row: Row, part: str) -> bool:
    return part == str(row.number) or (not part.isdigit() and part in row.hub)


def run(row: Row) -> Result:
    """Take one row through the line."""
    began = time.monotonic()
    folder = BUILD / "folders" / f"{row.number:02}" / row.hub.split("/")[1]
    recipe_file = BUILD / f"row-{row.number:02}.toml"
    if not folder.is_dir():
        with Worker(BUILD / "folders.log") as worker:
            worker.call(write, row, folder)
    try:
        drafted = draft(
            str(folder), recipe_file, name=f"row-{row.number:02}", task=None, force=True, tell=lambda text: None
        )
        values = tomllib.loads(recipe_file.read_text(encoding="utf-8"))
        values["student"]["random_weights"] = True
        values["convert"] = {"sequence_lengths": list(LENGTHS)}
        values["targets"] = {
            name: {"schemes": [one.scheme for one in TARGETS if one.backend == name]} for name in formats.NAMES
        }
        values["verify"] = {"datasets": ["none"]}
        values.pop("quantize", None)
        recipe = loading.checked(values, recipe_file)
        with Progress(quiet=True) as progress, contextlib.chdir(REPOSITORY):
            outcome = running.run(Request(recipe, recipe_file, "verify", targets(recipe)), BUILD, progress)
    except PipelineError as error:
        shown = str(error).replace(str(folder), folder.name).replace(str(recipe_file), recipe_file.name)
        return Result(row.number, row.hub, missing=shown.split("\n")[0], seconds=time.monotonic() - began)
    view = BUILD / recipe.name
    parities = running.parities(outcome, recipe.name)
    return Result(
        row.number,
        row.hub,
        task=drafted.task,
        cells=tuple(_cell(view / str(target)) for target in TARGETS if parities),
        seconds=time.monotonic() - began,
        prompts=tuple(drafted.checkpoint.prompts),
    )


def _cell(place: Path) -> Cell:
    parity = verify.read_parity(place / "parity")
    found = artifact.load(place / "model").manifest.metrics
    return Cell(
        target=place.name,
        verdict=parity.verdict,
        file_bytes=found["file_bytes"],
        seconds=found["convert_seconds"],
        worst=parity.measures.worst_score if parity.measures else None,
        reason=parity.reasons[0] if parity.reasons else "",
    )


def _read() -> dict[int, Result]:
    if not RECORD.is_file():
        return {}
    rows: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return {
        row["number"]: Result(
            **{**row, "cells": tuple(Cell(**cell) for cell in row["cells"]), "prompts": tuple(row["prompts"])}
        )
        for row in rows
    }


def _write(results: dict[int, Result]) -> None:
    rows = [asdict(results[number]) for number in sorted(results)]
    write_text(RECORD, json.dumps(rows, indent=1) + os.linesep)


# --- the page ----------------------------------------------------------------------------------------------------


def page(results: dict[int, Result]) -> Iterator[str]:
    """Yield the lines of COVERAGE.md, from the record alone."""
    passed = sum(one.passed for one in results.values())
    yield from (
        "# Coverage",
        "",
        f"Generated by `make coverage`: {passed} of {len(ROWS)} encoders that people put on devices pass whole.",
        "",
        "A row is a folder in the hub's own layout: model type, config keys, modules, prompts, labels and kind of",
        f"tokenizer as published, with random weights, {LAYERS} layers, heads of {HEAD_WIDTH} columns, a feed-forward",
        f"of twice the hidden size, and {VOCABULARY:,} tokens trained on the package's texts; static tables keep their",
        "width. It goes through `init` and the drafted recipe, in three formats at fp32 and int8, at one length of 32",
        "tokens, up to the verdict. Embedding models and cross-encoders are compared with sentence-transformers on the",
        "same folder; the others with transformers' own class. Sizes are of the cut models, and seconds are of a busy",
        "machine with two cores. Weights below a head of one number are spread wider, since others would give nearly",
        "the same number for every text; the worst SQNR there is that of a text whose number is near zero. Whether a",
        "trained one is as good, its own run says.",
        "",
        "| # | encoder | type | task | files | worst of fp32 / int8 | MB of fp32 / int8 | s |",
        "|--:|---|---|---|---|---|---|--:|",
    )
    for row in ROWS:
        yield _line(row, results.get(row.number))


def _line(row: Row, result: Result | None) -> str:
    start = f"| {row.number} | {row.hub} | {row.model_type}"
    if result is None:
        return f"{start} | — | not run | | | |"
    if result.missing:
        return f"{start} | — | missing: {result.missing} | | | {result.seconds:.0f} |"
    failed = [cell for cell in result.cells if cell.verdict != "passed"]
    files = f"{len(result.cells)} passed" if not failed else "; ".join(f"{one.target}: {one.reason}" for one in failed)
    full = [cell for cell in result.cells if cell.target.endswith("fp32")]
    small = [cell for cell in result.cells if not cell.target.endswith("fp32")]
    worst = " / ".join(_worst(cells, result.task) for cells in (full, small))
    sizes = " / ".join(f"{max(cell.file_bytes for cell in cells) / 1e6:.2f}" for cells in (full, small))
    return f"{start} | {result.task} | {files} | {worst} | {sizes} | {result.seconds:.0f} |"


def _worst(cells: list[Cell], task: str) -> str:
    found = [cell.worst for cell in cells if cell.worst is not None]
    if not found:
        return "—"
    return f"{min(found):.5f}" if task == "embedding" else f"{min(found):.1f} dB"


if __name__ == "__main__":
    sys.exit(main())
