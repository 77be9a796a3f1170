"""Readers of labelled files, one for each format; a file's ending tells its format.

They serve the known datasets and a user's own files alike, give strings only, and name file and row in each error.
Hugging Face `datasets` 5.2 does not: its CSV reader shifts the columns of a file whose first row is too long, its JSON
reader makes timestamps of texts that look like dates, and its errors name no file. Only class names are read with it.
"""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.errors import InputError, no_file
from pipeline.execution import planned

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
TAGGED = ".conll"
QUESTIONS = ".json"
SEPARATOR = "|"
"""Stands between the labels of a text in one field of a table."""
_TAG = re.compile(r"O|[BI]-\S+")
Record = dict[str, object]


def read_text(path: Path) -> str:
    """Return the text of a labelled file, without a byte order mark.

    Raises:
        InputError: the file is absent, cannot be read, or is not UTF-8.
    """
    if not os.path.isfile(path):
        # Nor a pipe: it is read more than once, and one that nobody writes to would never end.
        raise InputError(f"{path} {no_file(path)}; train_file and dev_file name files.")
    planned.check(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


# --- tables -------------------------------------------------------------------------------------------------------


def table(path: Path, columns: Sequence[str], header: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """Read some columns of a table, in the order in which they are named.

    Args:
        path: a file with one of the endings in `TABLES`.
        columns: the columns to read.
        header: the names of all columns of a CSV or TSV file that has no header line.

    Yields:
        Each row's number and its fields, none of which is empty.

    Raises:
        InputError: the file cannot be read, or a row lacks a column, has an empty field, or one that is no text or
            number.
    """
    for number, record in records(path, header):
        yield number, [_field(path, number, record, name) for name in columns]


def table_of_labels(
    path: Path, columns: Sequence[str], label: str, header: Sequence[str] = ()
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Read a table in which each row has any number of labels in one column.

    A CSV or TSV file has `|` between two labels, and nothing for a text without any. JSON Lines and parquet may have a
    list instead.

    Args:
        path: a file with one of the endings in `TABLES`.
        columns: the columns to read besides the labels.
        label: the column with the labels.
        header: see `table`.

    Yields:
        Each row's number, its fields, and its labels, each once.

    Raises:
        InputError: as `table`; or a label is empty, or no text or number.
    """
    for number, record in records(path, header):
        yield number, [_field(path, number, record, name) for name in columns], _labels(path, number, record, label)


def _labels(path: Path, number: int, record: Record, name: str) -> list[str]:
    value = record.get(name)
    if isinstance(value, list):
        parts = [_field(path, number, {name: one}, name) for one in value]
    elif name in record and (value is None or str(value).strip() == ""):
        parts = []
    else:
        parts = _field(path, number, record, name).split(SEPARATOR)
    labels = list(dict.fromkeys(part.strip() for part in parts))
    if "" in labels:
        raise InputError(f"{path}, row {number}: column {name!r} has an empty label; {SEPARATOR!r} stands between two.")
    return labels


def records(path: Path, header: Sequence[str] = ()) -> Iterator[tuple[int, Record]]:
    """Read a table whole.

    Args:
        path: a file with one of the endings in `TABLES`.
        header: see `table`.

    Yields:
        Each row's number, and its fields by the names of the columns.

    Raises:
        InputError: the file cannot be read.
    """
    match path.suffix.lower():
        case ".parquet":
            return _parquet(path)
        case ".jsonl":
            return _json_lines(path)
        case ".tsv":
            # As in GLUE's files, quotes are plain characters.
            return _separated(path, header, "\t", csv.QUOTE_NONE)
        case _:
            return _separated(path, header, ",", csv.QUOTE_MINIMAL)


def _field(path: Path, number: int, record: Record, name: str) -> str:
    if name not in record:
        exist = ", ".join(map(str, record))
        raise InputError(f"{path}, row {number}: there is no column {name!r}; there are: {exist}.")
    value = record[name]
    if value is None or str(value).strip() == "":
        raise InputError(f"{path}, row {number}: column {name!r} is empty.")
    if not isinstance(value, str | int | float):
        raise InputError(
            f"{path}, row {number}: column {name!r} holds a {type(value).__name__}, not a text or a number."
        )
    return str(value)


def _separated(
    path: Path, header: Sequence[str], delimiter: str, quoting: Literal[0, 3]
) -> Iterator[tuple[int, Record]]:
    # A stream splits by line ends alone; `splitlines` takes other characters of a text for line ends.
    stream = io.StringIO(read_text(path))
    reader = csv.DictReader(stream, header or None, strict=True, delimiter=delimiter, quoting=quoting)
    try:
        names = list(reader.fieldnames or ())
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: its header names column {twice!r} twice.")
        for number, record in enumerate(reader, 1):
            if None in record:
                kind = "the file has columns" if header else "the header has"
                raise InputError(f"{path}, row {number}: more fields than {kind} ({len(names)}).")
            yield number, dict(record)
    except csv.Error as error:
        raise InputError(f"{path} is malformed at line {reader.reader.line_num}: {error}.") from error


def _json_lines(path: Path) -> Iterator[tuple[int, Record]]:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number} is not JSON: {error}.") from error
            if not isinstance(record, dict):
                raise InputError(f"{path}, line {number} holds a {type(record).__name__}, not an object.")
            yield number, record


def _parquet(path: Path) -> Iterator[tuple[int, Record]]:
    """Read what hub datasets come in; a class that is stored as a number with a name gets its name."""
    import pyarrow
    from datasets import ClassLabel, Features, List
    from pyarrow import parquet

    if not path.is_file():
        raise InputError(f"{path} {no_file(path)}; train_file and dev_file name files.")
    planned.check(path)
    try:
        stored = parquet.read_table(path)
        features = Features.from_arrow_schema(stored.schema).items()
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not a parquet file of plain columns: {reason}.") from error
    to_names: dict[str, Callable[[int], str]] = {
        name: feature.int2str for name, feature in features if isinstance(feature, ClassLabel)
    }
    lists: dict[str, Callable[[int], str]] = {
        name: feature.feature.int2str
        for name, feature in features
        if isinstance(feature, List) and isinstance(feature.feature, ClassLabel)
    }
    for number, record in enumerate(stored.to_pylist(), 1):
        try:
            # The class -1 of GLUE's test splits stands for none.
            names = {
                name: to_name(record[name]) for name, to_name in to_names.items() if record[name] not in (None, -1)
            }
            names_of_lists = {name: list(map(to_name, record[name] or ())) for name, to_name in lists.items()}
        except ValueError as error:
            raise InputError(f"{path}, row {number}: its class has no name: {error}.") from error
        yield number, record | {name: "" for name in to_names} | names | names_of_lists


# --- CoNLL --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence and their tags."""

    line: int
    """Number of the line of the last word."""
    words: tuple[str, ...]
    tags: tuple[str, ...]


def conll(path: Path) -> Iterator[Sentence]:
    """Read a CoNLL file: the first field of a line is a word and the last one its tag.

    A line without a word ends a sentence, white space in it or not: most of those in WNUT 2017's train file hold a tab.
    The comments that CoNLL-U puts before a sentence are left out.

    Args:
        path: the file.

    Raises:
        InputError: the file cannot be read, or a line has no tag or one that is not `O`, `B-KIND` or `I-KIND`.
    """
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        fields = line.split()
        if line.startswith("#") and not _TAG.fullmatch(fields[-1]):
            continue
        if fields and fields[0] != "-DOCSTART-":
            pairs.append(_word_and_tag(path, number, fields))
        elif pairs:
            words, tags = zip(*pairs, strict=True)
            yield Sentence(number - 1, words, tags)
            pairs = []


def _word_and_tag(path: Path, number: int, fields: list[str]) -> tuple[str, str]:
    word, tag = fields[0], fields[-1]
    if len(fields) == 1:
        raise InputError(f"{path}, line {number}: {word[:40]!r} has no tag; a line is a word and its tag.")
    if not _TAG.fullmatch(tag):
        hint = " Write U- and S- as B-, L- and E- as I-." if re.match(r"[UESL]-", tag) else ""
        raise InputError(f"{path}, line {number}: tag {tag[:40]!r} is not O, B-KIND or I-KIND.{hint}")
    return word, tag


# --- SQuAD --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A question on a passage, with its accepted answers."""

    question: str
    passage: str
    answers: tuple[str, ...]
    """Each once, in the file's order."""
    answer_start: int
    """First character of `answers[0]` in the passage."""


def squad(path: Path, thirds: Collection[int] = (0, 1, 2)) -> Iterator[Question]:
    """Read SQuAD 1.1; a question without an answer is refused, since version 2 asks for another decoder.

    Args:
        path: the file.
        thirds: which of each three articles to read.

    Raises:
        InputError: the file cannot be read, is not SQuAD's JSON, or an answer does not stand where the file says.
    """
    try:
        document = json.loads(read_text(path))["data"]
        paragraphs = [(number % 3, one) for number, article in enumerate(document) for one in article["paragraphs"]]
        questions = [(third, question, one["context"]) for third, one in paragraphs for question in one["qas"]]
        for number, (third, question, passage) in enumerate(questions, 1):
            if third in thirds:
                yield _question(f"{path}, question {number}", question, passage)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} is not SQuAD's JSON (data, paragraphs, context, qas, answers): {reason}.") from error


def _question(where: str, question: Record, passage: str) -> Question:
    answers = question["answers"]
    if not isinstance(answers, list) or not answers:
        raise InputError(f"{where} has no answer; each needs one that stands in its passage.")
    texts = tuple(dict.fromkeys(str(answer["text"]) for answer in answers))
    first, start = texts[0], int(answers[0]["answer_start"])
    if not first or passage[start : start + len(first)] != first:
        raise InputError(f"{where}: answer {first[:40]!r} is not at character {start} of its passage.")
    return Question(str(question["question"]), passage, texts, start)
