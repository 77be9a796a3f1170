"""Single weights that become zero: which ones, on a schedule, held to the end and through a kill, in Core ML."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome, recipe_file
from test_backends import convert, converting, student_artifact
from test_training import Stop, job_of, recipe_of, silent, stop_after, write_toy

from pipeline import formats, tasks
from pipeline.architectures import layers
from pipeline.artifact import sha256_file
from pipeline.checkpoint import shapes
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.compress import prune
from pipeline.compress.distil import stage as distil
from pipeline.compress.distil.dataset import DistilData
from pipeline.convert.stage import Target
from pipeline.errors import PipelineError
from pipeline.formats.structure import Structure
from pipeline.recipe.compression import PruneSection
from pipeline.recipe.distillation import DistilSection
from pipeline.recipe.fields import GradualSparse, Sparse
from pipeline.recipe.schema import TrainSection
from pipeline.train import loop
from pipeline.train.job import TrainingJob
from pipeline.train.sparsity import (
    GradualPruning,
    cubic_sparsity,
    keep_highest,
    layer_matrices,
    matrices_by_kind,
    prune_by_magnitude,
    sparsity_metrics,
)
from pipeline.train.stage import fine_tune, write
from pipeline.verify import structure as judging
from pipeline.verify.weights import Expected

pytestmark = pytest.mark.usefixtures("one_thread")

ARCHITECTURES = ["albert", "bert", "distilbert"]
MOVEMENT = {"sparsity": 0.7, "by": "movement"}


@pytest.fixture(scope="session")
def sparse(randomised: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tiny student with four of five weights zero."""
    place = tmp_path_factory.mktemp("zeros") / "student"
    place.mkdir()
    prune.make(randomised(), "embedding", PruneSection.model_validate({"sparse": {"sparsity": 0.8}}), (), place)
    return place


def loaded(folder: Path, task: str = "embedding") -> Any:
    return load_checkpoint(folder, tasks.get(task))


def zeros_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: one == 0 for name, one in layer_matrices(model).items()}


# --- which ones --------------------------------------------------------------------------------------------------


def test_the_schedule_is_cubic_between_its_ends() -> None:
    found = [cubic_sparsity(step, begin=10, end=20, final=0.8) for step in (0, 10, 15, 20, 30)]
    assert found == pytest.approx([0.0, 0.0, 0.7, 0.8, 0.8])
    with pytest.raises(PipelineError, match="has to end after it begins"):
        cubic_sparsity(0, begin=10, end=10, final=0.8)


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.999])
def test_the_lowest_go_and_of_equals_the_earlier(sparsity: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = [torch.randint(0, 9, shape, generator=draw).float() for shape in ((7, 9), (11, 3))]
    flat = torch.cat([one.flatten() for one in scores])
    due = torch.ones(len(flat), dtype=torch.bool)
    due[flat.argsort(stable=True)[: round(sparsity * len(flat))]] = False
    found = keep_highest(scores, sparsity)
    assert [one.shape for one in found] == [one.shape for one in scores]
    assert torch.equal(torch.cat([one.flatten() for one in found]), due)


@pytest.mark.numeric
@pytest.mark.parametrize("scope", ["global", "matrix"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_smallest_weights_become_zero(architecture: str, scope: Any, randomised: Callable[..., Path]) -> None:
    model = loaded(randomised(architecture))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    kept = prune_by_magnitude(model, Sparse(sparsity=0.3, scope=scope))
    found = sparsity_metrics(model)
    assert found["sparsity"] == pytest.approx(0.3, abs=1e-4)
    shares = list(found["sparsity_by_kind"].values())
    assert (max(shares) - min(shares) < 1e-3) == (scope == "matrix")
    changed = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    assert changed == set(kept)
    together = [list(kept)] if scope == "global" else [[name] for name in kept]
    for names in together:
        left = min(float(before[name][kept[name]].abs().min()) for name in names)
        assert max(float(before[name][~kept[name]].abs().max()) for name in names) <= left


def test_pruning_without_texts_keeps_the_layout_and_says_what_it_reached(
    sparse: Path, randomised: Callable[..., Path], tmp_path: Path
) -> None:
    assert "pocketbert" not in json.loads((sparse / "config.json").read_text())
    assert (sparse / "tokenizer.json").read_bytes() == (randomised() / "tokenizer.json").read_bytes()
    both = PruneSection.model_validate({"layers": [1], "max_length": 32, "sparse": {"sparsity": 0.5}})
    texts = [f"This is text number {number}." for number in range(8)]
    metrics = prune.make(randomised(), "embedding", both, texts, tmp_path)
    assert metrics["sparsity"] == pytest.approx(0.5, abs=1e-4)
    assert (metrics["layers"], set(metrics["sparsity_by_kind"])) == (
        [1],
        set(matrices_by_kind(loaded(sparse))),
    )
    assert "no gain" in metrics["zeros"]["litert"]
    assert "no gain" in metrics["zeros"]["executorch"]


# --- while a model is trained ------------------------------------------------------------------------------------


def test_movement_keeps_what_training_moves_away_from_zero(randomised: Callable[..., Path]) -> None:
    """What the loss pulls outwards stays although it is small; the rest goes, and comes back when it is pulled."""
    model = loaded(randomised())
    found = layer_matrices(model)
    whole = {name: one.detach().clone() for name, one in found.items()}
    outwards = {name: one.abs() < 0.05 for name, one in whole.items()}
    share = float(torch.cat([one.flatten() for one in outwards.values()]).float().mean())
    asked = GradualSparse(sparsity=1 - share, warmup_fraction=0.0, cooldown_fraction=0.9)
    movement = GradualPruning(model, asked)
    movement.begin(10)

    def pull(towards: dict[str, torch.Tensor], done: int, norm: float = 1.0) -> None:
        for name, one in found.items():
            one.grad = torch.where(towards[name], -whole[name], whole[name])
        movement.before_update(1.0, norm)
        assert all(not one.grad[one == 0].any() for one in found.values() if one.grad is not None)
        movement.after_update(done)

    pull(outwards, 1)
    assert all(torch.equal(one != 0, outwards[name]) for name, one in found.items())
    inwards = {name: ~one for name, one in outwards.items()}
    pull(inwards, 2, norm=float("inf"))
    assert all(torch.equal(one != 0, outwards[name]) for name, one in found.items())
    for done in (3, 4):
        pull(inwards, done)
    back = {name: (one != 0) & ~outwards[name] for name, one in found.items()}
    assert sum(int(one.sum()) for one in back.values()) > 0
    assert all(torch.equal(found[name][mask], whole[name][mask]) for name, mask in back.items())


def job(folder: Path, source: Path, **train: Any) -> TrainingJob:
    values = {"max_length": 16, "batch_size": 32, "learning_rate": 3e-3, "steps": 8, "checkpoint_minutes": 1e-9}
    return job_of(recipe_of(folder, "classification", source, values | write_toy(folder, "classification") | train))


@pytest.mark.parametrize("by", ["movement", pytest.param("magnitude", marks=pytest.mark.full)])
def test_a_run_that_was_stopped_ends_with_the_same_zeros(
    by: str, randomised: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_TELL_EVERY_S", 0.0)
    due = job(tmp_path, randomised(), sparse=MOVEMENT | {"by": by})
    whole, uncut = fine_tune(replace(due, checkpoints=tmp_path / "others"), silent)
    with pytest.raises(Stop):
        fine_tune(due, stop_after(0.6))
    resumed, cut = fine_tune(due, silent)
    assert cut.resumed_at == [4]
    assert [(one.step, one.loss) for one in cut.curve] == [(one.step, one.loss) for one in uncut.curve]
    assert all(torch.equal(resumed.state_dict()[name], tensor) for name, tensor in whole.state_dict().items())
    (tmp_path / "out").mkdir()
    metrics = write(resumed, cut, due.source, tmp_path / "out")
    assert metrics["sparsity"] == pytest.approx(0.7, abs=1e-3)
    assert cut.settings["sparse"]["by"] == by
    again = loaded(tmp_path / "out", "classification")
    assert all(torch.equal(zeros, zeros_of(whole)[name]) for name, zeros in zeros_of(again).items())


@pytest.mark.full
def test_other_scores_give_other_zeros(randomised: Callable[..., Path], tmp_path: Path) -> None:
    found = []
    for by in ("movement", "magnitude"):
        model, _ = fine_tune(job(tmp_path, randomised(), sparse=MOVEMENT | {"by": by}), silent)
        found.append(torch.cat([one.flatten() for one in zeros_of(model).values()]))
    assert 0.1 < float((found[0] != found[1]).float().mean()) < 0.9


def test_more_zeros_are_added_to_those_that_a_student_has(randomised: Callable[..., Path]) -> None:
    model = loaded(randomised())
    prune_by_magnitude(model, Sparse(sparsity=0.3))
    before = zeros_of(model)
    growing = GradualPruning(model, GradualSparse(sparsity=0.6, warmup_fraction=0.5, cooldown_fraction=0.0))
    growing.begin(10)
    shares = []
    for done in range(1, 11):
        for one in layer_matrices(model).values():
            one.grad = torch.ones_like(one)
        growing.before_update(1.0, 1.0)
        with torch.no_grad():
            for one in layer_matrices(model).values():
                one.add_(0.01)
        growing.after_update(done)
        after = zeros_of(model)
        assert all(bool((after[name] | ~zeros).all()) for name, zeros in before.items())
        shares.append(float(torch.cat([one.flatten() for one in after.values()]).float().mean()))
    assert shares[4] == pytest.approx(0.3, abs=1e-3)
    assert shares[-1] == pytest.approx(0.6, abs=1e-3)


@pytest.mark.parametrize("what", ["train", "distil"])
def test_zeros_that_a_student_has_are_held(
    what: str, sparse: Path, randomised: Callable[..., Path], tmp_path: Path
) -> None:
    before = loaded(sparse)
    if what == "train":
        after = fine_tune(job(tmp_path, sparse), silent)[0].base_model
    else:
        after = distilled(tmp_path, sparse, randomised())
    mine = layer_matrices(after)
    for name, zeros in zeros_of(before).items():
        assert torch.equal(mine[name] == 0, zeros)
        assert not torch.equal(mine[name], layer_matrices(before)[name])


def distilled(place: Path, source: Path, teacher: Path, **settings: Any) -> Any:
    text = place / "plain.txt"
    text.write_text("\n".join(f"The train number {number} is late." for number in range(64)))
    values = {"losses": {"sentence_mse": 1.0}, "texts": (str(text),), "max_length": 16, "steps": 10}
    section = DistilSection.model_validate(values | settings)
    out = place / "out"
    out.mkdir()
    distil.make(source, teacher, "embedding", section, DistilData((text,)), place / "checkpoints", out)
    return loaded(out)


def test_movement_follows_a_distillation_and_shared_layers_have_one_mask(
    randomised: Callable[..., Path], tmp_path: Path
) -> None:
    source = tmp_path / "shared"
    source.mkdir()
    model = loaded(randomised())
    first, second = layers.layers(model)
    shapes.use(second, first, "feed_forward")
    shapes.save(model, source)
    (source / "tokenizer.json").write_bytes((randomised() / "tokenizer.json").read_bytes())
    after = distilled(tmp_path, source, randomised(), sparse=GradualSparse(sparsity=0.6, scope="matrix").model_dump())
    assert len(zeros_of(after)) == 10
    assert all(abs(float(zeros.float().mean()) - 0.6) < 1e-3 for zeros in zeros_of(after).values())


def test_keys_of_runs_without_it_are_what_they_were() -> None:
    assert "sparse" not in TrainSection().model_dump(mode="json", exclude={"train_file"})
    assert "sparse" in TrainSection(sparse=GradualSparse(sparsity=0.5)).model_dump(mode="json")


# --- what is refused ---------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "movement without a loss": (
        {"prune": {"sparse": {"sparsity": 0.5, "by": "movement"}}},
        r"prune.sparse.by = 'movement' follows .* \[train.sparse\] or \[distil.sparse\]",
    ),
    "everything": ({"prune": {"sparse": {"sparsity": 1.0}}}, r"prune.sparse.sparsity = 1.0: .*less than 1"),
    "less than nothing": ({"prune": {"sparse": {"sparsity": -0.5}}}, r"prune.sparse.sparsity = -0.5: .*greater than 0"),
    "no update left": (
        {"distil": {"losses": {}, "sparse": {"sparsity": 0.5, "warmup_fraction": 0.5, "cooldown_fraction": 0.5}}},
        r"leave no update in which weights go",
    ),
    "shared afterwards": (
        {"prune": {"sparse": {"sparsity": 0.5}}, "share": {}},
        r"\[share\] gives the linears new numbers, .* \[prune.sparse\] made zero",
    ),
    "factorised afterwards": (
        {"prune": {"sparse": {"sparsity": 0.5}}, "factorise": {"feed_forward": 8}},
        r"\[factorise\] gives the linears new numbers",
    ),
}


def complaint(outcome: Outcome) -> str:
    """Return the one line of a refusal; libraries write bars beside it."""
    assert outcome.rc == 2
    (line,) = [line for line in outcome.stderr.splitlines() if line.startswith("error:")]
    return line


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_last_is_refused_first(
    case: str, randomised: Callable[..., Path], tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    sections, said = REFUSED[case]
    outcome = command_here("compress", recipe_file(tmp_path, student={"source": str(randomised())}, **sections))
    assert re.search(said, complaint(outcome)), outcome.stderr


def test_layers_that_cannot_be_taken_apart_are_refused_before_training(
    tmp_path: Path, tiny_student: Callable[..., Path], command_here: Callable[..., Outcome]
) -> None:
    train = write_toy(tmp_path, "classification") | {"max_length": 16, "steps": 1, "sparse": MOVEMENT}
    path = recipe_of(tmp_path, "classification", tiny_student("mobilebert", "embedding"), train)
    outcome = command_here("train", path)
    assert complaint(outcome).startswith("error: mobilebert cannot be compressed here")


# --- in Core ML's files ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Toolchains live in a worker, as in the line; `test_backends.convert` uses it."""
    with converting(tmp_path_factory.mktemp("log")):
        yield


def held(found: Structure, expected: Expected, scheme: str, functions: int) -> list[str]:
    results = judging.check(found, expected, scheme, "coreml", functions=functions)
    return [result.name for result in results.gates if not result.passed]


@pytest.mark.parametrize(
    "scheme", ["int8_weight_only", *(pytest.param(one, marks=pytest.mark.full) for one in ("fp16", "fp32"))]
)
@pytest.mark.usefixtures("converter")
def test_core_ml_stores_sparse_matrices_without_their_zeros(scheme: str, sparse: Path, tmp_path: Path) -> None:
    made = student_artifact(sparse, "embedding", tmp_path / "student")
    file = convert(made, Target("coreml", scheme), tmp_path) / formats.get("coreml").FILE
    found = formats.get("coreml").structure(file)
    stored = [one for one in found.constants if one.sparse]
    assert len(stored) == 12
    assert all((one.values == 0).mean() > 0.5 for one in stored)
    functions = len(formats.get("coreml").inspect(file))
    expected = Expected.read(made.path, model_structure(loaded(made.path)))
    assert held(found, expected, scheme, functions) == []
    for damage in (lambda values: np.where(values == 0, 0.5, values), lambda values: values * np.float32(0.9)):
        worse = tuple(
            replace(one, values=damage(one.values)) if one.name == stored[3].name else one for one in found.constants
        )
        assert "weights" in held(replace(found, constants=worse), expected, scheme, functions)


@pytest.mark.full
def test_a_sparse_student_goes_through_the_command(
    randomised: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    schemes = ["fp32", "fp16", "int8_weight_only"]
    path = recipe_file(
        tmp_path,
        student={"source": str(randomised()), "random_weights": True},
        prune={"sparse": {"sparsity": 0.8}},
        convert={"sequence_lengths": [16, 32]},
        targets={"coreml": {"schemes": schemes}, "litert": {"schemes": ["fp32"]}, "executorch": {"schemes": ["fp32"]}},
    )
    outcome = command_here("verify", path, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
    metrics = {step["name"]: step["metrics"] for step in outcome.document["steps"]}
    for scheme in schemes:
        assert metrics[f"convert coreml-{scheme}"]["stored_without_zeros"] == 12
    for backend in ("litert", "executorch"):
        assert "no gain in this format" in metrics[f"convert {backend}-fp32"]["zeros"]


def test_the_same_weights_become_zero_each_time(randomised: Callable[..., Path], tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        asked = PruneSection.model_validate({"sparse": {"sparsity": 0.5}})
        prune.make(randomised(), "embedding", asked, (), tmp_path / name)
        digests.append(sha256_file(tmp_path / name / "model.safetensors"))
    assert digests[0] == digests[1]
