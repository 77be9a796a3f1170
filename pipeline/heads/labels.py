"""Heads that give logits, of a text or of each token. Hugging Face's classes compute them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import StudentError
from pipeline.heads.head import Floats, Head

if TYPE_CHECKING:
    import torch

_ACTIVATIONS: Mapping[str, Literal["identity", "sigmoid"]] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""By the name of their class in `torch.nn`."""


def of_text(model: Any) -> Head:
    """Return the head of a classifier, of one label or of several at once, or of a regression."""
    return Head(_logits, lambda output, unpooled: _logits_of(output)[:, None, :])


def of_tokens(model: Any) -> Head:
    """Return the head of a tagger."""
    return Head(_logits, lambda output, unpooled: _logits_of(output))


def activation_of(config: Any) -> Literal["identity", "sigmoid"]:
    """Return what a cross-encoder applies to its one output, from its config.

    A config without a word of sentence-transformers is a regression of transformers, whose output is taken as it is.

    Raises:
        StudentError: it is neither the sigmoid nor nothing.
    """
    ours = getattr(config, "sentence_transformers", None)
    named = ours.get("activation_fn") if isinstance(ours, dict) else None
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    if named is None:
        return "identity"
    found = _ACTIVATIONS.get(str(named).rpartition(".")[2])
    if found is None:
        raise StudentError(
            f"config.json gives the cross-encoder the activation {str(named)[:80]!r}; there are: "
            f"{', '.join(_ACTIVATIONS)}."
        )
    return found


def _logits(output: Any, mask: "torch.Tensor") -> tuple["torch.Tensor"]:
    """Return the logits, `(batch, labels)` or `(batch, seq_len, labels)`, before any softmax."""
    return (output.logits,)


def _logits_of(output: Any) -> Floats:
    result: Floats = output.logits.numpy()
    return result
