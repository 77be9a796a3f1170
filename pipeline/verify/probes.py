"""Rows of tokens that no set of texts has: every length, thousands of ids, and both ends of every table.

Real text decides whether a file is good; it leaves lengths and ids out, and a fault there would wait for a user. These
rows are no sentences, so no quality is read from them: they are compared with the checkpoint that has the file's own
weights, to the last bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from pipeline.formats.signature import Signature
from pipeline.text.encoding import Row

_EVERY_LENGTH_UP_TO = 128
_LENGTH_STEP = 16
"""Stride of the token counts beyond that."""
_IDS = 8_192
"""Most ids that are tried, a seeded choice with both ends: as many as the rows of every length up to 128 hold. A graph
that loses ids (an integer type that is too narrow, a table that is cut) loses thousands; each row of a table is read
back by the gate on weights."""
FEW = 3
"""Tokens of a row that is nearly all padding."""


@dataclass(frozen=True)
class Vocabulary:
    """The range of ids and types, and the special tokens of a row."""

    size: int
    """Number of ids: rows of the word embedding table."""
    types: int
    """Number of token types; 1 if the model has no table of them."""
    padding: int | None
    """The padding id, where a model treats it specially, so that no row has it before its end; else None."""
    first: tuple[int, ...]
    """Special tokens before a text."""
    last: tuple[int, ...]
    """Special tokens behind it."""


@dataclass(frozen=True)
class Probe:
    """A row and the length at which it runs."""

    row: Row
    length: int


@dataclass(frozen=True)
class Probes:
    """The rows for one file."""

    of_lengths: tuple[Probe, ...]
    """Rows of every length."""
    of_ids: tuple[Probe, ...]
    """Rows of every id, dealt out over the lengths, each full and padded by one."""
    ids: int
    """Number of ids dealt out."""


def make(signature: Signature, vocabulary: Vocabulary, *, thorough: bool) -> Probes:
    """Make the rows for a file: the same ones for the same signature and vocabulary.

    Args:
        signature: of the file.
        vocabulary: of the checkpoint.
        thorough: try every length and every id, however many there are.
    """
    ids = _Ids(vocabulary, None if thorough else _IDS)
    of_lengths = tuple(_of_lengths(signature, ids, thorough=thorough))
    turns = cycle(_turns(signature))
    of_ids = []
    while ids.left:
        tokens, length = next(turns)
        of_ids.append(Probe(ids.row(tokens), length))
    return Probes(of_lengths, tuple(of_ids), ids.used)


def _turns(signature: Signature) -> Iterator[tuple[int, int]]:
    """Yield token count and length of the rows over which ids are dealt out, in turns.

    Each length has a full row and a padded one: a graph may read most of a vocabulary otherwise in one of them alone.
    """
    for function in signature.functions:
        length = function.max_length if function.fixed else min(function.max_length, _EVERY_LENGTH_UP_TO)
        for tokens in (length, length - 1):
            if tokens:
                yield tokens, length


def _of_lengths(signature: Signature, ids: "_Ids", *, thorough: bool) -> Iterator[Probe]:
    """Yield rows of every token count, at and just below each fixed length, and nearly empty ones at each length."""
    runs = [(count, signature.choose(count)[1]) for count in _token_counts(signature.max_length, thorough=thorough)]
    for longest in (function.max_length for function in signature.functions):
        runs += [(count, longest) for count in (longest, longest - 1, FEW) if 1 <= count <= longest]
    for count, length in dict.fromkeys(runs):
        yield Probe(ids.row(count), length)


def _token_counts(longest: int, *, thorough: bool) -> list[int]:
    if thorough or longest <= _EVERY_LENGTH_UP_TO:
        return list(range(1, longest + 1))
    beyond = range(_EVERY_LENGTH_UP_TO + 1, longest - 1, _LENGTH_STEP)
    return [*range(1, _EVERY_LENGTH_UP_TO + 1), *beyond, longest - 1, longest]


class _Ids:
    """Hands out ids, each once; when all are used, random ones."""

    def __init__(self, vocabulary: Vocabulary, most: int | None) -> None:
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(0)
        every = np.array([number for number in range(vocabulary.size) if number != vocabulary.padding])
        self._random.shuffle(inner := every[1:-1])
        # The ends first, so that a choice contains them.
        order = [*every[:1], *every[-1:], *inner]
        self._waiting = [int(one) for one in (order if most is None else order[:most])]
        self.used = len(self._waiting)
        self._any = every

    @property
    def left(self) -> bool:
        """Whether an id has not been in a row yet."""
        return bool(self._waiting)

    def row(self, tokens: int) -> Row:
        """Return a row of `tokens` tokens, with the special ones if they fit."""
        first, last = self._vocabulary.first, self._vocabulary.last
        room = tokens - len(first) - len(last)
        ids = [*first, *self._take(room), *last] if room > 0 else self._take(tokens)
        # Token types rise along the row, as in a pair; more segments where a table has more types.
        where = np.sort(self._random.integers(0, tokens + 1, self._vocabulary.types - 1))
        return Row(tuple(ids), tuple(int(np.searchsorted(where, place, side="right")) for place in range(tokens)))

    def _take(self, count: int) -> Sequence[int]:
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return [*taken, *(int(one) for one in self._random.choice(self._any, count - len(taken)))]
