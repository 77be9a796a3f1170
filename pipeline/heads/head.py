"""What comes after an encoder, as other rooms ask for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Head:
    """What comes after the encoder of one checkpoint. Its weights are parameters of the model."""

    outputs: Callable[[Any, "torch.Tensor"], tuple["torch.Tensor", ...]]
    """`(the model's output, float mask (batch, seq_len)) -> the task's outputs, in the order of their names`. The
    exported graph computes it, and so do training and measurement. The mask is 2 for tokens that are not pooled."""
    reference: Callable[[Any, int], Floats]
    """`(the model's output for unpadded rows, how many tokens at their start are not pooled) -> (batch, items, width)`,
    independent of `outputs`, which it judges."""
