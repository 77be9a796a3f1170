"""Clean exports: architectures × tasks × every supported scheme of every format, and seeds, none of which may fail."""

from collections.abc import Iterator

from faults import line
from faults.students import Student
from pipeline.architectures import ARCHITECTURES
from pipeline.convert import Target
from pipeline.tasks import TASKS

MORE_SEEDS = tuple(
    Student(architecture, task, 1)
    for architecture in ("bert", "distilbert", "albert")
    for task in ("embedding", "classification")
)
MORE_PIECES = (Student("xlm-roberta", pieces="unigram"), Student("roberta", pieces="byte_bpe"))


def students() -> Iterator[Student]:
    """Yield one student of each architecture and task, then those of another seed or tokenizer."""
    yield from (Student(architecture, task) for architecture in ARCHITECTURES for task in TASKS)
    yield from (*MORE_SEEDS, *MORE_PIECES)


def exports(formats: tuple[str, ...]) -> Iterator[tuple[Student, Target]]:
    """Yield every student and target."""
    for which in students():
        for name in formats:
            for scheme in line.schemes_of(name):
                yield which, Target(name, scheme)
