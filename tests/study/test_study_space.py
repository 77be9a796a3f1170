"""What a study can say: its keys are the recipe's own, a mistake is told at once, and data stays apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import recipe_file, recipe_values

from pipeline import tasks
from pipeline.compress.distil import dataset as distil_data
from pipeline.data import files
from pipeline.data.datasets import DATASETS
from pipeline.errors import InputError, RecipeError
from pipeline.fronts import spec
from pipeline.fronts.spec import Judge, Study
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe
from pipeline.study import judging, space
from pipeline.study.space import Base

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
        ({"name": ["a", "b"]}, r"space\.name: name is the same in all trials.*Set it in the recipe"),
        ({"task": ["embedding", "regression"]}, r"space\.task: task is the same in all trials"),
        ({"verify.datasets": [["none"]]}, r"space\.verify\.datasets: verify is the same"),
        ({"benchmark.rounds": [1, 2]}, "benchmark is the same"),
        ({"targets": [{"litert": {"schemes": ["fp32"]}}]}, r"space\.targets: .*give target"),
        ({"targets.litert.schemes": [["fp32"]]}, "give target, such as"),
        ({"prune.compute": [0.5, 0.3, 0.5]}, r"space\.prune\.compute has 0\.5 and 0\.5, which are the same"),
        ({"prune.seed": [1, 2, 1]}, "1 and 1, which are the same"),
        ({"student.source": ["1", "none", "1"]}, "'1' and '1'"),
        ({"target": ["none"]}, "space.target = 'none'"),
        ({"target": [["litert:fp32"]]}, "space.target"),
        ({"target": {"from": 0.1, "to": 0.2}}, "space.target"),
        ({"": [1]}, r"space\. = 1"),
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
        ({"space": {"prune.compute": {"from": 0.1, "to": 0.5, "step": float("inf")}}}, "finite"),
        ({"space": {"prune.compute": {"from": 0.1, "to": 0.5, "step": 0.6}}}, "larger than the whole range"),
        ({"space": {"prune": {"compute": [0.5]}}}, "a key with dots stands in quotes"),
        ({"space": {"prune.compute": {"from": 0.1, "to": 0.5, "stp": 1}}}, "keys there: from, log, step, to"),
        ({"space": {"prune.compute": []}}, r"study\.toml: space\.prune\.compute has no values"),
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
        2: {"prune.compute": {"from": 0.3, "to": 0.9, "step": 0.35}},
        None: {"prune.compute": {"from": 0.1, "to": 0.9}},
    }
    for count, values in sizes.items():
        assert space.size(Study.model_validate({"name": "a", "recipe": "minilm", "space": values})) == count


class Lowest:
    """Proposes the lower end of everything."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        del name
        return choices[0]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        del name, high, step, log
        return low

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        del name, high, step, log
        return low


@pytest.mark.parametrize("low", [1e-9, 0.1234564])
def test_a_number_that_is_proposed_is_never_rounded_out_of_its_range(low: float) -> None:
    values = {"train.learning_rate": {"from": low, "to": 0.5, "log": True}}
    tried = Study.model_validate({"name": "a", "recipe": "minilm", "space": values})
    assert space.suggest(tried, Lowest())["train.learning_rate"] == low


def test_a_bound_on_the_loss_alone_has_the_metric_measured() -> None:
    values = {"name": "a", "recipe": "minilm", "objectives": ["size_mb"], "space": {"prune.compute": [0.5]}}
    assert Study.model_validate(values | {"budget": {"metric_drop": 0.02}}).measures == ("metric", "size_mb")


def test_a_section_comes_before_the_keys_inside_it_however_they_are_written(base: Base) -> None:
    section, key = {"prune": {"compute": 0.5}}, {"prune.compute": 0.3}
    for choice in (section | key, key | section):
        found = space.candidate(base, choice, "one")
        assert found.recipe.prune
        assert found.recipe.prune.compute == 0.3


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


def test_rows_that_a_recipe_learns_from_or_reports_on_judge_no_trial_by_whichever_name(tmp_path: Path) -> None:
    for name in ("judge.csv", "copy.csv"):
        (tmp_path / name).write_text(PAIRS)
    (tmp_path / "other.csv").write_text(PAIRS.replace("cat", "bird"))
    judge = Judge.model_validate({"file": "judge.csv", "pair": "pair"})
    for key, other, said in (("train_file", "dev_file", "learns from"), ("dev_file", "train_file", "reports on")):
        distil = {key: "copy.csv", other: "other.csv", "pair": "pair", "losses": {"hidden": 1.0}, "steps": 4}
        found = loading.read_recipe(str(recipe_file(tmp_path, distil=distil)))[0]
        with pytest.raises(RecipeError, match=rf"judge\.file = 'judge\.csv' is what tiny {said} \(copy\.csv\)"):
            judging.choose(judge, found, tmp_path / "study.toml")
    bundled = DATASETS["graded_pairs"].path()
    assert bundled
    (tmp_path / "judge.jsonl").write_bytes(bundled.read_bytes())
    columns = {"text": "first", "pair": "second", "label": "score", "file": "judge.jsonl"}
    found = loading.read_recipe(str(recipe_file(tmp_path)))[0]
    with pytest.raises(RecipeError, match=r"is what tiny reports on \(graded_pairs\)"):
        judging.choose(Judge.model_validate(columns), found, tmp_path / "study.toml")


def test_a_collection_is_the_same_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "judge.csv").write_text(PAIRS)
    (tmp_path / "linked").symlink_to("beir")
    found = loading.read_recipe(str(recipe_file(tmp_path, verify={"retrieval": ["beir"]})))[0]
    for name in ("./beir", "linked"):
        with pytest.raises(RecipeError, match="on which tiny reports its result"):
            judging.choose(Judge.model_validate({"file": "judge.csv", "retrieval": [name]}), found, tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("text,pair,label\n", "no rows"),
        ("text,pair\na,b\n", "label"),
        ("text,pair,label\na,b,nan\n", "nan"),
        (None, "exist"),
    ],
)
def test_rows_to_judge_by_that_cannot_be_read_are_told_before_anything_is_made(
    rows: str | None, said: str, tmp_path: Path
) -> None:
    if rows is not None:
        (tmp_path / "judge.csv").write_text(rows)
    found = loading.checked(recipe_values(), tmp_path / "recipe.toml")
    with pytest.raises(InputError, match=said):
        judging.choose(Judge(file="judge.csv", pair="pair"), found, tmp_path / "study.toml")


def test_without_data_it_says_what_there_could_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POCKETBERT_DATA", raising=False)
    found = loading.checked(recipe_values(), tmp_path / "recipe.toml")
    with pytest.raises(RecipeError, match=r"stsb \(.*POCKETBERT_DATA.*judge\.file"):
        judging.choose(Judge(), found, tmp_path / "study.toml")


def test_a_file_of_too_few_rows_judges_nothing(base: Base, tmp_path: Path) -> None:
    (tmp_path / "judge.csv").write_text("text,pair,label\na cat,a dog,1\n")
    with pytest.raises(InputError, match=r"judge\.csv' has 1 row; trials are told apart by 20 or more"):
        judging.choose(Judge(file="judge.csv"), base.recipe, tmp_path / "study.toml")


@pytest.mark.parametrize("learnt", [{"distil.dataset": "sst2"}, {"distil.texts": ["sst2"]}])
def test_a_trial_does_not_learn_from_the_rows_that_judge_it(learnt: dict[str, Any], tmp_path: Path) -> None:
    recipe_file(tmp_path, distil={"dataset": "rte", "losses": {"hidden": 1.0}, "steps": 4})
    base = space.base(spec.read(study_file(tmp_path)), tmp_path / "study.toml")
    by = judging.JudgedBy(judging._sampled(DATASETS["sst2"], 10, "train"), (), 32)
    path = tmp_path / "study.toml"
    judging.refuse_learnt(by, base.recipe, path, base.file)
    with pytest.raises(RecipeError, match="learns from sst2's training rows"):
        judging.refuse_learnt(by, space.candidate(base, learnt, "one").recipe, path, base.file)


def _classes(held_out: int | None, tmp_path: Path, **more: Any) -> Recipe:
    distil = {"train_file": "train.csv", "dev_file": "dev.csv", "losses": {"hidden": 1.0}, "steps": 4, **more}
    if held_out:
        distil["held_out"] = held_out
    file = recipe_file(tmp_path, task="classification", distil=distil, verify={"datasets": ["none"]})
    return loading.read_recipe(str(file))[0]


def test_rows_that_nothing_learns_from_judge_trials(tmp_path: Path) -> None:
    for name, count in (("train.csv", 60), ("dev.csv", 6)):
        lines = (f"text {number} of {name},{'good' if number % 2 else 'bad'}\n" for number in range(count))
        (tmp_path / name).write_text("text,label\n" + "".join(lines))
    study, file = tmp_path / "study.toml", tmp_path / "tiny.toml"
    with pytest.raises(RecipeError, match="Set held_out"):
        judging.choose(Judge.model_validate({"dataset": "sentiment"}), _classes(None, tmp_path), study, file)
    held = _classes(20, tmp_path)
    by = judging.choose(Judge(), held, study, file)
    assert by.dataset.split == "held_out"
    judged = {row.first for row in by.dataset.load()}
    assert held.distil
    rows = files.learned(held.distil, tasks.get("classification"), file)
    assert rows
    learned = {row.first for row in rows.load("train")}
    assert (len(judged), len(learned)) == (20, 40)
    assert not judged & learned
    judging.refuse_learnt(by, _classes(30, tmp_path), study, file)
    with pytest.raises(RecipeError, match="its held_out is 10"):
        judging.refuse_learnt(by, _classes(10, tmp_path), study, file)


def test_texts_without_those_of_the_rows_that_are_held_out_judge_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "stsb"
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        (folder / f"{split}.csv").write_text(
            "".join(f"a {split} cat {one},a dog {one},{one % 5}\n" for one in range(60))
        )
    monkeypatch.setenv("POCKETBERT_DATA", str(tmp_path / "data"))
    (tmp_path / "more.txt").write_text("a bird\na dog 1\n")

    def learns(**more: Any) -> Recipe:
        distil = {"texts": ["stsb", "more.txt"], "losses": {"similarity": 1.0}, "steps": 4, **more}
        return loading.read_recipe(str(recipe_file(tmp_path, task="embedding", distil=distil)))[0]

    study, file = tmp_path / "study.toml", tmp_path / "tiny.toml"
    for one in (learns(), learns(dataset="stsb"), learns(dataset="graded_pairs", held_out=20)):
        with pytest.raises(RecipeError, match="Set held_out"):
            judging.choose(Judge.model_validate({"dataset": "stsb"}), one, study, file)
    held, whole = learns(dataset="stsb", held_out=20), learns(dataset="stsb")
    by = judging.choose(Judge(), held, study, file)
    judged = {text for row in by.dataset.load() for text in (row.first, row.second)}
    assert held.distil
    assert whole.distil
    task = tasks.get("embedding")
    found = distil_data.find_data(held.distil, task, None, file)
    learned = {row.first for row in distil_data.training_texts(held.distil, task, found)}
    every = {row.first for row in distil_data.training_texts(held.distil, task, replace(found, dataset=None))}
    assert by.dataset.split == "held_out"
    assert learned == every - judged
    assert len(every) == 121
    # Texts of a file may be those of a dataset that it does not name.
    by = judging.choose(Judge(), learns(texts=["more.txt"], dataset="stsb", held_out=20), study, file)
    assert by.dataset.split == "held_out"
    assert len(judged) == 40
    assert found.params != distil_data.find_data(whole.distil, task, None, file).params


def test_a_teacher_that_learned_the_rows_judges_no_trial_either(tmp_path: Path) -> None:
    text = "".join(f"text {number},{'good' if number % 2 else 'bad'}\n" for number in range(60))
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("text,label\n" + text)
    train = {"train_file": "train.csv", "dev_file": "dev.csv", "steps": 1}
    values = recipe_values(task="classification", train=train, verify={"datasets": ["none"]})
    (tmp_path / "teacher.toml").write_text(tomli_w.dumps({**values, "name": "teacher"}))
    held = _classes(20, tmp_path, teacher="recipe:teacher.toml")
    with pytest.raises(RecipeError, match="teacher learns from"):
        judging.choose(Judge(), held, tmp_path / "study.toml", tmp_path / "tiny.toml")


def test_more_rows_than_there_are_cannot_be_held_out(tmp_path: Path) -> None:
    rows = DATASETS["sentiment"]
    with pytest.raises(InputError, match="5000 training rows are held out, and there are"):
        replace(rows, held_out=5000).load("train")
    few, many = (replace(rows, held_out=count) for count in (5, 20))
    held = {row.first for row in many.load("held_out")}
    assert {row.first for row in few.load("held_out")} < held
    assert few.digest("train") != many.digest("train") != rows.digest("train")
