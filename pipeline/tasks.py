"""Tasks: one row each. To add one, add a row.

A row says which Hugging Face class carries the head, what the exported graph returns, and how the result is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecipeError
from pipeline.quantize import OutputKind

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Task:
    """What differs between tasks."""

    name: str
    auto_class: str
    """Name of the transformers class that loads checkpoint and head."""
    output_names: tuple[str, ...]
    output_kind: OutputKind
    metric: str
    """Name of a function in `pipeline.metrics`; a fraction in [0, 1] or a correlation in [-1, 1]."""
    uses_head: bool
    """False for the bare encoder, whose pooler is left out."""
    finish: Callable[[Any, "torch.Tensor"], "torch.Tensor"]
    """`(model output, float mask (batch, seq_len)) -> output`, inside the exported graph."""
    truth: Callable[[Any], NDArray[np.float32]]
    """`model output of unpadded rows -> (batch, width)`; written apart from `finish`, which it judges."""
    datasets: tuple[str, ...]
    """Labelled data in `pipeline.data` that fit the task, best first."""


def mean_pool_and_normalise(output: Any, mask: "torch.Tensor") -> "torch.Tensor":
    """Return the unit-length mean of the token vectors, `(batch, hidden)`; exactly zero for a row of padding.

    Args:
        output: the encoder's output with `last_hidden_state` `(batch, seq_len, hidden)`.
        mask: 1 for tokens and 0 for padding, float, `(batch, seq_len)`.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), mean pooling; the checkpoint's own `modules.json`.
    """
    import torch

    total = (output.last_hidden_state * mask[:, :, None]).sum(1)
    mean = total / mask.sum(1, keepdim=True).clamp(min=1.0)
    unit: torch.Tensor = mean * torch.rsqrt((mean * mean).sum(1, keepdim=True).clamp(min=1e-12))
    return unit


def logits(output: Any, mask: "torch.Tensor") -> "torch.Tensor":
    """Return the classifier's logits, `(batch, labels)`, before any softmax."""
    result: torch.Tensor = output.logits
    return result


def true_embedding(output: Any) -> NDArray[np.float32]:
    """Return the unit-length mean over the tokens of unpadded rows, in float64, as sentence-transformers has it."""
    hidden = output.last_hidden_state.numpy().astype(np.float64)
    mean = hidden.mean(axis=1)
    unit: NDArray[np.float32] = (mean / np.linalg.norm(mean, axis=-1, keepdims=True)).astype(np.float32)
    return unit


def true_logits(output: Any) -> NDArray[np.float32]:
    """Return the logits of unpadded rows."""
    result: NDArray[np.float32] = output.logits.numpy()
    return result


TASKS: dict[str, Task] = {
    row.name: row
    for row in (
        Task(
            "embedding",
            auto_class="AutoModel",
            output_names=("sentence_embedding",),
            output_kind="embedding",
            metric="spearman",
            uses_head=False,
            finish=mean_pool_and_normalise,
            truth=true_embedding,
            datasets=("graded_pairs", "stsb"),
        ),
        Task(
            "classification",
            auto_class="AutoModelForSequenceClassification",
            output_names=("logits",),
            output_kind="logits",
            metric="accuracy",
            uses_head=True,
            finish=logits,
            truth=true_logits,
            datasets=("sentiment", "sst2"),
        ),
    )
}


def get(name: str) -> Task:
    """Return the row of a task.

    Raises:
        RecipeError: there is no such row.
    """
    if name not in TASKS:
        raise RecipeError(f"task {name!r} does not exist; there are: {', '.join(sorted(TASKS))}.")
    return TASKS[name]
