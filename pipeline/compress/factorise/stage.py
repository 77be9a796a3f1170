"""The factorise stage: write a checkpoint with low-rank factors. Torch is imported only by `make` and `trial`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import architectures, tasks
from pipeline.checkpoint.source import Source
from pipeline.compress.common import (
    SOURCE,
    Context,
    Stage,
    Work,
    calibrated_params,
    calibration_batches,
    calibration_texts,
    refuse_lost_zeros,
)
from pipeline.data.corpus import Unlabelled
from pipeline.data.datasets import sample
from pipeline.errors import RecipeError
from pipeline.recipe.compression import FactoriseSection
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 2
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
"""Packages whose versions decide the factors."""
_LENGTH = 128
"""Number of tokens to which calibration texts are cut."""


def make(
    source: Path, task_name: str, section: FactoriseSection, texts: Sequence[Unlabelled], out: Path
) -> dict[str, Any]:
    """Factorise a checkpoint's matrices and write the result. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: a row of `pipeline.tasks`.
        section: `[factorise]` of the recipe.
        texts: the calibration set, without labels; unused unless `section.weighted`.
        out: the artifact's directory.

    Returns:
        Parameters before and after, and for each matrix its rank with the energy kept, or why it was not factorised.

    Raises:
        RecipeError: ranks save nothing.
        InputError: too few calibration texts.
        StudentError: the checkpoint does not load, or has factors already.
    """
    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.factorise.factors import factorise_model

    model = load_checkpoint(source, tasks.get(task_name))
    before = _parameters(model)
    batches = None
    if section.weighted:
        chosen = sample(texts, section.calibration_texts, seed=section.seed)
        batches = calibration_batches(model, source, chosen, _LENGTH)
    metrics = factorise_model(model, section, batches)
    shapes.save(model, out)
    tokenizers.copy(source, out)
    return {"parameters_before": before, "parameters": _parameters(model), "weighted": section.weighted, **metrics}


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def trial(section: FactoriseSection, source: Source, task: Task) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`.

    Ranks that depend on the weights are replaced by the lowest that the section allows.
    """
    import torch

    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.factorise.factors import factorise_model, halving_values

    model = load_checkpoint(source, task)
    with torch.device("meta"):
        factorise_model(model, section, None, halving_values)
    return shapes.outline(model, source, compressed=True)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> FactoriseSection:
    assert context.recipe.factorise
    return context.recipe.factorise


def check_section(section: FactoriseSection) -> None:
    """Refuse a section that names neither the embedding table nor the feed-forwards.

    Raises:
        RecipeError: neither key is set.
    """
    if section.embedding is None and section.feed_forward is None:
        raise RecipeError("[factorise] asks for nothing; give embedding = 128, or feed_forward = {energy = 0.9}.")


def _check(context: Context, source: Source) -> None:
    section, start = _section(context), context.recipe.start
    check_section(section)
    narrow = start and start.kind in architectures.STARTED and architectures.get(start.kind).keys.embedding_size
    if start and narrow and section.embedding is not None:
        raise RecipeError(
            f"start.kind = {start.kind!r} puts the embedding table into two factors already. Give "
            "start.embedding_size instead of factorise.embedding."
        )
    if section.feed_forward is not None:
        refuse_lost_zeros(context, "factorise")
    calibration_texts(context, "factorise", section)


def _work(context: Context) -> Work:
    section = _section(context)
    params = calibrated_params(context, "factorise", section)
    arguments = (SOURCE, context.recipe.task, section, calibration_texts(context, "factorise", section))
    return Work(VERSION, params, DISTRIBUTIONS, make, arguments, 30)


FACTORISE = Stage(
    "factorise",
    folder="factorised",
    origin="factorised",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source, tasks.get(context.recipe.task)),
)
