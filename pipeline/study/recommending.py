"""Recommend a recipe for a budget from what studies have found already; nothing is tried anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InputError
from pipeline.study import record as records
from pipeline.study.answering import quality_of
from pipeline.study.record import Record, TrialRecord, shown, violations

SHIPPED = Path(__file__).parent / "records"
"""Records that come with the package."""


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


def known(build: Path, given: Sequence[Path]) -> list[tuple[Record, Path]]:
    """Return records with their folders: those that are given, or else the build folder's and the package's.

    Raises:
        ArtifactError: a record that is given is absent or damaged.
    """
    if given:
        return [(records.read(path), path if path.is_dir() else path.parent) for path in given]
    found = sorted((build / records.FOLDER).glob(f"*/{records.RECORD}")) + sorted(SHIPPED.glob("*.json"))
    return [(records.read(path), path.parent) for path in found]


def recommend(
    every: Sequence[Record], task: str, bounds: Mapping[str, tuple[float, bool]], machine: str
) -> Recommendation:
    """Return the best student for a budget among the trials of studies.

    Files that passed come before estimates. Within the budget the one with the best quality is taken, beyond it the
    one whose bounds are missed by the least.

    Args:
        every: records of studies.
        task: the task of the student.
        bounds: by measure, the bound and whether it is the least value.
        machine: this machine's model; a latency of another one is not held to a bound.

    Raises:
        InputError: no study has a student for the task.
    """
    found = [_best(one, bounds, machine) for one in every if one.task == task and shown(one.trials)]
    if not found:
        tasks = ", ".join(sorted({one.task for one in every})) or "no task at all"
        raise InputError(
            f"no study has found a student for task {task}; there are records for {tasks}. Make one: `pocketbert study "
            "SPEC.toml`."
        )
    return min(found, key=lambda one: (not one.fits, _excess(one), -_quality(one)))


def _best(record: Record, bounds: Mapping[str, tuple[float, bool]], machine: str) -> Recommendation:
    elsewhere = record.machine != machine and "latency_ms" in bounds
    held = {name: bound for name, bound in bounds.items() if not (elsewhere and name == "latency_ms")}
    able = shown(record.trials)
    pool = [one for one in able if one.step == "files" and one.verdict != "failed"] or able
    quality = quality_of(record.study)

    def rank(one: TrialRecord) -> tuple[float, float]:
        excess = sum(max(0.0, by) for by in violations(one.measures, held).values())
        return excess, -one.measures.get(quality, 0.0)

    best = min(pool, key=rank)
    missed = [name for name, by in violations(best.measures, held).items() if by > 0]
    beyond = {name: (best.measures[name], held[name][0]) for name in missed}
    return Recommendation(record, best, not beyond, beyond, elsewhere)


def _excess(one: Recommendation) -> float:
    return sum(abs(found - bound) / max(abs(bound), 1e-9) for found, bound in one.beyond.values())


def _quality(one: Recommendation) -> float:
    return one.trial.measures.get(quality_of(one.record.study), 0.0)
