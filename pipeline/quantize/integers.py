"""Quantise weights to integers of few bits, so that outputs on calibration text change least.

Each block of neighbouring columns of a row has a scale: the one with the least squared error, columns weighted with the
mean square of their input. Then columns are rounded in turn, and each one's error is compensated by the remaining
columns (`pipeline.quantize.gptq`).
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.data.calibration import Batches
from pipeline.quantize.gptq import WeightWithError, choose, round_columns

_SHARES = (*np.linspace(0.5, 1.0, 41), 1.03, 1.06)
"""Candidates for a block's scale, as shares of the scale that just reaches the block's largest number."""
_SMALLEST = 2.0**-16
"""Smallest scale: below it, float16 lacks numbers of bfloat16."""


def round_weights(
    model: Any, batches: Batches, *, block: int, table_bits: int, eight: Collection[str] = (), alone: bool = False
) -> dict[str, WeightWithError[Integers]]:
    """Quantise a model's linears and tables to integers, see `gptq.choose`.

    A linear whose columns are no multiple of `block` gets 8 bits and a scale per row.

    Args:
        model: a Hugging Face model; its weights are changed.
        batches: the calibration set.
        block: columns that share a scale at 4 bits.
        table_bits: bits of embedding tables, 4 or 8.
        eight: paths of linears with 8 bits instead of 4.
        alone: see `gptq.choose`.
    """

    def table(one: nn.Embedding) -> Integers:
        return _of_table(one.weight, table_bits, block)

    def linear(
        path: str, weight: torch.Tensor, target: torch.Tensor, products: torch.Tensor
    ) -> WeightWithError[Integers]:
        columns = weight.shape[1]
        few = path not in eight and columns % block == 0
        return of_linear(weight, target, products, bits=4 if few else 8, block=block if few else columns)

    return choose(model, batches, table, linear, alone=alone)


def of_linear(
    weight: torch.Tensor, target: torch.Tensor, products: torch.Tensor, *, bits: int, block: int
) -> WeightWithError[Integers]:
    """Quantise a linear to integers, on scales of the student's weight, which verify can recompute.

    Args:
        weight: the student's, `(rows, columns)`.
        target: the weight to approximate, likewise.
        products: sum over tokens of x xᵀ, `(columns, columns)`, of what the linear reads.
        bits: 4 or 8.
        block: columns that share a scale, a divisor of the columns.
    """
    exact = target.double()
    scales = scales_of(weight.double(), products.diagonal(), bits=bits, block=block)
    by_column = scales.repeat_interleave(block, 1)

    def rounded(values: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
        scale = by_column[:, column]
        codes = (values / scale).round().clamp(LOWEST[bits], HIGHEST[bits])
        return codes, codes * scale

    plain = _integers(nearest(exact, scales, bits), scales, bits)
    with_gptq = _integers(round_columns(exact, products, rounded), scales, bits)
    return WeightWithError.of_linear(target, products, plain, with_gptq)


def scales_of(weight: torch.Tensor, importance: torch.Tensor, *, bits: int, block: int) -> torch.Tensor:
    """Return the scale of each block with the least weighted squared error among the candidates, `(rows, blocks)`.

    Args:
        weight: `(rows, columns)`.
        importance: weight of the squared error in each column, `(columns,)`; zeros alone count as equal weights.
        bits: bits of a code.
        block: columns that share a scale.
    """
    blocks = weight.reshape(len(weight), -1, block)
    mass = (importance + 1e-6 * importance.mean() + 1e-300).reshape(-1, block)
    best = torch.full(blocks.shape[:2], torch.inf, dtype=weight.dtype)
    found = torch.empty_like(best)
    for scale in scales_tried(weight, bits=bits, block=block):
        codes = (blocks / scale[..., None]).round().clamp(LOWEST[bits], HIGHEST[bits])
        error = ((codes * scale[..., None] - blocks).square() * mass).sum(2)
        better = error < best
        found, best = torch.where(better, scale, found), torch.where(better, error, best)
    return found


def scales_tried(weight: torch.Tensor, *, bits: int, block: int) -> Iterator[torch.Tensor]:
    """Yield the candidates for each block's scale, `(rows, blocks)` at a time; arguments as in `scales_of`."""
    blocks = weight.reshape(len(weight), -1, block)
    reach = torch.maximum(blocks.amax(2) / HIGHEST[bits], blocks.amin(2) / LOWEST[bits])
    # With 255 codes, no finer scale is worth clipping a number.
    for share in _SHARES if bits < 8 else (1.0,):
        yield _kept_by_all(reach * share)


def nearest_by_row(weight: torch.Tensor) -> Integers:
    """Return a weight `(rows, columns)` quantised to 8 bits with a scale per row, rounded to the nearest."""
    scales = scales_of(weight, torch.ones(weight.shape[1]), bits=8, block=weight.shape[1])
    return _integers(nearest(weight, scales, 8), scales, 8)


def nearest(weight: torch.Tensor, scales: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the nearest code of each number, `(rows, columns)`."""
    by_column = scales.repeat_interleave(weight.shape[1] // scales.shape[1], 1)
    return (weight / by_column).round().clamp(LOWEST[bits], HIGHEST[bits])


def _of_table(weight: torch.Tensor, bits: int, block: int) -> Integers:
    """Quantise a table to the nearest integers, since no other weight compensates its errors."""
    columns = weight.shape[1]
    size = block if bits < 8 and columns % block == 0 else columns
    scales = scales_of(weight, torch.ones(columns), bits=bits, block=size)
    return _integers(nearest(weight, scales, bits), scales, bits)


def _kept_by_all(scales: torch.Tensor) -> torch.Tensor:
    """Return scales rounded to numbers that bfloat16 and float16 both have."""
    return scales.clamp(min=_SMALLEST).to(torch.bfloat16).to(scales.dtype)


def _integers(codes: torch.Tensor, scales: torch.Tensor, bits: int) -> Integers:
    return Integers(codes.to(torch.int8).numpy(), scales.float().numpy(), bits)
