"""`make schemes`: the bundled student in every scheme that rounds, and SCHEMES.md from the records.

The recipes lie in `benchmarks/schemes/`. Each file has a record, so that a run may be stopped, or go on in another
checkout; training takes most of the time. Files that need no training are timed in one run, which is to have the
machine for itself: `--times`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks import schemes_record
from benchmarks.records import State
from benchmarks.schemes_record import LENGTH, RECIPES, FileRecord, Times
from benchmarks.trials_scores import OLDER, written
from pipeline import formats
from pipeline.checkpoint.files import read_json
from pipeline.cli.progress import Progress
from pipeline.convert.stage import Target
from pipeline.convert.targets import choose_targets
from pipeline.planning import run as running
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.report.record import Report
from pipeline.schemes import SCHEMES

PAGE = Path(__file__).parent / "SCHEMES.md"
BUILD = Path("build") / "schemes"
BASES = {"litert": "int8_dynamic", "executorch": "int8_dynamic", "coreml": "int8_weight_only"}
"""What times and sizes are set against, by backend."""
_STUDENTS = {
    "schemes": "calibrated",
    "mixed": "calibrated, 7 of 36 linears at 8 bits",
    "small": "calibrated, tables of 4 bits",
    "plain": "as it is",
    "coreml": "calibrated",
    "coreml_small": "calibrated, tables of 4 bits",
    "trained": "calibrated and trained",
    "small_trained": "calibrated and trained, tables of 4 bits",
    "coreml_trained": "calibrated and trained",
}
"""By the recipe's name, what its students are; those that take longest come last."""
_TIMED = "schemes"
"""The recipe whose report times its own files and those of the recipes beside it."""
_HEADING = (
    "| scheme | student | MB | ratio | cosine, mean / worst | Spearman | recall@1 | recall@10 kept | ms | ratio "
    "| in integers | verdict |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


def main() -> int:
    """Make the files without a record of this code, and write the page."""
    parser = argparse.ArgumentParser(prog="make schemes", description=__doc__)
    parser.add_argument("--only", choices=tuple(_STUDENTS), action="append", help="files of this recipe; repeatable")
    parser.add_argument("--build", type=Path, default=BUILD, help="folder for artifacts")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--list", action="store_true", help="print recipes, targets and their records, make nothing")
    alone.add_argument("--page", action="store_true", help="write the page of the records at hand, make nothing")
    alone.add_argument("--times", action="store_true", help="time the files that need no training, in one run")
    options = parser.parse_args()
    chosen = options.only or list(_STUDENTS)
    if options.list:
        for name in chosen:
            print(name, *(f"{target} ({schemes_record.read(name, target)[1]})" for target in _targets(name)))
        return 0
    if not options.page:
        with Progress(quiet=False) as progress:
            if options.times:
                _time(options.build, progress)
            else:
                for name in chosen:
                    _make(name, options.build, progress)
                    _write()
    _write()
    return 0


def _targets(name: str) -> list[Target]:
    recipe, _ = loading.read_recipe(str(RECIPES / f"{name}.toml"))
    return choose_targets(recipe, [])


def _make(name: str, build: Path, progress: Progress) -> None:
    """Convert and judge the files of a recipe that have no record of this code."""
    recipe, file = loading.read_recipe(str(RECIPES / f"{name}.toml"))
    lacking = [target for target in _targets(name) if schemes_record.read(name, target)[1] != "there"]
    if not lacking:
        progress.note(f"{name}: every file has a record")
        return
    running.run(Request(recipe, file, "verify", lacking), build, progress)
    schemes_record.write(name, build / name, lacking)


def _time(build: Path, progress: Progress) -> None:
    """Time the files that need no training, all in turns."""
    recipe, file = loading.read_recipe(str(RECIPES / f"{_TIMED}.toml"))
    running.run(Request(recipe, file, "report", _targets(_TIMED)), build, progress)
    report = Report.model_validate(read_json(build / recipe.name / "report" / "report.json"))
    schemes_record.write_times(report, _TIMED, build)


def _write() -> None:
    PAGE.write_text("\n".join(_page()) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")


# --- the page ----------------------------------------------------------------------------------------------------


def _page() -> Iterator[str]:
    """Yield the page's lines."""
    found = {(name, target): schemes_record.read(name, target) for name in _STUDENTS for target in _targets(name)}
    states = [state for _, state in found.values()]
    counted = f"Of {len(states)} files {states.count('there')} have a record of this code"
    if "older" in states:
        counted += f", {states.count('older')} one of older code, marked{OLDER}"
    if lacking := states.count("stale") + states.count("not run"):
        counted += f", and {lacking} none"
    timed = schemes_record.times()
    yield from ("# Schemes", "")
    yield from written(f"""
        Generated by `make schemes` from `benchmarks/results/schemes/`; nothing here is written by hand. {counted}. The
        recipes are in `benchmarks/schemes/`; what the schemes are and which to take:
        [docs/quantisation.md](../docs/quantisation.md).
        """)
    yield ""
    yield f"Student: {next((record.origin for record, _ in found.values() if record), 'not run')}."
    if timed:
        yield f"Machine of the times: {timed.machine}."
    yield ""
    yield from written(f"""
        Cosines are to fp32 PyTorch over the verification texts, which calibration and training have not seen. Spearman
        is on STS-B dev, times 100. Recall is over 772 questions of XQuAD and RTE, times 100, behind it the 95 %
        interval of the difference to PyTorch. Times are medians of full rows of {LENGTH} tokens on one thread, all
        files of both runtimes in turns; a trained file has the operations of the calibrated one, and is not timed.
        Ratios are to the same format's calibrated `int8_dynamic`, which Core ML does not have: there to
        `int8_weight_only`. The share of the linears' multiply-adds that are done in integers is read from each file.
        PocketBERT's interpreter ran Core ML's files, which says nothing of their speed.
        """)
    for backend in formats.NAMES:
        rows = [
            (record, state)
            for (_, target), (record, state) in found.items()
            if target.backend == backend and record is not None
        ]
        if rows:
            yield from ("", f"## {formats.get(backend).TITLE}", "", *_HEADING)
            base = next((record for record, _ in rows if _is_base(record)), None)
            yield from (_line(record, state, base, timed) for record, state in rows)


def _is_base(record: FileRecord) -> bool:
    return record.scheme == BASES[record.backend] and record.student in ("schemes", "coreml")


def _line(record: FileRecord, state: State, base: FileRecord | None, timed: Times | None) -> str:
    times = timed.milliseconds if timed else {}
    milliseconds, of_base = (times.get(one.model or "") if one else None for one in (record, base))
    first = record.recall_at_1
    cells = [
        f"`{record.scheme}`{OLDER if state == 'older' else ''}",
        _STUDENTS[record.student] if SCHEMES[record.scheme].takes_calibration else _STUDENTS["plain"],
        f"{record.file_bytes / 1e6:.2f}",
        _ratio(record.file_bytes, base.file_bytes if base else None),
        "–" if record.mean_cosine is None else f"{record.mean_cosine:.5f} / {record.worst_cosine:.5f}",
        "–" if record.spearman is None else f"{100 * record.spearman:.2f}",
        "–" if first is None else f"{100 * first[0]:.1f} ({100 * first[1]:+.1f} to {100 * first[2]:+.1f})",
        "–" if record.recall_at_10_kept is None else f"{100 * record.recall_at_10_kept:.1f} %",
        "–" if milliseconds is None else f"{milliseconds:.2f}",
        _ratio(milliseconds, of_base),
        f"{record.integers:.0%}",
        record.verdict,
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(value: float | None, base: float | None) -> str:
    return "–" if value is None or base is None else f"{value / base:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
