"""Low-rank factors: exact where they can be, best for the calibration text where they cannot, in every layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome, check_trial, recipe_file
from faults import students
from faults.students import few
from pydantic import ValidationError
from torch import nn

from pipeline import tasks
from pipeline.architectures import COMPRESSIBLE, layers
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.source import Source
from pipeline.compress import factorise
from pipeline.compress.factorise import lowrank, ranks
from pipeline.errors import PipelineError
from pipeline.recipe.compression import FactoriseSection
from pipeline.text.bundled import everyday_sentences

TEXTS = everyday_sentences()[:40]


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread(columns: int, *, seed: int) -> torch.Tensor:
    """A covariance whose directions differ a thousandfold."""
    directions, _ = torch.linalg.qr(random(columns, columns, seed=seed))
    return directions @ torch.diag(torch.logspace(0, -3, columns).double()) @ directions.T


def product(spectrum: lowrank.Spectrum, rank: int) -> torch.Tensor:
    first, second = spectrum.factors(rank)
    return second @ first


def error(weight: torch.Tensor, approximation: torch.Tensor, covariance: torch.Tensor) -> float:
    """E||(W - V)x||² for centred x."""
    lost = weight - approximation
    return float(torch.trace(lost @ covariance @ lost.T))


@pytest.mark.numeric
def test_the_error_of_a_linear_is_the_tail_of_its_singular_values(seed: int) -> None:
    weight, covariance = random(24, 16, seed=seed), spread(16, seed=seed + 1)
    for used in (None, covariance):
        spectrum = lowrank.decompose_linear(weight, used)
        measured = torch.eye(16).double() if used is None else used
        for rank in (1, 5, 15):
            tail = float(spectrum.values[rank:].square().sum())
            assert error(weight, product(spectrum, rank), measured) == pytest.approx(tail, rel=1e-8)


@pytest.mark.numeric
def test_the_error_of_a_table_is_the_tail_of_its_singular_values(seed: int) -> None:
    table, weights = random(60, 16, seed=seed), random(60, seed=seed + 1).square() + 1e-3
    for used in (None, weights):
        spectrum = lowrank.decompose_table(table, used)
        measured = torch.ones(60).double() if used is None else used
        for rank in (1, 5, 15):
            found = float((measured[:, None] * (table - product(spectrum, rank)).square()).sum())
            assert found == pytest.approx(float(spectrum.values[rank:].square().sum()), rel=1e-8)


@pytest.mark.numeric
def test_weights_make_the_error_less_on_what_they_weigh(seed: int) -> None:
    weight, covariance = random(24, 16, seed=seed), spread(16, seed=seed + 1)
    plain, weighted = (product(lowrank.decompose_linear(weight, one), 6) for one in (None, covariance))
    assert error(weight, weighted, covariance) < 0.5 * error(weight, plain, covariance)


def test_a_matrix_of_low_rank_is_kept_exactly(seed: int) -> None:
    weight = random(24, 4, seed=seed) @ random(4, 16, seed=seed + 1)
    spectra = (
        lowrank.decompose_linear(weight, None),
        lowrank.decompose_linear(weight, spread(16, seed=seed + 2)),
        lowrank.decompose_table(weight, None),
        lowrank.decompose_table(weight, torch.arange(1.0, 25.0)),
    )
    for spectrum in spectra:
        torch.testing.assert_close(product(spectrum, 4), weight, rtol=1e-6, atol=1e-7)


def test_a_budget_is_kept_and_no_other_shares_keep_more() -> None:
    """Against every pair of ranks."""
    shapes = [(64, 48), (48, 64)]
    spectra = [np.linspace(1, 0.1, 48) ** 3, np.linspace(1, 0.5, 48)]
    budget = int(0.6 * 2 * 64 * 48)
    chosen = ranks.ranks_by_budget(spectra, shapes, 0.6)
    steps = range(8, 49, 8)
    usable = [(a, b) for a in steps for b in steps if (a + b) * 112 <= budget and max(a, b) * 112 < 64 * 48]

    def kept(pair: tuple[int, ...]) -> float:
        return sum(ranks.kept_energy(values, rank) for values, rank in zip(spectra, pair, strict=True))

    assert tuple(chosen) in usable
    assert kept(tuple(chosen)) == pytest.approx(max(map(kept, usable)))


def test_energy_takes_the_smallest_rank_of_eights_that_keeps_it() -> None:
    values = np.ones(40)
    assert ranks.rank_by_energy(values, 0.5) == 24  # 20 values, in eights
    assert ranks.kept_energy(values, 24) >= 0.5 > ranks.kept_energy(values, 16)


def folder_of(architecture: str, place: Path, task: str = "embedding") -> Path:
    place.mkdir(parents=True)
    students.source(few(architecture, task), place)
    return place


def source_of(folder: Path) -> Source:
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def hidden_of(model: Any, architecture: str) -> torch.Tensor:
    ids = torch.arange(500, 524)[None]
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


def make(source: Path, out: Path, **values: Any) -> tuple[Any, dict[str, Any]]:
    out.mkdir()
    section = FactoriseSection.model_validate(values)
    metrics = factorise.make(source, "embedding", section, TEXTS, out)
    if all(one is None or one.rank is not None for one in (section.embedding, section.feed_forward)):
        check_trial(factorise.trial(section, source_of(source), tasks.get("embedding")), out)
    return load_checkpoint(out, tasks.get("embedding")), metrics


@pytest.mark.parametrize("architecture", COMPRESSIBLE)
def test_every_layout_is_factorised_and_restored(architecture: str, tmp_path: Path) -> None:
    source = folder_of(architecture, tmp_path / "source")
    has_table = architecture not in ("albert", "electra")
    asked = {"feed_forward": 40} | ({"embedding": 24} if has_table else {})
    model, metrics = make(source, tmp_path / "out", **asked)
    (layer, *_) = layers.layers(model)
    for part, shape in {"intermediate": (128, 64), "output": (64, 128)}.items():
        first, second = layer.get(part)
        assert (second.out_features, first.in_features) == shape
        assert first.out_features == 40
    if has_table:
        assert tuple(model.get_input_embeddings()[0].weight.shape) == (1000, 24)
    assert metrics["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert metrics["parameters"] < metrics["parameters_before"]
    assert all(0 < row["energy"] < 1 for row in metrics["feed_forward"])
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def low_rank(folder: Path) -> None:
    """Give a student's table and feed-forwards rank 8."""
    model = load_checkpoint(folder, tasks.get("embedding"))
    linears = [layer.get(part) for layer in layers.layers(model) for part in ("intermediate", "output")]
    for module in (*linears, model.get_input_embeddings()):
        left, values, right = torch.linalg.svd(module.weight.detach(), full_matrices=False)
        module.weight = nn.Parameter((left[:, :8] * values[:8]) @ right[:8])
    model.save_pretrained(folder)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_student_of_low_rank_stays_what_it_is(weighted: bool, tmp_path: Path) -> None:
    source = folder_of("bert", tmp_path / "source")
    low_rank(source)
    before = hidden_of(load_checkpoint(source, tasks.get("embedding")), "bert")
    model, metrics = make(source, tmp_path / "out", embedding=8, feed_forward={"energy": 0.999999}, weighted=weighted)
    assert {row["rank"] for row in metrics["feed_forward"] + metrics["embedding"]} == {8}
    torch.testing.assert_close(hidden_of(model, "bert"), before, rtol=1e-3, atol=1e-3)


@pytest.mark.numeric
def test_calibration_text_makes_the_student_better_on_such_text(tmp_path: Path) -> None:
    """On other sentences of the kind, mean squared error of the hidden states."""
    source = folder_of("bert", tmp_path / "source")
    reference = load_checkpoint(source, tasks.get("embedding"))
    sharpen(reference)
    reference.save_pretrained(source)
    unseen = everyday_sentences()[40:60]
    errors = {}
    for weighted in (True, False):
        model, _ = make(source, tmp_path / str(weighted), feed_forward=16, weighted=weighted)
        errors[weighted] = sum(
            float((one - other).square().mean()) for one, other in hidden_pairs(model, reference, source, unseen)
        )
    assert errors[True] < 0.8 * errors[False]


def sharpen(model: Any) -> None:
    """Let LayerNorm's gains differ, as trained ones do: some columns carry most of what there is."""
    for layer in layers.layers(model):
        gain = layer.get("attention_norm").weight
        layer.get("attention_norm").weight = nn.Parameter(gain.detach() * torch.logspace(0, -1.5, len(gain)))


def hidden_pairs(model: Any, reference: Any, source: Path, texts: list[str]) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(64)
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            yield tuple(
                one(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state for one in (model, reference)
            )


def test_a_shared_feed_forward_is_factorised_once(tmp_path: Path) -> None:
    model, metrics = make(folder_of("albert", tmp_path / "source"), tmp_path / "out", feed_forward={"parameters": 0.5})
    assert len(metrics["feed_forward"]) == 2
    kept = sum(
        parameter.numel()
        for name in ("intermediate", "output")
        for parameter in layers.layers(model)[0].get(name).parameters()
    )
    assert kept <= 0.5 * 2 * 64 * 128 + 64 + 128


def test_a_matrix_that_would_grow_is_left_whole(tmp_path: Path) -> None:
    """All but nothing of a flat spectrum's energy needs all ranks; the other matrix has a steep one."""
    source = folder_of("bert", tmp_path / "source")
    model = load_checkpoint(source, tasks.get("embedding"))
    layers.layers(model)[1].get("output").weight = nn.Parameter(torch.eye(64, 128) * 0.1)
    widen = layers.layers(model)[0].get("intermediate")
    widen.weight = nn.Parameter(torch.outer(torch.ones(128), torch.linspace(-1, 1, 64)) / 8)
    model.save_pretrained(source)
    found, metrics = make(source, tmp_path / "out", feed_forward={"energy": 0.99}, weighted=False)
    rows = {row["matrix"]: row for row in metrics["feed_forward"]}
    assert rows["layer 0 intermediate"]["rank"] == 8
    assert rows["layer 1 output"] == {"matrix": "layer 1 output", "left_whole": "rank 64 saves nothing"}
    assert isinstance(layers.layers(found)[1].get("output"), nn.Linear)


@pytest.mark.parametrize(
    ("architecture", "asked", "message"),
    [
        ("bert", {}, "asks for nothing"),
        ("bert", {"embedding": 64}, "rank 64 saves nothing in 1000 × 64; it has to be below 61"),
        ("bert", {"feed_forward": 43}, "rank 43 saves nothing in 128 × 64; it has to be below 43"),
        ("bert", {"feed_forward": {"parameters": 0.1}}, "less than rank 8 everywhere takes, 0.188"),
        ("albert", {"embedding": 16}, "embedding table in two factors already"),
        ("electra", {"embedding": 16}, "embedding table in two factors already"),
        ("mobilebert", {"feed_forward": 16}, "mobilebert cannot be compressed here"),
    ],
)
def test_what_cannot_be_factorised_is_refused(
    architecture: str, asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = source_of(folder_of(architecture, tmp_path / "source"))
    with pytest.raises(PipelineError, match=message):
        tried(FactoriseSection.model_validate(asked), source)


def tried(section: FactoriseSection, source: Source) -> Source:
    factorise.check_section(section)
    return factorise.trial(section, source, tasks.get("embedding"))


@pytest.mark.parametrize("asked", [{}, {"rank": 8, "energy": 0.9}, {"energy": 1.0}, {"rank": 0}, {"parameters": 0.0}])
def test_a_rank_is_said_in_one_way(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FactoriseSection.model_validate({"feed_forward": asked})


def test_factors_are_not_factorised_again(tmp_path: Path) -> None:
    _, _ = make(folder_of("bert", tmp_path / "source"), tmp_path / "out", embedding=16, feed_forward=16)
    for asked in ({"embedding": 8}, {"feed_forward": 8}):
        section = FactoriseSection.model_validate(asked)
        with pytest.raises(PipelineError, match=r"in two factors already|is factorised already"):
            factorise.trial(section, source_of(tmp_path / "out"), tasks.get("embedding"))
        with pytest.raises(PipelineError, match="two factors already"):
            factorise.make(tmp_path / "out", "embedding", section, TEXTS, tmp_path)


@pytest.mark.full
def test_a_factorised_student_goes_through_the_command(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    make(folder_of("bert", tmp_path / "plain"), tmp_path / "source", embedding=32, feed_forward=32)
    recipe = recipe_file(
        tmp_path,
        student={"source": "source", "random_weights": True},
        verify={"datasets": ["none"]},
        convert={"sequence_lengths": [16]},
        targets={"litert": {"schemes": ["fp32"]}},
    )
    outcome = command_here("verify", recipe, "--json")
    assert outcome.document["verdicts"] == {"litert-fp32": "passed"}, outcome.stdout
    stored = json.loads((tmp_path / "source" / "config.json").read_text())
    assert stored["pocketbert"]["head_size"] == 16
