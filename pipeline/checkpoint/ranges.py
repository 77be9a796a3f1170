"""The record of a student's quantisation, beside its weights: gains, errors, ranges and histograms per linear."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

FILE = "ranges.json"
INPUT_GAIN, INNER, OUTPUT_GAIN = "input_gain", "linear", "output_gain"
"""Parts of a `gains.ScaledLinear`, as they are called behind the path of the linear that it wraps."""
Range = tuple[float, float]
"""Lowest and highest activation value that int8 does not clip; zero lies between them."""
STEPS = 255
"""Steps of int8 from the lowest code to the highest."""
LEAST_CHOSEN = 2048
"""Elements from which on a weight is chosen, as in coremltools; a list of a palette alone takes 128 bytes."""
_SMALLEST_HALF = 2.0**-14
"""Smallest scale in half precision: some processors flush smaller numbers to zero."""


def scale_and_zero_point(kept: Range, *, half: bool = False) -> tuple[float, int]:
    """Return the step of int8 over a range that holds zero, and the code of zero.

    Args:
        kept: the range.
        half: whether the step is to be a number of half precision; else it is one of single precision.
    """
    low, high = min(kept[0], 0.0), max(kept[1], 0.0)
    exact = max(high - low, 1e-9) / STEPS
    step = float(np.float16(max(exact, _SMALLEST_HALF)) if half else np.float32(exact))
    return step, int(np.clip(round(-128 - low / step), -128, 127))


class Activation(BaseModel):
    """One activation of a linear on the calibration set, after its gain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float
    """Lowest value that int8 keeps."""
    high: float
    """Highest value that int8 keeps."""
    lowest: float
    """Lowest value that occurred."""
    highest: float
    """Highest value that occurred."""
    counts: tuple[int, ...]
    """How many values there were in each of so many bins of equal width, from `lowest` to `highest`."""

    def scale_and_zero_point(self, *, half: bool = False) -> tuple[float, int]:
        """Return the step of int8 over the range, and the code of zero, from -128 to 127."""
        return scale_and_zero_point((self.low, self.high), half=half)


class Linear(BaseModel):
    """One linear, between its gains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """In the Hugging Face model."""
    alpha: float | None
    """Share of an outlier that its input's gain moves into the weight; None where it has no such gain."""
    output_gain: bool
    error_before: float
    """Squared error of the outputs of its group after rounding, relative to the outputs, without gains."""
    error: float
    """With them."""
    largest_channel: float
    """Largest size of the input's channel that is farthest out, before the gain, over the median channel's."""
    input: Activation | None = None
    """Static int8 alone."""
    output: Activation | None = None
    output_error: float | None = None
    """Squared error of its outputs, relative to them, from rounding these alone."""
    output_error_before: float | None = None
    """The same without their gain."""

    def steps(self, *, half: bool) -> tuple[tuple[float, int], ...]:
        """Return scale and zero point of the linear's input and of its output; empty if it has no static ranges.

        With `half`, the input's alone: in half-precision files the output is float, as in Core ML's int8 linears.
        """
        if self.input is None or self.output is None:
            return ()
        read = self.input.scale_and_zero_point(half=half)
        return (read,) if half else (read, self.output.scale_and_zero_point())


class Training(BaseModel):
    """Quantisation-aware training of the checkpoint, where it had one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    texts: int
    """Texts that were trained on."""
    held_out: int
    """Texts that were not, on which distances are measured."""
    steps: int
    seconds: float
    """Time of the updates, summed over the parts of an interrupted run."""
    resumed_at: tuple[int, ...]
    """Updates after which an interrupted run went on."""
    distance_before: float
    """Mean squared distance of the outputs to the student's in fp32, relative to their size, on held-out texts."""
    distance: float
    """The same after training."""
    first_loss: float
    final_loss: float


class ChosenWeight(BaseModel):
    """One weight that was chosen on text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """The parameter's, in the Hugging Face model."""
    error_nearest: float | None
    """Squared error of a linear's outputs relative to the outputs, each number rounded to the nearest; None of a table.

    The linear reads what it reads in the quantised model, on the calibration set.
    """
    error: float | None
    """The same with errors handed on from column to column."""


class ChosenWeights(BaseModel):
    """All weights of a student that were chosen, tables first, then linears in the order of their first call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheme: str
    texts: int
    weights: tuple[ChosenWeight, ...]
    training: Training | None = None

    def errors(self) -> dict[str, float]:
        """Return by how much rounding changes what each linear gives, by its path."""
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
    """Largest difference between the student and the rewritten one, both fp32, over the root mean square of outputs."""
    linears: tuple[Linear, ...]
    training: Training | None = None

    def errors(self) -> dict[str, float]:
        """Return by how much rounding changes what each linear gives, by its path."""
        return {one.path: one.error + (one.output_error or 0.0) for one in self.linears}


def read(folder: Path) -> Ranges:
    """Read the record of a quantised checkpoint."""
    return Ranges.model_validate_json((folder / FILE).read_text(encoding="utf-8"))
