"""`pocketbert demo`: what is here is made and shipped, what is not is left out by name, and sizes are of the files."""

import json
from pathlib import Path

import pytest
from conftest import Outcome, TinyLine

from pipeline.cli import demo
from pipeline.ship import apps
from pipeline.ship.placing import Index


@pytest.fixture
def models(tiny_line: TinyLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyLine:
    """A demo of a tiny random student, whose int8 file has failed, and of a recipe whose data is not here."""
    line = tiny_line.copy(tmp_path)
    monkeypatch.setattr(demo, "MODELS", {str(line.recipe): "tiny answers", "wnut17": "entities"})
    return line


def test_what_passed_is_shipped_and_the_rest_is_said(models: TinyLine, tmp_path: Path, command_here) -> None:
    outcome: Outcome = command_here("demo", "--build", models.build, "--into", tmp_path / "into", "--json")
    assert outcome.rc == 1
    document = outcome.document
    assert document["needs"]["wnut17"] == ["dataset wnut17: POCKETBERT_DATA is not set"]
    assert [(row["target"], row["random_weights"]) for row in document["shipped"]] == [("executorch-fp32", True)]
    assert "verdict is failed" in document["left_out"][f"{models.recipe}/litert-int8_dynamic"]
    assert document["left_out"]["wnut17"].startswith("dataset wnut17")
    for app, place in {"android": apps.ANDROID, "ios": apps.IOS}.items():
        root = tmp_path / "into" / place
        index = Index.model_validate_json((root / "models.json").read_bytes())
        assert [one.folder for one in index.models] == ["tiny/executorch-fp32"]
        assert document["app_bytes"][app] == sum(one.bytes for one in index.models) > 0
        assert json.loads((root / "tiny/executorch-fp32/shipped.json").read_text())["random_weights"]


def test_one_backend_of_one_recipe(models: TinyLine, tmp_path: Path, command_here) -> None:
    chosen = ("--only", models.recipe, "--backend", "executorch")
    outcome: Outcome = command_here("demo", *chosen, "--build", models.build, "--into", tmp_path / "into")
    assert outcome.rc == 0
    assert "tiny answers" in outcome.stdout
    assert "executorch-fp32 (passed)" in outcome.stdout
    assert "MB of models, beside the app itself" in outcome.stdout


def test_texts_become_an_index_beside_the_models_of_both_apps(models: TinyLine, tmp_path: Path, command_here) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("the tomatoes were planted in may and picked in august " * 5, encoding="utf-8")
    chosen = ("--only", models.recipe, "--backend", "executorch", "--build", models.build, "--into", tmp_path / "into")
    outcome: Outcome = command_here("demo", *chosen, "--index", notes, "--window", "10", "--json")
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    made = outcome.document["index"]
    assert made["passages"] == 5
    for place in (apps.ANDROID, apps.IOS):
        index = tmp_path / "into" / place / "index"
        assert json.loads((index / "index.json").read_text())["space"] == made["about"]["space"]
        assert json.loads((index / "state.json").read_text())["rows"] == 5
        assert not (index / "lock").exists()
    again: Outcome = command_here("demo", *chosen, "--index", notes, "--window", "10")
    assert "5 passages in both apps" in again.stdout
    (tmp_path / "into" / apps.IOS / "index" / "index.json").unlink()
    refused: Outcome = command_here("demo", *chosen, "--index", notes, "--window", "10")
    assert refused.rc == 2
    assert "is no search index; move it away" in refused.stderr


def test_a_dry_run_makes_nothing(models: TinyLine, tmp_path: Path, command_here) -> None:
    before = sorted(models.build.rglob("*"))
    outcome: Outcome = command_here("demo", "--dry-run", "--build", models.build, "--into", tmp_path / "into")
    assert outcome.rc == 0
    assert "left out: it needs dataset wnut17: POCKETBERT_DATA is not set" in outcome.stdout
    assert not (tmp_path / "into").exists()
    assert sorted(models.build.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "nothing"), "--only nothing is no model of the demo; there are:"),
        (("--backend", "onnx"), "--backend onnx does not exist; there are: litert"),
    ],
)
def test_what_does_not_exist_is_refused(arguments: tuple[str, ...], said: str, command_here) -> None:
    outcome: Outcome = command_here("demo", *arguments)
    assert outcome.rc == 2
    assert said in outcome.stderr


def test_the_demo_s_recipes_exist_and_cover_four_tasks() -> None:
    from pipeline.recipe.loading import read_recipe

    recipes = {name: read_recipe(name)[0] for name in demo.MODELS}
    tasks = {recipe.task for recipe in recipes.values()}
    assert tasks == {"embedding", "classification", "token_classification", "question_answering"}
    assert [name for name, recipe in recipes.items() if recipe.student.random_weights] == ["bert-base-random"]
    for recipe in recipes.values():
        assert set(recipe.targets) == set(apps.DESTINATIONS)
