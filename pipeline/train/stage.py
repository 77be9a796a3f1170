"""The fine-tune stage: a recipe's `[train]` turns the checkpoint that it names into one trained for the task."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.artifact import digest_of
from pipeline.checkpoint.source import Source
from pipeline.data import files
from pipeline.data.datasets import Dataset
from pipeline.errors import RecipeError
from pipeline.execution.worker import tell
from pipeline.recipe.schema import Recipe, TrainSection
from pipeline.train import checks
from pipeline.train.job import RECORD_FILE, DevScore, LossPoint, TrainingJob, TrainingRecord

VERSION = 2
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "accelerate")
"""Packages that decide the weights."""
_NOT_IN_KEY = {"train_file", "dev_file", "checkpoint_minutes"}
"""Paths, whose contents are in the key instead, and settings that do not change the result."""


def section(recipe: Recipe) -> TrainSection:
    """Return the recipe's `[train]`.

    Raises:
        RecipeError: it has none.
    """
    if recipe.train is None:
        raise RecipeError(
            f"recipe {recipe.name} has no [train] section, so there is nothing to train. Add one with a dataset, "
            "or with train_file and dev_file."
        )
    return recipe.train


def job(recipe: Recipe, recipe_file: Path, source: Source, checkpoints: Path) -> TrainingJob:
    """Return the job of a recipe's `[train]`, after all checks that need no training.

    Args:
        recipe: with a `[train]`.
        recipe_file: relative paths are relative to its folder.
        source: the checkpoint to begin with.
        checkpoints: folder for the checkpoints from which an interrupted run continues.

    Raises:
        RecipeError: there is no `[train]`, or it does not fit the checkpoint.
        InputError: the data are absent, malformed, or do not fit the checkpoint.
    """
    settings, task = section(recipe), tasks.get(recipe.task)
    checks.check_section(recipe)
    dataset = files.learned(settings, task, recipe_file)
    assert dataset is not None, "check_section refuses a section without data"
    checks.check(settings, task, dataset, source)
    keeps_head = checks.has_head(task, source) and not settings.new_head
    labels = tuple(source.labels if keeps_head else dataset.names) if task.has_labels else ()
    params = order_params(recipe, dataset)
    key = digest_of([VERSION, params, source.digest])
    return TrainingJob(key, source.folder, recipe.task, dataset, settings, keeps_head, labels, checkpoints)


def order_params(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """Return the parameters of the trained checkpoint's key, besides the source checkpoint: settings and dataset."""
    return {
        "task": recipe.task,
        "settings": section(recipe).model_dump(exclude=_NOT_IN_KEY),
        "dataset": {
            "name": dataset.name,
            "names": dataset.names,
            "metric": dataset.metric,
            "train": dataset.digest("train"),
            "dev": dataset.digest(),
        },
    }


def expected(job: TrainingJob, source: Source) -> Source:
    """Return the source checkpoint with the class and the labels that training gives it, and its old weights.

    A recipe that compresses tries more, see `trial`; one that only trains needs no torch for its plan.
    """
    task = job.task
    names = job.labels or tuple(f"LABEL_{number}" for number in range(task.most_labels or 0))
    config = {
        **source.config,
        "architectures": [f"{source.architecture.model_type}{task.head_suffix}"],
        "id2label": {str(number): name for number, name in enumerate(names)},
    }
    return replace(source, config=config)


def trial(job: TrainingJob, source: Source) -> Source:
    """Return a checkpoint as training leaves it, tried on torch's meta device: its head has the shapes of the data.

    Raises:
        StudentError: the checkpoint does not load into the task's class.
    """
    from pipeline.train.model import headed, load_model, outline

    model, _ = load_model(headed(job, source))
    return outline(model, source)


def make(job: TrainingJob, out: Path) -> dict[str, Any]:
    """Train, and write a folder in Hugging Face layout. Runs in a worker, since it imports torch.

    Returns:
        The dev metric, the new tensors, and the time it took.
    """
    model, record = fine_tune(job, tell)
    return write(model, record, job.source, out)


def fine_tune(job: TrainingJob, tell: Callable[[str, float], None]) -> tuple[Any, TrainingRecord]:
    """Fine-tune a student.

    Args:
        job: the run.
        tell: called with a message and the fraction that is done.

    Returns:
        The trained model on the CPU, and the record.

    Raises:
        InputError: this machine lacks the precision, or the loss is not finite.
        StudentError: the checkpoint does not load.
    """
    from pipeline.train import loop
    from pipeline.train.objectives import LabelledObjective
    from pipeline.train.sparsity import zeros_in_training

    plan = loop.RunPlan(job.key, job.checkpoints, job.settings, "train", job.settings.passes)
    with loop.open_accelerator(plan) as accelerator:
        objective = LabelledObjective(job, accelerator)
        zeros = zeros_in_training(objective.model, job.settings.sparse)
        finished = loop.run(objective, plan, accelerator, tell, zeros)
        record = TrainingRecord(
            task=job.task_name,
            dataset=job.dataset.name,
            metric=job.dataset.metric,
            settings=job.settings.model_dump(exclude=_NOT_IN_KEY),
            labels=list(job.labels),
            new_tensors=objective.new_tensors,
            train_rows=objective.train_rows,
            encoded_rows=len(objective.lengths),
            dev_rows=len(objective.dev.labels.gold),
            steps=finished.steps,
            epochs=finished.epochs,
            seconds=finished.history.seconds,
            resumed_at=finished.history.resumed_at,
            device=str(accelerator.device),
            processes=accelerator.num_processes,
            curve=[LossPoint.model_validate(point) for point in finished.history.curve],
            dev=[DevScore.model_validate(score) for score in finished.history.dev],
        )
        return objective.model.cpu().eval(), record


def write(model: Any, record: TrainingRecord, source: Path, out: Path) -> dict[str, Any]:
    """Write a trained model with the tokenizer of its source checkpoint, and `training.json`."""
    from pipeline.train.model import save_with_record
    from pipeline.train.sparsity import metrics_if_sparse

    save_with_record(model, source, out, record=record, file_name=RECORD_FILE)
    return {
        "dataset": record.dataset,
        "metric": record.metric,
        "dev": record.dev[-1].value,
        "new_tensors": record.new_tensors,
        "train_rows": record.train_rows,
        "steps": record.steps,
        "final_loss": record.curve[-1].loss,
        "train_seconds": record.seconds,
        "device": record.device,
    } | metrics_if_sparse(model)
