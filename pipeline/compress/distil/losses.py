"""The losses of distillation: small pure functions, each a sum over its items.

Items are rows, tokens, pairs of tokens or masked tokens; who trains divides by their number in the whole update, so
padding never counts, nor how an update is cut into parts. A teacher's tensor never gets a gradient.
`mask` is 1 for tokens and 0 for padding, `(batch, seq_len)`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_SLICE = 2**18
"""Logits that `soft_targets` takes at a time."""


def soft_targets(student: Tensor, teacher: Tensor, weight: Tensor, *, temperature: float) -> Tensor:
    """Return T² Σ KL(softmax(t / T) ‖ softmax(s / T)) over items.

    It has the gradient of the cross-entropy with soft targets; T² keeps the gradient's size when T changes.

    Args:
        student: logits, `(..., classes)`.
        teacher: logits of the same shape.
        weight: 1 for an item that counts and 0 for padding, `(...)`.
        temperature: T.

    Source: Hinton, Vinyals and Dean 2015, section 2.1.
    """
    classes = student.shape[-1]
    flat = (student.reshape(-1, classes), teacher.detach().reshape(-1, classes), weight.reshape(-1))
    found: Tensor = _SoftTargets.apply(*flat, temperature)  # type: ignore[no-untyped-call]
    return found


class _SoftTargets(torch.autograd.Function):
    """The divergence with its gradient, a slice of items at a time.

    A thousand tokens by thirty thousand words are 125 MB in float32, and autograd would write and read a dozen such
    tensors; slices that stay in a processor's cache took a seventh of the time (LOG.md).
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, weight: Tensor, temperature: float) -> Tensor:
        """Return the sum; shapes are `(items, classes)` twice and `(items,)`."""
        # Half precision would lose what the loss scale, which comes later, keeps above its smallest numbers.
        kept = torch.float32 if student.dtype == torch.float16 else student.dtype
        gradient = torch.empty_like(student, dtype=kept)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        rows = max(1, _SLICE // student.shape[-1])
        for at in range(0, len(student), rows):
            part = slice(at, at + rows)
            wanted = functional.log_softmax(teacher[part].float() / temperature, -1)
            found = functional.log_softmax(student[part].float() / temperature, -1)
            p = wanted.exp()
            # In place from here on, since memory is what this waits for. 0 · log 0 is 0, as behind a mask; a NaN stays.
            each = wanted.sub_(found).mul_(p).masked_fill_(p == 0, 0.0).sum(-1)
            total += (each * weight[part]).sum()
            # T² · (q − p) / T, rounded to the student's own type as autograd would have.
            gradient[part] = found.exp_().sub_(p).mul_((temperature * weight[part])[:, None])
        ctx.save_for_backward(gradient)
        ctx.dtype = student.dtype
        return temperature**2 * total

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the student's gradient; nothing else gets one."""
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(above).to(ctx.dtype), None, None, None


def prediction(student: Tensor, teacher: Tensor, weight: Tensor) -> Tensor:
    """Return Σ KL(softmax(t) ‖ softmax(s)) over items: the cross-entropy less the teacher's entropy, a constant.

    Shapes are those of `soft_targets`.

    Source: Jiao et al. 2020 (TinyBERT), equation 10, with its temperature of 1.
    """
    return soft_targets(student, teacher, weight, temperature=1.0)


def masked_lm(logits: Tensor, target: Tensor) -> Tensor:
    """Return Σ −log softmax(z)_y over masked tokens.

    Args:
        logits: z, `(batch, seq_len, vocabulary)`.
        target: the token that was there, −100 where none was masked, `(batch, seq_len)`.

    Source: Devlin et al. 2019, section 3.1.
    """
    # Logits of other tokens are not even copied to float32.
    chosen = target != -100
    return functional.cross_entropy(logits[chosen].float(), target[chosen], reduction="sum")


def cosine(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ 1 − cos(s, t) over tokens, hidden states `(batch, seq_len, hidden)`.

    Source: Sanh et al. 2019 (DistilBERT), section 2, `L_cos` on the last hidden states.
    """
    found = functional.cosine_similarity(student.float(), teacher.detach().float(), -1)
    return ((1.0 - found) * mask).sum()


def hidden_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ mean((s − t)²) over tokens, the mean over the hidden size; s is already projected to the teacher's.

    It serves embeddings and layers, `(batch, seq_len, hidden)`.

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
        heads: into which the columns are split; for relations any number that divides them.

    Source: Vaswani et al. 2017, equation 1; Wang et al. 2021 (MiniLMv2), section 3.1, for other splits.
    """
    batch, length, columns = first.shape
    size = columns // heads
    a, b = (one.float().view(batch, length, heads, size).transpose(1, 2) for one in (first, second))
    found: Tensor = a @ b.transpose(-1, -2) / size**0.5
    return found


def relation(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Return Σ KL(softmax(T) ‖ softmax(S)) over tokens, the mean over relation heads.

    Args:
        student: scores of queries with keys, or of values with values, `(batch, heads, seq_len, seq_len)`.
        teacher: of the same shape; hidden sizes may differ, since scores do not show them.
        mask: padding takes no part in the softmax.

    Source: Wang et al. 2020 (MiniLM), equations 5 to 8.
    """
    padding = (mask == 0)[:, None, None, :]
    # Not -inf: where teacher and student have it, 0 · (inf − inf) is no number.
    lowest = torch.finfo(torch.float32).min / 4
    wanted, found = (
        functional.log_softmax(one.float().masked_fill(padding, lowest), -1) for one in (teacher.detach(), student)
    )
    each = (wanted.exp() * (wanted - found)).sum(-1).mean(1)  # (batch, seq_len)
    return (each * mask).sum()


def sentence_order(logits: Tensor, target: Tensor) -> Tensor:
    """Return Σ −log softmax(z)_y over rows: whether two segments of a text stand in their order (0) or swapped (1).

    Args:
        logits: z, `(batch, 2)`.
        target: y, `(batch,)`.

    Source: Lan et al. 2020 (ALBERT), section 3.1, inter-sentence coherence loss.
    """
    return functional.cross_entropy(logits.float(), target, reduction="sum")


def sentence_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ ‖s − t‖² over rows, sentence embeddings of length one, `(batch, hidden)`; it is 2 Σ 1 − cos(s, t).

    Source: Reimers and Gurevych 2020 (Making Monolingual Sentence Embeddings Multilingual), equation 1.
    """
    return (student.float() - teacher.detach().float()).square().sum()


def sentence_cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ 1 − cos(s, t) over rows, `(batch, hidden)`.

    Source: Reimers and Gurevych 2020, with the cosine that the embeddings are compared by in the place of the MSE.
    """
    return (1.0 - functional.cosine_similarity(student.float(), teacher.detach().float(), -1)).sum()


def logits_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ mean((s − t)²) over rows, logits or regressed numbers `(batch, width)`.

    Source: Ba and Caruana 2014, section 2.1: regression on the teacher's logits.
    """
    return (student.float() - teacher.detach().float()).square().mean(-1).sum()


def similarity(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Σ_i mean_j (s_i·s_j − t_i·t_j)² over rows of the batch: hidden sizes may differ.

    Args:
        student: sentence embeddings of length one, `(batch, hidden)`.
        teacher: `(batch, its hidden)`.

    Source: Tung and Mori 2019 (Similarity-Preserving Knowledge Distillation), equation 4, on cosines.
    """
    wanted = teacher.detach().float() @ teacher.detach().float().T
    found = student.float() @ student.float().T
    return (found - wanted).square().mean(1).sum()
