"""A user's own files as a dataset: tables with named columns, CoNLL for tags, SQuAD's JSON for questions."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pipeline.data import readers
from pipeline.data.datasets import DATASETS, Columns, Dataset, label_rows, table_rows
from pipeline.data.location import locate
from pipeline.errors import InputError, RecipeError
from pipeline.kinds import KINDS, OutputKind
from pipeline.recipe.fields import LabelledUpdates
from pipeline.tasks import TASKS, Task

ENDINGS: dict[OutputKind, tuple[str, ...]] = {
    "embedding": readers.TABLES,
    "logits": readers.TABLES,
    "value": readers.TABLES,
    "token_logits": (readers.TAGGED,),
    "spans": (readers.QUESTIONS,),
    "multi_label": readers.TABLES,
    "values": readers.TABLES,
}
"""Endings of the files that a user may name, by the task's kind of output."""
_SEVERAL: Mapping[OutputKind, Literal["given", "numbers"]] = {"multi_label": "given", "values": "numbers"}


def dataset(task: Task, train: Path, dev: Path, columns: Columns, metric: str | None = None) -> Dataset:
    """Return two files as a dataset named `dev_file`; the names of its labels are those that the files hold.

    Args:
        task: the recipe's.
        train: the rows to train on.
        dev: the rows to judge on.
        columns: their columns.
        metric: a metric of the task's kind of output; None for its first.

    Raises:
        InputError: a file is absent or malformed, or `dev` has a class that `train` lacks.
    """
    found = _dataset("dev_file", task, dev, columns, _names(task, train, dev, columns), train=train)
    return replace(found, metric=metric) if metric else found


def learned(section: LabelledUpdates, task: Task, recipe_file: Path) -> Dataset | None:
    """Return the labelled rows that a section learns from, less those that it holds out; None if it names no rows.

    Args:
        section: `[train]` or `[distil]`.
        task: the recipe's.
        recipe_file: relative paths start at its folder.

    Raises:
        InputError: a file is absent or malformed, or `dev_file` has a class that `train_file` lacks.
    """
    if section.dataset is not None:
        found = DATASETS[section.dataset]
    elif section.train_file is not None and section.dev_file is not None:
        train, dev = (locate(name, recipe_file) for name in (section.train_file, section.dev_file))
        columns = Columns(section.text, section.pair, section.label, labels=section.labels or ())
        found = dataset(task, train, dev, columns, section.metric)
    else:
        return None
    return replace(found, held_out=section.held_out) if section.held_out else found


def single(name: str, task: Task, file: Path, columns: Columns) -> Dataset:
    """Return a file as a dataset that nothing is trained on.

    Raises:
        InputError: the file is absent or malformed.
    """
    return _dataset(name, task, file, columns, _names(task, file, file, columns))


def check_columns(task: Task, labels: tuple[str, ...] | None, section: str) -> None:
    """Refuse columns of labels where a text has one label, and the lack of them where it has several numbers.

    Args:
        task: the recipe's.
        labels: the section's key of this name.
        section: its name, for the message.

    Raises:
        RecipeError: they are given, or are not, against the task.
    """
    if labels and not KINDS[task.output_kind].several_targets:
        able = ", ".join(row.name for row in TASKS.values() if KINDS[row.output_kind].several_targets)
        raise RecipeError(f"{section}.labels: a text has one label in task {task.name}; several have: {able}.")
    if not labels and _SEVERAL.get(task.output_kind) == "numbers":
        raise RecipeError(
            f"{section}.labels: task {task.name} has a column of numbers for each output; name them, such as "
            'labels = ["valence", "arousal"].'
        )


def _dataset(
    name: str, task: Task, file: Path, columns: Columns, names: tuple[str, ...], train: Path | None = None
) -> Dataset:
    # `Dataset` leaves an absolute path as it is. A link is not resolved, since its own name tells the format.
    kind = task.output_kind
    return Dataset(
        name,
        os.path.abspath(file),
        True,
        KINDS[kind].metric,
        columns,
        names,
        train=os.path.abspath(train) if train else None,
        several=_SEVERAL.get(kind),
    )


def _names(task: Task, train: Path, dev: Path, columns: Columns) -> tuple[str, ...]:
    if not task.has_labels or columns.labels:
        return columns.labels
    trained, judged = (_labels(task, path, columns) for path in (train, dev))
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


def _labels(task: Task, path: Path, columns: Columns) -> set[str]:
    if path.suffix.lower() == readers.TAGGED:
        return {tag for sentence in readers.conll(path) for tag in sentence.tags}
    if _SEVERAL.get(task.output_kind):
        return {label for row in label_rows(path, columns) for label in row.labels}
    return {row.label for row in table_rows(path, columns)}
