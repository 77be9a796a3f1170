"""What is int8 when a file of fixed ranges runs: it is rounded for linears, and in the steps in which they read it.

A linear's own steps are compared with those that calibration found. What reaches it may still have been made in other
steps, and something else may have been rounded besides; single precision, in which a file's graph is tried, hides both.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.errors import ToolchainError

Grid = tuple[float, int]
"""Scale and zero point."""
What = Literal["rounds", "linear", "moves", "multiplies out", "other"]
"""What an operation does: it turns floats, or other int8, into int8; it multiplies; it lays out anew; it gives floats
again."""
_READ_BY: Mapping[What, tuple[What, ...]] = {
    "rounds": ("linear", "moves"),
    # Between two linears without gains LiteRT's converter has an activation in int8 as well.
    "linear": ("linear", "moves", "rounds", "multiplies out", "other"),
}
"""What may read int8, by what made it. What is made of a linear's int8 goes where that may go."""


class Rounded:
    """Follows int8 through one function while a reader goes through its operations in order."""

    def __init__(self) -> None:
        """Begin a function."""
        self._made: dict[object, tuple[What, Grid]] = {}

    def __contains__(self, value: object) -> bool:
        """Return whether a value is int8."""
        return value in self._made

    def grid(self, value: object) -> Grid:
        """Return the steps of a value that is int8."""
        return self._made[value][1]

    def operation(self, name: str, what: What, read: Mapping[Any, Grid], made: Mapping[Any, Grid]) -> None:
        """Add an operation.

        Args:
            name: as the format calls it, for messages.
            what: what it does.
            read: the values of int8 that it reads, each with its steps as the operation takes them to be.
            made: those that it makes.

        Raises:
            ToolchainError: no conversion has such.
        """
        makers: list[What] = []
        for value, grid in read.items():
            if value not in self._made:
                raise ToolchainError(f"the file has a {name} that reads int8 that nothing has made.")
            maker, steps = self._made[value]
            if steps != grid:
                raise ToolchainError(f"the file has a {name} that reads int8 in other steps than it was made in.")
            if what not in _READ_BY[maker]:
                raise ToolchainError(f"the file has a {name} that reads what was rounded, and is no linear.")
            makers.append(maker)
        if made and not makers and what not in ("rounds", "linear"):
            raise ToolchainError(f"the file has a {name} that gives int8, and is no linear.")
        for value, grid in made.items():
            if what == "moves" and {grid} != {*read.values()}:
                raise ToolchainError(f"the file has a {name} that gives int8 in other steps than it reads.")
            self._made[value] = (what if what in ("rounds", "linear") else makers[0], grid)
