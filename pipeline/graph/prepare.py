"""From the checkpoint that a recipe names to the student that is converted: train, compress, lay out."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import compress, tasks
from pipeline.artifact import Artifact, Order
from pipeline.checkpoint import source as student
from pipeline.checkpoint.source import Made, Source
from pipeline.compress import Context, Stage
from pipeline.compress.distil.material import saved_as
from pipeline.data.datasets import Dataset
from pipeline.errors import RecipeError
from pipeline.graph.steps import Steps, versions
from pipeline.graph.worker import Worker
from pipeline.recipe.schema import Recipe
from pipeline.student import reference
from pipeline.student import stage as student_stage
from pipeline.train import stage as finetune
from pipeline.train.checks import has_head
from pipeline.train.job import Job


@dataclass
class Prepared:
    """One recipe's way to its student."""

    recipe: Recipe
    source: Source
    """The checkpoint that the recipe names."""
    steps: Steps
    context: Context
    training: Job | None
    """Of a recipe with `[train]`; its data were read."""
    learnt: Dataset | None
    """What `[train]` learns on, or the labelled files of one's own that `[distil]` does."""
    expected: Source
    """The checkpoint that it ends in, as far as that can be known before it is made."""
    lacks: frozenset[str] = frozenset()
    """Places of other recipes' checkpoints that are not made yet, which is so in a dry run only."""

    @property
    def datasets(self) -> reference.Wanted:
        """The data for the task metric: what was learnt has a dev split for it, unless the recipe names some."""
        if self.recipe.verify.datasets is None and self.learnt:
            return (self.learnt,)
        return self.recipe.verify.datasets

    def go(self, until: str) -> Artifact | None:
        """Make the student, or what comes before it if `until` says so; None where a dry run lacks an input."""
        source = self.checkpoint(until)
        return None if until in ("train", "compress") else self._student(source)

    def checkpoint(self, until: str) -> Source | None:
        """Train and compress, as far as `until` says; None where a dry run lacks an input."""
        source = None if self.recipe.student.source in self.lacks else self.source
        if self.training:
            made = self._train(self.training, known=source is not None)
            source = student.trained(self.source, made.path, self.training.dataset.name) if made else None
        if until == "train":
            return source
        context = replace(self.context, unpruned=source) if source else self.context
        for stage in compress.stages(self.recipe):
            source = self._compressed(stage, context, source)
            if stage.teaches and source:
                context = replace(context, unpruned=source)
        return source

    def _train(self, job: Job, *, known: bool) -> Artifact | None:
        place = self.steps.folder / "trained"
        disk = self.source.weights_bytes
        if not known:
            return self.steps.take("train", place, None, _nothing, seconds=600, disk=disk)
        params = finetune.order_params(self.recipe, job.dataset)
        tools = versions(*finetune.DISTRIBUTIONS)
        order = Order(place, "train", finetune.VERSION, params, {"source": self.source.digest}, tools)

        def make(out: Path) -> Mapping[str, Any]:
            with self._worker("train") as worker:
                return worker.call(finetune.make, job, out)

        result = self.steps.take("train", place, order, make, seconds=600, disk=disk)
        if result and not self.steps.dry:
            # Only now: a run that was stopped before its artifact was whole goes on from them.
            shutil.rmtree(job.checkpoints, ignore_errors=True)
        return result

    def _compressed(self, stage: Stage, context: Context, source: Source | None) -> Source | None:
        """Take one stage; None where a dry run lacks its input or would make it."""
        place = self.steps.folder / stage.folder
        disk = self.source.weights_bytes
        if source is None or (stage.name == "distil" and self.lacks):
            self.steps.take(stage.name, place, None, _nothing, seconds=60, disk=disk)
            return None
        work = stage.ready(context, source)
        inputs = {"source": source.digest} | ({"teacher": work.teacher.digest} if work.teacher else {})
        order = Order(place, stage.name, work.version, work.params, inputs, versions(*work.distributions))

        def make(out: Path) -> Mapping[str, Any]:
            with self._worker(stage.name) as worker:
                return worker.call(work.make, *work.arguments, out)

        made = self.steps.take(stage.name, place, order, make, seconds=work.seconds, disk=disk)
        if made and work.checkpoints and not self.steps.dry:
            shutil.rmtree(work.checkpoints, ignore_errors=True)
        return compress.after(stage, source, made.path) if made else None

    def _student(self, source: Source | None) -> Artifact | None:
        place = self.steps.folder / "student"
        disk = self.source.weights_bytes
        if source is None:
            return self.steps.take("student", place, None, _nothing, seconds=10, disk=disk)
        params = student_stage.order_params(self.recipe, source)
        tools = versions("transformers", "tokenizers", "torch")
        order = Order(place, "student", student_stage.VERSION, params, {"source": source.digest}, tools)

        def make(out: Path) -> Mapping[str, Any]:
            with self._worker("student") as worker:
                return worker.call(student_stage.make, source.folder, self.recipe.task, out)

        return self.steps.take("student", place, order, make, seconds=10, disk=disk)

    def _worker(self, step: str) -> Worker:
        log, tell = self.steps.log(step), self.steps.telling(step)
        return Worker(log, tell, threads=self.steps.threads, keep_memory=True)


def _nothing(out: Path) -> Mapping[str, Any]:
    raise AssertionError("a step without its input is only foretold")


def begin(recipe: Recipe, recipe_file: Path, steps: Steps, until: str, made: Made = student.NOTHING) -> Prepared:
    """Find the checkpoint and read the data to train on, so that what is wrong with them is said before any work.

    Args:
        recipe: what is asked for.
        recipe_file: relative files are meant from there.
        steps: of the walk.
        until: the last stage.
        made: by other recipes.

    Raises:
        PipelineError: there is no such checkpoint or data, or they do not fit each other.
    """
    if until == "train":
        finetune.section(recipe)
    source = student.find(recipe, recipe_file, made)
    training = finetune.job(recipe, recipe_file, source, steps.folder / "checkpoints") if recipe.train else None
    expected = finetune.expected(training, source) if training else source
    context = Context(recipe, recipe_file, expected, steps.folder, made)
    wanted = compress.stages(recipe)
    if until == "compress" and not wanted:
        sections = ", ".join(f"[{stage.name}]" for stage in compress.STAGES if not stage.teaches)
        raise RecipeError(f"recipe {recipe.name} makes nothing smaller; sections that do: {sections}.")
    for stage in wanted:
        stage.check(context, expected)
        expected = stage.expected(context, expected)
        if stage.teaches:
            context = replace(context, unpruned=expected)
    task = tasks.get(recipe.task)
    if until not in ("train", "compress") and task.uses_head and not has_head(task, expected):
        _refuse_headless(recipe, training, expected, made)
    learnt = training.dataset if training else compress.own_data(context)
    return Prepared(recipe, source, steps, context, training, learnt, expected)


def _refuse_headless(recipe: Recipe, training: Job | None, expected: Source, made: Made) -> None:
    """Refuse a student without the task's head, where it would only be seen after other work."""
    wanted = compress.stages(recipe)
    if wanted:
        raise RecipeError(
            f"what {', '.join(f'[{stage.name}]' for stage in wanted)} leaves has no head for task {recipe.task}: a "
            "start in another layout drops it. Add [distil], with which the student learns one."
        )
    if training is None and recipe.student.source in made:
        raise RecipeError(
            f"{recipe.student.source} ends in a checkpoint without a head for task {recipe.task}: it is saved as "
            f"{saved_as(expected)}. Add [train] or [distil], with which the student learns one."
        )
