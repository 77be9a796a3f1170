"""Equalisation: gains that make the channels of a linear's input, and of its output, alike before they are quantised.

A linear computes W x + b. With a positive vector s for its columns and t for its rows that is
t · ((W·s / t)(x / s) + b / t): the same in fp32, whatever s and t. What int8 has to hold, x / s and what comes before
the outer t, has no channel that leaves the others a few steps only.

Each gain costs a multiplication of the activation, so a linear gets one only where it saves much of the error.

Source: Xiao et al. 2023 (SmoothQuant) for s; its exponent is searched for here, linear by linear. The gains of outputs
are ours.
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
"""Shares of an outlier that move from activations into weights, that are tried."""
WORTH = 0.7
"""A gain is taken where it leaves less than this share of the error."""
_SMALLEST = 1e-5
_TOKENS = 1024
"""Tokens on which errors are measured."""


@dataclass(frozen=True)
class Observed:
    """An activation on the calibration set, after its gain, and the range over which static int8 rounds it."""

    histogram: Histogram
    kept: Range

    @classmethod
    def by(cls, observer: str, values: torch.Tensor) -> "Observed":
        """Observe values of any shape with a row of `OBSERVERS`."""
        histogram = Histogram.of(values.numpy())
        return cls(histogram, OBSERVERS[observer](histogram))


@dataclass(frozen=True)
class Equalised:
    """What becomes of the linears of a group."""

    paths: tuple[str, ...]
    input_gain: torch.Tensor | None
    """1 / s, `(columns,)`, or None where it would save too little."""
    error: float
    """Mean over tokens of the squared error of the outputs, relative to the outputs."""
    error_before: float
    """The same without gains."""
    alpha: float | None
    output_gains: tuple[torch.Tensor | None, ...]
    """t of each linear, `(rows,)`."""
    input: Observed | None = None
    """x / s; None but for static int8."""
    outputs: tuple[Observed, ...] = ()
    """What comes before each t; likewise."""
    output_errors: tuple[float, ...] = ()
    """The same error of each linear's outputs, from rounding these alone; likewise."""
    output_errors_before: tuple[float, ...] = ()
    """The same without their gains."""


@dataclass(frozen=True)
class _Tried:
    """Inputs divided by some scales, or as they are."""

    scales: torch.Tensor | None
    observed: Observed | None
    """None where each token has a range of its own."""
    error: float


def equalise(
    group: LinearGroup, *, static: bool, observer: str, worth: float = WORTH, one_scale: bool = False
) -> Equalised:
    """Choose the gains of a group's linears.

    Args:
        group: the linears with what they read.
        static: whether inputs and outputs are rounded over ranges of a tensor, instead of inputs over each token's.
        observer: a row of `OBSERVERS`, for static ranges.
        worth: a gain is taken where it leaves less than this share of the error; none is with 0.
        one_scale: whether all rows of a static linear's weight have the same scale; it is taken of rows that were
            divided by the outputs' gains.
    """
    weights = [linear.weight.detach() for linear in group.linears]
    numbers = range(len(weights) if static else 0)
    after = [_of_outputs(group.outputs(number).detach(), observer, worth) for number in numbers]
    units = [one[0] for one in after] if one_scale else [None] * len(weights)
    truth = [group.inputs[:_TOKENS] @ weight.T for weight in weights]

    def tried(scales: torch.Tensor | None) -> _Tried:
        divided = group.inputs if scales is None else group.inputs / scales
        observed = Observed.by(observer, divided) if static else None
        some = divided[:_TOKENS]
        read = rounding.by_tensor(some, observed.kept) if observed else rounding.by_token(some)
        scaled = weights if scales is None else [weight * scales for weight in weights]
        rounded = [_rounded(weight, unit, one_scale=one_scale) for weight, unit in zip(scaled, units, strict=True)]
        error = _relative((read @ weight.T, true) for weight, true in zip(rounded, truth, strict=True))
        return _Tried(scales, observed, error)

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
    """Return a weight rounded between its gains, whose rows are divided by the outputs' gain where that matters."""
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
) -> tuple[torch.Tensor | None, Observed, float, float]:
    """Return the gain of outputs, or None where it would save too little; what comes before it; both errors.

    First the error as it is taken, then that without a gain.
    """
    gain = _centred(outputs.abs().amax(0).clamp(min=_SMALLEST))
    divided = outputs / gain
    plain, even = Observed.by(observer, outputs), Observed.by(observer, divided)
    before = _relative([(rounding.by_tensor(outputs, plain.kept), outputs)])
    after = _relative([(rounding.by_tensor(divided, even.kept) * gain, outputs)])
    return (gain, even, after, before) if after < worth * before else (None, plain, before, before)


def apply(linears: Sequence[nn.Linear], found: Equalised) -> None:
    """Divide the weights and biases of a group's linears by their gains, which are put in elsewhere."""
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
