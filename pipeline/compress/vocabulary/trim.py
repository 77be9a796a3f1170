"""Trim a tokenizer to a corpus, and prove on the whole corpus what that changes."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pipeline.checkpoint import architectures
from pipeline.checkpoint.source import read_json
from pipeline.compress.vocabulary.pieces import Vocabulary, ids_in
from pipeline.errors import StudentError
from pipeline.text import tokenizers

_CHUNK = 1000
"""Texts that are held as encodings at a time; one takes kilobytes."""


@dataclass(frozen=True)
class Trimmed:
    """A tokenizer with fewer pieces."""

    tokenizer: Tokenizer
    ids: dict[int, int]
    """New ids by old ones, rising with them."""
    metrics: dict[str, Any]


def trim(source: Path, wanted: Callable[[int], int | None], texts: Sequence[str]) -> Trimmed:
    """Choose pieces and cut a checkpoint's tokenizer down to them.

    Args:
        source: folder with config.json and tokenizer files.
        wanted: the number of pieces to keep, from the number that there are.
        texts: the corpus.

    Raises:
        RecipeError: too few pieces.
        StudentError: tokens changed although all pieces that the corpus needs were kept.
    """
    vocabulary = Vocabulary(tokenizers.load_tokenizer(source), source)
    config = read_json(source / "config.json")
    held = ids_in(config, architectures.get(config["model_type"]))
    vocabulary.check_ids(held)
    before = len(vocabulary.ids)
    base = vocabulary.base(held, vocabulary.alphabet(texts))
    pieces, whole = vocabulary.choose(count(vocabulary, texts), base, wanted(before))
    tokenizer, ids = vocabulary.cut(pieces)
    changes = compare(vocabulary, tokenizer, ids, texts)
    if whole and changes.example is not None:
        raise StudentError(
            f"the tokenizer in {source} cannot be trimmed: with every piece that the corpus needs, "
            f"{changes.example[:80]!r} gets other tokens. Leave [vocabulary] out."
        )
    metrics = {"pieces_before": before, "pieces": len(pieces), "tokens_kept": whole, **changes.metrics()}
    return Trimmed(tokenizer, ids, metrics)


def count(vocabulary: Vocabulary, texts: Sequence[str]) -> Counter[str]:
    """Return how often each piece is in the texts; 0 for pieces that only decide that a word is unknown."""
    by_id: Counter[int] = Counter()
    stuck: set[str] = set()
    unknown = vocabulary.unknown
    for text, encoded in zip(texts, _encodings(vocabulary.tokenizer, texts), strict=True):
        by_id.update(encoded.ids)
        if unknown in encoded.ids:
            stuck.update(*(vocabulary.family.stuck(vocabulary.model, word) for word in vocabulary.words(text)))
    spelled = {number: piece for piece, number in vocabulary.ids.items()}
    found = Counter({spelled[number]: times for number, times in by_id.items()})
    for piece in stuck:
        found.setdefault(piece, 0)
    return found


def _encodings(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Encoding]:
    for start in range(0, len(texts), _CHUNK):
        yield from tokenizer.encode_batch(list(texts[start : start + _CHUNK]), add_special_tokens=False)


@dataclass
class Changes:
    """What is not as it was, in a corpus."""

    texts: int = 0
    texts_changed: int = 0
    words: int = 0
    words_changed: int = 0
    tokens_before: int = 0
    tokens: int = 0
    unknown_before: int = 0
    unknown: int = 0
    example: str | None = None
    """The first text with other tokens."""

    def metrics(self) -> dict[str, Any]:
        """Return counts and fractions for the manifest."""
        return {
            "texts": self.texts,
            "texts_changed": self.texts_changed,
            "words_changed_fraction": self.words_changed / max(self.words, 1),
            "tokens_ratio": self.tokens / max(self.tokens_before, 1),
            "unknown_fraction_before": self.unknown_before / max(self.tokens_before, 1),
            "unknown_fraction": self.unknown / max(self.tokens, 1),
        }


def compare(vocabulary: Vocabulary, tokenizer: Tokenizer, ids: dict[int, int], texts: Sequence[str]) -> Changes:
    """Encode texts with both tokenizers and compare token by token; words are what the pre-tokenizer cuts.

    Args:
        vocabulary: the truth.
        tokenizer: the trimmed one.
        ids: new ids by old ones.
        texts: the corpus.
    """
    changes = Changes()
    new_ids = np.full(max(vocabulary.ids.values()) + 1, -1, np.int64)
    new_ids[list(ids)] = list(ids.values())
    unknown = vocabulary.unknown
    both = zip(texts, _encodings(vocabulary.tokenizer, texts), _encodings(tokenizer, texts), strict=True)
    for text, old, new in both:
        found = np.array(new.ids, np.int64)
        truth = new_ids[np.array(old.ids, np.int64)]
        changes.texts += 1
        changes.words += len(set(old.word_ids))
        changes.tokens_before += len(truth)
        changes.tokens += len(found)
        if unknown is not None:
            changes.unknown_before += old.ids.count(unknown)
            changes.unknown += new.ids.count(ids[unknown])
        if not np.array_equal(truth, found):
            changes.texts_changed += 1
            changes.words_changed += _words_changed(old, truth, new, found)
            changes.example = changes.example or text
    return changes


def _words_changed(old: Encoding, truth: NDArray[np.int64], new: Encoding, found: NDArray[np.int64]) -> int:
    before, after = (_by_word(one, ids) for one, ids in ((old, truth), (new, found)))
    return sum(before.get(word) != after.get(word) for word in before | after)


def _by_word(encoded: Encoding, ids: NDArray[np.int64]) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for word, number in zip(encoded.word_ids, ids.tolist(), strict=True):
        found.setdefault(word, []).append(number)
    return found
