"""The stage: a student is made of a teacher, with fewer layers, less width, another architecture, or only its shape."""

from pathlib import Path
from typing import Any

from pipeline import architectures
from pipeline.architectures import STARTED
from pipeline.checkpoint.source import Source
from pipeline.compress.common import SOURCE, Context, Stage, Work
from pipeline.errors import RecipeError
from pipeline.recipe.compression import StartSection
from pipeline.text import tokenizers

VERSION = 1
DISTRIBUTIONS = ("torch", "transformers")
"""Packages that decide the weights."""
_KINDS_THAT_READ: dict[str, tuple[str, ...]] = {
    "hidden_size": ("width", "random"),
    "num_layers": ("random",),
    "attention_heads": ("random",),
    "intermediate_size": ("random",),
    "embedding_size": tuple(name for name in STARTED if architectures.get(name).keys.embedding_size),
    "teacher_layers": ("layers", "random", *STARTED, "shared"),
}


def make(source: Path, section: StartSection, out: Path) -> dict[str, Any]:
    """Write a student made of a teacher's checkpoint. Runs in a worker, since it imports torch.

    Returns:
        Layers, hidden size and parameters.

    Raises:
        RecipeError: the section does not fit the checkpoint.
        StudentError: the checkpoint does not load, or another kind of start is for it.
    """
    from pipeline.checkpoint import shapes
    from pipeline.compress.start import kinds

    model = kinds.begin(kinds.load(source), section)
    if kinds.is_compressed(model, source):
        shapes.save(model, out)
    else:
        model.save_pretrained(out, safe_serialization=True, max_shard_size="10GB")
    tokenizers.copy(source, out)
    return {
        "kind": section.kind,
        "layers": int(model.config.num_hidden_layers),
        "hidden_size": int(model.config.hidden_size),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def trial(section: StartSection, source: Source) -> Source:
    """Return the expected student of `make`, from a trial on torch's meta device; raises the errors of `make`."""
    import torch

    from pipeline.checkpoint import shapes
    from pipeline.compress.start import kinds

    teacher = kinds.load(source)
    with torch.device("meta"):
        model = kinds.begin(teacher, section)
    return shapes.outline(model, source, compressed=kinds.is_compressed(model, source))


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> StartSection:
    assert context.recipe.start
    return context.recipe.start


def _check(context: Context, source: Source) -> None:
    """Refuse settings that the kind of start does not read."""
    section = _section(context)
    for key, able in _KINDS_THAT_READ.items():
        if key in section.model_fields_set and section.kind not in able:
            raise RecipeError(f"start.{key} says nothing of kind {section.kind!r}; it is for {', '.join(able)}.")
    if {"num_layers", "teacher_layers"} <= section.model_fields_set:
        raise RecipeError("start.num_layers and start.teacher_layers say the same in two ways; give one of them.")


def _work(context: Context) -> Work:
    section = _section(context)
    params = {"settings": section.model_dump(mode="json")}
    return Work(VERSION, params, DISTRIBUTIONS, make, (SOURCE, section), 10)


START = Stage(
    "start",
    folder="started",
    origin="begun smaller",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source),
)
