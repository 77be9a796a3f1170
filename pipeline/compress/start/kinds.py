"""The kinds of start: each makes a student of a teacher in torch, on any device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipeline.checkpoint import layers, shapes
from pipeline.checkpoint.loading import quieten
from pipeline.checkpoint.source import Source
from pipeline.compress.start import reshaping
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import StartSection

_BERT_LIKE = ("bert",)
"""Architectures of which DistilBERT and ALBERT can take each tensor."""
_FROM_PLAIN = ("distilbert", "albert", "width", "random")
"""Kinds that need a teacher whose config tells the shapes of its layers."""


def load(source: Path | Source) -> Any:
    """Load a checkpoint in the class that it was saved as; a `Source` without its weights."""
    import transformers

    quieten()
    config = shapes.read_config(source)
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
    return KINDS[section.kind](model, section)


def is_compressed(model: Any, source: Path | Source) -> bool:
    """Return whether a student's config alone does not tell the shapes of its layers."""
    ties = any(one is not None for one in shapes.sharing(model)) and model.config.model_type != "albert"
    return ties or shapes.compressed(source) is not None


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
    layers.layout_of(kind)
    if section.kind in ("distilbert", "albert") and kind not in _BERT_LIKE:
        raise StudentError(f"start.kind = {section.kind!r} is made of {', '.join(_BERT_LIKE)}, and this is {kind}.")
    if section.kind in _FROM_PLAIN and getattr(config, shapes.KEY, None) is not None:
        raise StudentError(
            f"start.kind = {section.kind!r} is made of a plain checkpoint, and this is a compressed one."
        )
    if section.kind in ("layers", "shared") and kind == "albert" and section.teacher_layers != "every_other":
        raise RecipeError(
            "ALBERT's layers are one; name how many are kept by start.teacher_layers = 'every_other' alone."
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
    key = _intermediate_key(config)
    setattr(config, key, getattr(config, key) * new // old)
    config.num_attention_heads = new // size
    config.hidden_size = new
    if config.model_type == "electra" and config.embedding_size == old:
        # Its class has a projection between tables and layers wherever their widths differ, and the teacher has none.
        config.embedding_size = new
    small = type(model)(config)
    reshaping.copy_first(model, small)
    return small.eval()


def _random(model: Any, section: StartSection) -> Any:
    """Keep the architecture alone, with weights as transformers draws them; the section may change the shape."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.num_hidden_layers = section.num_layers or len(kept_layers(section, int(config.num_hidden_layers)))
    hidden, heads = config.hidden_size, config.num_attention_heads
    config.hidden_size = section.hidden_size or hidden
    config.num_attention_heads = section.attention_heads or heads
    if section.intermediate_size is not None:
        setattr(config, _intermediate_key(config), section.intermediate_size)
    if config.hidden_size % config.num_attention_heads:
        raise RecipeError(
            f"start: a hidden size of {config.hidden_size} has no {config.num_attention_heads} equal attention heads; "
            "choose start.hidden_size and start.attention_heads so that the one is a multiple of the other."
        )
    if config.model_type == "electra" and config.embedding_size == hidden:
        config.embedding_size = config.hidden_size
    torch.manual_seed(section.seed)
    return type(model)(config).eval()


def _intermediate_key(config: Any) -> str:
    """Return what an architecture's config calls the intermediate size."""
    return {"distilbert": "hidden_dim"}.get(config.model_type, "intermediate_size")


def _distilbert(model: Any, section: StartSection) -> Any:
    return reshaping.distilbert(_layers(model, section))


def _albert(model: Any, section: StartSection) -> Any:
    first = kept_layers(section, int(model.config.num_hidden_layers))[0]
    hidden = int(model.config.hidden_size)
    if section.embedding_size is not None and section.embedding_size > hidden:
        raise RecipeError(
            f"start.embedding_size = {section.embedding_size} is more than the teacher's {hidden} columns."
        )
    return reshaping.albert(model, layer=first, embedding_size=section.embedding_size)


def _shared(model: Any, section: StartSection) -> Any:
    """Let all layers use one layer's attention and feed-forward."""
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
    "distilbert": _distilbert,
    "albert": _albert,
    "shared": _shared,
}
"""A row for each kind of start."""
