"""The losses of `[distil]` and their published combinations, the presets. Imports nothing heavy.

The formulas are in `pipeline.compress.distil.losses`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.kinds import KINDS, OutputKind

Head = Literal["task", "masked_lm"]
"""The head whose logits are compared."""
Items = Literal["rows", "tokens", "pairs", "masked", "logits"]
"""What a loss is a mean over: rows, tokens, pairs of tokens, masked tokens, or whatever the head gives logits for."""
Output = Literal["logits", "hidden_states", "projections", "sentence"]
"""An output of a model. `projections`: queries, keys and values of the layers; `sentence`: sentence embeddings."""
Alignment = Literal["row", "token", "head"]
"""What student and teacher need in common: the rows; the tokens of each row; or the logits, whatever the head's are."""
_ALL: tuple[OutputKind, ...] = tuple(KINDS)
_CHOICES: tuple[OutputKind, ...] = tuple(kind for kind in _ALL if KINDS[kind].decision)
"""Kinds whose logits are probabilities behind a softmax, or a sigmoid each."""


@dataclass(frozen=True)
class Loss:
    """One loss: what it compares, and what it needs."""

    summary: str
    """For `pocketbert list`."""
    items: Items
    outputs: tuple[Output, ...]
    """The outputs that both models have to give."""
    alignment: Alignment
    kinds: tuple[OutputKind, ...] = _ALL
    """Kinds of output of the tasks that have it, with `head = "task"`."""
    heads: tuple[Head, ...] = ("task", "masked_lm")
    needs_teacher: bool = True
    maps_layers: bool = False
    """Whether it compares layers of the student with layers of the teacher."""
    version: int = 1
    """Version of its formula; from 2 on it is part of the key of what is distilled by it."""


LOSSES: dict[str, Loss] = {
    "soft_targets": Loss(
        "logits at a temperature, times its square (Hinton et al. 2015)", "logits", ("logits",), "head", _CHOICES
    ),
    "prediction": Loss("logits at temperature 1 (TinyBERT)", "logits", ("logits",), "head", _CHOICES),
    "logits_mse": Loss(
        "squared error of logits or of regression outputs (Ba and Caruana 2014)",
        "rows",
        ("logits",),
        "head",
        ("logits", "value", "multi_label", "values"),
        ("task",),
    ),
    "masked_lm": Loss(
        "without teacher: masked tokens of plain text; needs head = 'masked_lm'",
        "masked",
        ("logits",),
        "row",
        (),
        ("masked_lm",),
        needs_teacher=False,
    ),
    "sentence_order": Loss(
        "without teacher: whether two segments are swapped (ALBERT); needs head = 'masked_lm'",
        "rows",
        ("hidden_states",),
        "row",
        (),
        ("masked_lm",),
        needs_teacher=False,
    ),
    "cosine": Loss(
        "direction of the last hidden states, token by token (DistilBERT); needs equal hidden sizes",
        "tokens",
        ("hidden_states",),
        "token",
    ),
    "embeddings": Loss(
        "output of the embedding layer, through a projection (TinyBERT)", "tokens", ("hidden_states",), "token"
    ),
    "hidden": Loss(
        "hidden states of mapped layers, through a projection (TinyBERT)",
        "tokens",
        ("hidden_states",),
        "token",
        maps_layers=True,
    ),
    "attention": Loss(
        "attention scores before the softmax, of mapped layers (TinyBERT); needs equal numbers of heads",
        "pairs",
        ("projections",),
        "token",
        maps_layers=True,
        version=2,
    ),
    "relations": Loss(
        "query-key and value-value relations of the last layer (MiniLM)",
        "tokens",
        ("projections",),
        "token",
        version=2,
    ),
    "sentence_mse": Loss(
        "squared error of sentence embeddings; needs equal widths, or space = 'teacher'",
        "rows",
        ("sentence",),
        "row",
        ("embedding",),
        ("task",),
    ),
    "sentence_cosine": Loss(
        "direction of sentence embeddings; needs equal widths, or space = 'teacher'",
        "rows",
        ("sentence",),
        "row",
        ("embedding",),
        ("task",),
    ),
    "similarity": Loss(
        "similarity of the sentences of an update to each other, for any hidden sizes",
        "rows",
        ("sentence",),
        "row",
        ("embedding",),
        ("task",),
        version=2,
    ),
}
WITHIN_UPDATE = ("similarity",)
"""Losses that compare the rows of an update with each other, so that it cannot be split."""
EQUAL_HIDDEN_SIZES = ("cosine",)
"""Losses without a projection, which need equal hidden sizes."""
OF_VECTORS = ("sentence_mse", "sentence_cosine")
"""Losses that compare embeddings number by number, which need equal widths, and put a student into its teacher's
space."""
HARD_LABELS = "labels"
"""Name of the loss on hard labels in a loss curve."""

PRESETS: dict[str, Mapping[str, Any]] = {
    # Sanh et al. 2019, huggingface/transformers distillation/README.md: alpha_ce 5, alpha_mlm 2, alpha_cos 1, T 2.
    "distilbert": {
        "head": "masked_lm",
        "losses": {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0},
        "temperature": 2.0,
        "learning_rate": 5e-4,
    },
    # Sanh et al. 2019, section 3: a second distillation while fine-tuning.
    "distilbert-task": {"losses": {"soft_targets": 1.0}, "alpha": 0.5, "temperature": 2.0},
    # Jiao et al. 2020, section 3.2 and equation 11: general distillation on plain text, without prediction.
    "tinybert-general": {
        "head": "masked_lm",
        "losses": {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0},
        "teacher_layers": "uniform",
    },
    # Jiao et al. 2020, section 4.2: the same losses on the task's texts, then the prediction.
    "tinybert-layers": {
        "losses": {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0},
        "teacher_layers": "uniform",
        "epochs": 20.0,
    },
    "tinybert-prediction": {"losses": {"prediction": 1.0}, "temperature": 1.0, "epochs": 3.0, "learning_rate": 3e-5},
    # Wang et al. 2020, section 4.1, on plain text.
    "minilm": {"head": "masked_lm", "losses": {"relations": 1.0}, "learning_rate": 5e-4},
    # Reimers and Gurevych 2020: no labels needed.
    "sentence": {"losses": {"sentence_mse": 1.0}},
}
"""The published combinations, as settings of `[distil]`."""


def loss_versions(losses: Iterable[str]) -> dict[str, int]:
    """Return the versions of the losses whose formulas changed, by name."""
    return {name: LOSSES[name].version for name in losses if LOSSES[name].version > 1}
