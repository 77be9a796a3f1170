"""What a converted file holds, as far as it can be compared with the checkpoint without running it.

Running a file over real text does not show everything: a corrupted row of the vocabulary that no text uses, or an
epsilon below the noise of int8. Each backend reads its file back; `pipeline.verify.structure` compares.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.schemes import Stored

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "sigmoid", "tanh"]
"""`gelu` is the exact form, by erf; `gelu_tanh` the approximation that `gelu_new` names."""


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


@dataclass(frozen=True)
class Structure:
    """Constants and attributes of a file, over all its functions."""

    constants: tuple[Constant, ...]
    """Every float constant of two elements or more, and every quantised one."""
    epsilons: tuple[float, ...]
    """One for each layer normalisation, in the order of the file, functions one after the other."""
    activations: tuple[Activation, ...]
    """One for each activation, likewise."""
