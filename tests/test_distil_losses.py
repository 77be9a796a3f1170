"""The losses of distillation: their formulas in NumPy; padding and agreement cost nothing; only students learn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from pipeline.compress.distil import losses
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.distil.losses import COMPUTED, DistillationLosses, LossContext
from pipeline.compress.distil.outputs import ModelOutputs, Projection
from pipeline.compress.distil.stage import order_params
from pipeline.recipe.distillation import DistilSection
from pipeline.recipe.losses import LOSSES, PRESETS, loss_versions

MASK = torch.tensor([[1.0, 1, 1, 0], [1, 1, 1, 1]])
BATCH, LENGTH = MASK.shape


def kl(teacher: Any, student: Any) -> Any:
    return (softmax(teacher, -1) * (log_softmax(teacher, -1) - log_softmax(student, -1))).sum(-1)


def unit(x: Any) -> Any:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def relation_in_numpy(s: Any, t: Any) -> float:
    total = 0.0
    for row, length in enumerate(MASK.sum(1).int().tolist()):
        total += kl(t[row, :, :length, :length], s[row, :, :length, :length]).mean(0).sum()
    return total


def attention_in_numpy(s: Any, t: Any) -> float:
    lengths = MASK.sum(1).int().tolist()
    return sum(((s[i, :, :n, :n] - t[i, :, :n, :n]) ** 2).mean(0).sum() for i, n in enumerate(lengths))


TOKENS, PAIRS, ROWS = (BATCH, LENGTH, 6), (BATCH, 3, LENGTH, LENGTH), (5, 6)
M = MASK.numpy()
Case = tuple[tuple[int, ...], Callable[[Any, Any], torch.Tensor], Callable[[Any, Any], float]]
CASES: dict[str, Case] = {
    "soft_targets": (
        TOKENS,
        lambda s, t: losses.soft_targets(s, t, MASK, temperature=3.0),
        lambda s, t: 9 * (kl(t / 3, s / 3) * M).sum(),
    ),
    "prediction": (TOKENS, lambda s, t: losses.prediction(s, t, MASK), lambda s, t: (kl(t, s) * M).sum()),
    "logits_mse": (ROWS, losses.logits_mse, lambda s, t: ((s - t) ** 2).mean(-1).sum()),
    "cosine": (
        TOKENS,
        lambda s, t: losses.cosine(s, t, MASK),
        lambda s, t: ((1 - (unit(s) * unit(t)).sum(-1)) * M).sum(),
    ),
    "hidden": (
        TOKENS,
        lambda s, t: losses.hidden_mse(s, t, MASK),
        lambda s, t: (((s - t) ** 2).mean(-1) * M).sum(),
    ),
    "attention": (PAIRS, lambda s, t: losses.attention_mse(s, t, MASK), attention_in_numpy),
    "relations": (PAIRS, lambda s, t: losses.relation(s, t, MASK), relation_in_numpy),
    "sentence_mse": (ROWS, losses.sentence_mse, lambda s, t: ((s - t) ** 2).sum()),
    "sentence_cosine": (ROWS, losses.sentence_cosine, lambda s, t: (1 - (unit(s) * unit(t)).sum(-1)).sum()),
    "similarity": (ROWS, losses.similarity, lambda s, t: ((s @ s.T - t @ t.T) ** 2).mean(1).sum()),
}
"""Shape of both sides, the loss, and the same in NumPy."""
PADDED = [name for name, (shape, _, _) in CASES.items() if shape != ROWS]


def sides(name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shape = CASES[name][0]
    return torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)


@pytest.mark.numeric
@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_its_formula(name, seed):
    _, loss, formula = CASES[name]
    student, teacher = sides(name, seed)
    assert loss(student, teacher).item() == pytest.approx(
        formula(student.double().numpy(), teacher.double().numpy()), rel=1e-4
    )


@pytest.mark.numeric
@pytest.mark.parametrize("name", CASES)
def test_agreement_costs_nothing_and_only_the_student_learns(name, seed):
    _, loss, _ = CASES[name]
    student, teacher = (one.requires_grad_() for one in sides(name, seed))
    assert loss(teacher, teacher).item() == pytest.approx(0.0, abs=1e-4)
    value = loss(student, teacher)
    value.backward()
    assert value.item() > 0
    assert student.grad is not None
    assert student.grad.abs().sum() > 0
    assert teacher.grad is None


@pytest.mark.parametrize("name", PADDED)
def test_padding_never_counts(name, seed):
    shape, loss, _ = CASES[name]
    student, teacher = sides(name, seed)
    other = student.clone()
    other[0, ..., 3, :] += 7.0
    if shape == PAIRS:
        other[0, ..., 3] -= 5.0
    assert loss(other, teacher).item() == pytest.approx(loss(student, teacher).item(), rel=1e-6)
    changed = student.clone().requires_grad_()
    loss(changed, teacher).backward()
    assert changed.grad is not None
    assert torch.isfinite(changed.grad).all()
    assert changed.grad[0, ..., 3, :].abs().max() == 0


@pytest.mark.numeric
def test_labels_of_masked_tokens_and_of_order(seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 4, 6, generator=draw)
    target = torch.tensor([[-100, 2, -100, -100], [5, -100, -100, 0]])
    due = log_softmax(logits.numpy(), -1)
    assert losses.masked_lm(logits, target).item() == pytest.approx(
        -(due[0, 1, 2] + due[1, 0, 5] + due[1, 3, 0]), rel=1e-5
    )
    order = torch.tensor([1, 0])
    due = log_softmax(logits[:, 0, :2].numpy(), -1)
    assert losses.sentence_order(logits[:, 0, :2], order).item() == pytest.approx(-(due[0, 1] + due[1, 0]), 1e-5)


@pytest.mark.numeric
@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_scores_are_scaled_by_the_size_of_however_many_heads(heads, seed):
    first, second = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(seed)).unbind(0)
    found = losses.scores(first, second, heads=heads).numpy()
    size = 8 // heads
    for head in range(heads):
        a, b = (one.numpy()[:, :, head * size : (head + 1) * size] for one in (first, second))
        np.testing.assert_allclose(found[:, head], a @ b.transpose(0, 2, 1) / np.sqrt(size), rtol=1e-4, atol=1e-5)


def test_soft_targets_pull_as_cross_entropy_does(seed):
    student, teacher = sides("soft_targets", seed)
    mine = student.clone().requires_grad_()
    losses.soft_targets(mine, teacher, MASK, temperature=2.0).backward()
    other = student.clone().requires_grad_()
    probabilities = torch.softmax(teacher / 2, -1)
    (-4 * (probabilities * torch.log_softmax(other / 2, -1)).sum(-1) * MASK).sum().backward()
    torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("slice_", [1, 6, 13, 18, 10**6])
def test_soft_targets_are_the_same_in_slices_of_any_size(slice_, seed, monkeypatch):
    student, teacher = sides("soft_targets", seed)
    student[0, 0, 2] = teacher[0, 0, 2] = -torch.inf
    monkeypatch.setattr(losses, "_SLICE", slice_)
    mine, plain = student.clone().requires_grad_(), student.clone().requires_grad_()
    found = losses.soft_targets(mine, teacher, MASK, temperature=3.0)
    due, q = (torch.log_softmax(one / 3, -1) for one in (teacher, plain))
    expected = 9 * (torch.where(due.isinf(), 0.0, due.exp() * (due - q)).sum(-1) * MASK).sum()
    torch.testing.assert_close(found, expected)
    (0.5 * found).backward()
    (0.5 * expected).backward()
    finite = ~student.isinf()
    assert mine.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(mine.grad[finite], plain.grad[finite])
    assert mine.grad[~finite].abs().max() == 0


@pytest.mark.parametrize(("name", "temperature"), [("soft_targets", 3.0), ("prediction", 1.0)])
def test_labels_of_their_own_are_distilled_as_choices_of_yes_or_no(name, temperature, seed):
    draw = torch.Generator().manual_seed(seed)
    student, teacher = (4 * torch.randn(BATCH, 5, generator=draw) for _ in range(2))
    section = DistilSection(losses={name: 1.0}, temperature=temperature)
    both = (ModelOutputs(logits=student), ModelOutputs(logits=teacher))
    found = DistillationLosses(section, "multi_label", ())(*both, LossContext(torch.ones(BATCH, LENGTH)))[name]
    p, q = (torch.sigmoid(one.double() / temperature) for one in (teacher, student))
    each = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    torch.testing.assert_close(found.double(), temperature**2 * each.mean(-1).sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["soft_targets", "prediction"])
def test_a_model_that_diverged_shows_in_the_loss(name, seed):
    student, teacher = sides("soft_targets", seed)
    student[0, 1, 2] = torch.nan
    more = {"temperature": 2.0} if name == "soft_targets" else {}
    assert getattr(losses, name)(student, teacher, MASK, **more).isnan()


def test_each_row_of_the_table_has_a_value():
    assert set(COMPUTED) == set(LOSSES)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_section(name):
    section = DistilSection.model_validate({"dataset": "stsb", "preset": name})
    assert all(getattr(section, key) == value for key, value in PRESETS[name].items())
    assert DistilSection.model_validate({"dataset": "stsb", "preset": name, "temperature": 7.0}).temperature == 7.0
    assert DistilSection.model_validate({"dataset": "stsb", "preset": name, "steps": 9}).epochs is None
    assert set(section.losses) <= set(LOSSES)
    assert all(section.head in LOSSES[one].heads for one in section.losses)


PUBLISHED: dict[str, dict[str, Any]] = {
    "distilbert": {
        "losses": {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0},
        "temperature": 2.0,
        "head": "masked_lm",
    },
    "distilbert-task": {"losses": {"soft_targets": 1.0}, "alpha": 0.5, "temperature": 2.0, "head": "task"},
    "tinybert-general": {"losses": {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0}, "teacher_layers": "uniform"},
    "tinybert-layers": {
        "losses": {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0},
        "teacher_layers": "uniform",
        "epochs": 20.0,
        "head": "task",
    },
    "tinybert-prediction": {"losses": {"prediction": 1.0}, "temperature": 1.0, "epochs": 3.0, "learning_rate": 3e-5},
    "minilm": {"losses": {"relations": 1.0}, "head": "masked_lm"},
    "sentence": {"losses": {"sentence_mse": 1.0}, "head": "task"},
}
"""What the papers say, once more; sources beside `PRESETS`."""


def test_presets_are_what_was_published():
    assert set(PUBLISHED) == set(PRESETS)
    for name, due in PUBLISHED.items():
        section = DistilSection.model_validate({"texts": ["a.txt"], "preset": name})
        assert {key: getattr(section, key) for key in due} == due, name


@pytest.mark.parametrize("name", ["similarity", "sentence_cosine", "attention", "relations", "hidden"])
def test_a_loss_is_in_single_precision_where_the_models_run_in_half(name: str) -> None:
    """What would be an error: autocast takes the product in a loss back to bf16, which near 1 knows steps of .004."""
    draw = torch.Generator().manual_seed(3)

    def shown() -> ModelOutputs:
        sentence = torch.nn.functional.normalize(torch.randn(BATCH, 32, generator=draw), dim=-1)
        parts = {
            part: [Projection(torch.randn(BATCH, LENGTH, 24, generator=draw), 3)] for part in ("query", "key", "value")
        }
        states = (torch.randn(BATCH, LENGTH, 6, generator=draw), torch.randn(BATCH, LENGTH, 6, generator=draw))
        return ModelOutputs(hidden_states=states, projections=parts, sentence=sentence)

    values = DistillationLosses(DistilSection(losses={name: 1.0}), "embedding", (0,))
    student, teacher, frame = shown(), shown(), LossContext(MASK)
    whole = values(student, teacher, frame)[name]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(values(student, teacher, frame)[name], whole)


def test_what_a_loss_computes_in_another_way_is_learnt_again() -> None:
    assert loss_versions(["hidden", "soft_targets"]) == {}
    assert loss_versions(["hidden", "similarity"]) == {"similarity": 2}
    newer, same = (
        order_params(DistilSection(losses={name: 1.0}, texts=("a.txt",)), "embedding", DistilData())
        for name in ("similarity", "sentence_cosine")
    )
    assert newer["losses"] == {"similarity": 2}
    assert "losses" not in same
