"""Replace a model's matrices by low-rank factors, weighted by input statistics on the calibration set."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.architectures import layers
from pipeline.compress.factorise.lowrank import (
    Spectrum,
    decompose_linear,
    decompose_table,
    dense,
    linear_pair,
    table_pair,
)
from pipeline.compress.factorise.ranks import (
    Values,
    check_ranks,
    kept_energy,
    rank_by_energy,
    ranks_by_budget,
    saves,
)
from pipeline.compress.prune.activations import Moments, batch_tensors
from pipeline.data.calibration import Batches
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import FactoriseSection, Rank


@dataclass(frozen=True)
class _Matrix:
    """A matrix that may be replaced by two factors."""

    name: str
    shape: tuple[int, int]
    spectrum: Spectrum
    replace: Callable[[int], None]
    """Replaces the matrix in the model by factors of the given rank."""


def singular_values(spectrum: Spectrum) -> Values:
    """Return the singular values of a matrix in descending order."""
    return spectrum.values.numpy()


def halving_values(spectrum: Spectrum) -> Values:
    """Return stand-in singular values 2⁻ⁱ for a matrix on torch's meta device; a low rank keeps nearly all energy."""
    return np.power(0.5, np.arange(len(spectrum.values), dtype=np.float64))


def factorise_model(
    model: Any,
    section: FactoriseSection,
    batches: Batches | None,
    values_of: Callable[[Spectrum], Values] = singular_values,
) -> dict[str, Any]:
    """Replace a model's matrices by factors, in place.

    Args:
        model: a Hugging Face model, on any device.
        section: `[factorise]` of the recipe.
        batches: the calibration set; None for the plain decomposition.
        values_of: gives a matrix's singular values, by which its rank is chosen.

    Returns:
        For `feed_forward` and `embedding`, each matrix with its rank and energy, or why it was not factorised.
    """
    metrics: dict[str, Any] = {}
    # The feed-forwards first: their inputs are measured with the embedding table not yet factorised.
    if section.feed_forward is not None:
        matrices = _feed_forward_matrices(model, batches)
        metrics["feed_forward"] = _replace("feed_forward", matrices, section.feed_forward, values_of)
    if section.embedding is not None:
        table = _embedding_matrix(model, batches)
        metrics["embedding"] = _replace("embedding", [table], section.embedding, values_of)
    return metrics


def _replace(
    name: str, matrices: Sequence[_Matrix], setting: Rank, values_of: Callable[[Spectrum], Values]
) -> list[dict[str, Any]]:
    """Choose ranks, replace the matrices that get smaller, and return a metrics row for each matrix."""
    sizes = [matrix.shape for matrix in matrices]
    check_ranks(name, setting, sizes)
    every = [values_of(matrix.spectrum) for matrix in matrices]
    rows = []
    for matrix, values, rank in zip(matrices, every, _chosen_ranks(every, sizes, setting), strict=True):
        smaller = saves(rank, matrix.shape)
        if smaller:
            matrix.replace(rank)
        kept = {"rank": rank, "energy": kept_energy(values, rank)}
        rows.append({"matrix": matrix.name, **(kept if smaller else {"left_whole": f"rank {rank} saves nothing"})})
    if not any("rank" in row for row in rows):
        raise RecipeError(f"factorise.{name}: the ranks that were chosen save nothing in any matrix. Keep less energy.")
    return rows


def _chosen_ranks(every: Sequence[Values], sizes: Sequence[tuple[int, int]], setting: Rank) -> list[int]:
    if setting.rank is not None:
        return [setting.rank] * len(every)
    if setting.energy is not None:
        return [rank_by_energy(values, setting.energy) for values in every]
    assert setting.parameters is not None
    return ranks_by_budget(every, sizes, setting.parameters)


# --- the embedding table ---------------------------------------------------------------------------------------------


def _embedding_matrix(model: Any, batches: Batches | None) -> _Matrix:
    table = model.get_input_embeddings()
    first = layers.layers(model)[0].get("attention_output")
    if not isinstance(table, nn.Embedding) or table.embedding_dim != layers.width(first):
        raise StudentError(
            "the checkpoint has its embedding table in two factors already; leave factorise.embedding out."
        )
    path = next(path for path, module in model.named_modules() if module is table)
    weights = token_weights(batches, table.num_embeddings) if batches else None
    spectrum = decompose_table(table.weight.detach(), weights)
    padding = table.padding_idx

    def replace(rank: int) -> None:
        layers.put(model, path, table_pair(spectrum, rank, padding))

    return _Matrix("word_embeddings", (table.num_embeddings, table.embedding_dim), spectrum, replace)


def token_weights(batches: Batches, vocabulary_size: int) -> torch.Tensor:
    """Return the weight of each token in the embedding table's error, `(vocabulary,)`: half frequency, half uniform.

    The uniform half is for tokens that are absent from the calibration set and may occur in other texts.
    """
    counts = torch.zeros(vocabulary_size, dtype=torch.float64)
    for group in batches.rows:
        for row in group:
            counts += torch.bincount(torch.tensor(row.ids), minlength=vocabulary_size)
    return counts / counts.sum() / 2 + 1 / vocabulary_size / 2


# --- feed-forwards ---------------------------------------------------------------------------------------------------


def _feed_forward_matrices(model: Any, batches: Batches | None) -> list[_Matrix]:
    """Return the feed-forward linears of all layers; a linear that several layers share is returned once."""
    named: dict[int, tuple[str, nn.Linear]] = {}
    for number, layer in enumerate(layers.layers(model)):
        for role in ("intermediate", "output"):
            linear = layer.get(role)
            if not isinstance(linear, nn.Linear):
                raise StudentError(
                    f"the feed-forward of layer {number} is in two factors already; leave factorise.feed_forward out."
                )
            named.setdefault(id(linear), (f"layer {number} {role}", linear))
    linears = [linear for _, linear in named.values()]
    moments = input_moments(model, linears, batches) if batches else [None] * len(linears)
    return [
        _linear_matrix(model, name, linear, moment)
        for (name, linear), moment in zip(named.values(), moments, strict=True)
    ]


def _linear_matrix(model: Any, name: str, linear: nn.Linear, moments: Moments | None) -> _Matrix:
    spectrum = decompose_linear(linear.weight.detach(), moments.covariance if moments else None)

    def replace(rank: int) -> None:
        pair = linear_pair(spectrum, rank, linear.bias.detach())
        if moments:
            pair[1].bias = nn.Parameter(_centred_bias(linear, pair, moments.total / moments.tokens))
        for layer in layers.layers(model):
            for role in ("intermediate", "output"):
                if layer.get(role) is linear:
                    layer.put(role, pair)

    return _Matrix(name, (linear.out_features, linear.in_features), spectrum, replace)


def _centred_bias(linear: nn.Linear, pair: nn.Sequential, mean: torch.Tensor) -> torch.Tensor:
    """Return the bias with which the pair of factors equals the linear at the mean input `mean`, `(in,)`."""
    weight, bias = dense(pair)
    return (bias.double() + (linear.weight.detach().double() - weight) @ mean).float()


def input_moments(model: Any, linears: Sequence[nn.Linear], batches: Batches) -> list[Moments]:
    """Return the first and second moments of each linear's inputs, over the tokens that are not padding."""
    moments = [Moments(linear.in_features) for linear in linears]
    with torch.no_grad():
        for number in range(len(batches)):
            tensors = batch_tensors(batches, number)
            with _summed_inputs(linears, moments, tensors["attention_mask"] > 0):
                model(**tensors)
    return moments


@contextmanager
def _summed_inputs(linears: Sequence[nn.Linear], moments: Sequence[Moments], present: torch.Tensor) -> Iterator[None]:
    def hook(of_linear: Moments) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
        def add(module: Any, args: tuple[torch.Tensor, ...]) -> None:
            of_linear.add(args[0][present])

        return add

    handles = [
        linear.register_forward_pre_hook(hook(of_linear)) for linear, of_linear in zip(linears, moments, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
