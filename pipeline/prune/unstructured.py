"""Single weights set to zero, by size or by how training moves them, on a schedule.

The matrices stay as large as they were: LiteRT and ExecuTorch compute zeros as they compute any number, so there is no
gain in these formats. Core ML alone stores sparse weights smaller. For less compute there is the structured pruning.
"""

from collections.abc import Sequence
from typing import Any

import torch

from pipeline import layers
from pipeline.errors import RecipeError

SPARSE_STORAGE = {
    "litert": "no gain in this format: dense storage, dense kernels",
    "coreml": "smaller on disk by sparse weight compression",
    "executorch": "no gain in this format: XNNPACK's linears are dense",
}
"""What zeros buy in each format."""
_PARTS = ("query", "key", "value", "attended", "widen", "narrow")


def cubic(step: int, *, begin: int, end: int, final: float, initial: float = 0.0) -> float:
    """Return the sparsity after so many updates: s_f + (s_i − s_f)(1 − (t − t_0)/(t_1 − t_0))³, flat outside.

    Args:
        step: t.
        begin: t_0, the update at which pruning begins.
        end: t_1, the one after which the rest learns with what is left.
        final: s_f.
        initial: s_i.

    Raises:
        RecipeError: the schedule ends before it begins, or a sparsity is not in [0, 1).

    Source: Zhu and Gupta 2017, equation 1.
    """
    if not begin < end or not 0 <= initial <= final < 1:
        raise RecipeError(
            f"a pruning schedule from update {begin} to {end}, sparsity {initial} to {final}, cannot be followed; it "
            "has to end after it begins, and to rise below 1."
        )
    left = 1 - min(max((step - begin) / (end - begin), 0.0), 1.0)
    return final + (initial - final) * left**3


def weights(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the matrices of the layers by name, each once; tables, norms, biases and heads stay whole."""
    linears = {layer.get(part) for layer in layers.layers(model) for part in _PARTS}
    wanted = {id(parameter) for linear in linears for parameter in linear.parameters() if parameter.ndim == 2}
    return {name: one for name, one in model.named_parameters() if id(one) in wanted}


def lowest(scores: Sequence[torch.Tensor], sparsity: float) -> list[torch.Tensor]:
    """Return masks, 0 where a score is among the lowest of all, together the given fraction; the earlier of equals."""
    flat = torch.cat([score.detach().flatten() for score in scores])
    mask = torch.ones(len(flat), dtype=torch.bool)
    mask[flat.argsort(stable=True)[: round(sparsity * len(flat))]] = False
    sizes = [score.numel() for score in scores]
    return [part.view_as(score) for part, score in zip(mask.split(sizes), scores, strict=True)]


def by_magnitude(model: Any, sparsity: float) -> dict[str, torch.Tensor]:
    """Set the smallest of the layers' weights to zero, in place.

    Args:
        model: a Hugging Face model.
        sparsity: fraction of zeros, over all matrices together.

    Returns:
        The masks by parameter name, for training that keeps the zeros.

    Source: Han et al. 2015; Gordon et al. 2020 for BERT.
    """
    found = weights(model)
    masks = dict(zip(found, lowest([one.abs() for one in found.values()], sparsity), strict=True))
    apply(found, masks)
    return masks


def apply(found: dict[str, torch.nn.Parameter], masks: dict[str, torch.Tensor]) -> None:
    """Set weights to zero where their mask says so, in place."""
    with torch.no_grad():
        for name, one in found.items():
            one.mul_(masks[name])


class Movement:
    """Scores that grow while training moves a weight away from zero: S −= lr · ∂L/∂W · W after each backward pass.

    Source: Sanh et al. 2020, hard movement pruning with a cut over all matrices together.
    """

    def __init__(self, model: Any, *, learning_rate: float) -> None:
        """Begin with scores of zero for the matrices of a model's layers."""
        self._weights = weights(model)
        self._learning_rate = learning_rate
        self.scores = {name: torch.zeros_like(one) for name, one in self._weights.items()}
        # What was set to zero is scored by what it was, so that it can come back.
        self._whole = {name: one.detach().clone() for name, one in self._weights.items()}
        self._masks = {name: torch.ones_like(one, dtype=torch.bool) for name, one in self._weights.items()}

    def observe(self) -> None:
        """Take the gradients in, between the backward pass and the update."""
        for name, one in self._weights.items():
            if one.grad is not None:
                whole = torch.where(self._masks[name], one.detach(), self._whole[name])
                self.scores[name] -= self._learning_rate * one.grad * whole

    def prune(self, sparsity: float) -> None:
        """Set the lowest scored weights to zero after an update; those that rose above the cut come back."""
        with torch.no_grad():
            chosen = lowest(list(self.scores.values()), sparsity)
            for (name, one), mask in zip(self._weights.items(), chosen, strict=True):
                self._whole[name] = torch.where(self._masks[name], one.detach(), self._whole[name])
                self._masks[name] = mask
                one.copy_(self._whole[name] * mask)


def sparsity_of(model: Any) -> dict[str, Any]:
    """Return what the manifest says: the fraction of zeros in the layers' matrices, and what it buys in each format."""
    found = weights(model).values()
    zeros = sum(int((one == 0).sum()) for one in found)
    return {"sparsity": zeros / sum(one.numel() for one in found), "storage": SPARSE_STORAGE}
