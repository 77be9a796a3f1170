"""Clean exports: students × every supported scheme of every format, none of which may fail."""

from collections.abc import Iterable, Iterator

from faults import catalogue, line
from faults.students import Student
from pipeline.architectures import ARCHITECTURES
from pipeline.convert import Target
from pipeline.tasks import TASKS

_CORE = tuple(
    Student(architecture, task, seed)
    for architecture in ("bert", "distilbert", "albert")
    for task in ("embedding", "classification")
    for seed in (0, 1)
)


def students(group: str) -> tuple[Student, ...]:
    """Return the students whose clean files stand beside a group of faults."""
    if group == "core":
        return _CORE
    return tuple(dict.fromkeys(fault.student for fault in catalogue.GROUPS[group]))


def matrix() -> tuple[Student, ...]:
    """Return one student of each architecture and task."""
    return tuple(Student(architecture, task) for architecture in ARCHITECTURES for task in TASKS)


def exports(students: Iterable[Student], formats: tuple[str, ...]) -> Iterator[tuple[Student, Target]]:
    """Yield students and targets."""
    for which in students:
        for name in formats:
            for scheme in line.schemes_of(name):
                yield which, Target(name, scheme)
