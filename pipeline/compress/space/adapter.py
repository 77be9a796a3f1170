"""The stage of `[adapter]`: a linear in a new model's head brings its vectors into an old model's space.

So an index of the old model's vectors stays, and the new model asks it. Both models read the same unlabelled texts,
each behind its own default prompt, and the map is solved in closed form.

Source: Xing et al. 2015 and Conneau et al. 2018, who align word vectors so; here whole texts are aligned.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pipeline import tasks
from pipeline.checkpoint.source import Source
from pipeline.checkpoint.source import at as checkpoint_at
from pipeline.compress.common import SOURCE, Context, Stage, Work
from pipeline.compress.space import embedding, fitting
from pipeline.errors import RecipeError
from pipeline.execution.node import Input
from pipeline.heads import sentence
from pipeline.heads.sentence import SentenceHead
from pipeline.heads.steps import Dense, Normalize, Step
from pipeline.recipe.compression import AdapterSection
from pipeline.text import tokenizers

VERSION = 2
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "numpy", "scipy")
"""Packages that decide the map."""
_INTO = "into"


def make(source: Path, into: Path, section: AdapterSection, texts: Sequence[str], out: Path) -> dict[str, Any]:
    """Write the new model's checkpoint with the adapter in its head. Runs in a worker, since it imports torch.

    Args:
        source: the new model's folder, plain or compressed.
        into: the old model's folder, whose space is aimed at.
        section: `[adapter]` of the recipe.
        texts: unlabelled, in a random order.
        out: the artifact's directory.

    Returns:
        What a map of three quarters of the texts does to the last quarter: the mean and the least cosine to the old
        model's vectors, the fraction of texts that find themselves first among the old model's vectors, and whether
        its space is shared, see `embedding.claim_space`.

    Raises:
        RecipeError: an orthogonal map would have to make vectors narrower.
        StudentError: a checkpoint does not load.
    """
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.train.model import save

    task = tasks.get("embedding")
    new, old = load_checkpoint(source, task), load_checkpoint(into, task)
    inputs = embedding.vectors(new, source, texts, section.max_length, "the new model")
    targets = embedding.vectors(old, into, texts, section.max_length, "the old model")
    linear = put(new, sentence.settings(old), targets.shape[1], section.kind)
    held_out = fitting.every_fourth(len(texts))
    ridge = fitting.best_ridge(inputs, targets, held_out) if section.kind == "ridge" else None
    tried = _fitted(inputs[~held_out], targets[~held_out], ridge)(inputs[held_out])
    embedding.set_linear(linear, _fitted(inputs, targets, ridge))
    claim = embedding.claim_space(new, embedding.space_of(into, old), tried, targets[held_out])
    save(new, source, out)
    tokenizers.copy(source, out)
    cosines = (fitting.unit(tried) * fitting.unit(targets[held_out])).sum(1)
    return {
        "kind": section.kind,
        "ridge": ridge,
        "texts": len(texts),
        "held_out_texts": int(held_out.sum()),
        "held_out_mean_cosine": float(cosines.mean()),
        "held_out_least_cosine": float(cosines.min()),
        "held_out_found_first": fitting.found_among(tried, targets[held_out], 1),
        **claim,
    }


def _fitted(inputs: fitting.Vectors, targets: fitting.Vectors, ridge: float | None) -> fitting.LinearMap:
    if ridge is None:
        return fitting.orthogonal(inputs, targets)
    return fitting.least_squares(inputs, targets, ridge=ridge)


def put(new: Any, theirs: SentenceHead, width: int, kind: Literal["ridge", "orthogonal"]) -> Any:
    """Put an adapter into a new model's head, in place, and return its linear, whose numbers are uninitialised.

    The map is of whole embeddings, to such as the old model's.

    Args:
        new: the model, with weights or on torch's meta device.
        theirs: the old model's head.
        width: the width of the old model's embedding.
        kind: see `AdapterSection.kind`.

    Raises:
        RecipeError: an orthogonal map would have to make vectors narrower.
    """
    head = sentence.settings(new)
    mine = head.width(sentence.hidden_size(new.config))
    if kind == "orthogonal" and mine > width:
        raise RecipeError(
            f"adapter.kind = 'orthogonal' keeps all {mine} numbers of the new model's vectors, and those of "
            f"adapter.into have {width}. Use kind = 'ridge'."
        )
    after: tuple[Step, ...] = (Normalize(),) if theirs.normalizes else ()
    # A length that is made one behind a rotation need not be one before it.
    whole = kind == "ridge" or not (head.normalizes and theirs.normalizes)
    before = head.steps if whole else head.steps[:-1]
    dense = Dense(in_features=mine, out_features=width, bias=kind == "ridge", activation="Identity")
    # The embedding is one of the old model's from here on, whose first numbers are worth as much.
    of_old: dict[str, Any] = {"similarity": theirs.similarity, "widths": theirs.widths}
    changed = head.model_copy(update={"steps": (*before, dense, *after), **of_old})
    return embedding.put_linear(new, changed, len(before))


def linear_of(model: Any) -> Any:
    """Return the linear of the last dense step of a model's head."""
    steps = sentence.settings(model).steps
    last = max(number for number, step in enumerate(steps) if step.kind == "Dense")
    return getattr(model, sentence.NAME)[last].linear


def trial(section: AdapterSection, source: Source, into: Source) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`."""
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.train.model import outline

    task = tasks.get("embedding")
    new = load_checkpoint(source, task)
    old = load_checkpoint(into, task)
    theirs = sentence.settings(old)
    put(new, theirs, theirs.width(sentence.hidden_size(old.config)), section.kind)
    return outline(new, source)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> AdapterSection:
    assert context.recipe.adapter
    return context.recipe.adapter


def _into(context: Context) -> Source:
    return checkpoint_at(_section(context).into, context.recipe_file, context.made)


def _check(context: Context, source: Source) -> None:
    embedding.check_task(context.recipe, "adapter")
    if context.recipe.rotate is not None:
        raise RecipeError(
            "[rotate] turns vectors out of the space that [adapter] brings them into. Leave one of them out."
        )
    if _into(context).digest == source.digest:
        raise RecipeError("adapter.into is the student itself, which is in its own space already. Name an older model.")
    embedding.texts_of(context, "adapter", _section(context))


def _work(context: Context) -> Work:
    section = _section(context)
    params = embedding.params_of(context, "adapter", section)
    arguments = (SOURCE, Input(_INTO), section, embedding.texts_of(context, "adapter", section))
    return Work(VERSION, params, DISTRIBUTIONS, make, arguments, 300, {_INTO: section.into})


ADAPTER = Stage(
    "adapter",
    folder="adapted",
    origin="adapted",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source, _into(context)),
)
