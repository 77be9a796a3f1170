"""Architectures: one row per Hugging Face `model_type`. To add one, add a row.

Model code stays Hugging Face's. What an export has to change is listed here as a patch, with its reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.errors import StudentError

if TYPE_CHECKING:
    import torch

Patch = Callable[["torch.nn.Module"], None]


def fuse_tanh_gelu(model: "torch.nn.Module") -> None:
    """Replace `gelu_new` by torch's own tanh gelu, the same formula as one op.

    Spelled out, it becomes a chain of portable ops in ExecuTorch: ALBERT-base 164 ms instead of 64 ms. XNNPACK computes
    the erf form for it, which differs from tanh by at most 4.7e-4 per element.
    """
    import torch
    from transformers.activations import NewGELUActivation

    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


@dataclass(frozen=True)
class Architecture:
    """What differs between model types as far as an export is concerned."""

    model_type: str
    inputs: tuple[str, ...]
    """Names of the int32 inputs, each `(batch, seq_len)`, in the order of the exported graph."""
    tiny_config: Mapping[str, Any]
    """Keyword arguments of the config class for a small random model, used by tests."""
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments of the bare encoder; a pooler that no task reads is left out here."""
    patches: tuple[Patch, ...] = ()
    max_length_key: str = "max_position_embeddings"
    """The config's key for the longest sequence, special tokens included."""


_TINY_BERT = {
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}

ARCHITECTURES: dict[str, Architecture] = {
    row.model_type: row
    for row in (
        Architecture(
            "bert",
            inputs=("input_ids", "attention_mask", "token_type_ids"),
            tiny_config=_TINY_BERT,
            backbone_options={"add_pooling_layer": False},
        ),
        Architecture(
            "distilbert",
            inputs=("input_ids", "attention_mask"),
            tiny_config={
                "vocab_size": 30522,
                "dim": 64,
                "n_layers": 2,
                "n_heads": 4,
                "hidden_dim": 128,
                "max_position_embeddings": 64,
            },
        ),
        Architecture(
            "albert",
            inputs=("input_ids", "attention_mask", "token_type_ids"),
            tiny_config=_TINY_BERT | {"embedding_size": 32, "hidden_act": "gelu_new"},
            backbone_options={"add_pooling_layer": False},
            patches=(fuse_tanh_gelu,),
        ),
    )
}


def get(model_type: str | None) -> Architecture:
    """Return the row of a model type.

    Raises:
        StudentError: there is no such row.
    """
    if model_type not in ARCHITECTURES:
        raise StudentError(
            f"the checkpoint's model_type is {model_type!r}; supported: {', '.join(sorted(ARCHITECTURES))}. "
            "To add one, add a row to pipeline/architectures.py."
        )
    return ARCHITECTURES[model_type]
