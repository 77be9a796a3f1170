"""`training.json`: what was trained, on what, and how it went."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

FILE = "training.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Point(_Record):
    """One point of the loss curve."""

    step: int
    """Updates done."""
    loss: float
    """Mean over the updates since the point before."""
    learning_rate: float
    """Of the update after the last of them; 0 at the end."""
    gradient_norm: float | None = None
    """Before the gradient is cut, mean over those updates; None where one overflowed, or not recorded yet."""


class Score(_Record):
    """The dev metric at one moment."""

    step: int
    epoch: float
    value: float


class Training(_Record):
    """A finished training run."""

    task: str
    dataset: str
    metric: str
    """A row of `pipeline.metrics.scoring.METRICS`."""
    settings: dict[str, Any]
    """The recipe's `[train]`, defaults included, without paths."""
    labels: list[str]
    new_tensors: list[str]
    """Of the head: drawn from the seed, since the checkpoint had none."""
    train_rows: int
    encoded_rows: int
    """Beyond `train_rows` where a passage is cut into windows."""
    dev_rows: int
    steps: int
    epochs: float
    seconds: float
    """Of updates and dev metrics, summed over the parts of a run that was stopped."""
    resumed_at: list[int]
    """Updates after which a part began; empty for a run in one go."""
    device: str
    processes: int
    curve: list[Point]
    dev: list[Score]
    """After each epoch and at the end. The last is of the model that is kept, whether or not another was better."""


def read(folder: Path) -> Training:
    """Read a trained artifact's record."""
    return Training.model_validate_json((folder / FILE).read_bytes())
