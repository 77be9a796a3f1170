"""Fine-tune stage: a recipe's `[train]` turns the student that it names into one that is trained for the task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.artifact import digest_of
from pipeline.checkpoint import source as student
from pipeline.checkpoint.source import Source
from pipeline.data import datasets as data
from pipeline.data import files
from pipeline.data.datasets import Columns, Dataset
from pipeline.data.location import locate
from pipeline.errors import RecipeError
from pipeline.graph.worker import tell
from pipeline.recipe.schema import Recipe, TrainSection
from pipeline.train import checks
from pipeline.train.job import Job

VERSION = 2
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "accelerate")
"""What decides the weights."""
_NOT_IN_KEY = {"train_file", "dev_file", "checkpoint_minutes"}
"""Paths, whose content is in the key instead, and what does not change the result."""


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


def job(recipe: Recipe, recipe_file: Path, source: Source, checkpoints: Path) -> Job:
    """Return what training needs, after everything that can be known of it was checked.

    Args:
        recipe: with a `[train]`.
        recipe_file: relative files are meant from there.
        source: the checkpoint to begin with.
        checkpoints: folder for what a run that was stopped goes on from.

    Raises:
        RecipeError: there is no `[train]`, or it does not fit the checkpoint.
        InputError: the data are absent, malformed, or do not fit the checkpoint.
    """
    settings, task = section(recipe), tasks.get(recipe.task)
    dataset = _dataset(recipe, recipe_file)
    checks.check(settings, task, dataset, source)
    keeps_head = checks.has_head(task, source) and not settings.new_head
    labels = tuple(checks.checkpoint_labels(source) if keeps_head else dataset.names) if task.has_labels else ()
    params = order_params(recipe, dataset)
    key = digest_of([VERSION, params, source.digest])
    return Job(key, source.folder, recipe.task, dataset, settings, keeps_head, labels, checkpoints)


def _dataset(recipe: Recipe, recipe_file: Path) -> Dataset:
    settings = section(recipe)
    if settings.dataset is not None:
        return data.DATASETS[settings.dataset]
    assert settings.train_file is not None
    assert settings.dev_file is not None
    train, dev = (locate(name, recipe_file) for name in (settings.train_file, settings.dev_file))
    columns = Columns(settings.text, settings.pair, settings.label)
    return files.dataset(tasks.get(recipe.task), train, dev, columns)


def order_params(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """Return what decides the trained checkpoint, besides the one to begin with."""
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


def expected(wanted: Job, source: Source) -> Source:
    """Return a checkpoint as training will leave it, as far as it can be known: for checks of what comes after."""
    task = wanted.task
    names = wanted.labels or tuple(f"LABEL_{number}" for number in range(task.most_labels or 0))
    config = {
        **source.config,
        "architectures": [f"{source.architecture.model_type}{task.head_suffix}"],
        "id2label": {str(number): name for number, name in enumerate(names)},
    }
    return replace(source, config=config, origin=student.fine_tuned(source.origin, wanted.dataset.name))


def make(wanted: Job, out: Path) -> dict[str, Any]:
    """Train, and write a folder in Hugging Face layout. Runs in a worker, since it imports torch.

    Returns:
        The dev metric, the tensors that were new, and what it took.
    """
    from pipeline.train import loop

    model, record = loop.train(wanted, tell)
    return write(model, record, wanted.source, out)


def write(model: Any, record: Any, source: Path, out: Path) -> dict[str, Any]:
    """Write a trained model with the tokenizer of the checkpoint that it began with, and `training.json`."""
    from pipeline.compress.prune import gradual
    from pipeline.train.model import write
    from pipeline.train.record import FILE

    write(model, source, out, record=record, name=FILE)
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
    } | gradual.reached(model)
