"""`make task-fronts`: how much faster than the fine-tuned MiniLM a student of a task can be, and what that costs.

Each study in `benchmarks/studies/` that is named here is run to its end, or found finished. Its record, the recipes of
its front and what the paired intervals need are kept in `benchmarks/results/front/`; the page is made of those alone.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks import compression_rows, compression_speed, records, trials_record, trials_scores
from benchmarks.records import Strict
from benchmarks.trials import Row
from benchmarks.trials_record import Metric
from pipeline.artifact import Artifact
from pipeline.cli.progress import Progress
from pipeline.data.datasets import DATASETS
from pipeline.fronts import page, recipes
from pipeline.fronts import record as studied
from pipeline.fronts import spec as specs
from pipeline.fronts.front import TIMES, by_speed
from pipeline.fronts.record import TrialRecord
from pipeline.metrics import scoring
from pipeline.study import finalists, judging, run, space
from pipeline.study.bench import Bench, Request

FOLDER = Path(__file__).parent
PAGE = FOLDER / "TASKS.md"
RESULTS = records.RESULTS / "front"
STUDIES = ("sst2", "wnut17")
TITLES = {"sst2": "SST-2", "wnut17": "WNUT 2017"}
_METRICS = "reported.json"


class Member(Strict):
    """A student on the data that its study reports on."""

    trial: int
    """−1 is the recipe as it is."""
    metric: Metric


class Reported(Strict):
    """The files of a study, and the recipe as it is, in fp32 PyTorch on the dev split."""

    schema_version: Literal[1] = 1
    study: str
    members: list[Member]

    def of(self, trial: int) -> Metric | None:
        """Return the metric of a trial, or None if it became no file."""
        return next((one.metric for one in self.members if one.trial == trial), None)


def main() -> int:
    """Run the studies, and write the page."""
    parser = argparse.ArgumentParser(prog="make task-fronts", description=__doc__)
    parser.add_argument("--only", choices=STUDIES, action="append", help="these studies alone")
    parser.add_argument("--build", type=Path, default=Path("build"), help="folder for artifacts")
    parser.add_argument("--parallel", type=int, default=2, help="trials at a time")
    parser.add_argument("--page", action="store_true", help="write the page of the records at hand, run nothing")
    options = parser.parse_args()
    for name in () if options.page else options.only or STUDIES:
        with Progress(quiet=False) as progress:
            _run(name, options.build, options.parallel, progress)
    PAGE.write_text("\n".join(_page()) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(FOLDER.parent)}")
    return 0


# --- a study's record ------------------------------------------------------------------------------------------------


def _run(name: str, build: Path, parallel: int, progress: Progress) -> None:
    """Run a study, and keep its record with recipes that start from where it is kept."""
    file = FOLDER / "studies" / f"{name}.toml"
    request = Request(specs.read(file), file, build, parallel, lambda: None)
    found = run.run(request, progress)
    moved = {number: recipes.moved(values, request.folder, RESULTS / name) for number, values in found.recipes.items()}
    kept = found.model_copy(update={"recipes": moved})
    (RESULTS / name).mkdir(parents=True, exist_ok=True)
    studied.write(RESULTS / name, kept)
    page.write(RESULTS / name, kept)
    records.write(RESULTS / name / _METRICS, _reported(found, request, progress))


def _reported(found: studied.Record, request: Request, progress: Progress) -> Reported:
    base = space.base(request.study, request.file)
    bench = Bench(request, progress, base, judging.choose(request.study.judge, base.recipe, request.file, base.file))
    made = {-1: finalists.base_report(bench)}
    made |= {one.number: finalists.report(bench, one) for one in found.trials if one.step == "files"}
    members = [Member(trial=number, metric=_metric(one)) for number, one in made.items() if one is not None]
    return Reported(study=request.study.name, members=members)


def _metric(judged: Artifact) -> Metric:
    """Return a judgement with its resamples, drawn as those of COMPRESSION.md's rows are."""
    found, parts = judged.manifest.metrics, judging.parts(judged)
    row = scoring.METRICS[found["metric_name"]]
    return Metric(
        dataset=found["dataset"],
        data_sha256=str(DATASETS[found["dataset"]].digest()),
        metric=found["metric_name"],
        rows=found["rows"],
        chance=None,
        value=found["metric"],
        resamples=trials_record.packed(row.value(parts[trials_record.draws(len(parts))]).astype(np.float64)),
    )


# --- the page --------------------------------------------------------------------------------------------------------


def _page() -> Iterator[str]:
    yield from ("# How fast a student of a task can be", "")
    yield from trials_scores.written(
        f"""
        Generated by `make task-fronts` from `benchmarks/results/front/`; nothing here is written by hand. Each study
        begins with the fine-tuned all-MiniLM-L6-v2, leaves parts of it out, and lets the best trials learn from the
        whole. Trials are judged on training rows that nothing learns from.
        × is the time of the fine-tuned MiniLM's int8 file over the student's in LiteRT, at 128 tokens, one thread, in
        turns. Losses are in points against the fine-tuned MiniLM, with the 95 % interval of a paired bootstrap over
        rows; a negative loss is a gain. The column of the dev split, by which nothing was chosen, counts. Of the
        files of each speed ({", ".join(str(one) for one in TIMES)} × or more) the table has the one that loses least on
        the judged rows.
        """
    )
    for name in STUDIES:
        if (RESULTS / name / studied.RECORD).is_file():
            yield from _study(name)


def _study(name: str) -> Iterator[str]:
    found = studied.read(RESULTS / name)
    reported = records.read(Reported, RESULTS / name / _METRICS)
    assert reported
    base = reported.of(-1)
    assert base
    files = [one for one in found.trials if one.step == "files" and one.measured and one.measured.times_base]
    yield from ("", f"## {TITLES[name]}", "")
    yield (
        f"{len(found.trials)} trials in {found.hours:.1f} hours on {found.machine}; judged by {found.metric_name} on "
        f"{found.judged_on}, reported on {base.rows} rows. The fine-tuned MiniLM has {100 * base.value:.2f} there, and "
        f"{found.base.measures['size_mb']:.1f} MB in int8. [All trials](results/front/{name}/FRONT.md)."
    )
    yield from ("", "| at least | trial | × | MB | loss on judged rows | dev | loss on dev | file |")
    yield "|--:|---|--:|--:|--:|--:|--:|---|"
    best = by_speed(found)
    for times in TIMES:
        cells = " | ".join(_cells(name, best[times], reported, base)) if times in best else "none | | | | | |"
        yield f"| {times} × | {cells} |"
    yield from _against_compression(name, files, reported)


def _times(one: TrialRecord) -> float:
    assert one.measured
    return one.measured.times_base or 0.0


def _cells(study: str, one: TrialRecord, reported: Reported, base: Metric) -> Iterator[str]:
    metric = reported.of(one.number)
    assert one.measured
    assert one.drop
    assert metric
    yield f"[{one.number}](results/front/{study}/{page.RECIPES}/{one.number}.toml)"
    yield f"{_times(one):.2f}"
    yield f"{one.measured.size_mb:.1f}"
    loss, low, high = (100 * part for part in one.drop)
    yield f"{loss:+.2f} [{low:+.2f}, {high:+.2f}]"
    yield f"{100 * metric.value:.2f}"
    yield trials_scores.shown(trials_scores.difference([(base, metric)]), signed=True)
    yield str(one.verdict)


def _against_compression(study: str, files: list[TrialRecord], reported: Reported) -> Iterator[str]:
    """Hold each row of COMPRESSION.md on the same data against the files that are no larger and no slower."""
    table = compression_rows.TABLE
    speeds = compression_speed.read(table)
    rows = [row for row in table.rows if row.dataset == study]
    lines = [
        line
        for row in rows
        if (line := _beside(row, compression_speed.times(table, row, "litert", speeds), files, reported))
    ]
    if not lines:
        return
    yield ""
    yield from trials_scores.written(
        """
        Rows of [COMPRESSION.md](COMPRESSION.md) beside the front: the best file of this study that is no larger and no
        slower (LiteRT; a row that was not timed is taken to be as fast as the fine-tuned MiniLM), and its metric on dev
        less the row's. The two were trained apart, on other seeds, and timed on different machines.
        """
    )
    yield from (
        "",
        "| row | × | MB | dev | trial | difference | the row lies |",
        "|---|--:|--:|--:|---|--:|---|",
        *lines,
    )


def _beside(row: Row, times: float | None, files: list[TrialRecord], reported: Reported) -> str | None:
    found = trials_record.of_row(compression_rows.TABLE, row)
    mine = trials_scores.value(found)
    size = next(
        (file.file_bytes / 1e6 for one in found.values() for file in one.files if file.backend == "litert"), None
    )
    if mine is None or size is None:
        return None
    able = [one for one in files if one.measured and one.measured.size_mb <= size and _times(one) >= (times or 1.0)]
    metrics = [(metric, one) for one in able if (metric := reported.of(one.number))]
    shown_times = f"{times:.2f}" if times else "not timed"
    start = f"| `{row.name}` | {shown_times} | {size:.1f} | {trials_scores.shown(mine)} |"
    if not metrics:
        return f"{start} none | | beyond the front |"
    metric, best = max(metrics, key=lambda pair: pair[0].value)
    pairs = [(metric, one.metric) for one in found.values() if one.metric]
    gain = trials_scores.difference([pair for pair in pairs if trials_scores.same_data(*pair)])
    lies = "below" if gain.low > 0 else "above" if gain.high < 0 else "on it, within the interval"
    return f"{start} {best.number} | {trials_scores.shown(gain, signed=True)} | {lies} |"


if __name__ == "__main__":
    raise SystemExit(main())
