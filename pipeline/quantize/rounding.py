"""int8 rounding of the runtimes in PyTorch: weights per row or per tensor, activations per token or per tensor."""

import torch

from pipeline.checkpoint.ranges import Range, scale_and_zero_point
from pipeline.checkpoint.static import codes_by_row

_SMALLEST = 1e-12


def weight_by_row(weight: torch.Tensor, *, one_scale: bool = False) -> torch.Tensor:
    """Return a weight `(rows, columns)` rounded to symmetric int8 and dequantised, see `static.codes_by_row`."""
    codes, scale = codes_by_row(weight, one_scale=one_scale)
    return codes * scale[:, None]


def by_token(values: torch.Tensor) -> torch.Tensor:
    """Return activations rounded by dynamic int8 and dequantised: asymmetric, per token, each range containing zero."""
    low, high = values.amin(-1, keepdim=True).clamp(max=0), values.amax(-1, keepdim=True).clamp(min=0)
    step = ((high - low) / 255).clamp(min=_SMALLEST)
    zero = (-low / step).round()
    return ((values / step).round() + zero).clamp(0, 255).sub(zero) * step


def by_tensor(values: torch.Tensor, kept: Range) -> torch.Tensor:
    """Return activations rounded by static int8 and dequantised: asymmetric, per tensor, over the calibrated range."""
    step, zero = scale_and_zero_point(kept)
    return ((values / step).round() + zero).clamp(-128, 127).sub(zero) * step
