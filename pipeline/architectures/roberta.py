"""RoBERTa and XLM-R: BERT's layers, positions that are counted from the padding id on, one token type."""

from typing import TYPE_CHECKING

from pipeline.architectures.architecture import NO_POOLER, WITHOUT_TYPES, Architecture
from pipeline.architectures.bert import LAYOUT, TINY
from pipeline.architectures.patches import counted_positions, fuse_tanh_gelu

if TYPE_CHECKING:
    import torch

TINY_ROBERTA = TINY | {
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


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


def _graph_inputs(ids: "torch.Tensor", mask: "torch.Tensor", padding: int) -> "dict[str, torch.Tensor]":
    """Return positions, and token types of zero, which Hugging Face's code would gather from a buffer."""
    import torch

    return counted_positions(ids, padding) | {"token_type_ids": torch.zeros_like(ids)}


ROBERTA, XLM_ROBERTA = (
    Architecture(
        model_type,
        f"{students}; positions start after the padding id, so a table of 514 takes 512 tokens",
        # The table of token types has one row, so the graph takes no token types.
        WITHOUT_TYPES,
        tiny_config=TINY_ROBERTA,
        layout=LAYOUT,
        backbone_options=NO_POOLER,
        patches=(fuse_tanh_gelu, one_token_type),
        positions_after_padding=True,
        graph_inputs=_graph_inputs,
    )
    for model_type, students in (("roberta", "RoBERTa"), ("xlm-roberta", "XLM-R, multilingual MiniLM"))
)
