"""int8 as the runtimes compute with it, in PyTorch: weights with a scale a row, activations per token or per tensor."""

import torch

from pipeline.checkpoint.ranges import Range, scale_and_zero_point
from pipeline.checkpoint.static import codes_by_row

_SMALLEST = 1e-12


def weight_by_row(weight: torch.Tensor, *, one_scale: bool = False) -> torch.Tensor:
    """Return a weight `(rows, columns)` rounded to int8 and multiplied out, symmetric, see `static.codes_by_row`."""
    codes, scale = codes_by_row(weight, one_scale=one_scale)
    return codes * scale[:, None]


def by_token(values: torch.Tensor) -> torch.Tensor:
    """Return activations rounded as dynamic int8 does it: asymmetric, each token over its own range with zero in it."""
    low, high = values.amin(-1, keepdim=True).clamp(max=0), values.amax(-1, keepdim=True).clamp(min=0)
    step = ((high - low) / 255).clamp(min=_SMALLEST)
    zero = (-low / step).round()
    return ((values / step).round() + zero).clamp(0, 255).sub(zero) * step


def by_tensor(values: torch.Tensor, kept: Range) -> torch.Tensor:
    """Return activations rounded as static int8 does it: asymmetric, all over one range that calibration found."""
    step, zero = scale_and_zero_point(kept)
    return ((values / step).round() + zero).clamp(-128, 127).sub(zero) * step
