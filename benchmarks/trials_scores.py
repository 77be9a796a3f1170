"""From records to figures: means over seeds, what is lost, their intervals, and whether a bound holds."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import trials_record
from benchmarks.records import State
from benchmarks.trials import Row, Table
from benchmarks.trials_record import Metric, Record

Holds = Literal["yes", "no", "not run"]
NOT_RUN: Holds = "not run"
OLDER = " †"
"""Behind a figure that older code made."""
_ROUNDING = 1e-9
"""Rounding of sums of decimal fractions: 0.7 points lost are not more than 0.7."""


@dataclass(frozen=True)
class Figure:
    """A mean over seeds in points, with its 95 % interval over the dataset's rows and the seeds' own range."""

    mean: float
    low: float
    high: float
    least: float
    most: float
    seeds: int


Pick = Callable[[Record], Metric | None]
"""Which metric of a record is meant."""


def task_metric(record: Record) -> Metric | None:
    """Return the metric of the row's dataset."""
    return record.metric


def searched(name: str) -> Pick:
    """Return what picks a metric of search, by its name."""
    return lambda record: next((one for one in record.retrieval if one.metric == name), None)


def value(records: Mapping[int, Record], pick: Pick = task_metric) -> Figure | None:
    """Return a row's metric, or None without a record of it."""
    found = [metric for metric in map(pick, records.values()) if metric]
    if not found:
        return None
    return _figure([one.value for one in found], [one.resampled() for one in found])


def lost(
    records: Mapping[int, Record], against: Mapping[int, Record], *, single: bool = False, pick: Pick = task_metric
) -> Figure | None:
    """Return what a row loses against another, seed by seed and resample by resample; None without a pair.

    Args:
        records: of the row, by seed.
        against: of the other.
        single: the other row has one seed by design, with which all of this one's are compared. One that merely has
            one record so far goes with that seed alone.
        pick: which metric is meant.

    Source: Koehn 2004 for two systems on one test set; the mean over seeds is taken within each resample.
    """
    pairs = [(theirs, mine) for mine, theirs in _paired(records, against, single, pick) if same_data(mine, theirs)]
    return difference(pairs) if pairs else None


def difference(pairs: Sequence[tuple[Metric, Metric]]) -> Figure:
    """Return by how much the first of each pair is above the second, over all pairs."""
    return _figure([a.value - b.value for a, b in pairs], [a.resampled() - b.resampled() for a, b in pairs])


def _paired(
    records: Mapping[int, Record], against: Mapping[int, Record], single: bool, pick: Pick
) -> list[tuple[Metric, Metric]]:
    only = next(iter(against.values()), None) if single else None
    others = [(record, (against.get(seed) or only)) for seed, record in records.items()]
    pairs = [(pick(record), pick(other)) for record, other in others if other]
    return [(mine, theirs) for mine, theirs in pairs if mine and theirs]


def same_data(mine: Metric, theirs: Metric) -> bool:
    """Return whether two metrics are over the same rows, so that their resamples are paired."""
    return (mine.data_sha256, mine.metric, mine.rows) == (theirs.data_sha256, theirs.metric, theirs.rows)


def _figure(values: Sequence[float], resampled: Sequence[NDArray[np.float64]]) -> Figure:
    low, high = np.percentile(np.mean(resampled, axis=0), (2.5, 97.5))
    mean = float(np.mean(values))
    return Figure(100 * mean, 100 * float(low), 100 * float(high), 100 * min(values), 100 * max(values), len(values))


def turned(less: Figure) -> Figure:
    """Return what is lost as a difference: below zero where it is worse."""
    return Figure(-less.mean, -less.high, -less.low, -less.most, -less.least, less.seeds)


def figures(table: Table, row: Row, pick: Pick = task_metric) -> tuple[Figure | None, Figure | None]:
    """Return a metric of a row, and what it loses against the row that it is compared with."""
    mine = trials_record.of_row(table, row)
    if row.against is None:
        return value(mine, pick), None
    other = table.row(row.against)
    theirs = trials_record.of_row(table, other)
    return value(mine, pick), lost(mine, theirs, single=len(other.seeds) == 1, pick=pick)


def holds(table: Table, row: Row) -> Holds:
    """Return whether a row's bound holds on the mean of all its seeds; it is not run as long as one is missing."""
    assert row.bound is not None
    found, less = figures(table, row)
    figure = found if row.bound.kind == "least" else less
    if figure is None or figure.seeds < len(row.seeds):
        return "not run"
    over = row.bound.points - figure.mean if row.bound.kind == "least" else figure.mean - row.bound.points
    return "yes" if over <= _ROUNDING else "no"


def shown(figure: Figure, *, signed: bool = False) -> str:
    """Return a figure in points: mean, [interval], and (range of seeds) where there are several."""
    form = "+.2f" if signed else ".2f"
    text = f"{figure.mean:{form}} [{figure.low:{form}}, {figure.high:{form}}]"
    return text + (f" ({figure.least:{form}} … {figure.most:{form}})" if figure.seeds > 1 else "")


def cell(table: Table, row: Row, figure: Figure | None) -> str:
    """Return a metric of a row with a mark where older code made it, and what lacks of it."""
    states = trials_record.states(table, row)
    gone = _unfinished(states)
    if figure is None:
        return gone or NOT_RUN
    mark = OLDER if "older" in states.values() else ""
    return shown(figure) + mark + (f", {gone}" if gone else "")


def _unfinished(states: Mapping[int, State]) -> str:
    """Return what a row lacks: `not run`, `stale`, or which seeds are; empty where all have a record."""
    gone = {seed: state for seed, state in states.items() if state in ("stale", "not run")}
    if len(gone) == len(states) and len(set(gone.values())) == 1:
        return next(iter(gone.values()))
    return ", ".join(f"seed {seed} {state}" for seed, state in gone.items())


def counted(table: Table) -> str:
    """Return how many trials there are, and how many of them have a record: of this code, or of older code."""
    states = [state for row in table.rows for state in trials_record.states(table, row).values()]
    there, older, stale, gone = (states.count(state) for state in ("there", "older", "stale", "not run"))
    found = [f"{there} have a record of this code"]
    if older:
        found.append(f"{older} one of the same settings by older code, marked {OLDER} and not run again since")
    if stale:
        found.append(f"{stale} one of other settings, which does not count (stale)")
    return f"{len(states)} trials {', '.join(found)}, and {gone} were not run"


def written(text: str) -> list[str]:
    """Return prose in lines of a page."""
    return textwrap.wrap(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


# --- over tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Macro:
    """Means over tasks, in points, and what is kept of the teachers', in percent, with its 95 % interval."""

    teacher: float
    student: float
    kept: float
    low: float
    high: float


def of_both(
    teacher: Mapping[int, Record], student: Mapping[int, Record]
) -> tuple[dict[int, Record], dict[int, Record]]:
    """Return the records of the seeds that both have."""
    both = teacher.keys() & student.keys()
    return {seed: teacher[seed] for seed in sorted(both)}, {seed: student[seed] for seed in sorted(both)}


def macro(pairs: Sequence[tuple[Mapping[int, Record], Mapping[int, Record]]]) -> Macro | None:
    """Return the mean over tasks of teachers and students; None where a task of either has no record.

    Args:
        pairs: for each task the teacher's records and the student's; seeds that one of them lacks do not count.
    """
    sides: list[list[tuple[float, NDArray[np.float64]]]] = [[], []]
    for number, pair in enumerate(pairs):
        # Resamples of two datasets are drawn by one seed, so one of them is put into another order.
        order = np.random.default_rng(number).permutation(trials_record.RESAMPLES)
        for side, records in zip(sides, of_both(*pair), strict=True):
            found = [record.metric for record in records.values() if record.metric]
            if not found:
                return None
            resampled = np.mean([one.resampled() for one in found], axis=0)[order]
            side.append((float(np.mean([one.value for one in found])), resampled))
    teacher, student = (float(np.mean([mean for mean, _ in side])) for side in sides)
    ratio = np.mean([one for _, one in sides[1]], axis=0) / np.mean([one for _, one in sides[0]], axis=0)
    low, high = np.percentile(ratio, (2.5, 97.5))
    return Macro(100 * teacher, 100 * student, 100 * student / teacher, 100 * float(low), 100 * float(high))
