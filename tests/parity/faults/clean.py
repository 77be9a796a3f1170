"""Clean exports: architectures × tasks × every supported scheme of every format × seeds, none of which may fail."""

from collections.abc import Iterator

from faults import line
from faults.students import Student
from pipeline.convert import Target

ARCHITECTURES = ("bert", "distilbert", "albert")
TASKS = ("embedding", "classification")
SEEDS = (0, 1)
"""The whole table of architectures and tasks, one seed each, is `make test-full`'s (tests/test_matrix.py)."""


def exports(formats: tuple[str, ...]) -> Iterator[tuple[Student, Target]]:
    """Yield every student and target."""
    for architecture in ARCHITECTURES:
        for task in TASKS:
            for seed in SEEDS:
                for name in formats:
                    for scheme in line.schemes_of(name):
                        yield Student(architecture, task, seed), Target(name, scheme)
