"""Recover a pruned model by least squares: fit its output linears to the outputs of the full model's layers.

The inputs of each layer are the real outputs of the pruned and already fitted layers before it, so that it compensates
for their errors as well. The unknowns are the weights and biases of the two output linears of each layer.

Source: He et al. 2017 (channel pruning: reconstruction of each layer by least squares, from the pruned input); Kwon et
al. 2022, mask tuning, which solves for the masks alone.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pipeline.architectures import layers
from pipeline.compress.prune.activations import (
    LayerInput,
    first_layer_inputs,
    module_inputs,
    pass_layer,
    relative_error,
)
from pipeline.compress.prune.structure import (
    KINDS,
    OUTPUT_LINEAR,
    RESIDUAL_NORM,
    Sublayer,
    SublayerKind,
    layer_sequence,
    sublayers,
)
from pipeline.data.calibration import Batches

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Candidate ridge penalties, as fractions of the columns' mean variance; the best one on held-out texts is used."""
_HELD_OUT = 4
"""One in this many texts is held out while the ridge is chosen."""
Targets = dict[SublayerKind, torch.Tensor]
"""Inputs of the norm after each sublayer in the full model, `(batch, seq_len, hidden)`."""


def reconstruct(
    full: Any,
    pruned: Any,
    batches: Batches,
    *,
    numbers: Sequence[int],
    columns: torch.Tensor | None = None,
    solve: bool = True,
) -> list[float]:
    """Solve the output linears of a pruned model, in place, from the first layer to the last.

    Args:
        full: the model before pruning, the reference.
        pruned: the model after pruning, changed in place.
        batches: the calibration set; padding is ignored.
        numbers: for each layer of `pruned`, its number in `full`, in passes. The feed-forward before a gap is solved
            for the output of the last layer of the gap, and takes that layer's norm.
        columns: hidden columns that `pruned` kept; None for all.
        solve: False leaves the pruned model unchanged, and only measures its errors.

    Returns:
        For each layer of `pruned`, the relative error of its output hidden states, see `relative_error`.
    """
    with torch.no_grad():
        return _Reconstruction(full, pruned, batches, numbers, columns).run(solve=solve)


class _Regression:
    """Sums over tokens for the regression of residuals `(tokens, outputs)` on columns `(tokens, columns)`."""

    def __init__(self, columns: int, outputs: int) -> None:
        self.tokens = 0
        self.column = torch.zeros(columns, dtype=torch.float64)
        self.output = torch.zeros(outputs, dtype=torch.float64)
        self.products = torch.zeros(columns, columns, dtype=torch.float64)
        self.crossed = torch.zeros(columns, outputs, dtype=torch.float64)

    def add(self, columns: torch.Tensor, residual: torch.Tensor) -> None:
        self.tokens += len(columns)
        self.column += columns.double().sum(0)
        self.output += residual.double().sum(0)
        self.products += (columns.T @ columns).double()
        self.crossed += (columns.T @ residual).double()

    def join(self, other: "_Regression") -> None:
        self.tokens += other.tokens
        self.column += other.column
        self.output += other.output
        self.products += other.products
        self.crossed += other.crossed

    def solve(self, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the change of weight `(outputs, columns)` and of bias `(outputs,)`; the bias has no ridge penalty."""
        column, output = self.column / self.tokens, self.output / self.tokens
        variance = self.products / self.tokens - column[:, None] * column[None]
        crossed = self.crossed / self.tokens - column[:, None] * output[None]
        # The unknown is a change, so the ridge shrinks towards the present weights.
        variance.diagonal().add_(ridge * float(variance.diagonal().mean()) + 1e-12)
        change = torch.linalg.solve(variance, crossed)
        return change.T, output - change.T @ column

    def error(self, weight: torch.Tensor, bias: torch.Tensor) -> float:
        """Return Σ ‖residual − weight·columns − bias‖² − Σ ‖residual‖²: below zero if the change lowers the error."""
        fitted = ((weight @ self.products) * weight).sum() - 2 * (weight.T * self.crossed).sum()
        offset = self.tokens * bias @ bias + 2 * bias @ (weight @ self.column) - 2 * bias @ self.output
        return float(fitted + offset)


class _Reconstruction:
    """The full and the pruned model, each with its hidden states before the layer that is fitted next."""

    def __init__(
        self, full: Any, pruned: Any, batches: Batches, numbers: Sequence[int], columns: torch.Tensor | None
    ) -> None:
        self.full_layers, self.pruned_layers = layer_sequence(full), layer_sequence(pruned)
        self.numbers = [*numbers, len(self.full_layers)]
        self.columns = columns
        self.sublayers = sublayers(pruned)
        self.full_states, self.pruned_states = first_layer_inputs(full, batches), first_layer_inputs(pruned, batches)
        for number in range(self.numbers[0]):
            self.full_states = [pass_layer(self.full_layers[number], state) for state in self.full_states]

    def run(self, *, solve: bool) -> list[float]:
        errors = []
        unsolved = list(self.sublayers) if solve else []
        if solve:
            self._take_norms()
        for position, layer in enumerate(self.pruned_layers):
            here = [one for one in unsolved if one.output_linear is layer.get(OUTPUT_LINEAR[one.shape.kind])]
            for sublayer in here:
                _solve(sublayer.output_linear, self._regressions(sublayer, position))
                unsolved.remove(sublayer)
            self.full_states = [self._pass_full(position, state)[1] for state in self.full_states]
            self.pruned_states = [pass_layer(layer, state) for state in self.pruned_states]
            errors.append(relative_error(self._kept_columns(self.full_states), self.pruned_states))
        return errors

    def _take_norms(self) -> None:
        for position, layer in enumerate(self.pruned_layers):
            theirs = self.full_layers[self.numbers[position + 1] - 1].get("output_norm")
            for mine, their in zip(layer.get("output_norm").parameters(), theirs.parameters(), strict=True):
                mine.copy_(their if self.columns is None else their[self.columns])

    def _kept_columns(self, states: list[LayerInput]) -> list[LayerInput]:
        if self.columns is None:
            return states
        return [replace(state, hidden=state.hidden[..., self.columns]) for state in states]

    def _pass_full(self, position: int, state: LayerInput) -> tuple[Targets, LayerInput]:
        """Return the targets of a layer of the pruned model, and the full model's output at the same depth."""
        targets: Targets = {}
        for number in range(self.numbers[position], self.numbers[position + 1]):
            kinds = KINDS if number == self.numbers[position] else KINDS[1:]
            with contextlib.ExitStack() as stack:
                norms = {kind: self.full_layers[number].get(RESIDUAL_NORM[kind]) for kind in kinds}
                inputs = {kind: stack.enter_context(module_inputs(norm)) for kind, norm in norms.items()}
                state = pass_layer(self.full_layers[number], state)
            targets |= {kind: collected[0] for kind, collected in inputs.items()}
        return targets, state

    def _regressions(self, sublayer: Sublayer, start: int) -> tuple[_Regression, _Regression]:
        """Run layers from `start` to a sublayer's last user; return the regressions over fitted and held-out texts."""
        kind, shape = sublayer.shape.kind, sublayer.shape
        users = [
            position
            for position, layer in enumerate(self.pruned_layers)
            if sublayer.output_linear is layer.get(OUTPUT_LINEAR[kind])
        ]
        size = shape.size * sublayer.columns_each
        outputs = layers.width(sublayer.output_linear)
        sums = _Regression(size, outputs), _Regression(size, outputs)
        for full_state, pruned_state in zip(self.full_states, self.pruned_states, strict=True):
            for position in range(start, users[-1] + 1):
                layer = self.pruned_layers[position]
                targets, full_state = self._pass_full(position, full_state)
                with (
                    module_inputs(layer.get(OUTPUT_LINEAR[kind])) as columns,
                    module_inputs(layer.get(RESIDUAL_NORM[kind])) as summed,
                ):
                    pruned_state = pass_layer(layer, pruned_state)
                if position in users:
                    target = targets[kind]
                    residual = (target if self.columns is None else target[..., self.columns]) - summed[0]
                    _add(sums, columns[0], residual, pruned_state.present)
        return sums


def _add(
    sums: tuple[_Regression, _Regression], columns: torch.Tensor, residual: torch.Tensor, present: torch.Tensor
) -> None:
    held_out = torch.zeros_like(present)
    held_out[::_HELD_OUT] = True
    for part, chosen in zip(sums, (present & ~held_out, present & held_out), strict=True):
        part.add(columns[chosen], residual[chosen])


def _solve(linear: Any, sums: tuple[_Regression, _Regression]) -> None:
    """Fit a linear with the best ridge on held-out texts, then on all texts; leave it if no ridge lowers the error."""
    most, held_out = sums
    errors = {ridge: held_out.error(*most.solve(ridge)) for ridge in RIDGES}
    ridge = min(errors, key=lambda one: errors[one])
    if errors[ridge] >= 0:
        return
    most.join(held_out)
    weight, bias = most.solve(ridge)
    linear.weight += weight.to(linear.weight.dtype)
    linear.bias += bias.to(linear.bias.dtype)
