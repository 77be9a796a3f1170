"""MPNet: RoBERTa's positions, no token types, and one table of relative positions for the scores of all layers."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.architectures.architecture import NO_POOLER, WITHOUT_TYPES, Architecture
from pipeline.architectures.bert import TINY
from pipeline.architectures.layout import Layout
from pipeline.architectures.patches import counted_positions, fuse_tanh_gelu

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_BUCKETS, _FARTHEST = 32, 128
"""Rows of the table, and the distance from which on all share one, fixed in `MPNetEncoder.relative_position_bucket`."""
_PADDING = 1
"""The padding id, which is fixed in `MPNetEmbeddings`; config.json's is not read."""
_TABLE = "encoder.relative_attention_bias.weight"


def _score_bias(model: "torch.nn.Module", length: int) -> "torch.Tensor":
    """Return the addend of the attention scores for the distance of two tokens, `(1, heads, length, length)`.

    Hugging Face's code makes it anew in each pass, with a logarithm and a choice; it depends on the length alone.
    """
    import torch

    encoder: Any = model.base_model.encoder  # type: ignore[union-attr]
    with torch.no_grad():
        bias: torch.Tensor = encoder.compute_position_bias(torch.zeros(1, length, 1))
    return bias.detach().clone()


def leave_out_position_bias(model: "torch.nn.Module") -> None:
    """Let the encoder add nothing for relative positions, since the graph adds `_score_bias` to the mask once.

    The table goes with it, so that no quantiser meets a table that nothing reads.
    """
    encoder: Any = model.base_model.encoder  # type: ignore[union-attr]
    encoder.compute_position_bias = lambda hidden_states: None
    encoder.relative_attention_bias = None


def _gathered(shapes: Mapping[str, tuple[int, ...]]) -> "Mapping[str, NDArray[np.int64]]":
    """Return the place in the table of each number of `_score_bias`, `(heads, length, length)`."""
    name = next(name for name in shapes if name.endswith(_TABLE))
    positions = next(shape[0] for other, shape in shapes.items() if other.endswith("position_embeddings.weight"))
    distance = np.arange(positions)[:, None] - np.arange(positions)[None, :]
    heads = shapes[name][1]
    return {name: _buckets(distance)[None] * heads + np.arange(heads)[:, None, None]}


def _buckets(distance: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """Return the row of each distance: exact up to 7 tokens, then logarithmic; each direction has half of the rows.

    Source: `MPNetEncoder.relative_position_bucket` of transformers, computed in float32 as there.
    """
    half = _BUCKETS // 2
    exact = half // 2
    size = np.abs(distance)
    share = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(_FARTHEST / exact))
    far = np.minimum(exact + (share * np.float32(half - exact)).astype(np.int64), half - 1)
    rows: NDArray[np.int64] = np.where(distance < 0, half, 0) + np.where(size < exact, size, far)
    return rows


def _graph_inputs(ids: "torch.Tensor", mask: "torch.Tensor", padding: int) -> "dict[str, torch.Tensor]":
    """Return positions, where padding has the first token's.

    In Hugging Face's code padding has a row of zeros of both tables, and there are no token types. The norm of a vector
    of zeros is zero over zero in half precision if its epsilon is flushed to zero. No token sees padding.
    """
    counted, first = counted_positions(ids, padding)["position_ids"], padding + 1
    return {"position_ids": (counted - first) * mask + first}


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    for key, computed in (("relative_attention_num_buckets", _BUCKETS), ("pad_token_id", _PADDING)):
        found = config.get(key, computed)
        if found != computed:
            yield f"{key} {found!r}, and transformers' MPNet computes with {computed} whatever it says"


MPNET = Architecture(
    "mpnet",
    "MPNet; a table of 514 positions takes 512 tokens, and relative positions are a constant for each length",
    WITHOUT_TYPES,
    tiny_config=TINY | {"max_position_embeddings": 66, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    layout=Layout(
        "encoder.layer",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
        intermediate="intermediate.dense",
        output="output.dense",
        output_norm="output.LayerNorm",
        heads="attention.attn",
        fixed_heads="each head has a column of one table of relative positions, which all layers read",
    ),
    backbone_options=NO_POOLER,
    patches=(fuse_tanh_gelu, leave_out_position_bias),
    positions_after_padding=True,
    graph_inputs=_graph_inputs,
    score_bias=_score_bias,
    gathered=_gathered,
    problems=_problems,
)
