"""The reference outputs of a checkpoint: fp32 PyTorch on unpadded rows; and the names of its labels."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import architectures, heads
from pipeline.errors import StudentError
from pipeline.metrics.outputs import RowOutputs
from pipeline.tasks import Task
from pipeline.text.encoding import Row

_BATCH = 16


def reference_outputs(model: Any, task: Task, rows: Sequence[Row]) -> RowOutputs:
    """Run a checkpoint over rows; those of one length share a batch, so that none is padded."""
    import torch

    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        alike[len(row), row.unpooled].append(number)
    outputs: dict[int, NDArray[np.float32]] = {}
    head = heads.of(task, model)
    with torch.no_grad():
        for (_, unpooled), numbers in alike.items():
            for start in range(0, len(numbers), _BATCH):
                batch = numbers[start : start + _BATCH]
                result = model(**_tensors([rows[number] for number in batch], model))
                outputs.update(zip(batch, head.reference(result, unpooled), strict=True))
    return RowOutputs.of([outputs[number] for number in range(len(rows))])


def _tensors(rows: Sequence[Row], model: Any) -> Mapping[str, Any]:
    """Return int64 tensors `(batch, seq_len)` for rows of one length."""
    import torch

    ids = torch.tensor([row.ids for row in rows], dtype=torch.int64)
    tensors = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.tensor([row.types for row in rows], dtype=torch.int64),
    }
    return {name: tensors[name] for name in architectures.get(model.config.model_type).inputs}


def label_names(config: Any) -> list[str]:
    """Return the names of the logits in order, from the config's `id2label`.

    Raises:
        StudentError: a name is missing, empty, more than one line, or given twice.
    """
    names = [str(config.id2label.get(index, "")) for index in range(config.num_labels)]
    check_names(names)
    return names


def check_names(names: Sequence[str]) -> None:
    """Refuse labels of which one is missing, empty, more than one line, or given twice.

    Raises:
        StudentError: there is one.
    """
    if len(set(names)) < len(names) or not all(name.strip() and name.isprintable() for name in names):
        raise StudentError(
            f"config.json: id2label gives {list(names)}; each class needs a name of its own, on one line."
        )
