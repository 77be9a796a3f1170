"""Hidden columns: which of them matter, and a model without the others.

All layers, tables and norms share the columns through the residual connections, so that one choice holds for all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.checkpoint import layers
from pipeline.compress.prune import cut, signals
from pipeline.compress.prune.parts import INNER, OUTER, SUMMED, sequence
from pipeline.data.calibration import Batches
from pipeline.tasks import Task


def chosen(model: Any, task: Task, batches: Batches, wanted: int, importance: str, *, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the columns that matter most, ascending.

    Args:
        model: a Hugging Face model; its parameters are frozen by it.
        task: gives the score.
        batches: calibration rows.
        wanted: how many columns.
        importance: `magnitude`: ‖what reads a column‖ over all layers; `taylor`: E|∂s/∂m| at a gate m of one on the
            column, wherever it occurs; else E[(∂s/∂m)²].
        seed: of the labels or directions that are drawn.

    Source: Molchanov et al. 2019, for gates that belong together across residual connections.
    """
    if importance == "magnitude":
        found = _norms(model)
    else:
        gradients = _gradients(model, task, batches, seed)
        found = (gradients.abs() if importance == "taylor" else gradients.square()).mean(0)
    best = torch.argsort(-found, stable=True)[:wanted]
    return np.sort(best.numpy())


def _norms(model: Any) -> torch.Tensor:
    linears = [layer.get(name) for layer in layers.layers(model) for names in INNER.values() for name in names]
    return torch.stack([linear.weight.detach().double().square().sum(0) for linear in linears]).sum(0).sqrt()


def _gradients(model: Any, task: Task, batches: Batches, seed: int) -> torch.Tensor:
    """Return the gradient of each text's score by column, `(texts, hidden)`."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    hidden = int(model.config.hidden_size)
    found = []
    for number in range(len(batches)):
        given = signals.inputs(batches, number)
        gate = torch.ones(len(given["input_ids"]), 1, hidden, requires_grad=True)
        with torch.enable_grad(), _gated(model, gate):
            value = signals.score(model, task, given, generator)
        found.append(torch.autograd.grad(value, gate)[0][:, 0].double())
    return torch.cat(found)


@contextmanager
def _gated(model: Any, gate: torch.Tensor) -> Iterator[None]:
    """Multiply the columns in front of the first layer and behind each norm."""
    norms = {layer.get(name) for layer in layers.layers(model) for name in SUMMED.values()}
    handles = [norm.register_forward_hook(lambda module, args, output: output * gate) for norm in norms]
    first = sequence(model)[0].module
    passed = False

    def once(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # A shared first layer is entered again with columns that were gated behind its norm.
        nonlocal passed
        again, passed = passed, True
        return None if again else (args[0] * gate, *args[1:])

    handles.append(first.register_forward_pre_hook(once))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def columns(model: Any, kept: NDArray[np.int64]) -> None:
    """Keep the given hidden columns everywhere, in place.

    Args:
        model: a Hugging Face model.
        kept: ascending.
    """
    left, hidden = torch.from_numpy(kept), int(model.config.hidden_size)
    inside = set()
    for layer in layers.layers(model):
        inside |= set(layer.module.modules())
    # Shared parts are met several times, and cut once.
    linears = {
        layer.get(name): cut.columns for layer in layers.layers(model) for names in INNER.values() for name in names
    }
    linears |= {layer.get(name): cut.rows for layer in layers.layers(model) for name in OUTER.values()}
    for linear, keep in linears.items():
        keep(linear, left)
    for norm in {layer.get(name) for layer in layers.layers(model) for name in SUMMED.values()}:
        _norm(norm, left)
    outside = [module for module in model.modules() if module not in inside]
    projection = _projection(model)
    for module in outside:
        if module is projection:
            # What it reads are the tables' columns, even where they are as many as the hidden ones.
            cut.rows(module, left)
        else:
            _outside(module, left, hidden, labels=int(model.config.num_labels), tables=projection is None)
    model.config.hidden_size = len(kept)
    if projection is None and hasattr(model.config, "embedding_size"):
        model.config.embedding_size = len(kept)


def _projection(model: Any) -> Any:
    """Return the linear that turns the tables' own columns into hidden ones, or None where they have none."""
    names = ("embedding_hidden_mapping_in", "embeddings_project")
    return next((one for path, one in model.base_model.named_modules() if path.rpartition(".")[2] in names), None)


def _outside(module: nn.Module, left: torch.Tensor, hidden: int, *, labels: int, tables: bool) -> None:
    """Cut a module that belongs to no layer: a table, its norm, a pooler, a head."""
    if isinstance(module, nn.Linear):
        reads, gives = module.in_features == hidden, module.out_features == hidden != labels
        if reads:
            cut.columns(module, left)
        if gives:
            cut.rows(module, left)
    elif isinstance(module, nn.Embedding) and tables and module.embedding_dim == hidden:
        module.weight = nn.Parameter(module.weight.detach()[:, left].clone())
        module.embedding_dim = len(left)
    elif isinstance(module, nn.LayerNorm) and tables and module.normalized_shape == (hidden,):
        _norm(module, left)


def _norm(norm: nn.LayerNorm, left: torch.Tensor) -> None:
    norm.weight = nn.Parameter(norm.weight.detach()[left].clone())
    norm.bias = nn.Parameter(norm.bias.detach()[left].clone())
    norm.normalized_shape = (len(left),)
