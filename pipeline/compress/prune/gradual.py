"""Zeros while a model is trained: those that it has are held, or more and more are made on a cubic schedule.

A weight that is zero keeps what it was beside the model, so that movement can bring it back; a checkpoint of the run
holds that, the scores and the masks.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from pipeline.checkpoint import layers
from pipeline.compress.prune import unstructured
from pipeline.errors import RecipeError
from pipeline.recipe.fields import GradualSparse

_HELD_FROM = 0.01
"""Fraction of exact zeros in the layers' matrices from which on they were put there; training leaves none by itself."""
_CHANGES = 200
"""Of the masks, at most: to rank ten million scores takes a quarter of an update."""


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


class Held:
    """The zeros that a model has; they stay. The loop calls the methods in this order."""

    def __init__(self, model: Any) -> None:
        """Take the matrices of a model's layers; not yet their values, since the model may still change its device."""
        self._weights = unstructured.weights(model)
        self._masks: dict[str, torch.Tensor] = {}

    def begin(self, updates: int) -> None:
        """Note which weights are zero, before the first of so many updates and before a checkpoint is read."""
        self._masks = {name: one.detach() != 0 for name, one in self._weights.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint has to hold besides the model; here nothing, since zeros show in the weights."""
        return {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a checkpoint."""

    def before(self, learning_rate: float, norm: float) -> None:
        """Look at the gradients of an update, and take those of zeros away, as a mask over the weight would.

        Args:
            learning_rate: of the update.
            norm: of the gradients; where it is not finite, the update is skipped.
        """
        for name, one in self._weights.items():
            if one.grad is not None:
                one.grad.masked_fill_(~self._masks[name], 0)

    def after(self, done: int) -> None:
        """Set to zero what has to be, after so many updates."""
        unstructured.apply(self._weights, self._masks)


class Gradual(Held):
    """More and more zeros. With M the mask and W the whole weights, the model computes with M ⊙ W.

    `movement`: scores S −= lr · ∂L/∂(M ⊙ W) ⊙ W, of zeros too, so that what is pulled away from zero comes back.
    `magnitude`: scores |W|.

    Source: Sanh et al. 2020, hard movement pruning; Zhu and Gupta 2017, gradual magnitude pruning.
    """

    def __init__(self, model: Any, asked: GradualSparse) -> None:
        """Take the matrices of a model's layers."""
        super().__init__(model)
        self._asked = asked
        self._whole: dict[str, torch.Tensor] = {}
        self._scores: dict[str, torch.Tensor] = {}

    def begin(self, updates: int) -> None:
        """Begin with the zeros that there are, which stay, and with scores of zero."""
        super().begin(updates)
        asked = self._asked
        self._first = int(asked.warmup_fraction * updates)
        self._last = max(self._first + 1, updates - int(asked.cooldown_fraction * updates))
        self._every = max(1, (self._last - self._first) // _CHANGES)
        self._free = {name: mask.clone() for name, mask in self._masks.items()}
        self._whole = {name: one.detach().clone() for name, one in self._weights.items()}
        if asked.by == "movement":
            self._scores = {name: torch.zeros_like(one) for name, one in self._whole.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """Return masks, whole weights and scores."""
        parts = {"mask": self._masks, "whole": self._whole, "score": self._scores}
        return {f"{part}.{name}": one.cpu() for part, some in parts.items() for name, one in some.items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take them back."""
        for part, some in (("mask", self._masks), ("whole", self._whole), ("score", self._scores)):
            for name, one in some.items():
                one.copy_(state[f"{part}.{name}"])

    def before(self, learning_rate: float, norm: float) -> None:
        """Add to the scores."""
        if self._scores and math.isfinite(norm):
            self._keep_whole()
            for name, one in self._weights.items():
                if one.grad is not None:
                    self._scores[name] -= learning_rate * one.grad * self._whole[name]
        super().before(learning_rate, norm)

    def after(self, done: int) -> None:
        """Change the masks where it is their turn, and set weights to zero by them; some come back."""
        if done % self._every == 0 or done == self._last:
            self._keep_whole()
            scores = self._scores or {name: one.abs() for name, one in self._whole.items()}
            ranked = {name: one.masked_fill(~self._free[name], -math.inf) for name, one in scores.items()}
            sparsity = cubic(done, begin=self._first, end=self._last, final=self._asked.sparsity)
            chosen = unstructured.masks(ranked, self._asked, sparsity)
            self._masks = {name: mask & self._free[name] for name, mask in chosen.items()}
            with torch.no_grad():
                for name, one in self._weights.items():
                    one.copy_(self._whole[name])
        super().after(done)

    def _keep_whole(self) -> None:
        """Take over what the update made of weights that are not zero."""
        for name, one in self._weights.items():
            self._whole[name] = torch.where(self._masks[name], one.detach(), self._whole[name])


def of(model: Any, asked: GradualSparse | None) -> Held | None:
    """Return what keeps a model's zeros during training, or None where it has none and none are asked for."""
    if asked is not None:
        return Gradual(model, asked)
    if model.config.model_type not in layers.LAYOUTS:
        return None
    return Held(model) if unstructured.zeros(list(unstructured.weights(model).values())) >= _HELD_FROM else None


def reached(model: Any) -> dict[str, Any]:
    """Return what a trained student's manifest says of its zeros; nothing where it has none."""
    if model.config.model_type not in layers.LAYOUTS:
        return {}
    found = unstructured.metrics(model)
    return found if found["sparsity"] >= _HELD_FROM else {}
