"""How WordPiece, unigram and BPE differ when tokens are removed; each works on `model` of a tokenizer.json.

Why a text keeps its tokens when those that it needs are kept, and any others are removed:

- WordPiece takes the longest token at each position. The one that was taken is still there, and nothing is longer.
  A word with a position that no token fits is unknown only after some tokens were taken: those are needed too.
- Unigram takes the best path. It is still there, and no other got better. The cost of an unknown character follows
  from the lowest score, so that token is kept.
- BPE merges the pair of lowest rank. Every merge on the way to a token has to stay, though no text has its result.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.text.unigram import SPACE

Model = Mapping[str, Any]
"""`model` of a tokenizer.json."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Family:
    """One kind of tokenizer."""

    vocabulary: Callable[[Model], dict[str, int]]
    """Returns the ids by token."""
    unknown: Callable[[Model], str | None]
    """Returns the unknown token, which stands for words that the vocabulary cannot spell; None if there is none."""
    essential: Callable[[Model], set[str]]
    """Returns the tokens that the tokenizer needs for any corpus: unknown token, byte tokens, lowest Unigram score."""
    singles: Callable[[Model, set[str]], set[str]]
    """Tokens of one character, of an alphabet or all: with them, words that lose a token can still be spelled."""
    support: Callable[[Model], Callable[[str], set[str]]]
    """For a token, all tokens that are needed for it to be found, itself included."""
    before_unknown: Callable[[Model, str], set[str]]
    """For an unknown word, the tokens that are taken before it turns out to be unknown."""
    order: Callable[[Model], list[str]]
    """Returns all tokens, the most common first as far as the tokenizer tells; they fill up a requested size."""
    restrict: Callable[[Model, Mapping[str, int]], dict[str, Any]]
    """Returns the model with only the given tokens, under new ids."""
    has_letters: bool = True
    """Whether tokens are spelled in the text's own characters; BPE's are bytes in the models that are known here."""


def _itself(model: Model) -> Callable[[str], set[str]]:
    return lambda token: {token}


def _nothing(model: Model, word: str) -> set[str]:
    return set()


def _bytes_of(model: Model, vocabulary: Iterable[str]) -> set[str]:
    return set(filter(_BYTE.fullmatch, vocabulary)) if model.get("byte_fallback") else set()


def _restrict_dict(model: Model, ids: Mapping[str, int]) -> dict[str, Any]:
    return {**model, "vocab": {token: ids[token] for token in sorted(ids, key=ids.__getitem__)}}


def _characters(model: Model, alphabet: set[str]) -> set[str]:
    prefix = model["continuing_subword_prefix"]
    return {token for one in alphabet for token in (one, prefix + one) if token in model["vocab"]}


def _greedy(model: Model, word: str) -> set[str]:
    """Return the tokens that WordPiece takes of a word until its end, or until no token fits."""
    taken: set[str] = set()
    if len(word) > model["max_input_chars_per_word"]:
        return taken
    start = 0
    while start < len(word):
        prefix = model["continuing_subword_prefix"] if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in model["vocab"]), None)
        if end is None:
            return taken
        taken.add(prefix + word[start:end])
        start = end
    return taken


def _by_id(model: Model) -> list[str]:
    return sorted(model["vocab"], key=model["vocab"].__getitem__)


def _unigram_essential(model: Model) -> set[str]:
    lowest = min(model["vocab"], key=lambda row: row[1])[0]
    return {lowest, *_bytes_of(model, (token for token, _ in model["vocab"]))}


def _unigram_restrict(model: Model, ids: Mapping[str, int]) -> dict[str, Any]:
    rows = [[token, score] for token, score in model["vocab"] if token in ids]
    unknown = _unigram_unknown(model)
    return {**model, "vocab": rows, "unk_id": None if unknown is None else ids[unknown]}


def _unigram_unknown(model: Model) -> str | None:
    return None if model["unk_id"] is None else model["vocab"][model["unk_id"]][0]


def _merges(model: Model) -> list[tuple[str, str]]:
    """Return the merges by rank; older files have them as `a b`."""
    rows = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(first, second) for first, second in rows]


def _bpe_support(model: Model) -> Callable[[str], set[str]]:
    ranks = {pair: rank for rank, pair in enumerate(_merges(model))}

    def needed(token: str) -> set[str]:
        parts = [token] if _BYTE.fullmatch(token) else list(token)
        made = {token, *parts}
        while known := [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]:
            _, at = min(known)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            made.add(parts[at])
        return made

    return needed


def _bpe_restrict(model: Model, ids: Mapping[str, int]) -> dict[str, Any]:
    merges = [list(pair) for pair in _merges(model) if {*pair, "".join(pair)} <= ids.keys()]
    return _restrict_dict(model, ids) | {"merges": merges}


FAMILIES = {
    "WordPiece": Family(
        vocabulary=lambda model: dict(model["vocab"]),
        unknown=lambda model: model["unk_token"],
        essential=lambda model: {model["unk_token"]},
        singles=_characters,
        support=_itself,
        before_unknown=_greedy,
        order=_by_id,
        restrict=_restrict_dict,
    ),
    "Unigram": Family(
        vocabulary=lambda model: {token: number for number, (token, _) in enumerate(model["vocab"])},
        unknown=_unigram_unknown,
        essential=_unigram_essential,
        singles=lambda model, alphabet: {token for token, _ in model["vocab"] if token in alphabet | {SPACE}},
        support=_itself,
        before_unknown=_nothing,
        order=lambda model: [token for token, _ in sorted(model["vocab"], key=lambda row: -row[1])],
        restrict=_unigram_restrict,
    ),
    "BPE": Family(
        vocabulary=lambda model: dict(model["vocab"]),
        unknown=lambda model: model["unk_token"],
        essential=lambda model: _bytes_of(model, model["vocab"]),
        # In a byte-level tokenizer those are the 256 bytes: nothing becomes unknown.
        singles=lambda model, alphabet: {token for token in model["vocab"] if len(token) == 1},
        support=_bpe_support,
        before_unknown=_nothing,
        order=_by_id,
        restrict=_bpe_restrict,
        has_letters=False,
    ),
}
