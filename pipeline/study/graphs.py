"""The nodes of a candidate: its checkpoint and the judgement of it, and its verified file with its latency."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline import compress, formats
from pipeline.convert.stage import Target
from pipeline.execution.local import room_bytes, share_of_cores, slots
from pipeline.execution.node import Graph, Node
from pipeline.execution.store import Store
from pipeline.fronts.spec import TARGET, Study
from pipeline.planning.branches import Branch, branch_for
from pipeline.planning.build import build
from pipeline.planning.checkpoints import FinishedCheckpoints, prepare
from pipeline.planning.conversion import convert_node
from pipeline.planning.request import RecipeFiles, Request
from pipeline.planning.students import student_node
from pipeline.study import costs, judging, timing
from pipeline.study.judging import JudgedBy
from pipeline.study.space import Base, Candidate, candidate

_TRAINING_BYTES, _TRAINING_TIMES = 4_000_000_000, 40
"""Memory of a training: at least, and times the weights; a student of MiniLM took 3.4 GB with updates of 64 texts."""


@dataclass(frozen=True)
class Judged:
    """The nodes of a candidate up to its judgement."""

    branch: Branch
    judgement: Node


@dataclass(frozen=True)
class File:
    """The nodes of a candidate's file."""

    model: Node
    parity: Node | None
    judgement: Node
    latency: Node | None


def named(found: Candidate, name: str) -> Candidate:
    """Return a candidate whose nodes go by a name that may have slashes, as no recipe's has."""
    return replace(found, recipe=found.recipe.model_copy(update={"name": name}))


def uncompressed(found: Base, target: Target) -> Candidate:
    """Return the student that a recipe begins with, fine-tuned if it says so, in one target: what all is held to."""
    without = {stage.name: "none" for stage in compress.STAGES}
    return candidate(found, {**without, TARGET: f"{target.backend}:{target.scheme}"}, "base")


def judged(found: Candidate, by: JudgedBy, store: Store, *, length: int) -> Judged:
    """Return the nodes that judge a candidate's checkpoint.

    Raises:
        PipelineError: there is no such student, or it does not fit the task.
    """
    branch = branch_for(found.recipe, found.file)
    prepare(branch, "student", FinishedCheckpoints(store))
    return Judged(branch, judging.node(found.recipe, branch.end.input, by, length=length, name="judge"))


def converted(found: Candidate, branch: Branch) -> Node:
    """Return the node of a candidate's file, without its verification."""
    files = RecipeFiles(branch, [found.target])
    files.student = student_node(branch)
    return convert_node(files, found.target)


def timed(found: Candidate, model: Node, base: Node, study: Study) -> Node | None:
    """Return the node that times a file beside the base's, or None where times are not asked for or not to be had."""
    if not {"latency_ms", "memory_mb"} & {*study.measures} or costs.can_be_timed(found.target) is not None:
        return None
    tools = formats.get(found.target.backend).DISTRIBUTIONS[:1]
    return timing.node(found.recipe, model, base, length=study.judge.length, backend_tools=tools)


def has_gpu() -> bool:
    """Return whether this machine has a GPU, which one training fills."""
    import torch

    return bool(torch.accelerator.is_available())


def trainings_at_once(trainings: Sequence[Node]) -> int:
    """Return how many trainings share this machine: as its cores and memory allow, or one where there is a GPU."""
    if not trainings or has_gpu():
        return 1
    largest = max(_shared(node, 1).estimate.memory_bytes for node in trainings)
    return max(1, min(len(trainings), slots(), int(room_bytes() / largest)))


def side_by_side(graph: Graph) -> Graph:
    """Return a graph whose trainings share this machine's cores, where each would take all of them in its turn.

    A small student gains next to nothing from a second thread: 2.5 updates a second in place of 2.2 (LOG.md). A GPU is
    filled by one training, so that beside one the graph stays as it is.
    """
    trainings = {identity: node for identity, node in graph.nodes.items() if node.needs == "machine"}
    before = {identity for node in trainings.values() for identity in node.ancestors()}
    # One that another begins with or learns from never runs beside it.
    count = trainings_at_once([node for identity, node in trainings.items() if identity not in before])
    if count < 2:
        return graph
    found = Graph(graph.root)
    for identity, node in graph.nodes.items():
        found.include(_shared(node, share_of_cores(count)) if identity in trainings else node)
    return found


def _shared(training: Node, threads: int) -> Node:
    """Return a training that leaves room for others, with the memory that it is known to take."""
    estimate = training.estimate
    memory = max(estimate.memory_bytes, _TRAINING_BYTES, _TRAINING_TIMES * estimate.size_bytes)
    # What it takes beside others says nothing of one alone.
    estimate = replace(estimate, memory_bytes=memory, kind="beside others")
    return replace(training, needs="core", threads=threads, estimate=estimate)


def verified(found: Candidate, by: JudgedBy, base: Node, study: Study, store: Store) -> tuple[Graph, File]:
    """Return the graph of a candidate's verified file, judged on the study's data and timed.

    Raises:
        PipelineError: there is no such student, or its data cannot be read.
    """
    graph = build(Request(found.recipe, found.file, "verify", [found.target]), store)
    model = graph.at(found.recipe.name, f"{found.target}/model")
    assert model
    parity = graph.at(found.recipe.name, f"{found.target}/parity")
    judgement = judging.file_node(found.recipe, model, by, found.target)
    latency = timed(found, model, base, study)
    graph.include(judgement, *([latency] if latency else []))
    return graph, File(model, parity, judgement, latency)
