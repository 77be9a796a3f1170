"""Texts for verification and labelled data for task metrics.

What comes with the package was written for it (`texts/README.md`). Public data sets are read from the folder that
`POCKETBERT_DATA` names, if it is set, and are never copied into an artifact's manifest beyond their rows' texts.
"""

import csv
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifact import sha256_file
from pipeline.errors import InputError

TEXTS = Path(__file__).parent / "texts"
DATA_VARIABLE = "POCKETBERT_DATA"


@dataclass(frozen=True)
class Text:
    """One text or pair, with where it comes from."""

    id: str
    kind: str
    first: str
    second: str | None = None


@dataclass(frozen=True)
class Labelled:
    """One labelled row: two texts and a score, or one text and a class."""

    first: str
    second: str | None
    label: float


@dataclass(frozen=True)
class Dataset:
    """A labelled data set. To add one, add a row to `DATASETS`."""

    name: str
    file: str
    """Relative to the package's texts, or to `POCKETBERT_DATA`."""
    bundled: bool
    read: Callable[[Path], list[Labelled]]

    def path(self) -> Path | None:
        """Return where the file should be, or None if `POCKETBERT_DATA` is not set."""
        if self.bundled:
            return TEXTS / self.file
        root = os.environ.get(DATA_VARIABLE)
        return Path(root) / self.file if root else None

    def absent(self) -> str | None:
        """Say why the data set cannot be used now, or return None."""
        path = self.path()
        if path is None:
            return f"{DATA_VARIABLE} is not set"
        return None if path.is_file() else f"{path} does not exist"

    def load(self) -> list[Labelled]:
        """Read all rows.

        Raises:
            InputError: the file is absent or malformed.
        """
        path = self.path()
        if path is None or not path.is_file():
            raise InputError(f"data set {self.name}: {self.absent()}.")
        try:
            rows = self.read(path)
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"data set {self.name}: {path} is malformed: {type(error).__name__}: {error}.") from error
        except OSError as error:
            raise InputError(f"data set {self.name}: {path} cannot be read: {error.strerror}.") from error
        if not rows:
            raise InputError(f"data set {self.name}: {path} holds no rows.")
        if not all(math.isfinite(row.label) for row in rows):
            raise InputError(f"data set {self.name}: {path} is malformed: a label is not a finite number.")
        return rows

    def digest(self) -> str | None:
        """Return the sha256 of the file, or None where it is absent."""
        path = self.path()
        return sha256_file(path) if path is not None and path.is_file() else None


def _json_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _graded_pairs(path: Path) -> list[Labelled]:
    return [Labelled(row["first"], row["second"], float(row["score"])) for row in _json_lines(path)]


def _sentiment(path: Path) -> list[Labelled]:
    return [Labelled(row["text"], None, float(row["label"])) for row in _json_lines(path)]


def _stsb(path: Path) -> list[Labelled]:
    with path.open(encoding="utf-8", newline="") as handle:
        return [Labelled(first, second, float(score)) for first, second, score in csv.reader(handle)]


def _sst2(path: Path) -> list[Labelled]:
    with path.open(encoding="utf-8", newline="") as handle:
        rows = csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Labelled(row["sentence"], None, float(row["label"])) for row in rows]


DATASETS: dict[str, Dataset] = {
    row.name: row
    for row in (
        Dataset("graded_pairs", "graded_pairs.jsonl", bundled=True, read=_graded_pairs),
        Dataset("sentiment", "sentiment.jsonl", bundled=True, read=_sentiment),
        Dataset("stsb", "stsb/dev.csv", bundled=False, read=_stsb),
        Dataset("sst2", "sst2/dev.tsv", bundled=False, read=_sst2),
    )
}


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
