"""The tasks of models: what `model.signature.task` names, with the outputs that each has."""

from pipeline.tasks import TASKS, Task, get

__all__ = ["TASKS", "Task", "get"]
