"""Objectives of the training loop: the protocol, the loss of each task, and the objective for labelled rows.

A loss is a sum over items: rows, tokens or answers. The loop divides it by the number of items in the whole update, so
that neither the number of processes nor gradient accumulation changes what the model learns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch.nn import functional

from pipeline import architectures
from pipeline.kinds import OutputKind
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder
from pipeline.train import examples, model
from pipeline.train.checks import training_rows
from pipeline.train.evaluation import DevSet
from pipeline.train.examples import IGNORED, Batch
from pipeline.train.job import TrainingJob

_LABELS = "labels"
"""Name of the only loss in fine-tuning."""


class Objective(Protocol):
    """The rows, the model and the losses of one run."""

    @property
    def model(self) -> Any:
        """The trained module, unwrapped; its weights are saved in checkpoints."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""

    @property
    def near(self) -> examples.Neighbourhoods | None:
        """Rows that should share an update; None for any."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each loss, in the order of the loss curve."""

    @property
    def uses_all_parameters(self) -> bool:
        """Whether each update gives each trained parameter a gradient."""

    def count_items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return for each loss the number of items in all rows of an update."""

    def losses(self, wrapped: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, Any]:
        """Return for each loss its sum over some rows of an update, computed by the model as this run wraps it."""

    def dev_metric(self, device: torch.device) -> float | None:
        """Return the dev metric, or None without a dev split."""


# --- the loss of each task -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskLoss:
    """The loss of one kind of output."""

    loss: Callable[[Any, Batch], torch.Tensor]
    """`(model output, batch) -> sum of the items' losses`, in float32."""
    count_items: Callable[[Sequence[NDArray[Any]]], int]
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


def binary_cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ mean(−y log p − (1 − y) log(1 − p)) over rows, the mean over labels, p = sigmoid(z), `(batch, labels)`.

    Source: transformers' `problem_type = "multi_label_classification"`, torch's `BCEWithLogitsLoss`.
    """
    logits = output.logits.float()
    losses = functional.binary_cross_entropy_with_logits(logits, batch.target, reduction="none")
    return losses.mean(-1).sum()


def mean_squared_error(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ mean((z − y)²) over rows, the mean over the numbers, z and y `(batch, numbers)`.

    Source: transformers' `problem_type = "regression"` of several labels, torch's `MSELoss`.
    """
    return functional.mse_loss(output.logits.float(), batch.target, reduction="none").mean(-1).sum()


def token_cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ −log softmax(z)_y over the first token of each word, logits z `(batch, seq_len, labels)`.

    Source: Devlin et al. 2019, section 5.3: the representation of the first sub-token is the input of the classifier.
    """
    logits = output.logits.float().flatten(0, 1)
    return functional.cross_entropy(logits, batch.target.flatten(), ignore_index=IGNORED, reduction="sum")


def span_cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Return Σ ½ (−log softmax(s)_start − log softmax(e)_end) over windows, s and e `(batch, seq_len)`.

    The softmax leaves padding out; otherwise the loss of a row would depend on the other rows of its batch.

    Source: Devlin et al. 2019, section 4.2; the half as in google-research/bert, run_squad.py.
    """
    padding = batch.inputs["attention_mask"] == 0
    start = output.start_logits.float().masked_fill(padding, float("-inf"))
    end = output.end_logits.float().masked_fill(padding, float("-inf"))
    first = functional.cross_entropy(start, batch.target[:, 0], reduction="sum")
    return (first + functional.cross_entropy(end, batch.target[:, 1], reduction="sum")) / 2


def count_rows(targets: Sequence[NDArray[Any]]) -> int:
    """Return the number of rows."""
    return len(targets)


def count_tagged_tokens(targets: Sequence[NDArray[Any]]) -> int:
    """Return the number of tokens that have a target."""
    return sum(int((target != IGNORED).sum()) for target in targets)


TASK_LOSSES: dict[OutputKind, TaskLoss] = {
    "logits": TaskLoss(cross_entropy, count_rows),
    "value": TaskLoss(squared_error, count_rows),
    "multi_label": TaskLoss(binary_cross_entropy, count_rows),
    "values": TaskLoss(mean_squared_error, count_rows),
    "token_logits": TaskLoss(token_cross_entropy, count_tagged_tokens),
    "spans": TaskLoss(span_cross_entropy, count_rows),
}
"""A task with any other kind of output cannot be trained on labels."""


# --- fine-tuning -----------------------------------------------------------------------------------------------------


class LabelledObjective:
    """Fine-tuning: the loss of the task on labelled rows."""

    weights: Mapping[str, float] = {_LABELS: 1.0}
    near = None
    uses_all_parameters = True

    def __init__(self, job: TrainingJob, accelerator: Accelerator) -> None:
        """Load the student and encode the rows; every process has to call this."""
        self.job = job
        self._task_loss = TASK_LOSSES[job.task.output_kind]
        self.model, self.new_tensors = model.load_for_task(job)
        self._input_names = architectures.get(self.model.config.model_type).inputs
        self._pad_token_id = int(self.model.config.pad_token_id or 0)
        tokenizer = tokenizers.load_tokenizer(job.source)
        tokenizers.check_size(tokenizer, job.source, vocab_size=self.model.config.vocab_size)
        self._encoder = Encoder(tokenizer, job.settings.max_length)
        self.train_rows = 0
        self._examples = self._encode_rows(accelerator)
        self.dev = DevSet(
            job.task,
            job.dataset,
            job.labels,
            self._encoder,
            input_names=self._input_names,
            pad_token_id=self._pad_token_id,
        )

    def _encode_rows(self, accelerator: Accelerator) -> Any:
        """Return the encoded rows; the first process writes them for all."""
        path = self.job.checkpoints / "rows.arrow"
        rows = training_rows(self.job.dataset, self.job.settings)
        self.train_rows = len(rows)
        if accelerator.is_main_process:
            ids = self.job.dataset.label_ids(self.job.labels) if self.job.task.has_labels else []
            assert not isinstance(ids, str)
            encoded = examples.encode(self._encoder, self.job.task, rows, ids, width=len(self.job.labels))
            examples.write(encoded, path, self.job.task.output_kind)
        accelerator.wait_for_everyone()
        return examples.read(path)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return examples.lengths(self._examples)

    def count_items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return the number of rows, tokens or answers that have a target."""
        return {_LABELS: self._task_loss.count_items(examples.targets(self._examples, rows))}

    def losses(
        self, wrapped: Any, rows: NDArray[np.int64], step: int, device: torch.device
    ) -> Mapping[str, torch.Tensor]:
        """Return the loss of the task."""
        per_token = self.job.task.output_kind == "token_logits"
        chosen = examples.take(self._examples, rows)
        batch = examples.collate(chosen, self._input_names, pad_token_id=self._pad_token_id, per_token=per_token)
        batch = batch.to(device)
        return {_LABELS: self._task_loss.loss(wrapped(**batch.inputs), batch)}

    def dev_metric(self, device: torch.device) -> float | None:
        """Return the metric of the task on the dev split."""
        return self.dev.metric(self.model, device)
