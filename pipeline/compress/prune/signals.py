"""What pruning reads from a model while it runs: gradients at gates on heads and rows, and moments of tokens.

The score whose gradients are taken needs no labels: its square is the Fisher information where the output are logits,
and the Gauss-Newton matrix, by a random direction of unit length, where it is a vector or a number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from pipeline.compress.prune.parts import Block
from pipeline.data.calibration import Batches
from pipeline.schemes import OutputKind
from pipeline.tasks import Task

Score = Callable[[tuple[torch.Tensor, ...], torch.Tensor, torch.Generator], torch.Tensor]
"""`(the task's outputs, mask (batch, seq_len), generator) -> sum over the texts of the batch`."""


def _drawn(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return log p(y), `(items,)`, of labels y drawn from softmax of logits `(items, classes)`."""
    chances = functional.softmax(logits.detach(), -1)
    labels = torch.multinomial(chances, 1, generator=generator)
    return functional.log_softmax(logits, -1).gather(-1, labels)[:, 0]


def _class(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _drawn(outputs[0], generator).sum()


def _tags(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _drawn(outputs[0][mask > 0], generator).sum()


def _span(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    places = [one.masked_fill(mask == 0, float("-inf")) for one in outputs]
    scores = [_drawn_place(one, generator) for one in places]
    return torch.stack(scores).sum()


def _drawn_place(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    labels = torch.multinomial(functional.softmax(logits.detach(), -1), 1, generator=generator)
    return -functional.cross_entropy(logits, labels[:, 0], reduction="sum")


def _direction(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.randn(outputs[0].shape, generator=generator)
    return (outputs[0] * functional.normalize(drawn, dim=-1)).sum()


SCORES: dict[OutputKind, Score] = {
    "logits": _class,
    "token_logits": _tags,
    "spans": _span,
    "value": _direction,
    "embedding": _direction,
}


def inputs(batches: Batches, number: int) -> dict[str, torch.Tensor]:
    """Return a batch's tensors, each `(batch, seq_len)`."""
    return {name: torch.from_numpy(value) for name, value in batches.arrays(number).items()}


@contextmanager
def gated(blocks: Sequence[Block], gates: Sequence[torch.Tensor]) -> Iterator[None]:
    """Multiply what each head and each row gives by its gate, `(units,)` or `(batch, units)`, in every pass."""

    def multiply(block: Block, gate: torch.Tensor) -> Callable[[Any, tuple[torch.Tensor, ...]], torch.Tensor]:
        columns = gate.repeat_interleave(block.size, -1)
        if columns.ndim > 1:
            columns = columns[:, None]  # (batch, 1, columns)
        return lambda module, args: args[0] * columns

    handles = [
        block.outer.register_forward_pre_hook(multiply(block, gate)) for block, gate in zip(blocks, gates, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gate_gradients(model: Any, task: Task, blocks: Sequence[Block], batches: Batches, *, seed: int) -> list[Any]:
    """Return the gradient of each text's score with respect to gates of one: for each block `(texts, units)`, float64.

    Source: Michel et al. 2019 (head mask variables); Kwon et al. 2022 (per example, for heads and rows).
    """
    generator = torch.Generator().manual_seed(seed)
    found: list[list[torch.Tensor]] = [[] for _ in blocks]
    for number in range(len(batches)):
        given = inputs(batches, number)
        rows = len(given["input_ids"])
        gates = [torch.ones(rows, block.part.units, requires_grad=True) for block in blocks]
        with gated(blocks, gates):
            value = score(model, task, given, generator)
        for kept, gradient in zip(found, torch.autograd.grad(value, gates), strict=True):
            kept.append(gradient.double())
    return [torch.cat(kept).numpy() for kept in found]


def score(model: Any, task: Task, given: dict[str, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    """Return the score of a batch, summed over its texts, which do not touch one another."""
    mask = given["attention_mask"].float()
    return SCORES[task.output_kind](task.finish(model(**given), mask), mask, generator)


class Moments:
    """Sums over tokens: of the columns that enter a linear, and of their products."""

    def __init__(self, columns: int) -> None:
        """Begin with nothing seen, for `columns` columns."""
        self.tokens = 0
        self.total = torch.zeros(columns, dtype=torch.float64)
        self.products = torch.zeros(columns, columns, dtype=torch.float64)

    def add(self, tokens: torch.Tensor) -> None:
        """Take `(tokens, columns)` in."""
        self.tokens += len(tokens)
        self.total += tokens.double().sum(0)
        self.products += (tokens.T @ tokens).double()

    @property
    def covariance(self) -> torch.Tensor:
        """Mean product of what is left of two columns after their means, `(columns, columns)`."""
        mean = self.total / self.tokens
        return self.products / self.tokens - mean[:, None] * mean[None]


def token_moments(
    model: Any, task: Task, blocks: Sequence[Block], batches: Batches, *, seed: int
) -> tuple[list[Moments], list[Moments]]:
    """Return for each block the moments of what enters `outer`, and of the score's gradients at what leaves it."""
    generator = torch.Generator().manual_seed(seed)
    entering = [Moments(block.part.units * block.size) for block in blocks]
    gradients = [Moments(int(block.outer.out_features)) for block in blocks]
    for number in range(len(batches)):
        given = inputs(batches, number)
        present = given["attention_mask"] > 0
        probes: list[tuple[int, torch.Tensor]] = []
        with _probed(blocks, entering, present, probes):
            value = score(model, task, given, generator)
        wanted = torch.autograd.grad(value, [probe for _, probe in probes])
        for (index, _), gradient in zip(probes, wanted, strict=True):
            gradients[index].add(gradient[present])
    return entering, gradients


@contextmanager
def _probed(
    blocks: Sequence[Block], entering: Sequence[Moments], present: torch.Tensor, probes: list[tuple[int, torch.Tensor]]
) -> Iterator[None]:
    def probe(index: int) -> Callable[[Any, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
        def add_zero(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            entering[index].add(args[0].detach()[present])
            zero = torch.zeros_like(output, requires_grad=True)
            probes.append((index, zero))
            return output + zero

        return add_zero

    handles = [block.outer.register_forward_hook(probe(index)) for index, block in enumerate(blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
