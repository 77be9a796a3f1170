"""Calibration texts, which need no labels, and their padded batches."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.data import corpus
from pipeline.data import datasets as data
from pipeline.data.corpus import Unlabelled
from pipeline.errors import InputError
from pipeline.text import tokenizers
from pipeline.text.bundled import verification_texts
from pipeline.text.encoding import Encoder, Row

_BATCH = 32
_PLAIN = {"short", "medium", "long", "truncated", "pair"}
"""Kinds of verification texts that look like real use."""
_PUBLIC = "stsb"
LEAST = 8
"""Texts; below that nothing can be estimated."""


def default_texts(count: int, *, seed: int) -> list[Unlabelled]:
    """Return texts for whoever has none: the package's plain ones, and STS-B's train sentences where they are.

    What a labelled set holds that verification scores on is left out, wherever else it occurs: a student would be
    fitted to it. Plain texts serve verification too, but only for comparing a file with its own checkpoint.

    Args:
        count: at most so many, a sample that the seed fixes.
        seed: of the sample.
    """
    scored = _scored_texts()
    plain = [text for row in verification_texts() if row.kind in _PLAIN for text in (row.first, row.second)]
    found = [text for text in dict.fromkeys([*plain, *_public_sentences()]) if text and text not in scored]
    return data.sample(found, count, seed=seed)


def texts(names: Sequence[str] | None, recipe_file: Path, count: int, *, seed: int, asked: str) -> list[Unlabelled]:
    """Return the texts that a recipe names, or those for whoever names none.

    Args:
        names: see `corpus.texts`; None: see `default_texts`.
        recipe_file: relative files are meant from there.
        count: at most so many, a sample that the seed fixes.
        seed: of the sample.
        asked: the recipe's key, for errors.

    Raises:
        InputError: a file or data set is absent, malformed or empty, or there are fewer than `LEAST` texts.
    """
    if names is None:
        return default_texts(count, seed=seed)
    found = corpus.texts(names, recipe_file, asked)
    if len(found) < LEAST:
        raise InputError(f"{asked}: {', '.join(names)} hold {len(found)} different texts; {LEAST} or more are needed.")
    return data.sample(found, count, seed=seed)


def _scored_texts() -> set[str | None]:
    """Return the texts of the labelled sets whose texts could be among those that calibration takes."""
    sets = [row for row in data.DATASETS.values() if row.bundled or row.name == _PUBLIC]
    rows = [row for one in sets if not one.absent() for row in one.load()]
    return {text for row in rows for text in (row.first, row.second)}


def _public_sentences() -> list[str]:
    if not os.environ.get(data.DATA_VARIABLE) or data.DATASETS[_PUBLIC].absent("train"):
        return []
    return [text for row in data.DATASETS[_PUBLIC].load("train") for text in (row.first, row.second) if text]


@dataclass(frozen=True)
class Batches:
    """Rows of about the same length together, padded to the longest of them."""

    rows: tuple[tuple[Row, ...], ...]
    names: tuple[str, ...]
    """Inputs of the architecture."""
    pad_token_id: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.rows)

    @property
    def count(self) -> int:
        """Rows in all batches."""
        return sum(map(len, self.rows))

    def arrays(self, number: int) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"]:
        """Return the inputs of a batch, each `(batch, seq_len)`."""
        rows = self.rows[number]
        longest = max(map(len, rows))
        padded = [row.padded(self.names, longest, pad_token_id=self.pad_token_id) for row in rows]
        return {name: np.concatenate([one[name] for one in padded]).astype(np.int64) for name in self.names}


def batches(
    source: Path, inputs: tuple[str, ...], texts: Sequence[Unlabelled], *, max_length: int, pad: int
) -> Batches:
    """Encode texts with a checkpoint's tokenizer.

    Args:
        source: folder with the tokenizer.
        inputs: names of the architecture's inputs.
        texts: see `Unlabelled`; empty ones are left out.
        max_length: rows are cut to so many tokens.
        pad: id of padding.

    Raises:
        InputError: too few texts.
    """
    wanted = [text for text in texts if (text if isinstance(text, str) else "".join(text)).strip()]
    if len(wanted) < LEAST:
        raise InputError(f"{len(wanted)} calibration texts are not empty; {LEAST} or more are needed.")
    encoder = Encoder(tokenizers.load_tokenizer(source), max_length)
    encoded = [encoder.encode(text) if isinstance(text, str) else encoder.encode(*text) for text in wanted]
    ordered = sorted(encoded, key=lambda row: (len(row), row.ids))
    groups = tuple(tuple(ordered[start : start + _BATCH]) for start in range(0, len(ordered), _BATCH))
    return Batches(groups, inputs, pad)
