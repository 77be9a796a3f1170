"""The stage: from a checkpoint's folder to one with factors. Imports nothing heavy before it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import architectures
from pipeline.data.calibration import Batches, batches
from pipeline.data.corpus import Unlabelled
from pipeline.data.datasets import sample
from pipeline.recipe.compression import FactoriseSection
from pipeline.text import tokenizers

VERSION = 2
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
"""Packages that decide the factors."""
_LENGTH = 128
"""Calibration texts are cut to so many tokens."""


def make(
    source: Path, task_name: str, section: FactoriseSection, texts: Sequence[Unlabelled], out: Path
) -> dict[str, Any]:
    """Write the checkpoint with factors. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: a row of `pipeline.tasks`.
        section: `[factorise]` of the recipe.
        texts: the calibration set, without labels; unused unless `section.weighted`.
        out: the artifact's directory.

    Returns:
        Parameters before and after, and for each matrix its rank with the energy kept, or why it was left whole.

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
    calibration = _batches(model, source, section, texts) if section.weighted else None
    metrics = factorise_model(model, source, section, calibration)
    shapes.save(model, out)
    tokenizers.copy(source, out)
    return {"parameters_before": before, "parameters": _parameters(model), "weighted": section.weighted, **metrics}


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _batches(model: Any, source: Path, section: FactoriseSection, texts: Sequence[Unlabelled]) -> Batches:
    row = architectures.get(model.config.model_type)
    longest = min(_LENGTH, row.max_length(model.config.to_dict()))
    chosen = sample(texts, section.calibration_texts, seed=section.seed)
    return batches(source, row.inputs, chosen, max_length=longest, pad=int(model.config.pad_token_id or 0))
