"""`tokenizer.bin`: a large tokenizer.json as apps open it, in milliseconds and a few megabytes.

A vocabulary of 250,000 tokens is 18 MB of JSON, which a phone reads for seconds. Here it is a trie that is used as it
lies: nodes by depth, those of one parent beside each other by code point. All numbers are little-endian:

| bytes | what |
|---|---|
| 8 | `MAGIC` |
| 4 × 6 | version, bytes of the JSON, nodes, scores, 0, 0 |
| a multiple of 8 | tokenizer.json without `model.vocab`, UTF-8, spaces at its end |
| 8 × scores | scores of a Unigram model by id, as doubles |
| 4 × nodes | code point that leads to each node; 0 for the root, which is the first |
| 4 × (nodes + 1) | number of each node's first child; they end where the next node's begin |
| 4 × nodes | id of the token that ends at each node, or -1 |

Whoever opens it checks the magic, the version, that the sizes are the file's, and that children and ids are in range;
its bytes are held against the manifest like those of any file. `tokenizer.json` stays beside it, and is what Python
reads.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ArtifactError

BINARY = "tokenizer.bin"
MAGIC = b"PBTOKENS"
VERSION = 1
FROM_TOKENS = 100_000
"""Tokens from which on a tokenizer has the file; smaller ones are read from JSON soon enough."""
KINDS = ("WordPiece", "Unigram")
"""Kinds of models that it can hold; merges of BPE are not words of a trie."""
_HEAD = struct.Struct("<8s6I")
_ALIGNED = 8


@dataclass(frozen=True)
class Binary:
    """What a `tokenizer.bin` holds."""

    rest: dict[str, Any]
    """tokenizer.json without `model.vocab`."""
    ids: dict[str, int]
    """The ids by token."""
    scores: tuple[float, ...]
    """Scores by id; none but for Unigram."""


def of(tokenizer_json: bytes) -> bytes | None:
    """Return the `tokenizer.bin` of a tokenizer.json; None where the vocabulary is small or of another kind."""
    document = json.loads(tokenizer_json)
    model = document["model"]
    if model["type"] not in KINDS or len(model["vocab"]) < FROM_TOKENS:
        return None
    return pack(document)


def pack(document: Mapping[str, Any]) -> bytes:
    """Return the `tokenizer.bin` of a tokenizer.json of a kind that it can hold, of any size."""
    model = dict(document["model"])
    vocabulary = model.pop("vocab")
    scores = [score for _, score in vocabulary] if model["type"] == "Unigram" else []
    # Of a token that is listed twice the last id counts, as in the library.
    ids = {token: at for at, (token, _) in enumerate(vocabulary)} if scores else vocabulary
    rest = json.dumps(dict(document) | {"model": model}, ensure_ascii=False, separators=(",", ":")).encode()
    rest += b" " * (-len(rest) % _ALIGNED)
    codes, children, tokens = _trie(ids)
    head = _HEAD.pack(MAGIC, VERSION, len(rest), len(codes), len(scores), 0, 0)
    parts = (np.array(scores, "<f8"), codes.astype("<u4"), children.astype("<u4"), tokens.astype("<i4"))
    return head + rest + b"".join(part.tobytes() for part in parts)


def _trie(ids: Mapping[str, int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the code point, the first child and the id of each node, the nodes by depth and then by spelling."""
    words = sorted(ids)
    numbers = np.array([ids[word] for word in words], np.int64)
    lengths = np.array([len(word) for word in words], np.int64)
    letters = np.frombuffer("".join(words).encode("utf-32-le"), "<u4").astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    codes, parents, tokens = [np.zeros(1, np.int64)], [], [np.full(1, -1, np.int64)]
    tokens[0][0] = ids.get("", -1)
    # For each word that goes on at this depth: its node there, which is the root's at first.
    going = np.flatnonzero(lengths > 0)
    at = np.zeros(len(going), np.int64)
    count, depth = 1, 0
    while len(going):
        column = letters[begins[going] + depth]
        new = np.ones(len(going), bool)
        new[1:] = (column[1:] != column[:-1]) | (at[1:] != at[:-1])
        node = count + np.cumsum(new) - 1
        codes.append(column[new])
        parents.append(at[new])
        level = np.full(int(new.sum()), -1, np.int64)
        depth += 1
        ends = lengths[going] == depth
        level[node[ends] - count] = numbers[going[ends]]
        tokens.append(level)
        count += len(level)
        going, at = going[~ends], node[~ends]
    begin = np.bincount(np.concatenate([np.zeros(0, np.int64), *parents]), minlength=count)
    children = 1 + np.concatenate([np.zeros(1, np.int64), np.cumsum(begin)])
    return np.concatenate(codes), children, np.concatenate(tokens)


def read(content: bytes) -> Binary:
    """Read a `tokenizer.bin` back.

    Raises:
        ArtifactError: it is no such file, of another version, or damaged.
    """
    if len(content) < _HEAD.size or content[:8] != MAGIC:
        raise ArtifactError(f"{BINARY} does not begin with {MAGIC!r}; convert the model again.")
    _, version, rest_bytes, nodes, count, *_ = _HEAD.unpack_from(content)
    if version != VERSION:
        raise ArtifactError(f"{BINARY} is of version {version}; this release reads version {VERSION}.")
    if len(content) != _HEAD.size + rest_bytes + 8 * count + 4 * (3 * nodes + 1) or nodes < 1:
        raise ArtifactError(f"{BINARY} has {len(content)} bytes, which is not what its head says; convert again.")
    place = _HEAD.size + rest_bytes
    scores = np.frombuffer(content, "<f8", count, place)
    codes = np.frombuffer(content, "<u4", nodes, place + 8 * count)
    children = np.frombuffer(content, "<u4", nodes + 1, place + 8 * count + 4 * nodes)
    tokens = np.frombuffer(content, "<i4", nodes, place + 8 * count + 4 * (2 * nodes + 1))
    parents = np.arange(nodes, dtype=np.int64)
    if children[0] != 1 or children[-1] != nodes or (children[:-1].astype(np.int64) <= parents).any():
        raise ArtifactError(f"{BINARY}: a node comes before its parent; convert the model again.")
    if (children[1:] < children[:-1]).any():
        raise ArtifactError(f"{BINARY}: children overlap; convert the model again.")
    spelled = [""] * nodes
    for node in range(nodes):
        for child in range(int(children[node]), int(children[node + 1])):
            spelled[child] = spelled[node] + chr(codes[child])
    ids = {spelled[node]: int(tokens[node]) for node in np.flatnonzero(tokens >= 0)}
    return Binary(json.loads(content[_HEAD.size : place]), ids, tuple(scores.tolist()))


def write(folder: Path) -> bool:
    """Write `tokenizer.bin` beside a folder's tokenizer.json, if the vocabulary is large; return whether it is."""
    content = of((folder / "tokenizer.json").read_bytes())
    if content is not None:
        (folder / BINARY).write_bytes(content)
    return content is not None
