"""The head that finds an answer in a passage."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.heads.head import Floats, Head

if TYPE_CHECKING:
    import torch


def of_tokens(model: Any) -> Head:
    """Return the head of Hugging Face's question-answering classes."""
    return Head(_outputs, lambda output, unpooled: _reference(output))


def _outputs(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return each token's logit as the answer's start and as its end, each `(batch, seq_len)`."""
    return output.start_logits, output.end_logits


def _reference(output: Any) -> Floats:
    """Return start and end logits of the tokens of unpadded rows, side by side."""
    return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
