"""MobileBERT: bottlenecks in each layer, and embeddings that join each token with its neighbours."""

from typing import TYPE_CHECKING

from pipeline.architectures.architecture import NO_POOLER, WITH_TYPES, Architecture, ConfigKeys
from pipeline.architectures.bert import TINY
from pipeline.architectures.patches import fuse_tanh_gelu

if TYPE_CHECKING:
    import torch


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


MOBILEBERT = Architecture(
    "mobilebert",
    "MobileBERT",
    WITH_TYPES,
    tiny_config=TINY | {"embedding_size": 32, "intra_bottleneck_size": 32, "num_feedforward_networks": 2},
    layout="its layers have bottlenecks and several feed-forwards, and are thin already",
    keys=ConfigKeys(embedding_size="embedding_size", repeats=("num_feedforward_networks",)),
    backbone_options=NO_POOLER,
    patches=(fuse_tanh_gelu, zero_padding_embedding),
    training_patch=zero_padding_by_hook,
    seen_behind=lambda config: int(bool(config.get("trigram_input", True))),
    # They share out the bottleneck's width.
    heads_divide_hidden_size=False,
    plain_norms=("NoNorm",),
)
