"""The calibration set: texts without labels, and their padded batches."""

import os
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.data import corpus
from pipeline.data.corpus import Unlabelled
from pipeline.data.datasets import DATA_VARIABLE, DATASETS, sample
from pipeline.errors import InputError
from pipeline.text import tokenizers
from pipeline.text.bundled import calibration_texts, verification_texts
from pipeline.text.encoding import Encoder, Row

_BATCH = 32
_PLAIN = {"short", "medium", "long", "truncated", "pair"}
"""Kinds of verification texts that are everyday English."""
_PUBLIC = "stsb"
LEAST = 8
"""Fewest texts from which anything can be estimated."""


def default_texts(count: int, *, seed: int) -> list[Unlabelled]:
    """Return the texts for a recipe that names none: the package's plain ones, and STS-B's train sentences if present.

    Texts of the labelled datasets that verification scores on are left out, wherever else they occur, since a student
    would be fitted to them. The plain texts serve verification too, but only to compare a file with its checkpoint.

    Args:
        count: the most texts to return; of more, the seed determines a sample.
        seed: seed of the sample.
    """
    return sample(_distinct([*_plain(), *_public_sentences()], _scored_texts()), count, seed=seed)


def texts_of_many_kinds(count: int, *, seed: int) -> list[Unlabelled]:
    """Return the texts for quantising where a recipe names none, of which verification has seen none if it can be had.

    The package's calibration texts come first: a vocabulary spells scripts that it does not know letter by letter, and
    such texts lose most where none of them took part. Then follow STS-B's train sentences, or, where they are not
    present, the package's plain texts, see `default_texts`.

    Args:
        count: the most texts to return; of more, the seed determines a sample.
        seed: seed of the sample.
    """
    scored = _scored_texts()
    own = sample(_distinct(calibration_texts(), scored), count, seed=seed)
    others = _distinct(_public_sentences() or _plain(), scored.union(own))
    return own + sample(others, count - len(own), seed=seed)


def texts(
    names: Sequence[str] | None,
    recipe_file: Path,
    count: int,
    *,
    seed: int,
    key: str,
    default: Callable[..., list[Unlabelled]] = default_texts,
    judged: Set[str] = frozenset(),
) -> list[Unlabelled]:
    """Return the texts that a recipe names, or the default ones, without those by which search is judged.

    Args:
        names: see `corpus.texts`; None: the default ones.
        recipe_file: relative paths start at its folder.
        count: the most texts to return; of more, the seed determines a sample.
        seed: seed of the sample.
        key: the recipe's key, for errors.
        default: `default_texts` or `texts_of_many_kinds`.
        judged: the queries and documents of `verify.retrieval`.

    Raises:
        InputError: a file or dataset is absent, malformed or empty, or there are fewer than `LEAST` texts.
    """
    if names is None:
        return unseen(default(count, seed=seed), judged)
    named = unseen(corpus.texts(names, recipe_file, key), judged)
    if len(named) < LEAST:
        raise InputError(f"{key}: {', '.join(names)} hold {len(named)} different texts; {LEAST} or more are needed.")
    return sample(named, count, seed=seed)


def unseen(texts: Sequence[Unlabelled], judged: Set[str]) -> list[Unlabelled]:
    """Return texts without those of which a part is judged."""
    return [text for text in texts if judged.isdisjoint((text,) if isinstance(text, str) else text)]


def _distinct(found: Sequence[str | None], left_out: Set[Unlabelled | None]) -> list[Unlabelled]:
    """Return texts once each, in their order, without empty ones and those to be left out."""
    return [text for text in dict.fromkeys(found) if text and text not in left_out]


def _plain() -> list[str | None]:
    return [text for row in verification_texts() if row.kind in _PLAIN for text in (row.first, row.second)]


def _scored_texts() -> set[str | None]:
    """Return the texts of the labelled datasets that the default texts could overlap with."""
    sets = [row for row in DATASETS.values() if row.bundled or row.name == _PUBLIC]
    rows = [row for one in sets if not one.absent() for row in one.load()]
    return {text for row in rows for text in (row.first, row.second)}


def _public_sentences() -> list[str]:
    if not os.environ.get(DATA_VARIABLE) or DATASETS[_PUBLIC].absent("train"):
        return []
    return [text for row in DATASETS[_PUBLIC].load("train") for text in (row.first, row.second) if text]


@dataclass(frozen=True)
class Batches:
    """Rows of similar length together, each batch padded to its longest row."""

    rows: tuple[tuple[Row, ...], ...]
    names: tuple[str, ...]
    """Names of the architecture's inputs."""
    pad_token_id: int

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.rows)

    @property
    def count(self) -> int:
        """Number of rows in all batches."""
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
        texts: texts and pairs; empty ones are left out.
        max_length: number of tokens to which rows are truncated.
        pad: id of the padding token.

    Raises:
        InputError: there are fewer than `LEAST` texts.
    """
    usable = [text for text in texts if (text if isinstance(text, str) else "".join(text)).strip()]
    if len(usable) < LEAST:
        raise InputError(f"{len(usable)} calibration texts are not empty; {LEAST} or more are needed.")
    encoder = Encoder(tokenizers.load_tokenizer(source), max_length)
    encoded = [encoder.encode(text) if isinstance(text, str) else encoder.encode(*text) for text in usable]
    ordered = sorted(encoded, key=lambda row: (len(row), row.ids))
    groups = tuple(tuple(ordered[start : start + _BATCH]) for start in range(0, len(ordered), _BATCH))
    return Batches(groups, inputs, pad)
