"""Remove heads, feed-forward rows and layers: smaller dense modules, with the same numbers for what is left."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pipeline.checkpoint import shapes
from pipeline.compress.prune.parts import Block
from pipeline.compress.prune.search import Kept


def rows(linear: Any, kept: torch.Tensor) -> None:
    """Keep some outputs of a linear, or of the last of two in a row."""
    last: Any = linear[-1] if isinstance(linear, nn.Sequential) else linear
    last.weight = nn.Parameter(last.weight.detach()[kept].clone())
    if last.bias is not None:
        last.bias = nn.Parameter(last.bias.detach()[kept].clone())
    last.out_features = len(kept)


def columns(linear: Any, kept: torch.Tensor) -> None:
    """Keep some inputs of a linear, or of the first of two in a row."""
    first: Any = linear[0] if isinstance(linear, nn.Sequential) else linear
    first.weight = nn.Parameter(first.weight.detach()[:, kept].clone())
    first.in_features = len(kept)


def columns_of(units: torch.Tensor, size: int) -> torch.Tensor:
    """Return the columns of units of `size` columns each."""
    return (units[:, None] * size + torch.arange(size)).flatten()


def units(model: Any, blocks: Sequence[Block], kept: Kept) -> None:
    """Keep the given heads and rows of each block; a part that layers share is cut once.

    Args:
        model: a Hugging Face model, changed in place.
        blocks: of this model.
        kept: for each block, see `search.Kept`.
    """
    for block, numbers in zip(blocks, kept, strict=True):
        left = columns_of(torch.from_numpy(numbers), block.size)
        for linear in block.inner:
            rows(linear, left)
        columns(block.outer, left)
    shapes.count_heads(model, blocks[0].layer.head_size)


def layers(model: Any, kept: Sequence[int]) -> None:
    """Keep the given layers, by number from 0; of shared layers, as many passes.

    Args:
        model: a Hugging Face model, changed in place.
        kept: ascending.
    """
    from pipeline.checkpoint.layers import layout_of

    layout = layout_of(model.config.model_type)
    stack = model.base_model.get_submodule(layout.stack)
    if not layout.inner:
        left = nn.ModuleList([stack[number] for number in kept])
        parent, _, name = layout.stack.rpartition(".")
        setattr(model.base_model.get_submodule(parent), name, left)
    model.config.num_hidden_layers = len(kept)
