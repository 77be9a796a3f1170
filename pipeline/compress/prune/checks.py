"""Refuse a `[prune]` that does not fit a model, with its weights or on torch's meta device."""

from dataclasses import replace
from typing import Any

from torch import nn

from pipeline.checkpoint import architectures, shapes
from pipeline.compress.prune.structure import (
    KINDS,
    OUTPUT_LINEAR,
    EncoderShape,
    SublayerKind,
    encoder_macs,
    encoder_shape,
    layer_sequence,
    least_cost,
    structure_macs,
)
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import PruneSection


def check_layers(model: Any) -> None:
    """Refuse a model whose layers cannot be taken apart.

    Raises:
        StudentError: they cannot, or are factorised already.
    """
    for number, layer in enumerate(layer_sequence(model)):
        for kind in KINDS:
            if isinstance(layer.get(OUTPUT_LINEAR[kind]), nn.Sequential):
                raise StudentError(
                    f"the {kind.replace('_', '-')} of layer {number} is factorised already; prune first, factorise "
                    "what is left."
                )


def check(section: PruneSection, model: Any) -> None:
    """Refuse structured pruning that does not fit a model.

    Raises:
        RecipeError: the section asks for what the model does not have, or leaves nothing of a layer.
        StudentError: the model's layers cannot be pruned so.
    """
    check_layers(model)
    shape, config = encoder_shape(model), model.config
    longest = architectures.get(config.model_type).max_length(config.to_dict())
    if section.max_length > longest:
        limit = f"the checkpoint's limit of {longest} positions"
        raise RecipeError(f"prune.max_length = {section.max_length} is beyond {limit}.")
    _check_layers(section, shape, model)
    if section.hidden_size is not None:
        _check_hidden(section, shape, model)
    _check_compute(section, shape)
    if section.costs == "latency":
        _check_timed(section, model, longest)
    if section.attention_heads is not None:
        _check_fraction(section, shape, "attention", section.attention_heads)
    if section.intermediate_size is not None:
        _check_fraction(section, shape, "feed_forward", section.intermediate_size)


def _check_layers(section: PruneSection, shape: EncoderShape, model: Any) -> None:
    named = section.layers
    if named is None:
        return
    if _has_groups(model):
        raise StudentError(
            "the checkpoint has groups of shared layers, whose passes cannot be told apart; leave out prune.layers."
        )
    if shapes.sharing(model) != (None, None):
        raise StudentError("the checkpoint shares parts between its layers; prune layers first, and share then.")
    if isinstance(named, int):
        if named >= shape.layers:
            raise RecipeError(f"prune.layers = {named}, and the checkpoint has {shape.layers}; keep fewer.")
        return
    absent = [number for number in named if not 0 <= number < shape.layers]
    if absent:
        raise RecipeError(f"prune.layers names layer {absent[0]}; the checkpoint has 0 to {shape.layers - 1}.")
    if list(named) != sorted(set(named)) or len(named) == shape.layers:
        raise RecipeError(f"prune.layers = {list(named)} has to rise, each number once, and leave a layer out.")


def _has_groups(model: Any) -> bool:
    """Return whether several layers of an ALBERT are passed in turn."""
    return int(getattr(model.config, "num_hidden_groups", 1)) > 1


def _check_timed(section: PruneSection, model: Any, longest: int) -> None:
    """Refuse what one layer's file cannot be timed for."""
    if section.cost_length > longest:
        limit = f"the checkpoint's limit of {longest} positions"
        raise RecipeError(f"prune.cost_length = {section.cost_length} is beyond {limit}, and cannot be timed.")
    if _has_groups(model):
        raise StudentError(
            "the checkpoint has groups of shared layers, of which none can be timed alone; use prune.costs = 'macs'."
        )


def _check_hidden(section: PruneSection, shape: EncoderShape, model: Any) -> None:
    assert section.hidden_size is not None
    if not 8 <= section.hidden_size < shape.hidden_size:
        raise RecipeError(
            f"prune.hidden_size = {section.hidden_size}; the checkpoint has {shape.hidden_size} columns: keep 8 or "
            "more of them, and not all."
        )
    # transformers' ELECTRA leaves the projection out where both are equal, so that it would be lost.
    if model.config.model_type == "electra" and section.hidden_size == model.config.embedding_size:
        raise RecipeError(
            f"prune.hidden_size = {section.hidden_size} is the width of the checkpoint's tables, and ELECTRA has no "
            f"projection between tables and layers of one width; keep {section.hidden_size - 8} or "
            f"{section.hidden_size + 8} columns."
        )


def _check_compute(section: PruneSection, shape: EncoderShape) -> None:
    if section.compute is None:
        return
    whole = encoder_macs(shape, length=section.cost_length)
    prices = structure_macs(narrowed(section, shape), length=section.cost_length)
    share = _kept_layers_share(section, shape)
    least = least_cost(shape.sublayers, prices, intermediate_multiple=section.intermediate_multiple) * share / whole
    if section.compute < least:
        raise RecipeError(
            f"prune.compute = {section.compute} leaves no head for some layer: a head and "
            f"{section.intermediate_multiple} intermediate neurons of each come to {least:.3f} of the encoder. Keep "
            "more, or fewer layers."
        )


def narrowed(section: PruneSection, shape: EncoderShape) -> EncoderShape:
    """Return an encoder's shape with the hidden size that `[prune]` leaves."""
    return shape if section.hidden_size is None else replace(shape, hidden_size=section.hidden_size)


def _kept_layers_share(section: PruneSection, shape: EncoderShape) -> float:
    if section.layers is None:
        return 1.0
    return (section.layers if isinstance(section.layers, int) else len(section.layers)) / shape.layers


def _check_fraction(section: PruneSection, shape: EncoderShape, kind: SublayerKind, fraction: float) -> None:
    multiple = section.intermediate_multiple
    key, each = (
        ("attention_heads", "a head")
        if kind == "attention"
        else ("intermediate_size", f"{multiple} intermediate neurons")
    )
    same_kind = [sublayer for sublayer in shape.sublayers if sublayer.kind == kind]
    every = sum(sublayer.size * sublayer.passes for sublayer in same_kind)
    least = sum(
        (1 if kind == "attention" else min(multiple, sublayer.size)) * sublayer.passes for sublayer in same_kind
    )
    if fraction * every < least:
        raise RecipeError(
            f"prune.{key} = {fraction} keeps {int(fraction * every)} of {every}; {each} of each layer are {least}. "
            "Keep more."
        )
