"""Fine-tuning's goal: labelled rows of a task."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray

from pipeline.checkpoint import architectures
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder
from pipeline.train import batches, examples, model
from pipeline.train.batches import Batch
from pipeline.train.checks import training_rows
from pipeline.train.evaluation import Dev
from pipeline.train.job import Job
from pipeline.train.objectives import OBJECTIVES

_TERM = "labels"


class LabelledGoal:
    """The loss of a task's kind of output on labelled rows."""

    weights: Mapping[str, float] = {_TERM: 1.0}
    uses_all = True

    def __init__(self, job: Job, accelerator: Accelerator) -> None:
        """Load the student and encode the rows; every process has to call this."""
        self.job = job
        self.objective = OBJECTIVES[job.task.output_kind]
        self.model, self.new_tensors = model.load(job)
        self.names = architectures.get(self.model.config.model_type).inputs
        self.pad_token_id = int(self.model.config.pad_token_id or 0)
        tokenizer = tokenizers.load_tokenizer(job.source)
        tokenizers.check_size(tokenizer, job.source, vocab_size=self.model.config.vocab_size)
        self.encoder = Encoder(tokenizer, job.settings.max_length)
        self.train_rows = 0
        self.data = self._encoded(accelerator)
        self.dev = Dev(
            job.task, job.dataset, job.labels, self.encoder, names=self.names, pad_token_id=self.pad_token_id
        )

    def _encoded(self, accelerator: Accelerator) -> Any:
        """Return the encoded rows; the first process writes them for all."""
        path = self.job.checkpoints / "rows.arrow"
        rows = training_rows(self.job.dataset, self.job.settings)
        self.train_rows = len(rows)
        if accelerator.is_main_process:
            names = self.job.labels
            ids = self.job.dataset.label_ids(names) if self.job.task.has_labels else []
            assert not isinstance(ids, str)
            examples.write(examples.encode(self.encoder, self.job.task, rows, ids), path, self.job.task.output_kind)
        accelerator.wait_for_everyone()
        return examples.read(path)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return examples.lengths(self.data)

    def items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return the rows, tokens or answers that have a target."""
        return {_TERM: self.objective.items(examples.targets(self.data, rows))}

    def terms(self, model: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, torch.Tensor]:
        """Return the task's loss."""
        batch = self._batch(rows).to(device)
        return {_TERM: self.objective.loss(model(**batch.inputs), batch)}

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        per_token = self.job.task.output_kind == "token_logits"
        chosen = examples.take(self.data, rows)
        return batches.collate(chosen, self.names, pad_token_id=self.pad_token_id, per_token=per_token)

    def score(self, device: torch.device) -> float | None:
        """Return the task's metric on the dev split."""
        return self.dev.score(self.model, device)
