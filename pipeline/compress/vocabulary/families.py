"""What differs between WordPiece, unigram and BPE when pieces go; each works on `model` of a tokenizer.json.

Why the tokens of a text stay when every piece that it needs is kept, and any of the others goes:

- WordPiece takes the longest piece at each place. The one that was taken is still there, and nothing is longer.
  A word that ends at a place without a piece is unknown only after some pieces were taken: those are needed too.
- Unigram takes the best path. It is still there, and no other got better; what an unknown character costs follows
  from the lowest score, so that piece is kept.
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
    """Ids by piece."""
    unknown: Callable[[Model], str | None]
    """The piece for what is not in the vocabulary."""
    always: Callable[[Model], set[str]]
    """Pieces without which other tokens would change, whatever the text."""
    singles: Callable[[Model, set[str]], set[str]]
    """Pieces of one character, those of an alphabet or all: with them, words that lose a piece are still spelled."""
    support: Callable[[Model], Callable[[str], set[str]]]
    """For a piece, all the pieces that are needed for it to be found, itself included."""
    stuck: Callable[[Model, str], set[str]]
    """For a word that is unknown, the pieces that are taken before that is found out."""
    order: Callable[[Model], list[str]]
    """The pieces, the most common first as far as the tokenizer tells, to fill up room that the corpus leaves."""
    cut: Callable[[Model, Mapping[str, int]], dict[str, Any]]
    """The model with these pieces alone, under new ids."""


def _itself(model: Model) -> Callable[[str], set[str]]:
    return lambda piece: {piece}


def _nothing(model: Model, word: str) -> set[str]:
    return set()


def _bytes_of(model: Model, vocabulary: Iterable[str]) -> set[str]:
    return set(filter(_BYTE.fullmatch, vocabulary)) if model.get("byte_fallback") else set()


def _cut_dict(model: Model, ids: Mapping[str, int]) -> dict[str, Any]:
    return {**model, "vocab": {piece: ids[piece] for piece in sorted(ids, key=ids.__getitem__)}}


def _characters(model: Model, alphabet: set[str]) -> set[str]:
    prefix = model["continuing_subword_prefix"]
    return {piece for one in alphabet for piece in (one, prefix + one) if piece in model["vocab"]}


def _greedy(model: Model, word: str) -> set[str]:
    """Return what WordPiece takes of a word until it is at its end, or finds nothing."""
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


def _unigram_always(model: Model) -> set[str]:
    lowest = min(model["vocab"], key=lambda row: row[1])[0]
    return {lowest, *_bytes_of(model, (piece for piece, _ in model["vocab"]))}


def _unigram_cut(model: Model, ids: Mapping[str, int]) -> dict[str, Any]:
    rows = [[piece, score] for piece, score in model["vocab"] if piece in ids]
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

    def pieces(piece: str) -> set[str]:
        parts = [piece] if _BYTE.fullmatch(piece) else list(piece)
        made = {piece, *parts}
        while known := [(ranks[pair], at) for at, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]:
            _, at = min(known)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            made.add(parts[at])
        return made

    return pieces


def _bpe_cut(model: Model, ids: Mapping[str, int]) -> dict[str, Any]:
    merges = [list(pair) for pair in _merges(model) if {*pair, "".join(pair)} <= ids.keys()]
    return _cut_dict(model, ids) | {"merges": merges}


FAMILIES = {
    "WordPiece": Family(
        vocabulary=lambda model: dict(model["vocab"]),
        unknown=lambda model: model["unk_token"],
        always=lambda model: {model["unk_token"]},
        singles=_characters,
        support=_itself,
        stuck=_greedy,
        order=_by_id,
        cut=_cut_dict,
    ),
    "Unigram": Family(
        vocabulary=lambda model: {piece: number for number, (piece, _) in enumerate(model["vocab"])},
        unknown=_unigram_unknown,
        always=_unigram_always,
        singles=lambda model, alphabet: {piece for piece, _ in model["vocab"] if piece in alphabet | {SPACE}},
        support=_itself,
        stuck=_nothing,
        order=lambda model: [piece for piece, _ in sorted(model["vocab"], key=lambda row: -row[1])],
        cut=_unigram_cut,
    ),
    "BPE": Family(
        vocabulary=lambda model: dict(model["vocab"]),
        unknown=lambda model: model["unk_token"],
        always=lambda model: _bytes_of(model, model["vocab"]),
        # Of a byte-level tokenizer those are the 256 bytes: nothing becomes unknown.
        singles=lambda model, alphabet: {piece for piece in model["vocab"] if len(piece) == 1},
        support=_bpe_support,
        stuck=_nothing,
        order=_by_id,
        cut=_bpe_cut,
    ),
}
