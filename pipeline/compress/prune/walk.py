"""Two models layer by layer over the same rows: the whole one, and the cut one that goes on from its own results."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from pipeline.checkpoint.layers import Layer
from pipeline.compress.prune import signals
from pipeline.compress.prune.parts import sequence
from pipeline.data.calibration import Batches


@dataclass(frozen=True)
class State:
    """A batch in front of a layer."""

    hidden: torch.Tensor
    """`(batch, seq_len, hidden)`."""
    mask: Any
    """What the model gives its layers for a mask."""
    present: torch.Tensor
    """Tokens that are not padding, bool `(batch, seq_len)`."""


class _ReachedError(Exception):
    """The first layer was reached; nothing behind it has to run."""


def begin(model: Any, batches: Batches) -> list[State]:
    """Return what each batch is in front of the first layer."""
    first = sequence(model)[0].module
    caught: list[tuple[torch.Tensor, Any]] = []

    def catch(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        caught.append((args[0], args[1] if len(args) > 1 else named.get("attention_mask")))
        raise _ReachedError

    handle = first.register_forward_pre_hook(catch, with_kwargs=True)
    states = []
    try:
        for number in range(len(batches)):
            given = signals.inputs(batches, number)
            try:
                model(**given)
            except _ReachedError:
                states.append(State(*caught.pop(), given["attention_mask"] > 0))
    finally:
        handle.remove()
    return states


def through(layer: Layer, state: State) -> State:
    """Return a batch behind a layer."""
    output = layer.module(state.hidden, state.mask)
    return replace(state, hidden=output[0] if isinstance(output, tuple) else output)


@contextmanager
def entering(module: Any) -> Iterator[list[torch.Tensor]]:
    """Collect what enters a module."""
    found: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda module, args: found.append(args[0]))
    try:
        yield found
    finally:
        handle.remove()


def relative_error(wanted: list[State], found: list[State]) -> float:
    """Return ‖found − wanted‖ / ‖wanted‖ over the hidden states of all tokens."""
    difference = total = 0.0
    for whole, cut in zip(wanted, found, strict=True):
        present = whole.present
        difference += float((cut.hidden - whole.hidden)[present].double().square().sum())
        total += float(whole.hidden[present].double().square().sum())
    return float((difference / total) ** 0.5)


def distance(wanted: list[State], found: list[State]) -> float:
    """Return the mean of one minus the cosine of the two models' hidden states, over tokens."""
    parts = [
        1 - functional.cosine_similarity(whole.hidden, cut.hidden, dim=-1)[whole.present]
        for whole, cut in zip(wanted, found, strict=True)
    ]
    return float(torch.cat(parts).mean())
