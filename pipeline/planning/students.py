"""Nodes of a recipe's student, of the checkpoints of its other heads, and of their references in PyTorch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline import tasks
from pipeline.data.retrieval import Source
from pipeline.execution.node import Estimate, Input, Node, versions
from pipeline.planning.branches import Branch
from pipeline.planning.request import RecipeFiles, estimate_of, placed
from pipeline.recipe.schema import Recipe
from pipeline.student import golden, other_head, reference, thresholds
from pipeline.student import stage as student
from pipeline.student.thresholds import Calibration


def student_node(branch: Branch) -> Node:
    """Return the node of the student, laid out with its tokenizer and golden rows."""
    recipe, end = branch.recipe, branch.end
    calibration = thresholds.find(recipe, branch.file, end.source, branch.trained_on)
    params = student.order_params(recipe, end.source, calibration)
    return Node(
        recipe=recipe.name,
        name="student",
        place="student",
        stage="student",
        version=student.VERSION,
        params=params,
        inputs={"source": end.input},
        tools=versions("transformers", "tokenizers", "torch"),
        function=make_student,
        arguments=(Input("source"), recipe.task, params["published"], calibration),
        estimate=estimate_of(branch, 10),
        inexact_files=(golden.GOLDEN,),
    )


def make_student(
    source: Path, task: str, says_what_it_is: bool, calibration: Calibration | None, out: Path
) -> dict[str, Any]:
    """Lay a student out; the function of a `student` node. See `student.make`."""
    return student.make(source, task, says_what_it_is, out, calibration)


def other_head_node(branch: Branch, main: Node) -> Node:
    """Return the node of another head's checkpoint, which has to have the student's encoder."""
    recipe, end = branch.recipe, branch.end
    assert branch.head
    params = student.order_params(recipe, end.source)
    node = Node(
        recipe=recipe.name,
        name="student",
        place="student",
        stage="head",
        version=student.VERSION + other_head.VERSION,
        params=params | {"head": branch.head},
        inputs={"student": main, "source": end.input},
        tools=main.tools,
        function=other_head.make,
        arguments=(Input("student"), branch.head, Input("source"), recipe.task, params["published"]),
        estimate=estimate_of(branch, 12),
        inexact_files=(golden.GOLDEN,),
    )
    return placed(branch, node)


def reference_node(
    recipe: Recipe,
    laid_out: Node,
    datasets: reference.DatasetChoice,
    length: int,
    *,
    exempt: bool,
    collections: tuple[Sequence[Source], Mapping[str, str]] = ((), MappingProxyType({})),
) -> Node:
    """Return the node of the reference: fp32 PyTorch's outputs, for converted files up to a sequence length.

    Args:
        recipe: whose reference it is.
        laid_out: the node of the student.
        datasets: those of the task metric.
        length: tokens at which rows are truncated.
        exempt: whether the student may be at chance.
        collections: by which embeddings are judged in search, and those that are absent, with the reason.
    """
    found, absent = collections
    return Node(
        recipe=recipe.name,
        name=f"reference {length}",
        place=f"reference-{length}",
        stage="reference",
        version=reference.VERSION,
        params=reference.order_params(tasks.get(recipe.task), datasets, length, found),
        inputs={"student": laid_out},
        tools=versions("torch", "transformers"),
        function=make_reference,
        arguments=(Input("student"), recipe.task, datasets, length, exempt, list(found), dict(absent)),
        estimate=Estimate(30, 10_000_000, size_bytes=laid_out.estimate.size_bytes),
        inexact_files=(reference.OUTPUTS,),
    )


def make_reference(
    laid_out: Path,
    task: str,
    datasets: reference.DatasetChoice,
    length: int,
    exempt: bool,
    collections: Sequence[Source],
    absent: Mapping[str, str],
    out: Path,
) -> dict[str, Any]:
    """Run the student over all texts; the function of a `reference` node. See `reference.make`."""
    return reference.make(laid_out, task, datasets, length, out, exempt=exempt, collections=collections, absent=absent)


def reference_nodes(files: RecipeFiles, length: int) -> dict[str | None, Node]:
    """Return the nodes of the references up to a length: the student's own at None, other heads' at their names."""
    assert files.student
    every: dict[str | None, tuple[Branch, Node]] = {None: (files.branch, files.student)}
    every |= {name: (branch, files.heads[name]) for name, branch in files.branch.heads.items()}
    found: dict[str | None, Node] = {}
    for name, (branch, laid_out) in every.items():
        exempt = files.recipe.student.random_weights
        node = reference_node(
            branch.recipe, laid_out, branch.datasets, length, exempt=exempt, collections=branch.collections
        )
        found[name] = node if name is None else placed(branch, node)
    return found
