"""Ids that the authors' own code gives, for vocabularies that many checkpoints share.

A tokenizer that keeps capitals, or loses the marks of accents, still loads and still gives ids. Where a checkpoint says
what it is, and its vocabulary is one of these, its ids have to be those of the code that the vocabulary was made for.
`texts/published_ids.json` is written from that code as `tests/tokenizer_references.py` has it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.errors import StudentError
from pipeline.text.bundled import FOLDER

FILE = FOLDER / "published_ids.json"


def check(tokenizer: Tokenizer, folder: Path, *, special_tokens: bool = True) -> str | None:
    """Compare a tokenizer with the published ids of its vocabulary.

    Args:
        tokenizer: without truncation and padding.
        folder: where it lies, for messages.
        special_tokens: whether the student's architecture has them around a text; static embeddings do without.

    Returns:
        The vocabulary's name; None where it is none of those that are known.

    Raises:
        StudentError: a text gets other ids.
    """
    every: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    known = every.get(vocabulary_digest(tokenizer))
    if known is None:
        return None
    name = str(known["name"])
    for row in known["rows"]:
        found, expected = tokenizer.encode(row["text"]).ids, row["ids"]
        if not special_tokens:
            # Every known vocabulary has one on either side.
            expected = expected[1:-1]
        if found != expected:
            place = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if len({*pair}) > 1), None)
            shown = f"{len(found)} ids instead of {len(expected)}"
            if place is not None:
                shown = f"{found[place]} instead of {expected[place]} as number {place + 1} of its ids"
            raise StudentError(
                f"the tokenizer in {folder} has the vocabulary of {name} and gives {row['text'][:40]!r} {shown}. Put "
                "the published tokenizer beside the model, or name the checkpoint by its folder if it was trained so."
            )
    return name


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Return what tells a vocabulary from others: the hash of its tokens in the order of their ids."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda row: row[1])
    return hashlib.sha256("\n".join(token for token, _ in tokens).encode()).hexdigest()
