"""The losses of the tasks: one row for each kind of output.

A loss is a sum over items (rows, tokens or answers); the loop divides it by the number of items of the whole update, so
that neither the number of processes nor the parts of an update change what is learnt. A term that compares with a
teacher is added to that sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipeline.schemes import OutputKind
from pipeline.train.batches import Batch
from pipeline.train.examples import IGNORED


@dataclass(frozen=True)
class Objective:
    """How far a model's output is from its target."""

    loss: Callable[[Any, Batch], torch.Tensor]
    """`(model output, batch) -> sum of the items' losses`, in float32."""
    items: Callable[[Sequence[NDArray[Any]]], int]
    """Number of items in the targets of rows, before padding."""


def cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ −log softmax(z)_y over rows, logits z `(batch, labels)`.

    Source: Devlin et al. 2019, section 4.1.
    """
    return functional.cross_entropy(output.logits.float(), batch.target[:, 0], reduction="sum")


def squared_error(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ (z − y)² over rows, z `(batch, 1)`.

    Source: google-research/bert has no regression; transformers' `problem_type = "regression"` for STS-B.
    """
    return functional.mse_loss(output.logits.float()[:, 0], batch.target[:, 0], reduction="sum")


def token_cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ −log softmax(z)_y over the first token of each word, logits z `(batch, seq_len, labels)`.

    Source: Devlin et al. 2019, section 5.3: the representation of the first sub-token is the input of the classifier.
    """
    logits = output.logits.float().flatten(0, 1)
    return functional.cross_entropy(logits, batch.target.flatten(), ignore_index=IGNORED, reduction="sum")


def span_cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ ½ (−log softmax(s)_start − log softmax(e)_end) over windows, s and e `(batch, seq_len)`.

    Padding takes no part in the softmax, else the loss of a row would hang on what it is batched with.

    Source: Devlin et al. 2019, section 4.2; the half as in google-research/bert, run_squad.py.
    """
    padding = batch.inputs["attention_mask"] == 0
    start = output.start_logits.float().masked_fill(padding, float("-inf"))
    end = output.end_logits.float().masked_fill(padding, float("-inf"))
    first = functional.cross_entropy(start, batch.target[:, 0], reduction="sum")
    return (first + functional.cross_entropy(end, batch.target[:, 1], reduction="sum")) / 2


def rows(targets: Sequence[NDArray[Any]]) -> int:
    """Return the number of rows."""
    return len(targets)


def tagged_tokens(targets: Sequence[NDArray[Any]]) -> int:
    """Return the number of tokens that have a target."""
    return sum(int((target != IGNORED).sum()) for target in targets)


OBJECTIVES: dict[OutputKind, Objective] = {
    "logits": Objective(cross_entropy, rows),
    "value": Objective(squared_error, rows),
    "token_logits": Objective(token_cross_entropy, tagged_tokens),
    "spans": Objective(span_cross_entropy, rows),
}
"""A kind that is absent has no training."""
