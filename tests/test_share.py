"""Ties between layers: units are matched before anything is averaged, and what is shared is stored once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Outcome, check_trial, recipe_file
from faults import students
from faults.students import few
from torch import nn

from pipeline import tasks
from pipeline.architectures import ARCHITECTURES, COMPRESSIBLE, layers
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.source import Source
from pipeline.compress import factorise, share
from pipeline.compress.prune.structure import SublayerKind
from pipeline.compress.share.stage import SHARED, layer_groups
from pipeline.compress.share.tying import align, sublayer_tensors
from pipeline.errors import PipelineError
from pipeline.recipe.compression import FactoriseSection, ShareSection
from pipeline.text import tokenizers
from pipeline.text.bundled import everyday_sentences

UNTIED = sorted(name for name in COMPRESSIBLE if not ARCHITECTURES[name].shares_layers)
EMBEDDING = tasks.get("embedding")


def folder_of(architecture: str, place: Path) -> Path:
    place.mkdir(parents=True)
    students.source(few(architecture, "embedding"), place)
    return place


def deeper(place: Path, count: int) -> Path:
    """Write a randomised BERT with so many layers, each with parameters of its own."""
    import transformers

    folder_of("bert", place)
    config = transformers.AutoConfig.from_pretrained(place, num_hidden_layers=count)
    torch.manual_seed(count)
    model = transformers.AutoModel.from_config(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5))
    model.save_pretrained(place)
    return place


def source_of(folder: Path) -> Source:
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def make(source: Path, out: Path, **values: Any) -> tuple[Any, dict[str, Any]]:
    out.mkdir()
    section = ShareSection.model_validate(values)
    metrics = share.make(source, "embedding", section, out)
    check_trial(share.trial(section, source_of(source), EMBEDDING), out)
    return load_checkpoint(out, EMBEDDING), metrics


def hidden_of(model: Any) -> torch.Tensor:
    ids = torch.arange(500, 516)[None]
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


def shuffle(layer: layers.Layer, *, seed: int) -> None:
    """Put a layer's heads and feed-forward rows into another order, which changes nothing that it computes."""
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randperm(layer.heads, generator=generator)
    of_heads = (heads[:, None] * layer.head_size + torch.arange(layer.head_size)).flatten()
    of_rows = torch.randperm(layer.intermediate_size, generator=generator)
    orders: list[tuple[tuple[str, ...], str, torch.Tensor]] = [(("intermediate",), "output", of_rows)]
    if not layer.layout.fixed_heads:
        orders.append((("query", "key", "value"), "attention_output", of_heads))
    for inner, outer, order in orders:
        for role in inner:
            linear = layer.get(role)
            linear.weight, linear.bias = nn.Parameter(linear.weight[order]), nn.Parameter(linear.bias[order])
        layer.get(outer).weight = nn.Parameter(layer.get(outer).weight[:, order])


def copy_part(source: layers.Layer, target: layers.Layer) -> None:
    target.module.load_state_dict(source.module.state_dict())


@pytest.mark.parametrize("architecture", UNTIED)
def test_a_shuffled_copy_of_a_layer_is_aligned_back_exactly(architecture: str, tmp_path: Path) -> None:
    source = folder_of(architecture, tmp_path / "source")
    model = load_checkpoint(source, EMBEDDING)
    first, second = layers.layers(model)
    copy_part(first, second)
    before = hidden_of(model)
    shuffle(second, seed=7)
    assert not torch.equal(first.get("intermediate").weight, second.get("intermediate").weight)
    sizes: dict[SublayerKind, int] = {"attention": first.head_size, "feed_forward": 1}
    for part, size in sizes.items():
        expected = sublayer_tensors(first, part)
        found = align(sublayer_tensors(second, part), expected, part, size)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    model.save_pretrained(source)
    tied, metrics = make(source, tmp_path / "out")
    torch.testing.assert_close(hidden_of(tied), before, rtol=1e-4, atol=1e-4)
    assert metrics["relative_distance"] == 0


@pytest.mark.numeric
def test_matching_units_brings_other_layers_nearer(tmp_path: Path) -> None:
    """The mean of layers with some resemblance, against the mean without matching."""
    source = folder_of("bert", tmp_path / "source")
    model = load_checkpoint(source, EMBEDDING)
    first, second = layers.layers(model)
    copy_part(first, second)
    with torch.no_grad():
        for parameter in second.module.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std() * 0.2)
    reference = hidden_of(model)
    shuffle(second, seed=3)
    model.save_pretrained(source)
    tied, _ = make(source, tmp_path / "out")
    with torch.no_grad():
        for mine, other in zip(first.module.parameters(), second.module.parameters(), strict=True):
            mine.copy_((mine + other) / 2)
    copy_part(first, second)
    errors = [float((hidden_of(one) - reference).square().mean()) for one in (tied, model)]
    assert errors[0] < 0.2 * errors[1]


@pytest.mark.numeric
@pytest.mark.parametrize("what", ["all", "attention", "feed_forward"])
@pytest.mark.parametrize("architecture", UNTIED)
def test_what_is_shared_is_stored_once(architecture: str, what: str, tmp_path: Path) -> None:
    source = folder_of(architecture, tmp_path / "source")
    model, metrics = make(source, tmp_path / "out", what=what)
    first, second = layers.layers(model)
    tied = {
        part: first.get(role) is second.get(role)
        for part, role in (("attention", "key"), ("feed_forward", "output_norm"))
    }
    assert tied == {part: part in SHARED[what] for part in tied}
    owned = [tensor.numel() for part in SHARED[what] for tensor in sublayer_tensors(first, part).values()]
    assert metrics["parameters_before"] - metrics["parameters"] == sum(owned)
    assert metrics["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert 0 < metrics["relative_distance"] < 1


@pytest.mark.parametrize(("start", "expected"), [("first", [0, 0, 0, 3, 3]), ("middle", [1, 1, 1, 4, 4])])
def test_a_group_can_begin_with_one_of_its_layers(start: str, expected: list[int], tmp_path: Path) -> None:
    source = deeper(tmp_path / "source", 5)
    before = [layer.get("query").weight for layer in layers.layers(load_checkpoint(source, EMBEDDING))]
    model, metrics = make(source, tmp_path / "out", groups=2, start=start)
    found = [layer.get("query").weight for layer in layers.layers(model)]
    assert all(torch.equal(one, before[number]) for one, number in zip(found, expected, strict=True))
    assert metrics["groups"] == [[0, 1, 2], [3, 4]]
    stored = json.loads((tmp_path / "out" / "config.json").read_text())["pocketbert"]
    assert stored["attention"] == stored["feed_forward"] == [0, 0, 0, 3, 3]


def test_groups_are_albert_s(tmp_path: Path) -> None:
    """Source: transformers, `int(i / (num_hidden_layers / num_hidden_groups))`."""
    for count, groups in ((12, 1), (12, 3), (12, 4), (6, 2), (5, 2), (7, 3)):
        of_albert = [int(number / (count / groups)) for number in range(count)]
        found = layer_groups(count, groups)
        assert [next(at for at, group in enumerate(found) if number in group) for number in range(count)] == of_albert


def test_factors_of_shared_feed_forwards_are_those_of_their_mean(tmp_path: Path) -> None:
    """The order of a recipe: factorise, then share. Factors themselves have no mean."""
    source = folder_of("bert", tmp_path / "source")
    model = load_checkpoint(source, EMBEDDING)
    first, second = layers.layers(model)
    copy_part(first, second)
    shuffle(second, seed=5)
    model.save_pretrained(source)
    thin = tmp_path / "thin"
    thin.mkdir()
    asked = FactoriseSection.model_validate({"feed_forward": 40, "weighted": False})
    factorise.make(source, "embedding", asked, everyday_sentences(), thin)
    before = hidden_of(load_checkpoint(thin, EMBEDDING))
    tied, metrics = make(thin, tmp_path / "out")
    assert [linear.out_features for linear in layers.layers(tied)[1].get("intermediate")] == [40, 128]
    torch.testing.assert_close(hidden_of(tied), before, rtol=1e-3, atol=1e-3)
    assert metrics["relative_distance"] < 1e-9


def test_layers_of_different_shapes_cannot_share(tmp_path: Path) -> None:
    from pipeline.checkpoint import shapes

    source = folder_of("bert", tmp_path / "source")
    model = load_checkpoint(source, EMBEDDING)
    widen, narrow = (layers.layers(model)[1].get(role) for role in ("intermediate", "output"))
    widen.weight, widen.bias = nn.Parameter(widen.weight[:96]), nn.Parameter(widen.bias[:96])
    narrow.weight = nn.Parameter(narrow.weight[:, :96])
    thinner = tmp_path / "thinner"
    thinner.mkdir()
    widen.out_features = 96
    shapes.save(model, thinner)
    tokenizers.copy(source, thinner)
    with pytest.raises(PipelineError, match=r"layers 0 and 1 cannot share their feed_forward: .*\(128,\) and \(96,\)"):
        make(thinner, tmp_path / "out")
    make(thinner, tmp_path / "attention", what="attention")


@pytest.mark.parametrize(
    ("architecture", "asked", "message"),
    [
        ("bert", {"groups": 2}, "groups = 2 ties nothing in 2 layers"),
        ("distilbert", {"groups": 3}, "groups = 3 ties nothing in 2 layers"),
        ("albert", {}, "shares parameters between its layers already"),
        ("mobilebert", {}, "mobilebert cannot be compressed here"),
    ],
)
def test_what_cannot_be_tied_is_refused(architecture: str, asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = source_of(folder_of(architecture, tmp_path / "source"))
    with pytest.raises(PipelineError, match=message):
        share.trial(ShareSection.model_validate(asked), source, EMBEDDING)


def test_ties_are_not_tied_again(tmp_path: Path) -> None:
    make(folder_of("bert", tmp_path / "source"), tmp_path / "out", what="attention")
    with pytest.raises(PipelineError, match="shares parameters between its layers already"):
        share.trial(ShareSection(), source_of(tmp_path / "out"), EMBEDDING)
    with pytest.raises(PipelineError, match="shares parameters between its layers already"):
        share.make(tmp_path / "out", "embedding", ShareSection(), tmp_path)


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param({"executorch": ["int8_dynamic"]}, marks=pytest.mark.full),
        pytest.param({"executorch": ["fp32", "int8_weight_only"], "litert": ["int8_dynamic"]}, marks=pytest.mark.full),
        pytest.param({"coreml": ["fp16", "int8_weight_only"]}, marks=pytest.mark.full),
    ],
    ids=lambda targets: "-".join(targets),
)
@pytest.mark.parametrize("what", ["all", pytest.param("feed_forward", marks=pytest.mark.full)])
def test_a_factorised_and_tied_student_goes_through_the_command(
    what: str, targets: dict[str, list[str]], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    thin = tmp_path / "thin"
    thin.mkdir()
    asked = FactoriseSection.model_validate({"embedding": 32, "feed_forward": 32})
    factorise.make(folder_of("bert", tmp_path / "plain"), "embedding", asked, everyday_sentences()[:16], thin)
    make(thin, tmp_path / "source", what=what)
    recipe = recipe_file(
        tmp_path,
        student={"source": "source", "random_weights": True},
        verify={"datasets": ["none"]},
        convert={"sequence_lengths": [16]},
        targets={name: {"schemes": schemes} for name, schemes in targets.items()},
    )
    outcome = command_here("verify", recipe, "--json")
    expected = {f"{name}-{scheme}": "passed" for name, schemes in targets.items() for scheme in schemes}
    assert outcome.document["verdicts"] == expected, outcome.stdout
