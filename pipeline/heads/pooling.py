"""Heads of embeddings: one vector of all tokens."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.heads.head import Floats, Head

if TYPE_CHECKING:
    import torch


def mean(model: Any) -> Head:
    """Return the head of sentence-transformers' mean pooling, scaled to unit length.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), mean pooling; the checkpoint's own `modules.json`.
    """
    return Head(_outputs, _reference)


def _outputs(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor"]:
    """Return the unit-length mean of the token vectors, `(batch, hidden)`; exactly zero for a row of padding.

    Args:
        output: the encoder's output with `last_hidden_state` `(batch, seq_len, hidden)`.
        mask: 1 for tokens and 0 for padding, float, `(batch, seq_len)`.
    """
    import torch

    total = (output.last_hidden_state * mask[:, :, None]).sum(1)
    average = total / mask.sum(1, keepdim=True).clamp(min=1.0)
    unit: torch.Tensor = average * torch.rsqrt((average * average).sum(1, keepdim=True).clamp(min=1e-12))
    return (unit,)


def _reference(output: Any) -> Floats:
    """Return the unit-length mean over the tokens of unpadded rows, in float64, as sentence-transformers does."""
    hidden = output.last_hidden_state.numpy().astype(np.float64)
    average = hidden.mean(axis=1, keepdims=True)
    unit: Floats = (average / np.linalg.norm(average, axis=-1, keepdims=True)).astype(np.float32)
    return unit
