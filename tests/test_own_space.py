"""`space = "own"`: a student learns the mean of its checkpoint's embeddings and a better teacher's, turned to them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from test_space import TASK, TEXTS, Students, found, old

from pipeline.checkpoint.loading import load_checkpoint
from pipeline.compress.distil import checks, objective, targets
from pipeline.compress.distil import stage as distil
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.space import embedding, fitting
from pipeline.compress.start import stage as starts
from pipeline.errors import RecipeError
from pipeline.recipe.compression import StartSection
from pipeline.recipe.distillation import DistilSection

__all__ = ["old"]


def units(rows: int, width: int, seed: int) -> NDArray[np.float64]:
    return fitting.unit(np.random.default_rng(seed).normal(size=(rows, width)))


def embedded(folder: Path, texts: list[str]) -> NDArray[np.float64]:
    return embedding.vectors(load_checkpoint(folder, TASK), folder, texts, 24, "a test", prompt="")


def test_a_turned_copy_of_the_own_vectors_adds_nothing_and_a_teachers_cosines_come_in() -> None:
    own = units(400, 8, 0)
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))
    assert (targets.blend(own, own @ turn, 1.0) * own).sum(1).min() > 0.99
    other = units(400, 8, 2)
    near, far = targets.blend(own, other, 0.01), targets.blend(own, other, 100.0)
    assert (near * own).sum(1).min() > 0.99
    theirs = fitting.unit(other - other.mean(0) / 2)
    assert np.abs(far @ far.T - theirs @ theirs.T).max() < 0.05, "the map leaves the teacher's cosines"


@pytest.mark.parametrize("width", [4, 12])
def test_the_targets_have_the_own_width_whatever_the_teachers(width: int) -> None:
    aims = targets.blend(units(50, 8, 0), units(50, width, 1), 2.0)
    assert aims.shape == (50, 8)
    assert np.abs(np.linalg.norm(aims, axis=1) - 1).max() < 1e-5


@pytest.mark.parametrize("compared", [64, 1000])
def test_the_nearest_texts_are_those_with_the_highest_cosines(compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_COMPARED", compared)
    vectors = units(150, 8, 0).astype(np.float32)
    nearest = targets.nearest(vectors, 3, seed=0)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    exact = np.argsort(-cosines, 1)[:, :3]
    if compared > len(vectors):
        assert np.array_equal(nearest, exact)
    else:
        assert nearest.shape == (150, 3)
        assert all(row not in near and len(set(near)) == 3 for row, near in enumerate(nearest.tolist()))
        # Of two parts, each text finds the half of its nearest that is in its own.
        assert 0.3 < np.isin(nearest[:, 0], exact[:, 0]).mean() < 1
    assert targets.nearest(vectors[:2], 3, seed=0).tolist() == [[1], [0]]
    assert targets.nearest(vectors[:1], 3, seed=0).shape == (1, 0)


def section_of(**values: Any) -> DistilSection:
    given = {"texts": ["lines.txt"], "max_length": 24, "batch_size": 16, "learning_rate": 1e-3, "dropout": 0.0}
    return DistilSection.model_validate({"space": "own", "teacher": "t", "steps": 30} | given | values)


@pytest.mark.usefixtures("one_thread")
def test_a_smaller_student_comes_near_the_targets_and_a_resumed_one_to_the_same_weights(
    tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    own, teacher, small = tiny_student(), tmp_path / "teacher", tmp_path / "small"
    for folder, start in ((teacher, StartSection(kind="width", hidden_size=32)), (small, StartSection(kind="layers"))):
        folder.mkdir()
        starts.make(old if folder == teacher else own, start, folder)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text for text in TEXTS if text.isascii()), encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    kept, data = tmp_path / "kept", DistilData((lines,))
    cache = tmp_path / "cache"
    metrics = distil.make(small, teacher, "embedding", section_of(), data, kept, out, own, cache)
    assert metrics["final_loss"] < metrics["first_loss"]
    texts = lines.read_text(encoding="utf-8").splitlines()
    aims = targets.blend(embedded(own, texts), embedded(teacher, texts), 2.0)

    def error(folder: Path) -> float:
        vectors = embedded(folder, texts)
        return float(np.square(vectors @ vectors.T - aims @ aims.T).mean())

    assert error(out) < error(small) / 2, "its similarities are nearer to those of the targets"
    assert "pocketbert_space" not in json.loads((out / "config.json").read_text()), "it is neither model's space"
    settings = json.loads((out / distil.RECORD_FILE).read_text())["settings"]
    assert (settings["space"], settings["teacher_weight"]) == ("own", 2.0)
    # Another run with other settings takes both models' outputs from there.
    written = {path: path.stat().st_mtime_ns for path in cache.glob("teacher-*/*.arrow")}
    assert len(written) == 2
    (tmp_path / "again").mkdir()
    distil.make(
        small, teacher, "embedding", section_of(steps=2), data, tmp_path / "others", tmp_path / "again", own, cache
    )
    assert written == {path: path.stat().st_mtime_ns for path in cache.glob("teacher-*/*.arrow")}
    # One that is damaged is computed anew, and the other is not.
    damaged, whole = written
    damaged.write_bytes(damaged.read_bytes()[:-8])
    distil.make(
        small, teacher, "embedding", section_of(steps=1), data, tmp_path / "others", tmp_path / "again", own, cache
    )
    assert (damaged.stat().st_mtime_ns == written[damaged], whole.stat().st_mtime_ns == written[whole]) == (False, True)
    first = distil.job(small, teacher, "embedding", section_of(), data, kept, own)
    other = distil.job(small, teacher, "embedding", section_of(), data, kept, old)
    assert first.key != other.key


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"losses": {"sentence_mse": 1.0, "hidden": 1.0}}, r"not for distil\.losses\.hidden"),
        ({"losses": {"prediction": 1.0}}, "does not fit task embedding"),
    ],
)
def test_what_has_no_targets_is_refused(values: dict[str, Any], words: str, tiny_student: Students, old: Path) -> None:
    own, teacher = found(tiny_student()), found(old)
    with pytest.raises(RecipeError, match=words):
        checks.check(section_of(**values), own, TASK, teacher, DistilData(), own)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({"sentence_mse": 1.0}, r"none of distil\.losses compares the texts of an update; those that do: similarity"),
        ({"similarity": 1.0, "hidden": 1.0}, r"not kept beside what distil\.losses\.hidden compares"),
    ],
)
def test_neighbours_without_a_use_or_without_embeddings_are_refused(
    losses: dict[str, float], words: str, tiny_student: Students, old: Path
) -> None:
    section = section_of(space=None, losses=losses, neighbours=3)
    with pytest.raises(RecipeError, match=words):
        checks.check(section, found(tiny_student()), TASK, found(old), DistilData())


@pytest.mark.usefixtures("one_thread")
def test_an_update_of_neighbours_is_read_by_length_and_gives_the_same_embeddings(
    tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text for text in TEXTS if text.isascii()), encoding="utf-8")
    found: list[objective.DistilObjective] = []
    for number, neighbours in enumerate((None, 3)):
        section = section_of(space=None, losses={"similarity": 1.0}, neighbours=neighbours)
        job = distil.job(tiny_student(), old, "embedding", section, DistilData((lines,)), tmp_path / str(number))
        job.checkpoints.mkdir(exist_ok=True)
        found.append(objective.DistilObjective(job, Accelerator(cpu=True), lambda *_: None))
    whole, parts = found
    assert whole.near is None
    assert parts.near is not None
    assert parts.near.size == 4
    rows = np.arange(len(whole.lengths))
    assert len(rows) >= 32
    assert len(set(whole.lengths.tolist())) > 4
    inputs = whole.batches.pair(rows, 0).student.inputs
    for one in found:
        one.model.eval()
    with torch.no_grad():
        first, second = (one.model.outputs(inputs).sentence for one in found)
    assert first is not None
    assert second is not None
    assert torch.allclose(first, second, atol=1e-5)


def test_neighbours_are_the_default_where_the_loss_is(tmp_path: Path) -> None:
    assert section_of().neighbours == 7
    assert section_of(losses={"similarity": 1.0}).neighbours is None, "a recipe that names its losses means these"
    assert section_of(neighbours=2).neighbours == 2


def test_its_own_checkpoint_is_no_better_teacher(tiny_student: Students) -> None:
    own = found(tiny_student())
    with pytest.raises(RecipeError, match=r"distil\.teacher is the same checkpoint"):
        checks.check(section_of(), own, TASK, own, DistilData(), own)
    with pytest.raises(RecipeError, match="Name its folder by --own"):
        checks.check(section_of(), own, TASK, own, DistilData())


def test_a_checkpoint_for_another_space_is_not_blended_in_silently(tiny_student: Students, old: Path) -> None:
    own = found(tiny_student())
    section = section_of(space=None, losses={"similarity": 1.0})
    with pytest.raises(RecipeError, match=r"--own \S+ is for distil\.space = 'own'"):
        checks.check(section, own, TASK, found(old), DistilData(), own)


def test_keys_of_what_was_distilled_before_there_was_such_a_space_stay() -> None:
    plain = section_of(space=None, losses={"sentence_mse": 1.0})
    assert "neighbours" not in distil.order_params(plain, "embedding", DistilData())["settings"]
    assert "teacher_weight" not in distil.order_params(plain, "embedding", DistilData())["settings"]
    assert distil.order_params(section_of(), "embedding", DistilData())["settings"]["teacher_weight"] == 2.0
