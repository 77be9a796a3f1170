"""Clean exports: students × every supported scheme of every format, none of which may fail."""

from collections.abc import Iterable, Iterator

from faults import catalogue, line
from faults.settings import SETTINGS
from faults.students import Student, unusual
from pipeline.convert.stage import Target

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
    if group == "settings":
        return tuple(unusual(name) for name, setting in SETTINGS.items() if name and not setting.calibrated)
    return tuple(dict.fromkeys(fault.student for fault in catalogue.GROUPS[group]))


def exports(students: Iterable[Student], formats: tuple[str, ...]) -> Iterator[tuple[Student, Target]]:
    """Yield students and targets."""
    for which in students:
        for name in formats:
            for scheme in line.schemes_of(name, calibrated=SETTINGS[which.setting].calibrated):
                yield which, Target(name, scheme)
