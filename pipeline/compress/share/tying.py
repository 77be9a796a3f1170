"""Tie layers in torch: bring their heads and feed-forward rows into one order, average, and use one for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from pipeline.checkpoint import layers, shapes
from pipeline.checkpoint.layers import Layer
from pipeline.compress.factorise import lowrank

Tensors = dict[str, torch.Tensor]
"""Weights and biases of a part by role, such as `query.weight`, in float64; two factors are multiplied out."""


@dataclass(frozen=True)
class _Part:
    """Roles of the modules of a part."""

    inner: tuple[str, ...]
    """Linears whose rows the units own; a unit is a head or a feed-forward row."""
    outer: str
    """The linear whose columns they own."""
    norm: str


_PARTS = {
    "attention": _Part(("query", "key", "value"), "attended", "attention_norm"),
    "feed_forward": _Part(("widen",), "narrow", "norm"),
}


def sizes(layer: Layer, part: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a part, by path."""
    return {
        f"{path}.{name}": tuple(tensor.shape)
        for path in getattr(layer.layout, part)
        for name, tensor in layer.module.get_submodule(path).named_parameters()
    }


def tie(group: Sequence[Layer], part: str, start: str) -> float:
    """Let the layers of a group use one `attention` or `feed_forward`.

    Returns:
        How far the layers' own parameters were from what all use now: squared, relative to their squares, in one order.
    """
    own = [tensors(layer, part) for layer in group]
    aligned = [align(one, own[0], part, _unit_size(group[0], part)) for one in own]
    at = {"average": 0, "first": 0, "middle": len(group) // 2}[start]
    owner, begin = group[at], aligned[at]
    if start == "average":
        begin = {name: torch.stack([one[name] for one in aligned]).mean(0) for name in begin}
        _fill(owner, begin, part)
    for layer in group:
        if layer is not owner:
            shapes.use(layer, owner, part)
    error = sum(float((one[name] - begin[name]).square().sum()) for one in aligned for name in begin)
    return error / sum(float(tensor.square().sum()) for one in aligned for tensor in one.values())


def tensors(layer: Layer, part: str) -> Tensors:
    """Return a copy of a part's parameters."""
    names = _PARTS[part]
    found: Tensors = {}
    for role in (*names.inner, names.outer, names.norm):
        weight, bias = lowrank.dense(layer.get(role))
        found |= {f"{role}.weight": weight.double().clone(), f"{role}.bias": bias.double().clone()}
    return found


def align(found: Tensors, reference: Tensors, part: str, size: int) -> Tensors:
    """Return a part's parameters with its units in the order in which they are most like those of another layer.

    The sum of inner products of units is maximised over all orders, which is the least squared distance. The layer
    computes the same: rows and columns move together.

    Args:
        found: of the layer.
        reference: of the layer whose order is taken.
        part: `attention` or `feed_forward`.
        size: rows of a unit.

    Source: Kuhn 1955 (assignment); Ainsworth et al. 2023, section 3.2.
    """
    names = _PARTS[part]
    likeness = _units(reference, names, size) @ _units(found, names, size).T
    _, order = linear_sum_assignment(likeness.numpy(), maximize=True)
    rows = (torch.from_numpy(order)[:, None] * size + torch.arange(size)).flatten()
    moved = dict(found)
    for role in names.inner:
        moved |= {f"{role}.{kind}": found[f"{role}.{kind}"][rows] for kind in ("weight", "bias")}
    moved[f"{names.outer}.weight"] = found[f"{names.outer}.weight"][:, rows]
    return moved


def _units(found: Mapping[str, torch.Tensor], names: _Part, size: int) -> torch.Tensor:
    """Return all that a unit owns, `(units, numbers)`."""
    owned = [found[f"{role}.{kind}"] for role in names.inner for kind in ("weight", "bias")]
    owned.append(found[f"{names.outer}.weight"].T)
    units = len(owned[0]) // size
    return torch.cat([one.reshape(units, -1) for one in owned], 1)


def _unit_size(layer: Layer, part: str) -> int:
    return layer.head_size if part == "attention" else 1


def _fill(layer: Layer, wanted: Tensors, part: str) -> None:
    """Put parameters into a layer's part; two factors get the best ones of their rank."""
    names = _PARTS[part]
    for role in (*names.inner, names.outer, names.norm):
        module, weight, bias = layer.get(role), wanted[f"{role}.weight"], wanted[f"{role}.bias"]
        if isinstance(module, nn.Sequential):
            layer.put(role, lowrank.linear_pair(lowrank.of_linear(weight, None), layers.width(module[0]), bias))
        else:
            module.weight, module.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())
