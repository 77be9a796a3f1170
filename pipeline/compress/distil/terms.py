"""The table of losses: what each needs and by what it is counted. Their formulas are in `losses.py`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pipeline.recipe.compression import Head
from pipeline.schemes import OutputKind

Items = Literal["rows", "tokens", "pairs", "masked", "logits"]
"""`logits`: whatever the task or the masked-LM head gives logits for."""
Need = Literal["logits", "states", "scores", "sentence"]
"""What both models have to show: logits, hidden states, queries and keys and values, sentence embeddings."""
Level = Literal["row", "token", "head"]
"""What both sides need in common: rows; the same tokens; the same logits."""
_CLASSES: tuple[OutputKind, ...] = ("logits", "token_logits", "spans")
_ALL: tuple[OutputKind, ...] = ("embedding", "logits", "value", "token_logits", "spans")


@dataclass(frozen=True)
class Term:
    """One loss."""

    said: str
    """What it compares, for `pocketbert list`."""
    items: Items
    needs: tuple[Need, ...]
    level: Level
    kinds: tuple[OutputKind, ...] = _ALL
    """Of the tasks that have it, with `head = "task"`."""
    heads: tuple[Head, ...] = ("task", "masked_lm")
    teacher: bool = True
    """Whether it compares with a teacher."""
    by_layer: bool = False
    """Whether layers are mapped."""
    version: int = 1
    """Of its value; a part of the key of what learns by it, from 2 on."""


TERMS: dict[str, Term] = {
    "soft_targets": Term(
        "logits at the temperature, times its square (Hinton et al. 2015)", "logits", ("logits",), "head", _CLASSES
    ),
    "prediction": Term("logits as they are (TinyBERT)", "logits", ("logits",), "head", _CLASSES),
    "logits_mse": Term(
        "logits or regressed numbers, by squares (Ba and Caruana 2014)",
        "rows",
        ("logits",),
        "head",
        ("logits", "value"),
        ("task",),
    ),
    "masked_lm": Term(
        "no teacher: masked tokens of plain text; head = 'masked_lm'",
        "masked",
        ("logits",),
        "row",
        (),
        ("masked_lm",),
        teacher=False,
    ),
    "sentence_order": Term(
        "no teacher: two segments in their order or swapped (ALBERT); head = 'masked_lm'",
        "rows",
        ("states",),
        "row",
        (),
        ("masked_lm",),
        teacher=False,
    ),
    "cosine": Term(
        "the last hidden states' direction, token by token (DistilBERT); equal widths", "tokens", ("states",), "token"
    ),
    "embeddings": Term(
        "what comes out of the embeddings, through a projection (TinyBERT)", "tokens", ("states",), "token"
    ),
    "hidden": Term(
        "hidden states of mapped layers, through a projection (TinyBERT)", "tokens", ("states",), "token", by_layer=True
    ),
    "attention": Term(
        "scores before the softmax of mapped layers (TinyBERT); equal heads",
        "pairs",
        ("scores",),
        "token",
        by_layer=True,
        version=2,
    ),
    "relations": Term(
        "queries with keys and values with values of the last layer (MiniLM)",
        "tokens",
        ("scores",),
        "token",
        version=2,
    ),
    "sentence_mse": Term(
        "sentence embeddings, by squares; equal widths", "rows", ("sentence",), "row", ("embedding",), ("task",)
    ),
    "sentence_cosine": Term(
        "sentence embeddings' direction; equal widths", "rows", ("sentence",), "row", ("embedding",), ("task",)
    ),
    "similarity": Term(
        "how alike the sentences of an update are to each other; any widths",
        "rows",
        ("sentence",),
        "row",
        ("embedding",),
        ("task",),
        version=2,
    ),
}
WHOLE_UPDATES = ("similarity",)
"""Losses that compare the rows of an update with each other, so that it cannot be cut into parts."""
EQUAL_WIDTHS = ("cosine", "sentence_mse", "sentence_cosine")
"""Losses without a projection: both hidden states have to be of one size."""
LABELS = "labels"
"""Name of the hard labels' term in a loss curve."""


def versions(losses: Iterable[str]) -> dict[str, int]:
    """Return the versions of losses that are not what they were at first, by name."""
    return {name: TERMS[name].version for name in losses if TERMS[name].version > 1}
