"""The space of an embedding: an adapter into an older model's, a rotation of its own, and a static table in it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome, branch_of, check_trial, recipe_file
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pipeline import tasks
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.compress.distil import models
from pipeline.compress.distil import stage as distil
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.space import adapter, bags, embedding, fitting, rotation, table
from pipeline.compress.start import stage as starts
from pipeline.errors import InputError, RecipeError
from pipeline.recipe.compression import AdapterSection, RotateSection, StartSection, StaticSection
from pipeline.recipe.distillation import DistilSection
from pipeline.student import stage as students
from pipeline.text.bundled import calibration_texts, everyday_sentences
from pipeline.text.encoding import Row
from pipeline.vectors.contract import SPACE

TASK = tasks.get("embedding")
TEXTS = [*everyday_sentences(), *calibration_texts()]
Students = Callable[..., Path]


def found(folder: Path) -> student.Source:
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def embeddings(folder: Path) -> NDArray[np.float64]:
    return embedding.vectors(load_checkpoint(folder, TASK), folder, TEXTS[:60], 32, "a test")


def cosines(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    unit = fitting.unit(vectors)
    return unit @ unit.T


# --- maps ------------------------------------------------------------------------------------------------------------


def test_least_squares_find_an_affine_map_again(seed: int) -> None:
    draw = np.random.default_rng(seed)
    inputs, weight, bias = draw.normal(size=(300, 12)), draw.normal(size=(7, 12)), draw.normal(size=7)
    mapped = fitting.least_squares(inputs, inputs @ weight.T + bias, ridge=0.0)
    assert np.allclose(mapped.weight, weight, atol=1e-8)
    assert mapped.bias is not None
    assert np.allclose(mapped.bias, bias, atol=1e-8)


def test_held_out_texts_choose_more_ridge_where_there_is_more_noise(seed: int) -> None:
    draw = np.random.default_rng(seed)
    inputs, weight = draw.normal(size=(80, 40)), draw.normal(size=(5, 40)) / 40**0.5
    held_out = fitting.every_fourth(len(inputs))
    clean = inputs @ weight.T
    chosen = [
        fitting.best_ridge(inputs, clean + noise * draw.normal(size=clean.shape), held_out) for noise in (0.0, 2.0)
    ]
    assert chosen[0] < chosen[1]


def test_an_orthogonal_map_keeps_cosines_and_finds_a_rotation_again(seed: int) -> None:
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(200, 6))
    rotation_into_more, _ = np.linalg.qr(draw.normal(size=(9, 6)))
    mapped = fitting.orthogonal(inputs, inputs @ rotation_into_more.T)
    assert mapped.weight.shape == (9, 6)
    assert np.allclose(mapped.weight, rotation_into_more, atol=1e-10)


def test_principal_directions_have_most_of_the_length_first_and_one_sign(seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(400, 8)) * np.arange(1.0, 9.0) + 3.0
    mapped = fitting.principal(vectors)
    squares = np.square(mapped(vectors)).sum(0)
    assert list(squares) == sorted(squares, reverse=True)
    assert np.allclose(mapped.weight @ mapped.weight.T, np.eye(8), atol=1e-12)
    again = fitting.principal(vectors[::-1])
    assert np.allclose(mapped.weight, again.weight, atol=1e-8)


def test_texts_find_themselves_unless_another_is_nearer() -> None:
    index = np.eye(4)
    queries = np.array([[1.0, 0.2, 0, 0], [0, 1, 0, 0], [0.9, 0, 0.5, 0], [0, 0, 0, 1]])
    assert fitting.found_among(queries, index, 1) == 0.75
    assert fitting.found_among(queries, index, 2) == 1


# --- an adapter ------------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tiny_student: Students, tmp_path: Path) -> Path:
    """An older model: the student with noise on its weights, as another training would leave it."""
    folder = Path(shutil.copytree(tiny_student(), tmp_path / "old"))
    torch.manual_seed(3)
    tensors = load_file(folder / "model.safetensors")
    noisy = {
        name: one + 0.3 * one.std() * torch.randn_like(one) if one.ndim > 1 else one for name, one in tensors.items()
    }
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def adapted(source: Path, into: Path, out: Path, **values: Any) -> dict[str, Any]:
    section = AdapterSection.model_validate({"into": str(into), "texts": ["own.txt"], "max_length": 32} | values)
    out.mkdir()
    metrics = adapter.make(source, into, section, TEXTS, out)
    check_trial(adapter.trial(section, found(source), found(into)), out)
    return metrics


def test_an_adapter_brings_vectors_near_the_old_model_s(tiny_student: Students, old: Path, tmp_path: Path) -> None:
    source = tiny_student()
    before = (embeddings(source) * embeddings(old)).sum(1)
    metrics = adapted(source, old, tmp_path / "out")
    after = (embeddings(tmp_path / "out") * embeddings(old)).sum(1)
    assert after.mean() > before.mean() + 0.5 * (1 - before.mean())
    assert metrics["held_out_mean_cosine"] > before.mean()
    assert metrics["held_out_least_cosine"] <= metrics["held_out_mean_cosine"] <= 1
    assert metrics["texts"] == len(TEXTS)
    assert metrics["held_out_texts"] == -(-len(TEXTS) // 4)
    head = json.loads((tmp_path / "out" / "config.json").read_text())["sentence_head"]
    assert [step["kind"] for step in head["steps"]] == ["Normalize", "Dense", "Normalize"]


def test_an_orthogonal_adapter_leaves_the_student_s_own_cosines(
    tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    source = tiny_student()
    adapted(source, old, tmp_path / "out", kind="orthogonal")
    assert np.abs(cosines(embeddings(tmp_path / "out")) - cosines(embeddings(source))).max() < 1e-6
    assert (embeddings(tmp_path / "out") * embeddings(old)).sum() > (embeddings(source) * embeddings(old)).sum()


def test_an_adapter_takes_the_old_model_s_width(tiny_student: Students, old: Path, tmp_path: Path) -> None:
    narrow = rotated(old, tmp_path / "narrow", width=24)
    assert narrow["width"] == 24
    adapted(tiny_student(), tmp_path / "narrow", tmp_path / "out")
    assert embeddings(tmp_path / "out").shape == (60, 24)
    with pytest.raises(RecipeError, match=r"keeps all 64 numbers .* have 24"):
        adapted(tiny_student(), tmp_path / "narrow", tmp_path / "none", kind="orthogonal")


def test_the_space_that_a_checkpoint_was_fitted_to_is_passed_on_and_lost_by_a_rotation(
    tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {SPACE: "0123456789abcdef"}))
    out = tmp_path / "out"
    out.mkdir()
    section = AdapterSection(into=str(old), texts=("own.txt",), max_length=32)
    adapter.make(tiny_student(), old, section, TEXTS, out)
    assert json.loads((out / "config.json").read_text())[SPACE] == "0123456789abcdef"
    rotated(out, tmp_path / "rotated")
    assert SPACE not in json.loads((tmp_path / "rotated" / "config.json").read_text())


def test_a_space_is_shared_by_a_model_that_finds_the_other_s_texts(tiny_student: Students, seed: int) -> None:
    draw = np.random.default_rng(seed)
    model, index = load_checkpoint(tiny_student(), TASK), draw.normal(size=(400, 16))
    near = embedding.claim_space(model, "0123456789abcdef", index + 0.3 * draw.normal(size=index.shape), index)
    assert near["shares_space"]
    assert getattr(model.config, SPACE) == "0123456789abcdef"
    far = embedding.claim_space(model, "0123456789abcdef", draw.normal(size=index.shape), index)
    assert not far["shares_space"]
    assert far["found_among_ten"] < 0.5 < near["found_among_ten"]
    assert not hasattr(model.config, SPACE)


# --- a rotation ------------------------------------------------------------------------------------------------------


def rotated(source: Path, out: Path, **values: Any) -> dict[str, Any]:
    section = RotateSection.model_validate({"max_length": 32} | values)
    out.mkdir()
    metrics = rotation.make(source, section, TEXTS, out)
    check_trial(rotation.trial(section, found(source)), out)
    return metrics


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "static"])
def test_a_rotation_leaves_cosines_and_puts_most_first(
    architecture: str, tiny_student: Students, tmp_path: Path
) -> None:
    source = tiny_student(architecture)
    metrics = rotated(source, tmp_path / "out")
    assert np.abs(cosines(embeddings(tmp_path / "out")) - cosines(embeddings(source))).max() < 1e-6
    before, after = metrics["share_by_width_before"], metrics["share_by_width"]
    assert list(after) == ["48", "32"]
    assert all(before[width] < after[width] <= 1 + 1e-9 for width in after)
    assert after["48"] > after["32"]


def test_a_width_keeps_the_first_numbers_of_a_rotation(tiny_student: Students, tmp_path: Path) -> None:
    rotated(tiny_student(), tmp_path / "whole")
    metrics = rotated(tiny_student(), tmp_path / "cut", width=16)
    assert metrics["width"] == 16
    first = fitting.unit(embeddings(tmp_path / "whole")[:, :16])
    assert np.abs(embeddings(tmp_path / "cut") - first).max() < 1e-6
    with pytest.raises(RecipeError, match="width = 64, and the embedding has 64"):
        rotation.trial(RotateSection(width=64), found(tiny_student()))


# --- a static table -------------------------------------------------------------------------------------------------


def tabulated(source: Path, out: Path, **values: Any) -> dict[str, Any]:
    section = StaticSection.model_validate({"texts": ["own.txt"], "max_length": 32} | values)
    out.mkdir()
    metrics = table.make(source, section, TEXTS, out)
    check_trial(table.trial(found(source)), out)
    return metrics


def test_a_table_is_found_again_and_tokens_of_no_text_keep_their_beginning(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [Row(tuple(int(token) for token in draw.integers(0, 30, 8)), (0,) * 8) for _ in range(400)]
    counted = bags.bags_of(rows, 40)
    assert np.allclose(counted.sum(axis=1), 1)
    true, prior = draw.normal(size=(40, 5)), draw.normal(size=(40, 5))
    targets = np.asarray(counted @ true)
    solved = bags.solve(counted, targets, prior, ridge=1e-4)
    assert np.abs(solved[:30] - true[:30]).max() < 0.05
    scale = solved[30:] / prior[30:]
    assert np.allclose(scale, scale[0, 0], atol=1e-3)
    strict = bags.solve(counted, targets, prior, ridge=1e6)
    assert np.allclose(strict / prior, strict[0, 0] / prior[0, 0], atol=1e-3)


def test_a_prompt_that_is_not_pooled_has_no_share() -> None:
    counted = bags.bags_of([Row((3, 3, 1, 2), (0,) * 4, unpooled=2), Row((), ()), Row((1, 1), (0, 0))], 4)
    assert counted.toarray().tolist() == [[0, 0.5, 0.5, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert list(bags.rarity(counted) < bags.rarity(counted)[3]) == [False, True, True, False]


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_a_static_table_stays_in_the_encoder_s_space(architecture: str, tiny_student: Students, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny_student(architecture), tmp_path / "source"))
    head = {"prompts": {"document": "text: ", "query": "find: "}, "max_seq_length": 24}
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"sentence_head": head}))
    metrics = tabulated(source, tmp_path / "out")
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (made["model_type"], made["hidden_size"]) == ("static", 64)
    assert made.get(SPACE) == (embedding.space_of(source) if metrics["shares_space"] else None)
    assert made["sentence_head"]["prompts"] == head["prompts"]
    assert made["sentence_head"]["max_seq_length"] is None
    assert metrics["tokens"] == config["vocab_size"] > metrics["tokens_in_texts"] > 100
    assert metrics["ridge"] in bags.RIDGES
    assert metrics["held_out_least_cosine"] <= metrics["held_out_mean_cosine"] <= 1

    def documents(folder: Path) -> NDArray[np.float64]:
        return embedding.vectors(load_checkpoint(folder, TASK), folder, TEXTS[:200], 24, "a test", prompt="document")

    mine, theirs = documents(tmp_path / "out"), documents(source)
    cosines_of_texts = (mine * theirs).sum(1)
    # Each text is nearer to its own vector than to those of other texts, which chance would not do.
    assert cosines_of_texts.mean() > (mine @ theirs.T).mean()
    assert fitting.found_among(theirs, mine, 1) > 0.5


# --- a teacher's space -----------------------------------------------------------------------------------------------


def taught(source: Path, teacher: Path, out: Path, **values: Any) -> dict[str, Any]:
    place = out.parent / "lines.txt"
    place.write_text("\n".join(text for text in TEXTS if text.isascii()), encoding="utf-8")
    given = {"texts": [str(place)], "max_length": 24, "batch_size": 16, "learning_rate": 1e-3, "dropout": 0.0}
    section = DistilSection.model_validate({"space": "teacher", "steps": 30} | given | values)
    out.mkdir()
    return distil.make(source, teacher, "embedding", section, DistilData((place,)), out.parent / "kept", out)


@pytest.fixture
def narrow(tiny_student: Students, tmp_path: Path) -> Path:
    """A student of half the hidden size of `old`."""
    out = tmp_path / "narrow-student"
    out.mkdir()
    starts.make(tiny_student(), StartSection(kind="width", hidden_size=32), out)
    return out


@pytest.mark.usefixtures("one_thread")
def test_a_narrower_student_learns_its_teacher_s_vectors_in_their_width(
    narrow: Path, old: Path, tmp_path: Path
) -> None:
    metrics = taught(narrow, old, tmp_path / "out")
    assert metrics["final_loss"] < metrics["first_loss"]
    assert metrics["new_tensors"] == ["sentence_head.1.linear.bias", "sentence_head.1.linear.weight"]
    mine, theirs = embeddings(tmp_path / "out"), embeddings(old)
    assert mine.shape == theirs.shape
    # It begins at the best linear map, so that the loss 2 (1 - cosine) is far below that of chance from the start on.
    assert metrics["first_loss"] < 0.5
    assert (mine * theirs).sum(1).mean() > 0.8
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get(SPACE) == (embedding.space_of(old) if metrics["shares_space"] else None)


@pytest.mark.usefixtures("one_thread")
def test_a_student_of_its_teacher_s_width_gets_no_linear_and_another_teacher_takes_the_space_away(
    tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    taught(tiny_student(), old, tmp_path / "first", steps=1)
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    assert config[SPACE] == embedding.space_of(old)
    assert "sentence_head" not in config
    losses = {"losses": {"similarity": 1.0}, "space": None, "steps": 1}
    taught(tmp_path / "first", tiny_student(), tmp_path / "second", **losses)
    assert SPACE not in json.loads((tmp_path / "second" / "config.json").read_text())
    taught(tmp_path / "first", old, tmp_path / "third", **losses)
    assert json.loads((tmp_path / "third" / "config.json").read_text())[SPACE] == config[SPACE]


def test_the_plan_of_a_teacher_s_space_has_the_linear(narrow: Path, old: Path) -> None:
    section = DistilSection.model_validate({"space": "teacher", "texts": ["own.txt"]})
    assert section.losses == {"sentence_mse": 1.0}
    model, new, _ = models.begin_student(found(narrow), found(old), TASK, section, None)
    assert new == ["sentence_head.1.linear.bias", "sentence_head.1.linear.weight"]
    assert tuple(model.sentence_head[1].linear.weight.shape) == (64, 32)


def test_the_space_of_a_teacher_is_what_its_own_signature_says(tiny_student: Students, tmp_path: Path) -> None:
    made = students.make(tiny_student(), "embedding", False, tmp_path)
    assert made["vectors"]["space"] == embedding.space_of(tiny_student())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"losses": {"similarity": 1.0}}, "none of distil.losses compares them number by number"),
        ({"losses": {"cosine": 1.0}, "head": "masked_lm"}, "none of distil.losses compares them number by number"),
    ],
)
def test_a_teacher_s_space_needs_losses_of_vectors(
    values: dict[str, Any], words: str, tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=words):
        taught(tiny_student(), old, tmp_path / "out", **values)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def written(place: Path, source: Path, **sections: Any) -> Path:
    (place / "own.txt").write_text("\n".join(TEXTS[:80]))
    return recipe_file(place, student={"source": str(source), "random_weights": True}, **sections)


REFUSED: dict[str, tuple[dict[str, Any], str, type[Exception]]] = {
    "both": (
        {"adapter": {"into": "old", "texts": ["own.txt"]}, "rotate": {}},
        r"\[rotate\] turns vectors out of the space",
        RecipeError,
    ),
    "rotated table": ({"static": {"texts": ["own.txt"]}, "rotate": {}}, r"\[rotate\] turns the table's", RecipeError),
    "few texts": ({"adapter": {"into": "old", "texts": ["few.txt"]}}, "hold 2 different texts; 64 or more", InputError),
    "too wide": ({"rotate": {"width": 100, "texts": ["own.txt"]}}, "the embedding has 64 numbers", RecipeError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_any_work(
    case: str, tiny_student: Students, old: Path, tmp_path: Path
) -> None:
    sections, words, kind = REFUSED[case]
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    with pytest.raises(kind, match=words):
        branch_of(written(tmp_path, tiny_student(), **sections))


def test_neither_is_for_another_task(tiny_student: Students, tmp_path: Path) -> None:
    path = written(tmp_path, tiny_student("bert", "classification"), task="classification", rotate={})
    with pytest.raises(RecipeError, match=r"\[rotate\] is for embeddings, and the task is classification"):
        branch_of(path)


def test_the_student_is_not_its_own_older_model(tiny_student: Students, tmp_path: Path) -> None:
    # With a pooling in its folder, so that it is taken as it is.
    source = Path(shutil.copytree(tiny_student(), tmp_path / "source"))
    (source / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    path = written(tmp_path, source, adapter={"into": str(source), "texts": ["own.txt"]})
    with pytest.raises(RecipeError, match=r"adapter\.into is the student itself"):
        branch_of(path)


def test_a_table_is_made_of_an_encoder(tiny_student: Students, tmp_path: Path) -> None:
    path = written(tmp_path, tiny_student("static"), static={"texts": ["own.txt"]})
    with pytest.raises(RecipeError, match="the student is a table already"):
        branch_of(path)


@pytest.mark.toolchain
@pytest.mark.full
def test_a_static_table_becomes_verified_files(
    tiny_student: Students, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    path = written(tmp_path, tiny_student(), static={"texts": ["own.txt"], "max_length": 32})
    outcome = command_here("verify", path, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout


@pytest.mark.toolchain
@pytest.mark.full
def test_an_adapted_student_becomes_verified_files(
    tiny_student: Students, old: Path, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    path = written(tmp_path, tiny_student(), adapter={"into": "old", "texts": ["own.txt"], "max_length": 32})
    outcome = command_here("verify", path, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
