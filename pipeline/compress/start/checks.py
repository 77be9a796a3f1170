"""Refuse a `[start]` that a teacher cannot give, and foretell its shape. Imports nothing heavy."""

from pipeline.checkpoint import layers
from pipeline.checkpoint.source import Source
from pipeline.compress.prune.structure import head_count, hidden_size, layer_count
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import StartSection
from pipeline.train.checks import has_masked_lm_head

VERSION = 1
"""Version of the stage."""
_BERT_LIKE = ("bert",)
"""Architectures of which DistilBERT and ALBERT can take each tensor."""


def kept_layers(section: StartSection, count: int) -> tuple[int, ...]:
    """Return the teacher's layers that are kept, from 0.

    Raises:
        RecipeError: there is no such layer, or one is named twice or out of order.

    Source: Sanh et al. 2019 (DistilBERT), section 3: one layer of two.
    """
    if section.teacher_layers == "every_other":
        return tuple(range(0, count, 2))
    if not section.teacher_layers:
        raise RecipeError(f"start.teacher_layers names no layer; the teacher has 0 to {count - 1}.")
    beyond = [number for number in section.teacher_layers if number >= count]
    if beyond:
        raise RecipeError(f"start.teacher_layers names layer {beyond[0]}; the teacher has 0 to {count - 1}.")
    if list(section.teacher_layers) != sorted(set(section.teacher_layers)):
        raise RecipeError("start.teacher_layers has to rise, each layer once.")
    return section.teacher_layers


def check(section: StartSection, teacher: Source) -> None:
    """Refuse a start that the teacher cannot give, before anything heavy is imported."""
    kind = teacher.architecture.model_type
    layers.layout_of(kind)
    count = layer_count(teacher)
    kept_layers(section, count)
    _check_settings(section, teacher)
    if section.kind in ("distilbert", "albert") and kind not in _BERT_LIKE:
        raise StudentError(f"start.kind = {section.kind!r} is made of {', '.join(_BERT_LIKE)}, and this is {kind}.")
    if section.kind in ("distilbert", "albert", "width", "random") and _compressed(teacher):
        raise StudentError(
            f"start.kind = {section.kind!r} is made of a plain checkpoint, and this is a compressed one."
        )
    if section.kind in ("layers", "shared") and kind == "albert" and section.teacher_layers != "every_other":
        raise RecipeError(
            "ALBERT's layers are one; name how many are kept by start.teacher_layers = 'every_other' alone."
        )
    if section.kind == "width":
        _check_width(section, teacher)


def _check_settings(section: StartSection, teacher: Source) -> None:
    """Refuse settings that the kind of start does not read, or that it cannot give."""
    kinds: dict[str, tuple[str, ...]] = {
        "hidden_size": ("width",),
        "embedding_size": ("albert",),
        "teacher_layers": ("layers", "random", "distilbert", "albert", "shared"),
    }
    for key, able in kinds.items():
        if key in section.model_fields_set and section.kind not in able:
            raise RecipeError(f"start.{key} says nothing of kind {section.kind!r}; it is for {', '.join(able)}.")
    if section.embedding_size is not None and section.embedding_size > hidden_size(teacher):
        columns = hidden_size(teacher)
        raise RecipeError(
            f"start.embedding_size = {section.embedding_size} is more than the teacher's {columns} columns."
        )


def expected(section: StartSection, teacher: Source) -> Source:
    """Return a checkpoint as the start will leave it, its layers and its head, for checks of later stages."""
    if section.kind in ("layers", "random", "distilbert"):
        teacher = with_layers(teacher, len(kept_layers(section, layer_count(teacher))))
    if section.kind == "width":
        assert section.hidden_size is not None
        heads = section.hidden_size * head_count(teacher.config) // hidden_size(teacher)
        teacher = _with(with_hidden_size(teacher, section.hidden_size), ("num_attention_heads", "n_heads"), heads)
    if section.kind == "albert" or (section.kind == "distilbert" and not has_masked_lm_head(teacher)):
        return without_head(teacher)
    return teacher


def without_head(source: Source) -> Source:
    """Return a checkpoint without its head."""
    return source.foretold(architectures=["Model"])


def with_layers(source: Source, count: int) -> Source:
    """Return a checkpoint with another number of layers in its config."""
    return _with(source, ("num_hidden_layers", "n_layers"), count)


def with_hidden_size(source: Source, size: int) -> Source:
    """Return a checkpoint with another hidden size in its config."""
    if source.config.get("embedding_size") == source.config.get("hidden_size"):
        source = _with(source, ("embedding_size", "dim"), size)
    return _with(source, ("hidden_size", "dim"), size)


def _with(source: Source, names: tuple[str, ...], value: int) -> Source:
    key = next(name for name in names if name in source.config)
    return source.foretold(**{key: value})


def _compressed(teacher: Source) -> bool:
    """Return whether the layers of a checkpoint have shapes that its config does not tell."""
    return teacher.config.get("pocketbert") is not None


def _check_width(section: StartSection, teacher: Source) -> None:
    hidden = hidden_size(teacher)
    size = hidden // head_count(teacher.config)
    if section.hidden_size is None:
        raise RecipeError("start.kind = 'width' needs start.hidden_size.")
    if section.hidden_size % size or section.hidden_size > hidden:
        raise RecipeError(
            f"start.hidden_size = {section.hidden_size} has to be whole heads of {size} columns, up to {hidden}."
        )
