"""BERT; MiniLM and TinyBERT are BERT in other sizes."""

from typing import Any

from pipeline.architectures.architecture import NO_POOLER, WITH_TYPES, Architecture
from pipeline.architectures.layout import Layout
from pipeline.architectures.patches import fuse_tanh_gelu

TINY: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
LAYOUT = Layout(
    "encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    intermediate="intermediate.dense",
    output="output.dense",
    output_norm="output.LayerNorm",
    heads="attention.self",
)
"""RoBERTa, XLM-R and ELECTRA have it, too."""

BERT = Architecture(
    "bert",
    "BERT, TinyBERT, MiniLM",
    WITH_TYPES,
    tiny_config=TINY,
    layout=LAYOUT,
    backbone_options=NO_POOLER,
    patches=(fuse_tanh_gelu,),
)
