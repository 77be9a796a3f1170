"""Tasks: one row each. To add one, add a row.

A row says which Hugging Face class carries the head, what the exported graph returns, and how the result is judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import RecipeError
from pipeline.schemes import OutputKind

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """One task: its head, its outputs, and the data that judge it."""

    name: str
    auto_class: str
    """Name of the transformers class that loads checkpoint and head."""
    head_suffix: str
    """Suffix of the model classes with that head, as `architectures` in config.json names them."""
    output_names: tuple[str, ...]
    output_kind: OutputKind
    uses_head: bool
    """False for the bare encoder, whose pooler is left out."""
    finish: Callable[[Any, "torch.Tensor"], tuple["torch.Tensor", ...]]
    """`(model output, float mask (batch, seq_len)) -> outputs in the order of their names`, in the exported graph."""
    truth: Callable[[Any], Floats]
    """`model output of unpadded rows -> (batch, items, width)`; independent of `finish`, which it judges."""
    datasets: tuple[str, ...]
    """Names of the labelled datasets in `pipeline.data.datasets` that fit the task, best first."""
    least_labels: int | None = None
    """Fewest outputs of the head; None for a bare encoder."""
    most_labels: int | None = None
    """Most outputs of the head; None if there is no limit."""

    @property
    def has_labels(self) -> bool:
        """Whether the head's outputs have names, from the checkpoint's `id2label`."""
        return self.output_kind in ("logits", "token_logits")

    @property
    def widths(self) -> str:
        """How many outputs the head may have, in words."""
        return f"{self.least_labels}" if self.least_labels == self.most_labels else f"{self.least_labels} or more"

    def fits(self, count: int) -> bool:
        """Return whether a head may have `count` outputs."""
        least, most = self.least_labels or 0, self.most_labels
        return least <= count and (most is None or count <= most)


def mean_pool_and_normalise(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor"]:
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
    return (unit,)


def logits(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor"]:
    """Return the head's logits, `(batch, labels)` or `(batch, seq_len, labels)`."""
    return (output.logits,)


def span_logits(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return each token's logit as the answer's start and as its end, each `(batch, seq_len)`."""
    return output.start_logits, output.end_logits


def true_embedding(output: Any) -> Floats:
    """Return the unit-length mean over the tokens of unpadded rows, in float64, as sentence-transformers does."""
    hidden = output.last_hidden_state.numpy().astype(np.float64)
    mean = hidden.mean(axis=1, keepdims=True)
    unit: Floats = (mean / np.linalg.norm(mean, axis=-1, keepdims=True)).astype(np.float32)
    return unit


def true_logits(output: Any) -> Floats:
    """Return the logits of unpadded rows, one item each."""
    result: Floats = output.logits.numpy()[:, None, :]
    return result


def true_token_logits(output: Any) -> Floats:
    """Return the logits of the tokens of unpadded rows."""
    result: Floats = output.logits.numpy()
    return result


def true_span_logits(output: Any) -> Floats:
    """Return start and end logits of the tokens of unpadded rows, side by side."""
    return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)


TASKS: dict[str, Task] = {
    row.name: row
    for row in (
        Task(
            "embedding",
            auto_class="AutoModel",
            head_suffix="Model",
            output_names=("sentence_embedding",),
            output_kind="embedding",
            uses_head=False,
            finish=mean_pool_and_normalise,
            truth=true_embedding,
            datasets=("graded_pairs", "stsb"),
        ),
        Task(
            "classification",
            auto_class="AutoModelForSequenceClassification",
            head_suffix="ForSequenceClassification",
            output_names=("logits",),
            output_kind="logits",
            uses_head=True,
            finish=logits,
            truth=true_logits,
            datasets=("sentiment", "sst2", "cola", "rte"),
            least_labels=2,
        ),
        Task(
            "regression",
            auto_class="AutoModelForSequenceClassification",
            head_suffix="ForSequenceClassification",
            output_names=("logits",),
            output_kind="value",
            uses_head=True,
            finish=logits,
            truth=true_logits,
            datasets=("graded_pairs", "stsb"),
            least_labels=1,
            most_labels=1,
        ),
        Task(
            "token_classification",
            auto_class="AutoModelForTokenClassification",
            head_suffix="ForTokenClassification",
            output_names=("logits",),
            output_kind="token_logits",
            uses_head=True,
            finish=logits,
            truth=true_token_logits,
            datasets=("wnut17",),
            least_labels=2,
        ),
        Task(
            "question_answering",
            auto_class="AutoModelForQuestionAnswering",
            head_suffix="ForQuestionAnswering",
            output_names=("start_logits", "end_logits"),
            output_kind="spans",
            uses_head=True,
            finish=span_logits,
            truth=true_span_logits,
            datasets=("questions", "xquad"),
            least_labels=2,
            most_labels=2,
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
