"""The stage: from a checkpoint's folder to a smaller one. Imports nothing heavy before it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint.source import inspect_folder
from pipeline.compress.prune.checks import check
from pipeline.data import calibration
from pipeline.data.corpus import Unlabelled
from pipeline.data.datasets import sample
from pipeline.recipe.compression import PruneSection
from pipeline.text import tokenizers

VERSION = 2
LATENCY_VERSION = 2
"""Version of the latency measurement, which decides what is removed where costs are milliseconds."""
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
"""Packages that decide the weights."""


def make(source: Path, task_name: str, section: PruneSection, texts: Sequence[Unlabelled], out: Path) -> dict[str, Any]:
    """Prune a checkpoint and write the smaller one. Runs in a worker, since it imports torch.

    Args:
        source: folder in Hugging Face layout.
        task_name: a row of `tasks.py`.
        section: `[prune]` of the recipe.
        texts: the calibration set, without labels; a sample of `calibration_texts` is taken.
        out: the artifact's directory.

    Returns:
        Parameters and encoder MACs before and after, the sizes of each layer, and the error behind each layer.

    Raises:
        RecipeError: the section does not fit the checkpoint.
        StudentError: the checkpoint does not load, or its layers cannot be taken apart.
        InputError: too few texts.
    """
    from pipeline.checkpoint import architectures, shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.prune.pruning import prune_structures
    from pipeline.train.model import save

    task = tasks.get(task_name)
    check(section, inspect_folder(source, origin=source.name, licence=None), task)
    full = load_checkpoint(source, task)
    if not section.cuts:
        metrics = _zero_weights(full, section)
        save(full, source, out)
        tokenizers.copy(source, out)
        return metrics
    chosen = sample(texts, section.calibration_texts, seed=section.seed)
    padding = int(full.config.pad_token_id or 0)
    inputs = architectures.get(full.config.model_type).inputs
    batches = calibration.batches(source, inputs, chosen, max_length=section.max_length, pad=padding)
    pruned, metrics = prune_structures(full, task, section, batches)
    metrics |= _zero_weights(pruned, section)
    shapes.save(pruned, out)
    tokenizers.copy(source, out)
    return metrics


def _zero_weights(model: Any, section: PruneSection) -> dict[str, Any]:
    """Set single weights to zero, in place, where `[prune.sparse]` asks for it."""
    from pipeline.train.sparsity import prune_by_magnitude, sparsity_metrics

    if section.sparse is None:
        return {}
    prune_by_magnitude(model, section.sparse)
    return {"parameters": sum(one.numel() for one in model.parameters())} | sparsity_metrics(model)
