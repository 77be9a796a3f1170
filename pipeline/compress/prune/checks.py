"""Checks that `[prune]` fits a model; they need shapes only, so they work on torch's meta device as well."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from pipeline import architectures
from pipeline.architectures import layers
from pipeline.checkpoint import shapes
from pipeline.compress.prune.structure import (
    KINDS,
    OUTPUT_LINEAR,
    EncoderShape,
    SublayerKind,
    SublayerShape,
    encoder_shape,
    layer_sequence,
    least_cost,
)
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import PruneSection


def check_layers(model: Any) -> None:
    """Refuse a model whose layers have an unknown structure or are factorised already.

    Raises:
        StudentError: a layer's structure is unknown, or it is factorised already.
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
        RecipeError: a setting exceeds the model's layers, columns or positions.
        StudentError: the model's layers do not allow this kind of pruning.
    """
    check_layers(model)
    shape, config = encoder_shape(model), model.config
    longest = architectures.get(config.model_type).max_length(config.to_dict())
    if section.max_length > longest:
        limit = f"the checkpoint's limit of {longest} positions"
        raise RecipeError(f"prune.max_length = {section.max_length} is beyond {limit}.")
    _check_layers(section, shape, model)
    fixed = layers.layout_of(config.model_type).fixed_heads
    if fixed and (section.compute is not None or section.attention_heads is not None):
        raise StudentError(
            f"{config.model_type} keeps its attention heads: {fixed}. Use prune.intermediate_size, prune.layers or "
            "prune.hidden_size."
        )
    if section.hidden_size is not None:
        _check_hidden(section, shape, model)
    if section.costs == "latency":
        _check_timed(section, model, longest)


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
    """Return whether an ALBERT has several groups of shared layers."""
    return int(getattr(model.config, "num_hidden_groups", 1)) > 1


def _check_timed(section: PruneSection, model: Any, longest: int) -> None:
    """Refuse latency costs for a sequence length beyond the model's limit, or for groups of shared layers."""
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
    # transformers' class leaves the projection out where both are equal, so that it would be lost.
    row = architectures.get(model.config.model_type)
    if row.projects_unless_equal and section.hidden_size == row.table_width(model.config):
        raise RecipeError(
            f"prune.hidden_size = {section.hidden_size} is the width of the checkpoint's tables, and "
            f"{row.model_type} has no projection between tables and layers of one width; keep "
            f"{section.hidden_size - 8} or {section.hidden_size + 8} columns."
        )


def check_compute(
    compute: float, sublayers: Sequence[SublayerShape], costs: Sequence[float], *, whole: float, multiple: int
) -> None:
    """Refuse a budget below the cost of the smallest possible encoder.

    Args:
        compute: the budget, as a fraction of the whole encoder's cost.
        sublayers: shapes of the sublayers of the layers that are kept.
        costs: cost of one structure of each sublayer.
        whole: cost of the encoder before pruning.
        multiple: intermediate neurons are kept in multiples of this number.

    Raises:
        RecipeError: the budget is too small; the message has the smallest fraction.
    """
    least = least_cost(sublayers, costs, intermediate_multiple=multiple) / whole
    if compute < least:
        raise RecipeError(
            f"prune.compute = {compute} leaves no head for some layer: a head and {multiple} intermediate neurons of "
            f"each come to {least:.3f} of the encoder. Keep more, or fewer layers."
        )


def narrowed(section: PruneSection, shape: EncoderShape) -> EncoderShape:
    """Return an encoder's shape with the hidden size after pruning."""
    return shape if section.hidden_size is None else replace(shape, hidden_size=section.hidden_size)


def check_fraction(fraction: float, sublayers: Sequence[SublayerShape], kind: SublayerKind, *, multiple: int) -> None:
    """Refuse a fraction of heads or neurons that would leave a layer without any; see `check_compute`.

    Raises:
        RecipeError: the fraction is too small; the message has the numbers of structures.
    """
    key, each = (
        ("attention_heads", "a head")
        if kind == "attention"
        else ("intermediate_size", f"{multiple} intermediate neurons")
    )
    same_kind = [sublayer for sublayer in sublayers if sublayer.kind == kind]
    every = sum(sublayer.size * sublayer.passes for sublayer in same_kind)
    least = sum(
        (1 if kind == "attention" else min(multiple, sublayer.size)) * sublayer.passes for sublayer in same_kind
    )
    if fraction * every < least:
        raise RecipeError(
            f"prune.{key} = {fraction} keeps {int(fraction * every)} of {every}; {each} of each layer are {least}. "
            "Keep more."
        )
