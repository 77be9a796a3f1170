"""What a converted file holds, as far as it can be compared with the checkpoint without running it.

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
`gelu_new` names. Any other is a formula of other operators in a file, and judged by its numbers alone."""
Denied = Literal["control flow", "randomness", "a custom operator"]
"""Why no file may have an operator: what it gives is not told by running it over texts, or by no specification."""


@dataclass(frozen=True)
class Constant:
    """A constant of floats, stored once, however many operations and functions read it."""

    name: str
    """As the file has it, for messages."""
    values: NDArray[np.float32]
    """As the runtime sees it: int8 is multiplied out with its scales, half precision widened."""
    stored: Stored
    """What the numbers are kept as, before they are multiplied out."""
    sparse: bool = False
    """Whether zeros are left out of the file."""


Steps = tuple[float, int, float, int] | tuple[float, int]
"""A static linear's scale and zero point of what it reads, then of what it gives where that is int8 as well."""
Role = Literal["weight", "bias"]
"""What an operation does with a constant, where that is plain: it multiplies by a weight, it adds a bias."""


_STEP_ERROR = 1e-6
"""Relative, of the product of two steps in single precision."""


@dataclass(frozen=True)
class Use:
    """An operation that reads constants."""

    constants: tuple[tuple[int, Role | None], ...]
    """Numbers of the constants in `Structure.constants`, each with its role."""
    sources: tuple[int, ...]
    """Numbers of the earlier uses of the same function on whose results it works, with no other use between."""
    steps: Steps | None = None
    """Known where the linear is static int8."""


@dataclass(frozen=True)
class Structure:
    """Constants and attributes of a file, over all its functions."""

    constants: tuple[Constant, ...]
    """Every float constant of two elements or more, and every quantised one."""
    epsilons: tuple[float, ...]
    """One for each layer normalisation, in the order of the file, functions one after the other."""
    activations: tuple[Activation, ...]
    """One for each activation, likewise."""
    uses: tuple[tuple[Use, ...], ...]
    """For each function, the operations that read constants, in the order in which they run."""
    numbers: tuple[float, ...]
    """Every float constant of one element."""
    arithmetic: tuple[Arithmetic, ...]
    """For each linear that reads a constant matrix, what it multiplies, likewise."""
    steps: tuple[Steps, ...]
    """For each linear of static int8, likewise."""
    denied: tuple[tuple[str, Denied], ...]
    """Operators of a kind that no file may have, by the format's name for them."""


def check_bias(own: NDArray[np.float32], of_weight: NDArray[np.float32], read: float) -> None:
    """Refuse a bias of integers whose steps are not those of the products to which it is added.

    Kernels take it to be in these, whatever the file says of it.

    Args:
        own: the steps of the bias, as the file has them.
        of_weight: the weight's, one a row.
        read: the step of what the linear reads.

    Raises:
        ToolchainError: they differ.
    """
    if np.shape(own) != np.shape(of_weight) or not np.allclose(own, read * of_weight, rtol=_STEP_ERROR, atol=0):
        raise ToolchainError("the file has a linear of static int8 whose bias is in other steps than its products.")


class Flow:
    """Follows constants and values through one function while a reader goes through its operations in order.

    Values and constants are known by whatever key the reader has for them. An operation that reads constants alone
    makes another constant, such as a table that is widened or turned before it is used.
    """

    def __init__(self) -> None:
        """Begin a function."""
        self.uses: list[tuple[dict[object, Role | None], frozenset[int], Steps | None]] = []
        self._sources: dict[object, frozenset[int]] = {}
        self._constants: dict[object, frozenset[object]] = {}

    def constant(self, value: object, key: object) -> None:
        """Say that a value is a constant, known to the reader by a key."""
        self._constants[value] = frozenset([key])

    def operation(
        self,
        inputs: Iterable[object],
        outputs: Iterable[object],
        roles: Mapping[object, Role | None] | None = None,
        steps: Steps | None = None,
    ) -> None:
        """Add an operation by the values that it reads and makes, the roles of those that it reads, and its steps."""
        inputs = tuple(inputs)
        constants = {
            key: (roles or {}).get(value) for value in inputs for key in self._constants.get(value, frozenset())
        }
        sources = frozenset().union(*(self._sources.get(value, frozenset()) for value in inputs))
        if constants and all(value in self._constants for value in inputs):
            self._constants |= dict.fromkeys(outputs, frozenset(constants))
            return
        if constants:
            self.uses.append((constants, sources, steps))
            sources = frozenset([len(self.uses) - 1])
        self._sources |= dict.fromkeys(outputs, sources)

    def numbered(self, numbers: Mapping[object, int]) -> tuple[Use, ...]:
        """Return the uses, with the number of each constant instead of its key; a key without one is left out."""
        return tuple(
            Use(
                tuple((numbers[key], role) for key, role in roles.items() if key in numbers),
                tuple(sorted(sources)),
                steps,
            )
            for roles, sources, steps in self.uses
        )
