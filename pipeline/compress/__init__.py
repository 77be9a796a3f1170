"""Compression stages of a checkpoint, in the order in which they run: one folder per section of the recipe.

Each stage turns a folder in Hugging Face layout into another one, so any of them can be left out. No toolchain is
imported.
"""

from pipeline.compress.common import Context, Stage, Work
from pipeline.compress.distil.plan import DISTIL, HEAD, labelled_data
from pipeline.compress.factorise.stage import FACTORISE
from pipeline.compress.prune.stage import PRUNE
from pipeline.compress.share.stage import SHARE
from pipeline.compress.space.adapter import ADAPTER
from pipeline.compress.space.rotation import ROTATE
from pipeline.compress.space.table import STATIC
from pipeline.compress.start.stage import START
from pipeline.compress.vocabulary.stage import VOCABULARY
from pipeline.recipe.schema import Recipe

__all__ = ["STAGES", "Context", "Stage", "Work", "labelled_data", "stages"]

STAGES = (HEAD, START, VOCABULARY, PRUNE, FACTORISE, SHARE, ADAPTER, DISTIL, STATIC, ROTATE)
"""The stages in the order in which they run: a teacher's head first, pruning before factorisation, so that pruned
structures are not decomposed, and distillation after them, which recovers the quality that they lost. An adapter is
where distillation into its space begins, a static table takes the place of what is trained, and a rotation turns what
is final."""


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages whose section a recipe has, in the order in which they run."""
    return [stage for stage in STAGES if getattr(recipe, stage.name) is not None]
