"""Masked language modelling: blocks of running text, dynamic masking, swapped segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.errors import InputError
from pipeline.text.encoding import Row
from pipeline.train.examples import IGNORED, EncodedExample

Ids = NDArray[np.int64]

_LINES_AT_ONCE = 1000
"""Number of lines that are encoded at a time; the encoding of a line takes kilobytes."""
_MASKED_FRACTION = 0.15
_AS_MASK, _AS_RANDOM = 0.8, 0.1
"""Fractions of masked tokens that become the mask token, and a random token; the rest stays.

Source: Devlin et al. 2019, section 3.1 and appendix A.1."""
UNTRAINED_FROM = 0.5
"""A head whose perplexity exceeds this fraction of the vocabulary size is untrained: uniform guessing reaches 1."""
_HELD_OUT_EVERY = 20
"""One block in this many is held out and measures the perplexity."""
_HELD_OUT_MOST = 64


@dataclass(frozen=True)
class BlockFormat:
    """The special tokens around a block of text, and the tokens that masking draws from."""

    begin: tuple[int, ...]
    middle: tuple[int, ...]
    """Between two segments."""
    end: tuple[int, ...]
    mask_token_id: int
    vocab_size: int
    """Random tokens have ids below it."""
    special_ids: frozenset[int]
    """Tokens that are never masked."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, mask_token_id: int, vocab_size: int) -> "BlockFormat":
        """Return the format in which a tokenizer encodes texts and pairs."""
        single, pair = tokenizer.encode("").ids, tokenizer.encode("", "").ids
        begin, end = tuple(single[:1]), tuple(single[1:])
        middle = tuple(pair[len(begin) : len(pair) - len(end)])
        added = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        special_ids = frozenset({*single, *pair, *added, mask_token_id})
        return cls(begin, middle, end, mask_token_id, vocab_size, special_ids)

    @property
    def special_tokens(self) -> int:
        """Number of special tokens in a row of two segments, which has the most."""
        return len(self.begin) + len(self.middle) + len(self.end)


@dataclass(frozen=True)
class MaskedBlock:
    """A block as model input."""

    ids: Ids
    types: Ids
    target: Ids
    """The original token where one is masked, `IGNORED` elsewhere."""
    swapped: int
    """1 if the second half comes first."""


def text_blocks(
    tokenizer: Tokenizer, lines: Sequence[str], block_format: BlockFormat, *, length: int
) -> Iterator[EncodedExample]:
    """Cut running text into blocks without special tokens; the incomplete last one is dropped.

    Args:
        tokenizer: of the student.
        lines: joined to running text.
        block_format: of the rows.
        length: of a row, special tokens included.

    Raises:
        InputError: the text is too short for two blocks, one to train on and one to measure on.
    """
    size = _text_tokens(block_format, length)
    tokenizer.no_truncation()
    parts = [np.zeros(0, np.int32)]
    for start in range(0, len(lines), _LINES_AT_ONCE):
        encoded = tokenizer.encode_batch(list(lines[start : start + _LINES_AT_ONCE]), add_special_tokens=False)
        parts += [np.array(one.ids, np.int32) for one in encoded]
    ids = np.concatenate(parts)
    _check_two_blocks(len(ids), size)
    for start in range(0, len(ids) - size + 1, size):
        yield EncodedExample(Row(tuple(ids[start : start + size].tolist()), (0,) * size), ())


def check_enough_text(tokenizer: Tokenizer, lines: Sequence[str], *, length: int) -> None:
    """Refuse texts that are too short for `text_blocks`; counting stops when they are long enough.

    Raises:
        InputError: the text is too short for two blocks.
    """
    size = _text_tokens(BlockFormat.of(tokenizer, 0, 0), length)
    tokenizer.no_truncation()
    count = 0
    for line in lines:
        count += len(tokenizer.encode(line, add_special_tokens=False).ids)
        if count >= 2 * size:
            return
    _check_two_blocks(count, size)


def _text_tokens(block_format: BlockFormat, length: int) -> int:
    """Return the number of tokens of text in a row."""
    size = length - block_format.special_tokens
    if size < 2:
        raise InputError(
            f"max_length = {length} leaves no room for text beside {block_format.special_tokens} special tokens."
        )
    return size


def _check_two_blocks(count: int, size: int) -> None:
    if count < 2 * size:
        raise InputError(
            f"the texts have {count} tokens, and two blocks need {2 * size}: one to train on and one to measure on. "
            "Give more text, or a smaller max_length."
        )


def split_blocks(count: int) -> tuple[Ids, Ids]:
    """Split the block numbers into training blocks and held-out blocks for the perplexity."""
    numbers = np.arange(count)
    last = numbers % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    last[-1] |= not last.any()
    held_out = numbers[last][:_HELD_OUT_MOST]
    return np.setdiff1d(numbers, held_out), held_out


def mask_tokens(ids: Ids, block_format: BlockFormat, draw: np.random.Generator) -> tuple[Ids, Ids]:
    """Mask 15 % of a row's tokens: of these 80 % become the mask token, 10 % a random token, and 10 % stay.

    Args:
        ids: `(tokens,)`.
        block_format: knows the tokens that are never masked.
        draw: seeded by seed, update and row, so that each pass over a block masks other tokens.

    Returns:
        The ids with masked tokens replaced, and the target.

    Source: Devlin et al. 2019, section 3.1; dynamic as in Liu et al. 2019 (RoBERTa), section 4.1.
    """
    free = np.flatnonzero(~np.isin(ids, list(block_format.special_ids)))
    target = np.full_like(ids, IGNORED)
    if not len(free):
        return ids, target
    chosen = draw.choice(free, max(1, round(_MASKED_FRACTION * len(free))), replace=False)
    target[chosen] = ids[chosen]
    chance = draw.random(len(chosen))
    result = ids.copy()
    result[chosen[chance < _AS_MASK]] = block_format.mask_token_id
    random = chosen[(chance >= _AS_MASK) & (chance < _AS_MASK + _AS_RANDOM)]
    result[random] = draw.integers(0, block_format.vocab_size, len(random))
    return result, target


def masked_block(block: Ids, block_format: BlockFormat, draw: np.random.Generator, *, segments: bool) -> MaskedBlock:
    """Return a block as a masked row.

    Args:
        block: ids without special tokens.
        block_format: the special tokens around it.
        draw: decides what is masked and swapped.
        segments: whether to split the block into two segments, and to swap them in one of two cases. Source: Lan et
            al. 2020 (ALBERT), section 3.1. Unlike there, the block is split in the middle, wherever that is in a
            sentence, so that the order is easier to recognise than with two whole passages.
    """
    swapped = int(segments and draw.random() < 0.5)
    half = len(block) // 2 if segments else len(block)
    parts = [block[:half], block[half:]] if segments else [block]
    if swapped:
        parts.reverse()
    middle = np.array(block_format.middle if segments else ())
    joined = [np.array(block_format.begin), parts[0], middle, *parts[1:]]
    first = sum(map(len, joined[:3]))
    ids = np.concatenate([*joined, np.array(block_format.end)]).astype(np.int64)
    types = (np.arange(len(ids)) >= first).astype(np.int64) if segments else np.zeros(len(ids), np.int64)
    result, target = mask_tokens(ids, block_format, draw)
    return MaskedBlock(result, types, target, swapped)
