"""In: a task, and the model that a checkpoint was loaded into. Out: the `Head`, one module each.

May import tasks and what lies below it; torch is imported inside functions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.heads import labels, sentence, spans
from pipeline.heads.head import Head
from pipeline.kinds import OutputKind
from pipeline.tasks import Task

__all__ = ["Head", "of"]

_MAKE: Mapping[OutputKind, Callable[[Any], Head]] = {
    "embedding": sentence.of_text,
    "logits": labels.of_text,
    "value": labels.of_text,
    "multi_label": labels.of_text,
    "values": labels.of_text,
    "token_logits": labels.of_tokens,
    "spans": spans.of_tokens,
}


def of(task: Task, model: Any) -> Head:
    """Return what comes after the encoder of a model that was loaded into a task's class."""
    return _MAKE[task.output_kind](model)
