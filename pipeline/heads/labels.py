"""Heads that give logits, of a text or of each token. Hugging Face's classes compute them."""

from typing import TYPE_CHECKING, Any

from pipeline.heads.head import Floats, Head

if TYPE_CHECKING:
    import torch


def of_text(model: Any) -> Head:
    """Return the head of a classifier or a regression."""
    return Head(_logits, lambda output: _reference(output)[:, None, :])


def of_tokens(model: Any) -> Head:
    """Return the head of a tagger."""
    return Head(_logits, _reference)


def _logits(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor"]:
    """Return the logits, `(batch, labels)` or `(batch, seq_len, labels)`, before any softmax."""
    return (output.logits,)


def _reference(output: Any) -> Floats:
    result: Floats = output.logits.numpy()
    return result
