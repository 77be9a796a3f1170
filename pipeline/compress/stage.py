"""What a stage that compresses is, and what it needs to know."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.checkpoint.source import Made, Source
from pipeline.recipe.schema import Recipe


@dataclass(frozen=True)
class Context:
    """What stages need to know besides the checkpoint before them."""

    recipe: Recipe
    recipe_file: Path
    """Relative files are meant from there."""
    unpruned: Source
    """The checkpoint before anything made it smaller, which may be the teacher."""
    made: Made = field(default_factory=dict)
    """By other recipes."""
    texts: dict[str, list[Any]] = field(default_factory=dict)
    """What sections rest on without labels, once it was read: by their names."""


@dataclass(frozen=True)
class Work:
    """One stage, ready to be carried out."""

    version: int
    params: Mapping[str, Any]
    """What decides the result, besides the inputs."""
    distributions: tuple[str, ...]
    make: Callable[..., dict[str, Any]]
    """Fills the artifact's directory, its last argument; runs in a worker."""
    arguments: tuple[Any, ...]
    """The others, as a node has them: `Input("source")` stands for the checkpoint before the stage."""
    seconds: float
    """Estimate, for MiniLM on two cores."""
    learns_from: Mapping[str, str | None] = field(default_factory=dict)
    """Further checkpoints that it reads, by input name: the place that a recipe names, or None for the unpruned one."""
    trains: bool = False
    """Whether it takes a machine for minutes or hours."""


def _as_it_is(context: Context, source: Source) -> Source:
    return source


@dataclass(frozen=True)
class Stage:
    """One row of the order."""

    name: str
    """Of the step, and of the recipe's section."""
    folder: str
    said: str
    """What it adds to the student's origin."""
    check: Callable[[Context, Source], None]
    """Refuses what cannot be carried out."""
    ready: Callable[[Context, Source], Work]
    expected: Callable[[Context, Source], Source] = _as_it_is
    """The checkpoint as the stage will leave it, as far as checks of later ones can know it before."""
    teaches: bool = False
    """Whether what it makes is the unpruned checkpoint from then on."""
