"""What training needs to know, as one value that can be handed to another process."""

from dataclasses import dataclass
from pathlib import Path

from pipeline import tasks
from pipeline.data.datasets import Dataset
from pipeline.recipe.schema import TrainSection
from pipeline.tasks import Task


@dataclass(frozen=True)
class Job:
    """One training run."""

    key: str
    """Sha256 over everything that decides the result; a checkpoint of another key is not used."""
    source: Path
    """The checkpoint to begin with, a folder in Hugging Face layout."""
    task_name: str
    dataset: Dataset
    settings: TrainSection
    keeps_head: bool
    """Whether the checkpoint has a head for the task, and it is trained on."""
    labels: tuple[str, ...]
    """Names of the head's numbers in order; empty for tasks without."""
    checkpoints: Path
    """Folder for what a run that was stopped goes on from."""

    @property
    def task(self) -> Task:
        """The task's row."""
        return tasks.get(self.task_name)
