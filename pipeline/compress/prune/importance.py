"""How much each head and each feed-forward row matters: one row of a table for each criterion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.compress.prune import costs, parts, signals, surgeon
from pipeline.compress.prune.parts import Block
from pipeline.data.calibration import Batches
from pipeline.tasks import Task

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Importance:
    """Of the units of one block."""

    units: Floats
    """What is lost without each, `(units,)`; comparable between blocks."""
    together: Floats | None = None
    """`(units, units)`: Σ over pairs of what is lost by both; None where a criterion knows no pairs."""


Criterion = Callable[[Any, Task, Sequence[Block], Batches, int], list[Importance]]
"""`(model, task, blocks, calibration rows, seed) -> of each block`."""


def magnitude(model: Any, task: Task, blocks: Sequence[Block], batches: Batches, seed: int) -> list[Importance]:
    """Return ‖rows that a unit owns‖ · ‖its columns in the output‖, the rows being the value's for a head.

    Weights have no unit that heads and rows share, so each kind is scaled to a mean of its blocks' parameters per unit.

    Source: Han et al. 2015 and Li et al. 2017 (norms of filters), for units of two linears.
    """
    norms = [_norms(block) for block in blocks]
    shape = parts.outline(model)
    found = []
    for block, norm in zip(blocks, norms, strict=True):
        alike = [other for one, other in zip(blocks, norms, strict=True) if one.part.kind == block.part.kind]
        found.append(Importance(norm / np.concatenate(alike).mean() * costs.unit_parameters(block.part, shape)))
    return found


def _norms(block: Block) -> Floats:
    inner = _last(block.inner[-1]).weight.detach().double()
    outer = block.outer.weight.detach().double()
    units, size = block.part.units, block.size
    rows = inner.reshape(units, size, -1).square().sum((1, 2)).sqrt()
    columns = outer.reshape(-1, units, size).square().sum((0, 2)).sqrt()
    found: Floats = (rows * columns).numpy()
    return found


def _last(linear: Any) -> Any:
    return linear[-1] if hasattr(linear, "__getitem__") else linear


def taylor(model: Any, task: Task, blocks: Sequence[Block], batches: Batches, seed: int) -> list[Importance]:
    """Return E|∂s/∂m · m| over texts at gates m of one, s the score of `signals`.

    Source: Molchanov et al. 2019, first order, without their square; Michel et al. 2019 for heads.
    """
    gradients = signals.gate_gradients(model, task, blocks, batches, seed=seed)
    return [Importance(np.abs(gradient).mean(0)) for gradient in gradients]


def fisher(model: Any, task: Task, blocks: Sequence[Block], batches: Batches, seed: int) -> list[Importance]:
    """Return E[(∂s/∂m)²] over texts at gates of one, and E[∂s/∂m_i ∂s/∂m_j] within a block.

    Half of the quadratic form is the Kullback-Leibler divergence that a mask causes, to second order.

    Source: Kwon et al. 2022; labels drawn from the model's own softmax, as the true Fisher has them.
    """
    gradients = signals.gate_gradients(model, task, blocks, batches, seed=seed)
    products = [gradient.T @ gradient / len(gradient) for gradient in gradients]
    return [Importance(product.diagonal() / 2, product / 2) for product in products]


def after_refit(model: Any, task: Task, blocks: Sequence[Block], batches: Batches, seed: int) -> list[Importance]:
    """Return what each unit costs at its turn once the rest has been refitted, see `surgeon.removal_losses`."""
    entering, gradients = signals.token_moments(model, task, blocks, batches, seed=seed)
    found = []
    for block, inside, outside in zip(blocks, entering, gradients, strict=True):
        metric = outside.products / outside.tokens
        weight = block.outer.weight.detach()
        losses = surgeon.removal_losses(inside.covariance, weight, metric, size=block.size)
        found.append(Importance(losses.numpy() * inside.tokens / batches.count))
    return found


CRITERIA: dict[str, Criterion] = {
    "magnitude": magnitude,
    "taylor": taylor,
    "fisher": fisher,
    "optimal_brain_surgeon": after_refit,
}


def of(name: str, model: Any, task: Task, blocks: Sequence[Block], batches: Batches, *, seed: int) -> list[Importance]:
    """Return what a criterion of `CRITERIA` says of each block; the model's parameters are frozen by it."""
    model.requires_grad_(False)
    with torch.enable_grad():
        return CRITERIA[name](model, task, blocks, batches, seed)
