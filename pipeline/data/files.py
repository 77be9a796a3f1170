"""A user's own files as a data set: tables with named columns, CoNLL for tags, SQuAD's JSON for questions."""

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.data.datasets import Dataset, Labelled, Placed, place
from pipeline.errors import InputError
from pipeline.schemes import OutputKind
from pipeline.tasks import Task

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
ENDINGS: dict[OutputKind, tuple[str, ...]] = {
    "embedding": _TABLES,
    "logits": _TABLES,
    "value": _TABLES,
    "token_logits": (".conll",),
    "spans": (".json",),
}
"""Of one's own files, by the task's kind of output."""
TRAINED: tuple[OutputKind, ...] = ("logits", "value", "token_logits", "spans")
"""Kinds that are trained on labels; an embedding's are looked at, as pairs with a score, when it is judged."""
_NO_LABEL = {"nan", "inf", "-inf"}
_TAG = re.compile(r"O|[BI]-\S+")
_METRICS: dict[OutputKind, str] = {
    "embedding": "spearman",
    "logits": "accuracy",
    "value": "spearman",
    "token_logits": "entity_f1",
    "spans": "squad_f1",
}


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns."""

    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class _Raw:
    """A row whose labels are still names."""

    line: int
    first: str
    second: str | None
    labels: tuple[str, ...]


def dataset(task: Task, train: Path, dev: Path, columns: Columns) -> Dataset:
    """Return two files as a data set named `dev_file`, whose labels' names are those that the files hold.

    Raises:
        InputError: a file is absent or malformed, or `dev` has a class that `train` lacks.
    """
    names = _names(task, train, dev, columns)
    read = partial(_read, kind=task.output_kind, columns=columns, names=names)
    # An absolute path is not looked up in the package's texts; a link keeps its own name, which says how it is read.
    places = [os.path.abspath(path) for path in (dev, train)]
    return Dataset("dev_file", places[0], True, read, _METRICS[task.output_kind], names, places[1])


def _names(task: Task, train: Path, dev: Path, columns: Columns) -> tuple[str, ...]:
    if not task.has_labels:
        return ()
    tables = [{label for row in _raw(path, columns) for label in row.labels} for path in (train, dev)]
    if task.output_kind == "token_logits":
        # `O` first, then each kind's B and I.
        return tuple(sorted(tables[0] | tables[1], key=lambda tag: (tag != "O", tag.partition("-")[2], tag)))
    unknown = sorted(tables[1] - tables[0])
    # With no class or one, the training rows themselves are what is wrong.
    if unknown and len(tables[0]) > 1:
        exist = ", ".join(sorted(tables[0]))
        raise InputError(f"{dev}: label {unknown[0]!r} is not in {train.name}, which has: {exist}.")
    # Numbers in their own order, 2 before 10.
    return tuple(sorted(tables[0], key=lambda name: (len(name), name) if name.isdecimal() else (99, name)))


def _read(path: Path, *, kind: OutputKind, columns: Columns, names: Sequence[str]) -> list[Labelled]:
    if kind == "spans":
        return list(_questions(path))
    rows = _raw(path, columns)
    if kind == "token_logits":
        return [Labelled(row.first, None, tags=tuple(names.index(tag) for tag in row.labels)) for row in rows]
    number = _number if kind in ("value", "embedding") else lambda path, row: float(names.index(row.labels[0]))
    return [Labelled(row.first, row.second, number(path, row)) for row in rows]


def _number(path: Path, row: _Raw) -> float:
    try:
        value = float(row.labels[0])
    except ValueError as error:
        raise InputError(f"{path}, row {row.line}: label {row.labels[0]!r} is not a number.") from error
    if not math.isfinite(value):
        raise InputError(f"{path}, row {row.line}: label {row.labels[0]!r} is not a finite number.")
    return value


def _raw(path: Path, columns: Columns) -> list[_Raw]:
    """Read a table or a CoNLL file by its ending."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return list(_rows(path, _parquet(path), columns))
    text = _text(path)
    if suffix == ".conll":
        return list(_conll(path, text))
    return list(_rows(path, _json_lines(path, text) if suffix == ".jsonl" else _table(path, text, suffix), columns))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist; train_file and dev_file name files.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def _table(path: Path, text: str, suffix: str) -> Iterable[tuple[int, dict[str, object]]]:
    # As GLUE has it, quotes in a .tsv are plain characters.
    form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {"delimiter": ","}
    # By line ends alone: a text may hold other characters that Python counts as such.
    reader = csv.DictReader(io.StringIO(text), strict=True, **form)
    try:
        header = list(reader.fieldnames or ())
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: its header names column {twice!r} twice.")
        for number, row in enumerate(reader, 1):
            if None in row:
                raise InputError(f"{path}, row {number}: more fields than the header has ({len(row) - 1}).")
            yield number, dict(row)
    except csv.Error as error:
        raise InputError(f"{path} is malformed at line {reader.reader.line_num}: {error}.") from error


def _json_lines(path: Path, text: str) -> Iterable[tuple[int, dict[str, object]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number} holds a {type(row).__name__}, not an object.")
            yield number, row


def _parquet(path: Path) -> Iterable[tuple[int, dict[str, object]]]:
    """Read what hub data sets come in; classes that are stored as numbers with names get their names."""
    import pyarrow
    from datasets import ClassLabel, Features
    from pyarrow import parquet

    if path.is_dir():
        raise InputError(f"{path} is a folder; train_file and dev_file name files.")
    if not path.is_file():
        raise InputError(f"{path} does not exist; train_file and dev_file name files.")
    try:
        table = parquet.read_table(path)
        features = Features.from_arrow_schema(table.schema).items()
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not a parquet file of plain columns: {reason}.") from error
    named: dict[str, Callable[[int], str]] = {
        name: feature.int2str for name, feature in features if isinstance(feature, ClassLabel)
    }
    for number, row in enumerate(table.to_pylist(), 1):
        try:
            # GLUE's test splits have the class -1, which is none.
            found = {name: to_name(row[name]) for name, to_name in named.items() if row[name] not in (None, -1)}
        except ValueError as error:
            raise InputError(f"{path}, row {number}: its class has no name: {error}.") from error
        yield number, row | {name: "" for name in named} | found


def _rows(path: Path, table: Iterable[tuple[int, dict[str, object]]], columns: Columns) -> Iterable[_Raw]:
    wanted = [columns.text, columns.label, *([columns.pair] if columns.pair else [])]
    for number, row in table:
        for name in wanted:
            if name not in row:
                exist = ", ".join(map(str, row))
                raise InputError(f"{path}, row {number}: there is no column {name!r}; there are: {exist}.")
            if row[name] is None or str(row[name]).strip() == "":
                raise InputError(f"{path}, row {number}: column {name!r} is empty.")
            if not isinstance(row[name], str | int | float):
                kind = type(row[name]).__name__
                raise InputError(f"{path}, row {number}: column {name!r} holds a {kind}, not a text or a number.")
        label = str(row[columns.label]).strip()
        _check_label(path, number, columns.label, label)
        second = str(row[columns.pair]) if columns.pair else None
        yield _Raw(number, str(row[columns.text]), second, (label,))


def _check_label(path: Path, number: int, column: str, label: str) -> None:
    """Refuse what tables hold in the place of a label, and what no file can hold."""
    if label.lower() in _NO_LABEL:
        raise InputError(f"{path}, row {number}: label {label!r} is not a finite number, nor a name.")
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{path}, row {number}: column {column!r} holds half a character.") from error


def _conll(path: Path, text: str) -> Iterable[_Raw]:
    """Read a word and its tag, the first and the last field of a line; an empty line ends a sentence.

    Left out are the comments that CoNLL-U puts before a sentence.
    """
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        fields = line.split()
        if line.startswith("#") and not _TAG.fullmatch(fields[-1]):
            continue
        if not fields or fields[0] == "-DOCSTART-":
            if words:
                yield _Raw(number - 1, " ".join(words), None, tuple(tags))
            words, tags = [], []
        elif len(fields) == 1:
            raise InputError(f"{path}, line {number}: {fields[0][:40]!r} has no tag; a line is a word and its tag.")
        elif not _TAG.fullmatch(fields[-1]):
            tag = fields[-1]
            ways = " Write U- and S- as B-, L- and E- as I-." if re.match(r"[UESL]-", tag) else ""
            raise InputError(f"{path}, line {number}: tag {tag[:40]!r} is not O, B-KIND or I-KIND.{ways}")
        else:
            words.append(fields[0])
            tags.append(fields[-1])


def _questions(path: Path) -> Iterable[Placed]:
    """Read SQuAD 1.1; a question without an answer is refused, since version 2 asks for another decoder."""
    try:
        articles = json.loads(_text(path))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        asked = [(paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"]]
        for number, (passage, question) in enumerate(asked, 1):
            yield _placed(path, number, passage, question)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} is not SQuAD's JSON (data, paragraphs, context, qas, answers): {reason}.") from error


def _placed(path: Path, number: int, passage: str, question: dict[str, object]) -> Placed:
    answers = question["answers"]
    if not isinstance(answers, list) or not answers:
        raise InputError(f"{path}, question {number} has no answer; each needs one that stands in its passage.")
    start = int(answers[0]["answer_start"])
    texts = tuple(dict.fromkeys(str(answer["text"]) for answer in answers))
    asked = str(question["question"])
    try:
        return place(asked, passage, texts, start)
    except ValueError as error:
        raise InputError(f"{path}, question {number}: {error}.") from error
