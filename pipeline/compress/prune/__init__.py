"""Prune stage: a student with fewer heads, feed-forward rows, layers or columns, dense, and good without training.

What is kept is searched under a budget (`search`) by what each unit is worth (`importance`), the rest is cut out
(`cut`), and what is left is solved for what the whole student gave (`reconstruct`). Single weights become zero at
once or while a student is trained (`pipeline.train.sparsity`), which saves no compute. Imports nothing heavy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.compress.prune.section import check
from pipeline.data.corpus import Unlabelled
from pipeline.recipe.compression import PruneSection

__all__ = ["DISTRIBUTIONS", "LATENCY_VERSION", "VERSION", "PruneSection", "check", "make"]

VERSION = 2
LATENCY_VERSION = 2
"""Of how milliseconds are measured; it decides what is cut where they are what counts."""
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
"""What decides the weights."""


def make(source: Path, task_name: str, section: PruneSection, texts: Sequence[Unlabelled], out: Path) -> dict[str, Any]:
    """Prune a checkpoint and write the smaller one. Runs in a worker, since it imports torch.

    Args:
        source: folder in Hugging Face layout.
        task_name: a row of `tasks.py`.
        section: what is kept.
        texts: without labels, like those that the student will read; a sample of `calibration_texts` is taken.
        out: the artifact's directory.

    Returns:
        Parameters and encoder multiply-adds before and after, what each layer kept, and the error behind each layer.

    Raises:
        RecipeError: the section does not fit the checkpoint.
        StudentError: the checkpoint does not load, or its layers cannot be taken apart.
        InputError: too few texts.
    """
    from pipeline.compress.prune import stage

    return stage.run(source, task_name, section, texts, out)
