"""`[prune]` of a recipe, and what is wrong with it for a checkpoint. Imports nothing heavy."""

from dataclasses import replace

from pipeline.checkpoint.source import Source
from pipeline.compress.prune import costs, parts
from pipeline.compress.prune.parts import Outline
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import STRUCTURE, PruneSection
from pipeline.tasks import Task


def check(section: PruneSection, source: Source, task: Task) -> Outline:
    """Refuse pruning that cannot be carried out.

    Returns:
        The shape of the checkpoint's encoder.

    Raises:
        RecipeError: the section asks for nothing, for two things at once, or for what the checkpoint does not have.
        StudentError: the checkpoint's layers cannot be taken apart.
    """
    shape = parts.read(source)
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
    for kind, kept in (("heads", section.attention_heads), ("feed_forward", section.intermediate_size)):
        if kept is not None:
            _check_fraction(shape, kind, kept, section.intermediate_multiple)
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


def _check_layers(section: PruneSection, shape: Outline, source: Source) -> None:
    wanted = section.layers
    if wanted is None:
        return
    if int(source.config.get("num_hidden_groups") or 1) > 1:
        raise StudentError(
            f"{source.origin} has groups of shared layers, whose passes cannot be told apart; leave out prune.layers."
        )
    if any((source.config.get("pocketbert") or {}).get(name) for name in ("attention", "feed_forward")):
        raise StudentError(f"{source.origin} shares parts between its layers; prune layers first, and share then.")
    if isinstance(wanted, int):
        if wanted >= shape.layers:
            raise RecipeError(f"prune.layers = {wanted}, and the checkpoint has {shape.layers}; keep fewer.")
        return
    absent = [number for number in wanted if not 0 <= number < shape.layers]
    if absent:
        raise RecipeError(f"prune.layers names layer {absent[0]}; the checkpoint has 0 to {shape.layers - 1}.")
    if list(wanted) != sorted(set(wanted)) or len(wanted) == shape.layers:
        raise RecipeError(f"prune.layers = {list(wanted)} has to rise, each number once, and leave a layer out.")


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


def _check_hidden(section: PruneSection, shape: Outline, source: Source) -> None:
    assert section.hidden_size is not None
    if not 8 <= section.hidden_size < shape.hidden:
        raise RecipeError(
            f"prune.hidden_size = {section.hidden_size}; the checkpoint has {shape.hidden} columns: keep 8 or more of "
            "them, and not all."
        )
    # transformers' ELECTRA leaves the projection out where both are equal, so that it would be lost.
    if source.architecture.model_type == "electra" and section.hidden_size == source.config.get("embedding_size"):
        raise RecipeError(
            f"prune.hidden_size = {section.hidden_size} is the width of the checkpoint's tables, and ELECTRA has no "
            f"projection between tables and layers of one width; keep {section.hidden_size - 8} or "
            f"{section.hidden_size + 8} columns."
        )


def _check_compute(section: PruneSection, shape: Outline) -> None:
    if section.compute is None:
        return
    whole = costs.encoder_multiply_adds(shape, length=section.cost_length)
    prices = costs.unit_costs(narrowed(section, shape), length=section.cost_length)
    left = kept_share(section, shape)
    least = costs.least_cost(shape.parts, prices, rows=section.intermediate_multiple) * left / whole
    if section.compute < least:
        raise RecipeError(
            f"prune.compute = {section.compute} leaves no head for some layer: a head and "
            f"{section.intermediate_multiple} intermediate neurons of each come to {least:.3f} of the encoder. Keep "
            "more, or fewer layers."
        )


def narrowed(section: PruneSection, shape: Outline) -> Outline:
    """Return an encoder's shape with the hidden columns that stay."""
    return shape if section.hidden_size is None else replace(shape, hidden=section.hidden_size)


def kept_share(section: PruneSection, shape: Outline) -> float:
    """Return the share of layers that stay."""
    if section.layers is None:
        return 1.0
    return (section.layers if isinstance(section.layers, int) else len(section.layers)) / shape.layers


def _check_fraction(shape: Outline, kind: str, kept: float, rows: int) -> None:
    of_kind = [part for part in shape.parts if part.kind == kind]
    every = sum(part.units * part.passes for part in of_kind)
    least = sum((1 if kind == "heads" else min(rows, part.units)) * part.passes for part in of_kind)
    if kept * every < least:
        key, each = (
            ("attention_heads", "a head") if kind == "heads" else ("intermediate_size", f"{rows} intermediate neurons")
        )
        raise RecipeError(
            f"prune.{key} = {kept} keeps {int(kept * every)} of {every}; {each} of each layer are {least}. Keep more."
        )
