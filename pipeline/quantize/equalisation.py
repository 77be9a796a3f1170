"""Equalisation: gains that make the channels of a linear's input, and of its output, alike before they are quantised.

A linear computes W x + b. With a positive vector s for its columns and t for its rows that is
t · ((W·s / t)(x / s) + b / t): the same in fp32, whatever s and t. What int8 has to hold, x / s and what comes before
the outer t, has no channel that leaves the others a few steps only.

Each gain costs a multiplication of the activation, so a linear gets one only where it saves much of the error.

Source: Xiao et al. 2023 (SmoothQuant) for s; its exponent is searched for here, linear by linear. The gains of outputs
are ours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
class Equalised:
    """What becomes of the linears of a group."""

    paths: tuple[str, ...]
    input_gain: torch.Tensor | None
    """1 / s, `(columns,)`, or None where it would save too little."""
    output_gains: tuple[torch.Tensor | None, ...]
    """t of each linear, `(rows,)`."""
    input_range: Range | None
    """Of x / s, for static int8."""
    output_ranges: tuple[Range | None, ...]
    """Of what comes before t."""
    error: float
    """Mean over tokens of the squared error of the outputs, relative to the outputs."""
    error_before: float
    """The same without gains."""
    alpha: float | None
    histograms: tuple[Histogram, ...] = ()
    """Of the input, then of each output, where the ranges come from."""


def equalise(group: LinearGroup, *, static: bool, observer: str) -> Equalised:
    """Choose the gains of a group's linears.

    Args:
        group: the linears with what they read.
        static: whether inputs and outputs are rounded over ranges of a tensor, instead of inputs over each token's.
        observer: a row of `OBSERVERS`, for static ranges.
    """
    weights = [linear.weight.detach() for linear in group.linears]
    inputs, some = group.inputs, group.inputs[:_TOKENS]
    truth = [some @ weight.T for weight in weights]

    def quantiser(values: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        if not static:
            return rounding.by_token
        kept = OBSERVERS[observer](Histogram.of(values.numpy()))
        return lambda one: rounding.by_tensor(one, kept)

    def error_of(scales: torch.Tensor | None) -> float:
        divided = inputs if scales is None else inputs / scales
        read = quantiser(divided)(divided[:_TOKENS])
        rounded = [rounding.weight_by_row(weight if scales is None else weight * scales) for weight in weights]
        return _relative(((read @ weight.T, true) for weight, true in zip(rounded, truth, strict=True)))

    before = error_of(None)
    tried = {alpha: smoothing_scales(inputs, weights, alpha) for alpha in ALPHAS}
    errors = {alpha: error_of(scales) for alpha, scales in tried.items()}
    alpha = min(errors, key=errors.__getitem__)
    taken = errors[alpha] < WORTH * before
    scales = tried[alpha] if taken else None
    divided = inputs if scales is None else inputs / scales
    found = Equalised(
        group.paths,
        None if scales is None else 1 / scales,
        (None,) * len(weights),
        None,
        (None,) * len(weights),
        errors[alpha] if taken else before,
        before,
        alpha if taken else None,
    )
    return _static(found, group, divided, observer) if static else found


def smoothing_scales(inputs: torch.Tensor, weights: Sequence[torch.Tensor], alpha: float) -> torch.Tensor:
    """Return SmoothQuant's s = max|x|^a / max|W|^(1-a) of each column, `(columns,)`, of geometric mean one."""
    largest = inputs.abs().amax(0).clamp(min=_SMALLEST)
    of_weights = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).clamp(min=_SMALLEST)
    return _centred(largest**alpha / of_weights ** (1 - alpha))


def _static(found: Equalised, group: LinearGroup, divided: torch.Tensor, observer: str) -> Equalised:
    """Add the gains of outputs, and the ranges."""
    observe = OBSERVERS[observer]
    histograms = [Histogram.of(divided.numpy())]
    gains: list[torch.Tensor | None] = []
    ranges: list[Range] = []
    for number in range(len(group.linears)):
        outputs = group.outputs(number).detach()
        gain = _centred(outputs.abs().amax(0).clamp(min=_SMALLEST))
        plain, even = Histogram.of(outputs.numpy()), Histogram.of((outputs / gain).numpy())
        errors = [
            _relative([(rounding.by_tensor(values, observe(histogram)) * factor, outputs)])
            for values, histogram, factor in ((outputs, plain, torch.ones(())), (outputs / gain, even, gain))
        ]
        taken = errors[1] < WORTH * errors[0]
        gains.append(gain if taken else None)
        histograms.append(even if taken else plain)
        ranges.append(observe(histograms[-1]))
    return Equalised(
        found.paths,
        found.input_gain,
        tuple(gains),
        observe(histograms[0]),
        tuple(ranges),
        found.error,
        found.error_before,
        found.alpha,
        tuple(histograms),
    )


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
