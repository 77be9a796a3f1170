"""A study's front as pages show it: who is on it, what was measured, what the study says, and each one's recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.fronts import recipes, selection
from pipeline.fronts.answering import quality_of
from pipeline.fronts.record import BESIDE, Record, TrialRecord, shown
from pipeline.fronts.spec import label

TITLES = {
    "metric": "metric",
    "recall_at_10": "recall@10",
    "size_mb": "MB",
    "latency_ms": "ms",
    "memory_mb": "MB of memory",
    "macs_m": "million multiply-adds",
}
PUBLISHED_HEAD = ["student", "MB", "metric", "latency", "source"]
PUBLISHED = "Published by others, each on data, a split and a machine of its own; nothing here is compared with it."
LEGEND = (
    "Filled: measured on the file. Hollow: the metric of the student in PyTorch, with estimated size and latency. "
    "Grey: trials that another one beats. Diamonds: other recipes. Bars: 95 % intervals of the loss against the recipe "
    "as it is. Each point leads to its recipe."
)
_HEAD = ["points lost", "reported", "× base", "state", "choice"]
QUALITIES = ("metric", "recall_at_10")
TIMES = (2, 3, 4, 6, 8)
"""Times as fast as the recipe as it is, of which the front says what they cost."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FrontRow(_Frozen):
    """A trial of the front."""

    number: int
    title: str
    cells: list[str]
    recipe: str
    """The whole recipe as TOML."""


class Point(_Frozen):
    """A student in the plots of a front."""

    name: str
    kind: Literal["trial", "beside", "base"]
    measured: bool = True
    """Whether it is a file; if not, its costs are estimated."""
    measures: dict[str, float]
    interval: tuple[float, float] | None = None
    """Where its metric would lie at the ends of the interval of its loss."""
    row: int | None = None
    """Number of the trial whose recipe it leads to; None for what is not on the front."""


class Front(_Frozen):
    """The front of one study."""

    study: str
    lead: list[str]
    """What the study found, in sentences."""
    head: list[str]
    """Titles of the columns."""
    base: list[str]
    """Cells of the recipe as it is."""
    rows: list[FrontRow]
    beside: list[list[str]]
    """Cells of other recipes that were judged and timed like trials."""
    published: list[list[str]]
    """Rows (student, MB, metric, latency, source) of what others have published."""
    points: list[Point]
    quality: str
    """The measure that is drawn upwards."""
    quality_title: str
    costs: list[str]
    """Measures that it is drawn against."""


def of(record: Record, folder: Path, place: Path) -> Front:
    """Return the front of a study.

    Args:
        record: of the study.
        folder: where the record is; relative paths of its recipes start there.
        place: the folder for which paths in the recipes are written.
    """
    trials = on_front(record)
    quality = quality_of(record.study)
    numbers = [one.number for one in trials]
    base = [
        f"{record.base.measures[name]:.4g}" if name in record.base.measures else "" for name in record.study.measures
    ]
    reported = f"{record.base.reported.fp32:.4f}" if record.base.reported else ""
    return Front(
        study=record.study.name,
        lead=_lead(record),
        head=["trial", *(TITLES[name] for name in record.study.measures), *_HEAD],
        base=[record.recipe_name, *base, "", reported, "1", "as it is", ""],
        rows=[_row(record, one, folder, place) for one in trials],
        beside=[_cells(record, one) for one in record.beside],
        published=[
            [one.name, f"{one.size_mb:g}" if one.size_mb else "", one.metric, one.latency or "", one.source]
            for one in record.study.published
        ],
        points=[
            *(_point(one, numbers) for one in shown(record.trials)),
            Point(name=record.recipe_name, kind="base", measures=record.base.measures),
            *(Point(name=str(one.choice["recipe"]), kind="beside", measures=one.measures) for one in record.beside),
        ],
        quality=quality,
        quality_title=record.metric_name if quality == "metric" else TITLES[quality],
        costs=[name for name in record.study.measures if name not in QUALITIES],
    )


def on_front(record: Record) -> list[TrialRecord]:
    """Return the trials on the front, files first and then by quality.

    An estimate takes no file's place: a file is shown if no other file beats it.
    """
    files = [one for one in record.trials if one.step == "files"]
    among_all = selection.front(record.trials, record.study.objectives)
    found = selection.front(files, record.study.objectives) + [one for one in among_all if one.step != "files"]
    quality = quality_of(record.study)
    return sorted(found, key=lambda one: (one.step != "files", -one.measures.get(quality, 0.0)))


def _point(one: TrialRecord, shown_rows: Sequence[int]) -> Point:
    here = one.number in shown_rows
    interval = None
    if here and one.drop is not None and "metric" in one.measures:
        base = one.measures["metric"] + one.drop[0]
        interval = (base - one.drop[2], base - one.drop[1])
    return Point(
        name=str(one.number),
        kind="trial",
        measured=one.step == "files",
        measures=one.measures,
        interval=interval,
        row=one.number if here else None,
    )


def _row(record: Record, one: TrialRecord, folder: Path, place: Path) -> FrontRow:
    title = f"Trial {one.number}: {_choice(one)}"
    recipe = recipes.stored(record, one, folder, place)
    return FrontRow(number=one.number, title=title, cells=_cells(record, one), recipe=recipe)


def _choice(one: TrialRecord) -> str:
    return ", ".join(f"{key} = {label(value)}" for key, value in one.choice.items())


def _cells(record: Record, one: TrialRecord) -> list[str]:
    """Return the cells of a trial, or of a recipe beside the trials."""
    measures = [f"{one.measures[name]:.4g}" if name in one.measures else "" for name in record.study.measures]
    drop = _loss(one) if one.drop else ""
    reported = ""
    if one.reported:
        reported = f"{one.reported.value:.4f}"
    times = f"{one.measured.times_base:.2f}" if one.measured and one.measured.times_base else ""
    name = str(one.number) if one.number < BESIDE else str(one.choice["recipe"])
    state = one.verdict or one.step
    return [name, *measures, drop, reported, times, state, _choice(one) if one.number < BESIDE else ""]


def _lead(record: Record) -> list[str]:
    answer = record.answer
    best = next((one for one in record.trials if one.number == answer.trial), None)
    said = [
        f"{len(record.trials)} trials from {record.recipe_name} in {record.hours:.1f} hours on {record.machine}. "
        f"Chosen by {record.metric_name} on {record.judged_on}; reported on data that no choice has seen."
    ]
    if best is not None:
        how = "Best within the budget" if answer.fits else "Nearest to the budget"
        said.append(f"{how}: trial {best.number}. {' '.join(recipes.evidence(record, best))}")
    for name, (found, bound) in answer.beyond.items():
        said.append(f"{TITLES.get(name, name)} is {found:.3g}, and {bound:.3g} was asked.")
    said += [f"{line[0].upper()}{line[1:]}." for line in answer.sentences]
    said += _by_speed(record)
    said.append(f"Of {record.asked} artifacts that the trials asked for, {record.asked - record.made} were shared.")
    for name, (mean, most, count) in errors_of_estimates(record.trials).items():
        off = f"{100 * mean:.1f} % on average over {count} files, {100 * most:.1f} % at most"
        said.append(f"Estimates of {TITLES[name]} were off by {off}.")
    return [*said, *record.study.notes]


def by_speed(record: Record) -> dict[int, TrialRecord]:
    """Return for each of `TIMES` the file that is as fast, or faster, and loses least; none where no file is."""
    files = [one for one in record.trials if one.step == "files" and one.drop and one.measured]
    found = {}
    for times in TIMES:
        fast = [one for one in files if one.measured and (one.measured.times_base or 0.0) >= times]
        if fast:
            found[times] = min(fast, key=lambda one: one.drop or ())
    return found


def _by_speed(record: Record) -> list[str]:
    said = [
        f"at least {times} × as fast loses {_loss(one)} points (trial {one.number})"
        for times, one in by_speed(record).items()
    ]
    return [f"Of the files the best that is {', '.join(said)}."] if said else []


def _loss(one: TrialRecord) -> str:
    assert one.drop
    loss, low, high = (100 * part for part in one.drop)
    return f"{loss:.2f} ({low:.2f} to {high:.2f})"


def errors_of_estimates(trials: Sequence[TrialRecord]) -> dict[str, tuple[float, float, int]]:
    """Return the mean and the largest error of estimated sizes and latencies, as fractions, and how many were held."""
    found: dict[str, list[float]] = {}
    for one in shown(trials):
        for name, estimated in one.estimated.items() if one.measured else ():
            true = getattr(one.measured, name)
            if true:
                found.setdefault(name, []).append(abs(estimated / true - 1))
    return {name: (sum(errors) / len(errors), max(errors), len(errors)) for name, errors in found.items()}
