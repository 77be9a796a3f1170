"""A user's labelled files for `init --train`: their columns, a dev split, and the metric that fits the labels.

What is guessed is said, and what cannot be guessed is asked for.
"""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import tasks
from pipeline.atomic import write_bytes
from pipeline.data import files, readers
from pipeline.data.datasets import Columns, finite, label_rows, table_rows
from pipeline.data.files import ENDINGS
from pipeline.errors import InputError
from pipeline.kinds import KINDS
from pipeline.tasks import Task

_TEXTS = (
    *("text", "sentence", "sentence1", "review", "comment_text", "comment", "content", "body", "message", "tweet"),
    *("utterance", "question", "premise", "query", "title", "description", "input"),
)
_PAIRS = ("pair", "sentence2", "text2", "text_pair", "hypothesis", "passage", "answer", "context", "document")
_LABELS = ("label", "labels", "category", "class", "intent", "sentiment", "topic", "target", "score", "rating", "tag")
_DEV = ("dev", "development", "validation", "valid", "val", "test")
_DEV_FRACTION = 0.1
_DEV_ROWS = (20, 2000)
"""Fewest and most rows of a dev split that is made here."""
_BETWEEN = {".csv": "commas", ".tsv": "tabs"}
_UNEVEN = 0.65
"""Share of the commonest label from which on accuracy says little: a model that has learnt nothing reaches it."""
_UPDATES, _BATCH = 200, 32
"""Updates that a small dataset should get, by passes over it."""
_PASSES = (3, 20)


@dataclass(frozen=True)
class OwnData:
    """What a recipe's [train] says of a user's files."""

    train: Path
    dev: Path
    columns: dict[str, str]
    """The keys `text`, `pair` and `label` of the columns that have other names than these."""
    labels: tuple[str, ...]
    """The classes or labels, in alphabetical order; empty for tasks of numbers."""
    metric: str | None
    """None for the task's own."""
    epochs: int
    said: dict[str, str]
    """Sentences for the user, by what they are about."""
    made: dict[Path, bytes] = field(default_factory=dict)
    """The files of a split that is made here; they are written by `write`."""

    def write(self) -> None:
        """Write the files of the split.

        Raises:
            InputError: one of them cannot be written.
        """
        for place, content in self.made.items():
            try:
                write_bytes(place, content)
            except OSError as error:
                raise InputError(f"{place} cannot be written: {error.strerror or error}.") from error


def inspect(place: Path, task: Task, given: dict[str, str], output: Path) -> OwnData:
    """Read a user's labelled file, or a folder with one for training and one for dev, and draw a dev split if needed.

    Args:
        place: the file or folder.
        task: the recipe's.
        given: columns that the user named, by `text`, `pair` and `label`.
        output: the recipe's file; the dev split will lie beside it.

    Raises:
        InputError: no file of a kind that the task is trained on, a column that cannot be guessed, too few rows, or a
            row that training would refuse.
    """
    kind = KINDS[task.output_kind]
    if not kind.trained:
        able = ", ".join(row.name for row in tasks.TASKS.values() if KINDS[row.output_kind].trained)
        raise InputError(
            f"--train is for labelled texts, and task {task.name} has no labels to train on. Say what the labels are "
            f"with --task, such as --task classification; there are: {able}. "
            "An embedding model learns from a teacher: docs/distillation.md."
        )
    if kind.several_targets and kind.decision is None:
        raise InputError(
            f"--train is for files with one column of labels, and task {task.name} has a column of numbers for each "
            "output. Leave --train out, and name them in the recipe: docs/data.md."
        )
    train, dev = _files(place, ENDINGS[task.output_kind])
    if train.suffix.lower() not in readers.TABLES:
        if dev is None:
            raise InputError(
                f"{train} is one file, and rows for the dev split are missing. Give a folder with "
                f"train{train.suffix} and dev{train.suffix}."
            )
        return OwnData(train, dev, {}, (), None, _PASSES[0], {"data": f"{train}, judged on {dev}"})
    rows = [record for _, record in readers.records(train)]
    columns = _columns(train, rows, kind.several_targets, given)
    labels = _labels(train, task, columns)
    counts = Counter(label for row in labels for label in row)
    named = ", ".join(f"{key} = {name}" for key, name in columns.items())
    said, made = {"data": f"{train}, {len(rows):,} rows; columns {named}"}, dict[Path, bytes]()
    if dev is None:
        made, said["dev split"] = _split(train, rows, labels, output)
        train, dev = made
    else:
        said["dev split"] = f"{dev}, {_judged(train, dev, task, columns):,} rows"
    metric = None
    if counts and not kind.several_targets:
        metric, said["metric"] = _metric(counts, kind.metric)
    passes = min(max(_PASSES[0], round(_UPDATES * _BATCH / max(len(rows), 1))), _PASSES[1])
    renamed = {key: name for key, name in columns.items() if name != key}
    return OwnData(train, dev, renamed, tuple(sorted(counts)), metric, passes, said, made)


def _metric(counts: Mapping[str, int], usual: str) -> tuple[str | None, str]:
    """Return the metric for labels that come so often, None for the task's own, and a sentence with the reason."""
    commonest = max(counts, key=counts.__getitem__)
    share = counts[commonest] / sum(counts.values())
    if share < _UNEVEN:
        return None, f"{usual}: the commonest of {len(counts)} labels, {commonest!r}, has {share:.0%}"
    return "matthews", (
        f"matthews: {share:.0%} of the rows are {commonest!r}, so that accuracy would be {share:.2f} for a model that "
        "always says it"
    )


def _labels(file: Path, task: Task, columns: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the class of each row, its labels, or nothing in a task of numbers; training would read the same rows.

    Raises:
        InputError: a row lacks a text or label, has one that is no number in a task of numbers, or all have one label.
    """
    named = _named(columns)
    if KINDS[task.output_kind].several_targets:
        return [tuple(row.labels) for row in label_rows(file, named)]
    labels = []
    for row in table_rows(file, named):
        labels.append(row.label)
        if not task.has_labels:
            finite(row.label, row.where)
    if len(set(labels)) == 1:
        raise InputError(
            f"{file}: all {len(labels)} rows have {labels[0]!r} in column {columns['label']}, and at least two labels "
            "are needed. Name another column with --label."
        )
    return [(label,) if task.has_labels else () for label in labels]


def _judged(train: Path, dev: Path, task: Task, columns: Mapping[str, str]) -> int:
    """Return the number of rows of a dev file.

    Raises:
        InputError: a row of it is refused as one of training, or has a label that training lacks.
    """
    _labels(dev, task, columns)
    return len(files.dataset(task, train, dev, _named(columns)).load())


def _named(columns: Mapping[str, str]) -> Columns:
    return Columns(columns["text"], columns.get("pair"), columns["label"])


def _files(place: Path, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """Return the training file and the dev file of a place; None where the place has no dev file."""
    if place.is_file():
        if place.suffix.lower() not in endings:
            raise InputError(f"--train {place}: the task is trained on {' or '.join(endings)}.")
        return place, None
    if not place.is_dir():
        raise InputError(f"--train {place} does not exist; name a file ({', '.join(endings)}) or a folder of them.")
    found = sorted(file for file in place.iterdir() if file.is_file() and file.suffix.lower() in endings)
    able = [file for file in found if file.stem.lower().startswith("train")]
    able = [file for file in able if file.stem.lower() == "train"] or able or (found if len(found) == 1 else [])
    if len(able) > 1:
        raise InputError(
            f"--train {place}: several files could be the one to train on: {', '.join(file.name for file in able)}. "
            "Join them, or leave one whose name begins with train."
        )
    if not able:
        listed = ", ".join(file.name for file in found) or "none"
        raise InputError(
            f"--train {place}: no file whose name begins with train, of {' or '.join(endings)}; there are: {listed}."
        )
    # `validation-00000-of-00001`, but not `testimonials`.
    dev = next((one for name in _DEV for one in found if re.match(rf"{name}(?![a-z])", one.stem.lower())), None)
    return able[0], dev


def _columns(file: Path, rows: list[dict[str, object]], several: bool, given: dict[str, str]) -> dict[str, str]:
    """Return the names of the columns with the text, its pair if it has one, and the label."""
    if not rows:
        raise InputError(f"{file} has no rows below its header.")
    names = list(rows[0])
    for key, name in given.items():
        if name not in names:
            raise InputError(f"--{key} {name}: {file} has no such column; there are: {', '.join(names)}.")
    lower = {name.strip().lower(): name for name in reversed(names)}
    found = dict(given)
    for key, usual in (("text", _TEXTS), ("label", _LABELS)):
        named = next((lower[name] for name in usual if name in lower and lower[name] not in found.values()), None)
        if key not in found and named is None:
            more = ", or name columns with 1 and 0 as train.labels in the recipe." if several else "."
            if len(names) == 1 and re.search(r"[;\t]", names[0]):
                more += (
                    f" Columns of a {file.suffix.lower()} file have {_BETWEEN.get(file.suffix.lower())} between them."
                )
            raise InputError(
                f"{file}: no column is known to hold the {key}; there are: {', '.join(names)}. "
                f"Say it with --{key}{more}"
            )
        found.setdefault(key, str(named))
    twice = next((name for name, count in Counter(found.values()).items() if count > 1), None)
    if twice is not None:
        roles = " and ".join(key for key, name in found.items() if name == twice)
        raise InputError(f"{file}: column {twice} cannot be {roles} at once.")
    pair = next((lower[name] for name in _PAIRS if name in lower and lower[name] not in found.values()), None)
    if pair is not None:
        found.setdefault("pair", pair)
    return {key: found[key] for key in ("text", "pair", "label") if key in found}


def _split(
    file: Path, rows: list[dict[str, object]], labels: Sequence[tuple[str, ...]], output: Path
) -> tuple[dict[Path, bytes], str]:
    """Draw a tenth of the rows as a dev split, and the others as training rows.

    Returns:
        The contents of the two files, training rows first, by their places beside the recipe; and a sentence.
    """
    from sklearn.model_selection import train_test_split

    fewest, most = _DEV_ROWS
    count = min(max(fewest, round(len(rows) * _DEV_FRACTION)), most)
    if len(rows) < 2 * fewest:
        raise InputError(f"{file} has {len(rows)} rows; {2 * fewest} are needed to train on some and judge on others.")
    known = {label for row in labels for label in row}
    # Each class is in both parts, where it has rows enough.
    even = all(len(row) == 1 for row in labels) and min(Counter(labels).values()) > 1 and len(known) <= count
    # Where it has not, a row of each is trained on: a label that is in the dev split alone would be refused.
    first = {} if even else {label: at for at, row in reversed(list(enumerate(labels))) for label in row}
    drawn = sorted(set(range(len(rows))) - set(first.values()))
    if len(drawn) <= count:
        raise InputError(
            f"{file} has {len(known)} labels in {len(rows)} rows, too few of each to train on some and judge on "
            "others. Name another column with --label."
        )
    kept, held = train_test_split(
        drawn, test_size=count, random_state=0, shuffle=True, stratify=labels if even else None
    )
    places = [output.with_name(f"{output.stem}-{name}{file.suffix.lower()}") for name in ("train", "dev")]
    made = {
        place: _content(file, rows, sorted(numbers))
        for place, numbers in zip(places, ({*first.values(), *kept}, held), strict=True)
    }
    for place, content in made.items():
        # It may be a file of the user's own, which no option gives up.
        if os.path.lexists(place) and not (place.is_file() and place.read_bytes() == content):
            raise InputError(
                f"{place} exists already, and is no part of {file}. Move it, or give the recipe another name with "
                "--output."
            )
    shares = "each label has its share" if even else "drawn at random"
    return made, f"{count} of {len(rows):,} rows, {shares}: {places[1]}; the others: {places[0]}"


def _content(file: Path, rows: list[dict[str, object]], numbers: list[int]) -> bytes:
    """Return a table of some of a file's rows, in the file's own format."""
    match file.suffix.lower():
        case ".parquet":
            from pyarrow import parquet

            buffer = io.BytesIO()
            parquet.write_table(parquet.read_table(file).take(numbers), buffer)
            return buffer.getvalue()
        case ".jsonl":
            lines = [line for line in readers.read_text(file).split("\n") if line.strip()]
            return "".join(f"{lines[number]}\n" for number in numbers).encode()
        case ".tsv":
            # Quotes are plain characters there, and no field has a tab or a line end.
            table: list[list[object]] = [list(rows[0]), *(list(rows[number].values()) for number in numbers)]
            return "".join("\t".join("" if one is None else str(one) for one in row) + "\n" for row in table).encode()
        case _:
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[number] for number in numbers)
            return text.getvalue().encode()


def relative(file: Path, output: Path) -> str:
    """Return how a recipe names a file: relative to its own folder, or as it is where it lies elsewhere."""
    if file.is_absolute() and output.resolve().parent not in file.resolve().parents:
        return str(file)
    return os.path.relpath(file.resolve(), output.resolve().parent)
