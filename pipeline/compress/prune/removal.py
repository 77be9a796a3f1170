"""Remove attention heads, intermediate neurons, layers and hidden columns: smaller dense modules, the same numbers.

All layers, embedding tables and norms share the hidden columns through the residual connections, so that one choice of
columns holds for all of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.architectures import layers
from pipeline.checkpoint import shapes
from pipeline.compress.prune.optimal_brain_surgeon import columns_of
from pipeline.compress.prune.search import KeptStructures
from pipeline.compress.prune.structure import INPUT_LINEARS, OUTPUT_LINEAR, RESIDUAL_NORM, Sublayer


def keep_outputs(linear: Any, kept: torch.Tensor) -> None:
    """Keep some outputs of a linear, or of the last of two in a row."""
    last: Any = linear[-1] if isinstance(linear, nn.Sequential) else linear
    last.weight = nn.Parameter(last.weight.detach()[kept].clone())
    if last.bias is not None:
        last.bias = nn.Parameter(last.bias.detach()[kept].clone())
    last.out_features = len(kept)


def keep_inputs(linear: Any, kept: torch.Tensor) -> None:
    """Keep some inputs of a linear, or of the first of two in a row."""
    first: Any = linear[0] if isinstance(linear, nn.Sequential) else linear
    first.weight = nn.Parameter(first.weight.detach()[:, kept].clone())
    first.in_features = len(kept)


def keep_structures(model: Any, sublayers: Sequence[Sublayer], kept: KeptStructures) -> None:
    """Remove all but the given heads and neurons of each sublayer; a sublayer that layers share is cut once.

    Args:
        model: a Hugging Face model, changed in place.
        sublayers: the sublayers of this model.
        kept: numbers of the structures to keep in each sublayer, see `search.KeptStructures`.
    """
    for sublayer, numbers in zip(sublayers, kept, strict=True):
        columns = columns_of(torch.from_numpy(numbers), sublayer.columns_each)
        for linear in sublayer.input_linears:
            keep_outputs(linear, columns)
        keep_inputs(sublayer.output_linear, columns)
    shapes.count_heads(model, sublayers[0].layer.head_size)


def keep_layers(model: Any, kept: Sequence[int]) -> None:
    """Keep the given layers, by number from 0; of shared layers, as many passes.

    Args:
        model: a Hugging Face model, changed in place.
        kept: ascending.
    """
    layout = layers.layout_of(model.config.model_type)
    stack = model.base_model.get_submodule(layout.stack)
    if not layout.inner:
        layers.put(model.base_model, layout.stack, nn.ModuleList([stack[number] for number in kept]))
    model.config.num_hidden_layers = len(kept)


# --- hidden columns --------------------------------------------------------------------------------------------------


def keep_hidden_columns(model: Any, kept: NDArray[Any]) -> None:
    """Keep the given hidden columns everywhere, in place.

    Args:
        model: a Hugging Face model.
        kept: column numbers, ascending.
    """
    columns, hidden = torch.from_numpy(kept), int(model.config.hidden_size)
    every = layers.layers(model)
    in_layers = {module for layer in every for module in layer.module.modules()}
    # Keys are met several times where layers share modules, and each is cut once.
    linears = {layer.get(name): keep_inputs for layer in every for names in INPUT_LINEARS.values() for name in names}
    linears |= {layer.get(name): keep_outputs for layer in every for name in OUTPUT_LINEAR.values()}
    for linear, keep in linears.items():
        keep(linear, columns)
    for norm in {layer.get(name) for layer in every for name in RESIDUAL_NORM.values()}:
        _keep_in_norm(norm, columns)
    outside = [module for module in model.modules() if module not in in_layers]
    projection = _embedding_projection(model)
    for module in outside:
        if module is projection:
            # Its inputs are the embeddings' columns, even where they are as many as the hidden ones.
            keep_outputs(module, columns)
        else:
            _keep_outside(module, columns, hidden, labels=int(model.config.num_labels), embeddings=projection is None)
    model.config.hidden_size = len(kept)
    if projection is None and hasattr(model.config, "embedding_size"):
        model.config.embedding_size = len(kept)


def _embedding_projection(model: Any) -> Any:
    """Return the linear from embedding size to hidden size; None if the embeddings have the hidden size."""
    names = ("embedding_hidden_mapping_in", "embeddings_project")
    return next((one for path, one in model.base_model.named_modules() if path.rpartition(".")[2] in names), None)


def _keep_outside(module: nn.Module, columns: torch.Tensor, hidden: int, *, labels: int, embeddings: bool) -> None:
    """Keep hidden columns of a module that belongs to no layer: an embedding table, its norm, a pooler, a head."""
    if isinstance(module, nn.Linear):
        reads, gives = module.in_features == hidden, module.out_features == hidden != labels
        if reads:
            keep_inputs(module, columns)
        if gives:
            keep_outputs(module, columns)
    elif isinstance(module, nn.Embedding) and embeddings and module.embedding_dim == hidden:
        module.weight = nn.Parameter(module.weight.detach()[:, columns].clone())
        module.embedding_dim = len(columns)
    elif isinstance(module, nn.LayerNorm) and embeddings and module.normalized_shape == (hidden,):
        _keep_in_norm(module, columns)


def _keep_in_norm(norm: nn.LayerNorm, columns: torch.Tensor) -> None:
    norm.weight = nn.Parameter(norm.weight.detach()[columns].clone())
    norm.bias = nn.Parameter(norm.bias.detach()[columns].clone())
    norm.normalized_shape = (len(columns),)
