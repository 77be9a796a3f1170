"""Messages of gates that failed: the measure in its unit, the bound, and the worst input."""

from dataclasses import dataclass

_NOT_FINITE_DB = -999.0
"""The SQNR in a control's record where an output is NaN or infinite."""
_CLOSE, _ROUNDING = 1e-3, 0.01
"""A cosine this close to 1 is shown with enough digits that its distance to 1 is off by a hundredth at most."""


@dataclass(frozen=True)
class Quantity:
    """The measure that a gate compares with its bound."""

    name: str
    unit: str = ""
    """Unit after each number; empty for cosines, fractions and differences of unit vectors."""
    of_one: bool = False
    """Whether 1 is without error, as for a cosine, so that the bound is a minimum."""

    @property
    def least(self) -> bool:
        """Return whether the bound is a minimum."""
        return self.of_one or self.unit == "dB"

    def share(self, found: float, bound: float) -> float:
        """Return the share of the allowed error that a value has: 1 is the bound itself, more breaks it."""
        if self.unit == "dB":
            return float(10 ** ((bound - found) / 20))
        error, allowed = (1 - found, 1 - bound) if self.of_one else (found, bound)
        return max(error, 0.0) / allowed if allowed > 0 else float(error > allowed)

    def of(self, value: float, *, digits: str = ".6g") -> str:
        """Return a value with its unit."""
        return f"{value:{digits}} {self.unit}".rstrip()


_QUANTITIES = {
    "min_mean_cosine": Quantity("mean cosine", of_one=True),
    "min_worst_cosine": Quantity("worst cosine", of_one=True),
    "min_sqnr_db": Quantity("SQNR over all numbers", "dB"),
    "min_agreement": Quantity("fraction of the same decisions", of_one=True),
    "max_abs_error": Quantity("largest absolute error"),
    "max_mean_shift": Quantity("mean shift", "standard deviations"),
    "max_all_pad_error": Quantity("largest number"),
    "max_pad_difference": Quantity("largest difference by padding"),
    "max_usual_pad_difference": Quantity("largest difference by padding but for 2 % of the texts"),
    "max_thread_difference": Quantity("largest difference between runs"),
    "max_kl": Quantity("Kullback-Leibler divergence", "nats"),
    "max_task_drop": Quantity("drop of the task metric"),
    "min_recall_kept": Quantity("share of recall@10 that int8 vectors keep", of_one=True),
    "min_recall_kept_small": Quantity("share of recall@10 that smaller vectors keep", of_one=True),
    "max_bytes_per_parameter": Quantity("size", "bytes per parameter"),
    "control_sqnr_db": Quantity("SQNR of the file's own graph in single precision", "dB"),
    "control_worst_row_db": Quantity("SQNR of the worst row of the file's own graph in single precision", "dB"),
    "masked_difference": Quantity(
        "largest change by what lies under the mask, in single precision", "of the outputs' root mean square"
    ),
    "every_length_worst_row_db": Quantity("SQNR of the worst row over all lengths", "dB"),
}
_RELATIVE = ("max_abs_error", "max_pad_difference", "max_usual_pad_difference", "max_thread_difference")
"""Differences that are divided by the reference's root mean square, but for embeddings, whose length is 1."""
RELATIVE = "of the reference's root mean square"


def quantity(gate: str, output_kind: str) -> Quantity | None:
    """Return the measure of a gate, or None for a gate without a bound.

    Args:
        gate: its name; a dataset's or an evaluator's name may follow a colon.
        output_kind: the task's kind of output.
    """
    key = gate.partition(":")[0]
    found = _QUANTITIES.get(key)
    return Quantity(found.name, RELATIVE) if found and key in _RELATIVE and output_kind != "embedding" else found


def _digits(found: float, bound: float) -> str:
    """Return the format with the fewest digits that distinguishes both values, and a value near 1 from 1."""
    return next((digits for digits in (f".{count}g" for count in range(6, 17)) if _tells(digits, found, bound)), ".17g")


def _tells(digits: str, found: float, bound: float) -> bool:
    if format(found, digits) == format(bound, digits):
        return found == bound
    return all(
        abs(float(format(value, digits)) - value) <= _ROUNDING * (abs(1.0 - value) or 1.0)
        for value in (found, bound)
        if abs(1.0 - value) < _CLOSE
    )


def broken(gate: str, output_kind: str, found: float, bound: float, *, least: bool, why: str) -> str:
    """Return the message of a gate whose bound was not met.

    Args:
        gate: its name, by which a recipe may set the bound.
        output_kind: the task's kind of output.
        found: the measured value.
        bound: the bound.
        least: whether the bound is a minimum.
        why: the worst input, or the comparison made.
    """
    measured = quantity(gate, output_kind) or Quantity("found")
    # One decimal is enough for decibels, unless it hides on which side of the bound a value lies.
    rounded = measured.unit == "dB" and f"{found:.1f}" != f"{bound:.1f}"
    digits = _digits(found, bound)
    said = measured.of(found, digits=".1f" if rounded else digits)
    if measured.unit == "dB" and found <= _NOT_FINITE_DB:
        said = "not finite"
    asked = f"{'at least' if least else 'at most'} {measured.of(bound, digits=digits)} asked"
    return f"{gate}: {measured.name} {said}, {asked}; {why}"
