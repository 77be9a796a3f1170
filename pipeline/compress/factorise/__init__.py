"""Factorise stage: the table of words, and the linears of the feed-forwards, become two thin matrices each.

`section` is what a recipe says, `ranks` chooses, `lowrank` decomposes, `observe` weighs by calibration text, and
`factors` puts the pairs in.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.compress.factorise.section import check
from pipeline.data.corpus import Unlabelled
from pipeline.recipe.compression import FactoriseSection, Rank

__all__ = ["DISTRIBUTIONS", "VERSION", "FactoriseSection", "Rank", "check", "make"]
VERSION = 2
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
"""What decides the factors."""


def make(
    source: Path, task_name: str, section: FactoriseSection, texts: Sequence[Unlabelled], out: Path
) -> dict[str, Any]:
    """Write the checkpoint with factors. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        task_name: a row of `pipeline.tasks`.
        section: of the recipe.
        texts: unlabelled; not looked at unless `section.weighted`.
        out: the artifact's directory.

    Returns:
        Parameters before and after, and for each matrix its rank with the energy kept, or why it was left whole.

    Raises:
        RecipeError: ranks save nothing.
        InputError: too few calibration texts.
        StudentError: the checkpoint does not load, or has factors already.
    """
    from pipeline.compress.factorise import factors

    return factors.write(source, task_name, section, texts, out)
