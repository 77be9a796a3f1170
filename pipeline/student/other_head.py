"""Other heads of a student: each a checkpoint of its own, whose encoder has to be the student's, tensor by tensor.

A file holds equal tensors once, so what is proven here is why several heads cost one encoder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import artifact, tasks
from pipeline.errors import StudentError
from pipeline.student import stage
from pipeline.tasks import Task

VERSION = 1
_TOKENIZER = "tokenizer.json"


def make(student: Path, name: str, source: Path, task_name: str, says_what_it_is: bool, out: Path) -> dict[str, Any]:
    """Lay the checkpoint of another head out like a student. Runs in a worker, since it imports torch.

    Args:
        student: the student artifact's folder.
        name: the head's name in the recipe.
        source: a folder that `inspect_folder` accepted.
        task_name: the head's task.
        says_what_it_is: see `stage.make`.
        out: the artifact's directory.

    Returns:
        The metrics of a student, and the number of parameters that it has beside the student's encoder.

    Raises:
        StudentError: see `stage.make`; or a tensor of the encoder, or the tokenizer, is not the student's.
    """
    metrics = stage.make(source, task_name, says_what_it_is, out)
    if (out / _TOKENIZER).read_bytes() != (student / _TOKENIZER).read_bytes():
        raise StudentError(
            f"head {name}: {_TOKENIZER} in {source} is not the student's, and a file has one tokenizer for all its "
            "heads. If they give the same ids, copy the student's there; else convert this head in a recipe of its own."
        )
    main = tasks.get(artifact.read_manifest(student).params["task"])
    mine, theirs = encoder_tensors(student, main), encoder_tensors(out, tasks.get(task_name))
    problem = difference(mine, theirs)
    if problem is not None:
        raise StudentError(
            f"head {name}: {problem}: {source} has another encoder than the student, and a file holds one for all its "
            "heads. Fit the head on the student's encoder with that frozen, or convert it in a recipe of its own."
        )
    shared = sum(values.size for values in theirs.values())
    return metrics | {"own_parameters": metrics["parameters"] - shared}


def encoder_tensors(folder: Path, task: Task) -> dict[str, Any]:
    """Return the encoder's parameters of a checkpoint in the class of a task, by their names in the encoder."""
    from pipeline.checkpoint.loading import HEADS, load_checkpoint

    parameters = load_checkpoint(folder, task).base_model.named_parameters()
    return {name: one.detach().numpy() for name, one in parameters if name.split(".")[0] not in HEADS}


def difference(student: Mapping[str, Any], head: Mapping[str, Any]) -> str | None:
    """Return which tensor is the first that differs between two encoders, and by how much, or None."""
    for name in [*student, *(name for name in head if name not in student)]:
        if name not in head or name not in student:
            whose = "only the head's" if name in head else "only the student's"
            return f"{name} is in {whose} encoder"
        mine, theirs = student[name], head[name]
        if mine.shape != theirs.shape:
            return f"{name} has shape {list(theirs.shape)}, and the student's {list(mine.shape)}"
        if not np.array_equal(mine, theirs):
            off = np.abs(theirs.astype(np.float64) - mine)
            count = int(np.count_nonzero(off))
            return f"{name} differs by up to {off.max():.3g} in {count} of {off.size} elements"
    return None
