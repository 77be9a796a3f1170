"""Labelled datasets: which there are, and how their rows are read.

The bundled ones were written for this package (`text/texts/README.md`). Public ones are read from the folder that
`POCKETBERT_DATA` names, if it is set; an artifact records their digests and takes over the texts that it needs.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from pipeline.artifact import digest_of
from pipeline.data import readers
from pipeline.errors import InputError
from pipeline.execution import planned
from pipeline.text import bundled

Split = Literal["dev", "train", "held_out"]
DATA_VARIABLE = planned.DATA_VARIABLE
_Row = TypeVar("_Row")
_NO_LABEL = {"nan", "inf", "-inf"}


@dataclass(frozen=True)
class Labelled:
    """One labelled row."""

    first: str
    """The text; a question; or words with a space between any two."""
    second: str | None
    """The other text of a pair; the passage that a question is about."""
    label: float = 0.0
    """A score, or the number of a class among the dataset's names."""
    values: tuple[float, ...] = ()
    """Where a text has a label or a number for each of the dataset's names: that number, or 1 for a label that is given
    and 0 for one that is not."""
    tags: tuple[int, ...] = ()
    """For each word of `first`, the number of its tag among the dataset's names."""
    answers: tuple[str, ...] = ()
    """Accepted answers to a question, each a part of the passage."""

    def by_output(self, ids: Sequence[int], width: int) -> tuple[float, ...]:
        """Return `values` in the order of a head's outputs; an output that the dataset does not name gets 0.

        Args:
            ids: the number of the head's output for each of the dataset's names.
            width: number of the head's outputs.
        """
        found = [0.0] * width
        for number, value in zip(ids, self.values, strict=True):
            found[number] = value
        return tuple(found)


@dataclass(frozen=True)
class LocatedAnswer(Labelled):
    """A question whose answer's position in the passage is known."""

    answer_start: int = 0
    """First character of `answers[0]` in the passage."""


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns."""

    text: str
    pair: str | None
    label: str
    """The column with the class or the number, or with several labels."""
    header: tuple[str, ...] = ()
    """All columns of a CSV or TSV file that has no header line."""
    labels: tuple[str, ...] = ()
    """Columns with a number each, in place of `label`; the dataset's names are theirs."""


@dataclass(frozen=True)
class Dataset:
    """A labelled dataset. To add one, add a row to `DATASETS`. The ending of its files tells their format."""

    name: str
    file: str
    """Relative to the package's texts, or to `POCKETBERT_DATA`."""
    bundled: bool
    metric: str
    """A row of `pipeline.metrics.scoring.METRICS`: the one that the field reports for this dataset."""
    columns: Columns | None = None
    """Columns of a table; None for other kinds of files."""
    names: tuple[str, ...] = ()
    """Names of the classes or tags, in the order of their numbers."""
    written: tuple[str, ...] = ()
    """How the files write the classes, in the order of `names`; empty where they write the names."""
    train: str | None = None
    """Like `file`, with rows to train on."""
    dev_thirds: tuple[int, ...] = (0, 1, 2)
    """Which of each three articles of a question file belong to the dev split."""
    train_thirds: tuple[int, ...] = (0, 1, 2)
    several: Literal["given", "numbers"] | None = None
    """What a text has for each of the names: whether the label is given, or a number. None: a text has one label."""
    train_version: int = 1
    """Version of how training rows are read; a part of their digest from 2 on."""
    held_out: int = 0
    """Number of training rows that are in no `train` split; they are the split `held_out`."""

    def path(self, split: Split = "dev") -> Path | None:
        """Return where a split's file should be, or None if `POCKETBERT_DATA` is not set or there is no such split."""
        file = self.file if split == "dev" else self.train
        root = bundled.FOLDER if self.bundled else os.environ.get(DATA_VARIABLE)
        return Path(root) / file if root and file else None

    def absent(self, split: Split = "dev") -> str | None:
        """Say why a split cannot be used now, or return None.

        Raises:
            InputError: this machine works for another one, which has the split.
        """
        reason, path = self._absent(split), self.path(split)
        if self.bundled or (split != "dev" and self.train is None):
            return reason
        return planned.absent(
            planned.name_of(path) if path else str(self.file if split == "dev" else self.train), reason
        )

    def _absent(self, split: Split) -> str | None:
        if split != "dev" and self.train is None:
            return "it has no rows to train on"
        path = self.path(split)
        if path is None:
            return f"{DATA_VARIABLE} is not set"
        if path.is_file():
            return None
        # Verdicts quote this and are read on other machines, so the folder itself stays out of it.
        file = self.file if split == "dev" else self.train
        shown = str(path) if self.bundled else f"{DATA_VARIABLE}/{file}"
        return f"{shown} is a folder, and a file belongs there" if path.is_dir() else f"{shown} does not exist"

    def load(self, split: Split = "dev") -> list[Labelled]:
        """Read all rows of a split.

        Raises:
            InputError: the file is absent, malformed or empty, or has no more rows than are held out.
        """
        path = self.path(split)
        if path is None or not path.is_file():
            raise InputError(f"dataset {self.name}: {self.absent(split)}.{data_folder_note()}")
        rows = list(self._examples(path, split))
        if not rows:
            raise InputError(f"dataset {self.name}: {path} holds no rows.")
        return rows if split == "dev" or not self.held_out else self._parted(rows, split)

    def _parted(self, rows: list[Labelled], split: Split) -> list[Labelled]:
        """Return the training rows that are held out, or those that are not, in the file's order.

        The rows that a smaller number holds out are among those of a larger one, so that a student and its teacher may
        hold out different numbers.
        """
        if self.held_out >= len(rows):
            raise InputError(
                f"dataset {self.name}: {self.held_out} training rows are held out, and there are {len(rows)}."
            )
        held = {*np.random.default_rng(0).permutation(len(rows))[: self.held_out].tolist()}
        return [row for number, row in enumerate(rows) if (number in held) == (split == "held_out")]

    def _examples(self, path: Path, split: Split) -> Iterator[Labelled]:
        if path.suffix.lower() == readers.QUESTIONS:
            for one in readers.squad(path, self.dev_thirds if split == "dev" else self.train_thirds):
                yield LocatedAnswer(one.question, one.passage, answers=one.answers, answer_start=one.answer_start)
        elif path.suffix.lower() == readers.TAGGED:
            for sentence in readers.conll(path):
                tags = tuple(self._class(f"{path}, line {sentence.line}", tag) for tag in sentence.tags)
                yield Labelled(" ".join(sentence.words), None, tags=tags)
        else:
            assert self.columns is not None, "a table's row names its columns"
            if self.several is not None:
                yield from self._with_values(path, self.columns)
                return
            for row in table_rows(path, self.columns):
                label = float(self._class(row.where, row.label)) if self.names else finite(row.label, row.where)
                yield Labelled(row.text, row.pair, label)

    def _with_values(self, path: Path, columns: Columns) -> Iterator[Labelled]:
        if columns.labels:
            for row in number_rows(path, columns):
                if self.several == "given" and not set(row.numbers) <= {0.0, 1.0}:
                    at, number = next((at, one) for at, one in enumerate(row.numbers) if one not in (0.0, 1.0))
                    raise InputError(
                        f"{row.where}: column {columns.labels[at]!r} holds {number:g}; it has to be 1 for a text that "
                        "has the label and 0 for one that has not."
                    )
                yield Labelled(row.text, row.pair, values=row.numbers)
        else:
            for labelled in label_rows(path, columns):
                given = {self._class(labelled.where, label) for label in labelled.labels}
                values = tuple(float(number in given) for number in range(len(self.names)))
                yield Labelled(labelled.text, labelled.pair, values=values)

    def _class(self, where: str, label: str) -> int:
        names = self.written or self.names
        if label not in names:
            raise InputError(f"{where}: label {label!r} is not one of: {', '.join(names)}.")
        return names.index(label)

    def label_ids(self, labels: Sequence[str]) -> list[int] | str:
        """Return the checkpoint's number of each of the dataset's names, or say why they do not go together.

        Args:
            labels: the checkpoint's own names in order; generic ones (`LABEL_0`) are taken by number.
        """
        # A label that no text of a list has may be a rare one; a column that is absent leaves its label unknown.
        if self.columns is not None and self.columns.labels and len(labels) != len(self.names):
            return f"its columns are {', '.join(self.names)}, and the checkpoint has {', '.join(labels)}"
        generic = [f"label_{number}" for number in range(len(labels))]
        if all(name in labels for name in self.names):
            return [labels.index(name) for name in self.names]
        known, names = ([name.lower() for name in these] for these in (labels, self.names))
        if known == generic and len(labels) == len(self.names):
            return list(range(len(labels)))
        # Names that differ in case alone are the same, unless two of one side do.
        if len(set(names)) < len(names) or any(known.count(name) != 1 for name in names):
            return f"its labels are {', '.join(self.names)}, and the checkpoint has {', '.join(labels)}"
        return [known.index(name) for name in names]

    def digest(self, split: Split = "dev") -> str | None:
        """Return the sha256 of a split's file, and of how it is read, or None where it is absent."""
        path = self.path(split)
        if path is None or not path.is_file():
            return None
        content = planned.digest(path)
        if split == "dev":
            return content
        read = [content, self.train_version, *([self.held_out] if self.held_out else [])]
        return digest_of(read) if self.train_version > 1 or self.held_out else content


def data_folder_note() -> str:
    """Return a sentence on where `POCKETBERT_DATA` points, or nothing if it is not set."""
    folder = os.environ.get(DATA_VARIABLE)
    return f" {DATA_VARIABLE} is {folder}." if folder else ""


@dataclass(frozen=True)
class TableRow:
    """One row of a table, its label as it is written."""

    where: str
    """File and row, for messages."""
    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class LabelsRow:
    """One row of a table with several labels in a column."""

    where: str
    text: str
    pair: str | None
    labels: list[str]


@dataclass(frozen=True)
class NumbersRow:
    """One row of a table with several columns of numbers."""

    where: str
    text: str
    pair: str | None
    numbers: tuple[float, ...]


def label_rows(path: Path, columns: Columns) -> Iterator[LabelsRow]:
    """Read a table's texts, and the labels that each has in one column.

    Raises:
        InputError: the table is malformed, or a label is not text that a file can hold.
    """
    texts = [columns.text, *([columns.pair] if columns.pair else [])]
    for number, (text, *pair), labels in readers.table_of_labels(path, texts, columns.label, columns.header):
        row = LabelsRow(f"{path}, row {number}", text, pair[0] if pair else None, labels)
        for label in labels:
            _check_characters(label, row.where, columns.label)
        yield row


def number_rows(path: Path, columns: Columns) -> Iterator[NumbersRow]:
    """Read a table's texts, and the number that each has in several columns.

    Raises:
        InputError: the table is malformed, or a field is not a finite number.
    """
    texts = [columns.text, *([columns.pair] if columns.pair else [])]
    for number, fields in readers.table(path, [*texts, *columns.labels], columns.header):
        where = f"{path}, row {number}"
        pair = fields[1] if columns.pair else None
        yield NumbersRow(where, fields[0], pair, tuple(finite(field, where) for field in fields[len(texts) :]))


def table_rows(path: Path, columns: Columns) -> Iterator[TableRow]:
    """Read a table's texts and labels.

    Raises:
        InputError: the table is malformed, or a label is empty, not a number, or not text that a file can hold.
    """
    names = [columns.text, columns.label, *([columns.pair] if columns.pair else [])]
    for number, (text, label, *pair) in readers.table(path, names, columns.header):
        row = TableRow(f"{path}, row {number}", text, pair[0] if pair else None, label.strip())
        # What tables hold instead of a label that is missing.
        if row.label.lower() in _NO_LABEL:
            raise InputError(f"{row.where}: label {row.label!r} is not a finite number, nor a name.")
        _check_characters(label, row.where, columns.label)
        yield row


def _check_characters(label: str, where: str, column: str) -> None:
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: column {column!r} holds half a character.") from error


def finite(label: str, where: str) -> float:
    """Return the number that a field holds.

    Raises:
        InputError: it holds none, or none that is finite.
    """
    try:
        value = float(label)
    except ValueError as error:
        raise InputError(f"{where}: label {label!r} is not a number.") from error
    if not math.isfinite(value):
        raise InputError(f"{where}: label {label!r} is not a finite number.")
    return value


_SENTIMENTS = ("negative", "positive")
_DIGITS = ("0", "1")
_KINDS = ("corporation", "creative-work", "group", "location", "person", "product")
WNUT17_TAGS = ("O", *(f"{position}-{kind}" for kind in _KINDS for position in "BI"))

DATASETS: dict[str, Dataset] = {
    row.name: row
    for row in (
        Dataset("graded_pairs", "graded_pairs.jsonl", True, "spearman", Columns("first", "second", "score")),
        Dataset(
            "sentiment",
            "sentiment.jsonl",
            True,
            "accuracy",
            Columns("text", None, "label"),
            names=_SENTIMENTS,
            written=_DIGITS,
            train="../demo/sentiment_train.jsonl",
        ),
        Dataset("questions", "questions.json", True, "squad_f1"),
        Dataset(
            "stsb",
            "stsb/dev.csv",
            False,
            "spearman",
            Columns("sentence1", "sentence2", "score", header=("sentence1", "sentence2", "score")),
            train="stsb/train.csv",
        ),
        Dataset(
            "sst2",
            "sst2/dev.tsv",
            False,
            "accuracy",
            Columns("sentence", None, "label"),
            names=_SENTIMENTS,
            written=_DIGITS,
            train="sst2/train.tsv",
        ),
        Dataset(
            "cola",
            "cola/dev.tsv",
            False,
            "matthews",
            Columns("sentence", None, "label", header=("source", "label", "mark", "sentence")),
            names=("unacceptable", "acceptable"),
            written=_DIGITS,
            train="cola/train.tsv",
        ),
        Dataset(
            "rte",
            "rte/dev.tsv",
            False,
            "accuracy",
            Columns("sentence1", "sentence2", "label"),
            names=("entailment", "not_entailment"),
            train="rte/train.tsv",
        ),
        Dataset(
            "wnut17",
            "wnut17/dev.conll",
            False,
            "entity_f1",
            names=WNUT17_TAGS,
            train="wnut17/train.conll",
            train_version=2,
        ),
        # XQuAD has no training split of its own. Two of three articles serve; the third is what is judged.
        Dataset(
            "xquad",
            "xquad/dev.json",
            False,
            "squad_f1",
            train="xquad/dev.json",
            dev_thirds=(2,),
            train_thirds=(0, 1),
            train_version=2,
        ),
    )
}


def sample(rows: Sequence[_Row], count: int | None, *, seed: int) -> list[_Row]:
    """Return a sample of `count` rows, in their order; all rows where `count` is None or there are no more."""
    if count is None or len(rows) <= count:
        return list(rows)
    chosen = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    return [rows[number] for number in sorted(chosen)]
