"""Activations of a model on calibration batches: inputs of its modules, and hidden states layer by layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from pipeline.architectures.layers import Layer
from pipeline.compress.prune.structure import layer_sequence
from pipeline.data.calibration import Batches


def batch_tensors(batches: Batches, number: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch, each `(batch, seq_len)`."""
    return {name: torch.from_numpy(value) for name, value in batches.arrays(number).items()}


class Moments:
    """First and second moments of activation vectors, summed over tokens."""

    def __init__(self, columns: int) -> None:
        """Start the sums at zero, for vectors of size `columns`."""
        self.tokens = 0
        self.total = torch.zeros(columns, dtype=torch.float64)
        self.products = torch.zeros(columns, columns, dtype=torch.float64)

    def add(self, tokens: torch.Tensor) -> None:
        """Add the vectors of further tokens, `(tokens, columns)`."""
        self.tokens += len(tokens)
        self.total += tokens.double().sum(0)
        self.products += (tokens.T @ tokens).double()

    @property
    def covariance(self) -> torch.Tensor:
        """Covariance matrix, `(columns, columns)`."""
        mean = self.total / self.tokens
        return self.products / self.tokens - mean[:, None] * mean[None]


@contextmanager
def module_inputs(module: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the first argument of each call of a module while the context is open."""
    inputs: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        handle.remove()


# --- layer by layer --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerInput:
    """The input of a layer for one batch."""

    hidden: torch.Tensor
    """`(batch, seq_len, hidden)`."""
    mask: Any
    """The attention mask in the form that the model gives its layers."""
    present: torch.Tensor
    """Tokens that are not padding, bool `(batch, seq_len)`."""


class _ReachedError(Exception):
    """Raised when the first layer is reached, so that the layers after it do not run."""


def first_layer_inputs(model: Any, batches: Batches) -> list[LayerInput]:
    """Return the input of the first layer for each batch."""
    first = layer_sequence(model)[0].module
    caught: list[tuple[torch.Tensor, Any]] = []

    def catch(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.append((args[0], args[1] if len(args) > 1 else named.get("attention_mask")))
        raise _ReachedError

    handle = first.register_forward_pre_hook(catch, with_kwargs=True)
    states = []
    try:
        for number in range(len(batches)):
            tensors = batch_tensors(batches, number)
            try:
                model(**tensors)
            except _ReachedError:
                states.append(LayerInput(*caught.pop(), tensors["attention_mask"] > 0))
    finally:
        handle.remove()
    return states


def pass_layer(layer: Layer, state: LayerInput) -> LayerInput:
    """Run a layer on a batch and return its output, as the input of the next layer."""
    output = layer.module(state.hidden, state.mask)
    return replace(state, hidden=output[0] if isinstance(output, tuple) else output)


def relative_error(reference: Sequence[LayerInput], states: Sequence[LayerInput]) -> float:
    """Return ‖states − reference‖ / ‖reference‖ over the hidden states of all tokens."""
    difference = total = 0.0
    for full, pruned in zip(reference, states, strict=True):
        difference += float((pruned.hidden - full.hidden)[full.present].double().square().sum())
        total += float(full.hidden[full.present].double().square().sum())
    return float((difference / total) ** 0.5)


def cosine_distance(reference: Sequence[LayerInput], states: Sequence[LayerInput]) -> float:
    """Return the mean over tokens of one minus the cosine of the two models' hidden states."""
    distances = [
        1 - functional.cosine_similarity(full.hidden, pruned.hidden, dim=-1)[full.present]
        for full, pruned in zip(reference, states, strict=True)
    ]
    return float(torch.cat(distances).mean())
