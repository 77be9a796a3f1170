"""Importance of each attention head and each intermediate neuron: one row of `CRITERIA` per criterion.

Criteria with gradients use those of a score that needs no labels: the mean of their squares is the Fisher information
if the task's outputs are logits, and the Gauss-Newton matrix along a random direction of unit length if they are a
vector or a number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipeline import heads
from pipeline.compress.prune.activations import Moments, batch_tensors
from pipeline.compress.prune.optimal_brain_surgeon import removal_losses
from pipeline.compress.prune.structure import Sublayer, encoder_shape, parameters_each
from pipeline.data.calibration import Batches
from pipeline.kinds import OutputKind
from pipeline.tasks import Task

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Importance:
    """Importance of each structure (head or neuron) of one sublayer."""

    each: Floats
    """Loss caused by removing each structure alone, `(structures,)`; comparable between sublayers."""
    pairs: Floats | None = None
    """Loss caused by removing pairs of structures, `(structures, structures)`; None if the criterion has none."""


Criterion = Callable[[Any, Task, Sequence[Sublayer], Batches, int], list[Importance]]
"""`(model, task, sublayers, calibration batches, seed) -> importance in each sublayer`."""


def importance_by(
    criterion: str, model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, *, seed: int
) -> list[Importance]:
    """Return the importance of each sublayer's structures by a criterion of `CRITERIA`; freezes the parameters."""
    model.requires_grad_(False)
    with torch.enable_grad():
        return CRITERIA[criterion](model, task, sublayers, batches, seed)


def magnitude(model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, seed: int) -> list[Importance]:
    """Return ‖input rows‖ · ‖output columns‖ of each structure; a head's input rows are those of its value projection.

    Norms of heads and of neurons are not comparable, so each kind is scaled to a mean of its parameters per structure.

    Source: Han et al. 2015 and Li et al. 2017 (norms of filters), for structures of two linears.
    """
    norms = [_weight_norms(sublayer) for sublayer in sublayers]
    encoder = encoder_shape(model)
    result = []
    for sublayer, norm in zip(sublayers, norms, strict=True):
        same_kind = [
            other for one, other in zip(sublayers, norms, strict=True) if one.shape.kind == sublayer.shape.kind
        ]
        scale = np.concatenate(same_kind).mean()
        result.append(Importance(norm / scale * parameters_each(sublayer.shape, encoder)))
    return result


def _weight_norms(sublayer: Sublayer) -> Floats:
    last = sublayer.input_linears[-1]
    inner = (last[-1] if hasattr(last, "__getitem__") else last).weight.detach().double()
    outer = sublayer.output_linear.weight.detach().double()
    count, size = sublayer.shape.size, sublayer.columns_each
    rows = inner.reshape(count, size, -1).square().sum((1, 2)).sqrt()
    columns = outer.reshape(-1, count, size).square().sum((0, 2)).sqrt()
    norms: Floats = (rows * columns).numpy()
    return norms


def taylor(model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, seed: int) -> list[Importance]:
    """Return E|∂s/∂m · m| over texts, for gates m = 1 on the structures and the score s of `score_batch`.

    Source: Molchanov et al. 2019, first order, without their square; Michel et al. 2019 for heads.
    """
    gradients = gate_gradients(model, task, sublayers, batches, seed=seed)
    return [Importance(np.abs(gradient).mean(0)) for gradient in gradients]


def fisher(model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, seed: int) -> list[Importance]:
    """Return ½ E[(∂s/∂m)²] over texts for gates m = 1, and ½ E[∂s/∂m_i ∂s/∂m_j] for pairs within a sublayer.

    This quadratic form is the Kullback-Leibler divergence that a mask causes, to second order.

    Source: Kwon et al. 2022; labels are drawn from the model's own softmax, as in the true Fisher information.
    """
    gradients = gate_gradients(model, task, sublayers, batches, seed=seed)
    products = [gradient.T @ gradient / len(gradient) for gradient in gradients]
    return [Importance(product.diagonal() / 2, product / 2) for product in products]


def optimal_brain_surgeon(
    model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, seed: int
) -> list[Importance]:
    """Return the loss of removing structures one after the other with a refit of the rest; see `removal_losses`."""
    inputs, gradients = output_moments(model, task, sublayers, batches, seed=seed)
    result = []
    for sublayer, entering, leaving in zip(sublayers, inputs, gradients, strict=True):
        metric = leaving.products / leaving.tokens
        weight = sublayer.output_linear.weight.detach()
        losses = removal_losses(entering.covariance, weight, metric, size=sublayer.columns_each)
        result.append(Importance(losses.numpy() * entering.tokens / batches.count))
    return result


CRITERIA: dict[str, Criterion] = {
    "magnitude": magnitude,
    "taylor": taylor,
    "fisher": fisher,
    "optimal_brain_surgeon": optimal_brain_surgeon,
}


# --- the score whose gradients are taken -----------------------------------------------------------------------------

Score = Callable[[tuple[torch.Tensor, ...], torch.Tensor, torch.Generator], torch.Tensor]
"""`(the task's outputs, mask (batch, seq_len), generator) -> sum over the texts of the batch`."""


def score_batch(model: Any, task: Task, tensors: dict[str, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    """Return the score of a batch, summed over its texts; each text's score depends on that text alone."""
    mask = tensors["attention_mask"].float()
    outputs = heads.of(task, model).outputs(model(**tensors), mask)
    return SCORES[task.output_kind](outputs, mask, generator)


def _drawn_log_likelihood(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return log p(y), `(items,)`, of labels y drawn from the softmax of logits `(items, classes)`."""
    probabilities = functional.softmax(logits.detach(), -1)
    labels = torch.multinomial(probabilities, 1, generator=generator)
    return functional.log_softmax(logits, -1).gather(-1, labels)[:, 0]


def _score_class(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _drawn_log_likelihood(outputs[0], generator).sum()


def _score_labels(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # A sigmoid is the softmax of a logit beside 0, and each label is drawn by itself.
    logits = outputs[0].flatten()
    return _drawn_log_likelihood(torch.stack([logits, torch.zeros_like(logits)], -1), generator).sum()


def _score_tags(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return _drawn_log_likelihood(outputs[0][mask > 0], generator).sum()


def _score_span(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    logits = [output.masked_fill(mask == 0, float("-inf")) for output in outputs]
    return torch.stack([_score_position(one, generator) for one in logits]).sum()


def _score_position(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    labels = torch.multinomial(functional.softmax(logits.detach(), -1), 1, generator=generator)
    return -functional.cross_entropy(logits, labels[:, 0], reduction="sum")


def _score_vector(outputs: tuple[torch.Tensor, ...], mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    direction = torch.randn(outputs[0].shape, generator=generator)
    return (outputs[0] * functional.normalize(direction, dim=-1)).sum()


SCORES: dict[OutputKind, Score] = {
    "logits": _score_class,
    "token_logits": _score_tags,
    "spans": _score_span,
    "multi_label": _score_labels,
    "value": _score_vector,
    "values": _score_vector,
    "embedding": _score_vector,
}


# --- gradients and moments at the output linears ---------------------------------------------------------------------


@contextmanager
def gated(sublayers: Sequence[Sublayer], gates: Sequence[torch.Tensor]) -> Iterator[None]:
    """Multiply each structure's output by its gate, `(structures,)` or `(batch, structures)`, inside the context."""

    def multiply(sublayer: Sublayer, gate: torch.Tensor) -> Callable[[Any, tuple[torch.Tensor, ...]], torch.Tensor]:
        columns = gate.repeat_interleave(sublayer.columns_each, -1)
        if columns.ndim > 1:
            columns = columns[:, None]  # (batch, 1, columns)
        return lambda module, args: args[0] * columns

    handles = [
        sublayer.output_linear.register_forward_pre_hook(multiply(sublayer, gate))
        for sublayer, gate in zip(sublayers, gates, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gate_gradients(
    model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, *, seed: int
) -> list[Floats]:
    """Return for each sublayer the gradients of each text's score by gates m = 1, `(texts, structures)`, in float64.

    Source: Michel et al. 2019 (head mask variables); Kwon et al. 2022 (per example, for heads and neurons).
    """
    generator = torch.Generator().manual_seed(seed)
    collected: list[list[torch.Tensor]] = [[] for _ in sublayers]
    for number in range(len(batches)):
        tensors = batch_tensors(batches, number)
        texts = len(tensors["input_ids"])
        gates = [torch.ones(texts, sublayer.shape.size, requires_grad=True) for sublayer in sublayers]
        with gated(sublayers, gates):
            score = score_batch(model, task, tensors, generator)
        for of_sublayer, gradient in zip(collected, torch.autograd.grad(score, gates), strict=True):
            of_sublayer.append(gradient.double())
    return [torch.cat(of_sublayer).numpy() for of_sublayer in collected]


def output_moments(
    model: Any, task: Task, sublayers: Sequence[Sublayer], batches: Batches, *, seed: int
) -> tuple[list[Moments], list[Moments]]:
    """Return, per sublayer, the moments of its output linear's inputs and of the gradients at its outputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [Moments(sublayer.shape.size * sublayer.columns_each) for sublayer in sublayers]
    gradients = [Moments(int(sublayer.output_linear.out_features)) for sublayer in sublayers]
    for number in range(len(batches)):
        tensors = batch_tensors(batches, number)
        present = tensors["attention_mask"] > 0
        probes: list[tuple[int, torch.Tensor]] = []
        with _probed(sublayers, inputs, present, probes):
            score = score_batch(model, task, tensors, generator)
        at_probes = torch.autograd.grad(score, [probe for _, probe in probes])
        for (index, _), gradient in zip(probes, at_probes, strict=True):
            gradients[index].add(gradient[present])
    return inputs, gradients


@contextmanager
def _probed(
    sublayers: Sequence[Sublayer],
    inputs: Sequence[Moments],
    present: torch.Tensor,
    probes: list[tuple[int, torch.Tensor]],
) -> Iterator[None]:
    """Add a zero tensor to each output linear's output, to take gradients there, and sum the moments of its inputs."""

    def probe(index: int) -> Callable[[Any, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
        def add_zero(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            inputs[index].add(args[0].detach()[present])
            zero = torch.zeros_like(output, requires_grad=True)
            probes.append((index, zero))
            return output + zero

        return add_zero

    handles = [sublayer.output_linear.register_forward_hook(probe(index)) for index, sublayer in enumerate(sublayers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
