"""What comes after an encoder, as other rooms ask for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Head:
    """What comes after the encoder of one checkpoint."""

    outputs: Callable[[Any, "torch.Tensor"], tuple["torch.Tensor", ...]]
    """`(the model's output, float mask (batch, seq_len)) -> the task's outputs, in the order of their names`. The
    exported graph computes it, and so do training and measurement."""
    reference: Callable[[Any], Floats]
    """`the model's output for unpadded rows -> (batch, items, width)`, independent of `outputs`, which it judges."""
    tensors: Mapping[str, Floats] = field(default_factory=dict)
    """Its own weights, by name, beside those of the model's class."""
