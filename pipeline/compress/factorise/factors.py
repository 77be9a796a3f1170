"""Put factors in the place of a model's matrices, and save it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline import tasks
from pipeline.checkpoint import architectures, layers, shapes
from pipeline.checkpoint import loading as checkpoint
from pipeline.compress.factorise import lowrank, observe, ranks
from pipeline.compress.factorise.lowrank import Spectrum
from pipeline.compress.factorise.section import check_ranks
from pipeline.compress.prune.signals import Moments
from pipeline.data import datasets as data
from pipeline.data.calibration import Batches, batches
from pipeline.data.corpus import Unlabelled
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.compression import FactoriseSection, Rank
from pipeline.text import tokenizers

_LENGTH = 128
"""Calibration texts are cut to so many tokens."""


@dataclass(frozen=True)
class _Matrix:
    """A matrix that may become two."""

    name: str
    shape: tuple[int, int]
    spectrum: Spectrum
    replace: Callable[[int], None]
    """Put the factors of a rank in its place."""


def write(
    source: Path, task_name: str, section: FactoriseSection, texts: Sequence[Unlabelled], out: Path
) -> dict[str, Any]:
    """Factorise a checkpoint into `out`, see `pipeline.compress.factorise.make`."""
    model = checkpoint.load_checkpoint(source, tasks.get(task_name))
    before = _parameters(model)
    seen = _batches(model, source, section, texts) if section.weighted else None
    metrics: dict[str, Any] = {}
    # The feed-forwards first: what enters them is seen with the whole table.
    if section.feed_forward is not None:
        metrics["feed_forward"] = _factorise("feed_forward", _feed_forwards(model, source, seen), section.feed_forward)
    if section.embedding is not None:
        metrics["embedding"] = _factorise("embedding", [_table(model, source, seen)], section.embedding)
    shapes.save(model, out)
    tokenizers.copy(source, out)
    return {"parameters_before": before, "parameters": _parameters(model), "weighted": section.weighted, **metrics}


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _batches(model: Any, source: Path, section: FactoriseSection, texts: Sequence[Unlabelled]) -> Batches:
    row = architectures.get(model.config.model_type)
    longest = min(_LENGTH, row.max_length(model.config.to_dict()))
    chosen = data.sample(texts, section.calibration_texts, seed=section.seed)
    return batches(source, row.inputs, chosen, max_length=longest, pad=int(model.config.pad_token_id or 0))


def _factorise(name: str, matrices: Sequence[_Matrix], wanted: Rank) -> list[dict[str, Any]]:
    """Choose ranks, replace what gets smaller, and say what became of each matrix."""
    check_ranks(name, wanted, [one.shape for one in matrices])
    rows = []
    for matrix, rank in zip(matrices, _chosen(matrices, wanted), strict=True):
        values = matrix.spectrum.values.numpy()
        smaller = ranks.saves(rank, matrix.shape)
        if smaller:
            matrix.replace(rank)
        kept = {"rank": rank, "energy": ranks.kept_energy(values, rank)}
        rows.append({"matrix": matrix.name, **(kept if smaller else {"left_whole": f"rank {rank} saves nothing"})})
    if not any("rank" in row for row in rows):
        raise RecipeError(f"factorise.{name}: the ranks that were chosen save nothing in any matrix. Keep less energy.")
    return rows


def _chosen(matrices: Sequence[_Matrix], wanted: Rank) -> list[int]:
    spectra = [one.spectrum.values.numpy() for one in matrices]
    if wanted.rank is not None:
        return [wanted.rank] * len(matrices)
    if wanted.energy is not None:
        return [ranks.by_energy(values, wanted.energy) for values in spectra]
    assert wanted.parameters is not None
    return ranks.by_budget(spectra, [one.shape for one in matrices], wanted.parameters)


def _table(model: Any, source: Path, seen: Batches | None) -> _Matrix:
    table = model.get_input_embeddings()
    width = layers.layers(model)[0].get("attended")
    if not isinstance(table, nn.Embedding) or table.embedding_dim != layers.width(width):
        raise StudentError(f"{source} has its table of words in two factors already; leave factorise.embedding out.")
    path = next(path for path, module in model.named_modules() if module is table)
    weights = observe.weights_of_pieces(seen, table.num_embeddings) if seen else None
    spectrum = lowrank.of_table(table.weight.detach(), weights)
    padding = table.padding_idx

    def replace(rank: int) -> None:
        layers.put(model, path, lowrank.table_pair(spectrum, rank, padding))

    return _Matrix("word_embeddings", (table.num_embeddings, table.embedding_dim), spectrum, replace)


def _feed_forwards(model: Any, source: Path, seen: Batches | None) -> list[_Matrix]:
    """Return each linear once, though several layers may use it."""
    found: dict[int, tuple[str, nn.Linear]] = {}
    for number, layer in enumerate(layers.layers(model)):
        for part in ("widen", "narrow"):
            linear = layer.get(part)
            if not isinstance(linear, nn.Linear):
                raise StudentError(
                    f"{source}: the feed-forward of layer {number} has two factors already; leave feed_forward out."
                )
            found.setdefault(id(linear), (f"layer {number} {part}", linear))
    linears = [linear for _, linear in found.values()]
    moments = observe.moments_of(model, linears, seen) if seen else [None] * len(linears)
    return [_linear(model, name, one, moment) for (name, one), moment in zip(found.values(), moments, strict=True)]


def _linear(model: Any, name: str, linear: nn.Linear, moments: Moments | None) -> _Matrix:
    spectrum = lowrank.of_linear(linear.weight.detach(), moments.covariance if moments else None)

    def replace(rank: int) -> None:
        pair = lowrank.linear_pair(spectrum, rank, linear.bias.detach())
        if moments:
            pair[1].bias = nn.Parameter(_centred(linear, pair, moments.total / moments.tokens))
        for layer in layers.layers(model):
            for part in ("widen", "narrow"):
                if layer.get(part) is linear:
                    layer.put(part, pair)

    return _Matrix(name, (linear.out_features, linear.in_features), spectrum, replace)


def _centred(linear: nn.Linear, pair: nn.Sequential, mean: torch.Tensor) -> torch.Tensor:
    """Return the bias with which the pair gives what the linear gave at the mean input: only what varies errs."""
    weight, bias = lowrank.dense(pair)
    return (bias.double() + (linear.weight.detach().double() - weight) @ mean).float()
