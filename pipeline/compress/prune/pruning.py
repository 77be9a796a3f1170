"""Structured pruning of a model: choose, remove, reconstruct."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.compress.prune import checks
from pipeline.compress.prune.checks import narrowed
from pipeline.compress.prune.importance import Importance, importance_by
from pipeline.compress.prune.reconstruction import reconstruct
from pipeline.compress.prune.removal import keep_hidden_columns, keep_layers, keep_structures
from pipeline.compress.prune.search import KeptStructures, keep_all, rearrange, search_budget, search_fraction
from pipeline.compress.prune.selection import select_hidden_columns, select_layers
from pipeline.compress.prune.structure import (
    EncoderShape,
    Sublayer,
    SublayerKind,
    encoder_macs,
    encoder_shape,
    structure_macs,
    sublayers,
    total_cost,
)
from pipeline.data.calibration import Batches
from pipeline.execution.worker import tell
from pipeline.recipe.compression import PruneSection
from pipeline.tasks import Task


class Choices(Protocol):
    """The protocol for choosing the layers, structures and hidden columns to keep."""

    def layers(self, model: Any, keep: int | Sequence[int]) -> list[int]:
        """Return the numbers of the layers to keep, ascending; `keep` is their number, or lists them."""

    def structure_ms(self, model: Any) -> dict[SublayerKind, float] | None:
        """Return the milliseconds of a head and of a neuron; None if costs are MACs."""

    def importance(self, model: Any, parts: Sequence[Sublayer]) -> list[Importance]:
        """Return the importance of the structures of each sublayer."""

    def hidden_columns(self, model: Any, hidden_size: int) -> NDArray[np.int64]:
        """Return the numbers of the hidden columns to keep, ascending."""


@dataclass(frozen=True)
class MeasuredChoices:
    """Choices based on the model's weights and a calibration set."""

    task: Task
    section: PruneSection
    batches: Batches

    def layers(self, model: Any, keep: int | Sequence[int]) -> list[int]:
        """Leave out the layers without which the last hidden states change least."""
        tell("layers", 0.0)
        return select_layers(model, self.batches, keep)

    def structure_ms(self, model: Any) -> dict[SublayerKind, float] | None:
        """Measure the latency of single-layer files if the section's costs are latency; otherwise return None."""
        if self.section.costs == "macs" or self.section.compute is None:
            return None
        from pipeline.compress.prune.latency import measure_structures_ms

        tell("latency", 0.1)
        return measure_structures_ms(model, length=self.section.cost_length)

    def importance(self, model: Any, parts: Sequence[Sublayer]) -> list[Importance]:
        """Follow the section's criterion."""
        criterion, seed = self.section.importance, self.section.seed
        return importance_by(criterion, model, self.task, parts, self.batches, seed=seed)

    def hidden_columns(self, model: Any, hidden_size: int) -> NDArray[np.int64]:
        """Follow the section's criterion."""
        criterion, seed = self.section.importance, self.section.seed
        return select_hidden_columns(model, self.task, self.batches, hidden_size, criterion, seed=seed)


class WeightlessChoices:
    """Choices without weights, for a trial on torch's meta device.

    A structure's importance is its MACs, scaled down for heads, so that a budget keeps as few heads as it can. Among
    equals the search keeps the first, so that the last layer, whose heads some losses compare, keeps the fewest.
    """

    def layers(self, model: Any, keep: int | Sequence[int]) -> list[int]:
        """Keep the first layers."""
        return list(range(keep)) if isinstance(keep, int) else sorted(keep)

    def structure_ms(self, model: Any) -> dict[SublayerKind, float] | None:
        """Return None, so that costs are counted in MACs."""
        return None

    def importance(self, model: Any, parts: Sequence[Sublayer]) -> list[Importance]:
        """Return the MACs of each structure as its importance, multiplied by 2⁻¹⁰ for heads."""
        weights: dict[SublayerKind, float] = {"attention": 2.0**-10, "feed_forward": 1.0}
        macs = structure_macs(encoder_shape(model))
        return [
            Importance(np.full(part.shape.size, weights[part.shape.kind] * each))
            for part, each in zip(parts, macs, strict=True)
        ]

    def hidden_columns(self, model: Any, hidden_size: int) -> NDArray[np.int64]:
        """Keep the first columns."""
        return np.arange(hidden_size)


@dataclass(frozen=True)
class Pruned:
    """A pruned model, with the record of the layers and hidden columns it kept."""

    model: Any
    layers: list[int]
    """For each layer, its number in the full model, counted in passes."""
    columns: torch.Tensor | None
    """Numbers of the hidden columns that were kept; None for all."""
    structure_ms: dict[SublayerKind, float] | None


def remove_structures(full: Any, section: PruneSection, choices: Choices) -> Pruned:
    """Return a smaller copy of a model, on any device; `full` keeps its weights.

    Raises:
        RecipeError: the section does not fit the model.
        StudentError: the model's layers do not allow this kind of pruning.
    """
    checks.check(section, full)
    before = encoder_shape(full)
    numbers = list(range(before.layers))
    model = copy.deepcopy(full)
    if section.layers is not None:
        numbers = choices.layers(full, section.layers)
        keep_layers(model, numbers)
    structure_ms = choices.structure_ms(model)
    tell("importance", 0.2)
    kept = _select_structures(model, section, choices, before, structure_ms)
    keep_structures(model, sublayers(model), kept)
    columns = None
    if section.hidden_size is not None:
        kept_columns = choices.hidden_columns(full, section.hidden_size)
        keep_hidden_columns(model, kept_columns)
        columns = torch.from_numpy(kept_columns)
    return Pruned(model, numbers, columns, structure_ms)


def prune_structures(full: Any, task: Task, section: PruneSection, batches: Batches) -> tuple[Any, dict[str, Any]]:
    """Return a smaller copy of a model, and its metrics; `full` keeps its weights.

    Args:
        full: a Hugging Face model.
        task: its row of `tasks.py`.
        section: `[prune]` of the recipe.
        batches: the calibration set.
    """
    pruned = remove_structures(full, section, MeasuredChoices(task, section, batches))
    tell("reconstruction", 0.5)
    numbers, columns = pruned.layers, pruned.columns
    errors = reconstruct(full, pruned.model, batches, numbers=numbers, columns=columns, solve=section.reconstruct)
    metrics = _metrics(full, pruned.model, section, numbers, errors)
    return pruned.model, metrics | {"calibration_texts": batches.count, "structure_ms": pruned.structure_ms}


def _select_structures(
    model: Any,
    section: PruneSection,
    choices: Choices,
    before: EncoderShape,
    measured_ms: dict[SublayerKind, float] | None,
) -> KeptStructures:
    """Return the heads and neurons to keep; all of them if the section sets no number, fraction or budget."""
    encoder, parts = encoder_shape(model), sublayers(model)
    kept = keep_all(encoder.sublayers)
    if not section.counts:
        return kept
    multiple, uniform = section.intermediate_multiple, section.uniform
    whole = total_cost(before, _costs(before, section, measured_ms))
    costs = _costs(narrowed(section, encoder), section, measured_ms)
    given: dict[SublayerKind, float | None] = {
        "attention": section.attention_heads,
        "feed_forward": section.intermediate_size,
    }
    fractions = {kind: fraction for kind, fraction in given.items() if fraction is not None}
    if section.compute is not None:
        checks.check_compute(section.compute, encoder.sublayers, costs, whole=whole, multiple=multiple)
    for kind, fraction in fractions.items():
        checks.check_fraction(fraction, encoder.sublayers, kind, multiple=multiple)
    importances = choices.importance(model, parts)
    if section.compute is not None:
        kept = search_budget(
            encoder.sublayers,
            importances,
            costs,
            budget=section.compute * whole,
            intermediate_multiple=multiple,
            uniform=uniform,
        )
    for kind, fraction in fractions.items():
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
