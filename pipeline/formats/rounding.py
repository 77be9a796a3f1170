"""How toolchains round numbers to int8."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SMALLEST_STEP = 2.0**-23
"""torchao 0.18 lets no scale be smaller (`torch.finfo(torch.float32).eps`), so tiny rows are coarser than their own."""


@dataclass(frozen=True)
class Rounding:
    """How a toolchain rounds to int8, to the last bit: a flipped bit in a scale is far below half a step."""

    steps: float
    """How many steps the largest element of a row is."""
    by_reciprocal: bool = False
    """Whether elements are multiplied by one over the step instead of divided by it."""
    dtype: type[np.floating[Any]] = np.float32
    """In which scales and quotients are computed."""

    def of(self, wanted: Array, largest: Array) -> Array:
        """Return what a file has for some numbers.

        Args:
            wanted: the checkpoint's numbers.
            largest: the largest size of those that share a scale; of a shape that broadcasts.
        """
        one = self.dtype(1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = largest.astype(self.dtype) / self.dtype(self.steps)
            if self.by_reciprocal:
                step = np.maximum(step, self.dtype(SMALLEST_STEP))
            numbers = wanted.astype(self.dtype)
            quotients = numbers * (one / step) if self.by_reciprocal else numbers / step
            codes = np.clip(np.rint(quotients), -128, 127)
            # A row of zeros has no step.
            rounded = np.where(step > 0, codes, 0).astype(self.dtype) * step
        found: Array = rounded.astype(np.float32)
        return found


@dataclass(frozen=True)
class ComputedAs:
    """Other forms in which a toolchain computes an activation."""

    forms: tuple[str, ...]
    least_db: float
    """SQNR in single precision to which a file is held at most for it."""
