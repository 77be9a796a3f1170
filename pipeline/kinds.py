"""Kinds of output, one row each: how a task's numbers become a decision, and what labels of them look like.

The shape of each kind is in `pipeline.metrics.outputs`. What a folder does with a kind (its loss, its head, its score)
is in that folder's own table, which a test compares with this one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OutputKind = Literal["embedding", "logits", "multi_label", "value", "values", "token_logits", "spans"]
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""How an embedding comes of a text's hidden states: `pipeline.heads.pooling`."""


@dataclass(frozen=True)
class Kind:
    """One kind of output."""

    metric: str
    """Metric of a user's own labelled files, a row of `pipeline.metrics.scoring.METRICS`."""
    metrics: tuple[str, ...] = ()
    """Other metrics that a recipe may choose for them."""
    decision: Literal["one", "each", "span"] | None = None
    """`one`: the class with the largest logit, by a softmax over all. `each`: every label whose probability, a sigmoid
    of its own logit, reaches its threshold. `span`: a start and an end among the tokens. None: the numbers themselves.
    """
    per_token: bool = False
    """Whether each token has outputs; a file's outputs for padding are left out."""
    named: bool = False
    """Whether each output has a name, from the checkpoint's `id2label`."""
    real_targets: bool = False
    """Whether the targets of training are real numbers; otherwise numbers of classes or tokens."""
    several_targets: bool = False
    """Whether a text has a target for each output."""
    trained: bool = True
    """Whether it is trained on labels; an embedding is only judged by them, as pairs with a score."""


KINDS: Mapping[OutputKind, Kind] = {
    "embedding": Kind("spearman", trained=False),
    "logits": Kind("accuracy", ("matthews",), "one", named=True),
    "value": Kind("spearman", real_targets=True),
    "token_logits": Kind("entity_f1", (), "one", per_token=True, named=True),
    "spans": Kind("squad_f1", (), "span", per_token=True),
    "multi_label": Kind("micro_f1", ("macro_f1",), "each", named=True, real_targets=True, several_targets=True),
    "values": Kind("mean_spearman", named=True, real_targets=True, several_targets=True),
}
