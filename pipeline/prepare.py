"""From the checkpoint that a recipe names to the student that is converted: train it, then lay it out."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import finetune, reference, student
from pipeline.artifact import Artifact, Order
from pipeline.isolated import Worker
from pipeline.recipe import Recipe
from pipeline.steps import Steps, versions
from pipeline.student import Source
from pipeline.training.job import Job


@dataclass
class Prepared:
    """One recipe's way to its student."""

    recipe: Recipe
    source: Source
    """The checkpoint that the recipe names."""
    steps: Steps
    training: Job | None
    """Of a recipe with `[train]`; its data were read."""

    @property
    def datasets(self) -> reference.Wanted:
        """The data for the task metric: after training, those of its dev split unless the recipe names some."""
        if self.recipe.verify.datasets is None and self.training:
            return (self.training.dataset,)
        return self.recipe.verify.datasets

    def go(self, until: str) -> Artifact | None:
        """Make the student, or what comes before it if `until` says so; None where a dry run lacks an input."""
        trained = self._train(self.training) if self.training else None
        return None if until == "train" else self._student(trained)

    def _train(self, job: Job) -> Artifact | None:
        place = self.steps.folder / "trained"
        params = finetune.order_params(self.recipe, job.dataset)
        tools = versions(*finetune.DISTRIBUTIONS)
        order = Order(place, "train", finetune.VERSION, params, {"source": self.source.digest}, tools)

        def make(out: Path) -> Mapping[str, Any]:
            with Worker(self.steps.log("train"), self.steps.telling("train")) as worker:
                return worker.call(finetune.make, job, out)

        result = self.steps.take("train", place, order, make, seconds=600, disk=self.source.weights_bytes)
        if result and not self.steps.dry:
            # Only now: a run that was stopped before its artifact was whole goes on from them.
            shutil.rmtree(job.checkpoints, ignore_errors=True)
        return result

    def _student(self, trained: Artifact | None) -> Artifact | None:
        place = self.steps.folder / "student"
        source = self.source
        if self.training and trained:
            source = student.trained(source, trained.path, self.training.dataset.name)
        order = Order(
            place,
            "student",
            student.VERSION,
            student.order_params(self.recipe, source),
            {"source": source.digest},
            versions("transformers", "tokenizers", "torch"),
        )
        ready = None if self.training and not trained else order

        def make(out: Path) -> Mapping[str, Any]:
            with Worker(self.steps.log("student")) as worker:
                return worker.call(student.make, source.folder, self.recipe.task, out)

        return self.steps.take("student", place, ready, make, seconds=10, disk=source.weights_bytes)


def begin(recipe: Recipe, recipe_file: Path, steps: Steps, until: str) -> Prepared:
    """Find the checkpoint and read the data to train on, so that what is wrong with them is said before any work.

    Raises:
        PipelineError: there is no such checkpoint or data, or they do not fit each other.
    """
    if until == "train":
        finetune.section(recipe)
    source = student.find(recipe, recipe_file)
    training = finetune.job(recipe, recipe_file, source, steps.folder / "checkpoints") if recipe.train else None
    return Prepared(recipe, source, steps, training)
