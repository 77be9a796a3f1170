"""Follow int8 values through a file: rounded inputs go to linears only, each read with the scale it was made with.

A linear's own scales are compared with the calibrated ranges. Its input may still have been made with another scale, or
another activation may be rounded; single precision, in which a file's graph is run, hides both.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.errors import ToolchainError

ScaleZeroPoint = tuple[float, int]
"""Scale and zero point."""
What = Literal["rounds", "linear", "moves", "multiplies out", "other"]
"""Effect of an operation on int8: it rounds floats or other int8 to int8; it is a linear; it moves elements; it
dequantises."""
_READ_BY: Mapping[What, tuple[What, ...]] = {
    "rounds": ("linear", "moves"),
    # Between two linears without gains LiteRT's converter has an activation in int8 as well.
    "linear": ("linear", "moves", "rounds", "multiplies out", "other"),
}
"""Operations that may read int8, by the operation that made it. Moved int8 counts as its maker's."""


class Rounded:
    """Follows int8 values through one function, as a reader goes through its operations in order."""

    def __init__(self) -> None:
        """Start a function."""
        self._made: dict[object, tuple[What, ScaleZeroPoint]] = {}

    def __contains__(self, value: object) -> bool:
        """Return whether a value is int8."""
        return value in self._made

    def scale_zero_point(self, value: object) -> ScaleZeroPoint:
        """Return the scale and zero point of an int8 value."""
        return self._made[value][1]

    def operation(
        self, name: str, what: What, read: Mapping[Any, ScaleZeroPoint], made: Mapping[Any, ScaleZeroPoint]
    ) -> None:
        """Add an operation, and check its int8 inputs.

        Args:
            name: the format's name for it, for messages.
            what: its effect on int8.
            read: its int8 inputs, each with scale and zero point as the operation declares them.
            made: its int8 outputs, likewise.

        Raises:
            ToolchainError: no conversion writes such an operation.
        """
        makers: list[What] = []
        for value, scale_zero_point in read.items():
            if value not in self._made:
                raise ToolchainError(f"the file has a {name} that reads int8 that nothing has made.")
            maker, made_with = self._made[value]
            if made_with != scale_zero_point:
                raise ToolchainError(
                    f"the file has a {name} that reads int8 with another scale or zero point than it was made with."
                )
            if what not in _READ_BY[maker]:
                raise ToolchainError(f"the file has a {name} that reads what was rounded, and is no linear.")
            makers.append(maker)
        if made and not makers and what not in ("rounds", "linear"):
            raise ToolchainError(f"the file has a {name} that gives int8, and is no linear.")
        for value, scale_zero_point in made.items():
            if what == "moves" and {scale_zero_point} != {*read.values()}:
                raise ToolchainError(
                    f"the file has a {name} that gives int8 with another scale or zero point than it reads."
                )
            self._made[value] = (what if what in ("rounds", "linear") else makers[0], scale_zero_point)
