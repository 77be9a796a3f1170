"""Unstructured sparsity: single weights of the layers' matrices become zero, at once or while a model is trained.

The matrices keep their shapes: LiteRT and ExecuTorch compute zeros as they compute any number, so these formats gain
nothing. Core ML alone stores sparse weights smaller. Structured pruning is what saves compute.

During training, a weight that is zero keeps its value beside the model, so that movement pruning can bring it back; a
checkpoint of the run holds these values, the scores and the masks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline import architectures
from pipeline.architectures import layers
from pipeline.errors import RecipeError
from pipeline.recipe.fields import GradualSparse, Sparse
from pipeline.schemes import SPARSE_STORAGE

_MATRICES = ("query", "key", "value", "attention_output", "intermediate", "output")
_SPARSE_FROM = 0.01
"""Fraction of exact zeros from which on a model counts as sparse; training leaves none by itself."""
_MASK_UPDATES = 200
"""Updates after which masks change, at most: ranking ten million scores takes a quarter of an update."""


# --- the matrices and their zeros ------------------------------------------------------------------------------------


def layer_matrices(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the matrices of the layers by name, each once; embedding tables, norms, biases and heads stay dense."""
    chosen = {id(matrix) for matrices in matrices_by_kind(model).values() for matrix in matrices}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in chosen}


def matrices_by_kind(model: Any) -> dict[str, list[torch.nn.Parameter]]:
    """Return the matrices of the layers by their role, such as `query`; layers that share a matrix give it once."""
    result: dict[str, list[torch.nn.Parameter]] = {}
    for kind in _MATRICES:
        linears = dict.fromkeys(layer.get(kind) for layer in layers.layers(model))
        result[kind] = [matrix for linear in linears for matrix in linear.parameters() if matrix.ndim == 2]
    return result


def keep_masks(scores: Mapping[str, torch.Tensor], settings: Sparse, sparsity: float) -> dict[str, torch.Tensor]:
    """Return a mask for each matrix, True for the weights that are kept.

    Args:
        scores: one score for each weight, by the name of its matrix; the weights with the lowest scores become zero.
        settings: whether the fraction counts over all matrices together or in each.
        sparsity: the fraction; on a schedule it is below that of `settings`.
    """
    if settings.scope == "matrix":
        return {name: keep_highest([score], sparsity)[0] for name, score in scores.items()}
    return dict(zip(scores, keep_highest(list(scores.values()), sparsity), strict=True))


def keep_highest(scores: Sequence[torch.Tensor], sparsity: float) -> list[torch.Tensor]:
    """Return masks that are False for the given fraction of all scores, the lowest.

    Among equal scores, the earlier ones are masked.
    """
    flat = torch.cat([score.detach().flatten() for score in scores])
    mask = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    count = round(sparsity * len(flat))
    if count:
        # Ten million scores: this takes a tenth of what sorting them does.
        threshold = flat.kthvalue(count).values
        mask = flat > threshold
        equal = (flat == threshold).nonzero().flatten()
        mask[equal[count - int((flat < threshold).sum()) :]] = True
    sizes = [score.numel() for score in scores]
    return [part.view_as(score) for part, score in zip(mask.split(sizes), scores, strict=True)]


def prune_by_magnitude(model: Any, settings: Sparse) -> dict[str, torch.Tensor]:
    """Set the smallest weights of the layers to zero, in place and without training.

    Returns:
        A mask for each matrix, True where the weight stayed.

    Source: Han et al. 2015; Gordon et al. 2020 for BERT.
    """
    matrices = layer_matrices(model)
    masks = keep_masks({name: one.detach().abs() for name, one in matrices.items()}, settings, settings.sparsity)
    apply_masks(matrices, masks)
    return masks


def apply_masks(matrices: Mapping[str, torch.nn.Parameter], masks: Mapping[str, torch.Tensor]) -> None:
    """Set weights to zero where their mask is False, in place."""
    with torch.no_grad():
        for name, matrix in matrices.items():
            matrix.masked_fill_(~masks[name], 0)


def zero_fraction(matrices: Sequence[torch.Tensor]) -> float:
    """Return the fraction of zeros in several matrices together."""
    return sum(int((matrix == 0).sum()) for matrix in matrices) / max(sum(matrix.numel() for matrix in matrices), 1)


def sparsity_metrics(model: Any) -> dict[str, Any]:
    """Return the fraction of zeros, in all matrices and by kind, and how each format stores them."""
    by_kind = matrices_by_kind(model)
    return {
        "sparsity": zero_fraction(list(layer_matrices(model).values())),
        "sparsity_by_kind": {kind: round(zero_fraction(matrices), 6) for kind, matrices in by_kind.items()},
        "zeros": dict(SPARSE_STORAGE),
    }


def metrics_if_sparse(model: Any) -> dict[str, Any]:
    """Return the `sparsity_metrics` of a trained student, or an empty dictionary for a dense one."""
    if model.config.model_type not in architectures.COMPRESSIBLE:
        return {}
    result = sparsity_metrics(model)
    return result if result["sparsity"] >= _SPARSE_FROM else {}


# --- while a model is trained ----------------------------------------------------------------------------------------


def cubic_sparsity(step: int, *, begin: int, end: int, final: float, initial: float = 0.0) -> float:
    """Return the sparsity after `step` updates: s_f + (s_i − s_f)(1 − (t − t_0)/(t_1 − t_0))³, flat outside.

    Args:
        step: t.
        begin: t_0, the update at which pruning begins.
        end: t_1, the update after which the remaining weights train on at the final sparsity.
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


class FixedZeros:
    """Holds the zeros that a model begins with. The training loop calls the methods in the order of this class."""

    def __init__(self, model: Any) -> None:
        """Take the matrices of a model's layers; their values are read in `begin`, after any change of device."""
        self._matrices = layer_matrices(model)
        self._masks: dict[str, torch.Tensor] = {}

    def begin(self, updates: int) -> None:
        """Note which weights are zero, before the first of `updates` updates and before a checkpoint is loaded."""
        self._masks = {name: matrix.detach() != 0 for name, matrix in self._matrices.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save besides the model: none here, since the weights show the zeros."""
        return {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the state of a checkpoint."""

    def before_update(self, learning_rate: float, norm: float) -> None:
        """Remove the gradients of zeros, as a mask over the weights would.

        Args:
            learning_rate: of the update.
            norm: of the gradients; the optimizer skips the update if it is not finite.
        """
        for name, matrix in self._matrices.items():
            if matrix.grad is not None:
                matrix.grad.masked_fill_(~self._masks[name], 0)

    def after_update(self, done: int) -> None:
        """Set masked weights to zero again after `done` updates."""
        apply_masks(self._matrices, self._masks)


class GradualPruning(FixedZeros):
    """Sets more and more weights to zero. With M the mask and W the dense weights, the model computes with M ⊙ W.

    `movement`: scores S −= lr · ∂L/∂(M ⊙ W) ⊙ W, also of zeros, so that a weight that is pulled from zero comes back.
    `magnitude`: scores |W|.

    Source: Sanh et al. 2020, hard movement pruning; Zhu and Gupta 2017, gradual magnitude pruning.
    """

    def __init__(self, model: Any, settings: GradualSparse) -> None:
        """Take the matrices of a model's layers."""
        super().__init__(model)
        self._settings = settings
        self._dense: dict[str, torch.Tensor] = {}
        self._scores: dict[str, torch.Tensor] = {}

    def begin(self, updates: int) -> None:
        """Begin with the zeros that the model has, which stay, and with scores of zero."""
        super().begin(updates)
        settings = self._settings
        self._first = int(settings.warmup_fraction * updates)
        self._last = max(self._first + 1, updates - int(settings.cooldown_fraction * updates))
        self._every = max(1, (self._last - self._first) // _MASK_UPDATES)
        self._free = {name: mask.clone() for name, mask in self._masks.items()}
        self._dense = {name: matrix.detach().clone() for name, matrix in self._matrices.items()}
        if settings.by == "movement":
            self._scores = {name: torch.zeros_like(dense) for name, dense in self._dense.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """Return masks, dense weights and scores."""
        parts = {"mask": self._masks, "whole": self._dense, "score": self._scores}
        return {f"{part}.{name}": one.cpu() for part, tensors in parts.items() for name, one in tensors.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore masks, dense weights and scores."""
        for part, tensors in (("mask", self._masks), ("whole", self._dense), ("score", self._scores)):
            for name, one in tensors.items():
                one.copy_(state[f"{part}.{name}"])

    def before_update(self, learning_rate: float, norm: float) -> None:
        """Update the scores, then remove the gradients of zeros."""
        if self._scores and math.isfinite(norm):
            self._store_dense()
            for name, matrix in self._matrices.items():
                if matrix.grad is not None:
                    self._scores[name] -= learning_rate * matrix.grad * self._dense[name]
        super().before_update(learning_rate, norm)

    def after_update(self, done: int) -> None:
        """Change the masks when they are due, and apply them; some weights come back."""
        if done % self._every == 0 or done == self._last:
            self._store_dense()
            scores = self._scores or {name: dense.abs() for name, dense in self._dense.items()}
            ranked = {name: score.masked_fill(~self._free[name], -math.inf) for name, score in scores.items()}
            sparsity = cubic_sparsity(done, begin=self._first, end=self._last, final=self._settings.sparsity)
            masks = keep_masks(ranked, self._settings, sparsity)
            self._masks = {name: mask & self._free[name] for name, mask in masks.items()}
            with torch.no_grad():
                for name, matrix in self._matrices.items():
                    matrix.copy_(self._dense[name])
        super().after_update(done)

    def _store_dense(self) -> None:
        """Copy the updated values of the weights that are not masked into the dense copy."""
        for name, matrix in self._matrices.items():
            self._dense[name] = torch.where(self._masks[name], matrix.detach(), self._dense[name])


def zeros_in_training(model: Any, settings: GradualSparse | None) -> FixedZeros | None:
    """Return the controller of a model's zeros during training; None for a dense model without `sparse` settings."""
    if settings is not None:
        return GradualPruning(model, settings)
    if model.config.model_type not in architectures.COMPRESSIBLE:
        return None
    return FixedZeros(model) if zero_fraction(list(layer_matrices(model).values())) >= _SPARSE_FROM else None
