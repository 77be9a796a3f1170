"""Lay out the nodes from the checkpoint that a recipe names to the one it converts, and refuse early what cannot work.

A compression stage without a finished artifact is tried on torch's meta device, and the shapes it leaves there stand
for its checkpoint. A recipe whose stages are all finished, or which has none, needs no torch here.
"""

import gc
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline import architectures, artifact, compress, tasks
from pipeline.artifact import Artifact
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.source import Source, find, fine_tuned, inspect_folder
from pipeline.checkpoint.source import at as checkpoint_at
from pipeline.checkpoint.weights import check_weights
from pipeline.compress.common import Context, Stage, updates_seconds
from pipeline.errors import ArtifactError, PipelineError, RecipeError, StudentError
from pipeline.execution.executor import spec_of
from pipeline.execution.node import Estimate, Input, Node, Scratch, versions
from pipeline.execution.store import Store
from pipeline.planning.branches import Branch, Checkpoint, StageName
from pipeline.recipe.schema import OF_A_CHECKPOINT, Recipe
from pipeline.student import assemble
from pipeline.student import stage as student
from pipeline.train import stage as train
from pipeline.train.checks import class_of, has_head


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


def _estimate(begun: Checkpoint, seconds: float, kind: str = "") -> Estimate:
    weights = begun.source.weights_bytes
    return Estimate(seconds, weights, kind=kind, size_bytes=weights)


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
        estimate=_estimate(begun, updates_seconds(job.settings, unless_known=600), kind="updates"),
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
        estimate=_estimate(begun, work.seconds, kind="updates" if work.trains else ""),
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
