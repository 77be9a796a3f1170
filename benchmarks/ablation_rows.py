"""The rows of ABLATION.md: which loss, which sharing and which embedding size matters, downstream on SST-2.

SST-2 is in all the published tables: in DistilBERT's GLUE score, and as a column of ALBERT's. 8,000 of its rows are
enough to tell what a student brought along, and few enough not to teach it everything anew.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.trials import FAST, Row, Table

_THREE = (0, 1, 2)
TEXTS = ["wikitext2", "war-and-peace"]
"""A million tokens; 500 updates of 16 blocks of 64 see half of them once, which two cores do in ten minutes."""
UPDATES = {"texts": TEXTS, "steps": 500, "batch_size": 16, "max_length": 64, "learning_rate": 2e-4} | FAST
_DOWNSTREAM = {"dataset": "sst2", "max_rows": 8000, "epochs": 1.0, "learning_rate": 1e-4, "max_length": 64} | FAST

# Sanh et al. 2019: weights 5, 2 and 1, temperature 2.
_TRIPLE = {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0}
_STATES = {"hidden": 1.0, "cosine": 1.0}
"""Losses of the sharing rows. A masked-LM head is tied to the whole table, and a factorised student has none."""


def _downstream(name: str, said: str, *, minutes: float, against: str | None) -> Row:
    return Row(
        f"{name}-sst2",
        said,
        "classification",
        {"train": _DOWNSTREAM},
        "sst2",
        _THREE,
        source=name,
        against=f"{against}-sst2" if against else None,
        minutes=minutes,
    )


def _general(name: str, said: str, losses: Mapping[str, float], start: Mapping[str, Any]) -> tuple[Row, Row]:
    """Return a 3-layer student distilled on plain text, and what it is downstream."""
    distil = UPDATES | {"head": "masked_lm", "losses": losses, "temperature": 2.0}
    made = Row(
        name,
        f"{said}: general distillation",
        "embedding",
        {"start": start, "distil": distil},
        None,
        _THREE,
        source="head",
        minutes=10,
    )
    return made, _downstream(name, said, minutes=3, against=None if name == "triple" else "triple")


def _without(loss: str) -> dict[str, float]:
    return {name: weight for name, weight in _TRIPLE.items() if name != loss}


_LAYERS = {"kind": "layers"}
VARIANTS: Mapping[str, tuple[tuple[Row, Row], float | None]] = {
    "the triple loss": (_general("triple", "the triple loss", _TRIPLE, _LAYERS), None),
    "without masked LM": (_general("no-mlm", "without masked LM", _without("masked_lm"), _LAYERS), -0.31),
    "without cosine": (_general("no-cosine", "without cosine", _without("cosine"), _LAYERS), -1.46),
    "without distillation": (
        _general("no-distillation", "without distillation", _without("soft_targets"), _LAYERS),
        -2.96,
    ),
    "random start": (_general("random", "random start", _TRIPLE, {"kind": "random"}), -3.69),
}
"""With the published difference in GLUE points. Source: Sanh et al. 2019, table 4."""
ORDER = _general("order", "with order prediction", _TRIPLE | {"sentence_order": 1.0}, _LAYERS)

SHARING: Mapping[str, str | None] = {
    "none": None,
    "attention": "attention",
    "feed-forward": "feed_forward",
    "all": "all",
}
SIZES: Mapping[str, int | None] = {"full": None, "128": 128, "64": 64}


def grid_name(what: str, size: str) -> str:
    """Return the row of a sharing and an embedding size, before it is fine-tuned."""
    return f"share-{what}-{size}"


def _cell(what: str, size: str) -> tuple[Row, Row]:
    share, rank = SHARING[what], SIZES[size]
    sections: dict[str, Mapping[str, Any]] = {"factorise": {"embedding": rank}} if rank else {}
    sections |= {"share": {"what": share}} if share else {}
    distil = UPDATES | {"losses": _STATES}
    name = grid_name(what, size)
    said = f"shared: {what}; E {size}"
    whole = None if (what, size) == ("none", "full") else grid_name("none", "full")
    made = Row(name, f"{said}: general", "embedding", sections | {"distil": distil}, minutes=6)
    return made, _downstream(name, said, minutes=3, against=whole)


GRID = {(what, size): _cell(what, size) for what in SHARING for size in SIZES}
HEAD = Row(
    "head",
    "MiniLM with a masked-LM head, trained on plain text",
    "embedding",
    {"head": {"texts": TEXTS, "steps": 1500, "batch_size": 16, "max_length": 64} | FAST},
    minutes=15,
)

TABLE = Table(
    "ablation",
    (
        HEAD,
        *(row for pair, _ in VARIANTS.values() for row in pair),
        *ORDER,
        *(row for pair in GRID.values() for row in pair),
    ),
    targets={"executorch": ("int8_dynamic",)},
    lengths={"classification": (64,), "embedding": (64,)},
)
