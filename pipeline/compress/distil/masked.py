"""Masked language modelling: blocks of text, dynamic masking, swapped segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.errors import InputError
from pipeline.text.encoding import Row
from pipeline.train.examples import IGNORED, EncodedExample

Ids = NDArray[np.int64]

_ENCODED = 1000
"""Lines that are held as encodings at a time; one takes kilobytes."""
_FRACTION = 0.15
_AS_MASK, _AS_RANDOM = 0.8, 0.1
"""The rest stays as it is. Source: Devlin et al. 2019, section 3.1 and appendix A.1."""
UNTRAINED = 0.5
"""A head whose perplexity is beyond so much of the vocabulary's size knows nothing: one that guesses has all of it."""
_HELD_OUT_EACH = 20
"""One of so many blocks is not learnt on, and measures the perplexity."""
_HELD_OUT_MOST = 64


@dataclass(frozen=True)
class Shape:
    """How a block becomes a row."""

    begin: tuple[int, ...]
    middle: tuple[int, ...]
    """Between two segments."""
    end: tuple[int, ...]
    mask: int
    vocabulary: int
    """Ids that a random token is drawn from: all below it."""
    specials: frozenset[int]
    """Never masked."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, mask: int, vocabulary: int) -> "Shape":
        """Read the special tokens off what a tokenizer makes of empty texts."""
        single, pair = tokenizer.encode("").ids, tokenizer.encode("", "").ids
        begin, end = tuple(single[:1]), tuple(single[1:])
        middle = tuple(pair[len(begin) : len(pair) - len(end)])
        added = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        return cls(begin, middle, end, mask, vocabulary, frozenset({*single, *pair, *added, mask}))

    @property
    def around(self) -> int:
        """Special tokens of a row of two segments, which has the most."""
        return len(self.begin) + len(self.middle) + len(self.end)


@dataclass(frozen=True)
class Masked:
    """A block as the model gets it."""

    ids: Ids
    types: Ids
    target: Ids
    """The token that was there, `IGNORED` where none was masked."""
    swapped: int
    """1 where the second half comes first."""


def blocks(tokenizer: Tokenizer, lines: Sequence[str], shape: Shape, *, length: int) -> Iterator[EncodedExample]:
    """Cut running text into whole blocks without special tokens; what is left at the end is dropped.

    Args:
        tokenizer: of the student.
        lines: put one behind the other.
        shape: of the rows that come out of it.
        length: of such a row, special tokens included.

    Raises:
        InputError: there is not enough text for two blocks, one to learn on and one to measure.
    """
    size = _room(shape, length)
    tokenizer.no_truncation()
    found = [np.zeros(0, np.int32)]
    for start in range(0, len(lines), _ENCODED):
        encoded = tokenizer.encode_batch(list(lines[start : start + _ENCODED]), add_special_tokens=False)
        found += [np.array(one.ids, np.int32) for one in encoded]
    ids = np.concatenate(found)
    _refuse_few(len(ids), size)
    for start in range(0, len(ids) - size + 1, size):
        yield EncodedExample(Row(tuple(ids[start : start + size].tolist()), (0,) * size), ())


def check_enough(tokenizer: Tokenizer, lines: Sequence[str], *, length: int) -> None:
    """Refuse texts that are too short for `blocks`, and count no further than needed.

    Raises:
        InputError: there is not enough text for two blocks.
    """
    size = _room(Shape.of(tokenizer, 0, 0), length)
    tokenizer.no_truncation()
    count = 0
    for line in lines:
        count += len(tokenizer.encode(line, add_special_tokens=False).ids)
        if count >= 2 * size:
            return
    _refuse_few(count, size)


def _room(shape: Shape, length: int) -> int:
    """Return how many tokens of text a row holds."""
    size = length - shape.around
    if size < 2:
        raise InputError(f"max_length = {length} leaves no room for text beside {shape.around} special tokens.")
    return size


def _refuse_few(count: int, size: int) -> None:
    if count < 2 * size:
        raise InputError(
            f"the texts hold {count} tokens, and two blocks need {2 * size}: one to learn on and one to measure. "
            "Give more text, or a smaller max_length."
        )


def split(count: int) -> tuple[Ids, Ids]:
    """Return which of so many blocks are learnt on, and which measure the perplexity."""
    numbers = np.arange(count)
    last = numbers % _HELD_OUT_EACH == _HELD_OUT_EACH - 1
    last[-1] |= not last.any()
    held = numbers[last][:_HELD_OUT_MOST]
    return np.setdiff1d(numbers, held), held


def mask(ids: Ids, shape: Shape, draw: np.random.Generator) -> tuple[Ids, Ids]:
    """Mask 15 % of a row's tokens: 80 % become the mask token, 10 % a random one, 10 % stay.

    Args:
        ids: `(tokens,)`.
        shape: which tokens are never masked.
        draw: decides; from seed, step and row, so that each pass over a block masks others.

    Returns:
        Ids with masked ones replaced, and the target.

    Source: Devlin et al. 2019, section 3.1; dynamic as in Liu et al. 2019 (RoBERTa), section 4.1.
    """
    free = np.flatnonzero(~np.isin(ids, list(shape.specials)))
    target = np.full_like(ids, IGNORED)
    if not len(free):
        return ids, target
    chosen = draw.choice(free, max(1, round(_FRACTION * len(free))), replace=False)
    target[chosen] = ids[chosen]
    fate = draw.random(len(chosen))
    result = ids.copy()
    result[chosen[fate < _AS_MASK]] = shape.mask
    other = chosen[(fate >= _AS_MASK) & (fate < _AS_MASK + _AS_RANDOM)]
    result[other] = draw.integers(0, shape.vocabulary, len(other))
    return result, target


def row(block: Ids, shape: Shape, draw: np.random.Generator, *, segments: bool) -> Masked:
    """Make a masked row of a block.

    Args:
        block: ids without special tokens.
        shape: what is put around them.
        draw: decides what is masked and swapped.
        segments: cut it into two, swapped in one of two cases. Source: Lan et al. 2020 (ALBERT), section 3.1. Unlike
            there the cut falls in the middle of the block, wherever that is in a sentence, so that the seam gives the
            order away more easily than a pair of whole passages would.
    """
    swapped = int(segments and draw.random() < 0.5)
    half = len(block) // 2 if segments else len(block)
    parts = [block[:half], block[half:]] if segments else [block]
    if swapped:
        parts.reverse()
    pieces = [np.array(shape.begin), parts[0], np.array(shape.middle if segments else ()), *parts[1:]]
    first = sum(map(len, pieces[:3]))
    ids = np.concatenate([*pieces, np.array(shape.end)]).astype(np.int64)
    types = (np.arange(len(ids)) >= first).astype(np.int64) if segments else np.zeros(len(ids), np.int64)
    result, target = mask(ids, shape, draw)
    return Masked(result, types, target, swapped)
