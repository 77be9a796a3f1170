"""What a study can say: its keys are the recipe's own, a mistake is told at once, and data stays apart."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import recipe_file, recipe_values

from pipeline.errors import InputError, RecipeError
from pipeline.recipe import loading
from pipeline.study import judging, space, spec
from pipeline.study.space import Base
from pipeline.study.spec import Judge, Study

PAIRS = "text,pair,label\n" + "".join(f"a cat {one},a dog {one},{one % 5}\n" for one in range(60))


def study_file(folder: Path, **overrides: Any) -> Path:
    """Write a small study beside its recipe; keys given replace whole sections."""
    (folder / "judge.csv").write_text(PAIRS)
    values: dict[str, Any] = {
        "name": "tiny",
        "recipe": "./recipe.toml",
        "objectives": ["metric", "size_mb"],
        "space": {"prune.compute": ["none", 0.5]},
        "judge": {"file": "judge.csv"},
    }
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(values | overrides))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Base:
    recipe_file(tmp_path, convert={"sequence_lengths": [8, 32]}, distil={"losses": {"hidden": 1.0}, "steps": 4})
    path = study_file(tmp_path)
    return space.base(spec.read(path), path)


def test_a_choice_replaces_values_and_none_takes_a_key_away(base: Base) -> None:
    both = space.candidate(base, {"prune.compute": 0.5, "factorise.embedding": 16, "target": "executorch:fp32"}, "one")
    assert both.recipe.prune is not None
    assert (both.recipe.name, both.recipe.prune.compute, str(both.target)) == ("one", 0.5, "executorch-fp32")
    assert list(both.recipe.targets) == ["executorch"]
    without = space.candidate(base, {"prune.compute": "none", "distil": "none"}, "two")
    assert without.recipe.prune is None
    assert without.recipe.distil is None
    # The base has more than one target; a trial has the first of them.
    assert str(without.target) == "litert-fp32"
    assert "distil" in base.values, "the base is left as it was"


def test_a_section_is_a_value_too(base: Base) -> None:
    found = space.candidate(base, {"vocabulary": {"corpus": ["own.txt"], "keep": 0.5}}, "one")
    assert found.recipe.vocabulary is not None
    assert found.recipe.vocabulary.keep == 0.5


def test_without_training_a_student_is_compressed_alone(base: Base) -> None:
    whole = space.candidate(base, {"prune.compute": 0.5}, "one")
    found = space.untrained(whole)
    assert found.recipe.distil is None
    assert found.recipe.prune is not None
    assert found.recipe.prune.refine == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prune.comput": [0.5]}, r"space\.prune\.comput = 0\.5.*compute"),
        ({"prune.compute": [0.5, 1.5]}, r"space\.prune\.compute = 1\.5"),
        ({"prune.compute": {"from": 0.5, "to": 2.0}}, r"space\.prune\.compute = 2\.0"),
        ({"target": ["litert:fp3"]}, r"space\.target.*fp3"),
        ({"name.first": ["a"]}, r"name\.first: name is no table"),
    ],
)
def test_a_key_or_value_that_no_recipe_has_is_told_at_once(
    values: dict[str, Any], said: str, base: Base, tmp_path: Path
) -> None:
    path = study_file(tmp_path, space=values)
    with pytest.raises(RecipeError, match=said):
        space.base(spec.read(path), path)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"objectives": ["size_mb"]}, "no measure of quality"),
        ({"objectives": ["metric", "recall_at_10"]}, r"judge\.retrieval"),
        ({"objectives": ["metric", "metric"]}, "twice"),
        ({"objectives": ["metric", "size"]}, "size_mb"),
        ({"space": {"prune.compute": 0.5}}, "list of values, or a range"),
        ({"space": {"prune.compute": {"from": 0.9, "to": 0.5}}}, "from has to be smaller"),
        ({"spce": {}}, "space"),
        ({"budget": {"size": 3}}, "size_mb"),
    ],
)
def test_a_study_that_cannot_be_is_told(overrides: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        spec.read(study_file(tmp_path, **overrides))


def test_the_number_of_choices(tmp_path: Path) -> None:
    sizes = {
        60: {"prune.compute": ["none", 0.5, 0.3], "factorise.embedding": {"from": 32, "to": 640, "step": 32}},
        9: {"prune.compute": {"from": 0.1, "to": 0.9, "step": 0.1}},
        None: {"prune.compute": {"from": 0.1, "to": 0.9}},
    }
    for count, values in sizes.items():
        assert space.size(Study.model_validate({"name": "a", "recipe": "minilm", "space": values})) == count


def test_what_a_recipe_reports_on_or_learns_judges_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge.model_validate({"file": "judge.csv", "retrieval": ["stsb_partners"]})
    file = recipe_file(tmp_path, verify={"retrieval": ["stsb_partners"]})
    (tmp_path / "judge.csv").write_text(PAIRS)
    found = loading.read_recipe(str(file))[0]
    with pytest.raises(RecipeError, match="on which tiny reports its result"):
        judging.choose(judge, found, tmp_path / "study.toml")
    folder = tmp_path / "data" / "stsb"
    folder.mkdir(parents=True)
    monkeypatch.setenv("POCKETBERT_DATA", str(tmp_path / "data"))
    with pytest.raises((RecipeError, InputError), match="judge"):
        judging.choose(Judge(dataset="stsb"), found, tmp_path / "study.toml")


def test_without_data_it_says_what_there_could_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POCKETBERT_DATA", raising=False)
    found = loading.checked(recipe_values(), tmp_path / "recipe.toml")
    with pytest.raises(RecipeError, match=r"stsb \(.*POCKETBERT_DATA.*judge\.file"):
        judging.choose(Judge(), found, tmp_path / "study.toml")
