"""Clean exports: architectures × tasks × every supported scheme of every format × seeds, none of which may fail."""

from collections.abc import Iterator

from faults import line
from faults.students import Student
from pipeline.architectures import ARCHITECTURES
from pipeline.convert import Target
from pipeline.tasks import TASKS

SEEDS = (0, 1)


def exports(formats: tuple[str, ...]) -> Iterator[tuple[Student, Target]]:
    """Yield every student and target."""
    for architecture in ARCHITECTURES:
        for task in TASKS:
            for seed in SEEDS:
                for name in formats:
                    for scheme in line.schemes_of(name):
                        yield Student(architecture, task, seed), Target(name, scheme)
