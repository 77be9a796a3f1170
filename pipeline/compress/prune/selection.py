"""Layer pruning and hidden-size pruning: choose the layers and hidden columns to keep, given their number."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.architectures import layers
from pipeline.compress.prune.activations import (
    LayerInput,
    batch_tensors,
    cosine_distance,
    first_layer_inputs,
    pass_layer,
)
from pipeline.compress.prune.importance import score_batch
from pipeline.compress.prune.structure import INPUT_LINEARS, RESIDUAL_NORM, layer_sequence
from pipeline.data.calibration import Batches
from pipeline.execution.worker import tell
from pipeline.tasks import Task

# --- layers ----------------------------------------------------------------------------------------------------------


def select_layers(model: Any, batches: Batches, keep: int | Sequence[int]) -> list[int]:
    """Return the numbers of the layers to keep, ascending.

    Args:
        model: a Hugging Face model.
        batches: the calibration set.
        keep: the numbers themselves; or their count: then layers are removed one by one, each time the one whose
            removal changes the last hidden states least in cosine.

    Source: Kim et al. 2024 (Shortened LLaMA): a layer's importance is measured by leaving it out.
    """
    every = layer_sequence(model)
    if not isinstance(keep, int):
        return sorted(keep)
    kept = list(range(len(every)))
    if all(layer.module is every[0].module for layer in every):
        return kept[:keep]
    with torch.no_grad():
        start = first_layer_inputs(model, batches)
        reference = _pass_layers(model, start, kept)
        while len(kept) > keep:
            tell("layers", 0.1 * (len(every) - len(kept)) / (len(every) - keep))
            changes, before = {}, start
            for position, number in enumerate(kept):
                changes[number] = cosine_distance(reference, _pass_layers(model, before, kept[position + 1 :]))
                before = _pass_layers(model, before, [number])
            kept.remove(min(kept, key=lambda number: changes[number]))
    return kept


def _pass_layers(model: Any, states: Sequence[LayerInput], numbers: Sequence[int]) -> list[LayerInput]:
    every = layer_sequence(model)
    result = []
    for state in states:
        for number in numbers:
            state = pass_layer(every[number], state)
        result.append(state)
    return result


# --- hidden columns --------------------------------------------------------------------------------------------------


def select_hidden_columns(
    model: Any, task: Task, batches: Batches, hidden_size: int, importance: str, *, seed: int
) -> NDArray[np.int64]:
    """Return the numbers of the most important hidden columns, ascending.

    Args:
        model: a Hugging Face model; its parameters get frozen.
        task: the task, whose score is differentiated.
        batches: the calibration set.
        hidden_size: number of columns to keep.
        importance: `magnitude`: the norm of a column's weights in the input linears of all layers; `taylor`: E|∂s/∂m|
            for a gate m = 1 on the column at all its occurrences; otherwise E[(∂s/∂m)²].
        seed: seed of the drawn labels or directions.

    Source: Molchanov et al. 2019, for gates that belong together across residual connections.
    """
    if importance == "magnitude":
        names = [name for several in INPUT_LINEARS.values() for name in several]
        weights = [layer.get(name).weight.detach() for layer in layers.layers(model) for name in names]
        scores = torch.stack([weight.double().square().sum(0) for weight in weights]).sum(0).sqrt()
    else:
        gradients = _column_gradients(model, task, batches, seed)
        scores = (gradients.abs() if importance == "taylor" else gradients.square()).mean(0)
    best = torch.argsort(-scores, stable=True)[:hidden_size]
    return np.sort(best.numpy())


def _column_gradients(model: Any, task: Task, batches: Batches, seed: int) -> torch.Tensor:
    """Return the gradient of each text's score at each column's gate, `(texts, hidden)`."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    hidden = int(model.config.hidden_size)
    gradients = []
    for number in range(len(batches)):
        tensors = batch_tensors(batches, number)
        gate = torch.ones(len(tensors["input_ids"]), 1, hidden, requires_grad=True)
        with torch.enable_grad(), _gated_columns(model, gate):
            score = score_batch(model, task, tensors, generator)
        gradients.append(torch.autograd.grad(score, gate)[0][:, 0].double())
    return torch.cat(gradients)


@contextmanager
def _gated_columns(model: Any, gate: torch.Tensor) -> Iterator[None]:
    """Multiply the hidden columns by `gate` before the first layer and after each residual norm, inside the context."""
    norms = {layer.get(name) for layer in layers.layers(model) for name in RESIDUAL_NORM.values()}
    handles = [norm.register_forward_hook(lambda module, args, output: output * gate) for norm in norms]
    first = layer_sequence(model)[0].module
    passed = False

    def once(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # A shared first layer is entered again with columns that were gated behind its norm.
        nonlocal passed
        again, passed = passed, True
        return None if again else (args[0] * gate, *args[1:])

    handles.append(first.register_forward_pre_hook(once))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
