"""ALBERT: one layer, or one of each group, that every token passes many times, and narrow tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.architectures import bert
from pipeline.architectures.architecture import NO_POOLER, WITH_TYPES, Architecture, ConfigKeys, Start
from pipeline.architectures.bert import TINY
from pipeline.architectures.layout import Layout, copy_layer, layers_in
from pipeline.architectures.patches import fuse_tanh_gelu
from pipeline.errors import RecipeError


def _of_bert(model: Any, kept: Sequence[int], embedding_size: int | None) -> Any:
    """Return a BERT's embeddings and the first kept layer as an ALBERT of as many passes, without pooler.

    Embeddings smaller than the hidden size are the best ones of their rank, by SVD; positions and token types are
    projected by the pseudo-inverse of the mapping to the hidden size. At the hidden size nothing changes.

    Args:
        model: the BERT.
        kept: the first one is the layer that is shared.
        embedding_size: E; the hidden size where None.

    Raises:
        RecipeError: E is more than the hidden size.

    Source: Lan et al. 2020 (ALBERT), section 3.1; Eckart and Young 1936 for the SVD.
    """
    import torch
    import transformers

    old = model.config
    if embedding_size is not None and embedding_size > old.hidden_size:
        raise RecipeError(
            f"start.embedding_size = {embedding_size} is more than the teacher's {old.hidden_size} columns."
        )
    config = transformers.AlbertConfig(
        vocab_size=old.vocab_size,
        embedding_size=embedding_size or old.hidden_size,
        hidden_size=old.hidden_size,
        num_hidden_layers=old.num_hidden_layers,
        num_attention_heads=old.num_attention_heads,
        intermediate_size=old.intermediate_size,
        hidden_act=old.hidden_act,
        hidden_dropout_prob=old.hidden_dropout_prob,
        attention_probs_dropout_prob=old.attention_probs_dropout_prob,
        max_position_embeddings=old.max_position_embeddings,
        type_vocab_size=old.type_vocab_size,
        layer_norm_eps=old.layer_norm_eps,
        initializer_range=old.initializer_range,
        pad_token_id=old.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    result: Any = transformers.AlbertModel(config, add_pooling_layer=False)
    tables = {name: module.weight for name, module in _tables(model.base_model.embeddings).items()}
    down, up = _projections(tables["word_embeddings"], config.embedding_size)
    mine = _tables(result.embeddings)
    mapping = result.encoder.embedding_hidden_mapping_in
    norm = model.base_model.embeddings.LayerNorm
    with torch.no_grad():
        for name, table in tables.items():
            mine[name].weight.copy_(table @ down)
        mapping.weight.copy_(up.T)
        mapping.bias.zero_()
        if config.embedding_size == config.hidden_size:
            result.embeddings.LayerNorm.weight.copy_(norm.weight)
            result.embeddings.LayerNorm.bias.copy_(norm.bias)
    copy_layer(layers_in(model, bert.LAYOUT)[kept[0]], layers_in(result, LAYOUT)[0])
    return result.eval()


def _tables(embeddings: Any) -> Mapping[str, Any]:
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return {name: getattr(embeddings, name) for name in names}


def _projections(table: Any, size: int) -> tuple[Any, Any]:
    """Return the matrices from the hidden size to E and back, `(hidden, E)` and `(E, hidden)`."""
    import torch

    hidden = int(table.shape[1])
    if size == hidden:
        return torch.eye(hidden), torch.eye(hidden)
    # The right singular vectors of the table are the eigenvectors of its small square.
    _, vectors = torch.linalg.eigh((table.detach().T @ table.detach()).double())
    best = vectors[:, -size:].float()  # (hidden, E), orthonormal
    return best, best.T


LAYOUT = Layout(
    "encoder.albert_layer_groups",
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    intermediate="ffn",
    output="ffn_output",
    output_norm="full_layer_layer_norm",
    heads="attention",
    inner="albert_layers.0",
)

ALBERT = Architecture(
    "albert",
    "ALBERT; its shared layer is stored once in every format, and `convert` refuses a file that holds a tensor twice",
    WITH_TYPES,
    tiny_config=TINY | {"embedding_size": 32, "hidden_act": "gelu_new"},
    layout=LAYOUT,
    keys=ConfigKeys(embedding_size="embedding_size", repeats=("num_hidden_groups", "inner_group_num")),
    backbone_options=NO_POOLER,
    patches=(fuse_tanh_gelu,),
    shares_layers=True,
    start=Start(("bert",), _of_bert),
)
