"""Refuse a `[prune]` that a checkpoint cannot follow, before any work. Imports nothing heavy."""

from dataclasses import replace

from pipeline.checkpoint.source import Source
from pipeline.compress.prune.structure import (
    EncoderShape,
    SublayerKind,
    encoder_macs,
    least_cost,
    stored_shape,
    structure_macs,
)
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import STRUCTURE, PruneSection
from pipeline.tasks import Task


def check(section: PruneSection, source: Source, task: Task) -> EncoderShape:
    """Refuse pruning that cannot be carried out.

    Returns:
        The shape of the checkpoint's encoder.

    Raises:
        RecipeError: the section asks for nothing, for two things at once, or for what the checkpoint does not have.
        StudentError: the checkpoint's layers cannot be taken apart.
    """
    shape = stored_shape(source)
    _check_asked(section)
    if not section.cuts:
        return shape
    if section.max_length > source.max_length:
        limit = f"the checkpoint's limit of {source.max_length} positions"
        raise RecipeError(f"prune.max_length = {section.max_length} is beyond {limit}.")
    _check_layers(section, shape, source)
    if section.hidden_size is not None:
        _check_hidden(section, shape, source)
    _check_compute(section, shape)
    if section.costs == "latency":
        _check_timed(section, source)
    if section.attention_heads is not None:
        _check_fraction(section, shape, "attention", section.attention_heads)
    if section.intermediate_size is not None:
        _check_fraction(section, shape, "feed_forward", section.intermediate_size)
    return shape


def _check_asked(section: PruneSection) -> None:
    asked = {name for name in (*STRUCTURE, "sparse") if getattr(section, name)}
    if not asked:
        raise RecipeError(f"[prune] asks for nothing; give {', '.join(STRUCTURE)} or sparse.")
    if section.sparse is not None and section.sparse.by == "movement":
        raise RecipeError(
            "prune.sparse.by = 'movement' follows what a loss does to the weights, and [prune] has no loss. Give "
            "[train] or [distil] the table instead: [train.sparse] or [distil.sparse], with the same keys."
        )
    if "compute" in asked and asked & {"attention_heads", "intermediate_size"}:
        raise RecipeError(
            "[prune] has compute, which decides on attention_heads and intermediate_size itself; give it alone, or "
            "these two alone."
        )


def _check_layers(section: PruneSection, shape: EncoderShape, source: Source) -> None:
    named = section.layers
    if named is None:
        return
    if int(source.config.get("num_hidden_groups") or 1) > 1:
        raise StudentError(
            f"{source.origin} has groups of shared layers, whose passes cannot be told apart; leave out prune.layers."
        )
    if any((source.config.get("pocketbert") or {}).get(name) for name in ("attention", "feed_forward")):
        raise StudentError(f"{source.origin} shares parts between its layers; prune layers first, and share then.")
    if isinstance(named, int):
        if named >= shape.layers:
            raise RecipeError(f"prune.layers = {named}, and the checkpoint has {shape.layers}; keep fewer.")
        return
    absent = [number for number in named if not 0 <= number < shape.layers]
    if absent:
        raise RecipeError(f"prune.layers names layer {absent[0]}; the checkpoint has 0 to {shape.layers - 1}.")
    if list(named) != sorted(set(named)) or len(named) == shape.layers:
        raise RecipeError(f"prune.layers = {list(named)} has to rise, each number once, and leave a layer out.")


def _check_timed(section: PruneSection, source: Source) -> None:
    """Refuse what one layer's file cannot be timed for."""
    if section.cost_length > source.max_length:
        limit = f"the checkpoint's limit of {source.max_length} positions"
        raise RecipeError(f"prune.cost_length = {section.cost_length} is beyond {limit}, and cannot be timed.")
    if section.hidden_size is not None:
        raise RecipeError(
            "prune.costs = 'latency' times the layers as they are, before prune.hidden_size makes them narrower; "
            "leave one of them out."
        )
    if int(source.config.get("num_hidden_groups") or 1) > 1:
        raise StudentError(
            f"{source.origin} has groups of shared layers, of which none can be timed alone; use prune.costs = 'macs'."
        )


def _check_hidden(section: PruneSection, shape: EncoderShape, source: Source) -> None:
    assert section.hidden_size is not None
    if not 8 <= section.hidden_size < shape.hidden_size:
        raise RecipeError(
            f"prune.hidden_size = {section.hidden_size}; the checkpoint has {shape.hidden_size} columns: keep 8 or "
            "more of them, and not all."
        )
    # transformers' ELECTRA leaves the projection out where both are equal, so that it would be lost.
    if source.architecture.model_type == "electra" and section.hidden_size == source.config.get("embedding_size"):
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
