"""Structured pruning of a model: choose, remove, reconstruct."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.compress.prune.checks import narrowed
from pipeline.compress.prune.importance import importance_by
from pipeline.compress.prune.reconstruction import reconstruct
from pipeline.compress.prune.removal import keep_hidden_columns, keep_layers, keep_structures
from pipeline.compress.prune.search import Kept, keep_all, rearrange, search_budget, search_fraction
from pipeline.compress.prune.selection import select_hidden_columns, select_layers
from pipeline.compress.prune.structure import (
    EncoderShape,
    SublayerKind,
    encoder_macs,
    encoder_shape,
    structure_macs,
    sublayers,
    total_cost,
)
from pipeline.data.calibration import Batches
from pipeline.graph.worker import tell
from pipeline.recipe.compression import PruneSection
from pipeline.tasks import Task


def prune_structures(full: Any, task: Task, section: PruneSection, batches: Batches) -> tuple[Any, dict[str, Any]]:
    """Return a smaller copy of a model, and its metrics; `full` keeps its weights.

    Args:
        full: a Hugging Face model.
        task: its row of `tasks.py`.
        section: `[prune]` of the recipe.
        batches: the calibration set.
    """
    before = encoder_shape(full)
    numbers = list(range(before.layers))
    pruned = copy.deepcopy(full)
    if section.layers is not None:
        tell("layers", 0.0)
        numbers = select_layers(full, batches, section.layers)
        keep_layers(pruned, numbers)
    measured_ms = _measured_ms(pruned, section)
    tell("importance", 0.2)
    kept = _select_structures(pruned, task, section, batches, before, measured_ms)
    keep_structures(pruned, sublayers(pruned), kept)
    columns = None
    if section.hidden_size is not None:
        numbers_kept = select_hidden_columns(
            full, task, batches, section.hidden_size, section.importance, seed=section.seed
        )
        keep_hidden_columns(pruned, numbers_kept)
        columns = torch.from_numpy(numbers_kept)
    tell("reconstruction", 0.5)
    errors = reconstruct(full, pruned, batches, numbers=numbers, columns=columns, solve=section.reconstruct)
    metrics = _metrics(full, pruned, section, numbers, errors)
    return pruned, metrics | {"calibration_texts": batches.count, "structure_ms": measured_ms}


def _select_structures(
    model: Any,
    task: Task,
    section: PruneSection,
    batches: Batches,
    before: EncoderShape,
    measured_ms: dict[SublayerKind, float] | None,
) -> Kept:
    """Search the heads and neurons to keep; all of them where the section names no number of them."""
    encoder, parts = encoder_shape(model), sublayers(model)
    kept = keep_all(encoder.sublayers)
    if not section.counts:
        return kept
    importances = importance_by(section.importance, model, task, parts, batches, seed=section.seed)
    multiple, uniform = section.intermediate_multiple, section.uniform
    if section.compute is not None:
        budget = section.compute * total_cost(before, _costs(before, section, measured_ms))
        kept = search_budget(
            encoder.sublayers,
            importances,
            _costs(narrowed(section, encoder), section, measured_ms),
            budget=budget,
            intermediate_multiple=multiple,
            uniform=uniform,
        )
    fractions: dict[SublayerKind, float | None] = {
        "attention": section.attention_heads,
        "feed_forward": section.intermediate_size,
    }
    for kind, fraction in fractions.items():
        if fraction is not None:
            kept = search_fraction(
                encoder.sublayers,
                importances,
                kept,
                kind,
                fraction=fraction,
                intermediate_multiple=multiple,
                uniform=uniform,
            )
    return rearrange(kept, importances)


def _measured_ms(model: Any, section: PruneSection) -> dict[SublayerKind, float] | None:
    """Return the milliseconds of a head and of a neuron, where costs are milliseconds."""
    if section.costs == "macs" or section.compute is None:
        return None
    from pipeline.compress.prune.latency import measure_structures_ms

    tell("latency", 0.1)
    return measure_structures_ms(model, length=section.cost_length)


def _costs(encoder: EncoderShape, section: PruneSection, measured_ms: dict[SublayerKind, float] | None) -> list[float]:
    if measured_ms is None:
        return structure_macs(encoder, length=section.cost_length)
    return [measured_ms[sublayer.kind] * sublayer.passes for sublayer in encoder.sublayers]


def _metrics(
    full: Any, pruned: Any, section: PruneSection, numbers: Sequence[int], errors: Sequence[float]
) -> dict[str, Any]:
    before, after = encoder_shape(full), encoder_shape(pruned)
    parameters = [sum(parameter.numel() for parameter in model.parameters()) for model in (full, pruned)]
    macs = [encoder_macs(encoder, length=section.cost_length) for encoder in (before, after)]
    return {
        "parameters_before": parameters[0],
        "parameters": parameters[1],
        "encoder_macs_before": macs[0],
        "encoder_macs": macs[1],
        "compute": macs[1] / macs[0],
        "cost_length": section.cost_length,
        "layers": list(numbers),
        "attention_heads": [sublayer.size for sublayer in after.sublayers if sublayer.kind == "attention"],
        "intermediate_size": [sublayer.size for sublayer in after.sublayers if sublayer.kind == "feed_forward"],
        "hidden_size": after.hidden_size,
        "layer_errors": [round(error, 6) for error in errors],
        "mean_layer_error": sum(errors) / len(errors),
    }
