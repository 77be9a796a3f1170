"""`pocketbert init --train`: a user's labelled file becomes a whole recipe, and what was guessed is said."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import run_command_here

from pipeline import tasks
from pipeline.data import readers
from pipeline.errors import InputError
from pipeline.planning import assumed, own_data
from pipeline.planning.own_data import inspect
from pipeline.recipe import loading

CLASSIFICATION = tasks.get("classification")
WORDS = ("broken", "lovely", "too, expensive")
LABELS = ("bug", "praise", "billing")


def rows(count: int, *, common: int = 1) -> list[tuple[str, str]]:
    """Return texts with labels; the first label comes `common` times as often as each other one."""
    order = (0,) * common + (1, 2)
    which = [order[one % len(order)] for one in range(count)]
    return [(f'it is "{WORDS[label]}" {one}', LABELS[label]) for one, label in enumerate(which)]


def written(place: Path, found: list[tuple[str, str]], text: str = "Review", label: str = "Category") -> Path:
    numbered = [("id", text, label), *((str(at), *row) for at, row in enumerate(found))]
    match place.suffix:
        case ".csv":
            with place.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(numbered)
        case ".tsv":
            place.write_text("".join("\t".join(row) + "\n" for row in numbered))
        case ".jsonl":
            place.write_text("".join(json.dumps({text: one, label: two}) + "\n" for one, two in found))
        case _:
            import pyarrow
            from pyarrow import parquet

            one, two = zip(*found, strict=True)
            parquet.write_table(pyarrow.table({text: list(one), label: list(two)}), place)
    return place


@pytest.mark.toolchain
@pytest.mark.parametrize("ending", readers.TABLES)
def test_a_dev_split_has_each_label_and_every_row_is_in_one_part(ending: str, tmp_path: Path) -> None:
    file = written(tmp_path / f"my{ending}", rows(120))
    found = inspect(file, CLASSIFICATION, {}, tmp_path / "recipe.toml")
    found.write()
    assert found.columns == {"text": "Review", "label": "Category"}
    assert (found.labels, found.metric) == (tuple(sorted(LABELS)), None)
    parts = [list(readers.table(one, ("Review", "Category"))) for one in (found.train, found.dev)]
    assert [len(part) for part in parts] == [100, 20]
    every = Counter(tuple(fields) for part in parts for _, fields in part)
    assert every == Counter(rows(120))
    assert {fields[1] for _, fields in parts[1]} == set(LABELS)
    again = inspect(file, CLASSIFICATION, {}, tmp_path / "recipe.toml")
    again.write()
    assert list(readers.table(again.dev, ("Review", "Category"))) == parts[1]
    # What the user brought stays as it was.
    assert Counter(tuple(fields) for _, fields in readers.table(file, ("Review", "Category"))) == Counter(rows(120))


@pytest.mark.toolchain
def test_a_file_of_the_user_s_own_is_not_replaced(tmp_path: Path) -> None:
    file, own = written(tmp_path / "my.csv", rows(60)), tmp_path / "recipe-dev.csv"
    own.write_text("my own work")
    with pytest.raises(InputError, match=r"recipe-dev.csv exists already, and is no part of .*my.csv. Move it"):
        inspect(file, CLASSIFICATION, {}, tmp_path / "recipe.toml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.csv", "recipe-dev.csv"]
    assert own.read_text() == "my own work"


@pytest.mark.toolchain
def test_the_metric_is_that_of_the_labels_balance(tmp_path: Path) -> None:
    even = inspect(written(tmp_path / "even.csv", rows(90)), CLASSIFICATION, {}, tmp_path / "r.toml")
    uneven = inspect(written(tmp_path / "uneven.csv", rows(90, common=7)), CLASSIFICATION, {}, tmp_path / "r.toml")
    assert (even.metric, uneven.metric) == (None, "matthews")
    assert "accuracy would be 0.78" in uneven.said["metric"]


def test_a_folder_has_its_own_dev_split(tmp_path: Path) -> None:
    train, dev = (
        written(tmp_path / f"{name}.csv", rows(30), "sentence", "label") for name in ("train-00", "validation")
    )
    found = inspect(tmp_path, CLASSIFICATION, {}, tmp_path / "recipe.toml")
    assert (found.train, found.dev, found.columns) == (train, dev, {"text": "sentence"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train-00.csv", "validation.csv"]


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        (
            ("words", "label"),
            {},
            r"no column is known to hold the text; there are: id, words, label. .*--text",
        ),
        (("text", "kind"), {}, r"no column is known to hold the label; .*--label"),
        (("text", "label"), {"label": "Kind"}, r"--label Kind: .* has no such column; there are: id, text, label"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(
    columns: tuple[str, str], given: dict[str, str], said: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "my.csv", rows(60), *columns)
    with pytest.raises(InputError, match=said):
        inspect(file, CLASSIFICATION, given, tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        (
            "my.csv",
            "embedding",
            "no labels to train on.*--task classification; there are: classification.*from a teacher",
        ),
        ("my.csv", "token_classification", r"trained on \.conll"),
        ("absent", "classification", "does not exist; name a file"),
        ("empty", "classification", "no file whose name begins with train.*there are: none"),
        ("few.csv", "classification", "has 5 rows; 40 are needed"),
    ],
)
def test_files_that_nothing_can_be_trained_on_are_refused(name: str, task: str, said: str, tmp_path: Path) -> None:
    written(tmp_path / "my.csv", rows(60))
    written(tmp_path / "few.csv", rows(5))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        inspect(tmp_path / name, tasks.get(task), {}, tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", "text,label\na text,\n", r"empty.csv, row 1: column 'label' is empty"),
        ("short.tsv", "text\tlabel\na text\n", r"short.tsv, row 1: column 'label' is empty"),
        ("nested.jsonl", '{"text": "a text", "label": {"id": 1}}\n', r"nested.jsonl, row 1: .* holds a dict"),
        ("one.csv", "text,label\na,same\nb,same\n", "all 2 rows have 'same' in column label, and at least two"),
        ("comma.csv", "text;label\na;b\n", r"Say it with --text\. Columns of a \.csv file have commas between them"),
    ],
)
def test_rows_that_training_would_refuse_are_named_in_the_user_s_own_file(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said):
        inspect(tmp_path / name, CLASSIFICATION, {}, tmp_path / "recipe.toml")


@pytest.mark.toolchain
def test_labels_that_count_as_false_are_labels(tmp_path: Path) -> None:
    file = tmp_path / "my.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {one}", "label": one % 2}) + "\n" for one in range(60)))
    assert inspect(file, CLASSIFICATION, {}, tmp_path / "recipe.toml").labels == ("0", "1")


@pytest.mark.toolchain
def test_the_dev_split_has_no_label_that_training_lacks(tmp_path: Path) -> None:
    rare = [(f"a rare text {one}", f"rare {one}") for one in range(30)]
    file = written(tmp_path / "my.csv", [*rows(60), *rare])
    found = inspect(file, CLASSIFICATION, {}, tmp_path / "recipe.toml")
    found.write()
    trained, judged = ([fields for _, fields in readers.table(one, ("Category",))] for one in (found.train, found.dev))
    assert (len(trained), len(judged)) == (70, 20)
    assert {label for (label,) in judged} < {label for (label,) in trained}
    file = written(tmp_path / "ids.csv", [(f"text {one}", f"id {one}") for one in range(60)])
    with pytest.raises(InputError, match=r"has 60 labels in 60 rows, too few .*--label"):
        inspect(file, CLASSIFICATION, {}, tmp_path / "ids.toml")


@pytest.mark.toolchain
def test_a_rare_one_of_several_labels_is_trained_on(tmp_path: Path) -> None:
    several = [(f"text {one}", f"common|rare {one}" if one % 3 else "") for one in range(60)]
    file = written(tmp_path / "my.csv", several)
    with pytest.raises(InputError, match="has 41 labels in 60 rows, too few of each"):
        inspect(file, tasks.get("multi_label_classification"), {}, tmp_path / "recipe.toml")
    several = [(f"text {one}", f"common|rare {one}" if one % 3 == 1 else "common") for one in range(60)]
    file = written(tmp_path / "my.csv", several)
    found = inspect(file, tasks.get("multi_label_classification"), {}, tmp_path / "recipe.toml")
    found.write()
    assert (found.metric, len(found.labels)) == (None, 21)
    every = {
        label for _, _, labels in readers.table_of_labels(found.train, ("Review",), "Category") for label in labels
    }
    assert every == set(found.labels)
    assert len(list(readers.records(found.dev))) == 20


@pytest.mark.toolchain
def test_a_field_that_a_row_lacks_stays_empty(tmp_path: Path) -> None:
    lines = "".join(f"text {one}\t{'ab'[one % 2]}\n" for one in range(60))
    (tmp_path / "my.tsv").write_text(f"text\tlabel\tnote\n{lines}")
    found = inspect(tmp_path / "my.tsv", CLASSIFICATION, {}, tmp_path / "recipe.toml")
    found.write()
    assert {fields["note"] for _, fields in readers.records(found.train)} == {""}


def test_the_files_of_a_folder_are_told_apart_and_said(tmp_path: Path) -> None:
    train, dev = (written(tmp_path / f"{name}.csv", rows(30), "text", "label") for name in ("train", "valid-0"))
    written(tmp_path / "training-old.csv", rows(6), "text", "label")
    written(tmp_path / "values.csv", rows(9), "text", "label")
    found = inspect(tmp_path, CLASSIFICATION, {}, tmp_path / "recipe.toml")
    assert (found.train, found.dev) == (train, dev)
    assert found.said["dev split"] == f"{dev}, 30 rows"
    train.rename(tmp_path / "train-1.csv")
    with pytest.raises(InputError, match=r"several files could be .*: train-1.csv, training-old.csv\. Join them"):
        inspect(tmp_path, CLASSIFICATION, {}, tmp_path / "recipe.toml")


def test_a_dev_file_is_read_with_the_training_file_s_columns_and_labels(tmp_path: Path) -> None:
    written(tmp_path / "train.csv", rows(30), "text", "label")
    written(tmp_path / "dev.csv", [*rows(30), ("a text", "unknown")], "text", "label")
    with pytest.raises(InputError, match=r"dev.csv: label 'unknown' is not in train.csv"):
        inspect(tmp_path, CLASSIFICATION, {}, tmp_path / "recipe.toml")


def test_a_column_has_one_part(tmp_path: Path) -> None:
    file = written(tmp_path / "my.csv", rows(60))
    with pytest.raises(InputError, match="column Category cannot be text and label at once"):
        inspect(file, CLASSIFICATION, {"text": "Category", "label": "Category"}, tmp_path / "recipe.toml")
    with pytest.raises(InputError, match="multi_regression has a column of numbers for each output"):
        inspect(file, tasks.get("multi_regression"), {}, tmp_path / "recipe.toml")


@pytest.mark.toolchain
def test_the_recipe_is_whole_and_its_metric_is_trained_with(tmp_path: Path, tiny_student: Any) -> None:
    file = written(tmp_path / "my.csv", rows(90, common=7))
    given = ["--task", "classification", "--train", str(file), "--output", str(tmp_path / "r.toml")]
    outcome = run_command_here("init", tiny_student("bert", "classification"), *given, cwd=tmp_path)
    assert outcome.rc == 0, outcome.stderr
    assert "20 of 90 rows, each label has its share: " in outcome.stdout
    recipe, _ = loading.read_recipe(str(tmp_path / "r.toml"))
    assert recipe.train is not None
    # The head of the checkpoint has labels of its own.
    assert recipe.train.new_head
    assert (recipe.train.train_file, recipe.train.dev_file) == ("r-train.csv", "r-dev.csv")
    assert (recipe.train.text, recipe.train.label, recipe.train.metric) == ("Review", "Category", "matthews")
    assert recipe.verify.datasets is None
    planned = run_command_here("plan", tmp_path / "r.toml", "--build", tmp_path / "build", cwd=tmp_path)
    assert planned.rc == 0, planned.stderr
    text = (tmp_path / "r.toml").read_text().replace('metric = "matthews"', 'metric = "micro_f1"')
    (tmp_path / "r.toml").write_text(text)
    refused = run_command_here("plan", tmp_path / "r.toml", "--build", tmp_path / "build", cwd=tmp_path)
    assert "train.metric = 'micro_f1': task classification has accuracy, matthews." in refused.stderr


def test_a_path_is_relative_to_the_recipe_beside_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipes" / "r.toml"
    assert own_data.relative(tmp_path / "recipes" / "my.csv", recipe) == "my.csv"
    assert own_data.relative(tmp_path / "my.csv", recipe) == str(tmp_path / "my.csv")


# --- what is assumed of a checkpoint ------------------------------------------------------------------------------


def summary(**changed: Any) -> Any:
    from pipeline.checkpoint.inspection import Summary

    usual: dict[str, Any] = dict.fromkeys(Summary.__dataclass_fields__)
    usual |= {"max_length": 512, "labels": [], "dtypes": ["F32"], "prompts": {}, "head": "Pooling (cls) → Normalize"}
    return Summary(**(usual | {"head_file": "modules.json", "normalizes": True} | changed))


def test_pooling_comes_with_the_file_or_option_that_says_it() -> None:
    said = assumed.assumptions(summary(), "embedding", None, 512)
    assert said["pooling"] == "Pooling (cls) → Normalize, from modules.json"
    assert said["vectors"] == "have unit length"
    kept = assumed.assumptions(summary(normalizes=False), "embedding", None, 512)
    assert kept["vectors"].startswith("keep their lengths")
    bare = assumed.assumptions(summary(head=None, head_file=None, normalizes=False), "embedding", "cls", 512)
    assert bare["pooling"].startswith("cls, given by --pooling")
    assert bare["vectors"].startswith("are scaled to unit length")


def test_prompts_limits_and_labels_are_said_where_they_count() -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    said = assumed.assumptions(summary(prompts=prompts, trained_length=128), "embedding", None, 128)
    assert said["prompts"].startswith("query ('query:'), passage ('passage:'); none is put before a text unless")
    assert said["limit"] == "128 tokens, where sentence-transformers truncates texts; the encoder takes 512"
    default = assumed.assumptions(summary(prompts=prompts, default_prompt="query"), "embedding", None, 64)
    assert default["prompts"].endswith("query is put before each text, unless another one is named")
    assert default["limit"].endswith("longer texts than 64 tokens are cut")
    labels = [f"label {number}" for number in range(10)]
    assert assumed.assumptions(summary(labels=labels), "classification", None, 512)["labels"].endswith("and 2 more")
    assert "labels" not in assumed.assumptions(summary(labels=["LABEL_0"]), "regression", None, 512)
    half = assumed.assumptions(summary(dtypes=["F16", "F32"]), "classification", None, 512)
    assert half["weights"].startswith("stored as F16, computed in fp32")
