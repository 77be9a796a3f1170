"""The dev metric during training: verification's rows and metric, computed in padded batches on the training device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import heads
from pipeline.data.datasets import Dataset
from pipeline.heads import Head
from pipeline.kinds import KINDS
from pipeline.metrics import scoring
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.scoring import Labels
from pipeline.student.reference import EncodedTexts
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder, Row

_BATCH = 64


class DevSet:
    """The dev split of a dataset, encoded once."""

    def __init__(
        self,
        task: Task,
        dataset: Dataset,
        labels: Sequence[str],
        encoder: Encoder,
        *,
        input_names: tuple[str, ...],
        pad_token_id: int,
    ) -> None:
        """Read and encode the split.

        Args:
            task: decides what is computed.
            dataset: whose dev split is read.
            labels: labels in the order of the head's outputs.
            encoder: of the student.
            input_names: inputs of the architecture.
            pad_token_id: id of padding.
        """
        book = EncodedTexts(encoder, task, labels)
        self.labels: Labels = book.add_dataset(dataset)
        self._rows = book.rows
        self._task = task
        self._input_names = input_names
        self._pad_token_id = pad_token_id

    def metric(self, model: Any, device: torch.device) -> float:
        """Return the metric of a model, computed in evaluation mode; its training mode is restored."""
        training = model.training
        model.eval()
        outputs = self._outputs(model, device)
        model.train(training)
        return scoring.score(self._task.output_kind, self.labels, outputs)

    def _outputs(self, model: Any, device: torch.device) -> RowOutputs:
        order = sorted(range(len(self._rows)), key=lambda number: len(self._rows[number]))
        outputs: dict[int, NDArray[np.float32]] = {}
        head = heads.of(self._task, model)
        with torch.no_grad():
            for start in range(0, len(order), _BATCH):
                numbers = order[start : start + _BATCH]
                rows = [self._rows[number] for number in numbers]
                inputs = self._inputs(rows, device)
                values = _values(head, model(**inputs), inputs["attention_mask"])
                per_token = KINDS[self._task.output_kind].per_token
                parts = [values[at, : len(row)] if per_token else values[at] for at, row in enumerate(rows)]
                outputs.update(zip(numbers, parts, strict=True))
        return RowOutputs.of([outputs[number] for number in range(len(self._rows))])

    def _inputs(self, rows: Sequence[Row], device: torch.device) -> dict[str, torch.Tensor]:
        longest = max(map(len, rows))
        padded = [row.padded(self._input_names, longest, pad_token_id=self._pad_token_id) for row in rows]
        joined = {name: np.concatenate([one[name] for one in padded]) for name in self._input_names}
        return {name: torch.from_numpy(value).long().to(device) for name, value in joined.items()}


def _values(head: Head, output: Any, mask: torch.Tensor) -> NDArray[np.float32]:
    """Return `(batch, labels)`, `(batch, seq_len, labels)` or `(batch, seq_len, 2)`."""
    results = head.outputs(output, mask.float())
    whole = results[0] if len(results) == 1 else torch.stack(results, -1)
    values: NDArray[np.float32] = whole.float().cpu().numpy()
    return values
