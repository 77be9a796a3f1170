"""A file of anybody's, as a runtime presents it: entry points whose inputs and outputs have any name, order and type.

Our own files have a `Signature`, and sessions that rely on it; of a file that another tool made, nothing is known but
what its runtime tells. Each format opens such a file in its module `foreign`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Port:
    """An input or output."""

    name: str
    dtype: str
    """As NumPy names it, such as int32, int64 or float32."""
    shape: tuple[int | None, ...]
    """A size of None is free; empty if the file does not tell the shape."""
    least: int | None = None
    """Smallest size of the free axes; None if the file does not tell."""
    most: int | None = None
    """Largest size of the free axes, likewise."""
    sizes: tuple[int, ...] = ()
    """The sizes that the last axis may have, if they are listed; empty otherwise."""

    def __str__(self) -> str:
        """Return name, type and shape, for messages."""
        shape = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name} {self.dtype} ({shape})"


@dataclass(frozen=True)
class Entry:
    """An entry point: a LiteRT signature, a Core ML function, a method of a `.pte`, or an ONNX graph."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    named: bool = True
    """Whether the ports have names in the file; without them they are called `input 0`, `output 0` and so on."""


class OpenFile(Protocol):
    """A file opened in its runtime."""

    runtime: str
    """Name of the runtime, with its version."""
    stands_in: str | None
    """The limits of the verdict, if the runtime is a substitute."""
    entries: tuple[Entry, ...]

    def run(self, entry: Entry, inputs: Sequence[Array]) -> list[Array]:
        """Run an entry point on arrays in the order of its inputs; the outputs are copies in the order of its outputs.

        Raises:
            InputError: the runtime refuses the arrays.
        """


def numbered(kind: str, count: int) -> list[str]:
    """Return names for ports that have none in the file."""
    return [f"{kind} {number}" for number in range(count)]


def as_floats(array: Array) -> Array:
    """Return an output as the caller's own copy, half precision widened."""
    return np.array(array, dtype=np.float32 if array.dtype == np.float16 else None)
