"""Structured pruning: what is chosen, what it costs, what is cut, and what least squares make up for."""

import copy
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import check_trial, recipe_file
from warm import session

from pipeline import architectures, heads, tasks
from pipeline.architectures import layers
from pipeline.artifact import sha256_file
from pipeline.checkpoint import shapes
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.compress import factorise, prune
from pipeline.compress.common import Context
from pipeline.compress.prune import stage
from pipeline.compress.prune.activations import batch_tensors
from pipeline.compress.prune.importance import (
    CRITERIA,
    Importance,
    gate_gradients,
    gated,
    importance_by,
    output_moments,
)
from pipeline.compress.prune.optimal_brain_surgeon import removal_losses
from pipeline.compress.prune.reconstruction import reconstruct
from pipeline.compress.prune.removal import keep_structures
from pipeline.compress.prune.search import keep_all, rearrange, search_budget, search_fraction
from pipeline.compress.prune.structure import (
    KINDS,
    EncoderShape,
    Sublayer,
    SublayerShape,
    encoder_macs,
    encoder_shape,
    parameters_each,
    stored_shape,
    sublayers,
)
from pipeline.compress.start import stage as starts
from pipeline.data import calibration, corpus
from pipeline.data import datasets as data
from pipeline.data.calibration import Batches
from pipeline.data.corpus import Unlabelled, passages
from pipeline.errors import InputError, PipelineError, RecipeError
from pipeline.recipe import loading as recipes
from pipeline.recipe.compression import FactoriseSection, PruneSection, StartSection
from pipeline.text import bundled
from pipeline.text.bundled import everyday_sentences

ARCHITECTURES = ["albert", "bert", "distilbert", "electra", "roberta"]
TEXTS: list[Unlabelled] = [*everyday_sentences()[:60], ("Is it open?", "The shop closes at six.")]
Students = Callable[..., Path]


def loaded(folder: Path, task: str = "embedding") -> Any:
    return load_checkpoint(folder, tasks.get(task))


def rows(folder: Path, model: Any) -> Batches:
    pad = int(model.config.pad_token_id or 0)
    return calibration.batches(folder, architectures.get(model.config.model_type).inputs, TEXTS, max_length=32, pad=pad)


def found(folder: Path) -> student.Source:
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def section(**values: Any) -> PruneSection:
    return PruneSection.model_validate({"max_length": 32, "intermediate_multiple": 8, "cost_length": 32} | values)


def make(source: Path, out: Path, task: str = "embedding", **values: Any) -> dict[str, Any]:
    out.mkdir()
    metrics = prune.make(source, task, section(**values), TEXTS, out)
    tried = prune.trial(section(**values), found(source), tasks.get(task))
    check_trial(tried, out, sizes_are_measured=section(**values).counts)
    return metrics


def outputs(model: Any, batches: Batches, task: str = "embedding") -> torch.Tensor:
    with torch.no_grad():
        results = []
        for number in range(len(batches)):
            given = batch_tensors(batches, number)
            results.append(heads.of(tasks.get(task), model).outputs(model(**given), given["attention_mask"].float())[0])
    return torch.cat(results)


# --- costs and the search ----------------------------------------------------------------------------------------


def test_costs_are_those_of_the_matrix_products() -> None:
    shape = EncoderShape((SublayerShape("attention", 0, 4, 1), SublayerShape("feed_forward", 0, 128, 1)), 64, 16, 1)
    length, hidden, rows = 32, 64, 128
    products = 4 * length * hidden * hidden + 2 * length * length * hidden + 2 * length * hidden * rows
    assert encoder_macs(shape, length=length) == products
    linears = [torch.nn.Linear(64, 64) for _ in "qkv"] + [torch.nn.Linear(64, 64, bias=False)]
    linears += [torch.nn.Linear(64, 128), torch.nn.Linear(128, 64, bias=False)]
    owned = sum(sublayer.size * parameters_each(sublayer, shape) for sublayer in shape.sublayers)
    assert owned == sum(one.numel() for linear in linears for one in linear.parameters())


def test_the_search_finds_the_best_that_a_budget_buys(seed: int) -> None:
    draw = np.random.default_rng(seed)
    some = [
        SublayerShape("attention", 0, 3, 1),
        SublayerShape("feed_forward", 0, 4, 1),
        SublayerShape("attention", 1, 3, 1),
        SublayerShape("feed_forward", 1, 4, 1),
    ]
    prices = [5.0, 2.0, 5.0, 2.0]
    for _ in range(10):
        worth = [Importance(draw.gamma(0.5, size=sublayer.size)) for sublayer in some]
        kept = search_budget(some, worth, prices, budget=27.0, intermediate_multiple=1)
        value = sum(one.each[numbers].sum() for one, numbers in zip(worth, kept, strict=True))
        sums = [np.concatenate([[0], np.cumsum(np.sort(one.each)[::-1])]) for one in worth]
        counts = itertools.product(*(range(1, sublayer.size + 1) for sublayer in some))
        allowed = [one for one in counts if sum(n * price for n, price in zip(one, prices, strict=True)) <= 27.0]
        best = max(sum(total[n] for total, n in zip(sums, one, strict=True)) for one in allowed)
        assert value == pytest.approx(best)


def test_a_uniform_search_finds_the_best_counts_for_all_layers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    some = [SublayerShape(kind, layer, 4 if kind == "attention" else 8, 1) for layer in range(3) for kind in KINDS]
    prices = [5.0 if sublayer.kind == "attention" else 1.0 for sublayer in some]
    for _ in range(10):
        worth = [Importance(draw.gamma(0.5, size=sublayer.size)) for sublayer in some]
        kept = search_budget(some, worth, prices, budget=48.0, intermediate_multiple=2, uniform=True)
        assert len({len(kept[number]) for number in (0, 2, 4)}) == len({len(kept[number]) for number in (1, 3, 5)}) == 1
        sums = [np.concatenate([[0], np.cumsum(np.sort(one.each)[::-1])]) for one in worth]
        allowed = [(h, r) for h in range(1, 5) for r in (2, 4, 6, 8) if 3 * (5 * h + r) <= 48]
        best = max(sum(total[h if at % 2 == 0 else r] for at, total in enumerate(sums)) for h, r in allowed)
        assert sum(one.each[left].sum() for one, left in zip(worth, kept, strict=True)) == pytest.approx(best)
        half = search_fraction(
            some, worth, keep_all(some), "attention", fraction=0.7, intermediate_multiple=2, uniform=True
        )
        assert [len(one) for one in half] == [2, 8, 2, 8, 2, 8]


def test_a_uniform_search_makes_layers_of_unequal_sizes_equal() -> None:
    some = [
        SublayerShape("attention", 0, 4, 1),
        SublayerShape("feed_forward", 0, 100, 1),
        SublayerShape("attention", 1, 4, 1),
    ]
    some.append(SublayerShape("feed_forward", 1, 128, 1))
    worth = [Importance(np.ones(sublayer.size)) for sublayer in some]
    kept = search_budget(some, worth, [5.0, 1.0, 5.0, 1.0], budget=260.0, intermediate_multiple=8, uniform=True)
    assert [len(one) for one in kept] == [4, 96, 4, 96]


def test_a_uniform_search_in_multiples_above_the_intermediate_size_keeps_to_its_budget() -> None:
    some = [SublayerShape(kind, layer, 4 if kind == "attention" else 8, 1) for layer in range(3) for kind in KINDS]
    prices = [5.0 if sublayer.kind == "attention" else 1.0 for sublayer in some]
    worth = [Importance(np.ones(sublayer.size)) for sublayer in some]
    kept = search_budget(some, worth, prices, budget=54.0, intermediate_multiple=256, uniform=True)
    assert [len(one) for one in kept] == [2, 8, 2, 8, 2, 8]


def test_rearranging_lowers_what_is_lost_together(seed: int) -> None:
    draw = np.random.default_rng(seed)
    factors = draw.normal(size=(6, 12))
    together = factors.T @ factors
    one = Importance(together.diagonal(), together)

    def lost(kept: Any) -> float:
        gone = np.setdiff1d(np.arange(12), kept)
        return float(together[np.ix_(gone, gone)].sum())

    first = np.sort(np.argsort(-one.each)[:6])
    (second,) = rearrange([first], [one])
    assert len(second) == 6
    assert lost(second) < 0.9 * lost(first)


@pytest.mark.numeric
def test_removal_losses_are_those_of_the_best_refit(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.eye(6) + 0.4 * torch.randn(6, 6, generator=draw)
    columns = torch.randn(4000, 6, generator=draw, dtype=torch.float64) @ mixed.double()
    columns -= columns.mean(0)
    weight, factor = torch.randn(3, 6, generator=draw).double(), torch.randn(3, 3, generator=draw).double()
    losses = removal_losses(columns.T @ columns / 4000, weight, factor @ factor.T, size=2, damping=1e-9)

    def refitted(unit: int) -> float:
        left = [column for column in range(6) if column // 2 != unit]
        expected = columns @ weight.T
        solved = torch.linalg.lstsq(columns[:, left], expected).solution
        return float(((expected - columns[:, left] @ solved) @ factor).square().sum() / 4000 / 2)

    alone = [refitted(unit) for unit in range(3)]
    assert int(losses.argmin()) == int(np.argmin(alone))
    assert float(losses.min()) == pytest.approx(min(alone), rel=1e-4)


@pytest.mark.parametrize("case", [{"num_hidden_groups": 2, "num_hidden_layers": 3}, {"inner_group_num": 2}])
def test_groups_that_are_not_passed_alike_are_refused(
    case: dict[str, int], randomised: Students, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(randomised("albert"), source)
    config = transformers.AutoConfig.from_pretrained(source, **case)
    transformers.AlbertModel(config).save_pretrained(source)
    with pytest.raises(PipelineError, match=r"each group has one layer and all are passed equally often"):
        stored_shape(found(source))


@pytest.mark.full
def test_a_factored_table_and_a_single_head_are_timed_too(randomised: Students, tmp_path: Path) -> None:
    factored = tmp_path / "factored"
    factored.mkdir()
    factorise.make(randomised(), "embedding", FactoriseSection.model_validate({"embedding": 16}), TEXTS, factored)
    make(factored, tmp_path / "single", attention_heads=0.25, intermediate_size=0.5, uniform=True)
    out = tmp_path / "out"
    out.mkdir()
    expected = section(compute=0.7, costs="latency", cost_length=64)
    with session().one(tmp_path / "log") as worker:
        metrics = worker.call(prune.make, tmp_path / "single", "embedding", expected, TEXTS, out)
    assert metrics["attention_heads"] == [1, 1]
    assert metrics["structure_ms"]["attention"] > metrics["structure_ms"]["feed_forward"] > 0


@pytest.mark.full
def test_costs_are_measured_in_the_real_runtime(randomised: Students, tmp_path: Path) -> None:
    """The order of the two is all that a noisy machine tells of layers this small."""
    out = tmp_path / "out"
    out.mkdir()
    expected = section(compute=0.6, costs="latency", cost_length=64)
    with session().one(tmp_path / "log") as worker:
        metrics = worker.call(prune.make, randomised("bert", "classification"), "classification", expected, TEXTS, out)
    assert metrics["structure_ms"]["attention"] > 2 * metrics["structure_ms"]["feed_forward"] > 0
    assert 0.3 < metrics["compute"] < 0.8


# --- what matters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("architecture", "task"), [("bert", "classification"), ("albert", "embedding")])
def test_what_adds_nothing_goes_first_and_is_not_missed(
    criterion: str, architecture: str, task: str, randomised: Students
) -> None:
    model = loaded(randomised(architecture, task), task)
    layer = layers.layers(model)[-1]
    with torch.no_grad():
        layer.get("attention_output").weight[:, 16:32] = 0
        layer.get("output").weight[:, 40:56] = 0
    batches = rows(randomised(architecture, task), model)
    blocks = sublayers(model)
    judged = importance_by(criterion, model, tasks.get(task), blocks, batches, seed=0)
    assert judged[-2].each.argmin() == 1
    assert set(np.argsort(judged[-1].each)[:16]) == set(range(40, 56))
    own = [block.shape for block in blocks]
    everything = keep_all(own)
    count = sum(sublayer.size for sublayer in own if sublayer.kind == "attention")
    kept = search_fraction(own, judged, everything, "attention", fraction=(count - 1) / count, intermediate_multiple=8)
    count = sum(sublayer.size for sublayer in own if sublayer.kind == "feed_forward")
    kept = search_fraction(own, judged, kept, "feed_forward", fraction=(count - 16) / count, intermediate_multiple=8)
    before = outputs(model, batches, task)
    keep_structures(model, blocks, kept)
    assert [block.shape.size for block in sublayers(model)][-2:] == [3, 112]
    torch.testing.assert_close(outputs(model, batches, task), before, rtol=1e-4, atol=1e-5)


@pytest.mark.numeric
@pytest.mark.parametrize("task", [name for name, row in tasks.TASKS.items() if row.uses_head])
def test_gate_gradients_are_those_of_single_texts(task: str, randomised: Students) -> None:
    """No text's gradient hangs on what it is batched with, so each is squared by itself."""
    model = loaded(randomised("bert", task), task)
    batches = rows(randomised("bert", task), model)
    blocks = sublayers(model)
    together = gate_gradients(model, tasks.get(task), blocks, batches, seed=0)
    assert [one.shape for one in together] == [(len(TEXTS), block.shape.size) for block in blocks]
    assert all(np.isfinite(one).all() and np.abs(one).max() > 0 for one in together)
    first = Batches((batches.rows[0][:1],), batches.names, batches.pad_token_id)
    if task == "regression":  # a direction in one dimension is a sign, whose square is one
        alone = gate_gradients(model, tasks.get(task), blocks, first, seed=0)
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(np.abs(one[0]), np.abs(other[0]), rtol=1e-3, atol=1e-6)


@pytest.mark.numeric
def test_each_criterion_is_its_formula(randomised: Students) -> None:
    model = loaded(randomised())
    batches, blocks, task = rows(randomised(), model), sublayers(model), tasks.get("embedding")
    gradients = gate_gradients(model, task, blocks, batches, seed=3)
    for name, expected in (("taylor", lambda one: np.abs(one).mean(0)), ("fisher", lambda one: (one**2).mean(0) / 2)):
        judged = importance_by(name, model, task, blocks, batches, seed=3)
        for one, gradient in zip(judged, gradients, strict=True):
            np.testing.assert_allclose(one.each, expected(gradient), rtol=1e-5)
    judged = importance_by("magnitude", model, task, blocks, batches, seed=3)
    for kind, inner, outer, size in (
        ("attention", "value", "attention_output", 16),
        ("feed_forward", "intermediate", "output", 1),
    ):
        chosen = [one for one, block in zip(judged, blocks, strict=True) if block.shape.kind == kind]
        found = np.concatenate([one.each for one in chosen])
        norms = []
        for layer in layers.layers(model):
            reads, writes = (layer.get(name).weight.detach().double().numpy() for name in (inner, outer))
            for start in range(0, len(reads), size):
                unit = slice(start, start + size)
                norms.append(np.linalg.norm(reads[unit]) * np.linalg.norm(writes[:, unit]))
        np.testing.assert_allclose(found / found.mean(), np.array(norms) / np.mean(norms), rtol=1e-5)


def test_the_fisher_is_the_divergence_that_a_gate_causes(randomised: Students) -> None:
    """Half of m²·F is KL(p ‖ p_m) to second order, F by labels drawn from p: no label of the data is needed."""
    folder = randomised("bert", "classification")
    model = loaded(folder, "classification")
    short = rows(folder, model)
    many = Batches(short.rows * 12, short.names, short.pad_token_id)
    blocks = sublayers(model)
    judged = importance_by("fisher", model, tasks.get("classification"), blocks, many, seed=0)[0]
    step, expected = 0.02, outputs(model, short, "classification").log_softmax(-1)
    for unit in range(4):
        gate = torch.ones(4)
        gate[unit] -= step
        with gated(blocks[:1], [gate]):
            found = outputs(model, short, "classification").log_softmax(-1)
        divergence = float((expected.exp() * (expected - found)).sum(-1).mean()) / step**2
        assert judged.each[unit] == pytest.approx(divergence, rel=0.35)


# --- cutting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["embedding", "classification"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_pruned_folder_keeps_the_budget_and_is_the_masked_model(
    architecture: str, task: str, randomised: Students, tmp_path: Path
) -> None:
    source = randomised(architecture, task)
    metrics = make(source, tmp_path / "out", task, compute=0.6, importance="fisher", reconstruct=False)
    assert 0.55 < metrics["compute"] <= 0.6
    full, less = loaded(source, task), loaded(tmp_path / "out", task)
    shape = encoder_shape(less)
    assert stored_shape(found(tmp_path / "out")) == shape
    assert stored_shape(found(source)) == encoder_shape(full)
    assert [sublayer.size for sublayer in shape.sublayers if sublayer.kind == "attention"] == metrics["attention_heads"]
    assert all(units % 8 == 0 for units in metrics["intermediate_size"])
    batches = rows(source, full)
    blocks = sublayers(full)
    masks = [mask(whole, left) for whole, left in zip(blocks, sublayers(less), strict=True)]
    assert any(float(one.min()) == 0 for one in masks)
    with gated(blocks, masks):
        expected = outputs(full, batches, task)
    torch.testing.assert_close(outputs(less, batches, task), expected, rtol=1e-4, atol=1e-5)


def mask(whole: Sublayer, left: Sublayer) -> torch.Tensor:
    """Find the structures that are left by their columns, which cutting does not change."""
    every = whole.output_linear.weight.T.reshape(whole.shape.size, -1)
    kept = left.output_linear.weight.T.reshape(left.shape.size, -1)
    return torch.tensor([float(any(torch.equal(one, other) for other in kept)) for one in every])


@pytest.mark.parametrize(("architecture", "kept"), [("bert", (1,)), ("distilbert", 1), ("albert", 1)])
def test_layers_are_left_out(
    architecture: str, kept: int | tuple[int, ...], randomised: Students, tmp_path: Path
) -> None:
    metrics = make(randomised(architecture), tmp_path / "out", layers=kept)
    assert metrics["compute"] == pytest.approx(0.5)
    assert len(metrics["layers"]) == 1
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())[
            "n_layers" if architecture == "distilbert" else "num_hidden_layers"
        ]
        == 1
    )
    less = loaded(tmp_path / "out")
    assert encoder_shape(less).layers == 1
    if kept == (1,):
        theirs = layers.layers(loaded(randomised(architecture)))[1].get("query").weight
        assert torch.equal(layers.layers(less)[0].get("query").weight, theirs)


def test_the_fractions_of_heads_and_neurons_are_kept(randomised: Students, tmp_path: Path) -> None:
    metrics = make(randomised(), tmp_path / "out", attention_heads=0.5, intermediate_size=0.25, reconstruct=False)
    full = encoder_shape(loaded(randomised()))
    sums = {kind: sum(sublayer.size for sublayer in full.sublayers if sublayer.kind == kind) for kind in KINDS}
    assert sum(metrics["attention_heads"]) == sums["attention"] // 2
    assert sum(metrics["intermediate_size"]) == sums["feed_forward"] // 4
    uniform = make(
        randomised(), tmp_path / "uniform", attention_heads=0.5, intermediate_size=0.25, uniform=True, reconstruct=False
    )
    assert len(set(uniform["attention_heads"])) == len(set(uniform["intermediate_size"])) == 1


@pytest.mark.parametrize("importance", ["magnitude", "taylor", "fisher"])
def test_the_hidden_columns_that_matter_stay_and_their_weights_with_them(
    importance: str, randomised: Students, tmp_path: Path
) -> None:
    """In every tensor with hidden columns, what is left is the whole one's at those that were chosen."""
    source = tmp_path / "source"
    shutil.copytree(randomised(), source)
    loud = [3, 8, 21, 22, 40, 47, 59, 63]
    model = loaded(source)
    with torch.no_grad():
        for layer in layers.layers(model):
            for name in ("query", "key", "value", "intermediate"):
                layer.get(name).weight[:, loud] *= 10
    model.save_pretrained(source)
    make(source, tmp_path / "out", hidden_size=24, importance=importance, reconstruct=False)
    full, less = loaded(source), loaded(tmp_path / "out")
    table, left = full.get_input_embeddings().weight, less.get_input_embeddings().weight
    kept = [next(at for at in range(64) if torch.equal(table[:, at], left[:, one])) for one in range(24)]
    assert set(loud) <= set(kept)
    assert kept == sorted(kept)
    whole = dict(full.named_parameters())
    for name, mine in less.named_parameters():
        theirs = whole[name]
        for axis in range(theirs.ndim):
            if theirs.shape[axis] != mine.shape[axis]:
                theirs = theirs.index_select(axis, torch.tensor(kept))
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("quiet", [0, 1])
def test_the_layer_that_changes_least_goes(quiet: int, randomised: Students, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(randomised(), source)
    model = loaded(source)
    layer = layers.layers(model)[quiet]
    with torch.no_grad():
        for name in ("attention_output", "output"):
            layer.get(name).weight.zero_()
            layer.get(name).bias.zero_()
    model.save_pretrained(source)
    metrics = make(source, tmp_path / "out", layers=1, reconstruct=False)
    assert metrics["layers"] == [1 - quiet]
    kept = layers.layers(loaded(tmp_path / "out"))[0].get("query").weight
    assert torch.equal(kept, layers.layers(model)[1 - quiet].get("query").weight)


@pytest.mark.parametrize("task", ["embedding", "classification"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_columns_are_removed_everywhere(
    architecture: str, task: str, randomised: Students, tmp_path: Path
) -> None:
    model = loaded(randomised(architecture, task), task)
    metrics = make(randomised(architecture, task), tmp_path / "out", task, hidden_size=40, compute=0.4)
    assert metrics["hidden_size"] == 40
    # The budget is of the whole: columns that leave lower it as heads do.
    assert metrics["compute"] <= 0.4
    less = loaded(tmp_path / "out", task)
    assert sum(one.numel() for one in less.parameters()) == metrics["parameters"] < metrics["parameters_before"]
    expected = outputs(model, rows(randomised(architecture, task), model), task)
    got = outputs(less, rows(randomised(architecture, task), less), task)
    assert got.shape == (len(expected), 40 if task == "embedding" else expected.shape[1])
    assert bool(torch.isfinite(got).all())


def test_columns_leave_an_albert_whose_tables_are_as_wide(randomised: Students, tmp_path: Path) -> None:
    source = tmp_path / "albert"
    source.mkdir()
    starts.make(randomised(), StartSection(kind="albert"), source)
    model = loaded(source)
    assert model.config.embedding_size == model.config.hidden_size
    make(source, tmp_path / "out", hidden_size=40)
    less = loaded(tmp_path / "out")
    assert tuple(less.base_model.encoder.embedding_hidden_mapping_in.weight.shape) == (40, 64)
    assert outputs(less, rows(source, less)).shape[1] == 40


def test_a_stored_tensor_without_a_place_is_refused(randomised: Students, tmp_path: Path) -> None:
    make(randomised("electra"), tmp_path / "out", hidden_size=40)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps(config | {"embedding_size": 40}))
    with pytest.raises(PipelineError, match=r"has no place for .*embeddings_project"):
        loaded(tmp_path / "out")


@pytest.mark.numeric
def test_a_layer_makes_up_for_those_left_out_behind_it(randomised: Students, tmp_path: Path) -> None:
    errors = [
        make(randomised(), tmp_path / name, layers=(0,), reconstruct=solve)["mean_layer_error"]
        for name, solve in (("cut", False), ("solved", True))
    ]
    assert errors[1] < 0.8 * errors[0]
    theirs, mine = (
        layers.layers(loaded(place))[-1].get("output_norm") for place in (randomised(), tmp_path / "solved")
    )
    assert torch.equal(mine.weight, theirs.weight)


def test_a_shared_sublayer_is_cut_once(randomised: Students, tmp_path: Path) -> None:
    source = tmp_path / "shared"
    source.mkdir()
    model = loaded(randomised())
    first, second = layers.layers(model)
    shapes.use(second, first, "feed_forward")
    shapes.save(model, source)
    (source / "tokenizer.json").write_bytes((randomised() / "tokenizer.json").read_bytes())
    assert stored_shape(found(source)) == encoder_shape(model)
    metrics = make(source, tmp_path / "out", compute=0.6)
    assert metrics["compute"] <= 0.6
    assert (len(metrics["attention_heads"]), len(metrics["intermediate_size"])) == (2, 1)
    again, last = layers.layers(loaded(tmp_path / "out"))
    assert again.get("output") is last.get("output")


# --- reconstruction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["bert", "albert"])
def test_nothing_cut_is_nothing_changed(architecture: str, randomised: Students) -> None:
    full = loaded(randomised(architecture))
    same = copy.deepcopy(full)
    errors = reconstruct(full, same, rows(randomised(architecture), full), numbers=[0, 1])
    assert max(errors) == 0
    assert all(torch.equal(one, other) for one, other in zip(full.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reconstruction_comes_nearer_than_cutting(architecture: str, randomised: Students, tmp_path: Path) -> None:
    source = randomised(architecture)
    plain = make(source, tmp_path / "cut", compute=0.7, reconstruct=False)
    solved = make(source, tmp_path / "solved", compute=0.7)
    assert solved["attention_heads"] == plain["attention_heads"]
    assert solved["mean_layer_error"] < 0.8 * plain["mean_layer_error"]
    # On texts that took no sublayer.
    full = loaded(source)
    inputs = architectures.get(architecture).inputs
    others = calibration.batches(
        source, inputs, everyday_sentences()[60:120], max_length=32, pad=int(full.config.pad_token_id or 0)
    )
    expected = outputs(full, others)
    distances = [float((outputs(loaded(tmp_path / name), others) - expected).norm()) for name in ("cut", "solved")]
    assert distances[1] < distances[0]


@pytest.mark.numeric
def test_neurons_that_compute_the_same_are_merged(randomised: Students) -> None:
    """Either of a pair can go for nothing, but not both, and the other takes over what it gave."""
    full = loaded(randomised())
    with torch.no_grad():
        for layer in layers.layers(full):
            layer.get("intermediate").weight[64:] = layer.get("intermediate").weight[:64]
            layer.get("intermediate").bias[64:] = layer.get("intermediate").bias[:64]
    batches = rows(randomised(), full)
    full.requires_grad_(False)
    blocks = sublayers(full)
    moments = output_moments(full, tasks.get("embedding"), blocks, batches, seed=0)
    kept = keep_all([block.shape for block in blocks])
    for number in (1, 3):
        inside, outside = (some[number] for some in moments)
        weight = blocks[number].output_linear.weight.detach()
        losses = removal_losses(inside.covariance, weight, outside.products, size=1, damping=1e-9)
        kept[number] = np.sort(np.argsort(-losses.numpy())[:64])
        assert sorted(int(row) % 64 for row in kept[number]) == list(range(64))
    less = copy.deepcopy(full)
    keep_structures(less, sublayers(less), kept)
    before = float((outputs(less, batches) - outputs(full, batches)).norm())
    errors = reconstruct(full, less, batches, numbers=[0, 1])
    assert max(errors) < 2e-3
    assert float((outputs(less, batches) - outputs(full, batches)).norm()) < 0.02 * before


def test_padding_takes_no_part(randomised: Students) -> None:
    full = loaded(randomised())
    batches = rows(randomised(), full)
    entering, gradients = output_moments(full, tasks.get("embedding"), sublayers(full), batches, seed=0)
    tokens = sum(len(row) for group in batches.rows for row in group)
    assert {one.tokens for one in (*entering, *gradients)} == {tokens}
    assert any(len({len(row) for row in group}) > 1 for group in batches.rows)
    less = copy.deepcopy(full)
    keep_structures(less, sublayers(less), [np.arange(2), np.arange(64)] * 2)
    singly = Batches(tuple((row,) for group in batches.rows for row in group), batches.names, batches.pad_token_id)
    errors = [reconstruct(full, copy.deepcopy(less), some, numbers=[0, 1], solve=False) for some in (batches, singly)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)


def test_the_same_order_gives_the_same_bytes(randomised: Students, tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        make(randomised(), tmp_path / name, compute=0.6, calibration_texts=20)
        digests.append(sha256_file(tmp_path / name / "model.safetensors"))
    assert digests[0] == digests[1]
    assert (tmp_path / "one" / "tokenizer.json").is_file()


def test_there_are_texts_for_whoever_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
    found = calibration.default_texts(100, seed=0)
    assert len(set(found)) == len(found) == 100
    assert found == calibration.default_texts(100, seed=0) != calibration.default_texts(100, seed=1)
    assert len(calibration.default_texts(10_000, seed=0)) > 300


def test_texts_for_quantising_are_of_many_kinds_and_unseen_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
    own = bundled.calibration_texts()
    found = calibration.texts_of_many_kinds(10_000, seed=0)
    assert found == own + calibration.default_texts(10_000, seed=0)
    assert calibration.texts_of_many_kinds(len(own) + 9, seed=0)[: len(own)] == own
    assert set(calibration.texts_of_many_kinds(20, seed=0)) < set(own)
    (tmp_path / "stsb").mkdir()
    (tmp_path / "stsb" / "train.csv").write_text("".join(f"One {number}.,Two.,3.0\n" for number in range(99)))
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    assert set(calibration.texts_of_many_kinds(10_000, seed=0)) == {*own, *(f"One {n}." for n in range(99)), "Two."}


def test_a_recipe_s_own_texts_are_taken_pairs_as_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.txt").write_text("\n".join(f"text {number}" for number in range(9)))
    (tmp_path / "stsb").mkdir()
    pairs = [(f"Pair {number}.", f"It is {number}.") for number in range(12)]
    (tmp_path / "stsb" / "train.csv").write_text("".join(f"{one},{other},3.0\n" for one, other in pairs))
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    names = ("own.txt", "stsb")
    taken = calibration.texts(names, tmp_path / "recipe.toml", 10_000, seed=0, key="prune.calibration")
    assert set(taken) == {*(f"text {number}" for number in range(9)), *pairs}
    assert len(calibration.texts(names, tmp_path / "recipe.toml", 20, seed=0, key="prune.calibration")) == 20
    (tmp_path / "own.txt").write_text("one\none\n")
    with pytest.raises(InputError, match=r"prune.calibration: own.txt hold 1 different texts; 8 or more are needed"):
        calibration.texts(("own.txt",), tmp_path / "recipe.toml", 20, seed=0, key="prune.calibration")
    with pytest.raises(
        InputError, match=r"prune.calibration: graded_pairs has no training texts; students are judged by"
    ):
        calibration.texts(("graded_pairs",), tmp_path / "recipe.toml", 20, seed=0, key="prune.calibration")


def test_texts_that_verification_scores_on_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stsb").mkdir()
    (tmp_path / "stsb" / "train.csv").write_text("One to learn on.,One of both.,3.0\n")
    (tmp_path / "stsb" / "dev.csv").write_text("One of both.,One to judge by.,1.0\n")
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    taken = set(calibration.default_texts(10_000, seed=0))
    assert "One to learn on." in taken
    sets = [data.DATASETS[name] for name in ("graded_pairs", "sentiment", "questions", "stsb")]
    scored = {text for one in sets for row in one.load() for text in (row.first, row.second)}
    assert not taken & scored
    # A dataset that is named gives its training texts, whatever it is named for.
    assert corpus.texts(["stsb"], tmp_path / "recipe.toml", "prune.calibration") == [
        ("One to learn on.", "One of both.")
    ]


# --- bad input ---------------------------------------------------------------------------------------------------

BAD = [
    pytest.param("bert", {}, r"asks for nothing; give compute, .* or sparse", id="nothing"),
    pytest.param(
        "bert", {"compute": 0.5, "attention_heads": 0.5}, r"compute, which decides on attention_heads", id="both"
    ),
    pytest.param("bert", {"compute": 0.05}, r"compute = 0.05 leaves no head .* come to 0\.1", id="no head left"),
    pytest.param(
        "bert",
        {"attention_heads": 0.2},
        r"attention_heads = 0.2 keeps 1 of 8; a head of each layer are 2",
        id="few heads",
    ),
    pytest.param(
        "bert",
        {"intermediate_size": 0.05},
        r"intermediate_size = 0.05 keeps 12 of 256; 8 intermediate",
        id="few neurons",
    ),
    pytest.param("bert", {"layers": 2}, r"layers = 2, and the checkpoint has 2; keep fewer", id="all layers"),
    pytest.param("bert", {"layers": [0, 2]}, r"names layer 2; the checkpoint has 0 to 1", id="no such layer"),
    pytest.param("bert", {"layers": [0, 1]}, r"leave a layer out", id="each layer"),
    pytest.param("bert", {"hidden_size": 64}, r"hidden_size = 64; the checkpoint has 64 columns", id="all columns"),
    pytest.param("bert", {"compute": 0.5, "max_length": 128}, r"max_length = 128 is beyond .* 64", id="too long"),
    pytest.param(
        "bert",
        {"compute": 0.5, "costs": "latency", "cost_length": 128},
        r"cost_length = 128 is beyond .* cannot be timed",
        id="too long to time",
    ),
    pytest.param(
        "bert",
        {"compute": 0.5, "hidden_size": 40, "costs": "latency"},
        r"times the layers as they are, before prune.hidden_size",
        id="columns and times",
    ),
    pytest.param(
        "electra", {"hidden_size": 32}, r"electra has no projection .* keep 24 or 40", id="as wide as its tables"
    ),
    pytest.param("mobilebert", {"compute": 0.5}, r"mobilebert cannot be compressed here", id="mobilebert"),
]


@pytest.mark.parametrize(("architecture", "values", "said"), BAD)
def test_what_cannot_be_pruned_is_refused_in_one_line(
    architecture: str, values: dict[str, Any], said: str, randomised: Students
) -> None:
    with pytest.raises(PipelineError, match=said) as error:
        tried(section(**values), found(randomised(architecture)))
    assert "\n" not in str(error.value)


def tried(section: PruneSection, source: student.Source) -> student.Source:
    prune.check_section(section)
    return prune.trial(section, source, tasks.get("embedding"))


# --- the space of an embedding ------------------------------------------------------------------------------------


def test_passages_are_joined_of_texts_in_a_row() -> None:
    texts = [f"number {one} is here" for one in range(53)]
    found = passages(texts, 26)
    assert found[0] == " ".join(texts[:5])
    assert " ".join(found) == " ".join(texts[:50])
    assert passages(texts[:3], 26) == []


@pytest.mark.numeric
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_updates_bring_embeddings_back_near_the_whole_student_s(
    precision: str, randomised: Students, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"compute": 0.4, "calibration_texts": 48, "reconstruct": False}
    make(randomised(), tmp_path / "solved", **asked)
    metrics = make(randomised(), tmp_path / "refined", refine=40, refine_precision=precision, **asked)["refined"]
    assert metrics["steps"] == 40
    assert metrics["passage_cosine"] > metrics["passage_cosine_before"]
    assert metrics["text_cosine"] > metrics["text_cosine_before"]
    whole = loaded(randomised())
    batches = rows(randomised(), whole)
    true = outputs(whole, batches)
    solved, refined = ((outputs(loaded(tmp_path / one), batches) * true).sum(-1) for one in ("solved", "refined"))
    assert refined.mean() > solved.mean()
    tables = [loaded(tmp_path / one).get_input_embeddings().weight for one in ("solved", "refined")]
    assert torch.equal(*tables)


REFINED: dict[str, tuple[dict[str, Any], int]] = {
    "an embedding with many texts": ({"prune": {"compute": 0.5, "calibration": ["many.txt"]}}, 1000),
    "with too few texts": ({"prune": {"compute": 0.5}}, 0),
    "as asked": ({"prune": {"compute": 0.5, "refine": 7}}, 7),
    "not asked": ({"prune": {"compute": 0.5, "refine": 0}}, 0),
    "as it is pruned": ({"prune": {"compute": 0.5, "reconstruct": False}}, 0),
    "narrower": ({"prune": {"hidden_size": 32}}, 0),
    "single weights": ({"prune": {"sparse": {"sparsity": 0.5}}}, 0),
    "before distillation": (
        {"prune": {"compute": 0.5}, "distil": {"losses": {"sentence_mse": 1.0}, "texts": ["wikitext2"]}},
        0,
    ),
}


@pytest.mark.parametrize("case", REFINED)
def test_an_embedding_is_refined_unless_something_else_follows(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
    sections, updates = REFINED[case]
    (tmp_path / "many.txt").write_text("\n".join(f"text number {number}" for number in range(1000)), encoding="utf-8")
    parsed, file = recipes.read_recipe(str(recipe_file(tmp_path, **sections)))
    unpruned = student.at("bundled:all-MiniLM-L6-v2", file)
    work = stage.PRUNE.work(Context(parsed, file, unpruned))
    assert work.arguments[2].refine == updates
    assert work.trains == (updates > 0)
    assert ("refine" in work.params) == (updates > 0)


def test_another_precision_of_the_updates_is_another_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
    keys = []
    for settings in ({}, {"refine_precision": "no"}, {"refine_precision": "bf16"}):
        given = {"prune": {"compute": 0.5, "refine": 7, **settings}}
        parsed, file = recipes.read_recipe(str(recipe_file(tmp_path, **given)))
        keys.append(stage.PRUNE.work(Context(parsed, file, student.at("bundled:all-MiniLM-L6-v2", file))).params)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"prune": {"compute": 0.5, "refine": 5}, "task": "classification"}, "prune.refine is for embeddings"),
        ({"prune": {"compute": 0.5, "refine": 0, "refine_precision": "bf16"}}, "prune.refine_precision is that of"),
        ({"prune": {"hidden_size": 32, "refine": 5}}, "prune.hidden_size makes embeddings narrower"),
        ({"prune": {"sparse": {"sparsity": 0.5}, "refine": 5}}, "none of .prune. makes one"),
    ],
)
def test_updates_that_bring_nothing_back_are_refused(sections: dict[str, Any], words: str, tmp_path: Path) -> None:
    parsed, file = recipes.read_recipe(str(recipe_file(tmp_path, **sections)))
    unpruned = student.at("bundled:all-MiniLM-L6-v2", file)
    with pytest.raises(RecipeError, match=words):
        stage.PRUNE.check(Context(parsed, file, unpruned), unpruned)


def test_too_few_texts_are_refused(randomised: Students, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 calibration texts are not empty; 8 or more are needed"):
        prune.make(randomised(), "embedding", section(compute=0.5), ["one", "two", " "], tmp_path)


def test_a_factorised_layer_is_refused(randomised: Students, tmp_path: Path) -> None:
    model = loaded(randomised())
    narrow = layers.layers(model)[0].get("output")
    pair = torch.nn.Sequential(torch.nn.Linear(128, 20, bias=False), torch.nn.Linear(20, 64))
    assert narrow.out_features == 64
    layers.layers(model)[0].put("output", pair)
    shapes.save(model, tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((randomised() / "tokenizer.json").read_bytes())
    with pytest.raises(PipelineError, match="is factorised already; prune first"):
        prune.trial(section(compute=0.5), found(tmp_path), tasks.get("embedding"))


def test_a_config_that_does_not_say_how_many_layers_there_are_is_refused(tmp_path, tiny_student):
    shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "source")
    source = student.inspect_folder(tmp_path / "source", origin="source", licence=None)
    config = {key: value for key, value in source.config.items() if key != "num_hidden_layers"}
    source = replace(source, config=config)
    # Its class takes twelve where a config says nothing.
    with pytest.raises(
        PipelineError, match=r"source lacks 160 tensors that task embedding needs, encoder\.layer\.10\."
    ):
        prune.trial(PruneSection(attention_heads=0.5), source, tasks.get("embedding"))
