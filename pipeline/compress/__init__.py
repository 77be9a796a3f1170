"""What makes a checkpoint small, in its natural order: one stage a section of the recipe. Imports nothing heavy.

Each stage turns a folder in Hugging Face layout into another one, so any of them can be left out.
"""

from pipeline.checkpoint import source
from pipeline.checkpoint.source import Source
from pipeline.compress.learning import DISTIL, HEAD, own_data
from pipeline.compress.smaller import FACTORISE, PRUNE, SHARE, START, VOCABULARY
from pipeline.compress.stage import Context, Stage, Work
from pipeline.recipe.schema import Recipe

__all__ = ["STAGES", "Context", "Stage", "Work", "at", "own_data", "stages"]

STAGES = (HEAD, START, VOCABULARY, PRUNE, FACTORISE, SHARE, DISTIL)
"""In their order: a teacher's head first; what is cut out need not be decomposed, and what was lost is learnt again at
the end."""


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stages that a recipe asks for, in order."""
    return [stage for stage in STAGES if getattr(recipe, stage.name) is not None]


def at(place: str, context: Context) -> Source:
    """Return a checkpoint that a recipe names besides its own."""
    return source.at(place, context.recipe_file, context.made)
