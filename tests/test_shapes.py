"""Compressed checkpoints: other shapes in each layer, factors, shared parts; saved, restored, converted and judged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Outcome, recipe_file
from faults import students
from faults.students import few
from torch import nn

from pipeline import tasks
from pipeline.architectures import ARCHITECTURES, COMPRESSIBLE, layers
from pipeline.checkpoint import shapes
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.errors import StudentError


def randomised(architecture: str, task: str, place: Path) -> Any:
    place.mkdir(parents=True, exist_ok=True)
    students.source(few(architecture, task), place)
    return load_checkpoint(place, tasks.get(task))


def cut_rows(linear: nn.Linear, rows: slice) -> None:
    linear.weight = nn.Parameter(linear.weight[rows].detach().clone())
    linear.bias = nn.Parameter(linear.bias[rows].detach().clone())
    linear.out_features = linear.weight.shape[0]


def cut_columns(linear: nn.Linear, columns: slice) -> None:
    linear.weight = nn.Parameter(linear.weight[:, columns].detach().clone())
    linear.in_features = linear.weight.shape[1]


def compress(model: Any) -> None:
    """Take neurons and, where they can go, heads away, other numbers in each layer; split the table and a linear."""
    for number, layer in enumerate(layers.layers(model)):
        if not layer.layout.fixed_heads:
            kept = slice(0, layer.head_size * (1 + number))
            for part in ("query", "key", "value"):
                cut_rows(layer.get(part), kept)
            cut_columns(layer.get("attention_output"), kept)
        rows = slice(0, 48 + 16 * number)
        cut_rows(layer.get("intermediate"), rows)
        cut_columns(layer.get("output"), rows)
    table = model.get_input_embeddings()
    columns = table.embedding_dim
    factor = nn.Embedding(table.num_embeddings, columns // 2, padding_idx=table.padding_idx)
    projection = nn.Linear(columns // 2, columns, bias=False)
    factors = nn.Sequential(factor, projection)
    torch.manual_seed(0)
    nn.init.normal_(factor.weight)
    nn.init.normal_(projection.weight, std=0.2)
    path = next(path for path, module in model.named_modules() if module is table)
    layers.put(model, path, factors)
    last = layers.layers(model)[-1]
    widen = last.get("intermediate")
    narrow = nn.Linear(widen.in_features, 20, bias=False)
    last.put("intermediate", nn.Sequential(narrow, nn.Linear(20, widen.out_features)))


def outputs(model: Any, names: tuple[str, ...]) -> torch.Tensor:
    ids = torch.arange(5, 17)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    with torch.no_grad():
        found = model(**{name: inputs[name] for name in names})
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


def assert_same(found: Any, expected: Any, architecture: str) -> None:
    """Compare every parameter to the bit, and what is computed with them to rounding: memory is aligned as it comes."""
    mine, theirs = dict(found.named_parameters()), dict(expected.named_parameters())
    assert {name: tuple(tensor.shape) for name, tensor in mine.items()} == {
        name: tuple(tensor.shape) for name, tensor in theirs.items()
    }
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    names = ARCHITECTURES[architecture].inputs
    torch.testing.assert_close(outputs(found, names), outputs(expected, names), rtol=1e-5, atol=1e-5)


def folder_of(model: Any, source: Path, out: Path) -> Path:
    out.mkdir()
    shapes.save(model.eval(), out)
    (out / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return out


@pytest.mark.parametrize("task", ["embedding", "classification"])
@pytest.mark.parametrize("architecture", COMPRESSIBLE)
def test_a_compressed_checkpoint_is_restored_to_the_bit(architecture: str, task: str, tmp_path: Path) -> None:
    model = randomised(architecture, task, tmp_path / "source")
    compress(model)
    folder = folder_of(model, tmp_path / "source", tmp_path / "out")
    restored = load_checkpoint(folder, tasks.get(task))
    assert_same(restored, model, architecture)
    assert [layer.heads for layer in layers.layers(restored)] == [layer.heads for layer in layers.layers(model)]


def test_a_head_s_checkpoint_gives_its_bare_encoder(tmp_path: Path) -> None:
    model = randomised("bert", "classification", tmp_path / "source")
    compress(model)
    folder = folder_of(model, tmp_path / "source", tmp_path / "out")
    bare = load_checkpoint(folder, tasks.get("embedding"))
    names = ARCHITECTURES["bert"].inputs
    torch.testing.assert_close(outputs(bare, names), outputs(model.bert, names), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta"])
def test_a_shared_part_is_stored_once(architecture: str, part: str, tmp_path: Path) -> None:
    model = randomised(architecture, "embedding", tmp_path / "source")
    first, second = layers.layers(model)
    before = sum(parameter.numel() for parameter in model.parameters())
    shapes.use(second, first, part)
    folder = folder_of(model, tmp_path / "source", tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())[shapes.KEY][part] == [0, 0]
    restored = load_checkpoint(folder, tasks.get("embedding"))
    own = sum(module.weight.numel() for module in map(first.get, ("intermediate", "output")))
    after = sum(parameter.numel() for parameter in restored.parameters())
    assert after < before - own / 2
    assert_same(restored, model, architecture)
    again, last = layers.layers(restored)
    path = "query" if part == "attention" else "intermediate"
    assert again.get(path) is last.get(path)


def test_a_config_of_another_version_is_refused(tmp_path: Path) -> None:
    model = randomised("bert", "embedding", tmp_path / "source")
    compress(model)
    folder = folder_of(model, tmp_path / "source", tmp_path / "out")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {shapes.KEY: {"version": 2, "head_size": 16}}))
    with pytest.raises(StudentError, match="of a version that is not supported here"):
        load_checkpoint(folder, tasks.get("embedding"))


def test_mobilebert_is_refused_with_its_reason(tmp_path: Path) -> None:
    model = randomised("mobilebert", "embedding", tmp_path / "source")
    with pytest.raises(StudentError, match="mobilebert cannot be compressed here: its layers have bottlenecks"):
        layers.layers(model)


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("architecture", "targets", "lengths"),
    [
        pytest.param(
            "bert",
            {"litert": ["int8_dynamic"], "coreml": ["fp16"], "executorch": ["fp32", "int8_dynamic"]},
            [16, 32],
            id="bert",
            marks=pytest.mark.full,
        ),
        pytest.param("albert", {"litert": ["fp32"], "coreml": ["fp16"]}, [32], id="albert"),
    ],
)
def test_a_compressed_folder_goes_through_the_command(
    architecture: str,
    targets: dict[str, list[str]],
    lengths: list[int],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    model = randomised(architecture, "classification", tmp_path / "plain")
    compress(model)
    if architecture == "bert":
        first, second = layers.layers(model)
        shapes.use(second, first, "attention")
    folder_of(model, tmp_path / "plain", tmp_path / "source")
    recipe = recipe_file(
        tmp_path,
        task="classification",
        student={"source": "source", "random_weights": True},
        convert={"sequence_lengths": lengths},
        targets={name: {"schemes": schemes} for name, schemes in targets.items()},
    )
    outcome = command_here("verify", recipe, "--json")
    expected = {f"{name}-{scheme}": "passed" for name, schemes in targets.items() for scheme in schemes}
    assert outcome.document["verdicts"] == expected, outcome.stdout
