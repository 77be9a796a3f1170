"""`make fronts`: how much smaller and faster than MiniLM a student of it can be, and what that costs.

Each study in `benchmarks/studies/` that is named here is run to its end, or found finished. The recipes of its front
and what the paired intervals need are kept in `benchmarks/results/front/`, with its record unless that comes with the
package; the pages are made of those alone.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks import compression_rows, compression_speed, records, trials_record, trials_scores
from benchmarks.records import Strict
from benchmarks.trials import Row
from benchmarks.trials_record import Metric
from pipeline import atomic
from pipeline.artifact import Artifact
from pipeline.cli.progress import Progress
from pipeline.data.datasets import DATASETS
from pipeline.fronts import front as fronts
from pipeline.fronts import page, recipes
from pipeline.fronts import record as studied
from pipeline.fronts import spec as specs
from pipeline.fronts.front import TIMES, by_speed
from pipeline.fronts.record import TrialRecord
from pipeline.metrics import scoring
from pipeline.study import finalists, judging, run, space
from pipeline.study.bench import Bench, Request

FOLDER = Path(__file__).parent
RESULTS = records.RESULTS / "front"
_METRICS = "reported.json"


@dataclass(frozen=True)
class Subject:
    """A study whose front is a page, or a part of one."""

    name: str
    title: str
    whole: str
    """What its students are compared with."""
    dataset: str
    """Of the rows of COMPRESSION.md that are held against it."""
    task: str
    shipped: bool = False
    """Whether its record comes with the package, for `pocketbert recommend`."""

    @property
    def folder(self) -> Path:
        """The folder of its recipes."""
        return RESULTS / self.name

    @property
    def record(self) -> Path:
        """The file of its record."""
        return studied.SHIPPED / f"{self.name}.json" if self.shipped else self.folder / studied.RECORD

    @property
    def place(self) -> str:
        """Its folder, from the pages."""
        return self.folder.relative_to(FOLDER).as_posix()


SUBJECTS = (
    Subject("minilm", "Embeddings", "MiniLM", "stsb", "embedding", shipped=True),
    Subject("sst2", "SST-2", "the fine-tuned MiniLM", "sst2", "classification"),
    Subject("wnut17", "WNUT 2017", "the fine-tuned MiniLM", "wnut17", "token_classification"),
)


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
    """Run the studies, and write the pages."""
    parser = argparse.ArgumentParser(prog="make fronts", description=__doc__)
    names = [one.name for one in SUBJECTS]
    parser.add_argument("--only", choices=names, action="append", help="these studies alone")
    parser.add_argument("--build", type=Path, default=Path("build"), help="folder for artifacts")
    parser.add_argument("--parallel", type=int, default=2, help="trials at a time")
    parser.add_argument("--page", action="store_true", help="write the pages of the records at hand, run nothing")
    options = parser.parse_args()
    for one in SUBJECTS:
        if not options.page and one.name in (options.only or names):
            with Progress(quiet=False) as progress:
                _run(one, options.build, options.parallel, progress)
    for file, lines in pages().items():
        (FOLDER / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote benchmarks/{file}")
    return 0


# --- a study's record ------------------------------------------------------------------------------------------------


def _run(subject: Subject, build: Path, parallel: int, progress: Progress) -> None:
    """Run a study, and keep its record with recipes that start from where it is kept."""
    file = FOLDER / "studies" / f"{subject.name}.toml"
    request = Request(specs.read(file), file, build, parallel, lambda: None)
    found = run.run(request, progress)
    reported = _reported(found, request, progress)
    subject.folder.mkdir(parents=True, exist_ok=True)
    records.write(subject.folder / _METRICS, reported)
    page.write(
        subject.folder, found.model_copy(update={"recipes": _moved(found.recipes, request.folder, subject.folder)})
    )
    kept = found.model_copy(update={"recipes": _moved(found.recipes, request.folder, subject.record.parent)})
    atomic.write_text(subject.record, kept.model_dump_json(indent=1) + "\n")


def _moved(found: Mapping[int, Any], before: Path, now: Path) -> dict[int, Any]:
    return {number: recipes.moved(values, before, now) for number, values in found.items()}


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


def pages() -> dict[str, list[str]]:
    """Return the lines of each page whose records are at hand."""
    there = [one for one in SUBJECTS if one.record.is_file() and (one.folder / _METRICS).is_file()]
    made: dict[str, list[str]] = {}
    for one in there:
        if one.shipped:
            made["FRONT.md"] = [*_front(one)]
        else:
            made["TASKS.md"] = [*made.get("TASKS.md", _tasks()), *_study(one)]
    return made


_COLUMNS = """
× is the time of {whole}'s int8 file over the student's in LiteRT, at 128 tokens, one thread, in turns. Losses are in
points against {whole}, with the 95 % interval of a paired bootstrap over rows; a negative loss is a gain. The column of
the dev split, by which nothing was chosen, counts. Of the files of each speed ({times} × or more) the table has the one
that loses least on the judged rows.
"""


def _columns(whole: str) -> Iterator[str]:
    yield from trials_scores.written(_COLUMNS.format(whole=whole, times=", ".join(str(one) for one in TIMES)))


def _front(subject: Subject) -> Iterator[str]:
    found = studied.read(subject.record)
    trained = sum(one.trained for one in found.trials)
    yield from ("# How small and how fast an embedding student can be", "")
    yield from trials_scores.written(
        f"""
        Generated by `make fronts`; nothing here is written by hand. The study `benchmarks/studies/{subject.name}.toml`
        begins with {found.recipe_name} and leaves parts of it out, {len(found.trials)} times; the best {trained} trials
        learn what bge-small-en-v1.5 and the whole say of texts, without labels. Trials are judged on pairs whose
        texts none was trained on. `pocketbert recommend` reads the same record. [The page with plots and recipes to
        copy]({subject.place}/{page.PAGE}).
        """
    )
    yield ""
    yield from _columns(subject.whole)
    yield from _study(subject)
    yield from ("", "## All students of the front", "")
    shown = fronts.of(found, subject.record.parent, subject.folder / page.RECIPES)
    yield from page.markdown(shown, f"{subject.place}/{page.RECIPES}").splitlines()[2:]


def _tasks() -> Iterator[str]:
    yield from ("# How fast a student of a task can be", "")
    yield from trials_scores.written(
        """
        Generated by `make fronts` from `benchmarks/results/front/`; nothing here is written by hand. Each study begins
        with the fine-tuned all-MiniLM-L6-v2, leaves parts of it out, and lets the best trials learn from the whole.
        Trials are judged on training rows that nothing learns from.
        """
    )
    yield ""
    yield from _columns("the fine-tuned MiniLM")


def _study(subject: Subject) -> Iterator[str]:
    found = studied.read(subject.record)
    reported = records.read(Reported, subject.folder / _METRICS)
    assert reported
    base = reported.of(-1)
    assert base
    files = [one for one in found.trials if one.step == "files" and one.measured and one.measured.times_base]
    yield from ("", f"## {subject.title}", "")
    yield (
        f"{len(found.trials)} trials in {found.hours:.1f} hours on {found.machine}; judged by {found.metric_name} on "
        f"{found.judged_on}, reported on {base.rows} rows. {subject.whole[0].upper()}{subject.whole[1:]} has "
        f"{100 * base.value:.2f} there, and {found.base.measures['size_mb']:.1f} MB in int8."
        f"{'' if subject.shipped else f' [All trials]({subject.place}/{page.FRONT}).'}"
    )
    yield from ("", "| at least | trial | × | MB | loss on judged rows | dev | loss on dev | file |")
    yield "|--:|---|--:|--:|--:|--:|--:|---|"
    best = by_speed(found)
    for times in TIMES:
        cells = " | ".join(_cells(subject, best[times], reported, base)) if times in best else "none | | | | | |"
        yield f"| {times} × | {cells} |"
    yield from _against_compression(subject, files, reported)


def _times(one: TrialRecord) -> float:
    assert one.measured
    return one.measured.times_base or 0.0


def _cells(subject: Subject, one: TrialRecord, reported: Reported, base: Metric) -> Iterator[str]:
    metric = reported.of(one.number)
    assert one.measured
    assert one.drop
    assert metric
    yield f"[{one.number}]({subject.place}/{page.RECIPES}/{one.number}.toml)"
    yield f"{_times(one):.2f}"
    yield f"{one.measured.size_mb:.1f}"
    loss, low, high = (100 * part for part in one.drop)
    yield f"{loss:+.2f} [{low:+.2f}, {high:+.2f}]"
    yield f"{100 * metric.value:.2f}"
    yield trials_scores.shown(trials_scores.difference([(base, metric)]), signed=True)
    yield str(one.verdict)


def _against_compression(subject: Subject, files: list[TrialRecord], reported: Reported) -> Iterator[str]:
    """Hold each row of COMPRESSION.md on the same data against the files that are no larger and no slower."""
    table = compression_rows.TABLE
    speeds = compression_speed.read(table)
    rows = [row for row in table.rows if row.dataset == subject.dataset and row.task == subject.task]
    lines = [
        line
        for row in rows
        if (line := _beside(row, compression_speed.times(table, row, "litert", speeds), files, reported))
    ]
    if not lines:
        return
    yield ""
    yield from trials_scores.written(
        f"""
        Rows of [COMPRESSION.md](COMPRESSION.md) beside the front: the best file of this study that is no larger and no
        slower (LiteRT; a row that was not timed is taken to be as fast as {subject.whole}), and its metric on dev less
        the row's. The two were made apart, and timed on different machines.
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
