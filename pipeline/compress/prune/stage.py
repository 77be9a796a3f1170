"""The stage itself: from a folder to a smaller one. Imports torch, so it runs in a worker."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline import tasks
from pipeline.checkpoint import architectures, shapes
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.compress.prune import costs, cut, depth, importance, parts, reconstruct, search, unstructured, width
from pipeline.compress.prune.parts import Kind, Outline
from pipeline.compress.prune.search import Kept
from pipeline.compress.prune.section import check, narrowed
from pipeline.data import calibration
from pipeline.data import datasets as data
from pipeline.data.calibration import Batches
from pipeline.data.corpus import Unlabelled
from pipeline.graph.worker import tell
from pipeline.recipe.compression import PruneSection
from pipeline.tasks import Task
from pipeline.text import tokenizers
from pipeline.train.model import save


def run(source: Path, task_name: str, section: PruneSection, texts: Sequence[Unlabelled], out: Path) -> dict[str, Any]:
    """Prune a checkpoint and write the smaller one, see `pipeline.compress.prune.make`."""
    task = tasks.get(task_name)
    check(section, student.inspect_folder(source, origin=source.name, licence=None), task)
    full = load_checkpoint(source, task)
    if not section.cuts:
        metrics = _sparse(full, section)
        save(full, source, out)
        tokenizers.copy(source, out)
        return metrics
    chosen = data.sample(texts, section.calibration_texts, seed=section.seed)
    padding = int(full.config.pad_token_id or 0)
    inputs = architectures.get(full.config.model_type).inputs
    batches = calibration.batches(source, inputs, chosen, max_length=section.max_length, pad=padding)
    less, metrics = pruned(full, task, section, batches)
    metrics |= _sparse(less, section)
    shapes.save(less, out)
    tokenizers.copy(source, out)
    return metrics


def _sparse(model: Any, section: PruneSection) -> dict[str, Any]:
    """Set single weights to zero where it is asked for, in place."""
    if section.sparse is None:
        return {}
    unstructured.by_magnitude(model, section.sparse)
    return {"parameters": sum(one.numel() for one in model.parameters())} | unstructured.metrics(model)


def pruned(full: Any, task: Task, section: PruneSection, batches: Batches) -> tuple[Any, dict[str, Any]]:
    """Return a smaller copy of a model, and its metrics; `full` keeps its weights."""
    before = parts.outline(full)
    numbers = list(range(before.layers))
    less = copy.deepcopy(full)
    if section.layers is not None:
        tell("layers", 0.0)
        numbers = depth.chosen(full, batches, section.layers)
        cut.layers(less, numbers)
    measured = _measured(less, section)
    tell("importance", 0.2)
    kept = _kept(less, task, section, batches, before, measured)
    cut.units(less, parts.blocks(less), kept)
    columns = None
    if section.hidden is not None:
        columns = width.chosen(full, task, batches, section.hidden, section.importance, seed=section.seed)
        width.columns(less, columns)
    left = None if columns is None else torch.from_numpy(columns)
    tell("reconstruction", 0.5)
    errors = reconstruct.run(full, less, batches, numbers=numbers, columns=left, gain=section.reconstruct)
    metrics = _metrics(full, less, section, numbers, errors)
    return less, metrics | {"calibration_texts": batches.count, "unit_ms": measured}


def _kept(
    model: Any,
    task: Task,
    section: PruneSection,
    batches: Batches,
    before: Outline,
    measured: dict[Kind, float] | None,
) -> Kept:
    """Search the units that stay; all of them where nothing is asked of them."""
    blocks = parts.blocks(model)
    shape = parts.outline(model)
    kept = search.everything(shape.parts)
    if not section.counts:
        return kept
    found = importance.of(section.importance, model, task, blocks, batches, seed=section.seed)
    rows = section.row_multiple
    if section.compute is not None:
        budget = section.compute * costs.total(before, _prices(before, section, measured))
        prices = _prices(narrowed(section, shape), section, measured)
        kept = search.within(shape.parts, found, prices, budget=budget, rows=rows, even=section.even)
    shares: dict[Kind, float | None] = {"heads": section.heads, "feed_forward": section.feed_forward}
    for kind, share in shares.items():
        if share is not None:
            kept = search.fraction(shape.parts, found, kept, kind, of=share, rows=rows, even=section.even)
    return search.rearranged(kept, found)


def _measured(model: Any, section: PruneSection) -> dict[Kind, float] | None:
    """Return the milliseconds of a head and of a row, where the section counts by them."""
    if section.costs == "flops" or section.compute is None:
        return None
    from pipeline.compress.prune import latency

    tell("latency", 0.1)
    return latency.per_unit_ms(model, length=section.cost_length)


def _prices(shape: Outline, section: PruneSection, measured: dict[Kind, float] | None) -> list[float]:
    if measured is None:
        return costs.unit_costs(shape, length=section.cost_length)
    return [measured[part.kind] * part.passes for part in shape.parts]


def _metrics(
    full: Any, less: Any, section: PruneSection, numbers: Sequence[int], errors: Sequence[float]
) -> dict[str, Any]:
    before, after = parts.outline(full), parts.outline(less)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (full, less)]
    adds = [costs.encoder_multiply_adds(shape, length=section.cost_length) for shape in (before, after)]
    return {
        "parameters_before": counts[0],
        "parameters": counts[1],
        "encoder_multiply_adds_before": adds[0],
        "encoder_multiply_adds": adds[1],
        "compute": adds[1] / adds[0],
        "tokens": section.cost_length,
        "layers": list(numbers),
        "heads": [part.units for part in after.parts if part.kind == "heads"],
        "feed_forward": [part.units for part in after.parts if part.kind == "feed_forward"],
        "hidden_size": after.hidden,
        "layer_errors": [round(error, 6) for error in errors],
        "mean_layer_error": sum(errors) / len(errors),
    }
