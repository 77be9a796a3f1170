"""From what two models show to the value of each loss of `terms.TERMS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compress.distil import checks, losses
from pipeline.compress.distil.seen import Projected, Seen
from pipeline.errors import RecipeError
from pipeline.recipe.compression import DistilSection
from pipeline.schemes import OutputKind


@dataclass(frozen=True)
class Frame:
    """What the losses need besides the two models."""

    mask: Tensor
    """1 for tokens and 0 for padding, float, `(batch, seq_len)`."""
    masked: Tensor | None = None
    """The token that was there, −100 where none was masked, `(batch, seq_len)`."""
    order: Tensor | None = None
    """0 where two segments stand in their order, 1 where they are swapped, `(batch,)`."""


class Values(nn.Module):
    """The losses with what they learn themselves: projections, and a head for the order of segments."""

    def __init__(self, section: DistilSection, kind: OutputKind, layers: tuple[int, ...]) -> None:
        """Begin without projections; `layers` is the teacher's layer, from 0, for each of the student's."""
        super().__init__()
        self.section = section
        self.by_token = section.head == "masked_lm" or kind == "token_logits"
        self.spans = section.head == "task" and kind == "spans"
        self.layers = layers
        self.projections = nn.ModuleDict()

    def project(self, student_width: int | None, teacher_width: int | None) -> None:
        """Add what is learnt beside the student.

        Args:
            student_width: its hidden size.
            teacher_width: the teacher's hidden size, or None without a teacher. A projection is learnt where they
                differ. Source: Jiao et al. 2020 (TinyBERT), W_h and W_e.
        """
        assert student_width is not None
        for name in ("embeddings", "hidden"):
            if name in self.section.losses and teacher_width is not None and teacher_width != student_width:
                self.projections[name] = nn.Linear(student_width, teacher_width, bias=False)
        if "sentence_order" in self.section.losses:
            self.projections["sentence_order"] = nn.Linear(student_width, 2)

    def forward(self, student: Seen, teacher: Seen, frame: Frame) -> dict[str, Tensor]:
        """Return each loss's sum over its items, in single precision whatever the models run in."""
        # Without it, autocast takes the products of `scores` and `similarity` back to bf16.
        with torch.autocast(frame.mask.device.type, enabled=False):
            return {name: VALUES[name](self, student, teacher, frame) for name in self.section.losses}

    def projected(self, name: str, states: Tensor) -> Tensor:
        """Return states in the teacher's width."""
        if name not in self.projections:
            return states
        found: Tensor = self.projections[name](states.float())
        return found

    def items(self, logits: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Return the logits that count, and the weight of each."""
        if self.by_token:
            mask = frame.mask.bool()
            # Blocks of plain text have no padding, and a copy of their logits is 125 MB.
            chosen = logits.flatten(0, 1) if mask.all() else logits[mask]  # (tokens, classes)
            return chosen, torch.ones_like(chosen[:, 0])
        # Start and end of an answer are halves of one item.
        return logits, torch.full_like(logits[..., 0], 0.5 if self.spans else 1.0)


def _soft(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    mine, weight = values.items(_given(student.logits), frame)
    theirs, _ = values.items(_given(teacher.logits), frame)
    return losses.soft_targets(mine, theirs, weight, temperature=values.section.temperature)


def _prediction(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    mine, weight = values.items(_given(student.logits), frame)
    return losses.prediction(mine, values.items(_given(teacher.logits), frame)[0], weight)


def _logits(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.logits_mse(_given(student.logits), _given(teacher.logits))


def _masked_lm(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.masked_lm(_given(student.logits), _given(frame.masked))


def _order(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.sentence_order(values.projected("sentence_order", student.states[-1][:, 0]), _given(frame.order))


def _cosine(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.cosine(student.states[-1], teacher.states[-1], frame.mask)


def _embeddings(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.hidden_mse(values.projected("embeddings", student.states[0]), teacher.states[0], frame.mask)


def _hidden(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    pairs = zip(student.states[1:], values.layers, strict=True)
    found = [
        losses.hidden_mse(values.projected("hidden", mine), teacher.states[at + 1], frame.mask) for mine, at in pairs
    ]
    return torch.stack(found).sum()


def _attention(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    found = []
    for number, at in enumerate(values.layers):
        mine, theirs = _scores(student, number), _scores(teacher, at)
        found.append(losses.attention_mse(mine, theirs, frame.mask))
    return torch.stack(found).sum()


def _scores(seen: Seen, layer: int) -> Tensor:
    query, key = seen.parts["query"][layer], seen.parts["key"][layer]
    return losses.scores(query.columns, key.columns, heads=query.heads)


def _relations(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    heads = values.section.relation_heads or teacher.parts["query"][-1].heads
    found = []
    for first, second in (("query", "key"), ("value", "value")):
        mine, theirs = (
            losses.scores(one.parts[first][-1].columns, one.parts[second][-1].columns, heads=heads)
            for one in (student, teacher)
        )
        found.append(losses.relation(mine, theirs, frame.mask))
    return torch.stack(found).sum()


def _sentence_mse(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.sentence_mse(_given(student.sentence), _given(teacher.sentence))


def _sentence_cosine(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.sentence_cosine(_given(student.sentence), _given(teacher.sentence))


def _similarity(values: Values, student: Seen, teacher: Seen, frame: Frame) -> Tensor:
    return losses.similarity(_given(student.sentence), _given(teacher.sentence))


VALUES: dict[str, Callable[[Values, Seen, Seen, Frame], Tensor]] = {
    "soft_targets": _soft,
    "prediction": _prediction,
    "logits_mse": _logits,
    "masked_lm": _masked_lm,
    "sentence_order": _order,
    "cosine": _cosine,
    "embeddings": _embeddings,
    "hidden": _hidden,
    "attention": _attention,
    "relations": _relations,
    "sentence_mse": _sentence_mse,
    "sentence_cosine": _sentence_cosine,
    "similarity": _similarity,
}
"""A row for each of `terms.TERMS`."""


def _given(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def check_shown(section: DistilSection, student: Seen, teacher: Seen, layers: tuple[int, ...]) -> None:
    """Refuse losses that what the two models show cannot carry, before the first update.

    Raises:
        RecipeError: heads or classes that do not go together.
    """
    for name in ("soft_targets", "prediction", "logits_mse"):
        if name in section.losses and (one := _width(student.logits)) != (other := _width(teacher.logits)):
            raise RecipeError(f"distil.losses.{name}: the student gives {one} numbers and the teacher {other}.")
    if "attention" in section.losses:
        _check_attention(student.parts["query"], teacher.parts["query"], layers)
    if "relations" in section.losses:
        _check_relations(section, student, teacher)


def _width(found: Any) -> int:
    return int(found.shape[-1])


def _check_attention(mine: list[Projected], theirs: list[Projected], layers: tuple[int, ...]) -> None:
    for number, at in enumerate(layers):
        checks.refuse_heads(number, mine[number].heads, at, theirs[at].heads)


def _check_relations(section: DistilSection, student: Seen, teacher: Seen) -> None:
    heads = section.relation_heads or teacher.parts["query"][-1].heads
    for name, seen in (("student", student), ("teacher", teacher)):
        checks.refuse_columns(heads, int(seen.parts["query"][-1].columns.shape[-1]), name)
