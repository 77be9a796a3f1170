"""What is asked of a recipe, and the nodes of its files as they are laid out, stage by stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.data.corpus import Unlabelled
from pipeline.execution.node import Estimate, Node
from pipeline.planning.branches import Branch, StageName
from pipeline.recipe.schema import Recipe


@dataclass
class Request:
    """A request for a graph: the recipe, its targets and the last stage."""

    recipe: Recipe
    file: Path
    last_stage: StageName
    """The last stage."""
    targets: list[Target]
    device: str = "host"
    thorough: bool = False
    """Whether verification tries every sequence length and every token id."""


@dataclass
class RecipeFiles:
    """The nodes of one recipe, filled in stage by stage."""

    branch: Branch
    targets: list[Target]
    thorough: bool = False
    student: Node | None = None
    heads: dict[str, Node] = field(default_factory=dict)
    """The checkpoints of the other heads, laid out like a student, by the heads' names."""
    models: dict[Target, Node] = field(default_factory=dict)
    parities: dict[Target, Node] = field(default_factory=dict)
    texts: list[Unlabelled] = field(default_factory=list)
    """The calibration set of `[quantize]`; empty until it is read."""
    training_texts: list[Unlabelled] = field(default_factory=list)
    """The training texts of `[quantize.training]`; empty until they are read."""
    first: tuple[Node, ...] = ()
    """The references, which come before any conversion; none where nothing is verified."""

    @property
    def recipe(self) -> Recipe:
        """The recipe itself."""
        return self.branch.recipe


def estimate_of(branch: Branch, seconds: float, *, kind: str = "") -> Estimate:
    """Return the estimate of a node that writes a checkpoint."""
    weights = branch.end.source.weights_bytes
    return Estimate(seconds, weights, kind=kind, size_bytes=weights)


def placed(branch: Branch, node: Node) -> Node:
    """Return a node with the name and the place that it has for another head."""
    return replace(node, name=branch.label(node.name), place=branch.place(node.place))


def opened(folder: Path) -> Artifact:
    """Return the artifact in a folder without checking its files: the executor has checked them."""
    return Artifact(folder, artifact.read_manifest(folder))


BY_HEAD = "student of {}"
"""Name of an input that is another head's checkpoint, by the head's name."""


def by_head(heads: Mapping[str, Node]) -> dict[str, Node]:
    """Return checkpoints of other heads as the inputs of a node."""
    return {BY_HEAD.format(name): node for name, node in heads.items()}
