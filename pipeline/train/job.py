"""One training run as data: the job, and the record of the finished run, `training.json`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline import tasks
from pipeline.data.datasets import Dataset
from pipeline.recipe.schema import TrainSection
from pipeline.tasks import Task

RECORD_FILE = "training.json"


@dataclass(frozen=True)
class TrainingJob:
    """The inputs of a training run, as a value that can be sent to another process."""

    key: str
    """Sha256 over everything that decides the result; a checkpoint of another key is not used."""
    source: Path
    """The checkpoint to begin with, a folder in Hugging Face layout."""
    task_name: str
    dataset: Dataset
    settings: TrainSection
    keeps_head: bool
    """Whether training continues the checkpoint's own head for the task."""
    labels: tuple[str, ...]
    """Labels in the order of the head's outputs; empty for tasks without labels."""
    checkpoints: Path
    """Folder for the checkpoints from which an interrupted run continues."""

    @property
    def task(self) -> Task:
        """The task's row."""
        return tasks.get(self.task_name)


class FrozenRecord(BaseModel):
    """Base of the records that training and distillation write."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LossPoint(FrozenRecord):
    """One point of the loss curve."""

    step: int
    """Updates done."""
    loss: float
    """Mean over the updates since the previous point."""
    learning_rate: float
    """Learning rate of the next update; 0 at the end."""
    gradient_norm: float | None = None
    """Mean over the same updates, before clipping; None if one overflowed, and in records older than this field."""


class DevScore(FrozenRecord):
    """The dev metric at one point of the run."""

    step: int
    epoch: float
    value: float


class TrainingRecord(FrozenRecord):
    """A finished training run."""

    task: str
    dataset: str
    metric: str
    """A row of `pipeline.metrics.scoring.METRICS`."""
    settings: dict[str, Any]
    """The recipe's `[train]`, defaults included, without paths."""
    labels: list[str]
    new_tensors: list[str]
    """Tensors of the head that the checkpoint lacked, drawn from the seed."""
    train_rows: int
    encoded_rows: int
    """More than `train_rows` if passages are cut into windows."""
    dev_rows: int
    steps: int
    epochs: float
    seconds: float
    """Time of updates and dev metrics, summed over the parts of an interrupted run."""
    resumed_at: list[int]
    """Updates after which the run continued; empty if it was never interrupted."""
    device: str
    processes: int
    curve: list[LossPoint]
    dev: list[DevScore]
    """After each epoch and at the end. The last one is of the model that is kept, even if another scored higher."""


def read_record(folder: Path) -> TrainingRecord:
    """Read the record of a trained artifact."""
    return TrainingRecord.model_validate_json((folder / RECORD_FILE).read_bytes())
