"""How a bound reads that was not kept: what was measured, in its unit, what was asked, and what is to blame."""

from dataclasses import dataclass

_NOT_FINITE_DB = -999.0
"""What a control says where an output is NaN or infinite."""
_CLOSE, _ROUNDING = 1e-3, 0.01
"""What a cosine lacks to 1 is what counts, and is rounded to a hundredth of itself."""


@dataclass(frozen=True)
class Quantity:
    """What a gate compares with its bound."""

    name: str
    unit: str = ""
    """Behind each number; empty for cosines, fractions and differences of unit vectors."""

    def of(self, value: float, *, digits: str = ".6g") -> str:
        """Return a value in its unit."""
        return f"{value:{digits}} {self.unit}".rstrip()


_QUANTITIES = {
    "min_mean_cosine": Quantity("mean cosine"),
    "min_worst_cosine": Quantity("worst cosine"),
    "min_sqnr_db": Quantity("SQNR over all numbers", "dB"),
    "min_agreement": Quantity("fraction of the same decisions"),
    "max_abs_error": Quantity("largest absolute error"),
    "max_mean_shift": Quantity("mean shift", "standard deviations"),
    "max_all_pad_error": Quantity("largest number"),
    "max_pad_difference": Quantity("largest difference by padding"),
    "max_usual_pad_difference": Quantity("largest difference by padding but for 2 % of the texts"),
    "max_thread_difference": Quantity("largest difference between runs"),
    "max_kl": Quantity("Kullback-Leibler divergence", "nats"),
    "max_task_drop": Quantity("drop of the task metric"),
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
    """Return what a gate measures, or None for one that is a yes or a no.

    Args:
        gate: its name; behind a colon may stand the dataset or the evaluator that it is about.
        output_kind: of the task.
    """
    key = gate.partition(":")[0]
    found = _QUANTITIES.get(key)
    return Quantity(found.name, RELATIVE) if found and key in _RELATIVE and output_kind != "embedding" else found


def _digits(found: float, bound: float) -> str:
    """Return the format with the fewest digits that tell both apart, and either from 1 where it is only close to it."""
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
    """Return the line of a gate whose bound was not kept.

    Args:
        gate: its name, by which a recipe may set the bound.
        output_kind: of the task.
        found: what was measured.
        bound: what was asked.
        least: whether the bound is a minimum.
        why: the input that is to blame, or what was compared.
    """
    measured = quantity(gate, output_kind) or Quantity("found")
    # One decimal says enough of decibels, unless it hides on which side of the bound they are.
    rounded = measured.unit == "dB" and f"{found:.1f}" != f"{bound:.1f}"
    digits = _digits(found, bound)
    said = measured.of(found, digits=".1f" if rounded else digits)
    if measured.unit == "dB" and found <= _NOT_FINITE_DB:
        said = "not finite"
    asked = f"{'at least' if least else 'at most'} {measured.of(bound, digits=digits)} asked"
    return f"{gate}: {measured.name} {said}, {asked}; {why}"
