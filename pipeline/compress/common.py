"""The interface of compression stages: the row of a stage, its context and the work of its node.

Each stage is split into a choice, which needs weights, and its application, for which shapes suffice. A plan applies a
neutral choice to a model on torch's meta device: an error there is raised before anything is made, and the resulting
shapes are those on which the next stage is tried. No toolchain is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import architectures
from pipeline.artifact import digest_of
from pipeline.checkpoint.source import CheckpointsBySource, Source
from pipeline.data import calibration
from pipeline.data.calibration import Batches
from pipeline.data.corpus import Unlabelled
from pipeline.data.retrieval import judged_texts
from pipeline.errors import RecipeError
from pipeline.execution.node import Input
from pipeline.recipe.compression import FactoriseSection, PruneSection
from pipeline.recipe.fields import Updates
from pipeline.recipe.schema import Recipe

SOURCE = Input("source")
"""Placeholder for the folder of the checkpoint before a stage, among the arguments of its node."""
_ROW_SECONDS = 0.008
"""Seconds in which MiniLM learns one row of some 25 tokens on a core, or two fifths of it do in bf16."""


@dataclass(frozen=True)
class Context:
    """The inputs of a stage's checks and work, besides the checkpoint before it."""

    recipe: Recipe
    recipe_file: Path
    """Relative paths in the recipe start from its folder."""
    unpruned: Source
    """The checkpoint before compression, which is the default teacher."""
    made: CheckpointsBySource = field(default_factory=dict)
    """Checkpoints of other recipes, by the `recipe:NAME` that names them."""
    texts: dict[str, list[Any]] = field(default_factory=dict)
    """Unlabelled texts that were read already, by the section that names them."""


@dataclass(frozen=True)
class Work:
    """The work of a stage's node: function, arguments, parameters of the key, and estimate."""

    version: int
    params: Mapping[str, Any]
    """Parameters that decide the result besides the inputs; they are part of the key."""
    distributions: tuple[str, ...]
    """Packages whose versions decide the result; they are part of the key."""
    make: Callable[..., dict[str, Any]]
    """Function that fills the artifact's directory, its last argument; runs in a worker."""
    arguments: tuple[Any, ...]
    """The arguments before the directory: `SOURCE` stands for the checkpoint before the stage."""
    seconds: float
    """Estimated seconds for MiniLM on two cores."""
    other_checkpoints: Mapping[str, str | None] = field(default_factory=dict)
    """Further inputs by name: the source that a recipe names, or None for the unpruned checkpoint."""
    trains: bool = False
    """Whether it trains, and so needs the whole machine."""


@dataclass(frozen=True)
class Stage:
    """A compression stage, one row of `pipeline.compress.STAGES`."""

    name: str
    """Name of the step, and of the recipe's section."""
    folder: str
    origin: str
    """Word that is added to the student's origin, such as `factorised`."""
    check: Callable[[Context, Source], None]
    """Raises an error for settings, data or labels that do not fit, without a trial."""
    work: Callable[[Context], Work]
    trial: Callable[[Context, Source], Source]
    """Applies the stage on torch's meta device and returns the checkpoint with the resulting shapes; raises the errors
    of the stage itself. Imports torch."""
    teaches: bool = False
    """Whether later stages use its output as the default teacher."""


def updates_seconds(section: Updates, *, unless_known: float) -> float:
    """Return the estimated seconds of updates, or a guess where their number depends on the number of rows."""
    return unless_known if section.rows_learned is None else section.rows_learned * _ROW_SECONDS


def calibration_texts(context: Context, name: str, section: PruneSection | FactoriseSection) -> list[Unlabelled]:
    """Return the calibration texts of a section, which are read once; an empty list if the section uses none.

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
            section.calibration,
            context.recipe_file,
            section.calibration_texts,
            seed=section.seed,
            key=key,
            judged=judged_texts(context.recipe.verify.retrieval, context.recipe_file),
        )
    return context.texts[name]


def calibrated_params(context: Context, name: str, section: PruneSection | FactoriseSection) -> dict[str, Any]:
    """Return the parameters of the key of a stage with calibration texts: task, settings, and the texts' digest."""
    settings = section.model_dump(mode="json", exclude={"calibration"})
    texts = calibration_texts(context, name, section)
    return {"task": context.recipe.task, "settings": settings, "texts": digest_of(texts)}


def calibration_batches(model: Any, source: Path, texts: Sequence[Unlabelled], longest: int) -> Batches:
    """Return the batches of a calibration set for a model.

    Args:
        model: the model of the checkpoint.
        source: the checkpoint's folder, which has the tokenizer.
        texts: the calibration set.
        longest: number of tokens to which texts are cut, unless the model takes fewer.
    """
    row, config = architectures.get(model.config.model_type), model.config
    length = min(longest, row.max_length(config.to_dict()))
    return calibration.batches(source, row.inputs, texts, max_length=length, pad=int(config.pad_token_id or 0))


def refuse_lost_zeros(context: Context, section: str) -> None:
    """Refuse a section that would overwrite the zero weights of an earlier sparse section.

    Raises:
        RecipeError: an earlier section makes weights sparse.
    """
    recipe = context.recipe
    sparse = [name for name, one in (("train", recipe.train), ("prune", recipe.prune)) if one and one.sparse]
    if sparse and sparse[0] != section:
        raise RecipeError(
            f"[{section}] gives the linears new numbers, and those that [{sparse[0]}.sparse] made zero would not stay "
            "zero. Leave one of them out; [distil.sparse] comes after all the others."
        )
