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


def one_token_type(model: "torch.nn.Module") -> None:
    """Replace a table of token types that has one row by that row, since there is nothing to look up.

    With an input of zeros, litert-torch folds the look-up into a constant of `(1, seq_len, hidden)` for each length.
    """
    import torch

    class OneRow(torch.nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, types: torch.Tensor) -> torch.Tensor:
            return self.weight[None]  # (1, 1, hidden), the same for every token

    for module in model.modules():
        table = getattr(module, "token_type_embeddings", None)
        if isinstance(table, torch.nn.Embedding) and table.num_embeddings == 1:
            module.token_type_embeddings = OneRow(table.weight)


def zero_padding_embedding(model: "torch.nn.Module") -> None:
    """Give padding an embedding of zeros, as if the row ended before it.

    MobileBERT joins each token's embedding with those beside it before any mask applies. In Hugging Face's code the
    last token of a padded row therefore differs from that of the row unpadded, unless the table has zeros for padding.
    """
    import torch

    class WithoutPadding(torch.nn.Module):
        def __init__(self, table: torch.nn.Embedding, padding: int) -> None:
            super().__init__()
            self.table = table
            self.padding = padding

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.table(ids)  # (batch, seq_len, embedding)
            return rows * ids.ne(self.padding).to(rows.dtype)[:, :, None]

    padding = int(model.config.pad_token_id or 0)  # type: ignore[union-attr, arg-type]  # a HF config
    for module in _trigram_embeddings(model):
        module.word_embeddings = WithoutPadding(module.word_embeddings, padding)  # type: ignore[arg-type]


def zero_padding_by_hook(model: "torch.nn.Module") -> None:
    """Zero padding's embedding as `zero_padding_embedding` does, in training, where tensors keep their names."""
    padding = int(model.config.pad_token_id or 0)  # type: ignore[union-attr, arg-type]  # a HF config

    def without(module: "torch.nn.Module", args: "tuple[torch.Tensor, ...]", rows: "torch.Tensor") -> "torch.Tensor":
        return rows * args[0].ne(padding).to(rows.dtype)[:, :, None]

    for module in _trigram_embeddings(model):
        module.word_embeddings.register_forward_hook(without)  # type: ignore[union-attr]


def _trigram_embeddings(model: "torch.nn.Module") -> "list[torch.nn.Module]":
    """Return the modules that join each token's embedding with those beside it."""
    return [one for one in model.modules() if type(one).__name__ == "MobileBertEmbeddings" and one.trigram_input]


_FAIRSEQ_PADDING = 1
"""`pad_token_id` of RoBERTa and XLM-R where config.json leaves it out."""


@dataclass(frozen=True)
class Architecture:
    """What an export needs to know of a model type."""

    model_type: str
    inputs: tuple[str, ...]
    """Names of the int32 inputs, each `(batch, seq_len)`, in the order of the exported graph."""
    tiny_config: Mapping[str, Any]
    """Keyword arguments of the config class for a small random model, used by tests."""
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments of the bare encoder, such as leaving out a pooler that no task reads."""
    patches: tuple[Patch, ...] = (fuse_tanh_gelu,)
    max_length_key: str = "max_position_embeddings"
    """The config's key for the number of rows of its table of positions."""
    positions_after_padding: bool = False
    """Whether positions start at the padding id plus one and skip padding, as in fairseq."""

    def max_length(self, config: Mapping[str, Any]) -> int:
        """Return the longest row that a checkpoint takes, special tokens included.

        Args:
            config: its config.json; RoBERTa's table of 514 positions serves 512 tokens.
        """
        padding = config.get("pad_token_id")
        unused = 1 + (_FAIRSEQ_PADDING if padding is None else int(padding)) if self.positions_after_padding else 0
        return int(config[self.max_length_key]) - unused


_TINY_BERT = {
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
_NO_POOLER = {"add_pooling_layer": False}
_WITH_TYPES = ("input_ids", "attention_mask", "token_type_ids")
_WITHOUT_TYPES = ("input_ids", "attention_mask")
_ROBERTA_PATCHES = (fuse_tanh_gelu, one_token_type)
_TINY_ROBERTA = _TINY_BERT | {
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}

ARCHITECTURES: dict[str, Architecture] = {
    row.model_type: row
    for row in (
        # MiniLM and TinyBERT are BERT in other sizes.
        Architecture("bert", _WITH_TYPES, _TINY_BERT, _NO_POOLER),
        Architecture(
            "distilbert",
            _WITHOUT_TYPES,
            {
                "vocab_size": 30522,
                "dim": 64,
                "n_layers": 2,
                "n_heads": 4,
                "hidden_dim": 128,
                "max_position_embeddings": 64,
            },
        ),
        Architecture("albert", _WITH_TYPES, _TINY_BERT | {"embedding_size": 32, "hidden_act": "gelu_new"}, _NO_POOLER),
        # Their table of token types has one row, so their graphs take no token types.
        *(
            Architecture(
                name, _WITHOUT_TYPES, _TINY_ROBERTA, _NO_POOLER, _ROBERTA_PATCHES, positions_after_padding=True
            )
            for name in ("roberta", "xlm-roberta")
        ),
        Architecture("electra", _WITH_TYPES, _TINY_BERT | {"embedding_size": 32}),
        Architecture(
            "mobilebert",
            _WITH_TYPES,
            _TINY_BERT | {"embedding_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 2},
            _NO_POOLER,
            (fuse_tanh_gelu, zero_padding_embedding),
        ),
    )
}

UNSUPPORTED = {
    "modernbert": "its local attention needs a second mask and rotary positions, which no graph here builds",
    "deberta-v2": "its disentangled attention gathers by relative position, which XNNPACK does not run",
}
"""Encoders that users bring and that have no row, with the reason."""


def get(model_type: str | None) -> Architecture:
    """Return the row of a model type.

    Raises:
        StudentError: there is no such row.
    """
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        reason = UNSUPPORTED.get(model_type or "")
        why = f"it is not supported: {reason}" if reason else "to add one, add a row to checkpoint/architectures.py"
        raise StudentError(f"the checkpoint's model_type is {model_type!r}; supported: {known}. {_sentence(why)}.")
    return ARCHITECTURES[model_type]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
