"""Recommend a recipe for a budget from what studies have found already; nothing is tried anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.errors import InputError
from pipeline.fronts.answering import quality_of
from pipeline.fronts.front import QUALITIES
from pipeline.fronts.record import Record, TrialRecord, able, violations


@dataclass(frozen=True)
class Recommendation:
    """The best known student for a budget, or the nearest one."""

    record: Record
    trial: TrialRecord
    fits: bool
    beyond: dict[str, tuple[float, float]]
    """Bounds that it does not keep: its measure, and the bound."""
    elsewhere: bool
    """Whether latencies were measured on another kind of machine, so that a bound on them was not judged."""
    unmeasured: tuple[str, ...] = ()
    """Bounds on what its study did not measure: it does not count as keeping them."""
    others: tuple[str, ...] = ()
    """Studies of the task that judge by other data or another metric, whose metrics are not of one scale with its."""
    ready: tuple[TrialRecord, ...] = ()
    """Recipes beside its study that keep the bounds on costs, but for those that are worse on the report's data."""


def recommend(
    every: Sequence[Record], task: str, bounds: Mapping[str, tuple[float, bool]], machine: str
) -> Recommendation:
    """Return the best student for a budget among the trials of studies.

    One that fits comes first, and of those a file that passed before an estimate. Within the budget the one with the
    best quality is taken, beyond it the one whose bounds are missed by the least.

    Args:
        every: records of studies.
        task: the task of the student.
        bounds: by measure, the bound and whether it is the least value.
        machine: this machine's model; a latency of another one is not held to a bound.

    Raises:
        InputError: no study has a student for the task.
    """
    found = [_best(one, bounds, machine) for one in every if one.task == task and able(one.trials)]
    if not found:
        tasks = ", ".join(sorted({one.task for one in every})) or "no task at all"
        raise InputError(
            f"no study has found a student for task {task}; there are records for {tasks}. Make one: `pocketbert study "
            "SPEC.toml`."
        )
    best = min(found, key=_rank)
    own = _judged_by(best.record)
    others = {one.record.study.name for one in found if _judged_by(one.record) != own}
    return replace(best, others=tuple(sorted(others)))


def _rank(one: Recommendation) -> tuple[bool, bool, bool, int, float, float]:
    """Return by what recommendations are ordered; a bound that was judged is worth more than one that was not."""
    estimated = one.trial.step != "files"
    return not one.fits, one.elsewhere, estimated, len(one.unmeasured), _excess(one), -_quality(one)


def _judged_by(record: Record) -> tuple[str, str, str]:
    return quality_of(record.study), record.metric_name, record.judged_on


def _best(record: Record, bounds: Mapping[str, tuple[float, bool]], machine: str) -> Recommendation:
    elsewhere = record.machine != machine and "latency_ms" in bounds
    held = {name: bound for name, bound in bounds.items() if not (elsewhere and name == "latency_ms")}
    quality = quality_of(record.study)

    def rank(one: TrialRecord) -> tuple[bool, bool, int, float, float]:
        excess = sum(max(0.0, by) for by in violations(one.measures, held).values())
        absent = len(held.keys() - one.measures.keys())
        return excess > 0 or absent > 0, one.step != "files", absent, excess, -one.measures.get(quality, 0.0)

    best = min(able(record.trials), key=rank)
    missed = [name for name, by in violations(best.measures, held).items() if by > 0]
    beyond = {name: (best.measures[name], held[name][0]) for name in missed}
    unmeasured = tuple(name for name in held if name not in best.measures)
    ready = tuple(one for one in record.beside if _is_worth_naming(one, best, held))
    return Recommendation(record, best, not beyond and not unmeasured, beyond, elsewhere, unmeasured, ready=ready)


def _is_worth_naming(one: TrialRecord, best: TrialRecord, held: Mapping[str, tuple[float, bool]]) -> bool:
    """Return whether a recipe beside the trials keeps the bounds on costs, and is not known to be worse.

    It may have learned what trials are judged by, so that the data of the report decide, if both were measured on them.
    """
    costs = {name: bound for name, bound in held.items() if name not in QUALITIES}
    kept = costs.keys() <= one.measures.keys() and all(by <= 0 for by in violations(one.measures, costs).values())
    if one.verdict != "passed" or one.reported is None or not kept:
        return False
    if best.reported is None or best.reported.dataset != one.reported.dataset:
        return True
    return one.reported.value > best.reported.value


def _excess(one: Recommendation) -> float:
    return sum(abs(found - bound) / max(abs(bound), 1e-9) for found, bound in one.beyond.values())


def _quality(one: Recommendation) -> float:
    return one.trial.measures.get(quality_of(one.record.study), 0.0)
