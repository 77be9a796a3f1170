"""A user's own files as a dataset: tables with named columns, CoNLL for tags, SQuAD's JSON for questions."""

import os
from pathlib import Path

from pipeline.data import readers
from pipeline.data.datasets import Columns, Dataset, table_rows
from pipeline.errors import InputError
from pipeline.schemes import OutputKind
from pipeline.tasks import Task

ENDINGS: dict[OutputKind, tuple[str, ...]] = {
    "embedding": readers.TABLES,
    "logits": readers.TABLES,
    "value": readers.TABLES,
    "token_logits": (readers.TAGGED,),
    "spans": (readers.QUESTIONS,),
}
"""Endings of the files that a user may name, by the task's kind of output."""
TRAINED: tuple[OutputKind, ...] = ("logits", "value", "token_logits", "spans")
"""Kinds that are trained on labels; an embedding is only judged by them, as pairs with a score."""
_METRICS: dict[OutputKind, str] = {
    "embedding": "spearman",
    "logits": "accuracy",
    "value": "spearman",
    "token_logits": "entity_f1",
    "spans": "squad_f1",
}


def dataset(task: Task, train: Path, dev: Path, columns: Columns) -> Dataset:
    """Return two files as a dataset named `dev_file`; the names of its labels are those that the files hold.

    Raises:
        InputError: a file is absent or malformed, or `dev` has a class that `train` lacks.
    """
    # `Dataset` leaves an absolute path as it is. A link is not resolved, since its own name tells the format.
    train_file, dev_file = (os.path.abspath(path) for path in (train, dev))
    names = _names(task, train, dev, columns)
    return Dataset("dev_file", dev_file, True, _METRICS[task.output_kind], columns, names, train=train_file)


def _names(task: Task, train: Path, dev: Path, columns: Columns) -> tuple[str, ...]:
    if not task.has_labels:
        return ()
    trained, judged = (_labels(path, columns) for path in (train, dev))
    if task.output_kind == "token_logits":
        # `O` first, then each kind's B and I.
        return tuple(sorted(trained | judged, key=lambda tag: (tag != "O", tag.partition("-")[2], tag)))
    unknown = sorted(judged - trained)
    # Training rows of no class or one are themselves the fault, which is reported later.
    if unknown and len(trained) > 1:
        exist = ", ".join(sorted(trained))
        raise InputError(f"{dev}: label {unknown[0]!r} is not in {train.name}, which has: {exist}.")
    # Numbers in their own order, 2 before 10.
    return tuple(sorted(trained, key=lambda name: (len(name), name) if name.isdecimal() else (99, name)))


def _labels(path: Path, columns: Columns) -> set[str]:
    if path.suffix.lower() == readers.TAGGED:
        return {tag for sentence in readers.conll(path) for tag in sentence.tags}
    return {row.label for row in table_rows(path, columns)}
