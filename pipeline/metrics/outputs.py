"""A model's outputs for each row, and what people read out of them: tagged entities, and the answer in a passage.

A row has one item, or one for each of its tokens:

===============  ======================  ========================================================
kind             shape of a row          content
===============  ======================  ========================================================
`embedding`      `(1, hidden)`           a unit vector
`logits`         `(1, labels)`           scores of the classes, before any softmax
`value`          `(1, 1)`                the prediction of a regression
`token_logits`   `(tokens, labels)`      scores of the tags of each token, before any softmax
`spans`          `(tokens, 2)`           each token's score as the start and as the end of the answer
`multi_label`    `(1, labels)`           score of each label by itself, before its sigmoid
`values`         `(1, numbers)`          the numbers of a regression with several
===============  ======================  ========================================================

Which of them are decisions, and by what, is in `pipeline.kinds`.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Logits = NDArray[np.floating]
Offsets = Sequence[tuple[int, int] | None]
"""The characters that each token covers; None for a token that is not from the text."""

LONGEST_ANSWER = 30
"""Longest answer, in tokens. Source: `max_answer_length` of google-research/bert, run_squad.py."""


@dataclass(frozen=True)
class RowOutputs:
    """The outputs of several rows, each with any number of items."""

    values: Floats
    """`(items, width)`, row after row."""
    counts: NDArray[np.int64]
    """Items of each row, `(rows,)`."""

    @classmethod
    def of(cls, rows: Sequence[Floats]) -> "RowOutputs":
        """Join rows, each `(items, width)`, or `(width,)` for a single item."""
        whole = [np.atleast_2d(row) for row in rows]
        values = np.concatenate(whole) if whole else np.zeros((0, 0), np.float32)
        return cls(values, np.array([len(row) for row in whole], np.int64))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.counts)

    def __iter__(self) -> Iterator[Floats]:
        """Yield each row, `(items, width)`."""
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Floats:
        """Return one row, `(items, width)`."""
        end = int(self._ends[row])
        return self.values[end - int(self.counts[row]) : end]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    def take(self, rows: Sequence[int]) -> "RowOutputs":
        """Return some rows, in the order asked for."""
        return RowOutputs.of([self[row] for row in rows])

    def __add__(self, other: "RowOutputs") -> "RowOutputs":
        """Return these rows and then the others."""
        return RowOutputs.of([*self, *other])

    def rows_where(self, items: Any) -> list[int]:
        """Return the rows that hold a marked item, `(items,)`."""
        return sorted({int(row) for row in np.repeat(np.arange(len(self)), self.counts)[items]})


# --- decoding -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A part of a text."""

    start: int
    """First character."""
    end: int
    """One past the last character."""
    score: float
    """Sum of the two logits for an answer; mean probability of its tag for an entity."""


@dataclass(frozen=True)
class Entity(Span):
    """A tagged part of a text."""

    kind: str


def overlap(max_length: int) -> int:
    """Return how many tokens two windows over a long passage share: 128 of 384, as in run_squad.py."""
    return max_length // 3


def best_span(windows: Sequence[tuple[Logits, Offsets]]) -> Span:
    """Return the best answer over the windows of a passage.

    Args:
        windows: the logits `(tokens, 2)` of each window, and the characters of each token in the passage.

    Source: Devlin et al. 2019, section 4.2: the pair of a start and a later end with the largest sum of logits.
    """
    spans = [span for logits, offsets in windows if (span := _best_in_window(logits, offsets)) is not None]
    return max(spans, key=lambda span: span.score, default=Span(0, 0, float("-inf")))


def _best_in_window(logits: Logits, offsets: Offsets) -> Span | None:
    inside = [number for number, place in enumerate(offsets) if place is not None]
    if not inside:
        return None
    starts, ends = logits[inside, 0].astype(np.float64), logits[inside, 1].astype(np.float64)
    sums = starts[:, None] + ends[None, :]
    # An answer ends at its start or later, and is no longer than the longest.
    allowed = np.triu(np.ones_like(sums, bool)) & ~np.triu(np.ones_like(sums, bool), LONGEST_ANSWER)
    first, last = np.unravel_index(int(np.where(allowed, sums, -np.inf).argmax()), sums.shape)
    begin, end = offsets[inside[int(first)]], offsets[inside[int(last)]]
    assert begin is not None
    assert end is not None
    return Span(begin[0], end[1], float(sums[first, last]))


def entities(text: str, tags: Sequence[str], scores: Sequence[float], spans: Sequence[tuple[int, int]]) -> list[Entity]:
    """Join the tags of words into entities.

    Words are what white space separates, so an entity loses the punctuation at its ends: the comma of `Berlin,` is no
    part of the city.

    Args:
        text: what was tagged.
        tags: `B-person`, `I-person` or `O` for each word; a tag without such a prefix is a kind.
        scores: probability of each tag.
        spans: characters of each word.

    Source: Ramshaw and Marcus 1995, as conlleval reads it: an `I-` after another kind begins an entity.
    """
    joined: list[Entity] = []
    members: list[float] = []
    # Not an empty text, which a label may be as well.
    open_kind: str | None = None
    for tag, score, (start, end) in zip(tags, scores, spans, strict=True):
        position, _, kind = tag.partition("-") if tag[:2] in ("B-", "I-") else ("I", "-", tag)
        if tag == "O":
            open_kind = None
        elif kind == open_kind and position == "I":
            members.append(score)
            joined[-1] = Entity(joined[-1].start, end, float(np.mean(members)), kind)
        else:
            open_kind, members = kind, [score]
            joined.append(Entity(start, end, score, kind))
    return [_without_punctuation(text, one) for one in joined]


def _without_punctuation(text: str, entity: Entity) -> Entity:
    """Return an entity less the punctuation at its ends; one that is all punctuation stays as it is."""
    # Spaces too: `Anna —` may be two words of one entity.
    inside = [
        at for at in range(entity.start, entity.end) if unicodedata.category(text[at])[0] != "P" and text[at].strip()
    ] or range(entity.start, entity.end)
    return replace(entity, start=inside[0], end=inside[-1] + 1)


def first_tokens(words: Sequence[tuple[int, int]], offsets: Offsets) -> list[int | None]:
    """Return the token that begins each word, or None where truncation removed the word.

    Args:
        words: characters of each word in the text.
        offsets: characters of each token.
    """
    firsts: list[int | None] = []
    for start, end in words:
        inside = (number for number, place in enumerate(offsets) if place and place[0] < end and place[1] > start)
        firsts.append(next(inside, None))
    return firsts


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters of each word of a text; white space separates words."""
    spans, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        spans.append((start, at))
    return spans
