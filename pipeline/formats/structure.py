"""The structure of a converted file: everything that can be compared with the checkpoint without running it.

Running a file over real text does not show everything: a corrupted row of the vocabulary that no text uses, or an
epsilon below the noise of int8. Each backend reads its file back; `pipeline.verify.structure` compares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ToolchainError
from pipeline.schemes import Arithmetic, Stored

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "sigmoid", "tanh"]
"""Activations that formats have an operator for. `gelu` is the exact form, by erf; `gelu_tanh` the approximation that
`gelu_new` names. Any other is a formula of other operators in a file, and judged by its outputs alone."""
Denied = Literal["control flow", "randomness", "a custom operator"]
"""Reasons to refuse an operator: its output is not determined by running it over texts, or by a specification."""


@dataclass(frozen=True)
class Constant:
    """A constant of floats or quantised floats, listed once, however many operations and functions read it."""

    name: str
    """Name in the file, for messages."""
    values: NDArray[np.float32]
    """Numbers as the runtime sees them: int8 dequantised, half precision widened."""
    stored: Stored
    """Type of the numbers in the file, before they are dequantised."""
    sparse: bool = False
    """Whether zeros are left out of the file."""


StaticScales = tuple[float, int, float, int] | tuple[float, int]
"""Scale and zero point of a static linear's input, then of its output if that is int8 as well."""
Role = Literal["weight", "bias"]
"""Role of a constant in an operation, if it is clear: a multiplication by a weight, or an addition of a bias."""


_STEP_ERROR = 1e-6
"""Relative error of a product of two scales in single precision."""


@dataclass(frozen=True)
class Use:
    """An operation that reads constants."""

    constants: tuple[tuple[int, Role | None], ...]
    """Indices in `Structure.constants`, each with its role."""
    sources: tuple[int, ...]
    """Indices of the uses in the same function whose results it reads with no other use between."""
    static_scales: StaticScales | None = None
    """Scales and zero points of a static int8 linear; None for other operations."""


@dataclass(frozen=True)
class Structure:
    """Constants and attributes of a file, over all its functions."""

    constants: tuple[Constant, ...]
    """Every float constant of two or more elements, and every quantised one."""
    epsilons: tuple[float, ...]
    """Epsilon of each layer normalisation, in the order of the file, function by function."""
    activations: tuple[Activation, ...]
    """Each activation with an operator, likewise."""
    uses: tuple[tuple[Use, ...], ...]
    """For each function, the operations that read constants, in the order in which they run."""
    numbers: tuple[float, ...]
    """Every float constant of one element."""
    arithmetic: tuple[Arithmetic, ...]
    """Arithmetic of each linear that reads a constant matrix, likewise."""
    static_scales: tuple[StaticScales, ...]
    """Scales and zero points of each static int8 linear, likewise."""
    denied: tuple[tuple[str, Denied], ...]
    """Forbidden operators with reasons, by the format's name for them."""


def check_bias(own: NDArray[np.float32], of_weight: NDArray[np.float32], read: float) -> None:
    """Refuse an integer bias whose scale is not the product of the scales of input and weight.

    Kernels assume this scale, whatever the file declares.

    Args:
        own: scales of the bias, as the file declares them.
        of_weight: scales of the weight, one per row.
        read: scale of the linear's input.

    Raises:
        ToolchainError: they differ.
    """
    if np.shape(own) != np.shape(of_weight) or not np.allclose(own, read * of_weight, rtol=_STEP_ERROR, atol=0):
        raise ToolchainError("the file has a linear of static int8 whose bias has another scale than its products.")


class Flow:
    """Follows constants and values through one function, as a reader goes through its operations in order.

    Values and constants are identified by keys of the reader's choice. An operation that reads constants alone makes
    another constant, such as a table that is widened or transposed before use.
    """

    def __init__(self) -> None:
        """Start a function."""
        self.uses: list[tuple[dict[object, Role | None], frozenset[int], StaticScales | None]] = []
        self._sources: dict[object, frozenset[int]] = {}
        self._constants: dict[object, frozenset[object]] = {}

    def constant(self, value: object, key: object) -> None:
        """Register a value as a constant with the reader's key for it."""
        self._constants[value] = frozenset([key])

    def operation(
        self,
        inputs: Iterable[object],
        outputs: Iterable[object],
        roles: Mapping[object, Role | None] | None = None,
        static_scales: StaticScales | None = None,
    ) -> None:
        """Add an operation: its inputs and outputs, the inputs' roles, and scales and zero points if static int8."""
        inputs = tuple(inputs)
        constants = {
            key: (roles or {}).get(value) for value in inputs for key in self._constants.get(value, frozenset())
        }
        sources = frozenset().union(*(self._sources.get(value, frozenset()) for value in inputs))
        if constants and all(value in self._constants for value in inputs):
            self._constants |= dict.fromkeys(outputs, frozenset(constants))
            return
        if constants:
            self.uses.append((constants, sources, static_scales))
            sources = frozenset([len(self.uses) - 1])
        self._sources |= dict.fromkeys(outputs, sources)

    def numbered(self, numbers: Mapping[object, int]) -> tuple[Use, ...]:
        """Return the uses with indices of constants instead of keys; keys without an index are left out."""
        return tuple(
            Use(
                tuple((numbers[key], role) for key, role in roles.items() if key in numbers),
                tuple(sorted(sources)),
                static_scales,
            )
            for roles, sources, static_scales in self.uses
        )
