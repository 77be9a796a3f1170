"""The stage of `[rotate]`: an embedding is turned so that its first numbers say most, without training.

Of a model that was not trained for it (Matryoshka) the first numbers are worth no more than any others. Turned to the
principal directions of the vectors of calibration texts they are the best that a fixed number of them can be, by least
squares. An orthogonal linear in the head does it: cosines of whole embeddings stay what they were.

Source: Pearson 1901 (principal components), here without a mean, which an orthogonal map could not take off.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint.source import Source
from pipeline.compress.common import SOURCE, Context, Stage, Work
from pipeline.compress.space import embedding, fitting
from pipeline.errors import RecipeError
from pipeline.heads import sentence
from pipeline.heads.steps import Dense
from pipeline.recipe.compression import RotateSection
from pipeline.text import tokenizers

VERSION = 1
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "numpy")
"""Packages that decide the rotation."""
_LEAST_WIDTH = 32
"""Narrowest embedding whose share of the squared length is recorded."""


def make(source: Path, section: RotateSection, texts: Sequence[str], out: Path) -> dict[str, Any]:
    """Write the checkpoint with the rotation in its head. Runs in a worker, since it imports torch.

    Args:
        source: a folder in Hugging Face layout, plain or compressed.
        section: `[rotate]` of the recipe.
        texts: unlabelled, in a random order.
        out: the artifact's directory.

    Returns:
        The share of the vectors' squared length that their first numbers have, by how many those are: of held-out
        texts, as the model gives them and turned by what the other texts gave.

    Raises:
        RecipeError: the width is not below the embedding's.
        StudentError: the checkpoint does not load.
    """
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.train.model import save

    model = load_checkpoint(source, tasks.get("embedding"))
    found = fitting.unit(embedding.vectors(model, source, texts, section.max_length, "the model"))
    held_out = fitting.every_fourth(len(found))
    tried = fitting.principal(found[~held_out])(found[held_out])
    widths = narrower(found.shape[1])
    rotation = fitting.principal(found)
    kept = found.shape[1] if section.width is None else section.width
    embedding.set_linear(_put(model, section), fitting.LinearMap(rotation.weight[:kept]))
    # Vectors that were fitted to another model's are no longer near those.
    embedding.declare_space(model, None)
    save(model, source, out)
    tokenizers.copy(source, out)
    return {
        "texts": len(texts),
        "held_out_texts": int(held_out.sum()),
        "width": kept,
        "share_by_width_before": fitting.shares_kept(found[held_out], widths),
        "share_by_width": fitting.shares_kept(tried, widths),
    }


def narrower(width: int) -> list[int]:
    """Return the widths below an embedding's that are worth knowing: halves and three quarters, falling."""
    halves = [width >> shift for shift in range(1, 12) if width >> shift >= _LEAST_WIDTH]
    return sorted({*halves, *(3 * half // 2 for half in halves if 3 * half // 2 < width)}, reverse=True)


def _put(model: Any, section: RotateSection) -> Any:
    """Put the rotation into a model's head, in place, and return its linear, whose numbers are uninitialised."""
    head = sentence.settings(model)
    whole = head.width(sentence.hidden_size(model.config))
    if section.width is not None and section.width >= whole:
        raise RecipeError(
            f"rotate.width = {section.width}, and the embedding has {whole} numbers; give fewer, or leave it out."
        )
    last = len(head.steps) - head.normalizes
    kept = whole if section.width is None else section.width
    dense = Dense(in_features=whole, out_features=kept, bias=False, activation="Identity")
    widths = tuple(width for width in narrower(whole) if width < kept)
    steps = (*head.steps[:last], dense, *head.steps[last:])
    return embedding.put_linear(model, head.model_copy(update={"steps": steps, "widths": widths}), last)


def trial(section: RotateSection, source: Source) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`."""
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.train.model import outline

    model = load_checkpoint(source, tasks.get("embedding"))
    _put(model, section)
    return outline(model, source)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> RotateSection:
    assert context.recipe.rotate
    return context.recipe.rotate


def _check(context: Context, source: Source) -> None:
    embedding.check_task(context.recipe, "rotate")
    embedding.texts_of(context, "rotate", _section(context))


def _work(context: Context) -> Work:
    section = _section(context)
    params = embedding.params_of(context, "rotate", section)
    arguments = (SOURCE, section, embedding.texts_of(context, "rotate", section))
    return Work(VERSION, params, DISTRIBUTIONS, make, arguments, 60)


ROTATE = Stage(
    "rotate",
    folder="rotated",
    origin="rotated",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source),
)
