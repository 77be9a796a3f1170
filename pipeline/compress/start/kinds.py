"""The kinds of start: each makes a student of a teacher in torch, on any device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipeline import architectures
from pipeline.architectures import layers
from pipeline.architectures.architecture import Architecture, Start
from pipeline.checkpoint import shapes
from pipeline.checkpoint.loading import quieten
from pipeline.checkpoint.source import Source
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import StartSection

_OF_SHAPE = ("width", "random")
"""Kinds whose layers take their shapes from the teacher's config; they need a plain checkpoint."""


def load(source: Path | Source) -> Any:
    """Load a checkpoint in the class that it was saved as; a `Source` without its weights."""
    import transformers

    quieten()
    config = shapes.read_config(source)
    layers.layout_of(config.model_type)
    name = str((config.architectures or ["?"])[0])
    saved_class = getattr(transformers, name, None)
    if saved_class is None or not hasattr(saved_class, "config_class"):
        raise StudentError(f"{shapes.name_of(source)} was saved as {name}, which transformers does not have.")
    auto = next(
        getattr(transformers, auto)
        for suffix, auto in (
            ("ForMaskedLM", "AutoModelForMaskedLM"),
            ("ForSequenceClassification", "AutoModelForSequenceClassification"),
            ("ForTokenClassification", "AutoModelForTokenClassification"),
            ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
            ("", "AutoModel"),
        )
        if name.endswith(suffix)
    )
    model, _ = shapes.from_pretrained(auto, source, config, dtype=torch.float32)
    return model.eval()


def begin(model: Any, section: StartSection) -> Any:
    """Return the student that a section makes of a teacher.

    Args:
        model: the teacher, which may be changed.
        section: `[start]` of the recipe.

    Raises:
        RecipeError: the section does not fit the teacher.
        StudentError: another kind of start is for it.
    """
    _check(section, model)
    start = started_architecture(section)
    if start is None:
        return KINDS[section.kind](model, section)
    return start.make(model, kept_layers(section, int(model.config.num_hidden_layers)), section.embedding_size)


def started_architecture(section: StartSection) -> Start | None:
    """Return the start of a kind that is named after an architecture, such as ALBERT; None for the other kinds."""
    return architectures.get(section.kind).start if section.kind in architectures.STARTED else None


def is_compressed(model: Any, source: Path | Source) -> bool:
    """Return whether the shapes of a student's layers are not determined by its config alone."""
    ties = any(one is not None for one in shapes.sharing(model))
    told = architectures.get(model.config.model_type).shares_layers
    return (ties and not told) or shapes.compressed(source) is not None


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


def _check(section: StartSection, model: Any) -> None:
    config, kind = model.config, model.config.model_type
    start = started_architecture(section)
    if start is not None and kind not in start.teachers:
        raise StudentError(f"start.kind = {section.kind!r} is made of {', '.join(start.teachers)}, and this is {kind}.")
    if (start is not None or section.kind in _OF_SHAPE) and getattr(config, shapes.KEY, None) is not None:
        raise StudentError(
            f"start.kind = {section.kind!r} is made of a plain checkpoint, and this is a compressed one."
        )
    one_layer = architectures.get(kind).shares_layers
    if section.kind in ("layers", "shared") and one_layer and section.teacher_layers != "every_other":
        raise RecipeError(
            f"the layers of {kind} are one; name how many are kept by start.teacher_layers = 'every_other' alone."
        )


def _layers(model: Any, section: StartSection) -> Any:
    """Keep some layers, with embeddings and head."""
    count = int(model.config.num_hidden_layers)
    kept = kept_layers(section, count)
    path = layers.layout_of(model.config.model_type).stack
    if not layers.layout_of(model.config.model_type).inner:
        stack = model.base_model.get_submodule(path)
        layers.put(model.base_model, path, torch.nn.ModuleList([stack[number] for number in kept]))
    model.config.num_hidden_layers = len(kept)
    return model


def _width(model: Any, section: StartSection) -> Any:
    """Keep the first columns of everything of the hidden size, and the same fraction of the intermediate size."""
    config = type(model.config).from_dict(model.config.to_dict())
    old, new = int(config.hidden_size), section.hidden_size
    size = old // int(config.num_attention_heads)
    if new is None:
        raise RecipeError("start.kind = 'width' needs start.hidden_size.")
    if new % size or new > old:
        raise RecipeError(f"start.hidden_size = {new} has to be whole heads of {size} columns, up to {old}.")
    row = architectures.get(config.model_type)
    key = row.keys.intermediate_size
    setattr(config, key, getattr(config, key) * new // old)
    config.num_attention_heads = new // size
    config.hidden_size = new
    _widen_tables(row, config, old)
    small = type(model)(config)
    theirs = model.state_dict()
    with torch.no_grad():
        for name, tensor in small.state_dict().items():
            tensor.copy_(theirs[name][tuple(slice(0, size) for size in tensor.shape)])
    return small.eval()


def _random(model: Any, section: StartSection) -> Any:
    """Keep the architecture alone, with weights as transformers draws them; the section may change the shape."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.num_hidden_layers = section.num_layers or len(kept_layers(section, int(config.num_hidden_layers)))
    hidden, heads = config.hidden_size, config.num_attention_heads
    config.hidden_size = section.hidden_size or hidden
    config.num_attention_heads = section.attention_heads or heads
    row = architectures.get(config.model_type)
    if section.intermediate_size is not None:
        setattr(config, row.keys.intermediate_size, section.intermediate_size)
    if config.hidden_size % config.num_attention_heads:
        raise RecipeError(
            f"start: a hidden size of {config.hidden_size} has no {config.num_attention_heads} equal attention heads; "
            "choose start.hidden_size and start.attention_heads so that the one is a multiple of the other."
        )
    _widen_tables(row, config, hidden)
    torch.manual_seed(section.seed)
    return type(model)(config).eval()


def _widen_tables(row: Architecture, config: Any, before: int) -> None:
    """Set the embedding size to the student's hidden size if it was the teacher's, so that no projection is added."""
    if row.projects_unless_equal and row.keys.embedding_size and row.table_width(config) == before:
        setattr(config, row.keys.embedding_size, config.hidden_size)


def _shared(model: Any, section: StartSection) -> Any:
    """Tie all layers to one layer's attention and feed-forward."""
    every = layers.layers(model)
    owner = every[kept_layers(section, len(every))[0]]
    for layer in every:
        if layer is not owner:
            for kind in ("attention", "feed_forward"):
                shapes.use(layer, owner, kind)
    return model


KINDS: dict[str, Callable[[Any, StartSection], Any]] = {
    "layers": _layers,
    "width": _width,
    "random": _random,
    "shared": _shared,
}
"""The kinds of start that keep the teacher's architecture, each with its function."""
