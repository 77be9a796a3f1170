"""DistilBERT: BERT without token types and pooler, in names of its own."""

from collections.abc import Sequence
from typing import Any

from pipeline.architectures import bert
from pipeline.architectures.architecture import WITHOUT_TYPES, Architecture, ConfigKeys, Start
from pipeline.architectures.layout import Layout, copy_layer, layers_in
from pipeline.architectures.patches import fuse_tanh_gelu


def _of_bert(model: Any, kept: Sequence[int], embedding_size: int | None) -> Any:
    """Return a BERT's embeddings, kept layers and masked-LM head as DistilBERT, without token types and pooler.

    The vector of token type 0, which every token of a single text gets, goes into the positions: on single texts the
    hidden states are the same. DistilBERT's own conversion drops it (huggingface/transformers, distillation/scripts).
    """
    import torch
    import transformers

    old = model.config
    config = transformers.DistilBertConfig(
        vocab_size=old.vocab_size,
        max_position_embeddings=old.max_position_embeddings,
        n_layers=len(kept),
        n_heads=old.num_attention_heads,
        dim=old.hidden_size,
        hidden_dim=old.intermediate_size,
        dropout=old.hidden_dropout_prob,
        attention_dropout=old.attention_probs_dropout_prob,
        activation=old.hidden_act,
        initializer_range=old.initializer_range,
        pad_token_id=old.pad_token_id,
    )
    masked_lm = type(model).__name__.endswith("ForMaskedLM")
    result: Any = (transformers.DistilBertForMaskedLM if masked_lm else transformers.DistilBertModel)(config)
    mine, theirs = result.base_model.embeddings, model.base_model.embeddings
    single = theirs.token_type_embeddings.weight[0]
    with torch.no_grad():
        mine.word_embeddings.weight.copy_(theirs.word_embeddings.weight)
        mine.position_embeddings.weight.copy_(theirs.position_embeddings.weight + single)
    mine.LayerNorm.load_state_dict(theirs.LayerNorm.state_dict())
    every = layers_in(model, bert.LAYOUT)
    for number, target in zip(kept, layers_in(result, LAYOUT), strict=True):
        copy_layer(every[number], target)
    if masked_lm:
        head = model.cls.predictions
        result.vocab_transform.load_state_dict(head.transform.dense.state_dict())
        result.vocab_layer_norm.load_state_dict(head.transform.LayerNorm.state_dict())
        with torch.no_grad():
            result.vocab_projector.bias.copy_(head.bias)
    return result.eval()


LAYOUT = Layout(
    "transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    intermediate="ffn.lin1",
    output="ffn.lin2",
    output_norm="output_layer_norm",
    heads="attention",
)

DISTILBERT = Architecture(
    "distilbert",
    "DistilBERT",
    WITHOUT_TYPES,
    tiny_config={
        "vocab_size": 30522,
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 128,
        "max_position_embeddings": 64,
    },
    layout=LAYOUT,
    keys=ConfigKeys(
        hidden_size="dim",
        attention_heads="n_heads",
        layers="n_layers",
        intermediate_size="hidden_dim",
        activation="activation",
    ),
    patches=(fuse_tanh_gelu,),
    start=Start(("bert",), _of_bert),
)
