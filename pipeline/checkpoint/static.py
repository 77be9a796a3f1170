"""Linears that compute in int8 over ranges that calibration found, written as a converter reads them.

`quantize` and `dequantize` beside each other mean: what is between is int8. XNNPACK's partitioner, LiteRT's converter
and coremltools all know PyTorch's `quantized_decomposed` operations, and put exactly these scales into their files.
Core ML's weights are made int8 where all its others are, and its scales are in half precision, as the program is.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.ao.quantization.fx._decomposed  # registers the operations
from torch import nn
from torch.nn import functional

from pipeline.architectures import layers
from pipeline.checkpoint.ranges import INNER, Linear, Ranges
from pipeline.errors import StudentError
from pipeline.schemes import SCHEMES

_OPERATIONS = torch.ops.quantized_decomposed
_LOW, _HIGH, _LARGEST = -128, 127, 127
_SMALLEST = 1e-12
_ScaleZeroPoint = tuple[float, int]
"""Scale and zero point."""
Weights = Literal["codes", "floats", "later"]
"""How a graph holds int8 weights: as codes that are dequantised; as floats that are quantised and dequantised, a
pattern that some converters need; or unchanged, in a half-precision graph whose weights are quantised later."""


def codes_by_row(weight: torch.Tensor, *, one_scale: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight symmetrically to int8: return codes, `(rows, columns)` in floats, and scales, `(rows,)`.

    Args:
        weight: `(rows, columns)`.
        one_scale: whether all rows have the same scale (per tensor), as old runtimes need it.
    """
    largest = weight.abs().amax(1)
    scale = (largest.amax().expand_as(largest) if one_scale else largest).div(_LARGEST).clamp(min=_SMALLEST)
    return (weight / scale[:, None]).round().clamp(-_LARGEST, _LARGEST), scale


class StaticLinear(nn.Module):
    """A linear with static int8 quantisation of input, weight and output."""

    def __init__(
        self,
        linear: nn.Linear,
        before: _ScaleZeroPoint,
        after: _ScaleZeroPoint,
        weights: Weights,
        *,
        one_scale: bool = False,
    ) -> None:
        """Round a linear's weight to int8, symmetric, see `codes_by_row`."""
        super().__init__()
        self.before, self.after = before, after
        codes, scale = codes_by_row(linear.weight.detach(), one_scale=one_scale)
        self.rounds = weights == "floats"
        # Rounded already: a converter that multiplies by the reciprocal of a scale rounds one in 100,000 otherwise.
        self.register_buffer("weight", codes * scale[:, None] if self.rounds else codes.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("zeros", torch.zeros(len(scale), dtype=torch.int64))
        self.bias = linear.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the linear's output, with input, weight and output quantised to int8 and dequantised."""
        weight, axis = self.weight, (self.scale, self.zeros, 0, -_LARGEST, _LARGEST, torch.int8)
        if self.rounds:
            weight = _OPERATIONS.quantize_per_channel(weight, *axis)
        weight = _OPERATIONS.dequantize_per_channel(weight, *axis)
        return _rounded(functional.linear(_rounded(hidden, self.before), weight, self.bias), self.after)


class StaticInput(nn.Module):
    """A linear with static int8 quantisation of its input alone."""

    def __init__(self, linear: nn.Linear, before: _ScaleZeroPoint) -> None:
        """Wrap a linear, whose weight stays in floats."""
        super().__init__()
        self.linear, self.before = linear, before

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the linear's output for its input quantised to int8 and dequantised."""
        result: torch.Tensor = self.linear(_rounded(hidden, self.before))
        return result


def _rounded(values: torch.Tensor, quantised: _ScaleZeroPoint) -> torch.Tensor:
    form = (*quantised, _LOW, _HIGH, torch.int8)
    result: torch.Tensor = _OPERATIONS.dequantize_per_tensor(_OPERATIONS.quantize_per_tensor(values, *form), *form)
    return result


def insert(model: Any, ranges: Ranges, weights: Weights) -> int:
    """Replace the linears of a model that have ranges by statically quantised ones; return their number.

    Args:
        model: a Hugging Face model with the SmoothQuant scales of the checkpoint that the ranges were found for.
        ranges: of that checkpoint.
        weights: how the graph holds them.

    Raises:
        StudentError: a path of the ranges leads to no linear.
    """
    found = linears(model, ranges)
    one_scale = SCHEMES[ranges.scheme].one_scale
    for row, linear in found:
        before, *after = row.static_scales(half=weights == "later")
        new = (
            StaticLinear(linear, before, after[0], weights, one_scale=one_scale)
            if after
            else StaticInput(linear, before)
        )
        layers.replace(model, linear, new)
    return len(found)


def linears(model: Any, ranges: Ranges) -> list[tuple[Linear, nn.Linear]]:
    """Return the ranges with both input and output, each with its linear in the model; raises `insert`'s errors."""
    modules: Mapping[str, Any] = dict(model.named_modules())
    found = []
    for row in ranges.linears:
        if row.input is None or row.output is None:
            continue
        linear = modules.get(f"{row.path}.{INNER}", modules.get(row.path))
        if not isinstance(linear, nn.Linear):
            raise StudentError(f"ranges were found for {row.path}, which is no linear of {type(model).__name__}.")
        found.append((row, linear))
    return found
