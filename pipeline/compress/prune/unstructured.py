"""Single weights set to zero by size, without training; `gradual` does it while a model is trained.

The matrices stay as large as they were: LiteRT and ExecuTorch compute zeros as they compute any number, so there is no
gain in these formats. Core ML alone stores sparse weights smaller. For less compute there is the structured pruning.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.backends.sparsity import BUYS
from pipeline.checkpoint import layers
from pipeline.recipe.fields import Sparse

_PARTS = ("query", "key", "value", "attended", "widen", "narrow")


def weights(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the matrices of the layers by name, each once; tables, norms, biases and heads stay whole."""
    wanted = {id(one) for kind in kinds(model).values() for one in kind}
    return {name: one for name, one in model.named_parameters() if id(one) in wanted}


def kinds(model: Any) -> dict[str, list[torch.nn.Parameter]]:
    """Return the matrices of the layers by what they are for, such as `query`; shared ones once."""
    found: dict[str, list[torch.nn.Parameter]] = {}
    for part in _PARTS:
        linears = dict.fromkeys(layer.get(part) for layer in layers.layers(model))
        found[part] = [one for linear in linears for one in linear.parameters() if one.ndim == 2]
    return found


def masks(scores: Mapping[str, torch.Tensor], asked: Sparse, sparsity: float) -> dict[str, torch.Tensor]:
    """Return for each matrix which of its weights stay, given their scores and the fraction that goes.

    Args:
        scores: of each weight, by the name of its matrix; the lowest go.
        asked: says whether the fraction is of all together or of each.
        sparsity: the fraction; on a schedule not yet that of `asked`.
    """
    if asked.scope == "matrix":
        return {name: lowest([one], sparsity)[0] for name, one in scores.items()}
    return dict(zip(scores, lowest(list(scores.values()), sparsity), strict=True))


def lowest(scores: Sequence[torch.Tensor], sparsity: float) -> list[torch.Tensor]:
    """Return masks, False where a score is among the lowest of all, together the given fraction.

    Of equal scores the earlier go.
    """
    flat = torch.cat([score.detach().flatten() for score in scores])
    mask = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    count = round(sparsity * len(flat))
    if count:
        # Ten million scores: this takes a tenth of what sorting them does.
        cut = flat.kthvalue(count).values
        mask = flat > cut
        equal = (flat == cut).nonzero().flatten()
        mask[equal[count - int((flat < cut).sum()) :]] = True
    sizes = [score.numel() for score in scores]
    return [part.view_as(score) for part, score in zip(mask.split(sizes), scores, strict=True)]


def by_magnitude(model: Any, asked: Sparse) -> dict[str, torch.Tensor]:
    """Set the smallest of the layers' weights to zero, in place.

    Returns:
        For each matrix which of its weights stayed.

    Source: Han et al. 2015; Gordon et al. 2020 for BERT.
    """
    found = weights(model)
    kept = masks({name: one.detach().abs() for name, one in found.items()}, asked, asked.sparsity)
    apply(found, kept)
    return kept


def apply(found: Mapping[str, torch.nn.Parameter], kept: Mapping[str, torch.Tensor]) -> None:
    """Set weights to zero where their mask says so, in place."""
    with torch.no_grad():
        for name, one in found.items():
            one.masked_fill_(~kept[name], 0)


def zeros(found: Sequence[torch.Tensor]) -> float:
    """Return the fraction of zeros in some matrices together."""
    return sum(int((one == 0).sum()) for one in found) / max(sum(one.numel() for one in found), 1)


def metrics(model: Any) -> dict[str, Any]:
    """Return what a manifest says: the fraction of zeros, over all matrices and by kind, and what it buys."""
    found = kinds(model)
    return {
        "sparsity": zeros(list(weights(model).values())),
        "sparsity_by_kind": {kind: round(zeros(some), 6) for kind, some in found.items()},
        "zeros": dict(BUYS),
    }
