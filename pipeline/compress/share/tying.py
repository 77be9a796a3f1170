"""Tie layers in torch: align their heads and intermediate neurons, average, and let all layers use one sublayer."""

from collections.abc import Callable, Mapping, Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from pipeline.architectures import layers
from pipeline.architectures.layers import Layer
from pipeline.checkpoint import shapes
from pipeline.compress.factorise.lowrank import decompose_linear, dense, linear_pair
from pipeline.compress.prune.structure import INPUT_LINEARS, OUTPUT_LINEAR, RESIDUAL_NORM, SublayerKind

Tensors = dict[str, torch.Tensor]
"""Weights and biases of a sublayer by role, such as `query.weight`, in float64; factors as their product."""

_OWNERS: Mapping[str, Callable[[int], int]] = {
    "average": lambda layers: 0,
    "first": lambda layers: 0,
    "middle": lambda layers: layers // 2,
}
"""Position in a group of the layer whose sublayer all others use, by `share.start`."""


def _roles(kind: SublayerKind) -> tuple[str, ...]:
    return *INPUT_LINEARS[kind], OUTPUT_LINEAR[kind], RESIDUAL_NORM[kind]


def tensor_shapes(layer: Layer, kind: SublayerKind) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a sublayer, by path."""
    return {
        f"{path}.{name}": tuple(tensor.shape)
        for path in getattr(layer.layout, kind)
        for name, tensor in layer.module.get_submodule(path).named_parameters()
    }


def tie(group: Sequence[Layer], kind: SublayerKind, start: str) -> float:
    """Tie the layers of a group to one sublayer, whose parameters they share afterwards.

    Args:
        group: layers of one model, changed in place.
        kind: `attention` or `feed_forward`.
        start: `average` of the aligned layers, or the parameters of the `first` or `middle` one.

    Returns:
        Squared distance of the layers' aligned parameters to the shared ones, relative to their squared norm.
    """
    every = [sublayer_tensors(layer, kind) for layer in group]
    aligned = every
    if kind != "attention" or not group[0].layout.fixed_heads:
        columns = group[0].head_size if kind == "attention" else 1
        aligned = [align(tensors, every[0], kind, columns) for tensors in every]
    shared = aligned[_OWNERS[start](len(group))]
    if start == "average":
        shared = {name: torch.stack([one[name] for one in aligned]).mean(0) for name in shared}
        _fill(group[0], shared, kind)
    use_one(group, kind, start)
    error = sum(float((one[name] - shared[name]).square().sum()) for one in aligned for name in shared)
    return error / sum(float(tensor.square().sum()) for one in aligned for tensor in one.values())


def use_one(group: Sequence[Layer], kind: SublayerKind, start: str) -> None:
    """Tie a group's layers to one layer's sublayer, without averaging or alignment, on any device; see `tie`."""
    owner = group[_OWNERS[start](len(group))]
    for layer in group:
        if layer is not owner:
            shapes.use(layer, owner, kind)


def sublayer_tensors(layer: Layer, kind: SublayerKind) -> Tensors:
    """Return a copy of a sublayer's parameters."""
    result: Tensors = {}
    for role in _roles(kind):
        weight, bias = dense(layer.get(role))
        result |= {f"{role}.weight": weight.double().clone(), f"{role}.bias": bias.double().clone()}
    return result


def align(tensors: Tensors, reference: Tensors, kind: SublayerKind, size: int) -> Tensors:
    """Return a sublayer's parameters with its structures in the order that is most like another layer's.

    The sum of inner products of structures is maximised over all orders, which minimises the squared distance. The
    layer computes the same: rows and columns move together.

    Args:
        tensors: of the layer.
        reference: of the layer whose order is taken.
        kind: `attention` or `feed_forward`.
        size: rows of one structure, a head or an intermediate neuron.

    Source: Kuhn 1955 (assignment); Ainsworth et al. 2023, section 3.2.
    """
    similarity = _by_structure(reference, kind, size) @ _by_structure(tensors, kind, size).T
    _, order = linear_sum_assignment(similarity.numpy(), maximize=True)
    rows = (torch.from_numpy(order)[:, None] * size + torch.arange(size)).flatten()
    moved = dict(tensors)
    for role in INPUT_LINEARS[kind]:
        moved |= {f"{role}.{name}": tensors[f"{role}.{name}"][rows] for name in ("weight", "bias")}
    output = f"{OUTPUT_LINEAR[kind]}.weight"
    moved[output] = tensors[output][:, rows]
    return moved


def _by_structure(tensors: Mapping[str, torch.Tensor], kind: SublayerKind, size: int) -> torch.Tensor:
    """Return all parameters that belong to single structures, `(structures, parameters)`."""
    blocks = [tensors[f"{role}.{name}"] for role in INPUT_LINEARS[kind] for name in ("weight", "bias")]
    blocks.append(tensors[f"{OUTPUT_LINEAR[kind]}.weight"].T)
    count = len(blocks[0]) // size
    return torch.cat([block.reshape(count, -1) for block in blocks], 1)


def _fill(layer: Layer, tensors: Tensors, kind: SublayerKind) -> None:
    """Put parameters into a layer's sublayer; two factors get the best ones of their rank."""
    for role in _roles(kind):
        module, weight, bias = layer.get(role), tensors[f"{role}.weight"], tensors[f"{role}.bias"]
        if isinstance(module, nn.Sequential):
            layer.put(role, linear_pair(decompose_linear(weight, None), layers.width(module[0]), bias))
        else:
            module.weight, module.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())
