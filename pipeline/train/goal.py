"""What a run of the loop works towards: labels in fine-tuning, a teacher in distillation."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class Goal(Protocol):
    """The rows, the model, and the terms of the loss.

    A term is a sum over items (rows, tokens, answers). The loop divides it by the items of the whole update, so that
    neither the number of processes nor the parts of an update change what is learnt.
    """

    @property
    def model(self) -> Any:
        """Everything that is trained, not wrapped; it is what a checkpoint holds."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Of each term, in the order of the loss curve; a single term has no curve of its own."""

    @property
    def uses_all(self) -> bool:
        """Whether each update gives each trained parameter a gradient."""

    def items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return the items of each term in all rows of an update."""

    def terms(self, model: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, torch.Tensor]:
        """Return each term's sum over some rows of an update, from the model as it is wrapped for this run."""

    def score(self, device: torch.device) -> float | None:
        """Return the dev metric, or None where there is none."""
