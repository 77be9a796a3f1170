"""What makes a checkpoint small, in its natural order: one folder a section of the recipe. Imports nothing heavy.

Each stage turns a folder in Hugging Face layout into another one, so any of them can be left out.
"""

from pipeline.compress.common import Context, Stage, Work
from pipeline.compress.distil.plan import DISTIL, HEAD, labelled_data
from pipeline.compress.factorise.stage import FACTORISE
from pipeline.compress.prune.stage import PRUNE
from pipeline.compress.share.stage import SHARE
from pipeline.compress.start.stage import START
from pipeline.compress.vocabulary.stage import VOCABULARY
from pipeline.recipe.schema import Recipe

__all__ = ["STAGES", "Context", "Stage", "Work", "labelled_data", "stages"]

STAGES = (HEAD, START, VOCABULARY, PRUNE, FACTORISE, SHARE, DISTIL)
"""In their order: a teacher's head first; what is cut out need not be decomposed, and what was lost is learnt again at
the end."""


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that a recipe asks for, in order."""
    return [stage for stage in STAGES if getattr(recipe, stage.name) is not None]
