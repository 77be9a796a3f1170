"""`recipe:` in a recipe: what another recipe makes is made first, and what is wrong with either is said before."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import Outcome, recipe_values

from pipeline import artifact
from pipeline.checkpoint import source as student
from pipeline.cli import inventory
from pipeline.errors import StudentError
from pipeline.planning import branches
from pipeline.recipe import loading as recipes

OWN = {"train_file": "train.csv", "dev_file": "dev.csv", "max_length": 16}
FAST = {"learning_rate": 2e-3, "batch_size": 16, "weight_decay": 0.0}


@pytest.fixture
def place(tmp_path: Path, tiny_student: Callable[..., Path]) -> Path:
    """A folder with a tiny encoder of two layers, labelled files and plain text."""
    shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "encoder")
    draw = random.Random(7)
    words = ["the", "house", "river", "of", "seven", "old", "tables", "and", "paper"]
    for name, count in (("train", 96), ("dev", 30)):
        rows = [(" ".join(draw.choices(words, k=6)), ("bad", "good")[number % 2]) for number in range(count)]
        lines = ["text,label", *(f"{text} {label},{label}" for text, label in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "plain.txt").write_text("\n".join(" ".join(draw.choices(words, k=8)) for _ in range(64)))
    return tmp_path


def write(place: Path, name: str, source: str, task: str = "classification", **sections: Any) -> Path:
    values = recipe_values(
        name=name,
        task=task,
        student={"source": source},
        convert={"sequence_lengths": [16]},
        targets={"litert": {"schemes": ["fp32"]}},
        **sections,
    )
    path = place / f"{name}.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


def two_stages(place: Path, **general: Any) -> Path:
    """A teacher, a general distillation, and a task that begins with the latter and learns from the former."""
    text = {"texts": ["plain.txt"], "max_length": 16, "losses": {"hidden": 1.0}, "steps": 4}
    write(place, "teacher", "encoder", train=OWN | FAST | {"steps": 40})
    write(place, "general", "encoder", "embedding", start={"teacher_layers": [0]}, distil=text | FAST | general)
    settings = {"losses": {"soft_targets": 1.0}, "teacher": "recipe:teacher.toml", "steps": 40}
    return write(place, "second", "recipe:general.toml", distil=OWN | FAST | settings)


def made(outcome: Outcome) -> dict[str, bool]:
    """Return which steps were made, by name."""
    assert outcome.rc == 0, outcome.stderr
    return {step["name"]: step["made"] for step in outcome.document["steps"]}


def test_both_stages_and_the_teacher_are_one_command(place: Path, command_here: Callable[..., Outcome]) -> None:
    path = two_stages(place)
    foretold = command_here("run", path, "--dry-run", "--json")
    before = ["general: start", "general: distil", "teacher: train", "distil", "student"]
    assert list(made(foretold))[:5] == before
    assert not (place / "build").exists()

    assert made(command_here("compress", path, "--json")) == dict.fromkeys(before[:4], True)
    folders = {name: artifact.load(place / "build" / name) for name in ("general/distilled", "second/distilled")}
    second = folders["second/distilled"].manifest
    assert second.metrics["dev"] > 0.9, "it learns what the teacher was taught"
    general = (place / "build/general/distilled/model.safetensors").read_bytes()
    assert (place / "build/second/distilled/model.safetensors").read_bytes() != general
    assert made(command_here("compress", path, "--json")) == dict.fromkeys(before[:4], False)
    # What the second stage begins with changed, and the teacher did not.
    two_stages(place, steps=5)
    again = made(command_here("compress", path, "--json"))
    assert again == dict(zip(before[:4], (False, True, False, True), strict=True))


def test_what_it_came_from_is_kept_in_the_student(place: Path, command_here: Callable[..., Outcome]) -> None:
    write(place, "first", "encoder", train=OWN | FAST | {"steps": 4})
    path = write(place, "second", "recipe:first.toml", verify={"datasets": ["none"]})
    assert command_here("student", path).rc == 0
    origin = artifact.read_manifest(place / "build/second/student").params["origin"]
    assert origin == "encoder, fine-tuned on dev_file"


@pytest.mark.full
def test_a_prior_that_learns_a_head_leaves_its_labels(place: Path, command_here: Callable[..., Outcome]) -> None:
    write(place, "teacher", "encoder", train=OWN | FAST | {"steps": 4})
    soft = OWN | {"losses": {"soft_targets": 1.0}, "steps": 2}
    write(place, "first", "encoder", distil=soft | {"teacher": "recipe:teacher.toml"})
    again = soft | {"teacher": "recipe:teacher.toml", "alpha": 0.5}
    path = write(place, "second", "recipe:first.toml", distil=again)
    steps = ["first: distil", "distil"]
    foretold = made(command_here("compress", path, "--dry-run", "--json"))
    assert list(foretold) == ["teacher: train", *steps], "what both begin with is made once"
    assert made(command_here("compress", path, "--json")) == dict.fromkeys(foretold, True)
    # Of what is there only the teacher is missing: a plan knows that the first student's start is not.
    shutil.rmtree(place / "build" / "teacher")
    train = write(place, "third", "recipe:first.toml", train=OWN | {"steps": 2}, distil=again)
    assert list(made(command_here("train", train, "--json"))) == ["teacher: train", "first: distil", "train"]


def test_what_replaces_words_may_be_made_first(place: Path, command_here: Callable[..., Outcome]) -> None:
    text = {"texts": ["plain.txt"], "max_length": 16}
    write(place, "headed", "encoder", "embedding", head=text | {"steps": 2})
    augment = {"copies": 1, "model": "recipe:headed.toml"}
    settings = text | {"losses": {"sentence_mse": 1.0}, "steps": 2, "augment": augment}
    path = write(place, "second", "encoder", "embedding", start={"teacher_layers": [0]}, distil=settings)
    assert list(made(command_here("compress", path, "--dry-run", "--json"))) == ["headed: head", "start", "distil"]


def test_a_teacher_that_nothing_asks_is_not_made(place: Path, command_here: Callable[..., Outcome]) -> None:
    write(place, "teacher", "encoder", train=OWN | {"steps": 2})
    distil = OWN | {"losses": {"hidden": 1.0}, "teacher": "recipe:teacher.toml"}
    # Not the teacher's training, which would be one node with it.
    path = write(place, "second", "encoder", train=OWN | {"steps": 3}, distil=distil)
    assert list(made(command_here("train", path, "--dry-run", "--json"))) == ["train"]
    assert list(made(command_here("compress", path, "--dry-run", "--json"))) == ["teacher: train", "train", "distil"]


def test_two_recipes_of_one_name_would_share_a_folder(place: Path, command_here: Callable[..., Outcome]) -> None:
    write(place, "first", "encoder", train=OWN | {"steps": 2})
    (place / "other").mkdir()
    shutil.copy(place / "first.toml", place / "other" / "first.toml")
    distil = OWN | {"losses": {"hidden": 1.0}, "teacher": "recipe:other/first.toml"}
    outcome = command_here("compress", write(place, "second", "recipe:first.toml", distil=distil), "--dry-run")
    assert outcome.rc == 2
    assert "are both named 'first', the folder of both; rename one" in outcome.stderr.replace("\n", " ")


def test_a_prior_without_the_head_is_refused_before_it_is_made(
    place: Path, command_here: Callable[..., Outcome]
) -> None:
    write(place, "first", "encoder", "embedding", start={"teacher_layers": [0]})
    outcome = command_here("student", write(place, "second", "recipe:first.toml"))
    assert outcome.rc == 2
    assert "recipe:first.toml ends in a checkpoint without a head for task classification" in outcome.stderr
    assert not (place / "build" / "first" / "started").exists()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "itself": (
        {"name": "first", "source": "recipe:first.toml", "train": OWN},
        "recipes wait for each other: second → first → first.",
    ),
    "each other": (
        {"name": "first", "source": "recipe:second.toml", "train": OWN},
        "recipes wait for each other: second → first → second.",
    ),
    "nothing made": (
        {"name": "first", "source": "encoder"},
        "recipe first neither trains its student nor makes it smaller; name what it begins with: 'encoder'",
    ),
    "what the first one lacks": (
        {"name": "first", "source": "absent", "train": OWN},
        "absent does not exist",
    ),
    "what the first one cannot": (
        {"name": "first", "source": "encoder", "train": OWN | {"max_length": 4096}},
        "error: recipe first: train.max_length = 4096 is beyond the checkpoint's limit",
    ),
    "layers of what is not made yet": (
        {"name": "first", "source": "encoder", "train": OWN, "start": {"teacher_layers": [0]}},
        "distil.teacher_layers names 2 layers, and the student has 1",
    ),
    "a teacher without the head": (
        {"name": "first", "source": "encoder", "train": OWN, "start": {"teacher_layers": [0]}, "teacher": "encoder"},
        "encoder lacks 2 tensors that task classification needs, classifier.bias first: it was saved as BertModel",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_go_well_is_said_before_any_work(
    case: str, place: Path, tiny_student: Callable[..., Path], command_here: Callable[..., Outcome]
) -> None:
    settings, message = BAD[case]
    settings = dict(settings)
    teacher = settings.pop("teacher", "classifier")
    write(place, **settings)
    shutil.copytree(tiny_student("bert", "classification"), place / "classifier")
    distil = OWN | FAST | {"losses": {"hidden": 1.0}, "teacher_layers": [0, 1], "teacher": teacher}
    outcome = command_here("compress", write(place, "second", "recipe:first.toml", distil=distil))
    assert outcome.rc == 2
    assert message in outcome.stderr.replace("\n", " ")
    assert not (place / "build").exists() or not list((place / "build").glob("*/*/manifest.json"))


def test_a_name_that_does_not_exist_is_refused(place: Path, command_here: Callable[..., Outcome]) -> None:
    outcome = command_here("train", write(place, "second", "recipe:stsb-regresion", train=OWN))
    assert outcome.rc == 2
    assert "recipe 'stsb-regresion' does not exist" in outcome.stderr
    assert "Did you mean 'stsb-regression'?" in outcome.stderr


def test_where_nothing_is_made_on_the_way_its_folder_is_asked_for(place: Path) -> None:
    parsed, file = recipes.read_recipe(str(write(place, "second", "recipe:first.toml", train=OWN)))
    with pytest.raises(
        StudentError, match=r"recipe:first\.toml is made by the verbs .* Name the checkpoint's folder: build/"
    ):
        student.find(parsed, file)


def test_ready_recipes_need_what_those_before_them_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POCKETBERT_DATA", raising=False)
    found = {one.name: one.needs for one in inventory.ready_recipes()}
    before = {name: branches.recipe_sources(recipes.read_recipe(name)[0]) for name in found}
    assert before["rte"] == ["recipe:stsb-regression"]
    assert set(found["stsb-regression"]) < set(found["rte"])
