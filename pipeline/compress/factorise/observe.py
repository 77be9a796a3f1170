"""What calibration texts say of a model: how often each piece occurs, and how the inputs of linears vary."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pipeline.compress.prune.activations import Moments, batch_tensors
from pipeline.data.calibration import Batches


def weights_of_pieces(batches: Batches, pieces: int) -> torch.Tensor:
    """Return a weight for each row of a table, `(pieces,)`: half from counts, half the same for all.

    The even half stands for text that is not here: a count of nought is no proof.
    """
    counts = torch.zeros(pieces, dtype=torch.float64)
    for group in batches.rows:
        for row in group:
            counts += torch.bincount(torch.tensor(row.ids), minlength=pieces)
    return counts / counts.sum() / 2 + 1 / pieces / 2


def moments_of(model: Any, linears: Sequence[nn.Linear], batches: Batches) -> list[Moments]:
    """Return the moments of what enters each linear, over the tokens that are not padding."""
    found = [Moments(linear.in_features) for linear in linears]
    with torch.no_grad():
        for number in range(len(batches)):
            given = batch_tensors(batches, number)
            with _watched(linears, found, given["attention_mask"] > 0):
                model(**given)
    return found


@contextmanager
def _watched(linears: Sequence[nn.Linear], found: Sequence[Moments], present: torch.Tensor) -> Iterator[None]:
    def watch(moments: Moments) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
        def add(module: Any, args: tuple[torch.Tensor, ...]) -> None:
            moments.add(args[0][present])

        return add

    handles = [linear.register_forward_pre_hook(watch(moments)) for linear, moments in zip(linears, found, strict=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
