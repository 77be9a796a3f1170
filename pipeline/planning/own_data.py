"""A user's labelled files for `init --train`: their columns, a dev split, and the metric that fits the labels.

What is guessed is said, and what cannot be guessed is asked for.
"""

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import tasks
from pipeline.atomic import write_bytes
from pipeline.data import readers
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
_DEV = ("dev", "validation", "valid", "val", "test")
_DEV_FRACTION = 0.1
_DEV_ROWS = (20, 2000)
"""Fewest and most rows of a dev split that is made here."""
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
    """The classes, in alphabetical order; empty for other tasks."""
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
        InputError: no file of a kind that the task is trained on, a column that cannot be guessed, or too few rows.
    """
    kind = KINDS[task.output_kind]
    if not kind.trained:
        able = ", ".join(row.name for row in tasks.TASKS.values() if KINDS[row.output_kind].trained)
        raise InputError(
            f"--train is for labelled texts, and task {task.name} has no labels to train on; tasks that have: {able}. "
            "An embedding model learns from a teacher: docs/compression.md, distillation."
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
    values = [str(row.get(columns["label"]) or "") for row in rows]
    counts = Counter(values) if task.has_labels and not kind.several_targets else Counter[str]()
    named = ", ".join(f"{key} = {name}" for key, name in columns.items())
    said, made = {"data": f"{train}, {len(rows):,} rows; columns {named}"}, dict[Path, bytes]()
    if dev is None:
        made, said["dev split"] = _split(train, rows, values if counts else None, output)
        train, dev = made
    metric = None
    if counts:
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


def _files(place: Path, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """Return the training file and the dev file of a place; None where the place has no dev file."""
    if place.is_file():
        if place.suffix.lower() not in endings:
            raise InputError(f"--train {place}: the task is trained on {' or '.join(endings)}.")
        return place, None
    if not place.is_dir():
        raise InputError(f"--train {place} does not exist; name a file ({', '.join(endings)}) or a folder of them.")
    found = sorted(file for file in place.iterdir() if file.is_file() and file.suffix.lower() in endings)
    train = next((file for file in found if file.stem.startswith("train")), None)
    train = train or (found[0] if len(found) == 1 else None)
    if train is None:
        listed = ", ".join(file.name for file in found) or "none"
        raise InputError(
            f"--train {place}: no file whose name begins with train, of {' or '.join(endings)}; there are: {listed}."
        )
    dev = next((file for name in _DEV for file in found if file.stem.startswith(name)), None)
    return train, dev


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
            raise InputError(
                f"{file}: no column is known to hold the {key}; there are: {', '.join(names)}. Say it with --{key}"
                + (", or name columns with 1 and 0 as train.labels in the recipe." if several else ".")
            )
        found.setdefault(key, str(named))
    pair = next((lower[name] for name in _PAIRS if name in lower and lower[name] not in found.values()), None)
    if pair is not None:
        found.setdefault("pair", pair)
    return {key: found[key] for key in ("text", "pair", "label") if key in found}


def _split(
    file: Path, rows: list[dict[str, object]], labels: list[str] | None, output: Path
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
    # Each label is in both parts, where it has rows enough.
    even = labels is not None and min(Counter(labels).values()) > 1 and len(set(labels)) <= count
    kept, held = train_test_split(
        range(len(rows)), test_size=count, random_state=0, shuffle=True, stratify=labels if even else None
    )
    places = [output.with_name(f"{output.stem}-{name}{file.suffix.lower()}") for name in ("train", "dev")]
    made = {place: _content(file, rows, sorted(numbers)) for place, numbers in zip(places, (kept, held), strict=True)}
    for place, content in made.items():
        # It may be a file of the user's own, which no option gives up.
        if place.exists() and not (place.is_file() and place.read_bytes() == content):
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
            return "".join("\t".join(map(str, row)) + "\n" for row in table).encode()
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
