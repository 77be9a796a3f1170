"""What the stages that compress have in common: the row of the order, what a stage is told, and what its node is.

Each stage is split into a choice, which needs weights, and its application, for which shapes suffice. A plan applies a
neutral choice to a model on torch's meta device: what the real functions refuse there is refused before anything is
made, and what they leave is what the next stage is tried on. Imports nothing heavy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import architectures
from pipeline.artifact import digest_of
from pipeline.checkpoint.source import Made, Source
from pipeline.data import calibration
from pipeline.data.calibration import Batches
from pipeline.data.corpus import Unlabelled
from pipeline.errors import RecipeError
from pipeline.execution.node import Input
from pipeline.recipe.compression import FactoriseSection, PruneSection
from pipeline.recipe.schema import Recipe

SOURCE = Input("source")
"""The checkpoint before a stage, as an argument of its node."""


@dataclass(frozen=True)
class Context:
    """What stages need to know besides the checkpoint before them."""

    recipe: Recipe
    recipe_file: Path
    """Relative files are relative to its folder."""
    unpruned: Source
    """The checkpoint before compression, which is the default teacher."""
    made: Made = field(default_factory=dict)
    """Checkpoints of other recipes."""
    texts: dict[str, list[Any]] = field(default_factory=dict)
    """Unlabelled texts by the section that names them, once they were read."""


@dataclass(frozen=True)
class Work:
    """What the node of a stage does."""

    version: int
    params: Mapping[str, Any]
    """What decides the result, besides the inputs."""
    distributions: tuple[str, ...]
    """Packages whose versions decide the result."""
    make: Callable[..., dict[str, Any]]
    """Fills the artifact's directory, its last argument; runs in a worker."""
    arguments: tuple[Any, ...]
    """The arguments before the directory: `SOURCE` stands for the checkpoint before the stage."""
    seconds: float
    """Estimate, for MiniLM on two cores."""
    other_checkpoints: Mapping[str, str | None] = field(default_factory=dict)
    """Further inputs by name: the source that a recipe names, or None for the unpruned checkpoint."""
    trains: bool = False
    """Whether it takes a machine for minutes or hours."""


@dataclass(frozen=True)
class Stage:
    """One row of the order."""

    name: str
    """Name of the step, and of the recipe's section."""
    folder: str
    origin: str
    """What it adds to the student's origin."""
    check: Callable[[Context, Source], None]
    """Refuses what the recipe alone, data or labels rule out."""
    work: Callable[[Context], Work]
    trial: Callable[[Context, Source], Source]
    """Applies the stage on torch's meta device and returns the checkpoint as it is left; raises what it raises there.
    Imports torch."""
    teaches: bool = False
    """Whether later stages use its output as the default teacher."""


def calibration_texts(context: Context, name: str, section: PruneSection | FactoriseSection) -> list[Unlabelled]:
    """Return the calibration texts of a section, which are read once; none where the section uses none.

    Raises:
        RecipeError: the section names texts that it does not use.
        InputError: they are absent or too few.
    """
    key = f"{name}.calibration"
    if not section.calibrated:
        if section.calibration:
            raise RecipeError(f"{key} names texts, and [{name}] as it is set looks at none; leave it out.")
        return []
    if name not in context.texts:
        context.texts[name] = calibration.texts(
            section.calibration, context.recipe_file, section.calibration_texts, seed=section.seed, key=key
        )
    return context.texts[name]


def calibrated_params(context: Context, name: str, section: PruneSection | FactoriseSection) -> dict[str, Any]:
    """Return what decides the result of a stage that uses calibration texts."""
    settings = section.model_dump(mode="json", exclude={"calibration"})
    texts = calibration_texts(context, name, section)
    return {"task": context.recipe.task, "settings": settings, "texts": digest_of(texts)}


def calibration_batches(model: Any, source: Path, texts: Sequence[Unlabelled], longest: int) -> Batches:
    """Return the batches of a calibration set for a model.

    Args:
        model: made of the checkpoint.
        source: the checkpoint's folder, which has the tokenizer.
        texts: the calibration set.
        longest: number of tokens to which texts are cut, unless the model takes fewer.
    """
    row, config = architectures.get(model.config.model_type), model.config
    length = min(longest, row.max_length(config.to_dict()))
    return calibration.batches(source, row.inputs, texts, max_length=length, pad=int(config.pad_token_id or 0))


def refuse_lost_zeros(context: Context, section: str) -> None:
    """Refuse a section that would fill the zeros of an earlier one.

    Raises:
        RecipeError: it would.
    """
    recipe = context.recipe
    sparse = [name for name, one in (("train", recipe.train), ("prune", recipe.prune)) if one and one.sparse]
    if sparse and sparse[0] != section:
        raise RecipeError(
            f"[{section}] gives the linears new numbers, and those that [{sparse[0]}.sparse] made zero would not stay "
            "zero. Leave one of them out; [distil.sparse] comes after all the others."
        )
