"""Copy the weights of a BERT into another width or architecture. Imports torch only inside functions."""

from collections.abc import Mapping
from typing import Any

from pipeline.checkpoint import layers

_ROLES = ("query", "key", "value", "attention_output", "attention_norm", "intermediate", "output", "output_norm")


def copy_first(source: Any, target: Any) -> None:
    """Copy the first rows and columns of each tensor, as many as the target has."""
    import torch

    with torch.no_grad():
        theirs = source.state_dict()
        for name, tensor in target.state_dict().items():
            tensor.copy_(theirs[name][tuple(slice(0, size) for size in tensor.shape)])


def distilbert(model: Any) -> Any:
    """Return a BERT's embeddings, layers and masked-LM head as DistilBERT, without token types and pooler.

    The vector of token type 0, which every token of a single text gets, goes into the positions: on single texts the
    hidden states are the same. DistilBERT's own conversion drops it (huggingface/transformers, distillation/scripts).
    """
    import torch
    import transformers

    old = model.config
    config = transformers.DistilBertConfig(
        vocab_size=old.vocab_size,
        max_position_embeddings=old.max_position_embeddings,
        n_layers=old.num_hidden_layers,
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
    _copy(theirs.LayerNorm, mine.LayerNorm)
    for one, other in zip(layers.layers(model), layers.layers(result), strict=True):
        _copy_layer(one, other)
    if masked_lm:
        head = model.cls.predictions
        _copy(head.transform.dense, result.vocab_transform)
        _copy(head.transform.LayerNorm, result.vocab_layer_norm)
        with torch.no_grad():
            result.vocab_projector.bias.copy_(head.bias)
    return result.eval()


def albert(model: Any, *, layer: int, embedding_size: int | None) -> Any:
    """Return a BERT's embeddings and one of its layers as an ALBERT of as many passes, without pooler.

    Embeddings smaller than the hidden size are the best ones of their rank, by SVD; positions and token types are
    projected by the pseudo-inverse of the mapping to the hidden size. At the hidden size nothing changes.

    Args:
        model: the BERT.
        layer: which of its layers is shared, from 0.
        embedding_size: E; the hidden size where None.

    Source: Lan et al. 2020 (ALBERT), section 3.1; Eckart and Young 1936 for the SVD.
    """
    import torch
    import transformers

    old = model.config
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
    _copy_layer(layers.layers(model)[layer], layers.layers(result)[0])
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


def _copy(source: Any, target: Any) -> None:
    target.load_state_dict(source.state_dict())


def _copy_layer(source: layers.Layer, target: layers.Layer) -> None:
    for role in _ROLES:
        _copy(source.get(role), target.get(role))
