"""Rounding of toolchains to int8, and their forms of activations."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SMALLEST_STEP = 2.0**-23
"""Smallest scale in torchao 0.18 (`torch.finfo(torch.float32).eps`); rows of tiny numbers are rounded with it."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of one toolchain to int8, to the last bit: a flipped bit in a scale is far below half a scale."""

    steps: float
    """Ratio of a row's largest magnitude to its scale."""
    by_reciprocal: bool = False
    """Whether elements are multiplied by the reciprocal of the scale instead of divided by the scale."""
    dtype: type[np.floating[Any]] = np.float32
    """Precision of scales and quotients."""

    def of(self, wanted: Array, largest: Array) -> Array:
        """Return numbers as a file has them: rounded to int8 and dequantised.

        Args:
            wanted: numbers of the checkpoint.
            largest: largest magnitude of the numbers that share a scale, in a shape that broadcasts.
        """
        one = self.dtype(1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = largest.astype(self.dtype) / self.dtype(self.steps)
            if self.by_reciprocal:
                step = np.maximum(step, self.dtype(SMALLEST_STEP))
            numbers = wanted.astype(self.dtype)
            quotients = numbers * (one / step) if self.by_reciprocal else numbers / step
            codes = np.clip(np.rint(quotients), -128, 127)
            # A row of zeros has no scale.
            rounded = np.where(step > 0, codes, 0).astype(self.dtype) * step
        found: Array = rounded.astype(np.float32)
        return found


@dataclass(frozen=True)
class ComputedAs:
    """Other operators by which a toolchain computes an activation."""

    forms: tuple[str, ...]
    least_db: float
    """Upper limit of the SQNR bound, in single precision, for models with this activation."""
