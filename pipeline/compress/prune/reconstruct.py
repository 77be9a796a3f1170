"""Least squares instead of training: the linears behind what was cut are solved for what the whole model's layers gave.

Each layer of the cut model sees what the layers below it, cut and solved already, really give, so that it makes up for
their errors as well. The unknowns are weights and bias of the attention's output and of the feed-forward's output.

Source: He et al. 2017 (channel pruning: reconstruction of each layer by least squares, from the pruned input); Kwon et
al. 2022, mask tuning, which solves for the masks alone.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pipeline.checkpoint import layers
from pipeline.compress.prune import walk
from pipeline.compress.prune.parts import KINDS, OUTER, SUMMED, Block, Kind, blocks, sequence
from pipeline.compress.prune.walk import State
from pipeline.data.calibration import Batches

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of the mean variance of a column; the one that serves rows best that took no part in solving is taken."""
_HELD_BACK = 4
"""One row of so many takes no part in solving while the ridge is chosen."""
Targets = dict[Kind, torch.Tensor]
"""What enters the norm behind each kind of part, in the whole model, `(batch, seq_len, hidden)`."""


class _Sums:
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

    def join(self, other: "_Sums") -> None:
        self.tokens += other.tokens
        self.column += other.column
        self.output += other.output
        self.products += other.products
        self.crossed += other.crossed

    def solve(self, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what weight `(outputs, columns)` and bias `(outputs,)` have to gain; the bias is not held back."""
        column, output = self.column / self.tokens, self.output / self.tokens
        variance = self.products / self.tokens - column[:, None] * column[None]
        crossed = self.crossed / self.tokens - column[:, None] * output[None]
        # The ridge draws towards the weights that were there, since they are what is gained upon.
        variance.diagonal().add_(ridge * float(variance.diagonal().mean()) + 1e-12)
        gained = torch.linalg.solve(variance, crossed)
        return gained.T, output - gained.T @ column

    def error(self, weight: torch.Tensor, bias: torch.Tensor) -> float:
        """Return Σ ‖residual − weight·columns − bias‖² less Σ ‖residual‖², which no solution changes."""
        fitted = ((weight @ self.products) * weight).sum() - 2 * (weight.T * self.crossed).sum()
        offset = self.tokens * bias @ bias + 2 * bias @ (weight @ self.column) - 2 * bias @ self.output
        return float(fitted + offset)


def run(
    full: Any,
    cut: Any,
    batches: Batches,
    *,
    numbers: Sequence[int],
    columns: torch.Tensor | None = None,
    gain: bool = True,
) -> list[float]:
    """Solve the outputs of a cut model's attention and feed-forward, in place, from the first layer to the last.

    Args:
        full: the whole model, the truth.
        cut: the same model after cutting, changed in place.
        batches: calibration rows; padding takes no part.
        numbers: for each layer of `cut`, its number in `full`, in passes. The feed-forward before a gap aims at what
            the last layer of the gap gave, and takes its norm over.
        columns: hidden columns that `cut` kept; None for all.
        gain: False leaves the cut model as it is, and only tells how near it is.

    Returns:
        Behind each layer of `cut`, the relative error of the hidden states, see `walk.relative_error`.
    """
    with torch.no_grad():
        return _Pair(full, cut, batches, numbers, columns).walk(gain=gain)


class _Pair:
    """The two models, each in front of the same layer."""

    def __init__(
        self, full: Any, cut: Any, batches: Batches, numbers: Sequence[int], columns: torch.Tensor | None
    ) -> None:
        self.whole, self.less = sequence(full), sequence(cut)
        self.numbers = [*numbers, len(self.whole)]
        self.columns = columns
        self.blocks = blocks(cut)
        self.wanted, self.found = walk.begin(full, batches), walk.begin(cut, batches)
        for number in range(self.numbers[0]):
            self.wanted = [walk.through(self.whole[number], state) for state in self.wanted]

    def walk(self, *, gain: bool) -> list[float]:
        errors = []
        todo = list(self.blocks) if gain else []
        if gain:
            self._take_norms()
        for place, layer in enumerate(self.less):
            here = [block for block in todo if block.outer is layer.get(OUTER[block.part.kind])]
            for block in here:
                _gain(block.outer, self._sums(block, place))
                todo.remove(block)
            self.wanted = [self._aim(place, state)[1] for state in self.wanted]
            self.found = [walk.through(layer, state) for state in self.found]
            errors.append(walk.relative_error(self._seen(self.wanted), self.found))
        return errors

    def _take_norms(self) -> None:
        for place, layer in enumerate(self.less):
            theirs = self.whole[self.numbers[place + 1] - 1].get("norm")
            for mine, their in zip(layer.get("norm").parameters(), theirs.parameters(), strict=True):
                mine.copy_(their if self.columns is None else their[self.columns])

    def _seen(self, states: list[State]) -> list[State]:
        if self.columns is None:
            return states
        return [replace(state, hidden=state.hidden[..., self.columns]) for state in states]

    def _aim(self, place: int, state: State) -> tuple[Targets, State]:
        """Return what a layer of the cut model aims at, and the whole model's state behind it."""
        targets: Targets = {}
        for number in range(self.numbers[place], self.numbers[place + 1]):
            kinds = KINDS if number == self.numbers[place] else KINDS[1:]
            with contextlib.ExitStack() as stack:
                norms = {kind: self.whole[number].get(SUMMED[kind]) for kind in kinds}
                caught = {kind: stack.enter_context(walk.entering(norm)) for kind, norm in norms.items()}
                state = walk.through(self.whole[number], state)
            targets |= {kind: found[0] for kind, found in caught.items()}
        return targets, state

    def _sums(self, block: Block, start: int) -> tuple[_Sums, _Sums]:
        """Walk from the first layer that has a block to the last, and return its sums: of most rows, of the others."""
        users = [place for place, layer in enumerate(self.less) if block.outer is layer.get(OUTER[block.part.kind])]
        size = block.part.units * block.size
        outputs = layers.width(block.outer)
        sums = _Sums(size, outputs), _Sums(size, outputs)
        for wanted, found in zip(self.wanted, self.found, strict=True):
            for place in range(start, users[-1] + 1):
                layer = self.less[place]
                targets, wanted = self._aim(place, wanted)
                with (
                    walk.entering(layer.get(OUTER[block.part.kind])) as columns,
                    walk.entering(layer.get(SUMMED[block.part.kind])) as summed,
                ):
                    found = walk.through(layer, found)
                if place in users:
                    target = targets[block.part.kind]
                    residual = (target if self.columns is None else target[..., self.columns]) - summed[0]
                    _add(sums, columns[0], residual, found.present)
        return sums


def _add(sums: tuple[_Sums, _Sums], columns: torch.Tensor, residual: torch.Tensor, present: torch.Tensor) -> None:
    held = torch.zeros_like(present)
    held[::_HELD_BACK] = True
    for part, chosen in zip(sums, (present & ~held, present & held), strict=True):
        part.add(columns[chosen], residual[chosen])


def _gain(linear: Any, sums: tuple[_Sums, _Sums]) -> None:
    """Add to a linear what serves the rows held back best, solved again with all rows; or nothing."""
    most, held = sums
    errors = {ridge: held.error(*most.solve(ridge)) for ridge in RIDGES}
    ridge = min(errors, key=lambda one: errors[one])
    if errors[ridge] >= 0:
        return
    most.join(held)
    weight, bias = most.solve(ridge)
    linear.weight += weight.to(linear.weight.dtype)
    linear.bias += bias.to(linear.bias.dtype)
