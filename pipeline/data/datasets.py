"""Texts for verification and labelled data for task metrics.

What comes with the package was written for it (`texts/README.md`). Public data sets are read from the folder that
`POCKETBERT_DATA` names, if it is set, and are never copied into an artifact's manifest beyond their rows' texts.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from pipeline.artifact import digest_of, sha256_file
from pipeline.errors import InputError

TEXTS = Path(__file__).parents[1] / "text" / "bundled"
DATA_VARIABLE = "POCKETBERT_DATA"
Split = Literal["dev", "train"]
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Text:
    """One text or pair, with where it comes from."""

    id: str
    kind: str
    first: str
    second: str | None = None
    window: int | None = None
    """Which window over the passage `second`; None for a text or pair as a whole."""


@dataclass(frozen=True)
class Labelled:
    """One labelled row."""

    first: str
    """The text; a question; or words with a space between any two."""
    second: str | None
    """The other text of a pair; the passage that a question is about."""
    label: float = 0.0
    """A score, or the number of a class among the data set's names."""
    tags: tuple[int, ...] = ()
    """For each word of `first`, the number of its tag among the data set's names."""
    answers: tuple[str, ...] = ()
    """Accepted answers to a question, each a part of the passage."""


@dataclass(frozen=True)
class Placed(Labelled):
    """A question whose answer's place in the passage is known."""

    answer_start: int = 0
    """First character of `answers[0]` in the passage."""


@dataclass(frozen=True)
class Dataset:
    """A labelled data set. To add one, add a row to `DATASETS`."""

    name: str
    file: str
    """Relative to the package's texts, or to `POCKETBERT_DATA`."""
    bundled: bool
    read: Callable[[Path], list[Labelled]]
    metric: str
    """A row of `pipeline.metrics.scoring.METRICS`: the one that the field reports for this data set."""
    names: tuple[str, ...] = ()
    """Of the classes or tags, in the order of their numbers."""
    train: str | None = None
    """Like `file`, with rows to train on."""
    read_train: Callable[[Path], list[Labelled]] | None = None
    """Where training rows are read in another way: both splits are parts of one file."""
    train_version: int = 1
    """Of how training rows are read; a part of their digest from 2 on."""

    def path(self, split: Split = "dev") -> Path | None:
        """Return where a split's file should be, or None if `POCKETBERT_DATA` is not set or there is no such split."""
        file = self.file if split == "dev" else self.train
        root = TEXTS if self.bundled else os.environ.get(DATA_VARIABLE)
        return Path(root) / file if root and file else None

    def absent(self, split: Split = "dev") -> str | None:
        """Say why a split cannot be used now, or return None."""
        if split == "train" and self.train is None:
            return "it has no rows to train on"
        path = self.path(split)
        if path is None:
            return f"{DATA_VARIABLE} is not set"
        if path.is_file():
            return None
        # A verdict says it and is read elsewhere: what the folder is called here is no business of its readers.
        file = self.file if split == "dev" else self.train
        return f"{path if self.bundled else f'{DATA_VARIABLE}/{file}'} does not exist"

    def load(self, split: Split = "dev") -> list[Labelled]:
        """Read all rows of a split.

        Raises:
            InputError: the file is absent or malformed.
        """
        path = self.path(split)
        if path is None or not path.is_file():
            raise InputError(f"data set {self.name}: {self.absent(split)}.{folder_said()}")
        try:
            rows = (self.read_train if split == "train" and self.read_train else self.read)(path)
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"data set {self.name}: {path} is malformed: {type(error).__name__}: {error}.") from error
        except OSError as error:
            raise InputError(f"data set {self.name}: {path} cannot be read: {error.strerror}.") from error
        if not rows:
            raise InputError(f"data set {self.name}: {path} holds no rows.")
        if not all(math.isfinite(row.label) for row in rows):
            raise InputError(f"data set {self.name}: {path} is malformed: a label is not a finite number.")
        return rows

    def label_ids(self, labels: Sequence[str]) -> list[int] | str:
        """Return the checkpoint's number of each of the data set's names, or say why they do not go together.

        Args:
            labels: the checkpoint's own names in order; generic ones (`LABEL_0`) are taken by number.
        """
        generic = [f"label_{number}" for number in range(len(labels))]
        if all(name in labels for name in self.names):
            return [labels.index(name) for name in self.names]
        known, mine = ([one.lower() for one in names] for names in (labels, self.names))
        if known == generic and len(labels) == len(self.names):
            return list(range(len(labels)))
        # Written otherwise they are the same, unless two of them differ in nothing else.
        if len(set(mine)) < len(mine) or any(known.count(name) != 1 for name in mine):
            return f"its labels are {', '.join(self.names)}, and the checkpoint has {', '.join(labels)}"
        return [known.index(name) for name in mine]

    def digest(self, split: Split = "dev") -> str | None:
        """Return the sha256 of a split's file, and of how it is read, or None where it is absent."""
        path = self.path(split)
        if path is None or not path.is_file():
            return None
        found = sha256_file(path)
        return digest_of([found, self.train_version]) if split == "train" and self.train_version > 1 else found


def folder_said() -> str:
    """Return a sentence on where `POCKETBERT_DATA` points, or nothing if it is not set."""
    folder = os.environ.get(DATA_VARIABLE)
    return f" {DATA_VARIABLE} is {folder}." if folder else ""


def _json_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _graded_pairs(path: Path) -> list[Labelled]:
    return [Labelled(row["first"], row["second"], float(row["score"])) for row in _json_lines(path)]


def _sentiment(path: Path) -> list[Labelled]:
    return [Labelled(row["text"], None, float(row["label"])) for row in _json_lines(path)]


def _stsb(path: Path) -> list[Labelled]:
    with path.open(encoding="utf-8", newline="") as handle:
        return [Labelled(first, second, float(score)) for first, second, score in csv.reader(handle)]


def _tsv(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Read GLUE's files: tab separated, quotes are plain characters; `columns` where there is no header."""
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, columns, delimiter="\t", quoting=csv.QUOTE_NONE))


def _sst2(path: Path) -> list[Labelled]:
    return [Labelled(row["sentence"], None, float(row["label"])) for row in _tsv(path)]


def _cola(path: Path) -> list[Labelled]:
    rows = _tsv(path, ("source", "label", "mark", "sentence"))
    return [Labelled(row["sentence"], None, float(row["label"])) for row in rows]


_RTE = ("entailment", "not_entailment")


def _rte(path: Path) -> list[Labelled]:
    return [Labelled(row["sentence1"], row["sentence2"], float(_RTE.index(row["label"]))) for row in _tsv(path)]


_KINDS = ("corporation", "creative-work", "group", "location", "person", "product")
WNUT17_TAGS = ("O", *(f"{position}-{kind}" for kind in _KINDS for position in "BI"))


def _wnut17(path: Path) -> list[Labelled]:
    """Read CoNLL: a word, a tab and its tag on each line, an empty line between sentences."""
    rows = []
    for block in path.read_text(encoding="utf-8").replace("\r\n", "\n").split("\n\n"):
        pairs = [line.split("\t") for line in block.split("\n") if line.strip()]
        if pairs:
            tags = tuple(WNUT17_TAGS.index(tag.strip()) for _, tag in pairs)
            rows.append(Labelled(" ".join(word for word, _ in pairs), None, tags=tags))
    return rows


def _squad(path: Path, wanted: Callable[[int], bool] = lambda number: True, *, placed: bool = False) -> list[Labelled]:
    """Read SQuAD 1.1: articles, paragraphs with their text, questions with accepted answers.

    Args:
        path: the file.
        wanted: tells by its number, from 0, whether an article is read.
        placed: whether rows tell where their first answer stands: a word may be there before, and mean nothing.
    """
    document = json.loads(path.read_text(encoding="utf-8"))["data"]
    articles = [article for number, article in enumerate(document) if wanted(number)]
    rows: list[Labelled] = []
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        for question in paragraph["qas"]:
            answers = tuple(dict.fromkeys(answer["text"] for answer in question["answers"]))
            asked, passage = question["question"], paragraph["context"]
            if placed:
                rows.append(place(asked, passage, answers, question["answers"][0]["answer_start"]))
            else:
                rows.append(Labelled(asked, passage, answers=answers))
    return rows


def place(asked: str, passage: str, answers: tuple[str, ...], start: int) -> Placed:
    """Return a question whose first answer stands in the passage from `start` on.

    Raises:
        ValueError: it does not.
    """
    if not answers[0] or passage[start : start + len(answers[0])] != answers[0]:
        raise ValueError(f"answer {answers[0][:40]!r} is not at character {start} of its passage")
    return Placed(asked, passage, answers=answers, answer_start=start)


def _third_articles(path: Path) -> list[Labelled]:
    return _squad(path, lambda number: number % 3 == 2)


def _other_articles(path: Path) -> list[Labelled]:
    return _squad(path, lambda number: number % 3 != 2, placed=True)


_SENTIMENTS = ("negative", "positive")

DATASETS: dict[str, Dataset] = {
    row.name: row
    for row in (
        Dataset("graded_pairs", "graded_pairs.jsonl", True, _graded_pairs, "spearman"),
        Dataset("sentiment", "sentiment.jsonl", True, _sentiment, "accuracy", _SENTIMENTS),
        Dataset("questions", "questions.json", True, _squad, "squad_f1"),
        Dataset("stsb", "stsb/dev.csv", False, _stsb, "spearman", train="stsb/train.csv"),
        Dataset("sst2", "sst2/dev.tsv", False, _sst2, "accuracy", _SENTIMENTS, "sst2/train.tsv"),
        Dataset("cola", "cola/dev.tsv", False, _cola, "matthews", ("unacceptable", "acceptable"), "cola/train.tsv"),
        Dataset("rte", "rte/dev.tsv", False, _rte, "accuracy", _RTE, "rte/train.tsv"),
        Dataset("wnut17", "wnut17/dev.conll", False, _wnut17, "entity_f1", WNUT17_TAGS, "wnut17/train.conll"),
        # XQuAD has no training rows of its own. Two of three articles serve; the third is what is judged.
        Dataset(
            "xquad",
            "xquad/dev.json",
            False,
            _third_articles,
            "squad_f1",
            train="xquad/dev.json",
            read_train=_other_articles,
            train_version=2,
        ),
    )
}


def sample(rows: Sequence[_Row], count: int | None, *, seed: int) -> list[_Row]:
    """Return so many of the rows, in their order; all where there are no more, or where no number is given."""
    if count is None or len(rows) <= count:
        return list(rows)
    chosen = np.random.default_rng(seed).choice(len(rows), count, replace=False)
    return [rows[number] for number in sorted(chosen)]


def verification_texts() -> list[Text]:
    """Return the package's own sentences and pairs, in file order."""
    sentences = [Text(row["id"], row["kind"], row["text"]) for row in _json_lines(TEXTS / "sentences.jsonl")]
    pairs = [Text(row["id"], "pair", row["first"], row["second"]) for row in _json_lines(TEXTS / "pairs.jsonl")]
    return sentences + pairs


def verification_digest() -> dict[str, str]:
    """Return the sha256 of each file behind `verification_texts`."""
    return {name: sha256_file(TEXTS / name) for name in ("sentences.jsonl", "pairs.jsonl")}


def everyday_sentences() -> list[str]:
    """Return the sentences that look like real use: ordinary English of every length, for latency."""
    return [text.first for text in verification_texts() if text.kind in {"short", "medium", "long"}]
