"""The record of a student's quantisation, beside its weights: scales, errors, ranges and histograms per linear."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

FILE = "ranges.json"
INPUT_GAIN, INNER, OUTPUT_GAIN = "input_gain", "linear", "output_gain"
"""Parts of a `smoothquant.ScaledLinear`, as they are called behind the path of the linear that it wraps."""
Range = tuple[float, float]
"""Lowest and highest activation value that int8 does not clip; zero lies between them."""
STEPS = 255
"""Number of intervals between int8's codes, from the lowest to the highest."""
SMALLEST_QUANTISED = 2048
"""Elements from which on a weight is chosen, as in coremltools; a list of a palette alone takes 128 bytes."""
_SMALLEST_HALF = 2.0**-14
"""Smallest scale in half precision: some processors flush smaller numbers to zero."""


def scale_and_zero_point(kept: Range, *, half: bool = False) -> tuple[float, int]:
    """Return scale and zero point of int8 for a range, which is widened to include zero.

    Args:
        kept: the range.
        half: whether the scale is rounded to half precision; else to single precision.
    """
    low, high = min(kept[0], 0.0), max(kept[1], 0.0)
    exact = max(high - low, 1e-9) / STEPS
    step = float(np.float16(max(exact, _SMALLEST_HALF)) if half else np.float32(exact))
    return step, int(np.clip(round(-128 - low / step), -128, 127))


class Activation(BaseModel):
    """Range and histogram of a linear's input or output on the calibration set, after its SmoothQuant scale."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float
    """Lowest value that int8 does not clip."""
    high: float
    """Highest value that int8 does not clip."""
    lowest: float
    """Lowest value that occurred."""
    highest: float
    """Highest value that occurred."""
    counts: tuple[int, ...]
    """Histogram: number of values in each bin; the bins have equal width, from `lowest` to `highest`."""

    def scale_and_zero_point(self, *, half: bool = False) -> tuple[float, int]:
        """Return int8 scale and zero point (-128 to 127) of the range."""
        return scale_and_zero_point((self.low, self.high), half=half)


class Linear(BaseModel):
    """The quantisation record of one linear."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """Path of the linear in the Hugging Face model."""
    alpha: float | None
    """SmoothQuant's alpha, the share of an outlier that the scale moves into the weight; None without a scale."""
    output_gain: bool
    error_before: float
    """Relative squared error of its group's outputs after quantisation, without SmoothQuant scales."""
    error: float
    """Relative squared error of its group's outputs after quantisation, with SmoothQuant scales."""
    largest_channel: float
    """Largest absolute value of the largest input channel over that of the median channel, before the scale."""
    input: Activation | None = None
    """Input range; only for static int8."""
    output: Activation | None = None
    output_error: float | None = None
    """Relative squared error from quantising the outputs alone."""
    output_error_before: float | None = None
    """Relative squared error from quantising the outputs alone, without their scale."""

    def static_scales(self, *, half: bool) -> tuple[tuple[float, int], ...]:
        """Return scale and zero point of the linear's input and of its output; empty if it has no static ranges.

        With `half`, the input's alone: in half-precision files the output is float, as in Core ML's int8 linears.
        """
        if self.input is None or self.output is None:
            return ()
        read = self.input.scale_and_zero_point(half=half)
        return (read,) if half else (read, self.output.scale_and_zero_point())


class Training(BaseModel):
    """The record of a checkpoint's quantisation-aware training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    texts: int
    """Number of training texts."""
    held_out: int
    """Number of held-out texts, on which distances are measured."""
    steps: int
    seconds: float
    """Time of the updates, summed over the parts of an interrupted run."""
    resumed_at: tuple[int, ...]
    """Numbers of updates at which an interrupted run was resumed."""
    distance_before: float
    """Mean squared distance of the outputs to the student's in fp32, relative to their size, on held-out texts."""
    distance: float
    """The same distance after training."""
    first_loss: float
    final_loss: float


class QuantisedWeightRecord(BaseModel):
    """The record of one weight that was quantised on the calibration set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the parameter in the Hugging Face model."""
    error_nearest: float | None
    """Relative squared error of a linear's outputs if each weight is rounded to nearest; None for a table.

    The linear's inputs are those in the quantised model, on the calibration set.
    """
    error: float | None
    """The same error with each column compensating the rounding errors of the columns before it."""


class QuantisedWeightsRecord(BaseModel):
    """All weights of a student quantised on the calibration set: tables, then linears in the order of first call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: str
    texts: int
    weights: tuple[QuantisedWeightRecord, ...]
    training: Training | None = None

    def errors(self) -> dict[str, float]:
        """Return the relative squared error of each linear's outputs from weight quantisation, by its path."""
        return {one.name.removesuffix(".weight"): one.error for one in self.weights if one.error is not None}


class Ranges(BaseModel):
    """All linears of a student, in the order of their first call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: str
    observer: str | None
    """A row of `observers.OBSERVERS`; None where ranges are found at run time."""
    texts: int
    tokens: int
    identity_error: float
    """Largest difference between the student with and without scales, both fp32, over the outputs' root mean square."""
    linears: tuple[Linear, ...]
    training: Training | None = None

    def errors(self) -> dict[str, float]:
        """Return the relative squared error of each linear's outputs from quantisation, by its path."""
        return {one.path: one.error + (one.output_error or 0.0) for one in self.linears}


def read(folder: Path) -> Ranges:
    """Read the record of a quantised checkpoint."""
    return Ranges.model_validate_json((folder / FILE).read_text(encoding="utf-8"))
