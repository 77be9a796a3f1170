"""Linears that round as a converted file does and still have gradients: fake quantisation, for training.

A value rounds to what the converters write, by the functions of `checkpoint.static` and `quantize.rounding`, on the
scales of the checkpoint. Backwards, rounding counts as the identity, and clipping as zero.

Source: Jacob et al. 2018, https://arxiv.org/abs/1712.05877; Bengio et al. 2013 for the straight-through gradient.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pipeline.architectures import layers
from pipeline.checkpoint import static
from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.checkpoint.ranges import Activation, Ranges
from pipeline.errors import StudentError
from pipeline.quantize import rounding
from pipeline.schemes import SCHEMES


def _through(values: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return rounded values with the gradient of the values before rounding."""
    return values + (rounded - values).detach()


def _clipped_through(values: torch.Tensor, kept: Activation) -> torch.Tensor:
    """Return values rounded over a range; values outside of it have no gradient."""
    low, high = min(kept.low, 0.0), max(kept.high, 0.0)
    return _through(values.clamp(low, high), rounding.by_tensor(values, (kept.low, kept.high)))


class FakeStaticLinear(nn.Module):
    """A linear of static int8 with trained weight and bias and fixed ranges."""

    def __init__(self, linear: nn.Linear, before: Activation, after: Activation, *, one_scale: bool = False) -> None:
        """Take over a linear's parameters."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.before, self.after, self.one_scale = before, after, one_scale

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the linear's output with weight, input and output rounded to int8."""
        weight = _through(self.weight, rounding.weight_by_row(self.weight.detach(), one_scale=self.one_scale))
        return _clipped_through(functional.linear(_clipped_through(hidden, self.before), weight, self.bias), self.after)


class FakeIntegerLinear(nn.Module):
    """A linear with a weight of integers on fixed scales; the numbers before rounding are trained."""

    scales: torch.Tensor

    def __init__(self, linear: nn.Linear, integers: Integers, *, dynamic: bool) -> None:
        """Take over a linear's parameters, and fix the scales."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.bits, self.dynamic = integers.bits, dynamic
        self.register_buffer("scales", torch.from_numpy(integers.scales).clone())

    def integers(self) -> Integers:
        """Return the weight as it currently rounds."""
        return Integers(self._codes().to(torch.int8).cpu().numpy(), self.scales.cpu().numpy(), self.bits)

    def _codes(self) -> torch.Tensor:
        by_column = self._by_column()
        return (self.weight.detach() / by_column).round().clamp(LOWEST[self.bits], HIGHEST[self.bits])

    def _by_column(self) -> torch.Tensor:
        return self.scales.repeat_interleave(self.weight.shape[1] // self.scales.shape[1], 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the linear's output with the rounded weight, and with activations rounded per token if dynamic."""
        by_column = self._by_column()
        within = self.weight.clamp(LOWEST[self.bits] * by_column, HIGHEST[self.bits] * by_column)
        weight = _through(within, self._codes() * by_column)
        read = _through(hidden, rounding.by_token(hidden.detach())) if self.dynamic else hidden
        return functional.linear(read, weight, self.bias)


def insert_static(model: Any, ranges: Ranges) -> None:
    """Replace the linears of a model that have ranges by trainable ones that round to static int8.

    Raises:
        StudentError: a path of the ranges is no linear of the model.
    """
    for row, linear in static.linears(model, ranges):
        assert row.input
        assert row.output
        new = FakeStaticLinear(linear, row.input, row.output, one_scale=SCHEMES[ranges.scheme].one_scale)
        layers.replace(model, linear, new)


def insert_integers(model: Any, integers: Mapping[str, Integers], *, dynamic: bool) -> dict[str, FakeIntegerLinear]:
    """Replace the linears of a model that have integers by trainable ones that round to them; tables stay.

    Args:
        model: a Hugging Face model with dequantised weights.
        integers: the integers by weight name.
        dynamic: whether activations are rounded per token.

    Returns:
        New modules by weight name.
    """
    modules: Mapping[str, Any] = dict(model.named_modules(remove_duplicate=False))
    found = {}
    for name, one in integers.items():
        module = modules.get(name.removesuffix(".weight"))
        if isinstance(module, nn.Embedding):
            continue
        if not isinstance(module, nn.Linear):
            raise StudentError(f"there are codes for {name}, which is no linear of {type(model).__name__}.")
        found[name] = FakeIntegerLinear(module, one, dynamic=dynamic)
        layers.replace(model, module, found[name])
    return found
