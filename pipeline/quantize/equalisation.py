"""Equalisation: scales that make the channels of a linear's input, and of its output, alike before quantisation.

A linear computes W x + b. With a positive vector s for its columns and t for its rows that is
t · ((W·s / t)(x / s) + b / t): the same in fp32, whatever s and t. The int8 activations, x / s and the output before
the outer t, then have no outlier channel whose range leaves the others only a few int8 levels.

Each scale costs a multiplication of the activation, so a linear gets one only where it removes much of the error.

Source: Xiao et al. 2023 (SmoothQuant) for s; its exponent is searched for here, linear by linear. The output scales are
ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from pipeline.checkpoint.ranges import Range
from pipeline.quantize import rounding
from pipeline.quantize.activations import LinearGroup
from pipeline.quantize.observers import OBSERVERS, Histogram

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Exponents that are tried: the share of an outlier's size that moves from activations into weights."""
WORTH = 0.7
"""A scale is used if the error with it is below this share of the error without it."""
_SMALLEST = 1e-5
_TOKENS = 1024
"""Tokens on which errors are measured."""


@dataclass(frozen=True)
class ObservedActivation:
    """An activation on the calibration set, after its scale, and the range over which static int8 rounds it."""

    histogram: Histogram
    kept: Range

    @classmethod
    def by(cls, observer: str, values: torch.Tensor) -> "ObservedActivation":
        """Measure an activation of any shape, and choose its range with a row of `OBSERVERS`."""
        histogram = Histogram.of(values.numpy())
        return cls(histogram, OBSERVERS[observer](histogram))


@dataclass(frozen=True)
class Equalised:
    """The scales, errors and ranges chosen for the linears of a group."""

    paths: tuple[str, ...]
    input_gain: torch.Tensor | None
    """1 / s, `(columns,)`, or None where it would remove too little of the error."""
    error: float
    """Mean over tokens of the squared error of the outputs, relative to the outputs."""
    error_before: float
    """The same without SmoothQuant scale."""
    alpha: float | None
    output_gains: tuple[torch.Tensor | None, ...]
    """t of each linear, `(rows,)`, or None."""
    input: ObservedActivation | None = None
    """Measurements of x / s; None except for static int8."""
    outputs: tuple[ObservedActivation, ...] = ()
    """Measurements of each output before t; empty except for static int8."""
    output_errors: tuple[float, ...] = ()
    """Relative error of each linear's outputs from rounding these alone; empty except for static int8."""
    output_errors_before: tuple[float, ...] = ()
    """The same without output scales."""


@dataclass(frozen=True)
class _ScaleTrial:
    """The error with one candidate for the SmoothQuant scale, or with none."""

    scales: torch.Tensor | None
    observed: ObservedActivation | None
    """None for dynamic int8, where each token has a range of its own."""
    error: float


def equalise(
    group: LinearGroup, *, static: bool, observer: str, worth: float = WORTH, one_scale: bool = False
) -> Equalised:
    """Choose the SmoothQuant scale and the output scales of a group's linears.

    Args:
        group: the linears and their common input.
        static: whether inputs and outputs are rounded per tensor over fixed ranges, instead of inputs per token.
        observer: a row of `OBSERVERS`, for static ranges.
        worth: a scale is used if the error with it is below this share of the error without; 0 uses none.
        one_scale: whether a static linear's weight has one scale per tensor, taken after division by the output
            scales.
    """
    weights = [linear.weight.detach() for linear in group.linears]
    numbers = range(len(weights) if static else 0)
    after = [_of_outputs(group.outputs(number).detach(), observer, worth) for number in numbers]
    units = [one[0] for one in after] if one_scale else [None] * len(weights)
    exact = [group.inputs[:_TOKENS] @ weight.T for weight in weights]

    def tried(scales: torch.Tensor | None) -> _ScaleTrial:
        divided = group.inputs if scales is None else group.inputs / scales
        observed = ObservedActivation.by(observer, divided) if static else None
        some = divided[:_TOKENS]
        read = rounding.by_tensor(some, observed.kept) if observed else rounding.by_token(some)
        scaled = weights if scales is None else [weight * scales for weight in weights]
        rounded = [_rounded(weight, unit, one_scale=one_scale) for weight, unit in zip(scaled, units, strict=True)]
        error = _relative((read @ weight.T, true) for weight, true in zip(rounded, exact, strict=True))
        return _ScaleTrial(scales, observed, error)

    plain = tried(None)
    smoothed = {alpha: tried(smoothing_scales(group.inputs, weights, alpha)) for alpha in ALPHAS}
    alpha = min(smoothed, key=lambda one: smoothed[one].error)
    taken = smoothed[alpha].error < worth * plain.error
    best = smoothed[alpha] if taken else plain
    found = Equalised(
        group.paths,
        None if best.scales is None else 1 / best.scales,
        best.error,
        plain.error,
        alpha if taken else None,
        (None,) * len(weights),
        best.observed,
    )
    if not static:
        return found
    gains, outputs, errors, before = zip(*after, strict=True)
    return replace(found, output_gains=gains, outputs=outputs, output_errors=errors, output_errors_before=before)


def _rounded(weight: torch.Tensor, unit: torch.Tensor | None, *, one_scale: bool) -> torch.Tensor:
    """Return a weight rounded between its scales: rows are divided by the output scale, if one is given."""
    if unit is None:
        return rounding.weight_by_row(weight, one_scale=one_scale)
    return rounding.weight_by_row(weight / unit[:, None], one_scale=one_scale) * unit[:, None]


def smoothing_scales(inputs: torch.Tensor, weights: Sequence[torch.Tensor], alpha: float) -> torch.Tensor:
    """Return SmoothQuant's s = max|x|^a / max|W|^(1-a) of each column, `(columns,)`, of geometric mean one."""
    largest = inputs.abs().amax(0).clamp(min=_SMALLEST)
    of_weights = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).clamp(min=_SMALLEST)
    return _centred(largest**alpha / of_weights ** (1 - alpha))


def _of_outputs(
    outputs: torch.Tensor, observer: str, worth: float
) -> tuple[torch.Tensor | None, ObservedActivation, float, float]:
    """Return the output scale, or None if it would remove too little of the error; the observed output; both errors.

    First the error of the choice, then the error without a scale.
    """
    gain = _centred(outputs.abs().amax(0).clamp(min=_SMALLEST))
    divided = outputs / gain
    plain, even = ObservedActivation.by(observer, outputs), ObservedActivation.by(observer, divided)
    before = _relative([(rounding.by_tensor(outputs, plain.kept), outputs)])
    after = _relative([(rounding.by_tensor(divided, even.kept) * gain, outputs)])
    return (gain, even, after, before) if after < worth * before else (None, plain, before, before)


def apply(linears: Sequence[nn.Linear], found: Equalised) -> None:
    """Divide the weights and biases of a group's linears by the scales of `checkpoint.smoothquant`."""
    with torch.no_grad():
        for linear, after in zip(linears, found.output_gains, strict=True):
            if found.input_gain is not None:
                linear.weight.div_(found.input_gain)
            if after is not None:
                linear.weight.div_(after[:, None])
                if linear.bias is not None:
                    linear.bias.div_(after)


def _relative(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the mean over tokens and linears of |got - true|² / |true|²."""
    errors = [((got - true).square().sum(-1) / true.square().sum(-1).clamp(min=1e-12)).mean() for got, true in pairs]
    return float(torch.stack(errors).mean())


def _centred(scales: torch.Tensor) -> torch.Tensor:
    return scales / scales.log().mean().exp()
