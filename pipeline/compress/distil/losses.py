"""The losses of distillation: pure functions, each a sum over its items, and the module that applies them to outputs.

Items are rows, tokens, pairs of tokens or masked tokens. The training loop divides by their number in the whole update,
so that neither padding nor gradient accumulation changes a loss. A teacher's tensor never gets a gradient.
`mask` is 1 for tokens and 0 for padding, `(batch, seq_len)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compress.distil.outputs import ModelOutputs
from pipeline.kinds import KINDS, OutputKind
from pipeline.recipe.distillation import DistilSection

_SLICE = 2**18
"""Logits that `soft_targets` processes at a time."""


def soft_targets(student: Tensor, teacher: Tensor, weight: Tensor, *, temperature: float) -> Tensor:
    """Return T² Σ KL(softmax(t / T) ‖ softmax(s / T)) over items.

    Its gradient is that of the cross-entropy with soft targets; T² keeps the size of the gradient when T changes.

    Args:
        student: logits, `(..., classes)`.
        teacher: logits of the same shape.
        weight: 1 for an item that counts and 0 for padding, `(...)`.
        temperature: T.

    Source: Hinton, Vinyals and Dean 2015, section 2.1.
    """
    classes = student.shape[-1]
    flat = (student.reshape(-1, classes), teacher.detach().reshape(-1, classes), weight.reshape(-1))
    total: Tensor = _SoftTargets.apply(*flat, temperature)  # type: ignore[no-untyped-call]
    return total


class _SoftTargets(torch.autograd.Function):
    """The divergence and its gradient, computed slice by slice.

    The logits of a thousand tokens over thirty thousand words are 125 MB in float32, and autograd would write and read
    a dozen such tensors; slices that fit into a processor's cache take a seventh of the time (LOG.md).
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, weight: Tensor, temperature: float) -> Tensor:
        """Return the sum; shapes are `(items, classes)` twice and `(items,)`."""
        # The loss scale, which is applied later, cannot bring back what half precision rounds to zero here.
        kept = torch.float32 if student.dtype == torch.float16 else student.dtype
        gradient = torch.empty_like(student, dtype=kept)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        rows = max(1, _SLICE // student.shape[-1])
        for at in range(0, len(student), rows):
            part = slice(at, at + rows)
            log_p = functional.log_softmax(teacher[part].float() / temperature, -1)
            log_q = functional.log_softmax(student[part].float() / temperature, -1)
            p = log_p.exp()
            # In place from here on: memory bandwidth is the bottleneck. 0 · log 0 counts as 0, and a NaN stays.
            each = log_p.sub_(log_q).mul_(p).masked_fill_(p == 0, 0.0).sum(-1)
            total += (each * weight[part]).sum()
            # T² · (q − p) / T, rounded to the student's own type as autograd would do.
            gradient[part] = log_q.exp_().sub_(p).mul_((temperature * weight[part])[:, None])
        ctx.save_for_backward(gradient)
        ctx.dtype = student.dtype
        return temperature**2 * total

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the student's logits; nothing else gets one."""
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(above).to(ctx.dtype), None, None, None


def prediction(student: Tensor, teacher: Tensor, weight: Tensor) -> Tensor:
    """Return Σ KL(softmax(t) ‖ softmax(s)) over items: the cross-entropy minus the teacher's entropy, a constant.

    Shapes are those of `soft_targets`.

    Source: Jiao et al. 2020 (TinyBERT), equation 10, with its temperature of 1.
    """
    return soft_targets(student, teacher, weight, temperature=1.0)


def masked_lm(logits: Tensor, target: Tensor) -> Tensor:
    """Return Σ −log softmax(z)_y over masked tokens.

    Args:
        logits: z, `(batch, seq_len, vocabulary)`.
        target: the original token where one is masked, −100 elsewhere, `(batch, seq_len)`.

    Source: Devlin et al. 2019, section 3.1.
    """
    # Only the logits of masked tokens are copied to float32.
    chosen = target != -100
    return functional.cross_entropy(logits[chosen].float(), target[chosen], reduction="sum")


def cosine(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ 1 − cos(s, t) over tokens, hidden states `(batch, seq_len, hidden)`.

    Source: Sanh et al. 2019 (DistilBERT), section 2, `L_cos` on the last hidden states.
    """
    cosines = functional.cosine_similarity(student.float(), teacher.detach().float(), -1)
    return ((1.0 - cosines) * mask).sum()


def hidden_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ mean((s − t)²) over tokens, the mean over the hidden size.

    Both are embeddings or hidden states of the teacher's hidden size, `(batch, seq_len, hidden)`.

    Source: Jiao et al. 2020 (TinyBERT), equations 8 and 9.
    """
    squares = (student.float() - teacher.detach().float()).square().mean(-1)
    return (squares * mask).sum()


def attention_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ mean((S − T)²) over pairs of tokens, the mean over heads.

    Args:
        student: scores Q Kᵀ / √d before any softmax, `(batch, heads, seq_len, seq_len)`.
        teacher: of the same shape.
        mask: a pair with padding on either side does not count.

    Source: Jiao et al. 2020 (TinyBERT), equation 7; before the softmax, since that converged faster.
    """
    squares = (student.float() - teacher.detach().float()).square().mean(1)
    pairs = mask[:, :, None] * mask[:, None, :]
    return (squares * pairs).sum()


def scores(first: Tensor, second: Tensor, *, heads: int) -> Tensor:
    """Return A Bᵀ / √d of each head, `(batch, heads, seq_len, seq_len)`.

    Args:
        first: A, `(batch, seq_len, heads · d)`.
        second: B, of the same shape.
        heads: number of heads that the features are split into; for relations any number that divides them.

    Source: Vaswani et al. 2017, equation 1; Wang et al. 2021 (MiniLMv2), section 3.1, for other splits.
    """
    batch, length, features = first.shape
    size = features // heads
    a, b = (one.float().view(batch, length, heads, size).transpose(1, 2) for one in (first, second))
    result: Tensor = a @ b.transpose(-1, -2) / size**0.5
    return result


def relation(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ KL(softmax(T) ‖ softmax(S)) over tokens, the mean over relation heads.

    Args:
        student: scores of queries with keys, or of values with values, `(batch, heads, seq_len, seq_len)`.
        teacher: of the same shape; the hidden sizes may differ.
        mask: the softmax leaves padding out.

    Source: Wang et al. 2020 (MiniLM), equations 5 to 8.
    """
    padding = (mask == 0)[:, None, None, :]
    # Not -inf: with it in teacher and student, 0 · (inf − inf) is not a number.
    lowest = torch.finfo(torch.float32).min / 4
    log_p, log_q = (
        functional.log_softmax(one.float().masked_fill(padding, lowest), -1) for one in (teacher.detach(), student)
    )
    each = (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)  # (batch, seq_len)
    return (each * mask).sum()


def sentence_order(logits: Tensor, target: Tensor) -> Tensor:
    """Return Σ −log softmax(z)_y over rows: whether two segments are in order (0) or swapped (1).

    Args:
        logits: z, `(batch, 2)`.
        target: y, `(batch,)`.

    Source: Lan et al. 2020 (ALBERT), section 3.1, inter-sentence coherence loss.
    """
    return functional.cross_entropy(logits.float(), target, reduction="sum")


def sentence_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ ‖s − t‖² over rows, which is 2 Σ 1 − cos(s, t).

    Both are sentence embeddings of length one, `(batch, hidden)`.

    Source: Reimers and Gurevych 2020 (Making Monolingual Sentence Embeddings Multilingual), equation 1.
    """
    return (student.float() - teacher.detach().float()).square().sum()


def sentence_cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ 1 − cos(s, t) over rows, `(batch, hidden)`.

    Source: Reimers and Gurevych 2020, with the cosine by which embeddings are compared instead of the MSE.
    """
    return (1.0 - functional.cosine_similarity(student.float(), teacher.detach().float(), -1)).sum()


def logits_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ mean((s − t)²) over rows, logits or regression outputs `(batch, width)`.

    Source: Ba and Caruana 2014, section 2.1: regression on the teacher's logits.
    """
    return (student.float() - teacher.detach().float()).square().mean(-1).sum()


def similarity(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ_i mean_j (s_i·s_j − t_i·t_j)² over the rows of a batch; hidden sizes may differ.

    Args:
        student: sentence embeddings of length one, `(batch, hidden)`.
        teacher: `(batch, its hidden)`.

    Source: Tung and Mori 2019 (Similarity-Preserving Knowledge Distillation), equation 4, on cosines.
    """
    theirs = teacher.detach().float() @ teacher.detach().float().T
    mine = student.float() @ student.float().T
    return (mine - theirs).square().mean(1).sum()


# --- from the outputs of two models to the losses --------------------------------------------------------------------


@dataclass(frozen=True)
class LossContext:
    """The inputs of the losses for one batch, besides the outputs of the two models."""

    mask: Tensor
    """1 for tokens and 0 for padding, float, `(batch, seq_len)`."""
    masked_tokens: Tensor | None = None
    """The original token where one is masked, −100 elsewhere, `(batch, seq_len)`."""
    segment_order: Tensor | None = None
    """0 where two segments are in order, 1 where they are swapped, `(batch,)`."""


class DistillationLosses(nn.Module):
    """The losses of a section with their own parameters: projections, and a head for the order of segments."""

    def __init__(self, section: DistilSection, kind: OutputKind, teacher_layers: tuple[int, ...]) -> None:
        """Begin without projections; `teacher_layers` is the teacher's layer, from 0, for each of the student's."""
        super().__init__()
        self.section = section
        self.by_token = section.head == "masked_lm" or kind == "token_logits"
        self.spans = section.head == "task" and kind == "spans"
        self.each_label = section.head == "task" and KINDS[kind].decision == "each"
        self.teacher_layers = teacher_layers
        self.projections = nn.ModuleDict()

    def add_projections(self, student_size: int | None, teacher_size: int | None) -> None:
        """Create the projections and heads that are trained together with the student.

        Args:
            student_size: the student's hidden size.
            teacher_size: the teacher's hidden size, or None without a teacher. Different sizes need a projection.
                Source: Jiao et al. 2020 (TinyBERT), W_h and W_e.
        """
        assert student_size is not None
        for name in ("embeddings", "hidden"):
            if name in self.section.losses and teacher_size is not None and teacher_size != student_size:
                self.projections[name] = nn.Linear(student_size, teacher_size, bias=False)
        if "sentence_order" in self.section.losses:
            self.projections["sentence_order"] = nn.Linear(student_size, 2)

    def forward(self, student: ModelOutputs, teacher: ModelOutputs, context: LossContext) -> dict[str, Tensor]:
        """Return the sum of each loss over its items, computed in fp32 independent of the models' precision."""
        # Otherwise autocast takes the products of `scores` and `similarity` back to bf16.
        with torch.autocast(context.mask.device.type, enabled=False):
            return {name: COMPUTED[name](self, student, teacher, context) for name in self.section.losses}

    def project(self, name: str, states: Tensor) -> Tensor:
        """Return hidden states in the teacher's hidden size."""
        if name not in self.projections:
            return states
        projected: Tensor = self.projections[name](states.float())
        return projected

    def weighted_logits(self, logits: Tensor | None, context: LossContext) -> tuple[Tensor, Tensor]:
        """Return the logits that count, and the weight of each."""
        logits = _given(logits)
        if self.by_token:
            mask = context.mask.bool()
            # Blocks of plain text have no padding, and a copy of their logits is 125 MB.
            chosen = logits.flatten(0, 1) if mask.all() else logits[mask]  # (tokens, classes)
            return chosen, torch.ones_like(chosen[:, 0])
        if self.each_label:
            # A sigmoid is the softmax of a logit beside 0. The labels of a text share one item, as in the task's loss.
            choices = torch.stack([logits, torch.zeros_like(logits)], -1)  # (batch, labels, 2)
            return choices, torch.full_like(logits, 1 / logits.shape[-1])
        # Start and end of an answer are halves of one item.
        return logits, torch.full_like(logits[..., 0], 0.5 if self.spans else 1.0)


def _soft_targets(
    losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext
) -> Tensor:
    mine, weight = losses.weighted_logits(student.logits, context)
    theirs, _ = losses.weighted_logits(teacher.logits, context)
    return soft_targets(mine, theirs, weight, temperature=losses.section.temperature)


def _prediction(
    losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext
) -> Tensor:
    mine, weight = losses.weighted_logits(student.logits, context)
    return prediction(mine, losses.weighted_logits(teacher.logits, context)[0], weight)


def _sentence_order(
    losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext
) -> Tensor:
    logits = losses.project("sentence_order", student.hidden_states[-1][:, 0])
    return sentence_order(logits, _given(context.segment_order))


def _embeddings(
    losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext
) -> Tensor:
    mine = losses.project("embeddings", student.hidden_states[0])
    return hidden_mse(mine, teacher.hidden_states[0], context.mask)


def _hidden(losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext) -> Tensor:
    pairs = zip(student.hidden_states[1:], losses.teacher_layers, strict=True)
    each = [
        hidden_mse(losses.project("hidden", mine), teacher.hidden_states[layer + 1], context.mask)
        for mine, layer in pairs
    ]
    return torch.stack(each).sum()


def _attention(
    losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext
) -> Tensor:
    each = [
        attention_mse(_attention_scores(student, number), _attention_scores(teacher, layer), context.mask)
        for number, layer in enumerate(losses.teacher_layers)
    ]
    return torch.stack(each).sum()


def _attention_scores(outputs: ModelOutputs, layer: int) -> Tensor:
    query, key = outputs.projections["query"][layer], outputs.projections["key"][layer]
    return scores(query.features, key.features, heads=query.heads)


def _relations(
    losses: DistillationLosses, student: ModelOutputs, teacher: ModelOutputs, context: LossContext
) -> Tensor:
    heads = losses.section.relation_heads or teacher.projections["query"][-1].heads
    each = []
    for first, second in (("query", "key"), ("value", "value")):
        mine, theirs = (
            scores(one.projections[first][-1].features, one.projections[second][-1].features, heads=heads)
            for one in (student, teacher)
        )
        each.append(relation(mine, theirs, context.mask))
    return torch.stack(each).sum()


COMPUTED: dict[str, Callable[[DistillationLosses, ModelOutputs, ModelOutputs, LossContext], Tensor]] = {
    "soft_targets": _soft_targets,
    "prediction": _prediction,
    "logits_mse": lambda _, student, teacher, context: logits_mse(_given(student.logits), _given(teacher.logits)),
    "masked_lm": lambda _, student, teacher, context: masked_lm(_given(student.logits), _given(context.masked_tokens)),
    "sentence_order": _sentence_order,
    "cosine": lambda _, student, teacher, context: cosine(
        student.hidden_states[-1], teacher.hidden_states[-1], context.mask
    ),
    "embeddings": _embeddings,
    "hidden": _hidden,
    "attention": _attention,
    "relations": _relations,
    "sentence_mse": lambda _, student, teacher, context: sentence_mse(
        _given(student.sentence), _given(teacher.sentence)
    ),
    "sentence_cosine": lambda _, student, teacher, context: sentence_cosine(
        _given(student.sentence), _given(teacher.sentence)
    ),
    "similarity": lambda _, student, teacher, context: similarity(_given(student.sentence), _given(teacher.sentence)),
}
"""For each of `pipeline.recipe.losses.LOSSES` its value, from the outputs of the two models."""


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
