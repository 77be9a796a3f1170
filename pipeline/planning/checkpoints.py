"""Lay out the nodes from the checkpoint that a recipe names to the one it converts, and refuse early what cannot work.

A compression stage without a finished artifact is tried on torch's meta device, and the shapes it leaves there stand
for its checkpoint. A recipe whose stages are all finished, or which has none, needs no torch here.

`recipe:NAME` instead of a checkpoint names another recipe, whose trained or compressed checkpoint is made first.
Two-stage distillation is two recipes, of which the second names the first.
"""

import gc
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pipeline import architectures, artifact, compress, tasks
from pipeline.artifact import Artifact
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.source import RECIPE, Source, find, fine_tuned, inspect_folder
from pipeline.checkpoint.source import at as checkpoint_at
from pipeline.checkpoint.weights import check_weights
from pipeline.compress.common import Context, Stage
from pipeline.compress.distil.checks import needs_teacher
from pipeline.compress.distil.dataset import check_named
from pipeline.data import retrieval
from pipeline.data.datasets import Dataset
from pipeline.errors import ArtifactError, PipelineError, RecipeError, StudentError
from pipeline.execution.executor import spec_of
from pipeline.execution.node import Estimate, External, Input, Node, Scratch, versions
from pipeline.execution.store import Store
from pipeline.recipe import loading
from pipeline.recipe.schema import OF_A_CHECKPOINT, Recipe
from pipeline.student import assemble, reference
from pipeline.student import stage as student
from pipeline.train import stage as train
from pipeline.train.checks import check_section, class_of, has_head

StageName = Literal["train", "compress", "student", "convert", "verify", "benchmark", "report"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that exists, or that a node will make."""

    source: Source
    """Its files; before a node has made it, the expected config and shapes."""
    node: Node | None = None
    """The node that makes it; None if it exists outside the graph."""

    @property
    def input(self) -> Node | External:
        """The checkpoint as an input of a node: the node that makes it, or its files with their digest."""
        return self.node or External(self.source.folder, self.source.digest, tuple(self.source.files))


@dataclass
class Branch:
    """The checkpoints of one recipe, from the one it names to the one it converts."""

    recipe: Recipe
    file: Path
    before: "dict[str, Branch]" = field(default_factory=dict)
    """The recipes that this one depends on, by the `recipe:NAME` that names them."""
    heads: "dict[str, Branch]" = field(default_factory=dict)
    """The checkpoints of the recipe's other heads, by name."""
    head: str | None = None
    """The name of the head whose checkpoint this is; None for the student itself."""
    named: Checkpoint | None = None
    """The checkpoint that `student.source` names."""
    trained: Checkpoint | None = None
    """The checkpoint after `[train]`; without that section, the named one."""
    last: Checkpoint | None = None
    """The checkpoint after the last compression stage; None until the branch is prepared."""
    trained_on: Dataset | None = None
    """The dataset of `[train]`, or the user's labelled files of `[distil]`."""

    @property
    def end(self) -> Checkpoint:
        """The checkpoint that the recipe converts; the branch must be prepared."""
        assert self.last
        return self.last

    @property
    def datasets(self) -> reference.DatasetChoice:
        """The datasets of the task metric: those of `[verify]`, else the dataset that the student was trained on."""
        if self.recipe.verify.datasets is None and self.trained_on:
            return (self.trained_on,)
        return self.recipe.verify.datasets

    @cached_property
    def collections(self) -> tuple[list[retrieval.Source], dict[str, str]]:
        """The collections by which embeddings are judged in search, and those that are not there, with the reason.

        Raises:
            RecipeError: the task gives no embeddings.
            InputError: a name is neither a collection nor a folder.
        """
        names, key = self.recipe.verify.retrieval or (), "verify.retrieval"
        if names and tasks.get(self.recipe.task).output_kind != "embedding":
            raise RecipeError(f"{self.file}: {key}: task {self.recipe.task} gives no embeddings, which search needs.")
        return retrieval.chosen(names, self.file, key)

    @cached_property
    def judged(self) -> frozenset[str]:
        """The queries and documents of these collections, which nothing learns from."""
        return retrieval.judged_texts(self.recipe.verify.retrieval, self.file)

    def every(self) -> "Iterator[Branch]":
        """Yield the branch and all branches that it depends on."""
        yield self
        for one in (*self.before.values(), *self.heads.values()):
            yield from one.every()

    def place(self, name: str) -> str:
        """Return the place of a view in the recipe's folder; a head's lies in `heads/NAME`."""
        return name if self.head is None else f"heads/{self.head}/{name}"

    def label(self, name: str) -> str:
        """Return the name of a node in plans and progress."""
        return name if self.head is None else f"{name} of {self.head}"


def recipe_sources(recipe: Recipe) -> list[str]:
    """Return the `recipe:NAME` sources in a recipe, each once; a teacher that no loss needs is left out."""
    distil = recipe.distil
    named = [recipe.student.source]
    if distil is not None:
        named += [distil.teacher] if needs_teacher(distil) else []
        named += [distil.augment.model] if distil.augment else []
    if recipe.adapter is not None:
        named.append(recipe.adapter.into)
    return list(dict.fromkeys(place for place in named if place.startswith(RECIPE)))


def read_other(name: str, recipe_file: Path) -> tuple[Recipe, Path]:
    """Read a recipe that another recipe names: one of the library, or a file relative to the other recipe's folder."""
    path = recipe_file.parent / os.path.expanduser(name)
    return loading.read_recipe(str(path) if name.endswith(".toml") else name)


def branch_for(recipe: Recipe, file: Path, waiting: Mapping[Path, str] | None = None) -> Branch:
    """Return the branch of a recipe, with the branches of all recipes that it depends on, recursively.

    Raises:
        RecipeError: a recipe does not exist, names unfit data, makes no checkpoint of its own, or depends on itself.
    """
    _check_data_named(recipe, file)
    waiting = {**(waiting or {}), file.resolve(): recipe.name}
    result = Branch(recipe, file)
    for place in recipe_sources(recipe):
        parsed, other = read_other(place.removeprefix(RECIPE), file)
        if other.resolve() in waiting:
            chain = " → ".join((*waiting.values(), parsed.name))
            raise RecipeError(f"{file}: {place}: recipes wait for each other: {chain}.")
        if parsed.train is None and not compress.stages(parsed):
            raise RecipeError(
                f"{file}: {place}: recipe {parsed.name} neither trains its student nor makes it smaller; name "
                f"what it begins with: {parsed.student.source!r}."
            )
        result.before[place] = branch_for(parsed, other, waiting)
    for name in recipe.heads:
        result.heads[name] = replace(branch_for(recipe.of_head(name), file, waiting), head=name)
    return result


def _check_data_named(recipe: Recipe, file: Path) -> None:
    """Refuse datasets that [train] and [distil] cannot learn from, before any checkpoint is read."""
    try:
        check_section(recipe)
        if recipe.distil:
            check_named(recipe.distil, tasks.get(recipe.task))
    except RecipeError as error:
        raise RecipeError(f"{file}: {error}") from error


@dataclass
class FinishedCheckpoints:
    """Look-up of finished checkpoints in a build folder's store."""

    store: Store | None = None
    """None if there is no store, so that every checkpoint counts as unfinished."""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """The artifacts that were found, by the identity of their nodes."""

    def find(self, node: Node, begun: Source) -> Source | None:
        """Return the checkpoint that a node made from another one; None if it is not made yet.

        Its bytes are checked when the graph is planned or carried out.
        """
        spec = spec_of(node, self.artifacts) if self.store else None
        if self.store is None or spec is None:
            return None
        place = self.store.place(spec.key)
        try:
            made = Artifact(place, artifact.read_manifest(place))
            if made.manifest.key != spec.key:
                return None
            source = inspect_artifact(made, begun)
        except (ArtifactError, StudentError):
            # What is damaged will be made again.
            return None
        self.artifacts[node.identity] = made
        return source


def inspect_artifact(made: Artifact, begun: Source) -> Source:
    """Return the checkpoint in an artifact, with the file digests that the manifest lists.

    Raises:
        StudentError: its config or the header of its weights is damaged.
    """
    check_weights(made.path)
    config = read_json(made.path / "config.json")
    files = {file.path: file.sha256 for file in made.manifest.files}
    row = architectures.get(str(config.get("model_type")))
    return Source(made.path, begun.origin, begun.licence, files, config, row)


def prepare(
    branch: Branch, last_stage: StageName, finished: FinishedCheckpoints, *, root: bool = True, tries: bool = False
) -> None:
    """Check a branch and lay out its nodes.

    Args:
        branch: the result of `branch_for`; the branches that it depends on are prepared as well.
        last_stage: the last stage that is requested.
        finished: the finished checkpoints, which need no trial.
        root: whether it is the recipe that the user named; errors of other recipes get their recipe's name in front.
        tries: whether a recipe that depends on this one tries a compression stage, for which it needs the shapes.

    Raises:
        PipelineError: there is no such checkpoint or data, or they do not fit each other.
    """
    try:
        tries = tries or bool(compress.stages(branch.recipe))
        for one in branch.before.values():
            if one.last is None:
                last: StageName = "compress" if compress.stages(one.recipe) else "train"
                prepare(one, last, finished, root=False, tries=tries)
        _prepare(branch, last_stage, finished, tries=tries)
        for name, head in branch.heads.items() if last_stage not in ("train", "compress") else ():
            _prepare_head(name, head, last_stage, finished)
    except PipelineError as error:
        if root:
            raise
        raise type(error)(f"recipe {branch.recipe.name}: {error}") from error


def _prepare_head(name: str, head: Branch, last_stage: StageName, finished: FinishedCheckpoints) -> None:
    """Prepare the checkpoint of another head; its errors name the head, and the key where it has another one."""
    try:
        prepare(head, last_stage, finished)
    except PipelineError as error:
        said = str(error)
        for key in OF_A_CHECKPOINT:
            said = said.replace(f"student.{key}", f"heads.{name}.{key}")
        raise type(error)(f"head {name}: {said}") from error


def _prepare(branch: Branch, last_stage: StageName, finished: FinishedCheckpoints, *, tries: bool) -> None:
    recipe, file = branch.recipe, branch.file
    if last_stage == "train":
        train.section(recipe)
    ends = {place: one.end.source for place, one in branch.before.items()}
    source = find(recipe, file, ends)
    before = branch.before.get(recipe.student.source)
    branch.named = Checkpoint(source, before.end.node if before else None)
    if assemble.is_needed(source, tasks.get(recipe.task), recipe.student):
        branch.named = _assembled(branch, branch.named)
    current = branch.trained = _train(branch, branch.named, finished, tries=tries) if recipe.train else branch.named
    if last_stage == "train" and current.node and current.node.identity in finished.artifacts:
        # Nothing is left to do, and what comes behind it was tried before the training began.
        branch.last = current
        return
    context = Context(recipe, file, current.source, ends)
    stages = compress.stages(recipe)
    if last_stage == "compress" and not stages:
        sections = ", ".join(f"[{stage.name}]" for stage in compress.STAGES if not stage.teaches)
        raise RecipeError(f"recipe {recipe.name} makes nothing smaller; sections that do: {sections}.")
    unpruned = current
    for stage in stages:
        stage.check(context, current.source)
        current = _compress(branch, stage, context, current, unpruned, finished)
        if stage.teaches:
            unpruned = current
            context = replace(context, unpruned=current.source)
    task = tasks.get(recipe.task)
    if last_stage not in ("train", "compress") and task.uses_head and not has_head(task, current.source):
        _refuse_headless(branch, current.source)
    elif last_stage not in ("train", "compress") and task.uses_head:
        student.check_head(current.source, task, stored=current.node is None)
    branch.last = current
    branch.trained_on = branch.trained_on or compress.labelled_data(context)


def _assembled(branch: Branch, begun: Checkpoint) -> Checkpoint:
    """Return the checkpoint that is written as one file of weights with the head that the recipe names."""
    section, task = branch.recipe.student, tasks.get(branch.recipe.task)
    node = Node(
        recipe=branch.recipe.name,
        name=branch.label("assemble"),
        place=branch.place("assembled"),
        stage="assemble",
        version=assemble.VERSION,
        params={
            "task": task.name,
            **section.model_dump(mode="json", include={"pooling", "prompts", "default_prompt", "width"}),
        },
        inputs={"source": begun.input},
        tools=versions("safetensors", "transformers", "tokenizers", "torch"),
        function=assemble.make,
        arguments=(Input("source"), task.name, section),
        estimate=_estimate(begun, 15),
    )
    return Checkpoint(assemble.expected(begun.source, task, section), node)


def _estimate(begun: Checkpoint, seconds: float) -> Estimate:
    weights = begun.source.weights_bytes
    return Estimate(seconds, weights, size_bytes=weights)


def _train(branch: Branch, begun: Checkpoint, finished: FinishedCheckpoints, *, tries: bool) -> Checkpoint:
    recipe, file = branch.recipe, branch.file
    job = train.job(recipe, file, begun.source, Path())
    branch.trained_on = job.dataset
    node = Node(
        recipe=recipe.name,
        name="train",
        place="trained",
        stage="train",
        version=train.VERSION,
        params=train.order_params(recipe, job.dataset),
        inputs={"source": begun.input},
        tools=versions(*train.DISTRIBUTIONS),
        function=train_checkpoint,
        arguments=(recipe, file, Input("source"), Scratch()),
        estimate=_estimate(begun, 600),
        needs="machine",
    )
    after = finished.find(node, begun.source)
    if after is None and tries:
        _import_torch()
        after = train.trial(job, begun.source)
    after = after or train.expected(job, begun.source)
    return Checkpoint(replace(after, origin=fine_tuned(begun.source.origin, job.dataset.name)), node)


def _import_torch() -> None:
    """Import torch and transformers for a trial with garbage collection off, which saves a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        from pipeline.checkpoint.loading import quieten

        quieten()
        import transformers.modeling_utils  # noqa: F401  # the slow part, and so within this block
    finally:
        if collects:
            gc.enable()


def train_checkpoint(recipe: Recipe, file: Path, source: Path, scratch: Path, out: Path) -> dict[str, Any]:
    """Fine-tune a checkpoint; the function of a `train` node. See `train.make`."""
    begun = inspect_folder(source, origin=source.name, licence=None)
    return train.make(train.job(recipe, file, begun, scratch), out)


def _compress(
    branch: Branch,
    stage: Stage,
    context: Context,
    begun: Checkpoint,
    unpruned: Checkpoint,
    finished: FinishedCheckpoints,
) -> Checkpoint:
    work = stage.work(context)
    inputs = {"source": begun.input}
    for name, place in work.other_checkpoints.items():
        inputs[name] = _named(branch, place, unpruned).input
    node = Node(
        recipe=branch.recipe.name,
        name=stage.name,
        place=stage.folder,
        stage=stage.name,
        version=work.version,
        params=work.params,
        inputs=inputs,
        tools=versions(*work.distributions),
        function=work.make,
        arguments=work.arguments,
        estimate=_estimate(begun, work.seconds),
        needs="machine" if work.trains else "core",
    )
    after = finished.find(node, begun.source)
    if after is None:
        _import_torch()
        after = stage.trial(context, begun.source)
    return Checkpoint(replace(after, origin=f"{begun.source.origin}, {stage.origin}"), node)


def _named(branch: Branch, place: str | None, unpruned: Checkpoint) -> Checkpoint:
    """Return the checkpoint that a section names: another recipe's, a source, or for None the unpruned student."""
    if place is None:
        return unpruned
    if place in branch.before:
        return branch.before[place].end
    return Checkpoint(checkpoint_at(place, branch.file))


def _refuse_headless(branch: Branch, source: Source) -> None:
    """Raise the error for a student without the task's head, with the section that would teach one."""
    recipe = branch.recipe
    stages = compress.stages(recipe)
    if stages:
        sections = ", ".join(f"[{stage.name}]" for stage in stages)
        raise RecipeError(
            f"the student that {sections} leaves has no head for task {recipe.task}: a start in another layout drops "
            "it. Add [distil], with which the student learns one."
        )
    if recipe.train is None and recipe.student.source in branch.before:
        raise RecipeError(
            f"{recipe.student.source} ends in a checkpoint without a head for task {recipe.task}: it is saved as "
            f"{class_of(source)}. Add [train] or [distil], with which the student learns one."
        )


def check_names(branches: Iterator[Branch]) -> None:
    """Refuse two recipe files with the same name, which would share one folder of views.

    Raises:
        RecipeError: two files have the same recipe name.
    """
    known: dict[str, Path] = {}
    for one in branches:
        other = known.setdefault(one.recipe.name, one.file)
        if other.resolve() != one.file.resolve():
            raise RecipeError(
                f"{other} and {one.file} are both named {one.recipe.name!r}, the folder of both; rename one."
            )
