"""Several labels at once, and several numbers: the files of a user, thresholds, and the line to a prediction."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LABELS, Outcome, planned, recipe_file, run_command_here
from sklearn.metrics import f1_score

from pipeline import artifact
from pipeline.convert.model import Model
from pipeline.convert.stage import Target
from pipeline.data import files
from pipeline.data.datasets import Columns, Dataset
from pipeline.errors import ArtifactError, InputError, RecipeError
from pipeline.formats import signature
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.schemes import Gates
from pipeline.student import reference, thresholds
from pipeline.student.thresholds import best_threshold
from pipeline.tasks import TASKS
from pipeline.verify import companions
from pipeline.verify import stage as verify
from pipeline.verify.record import VerifyRequest

TASK, NUMBERS = "multi_label_classification", "multi_regression"
WORDS = ("river", "house", "paper", "seven", "table", "clock")


def own(path: Path, task: str = TASK, **columns: Any) -> Dataset:
    given: dict[str, Any] = {"text": "text", "pair": None, "label": "label"} | columns
    return files.dataset(TASKS[task], path, path, Columns(**given))


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.toolchain
def test_labels_stand_in_one_cell_in_a_list_or_in_columns_of_their_own(tmp_path: Path) -> None:
    import datasets

    rows = [("one", ["toxic", "insult"]), ("two", []), ("three", ["insult"])]
    (tmp_path / "a.csv").write_text("text,label\none,toxic | insult|toxic\ntwo,\nthree,insult\n")
    (tmp_path / "a.tsv").write_text("text\tlabel\none\ttoxic|insult\ntwo\t \nthree\tinsult\n")
    lines = [json.dumps({"text": text, "label": labels}) for text, labels in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    names = datasets.List(datasets.ClassLabel(names=["toxic", "insult"]))
    table = {"text": [text for text, _ in rows], "label": [[("toxic", "insult").index(x) for x in y] for _, y in rows]}
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    datasets.Dataset.from_dict(table, features=features).to_parquet(str(tmp_path / "a.parquet"))
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        found = own(tmp_path / name)
        assert found.names == ("insult", "toxic"), name
        assert [(row.first, row.values) for row in found.load("train")] == [
            ("one", (1.0, 1.0)),
            ("two", (0.0, 0.0)),
            ("three", (1.0, 0.0)),
        ]
    (tmp_path / "jigsaw.csv").write_text("id,text,toxic,insult\n0,one,1,1\n1,two,0,0\n2,three,0,1\n")
    found = own(tmp_path / "jigsaw.csv", labels=("toxic", "insult"))
    assert (found.names, found.metric) == (("toxic", "insult"), "micro_f1")
    assert [row.values for row in found.load()] == [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0)]


def test_numbers_stand_in_columns_beside_a_pair(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,pair,size,speed\na,b,0.5,-3\nc,d,1e2,0\n")
    found = own(tmp_path / "a.csv", NUMBERS, pair="pair", labels=("speed", "size"))
    assert (found.names, found.metric) == (("speed", "size"), "mean_spearman")
    assert [(row.first, row.second, row.values) for row in found.load()] == [
        ("a", "b", (-3.0, 0.5)),
        ("c", "d", (0.0, 100.0)),
    ]


BAD: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "an empty label": ("a.csv", (), "text,label\na,x||y\n", r"row 1: column 'label' has an empty label; '\|' stands"),
    "no column": ("a.csv", (), "text,label2\na,x\n", r"row 1: there is no column 'label'"),
    "an empty text": ("a.csv", (), "text,label\n,x\n", r"row 1: column 'text' is empty"),
    "a list of lists": ("a.jsonl", (), '{"text": "a", "label": [["x"]]}', r"column 'label' holds a list"),
    "half a character": ("a.jsonl", (), '{"text": "a", "label": ["\\ud83d"]}', r"holds half a character"),
    "neither 1 nor 0": ("a.csv", ("x", "y"), "text,x,y\na,1,2\n", r"row 1: column 'y' holds 2; it has to be 1 for"),
    "no number": ("a.csv", ("x", "y"), "text,x,y\na,1,yes\n", r"row 1: label 'yes' is not a number"),
    "an empty cell": ("a.csv", ("x", "y"), "text,x,y\na,1,\n", r"row 1: column 'y' is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_by_row_and_column(case: str, tmp_path: Path) -> None:
    name, columns, text, message = BAD[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        own(tmp_path / name, labels=columns).load()


def test_a_label_of_the_dev_file_that_no_training_row_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x|y\nb,\n")
    (tmp_path / "dev.csv").write_text("text,label\na,x|z\n")
    with pytest.raises(InputError, match=r"dev\.csv: label 'z' is not in train\.csv, which has: x, y"):
        files.dataset(TASKS[TASK], tmp_path / "train.csv", tmp_path / "dev.csv", Columns("text", None, "label"))


def test_a_label_that_no_text_has_is_none_and_a_column_that_is_absent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,x,y\na,x|y,1,1\nb,,0,0\n")
    cells, columns = own(tmp_path / "a.csv"), own(tmp_path / "a.csv", labels=("x", "y"))
    assert cells.label_ids(["y", "rare", "x"]) == [2, 0]
    assert cells.load()[0].by_output([2, 0], 3) == (1.0, 0.0, 1.0)
    assert columns.label_ids(["y", "x"]) == [1, 0]
    assert columns.label_ids(["y", "rare", "x"]) == "its columns are x, y, and the checkpoint has y, rare, x"


# --- recipes --------------------------------------------------------------------------------------------------------


def labelled(folder: Path, name: str = "labelled.csv", rows: int = 60) -> str:
    draw = random.Random(3)
    lines = ["text,label"]
    for _ in range(rows):
        given = [label for label in LABELS if draw.random() < 0.3]
        lines.append(f"{' '.join(draw.choices(WORDS, k=6))},{'|'.join(given)}")
    (folder / name).write_text("\n".join(lines) + "\n")
    return name


SAME = "text,label\na,x\nb,x\n"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "columns of one label": (
        "classification",
        {"train": {"train_file": "a.csv", "dev_file": "a.csv", "labels": ["x"]}},
        r"train\.labels: a text has one label in task classification; several have: multi_label_class",
    ),
    "numbers without columns": (
        NUMBERS,
        {"train": {"train_file": "a.csv", "dev_file": "a.csv"}},
        r"train\.labels: task multi_regression has a column of numbers for each output",
    ),
    "numbers to distil without columns": (
        NUMBERS,
        {"distil": {"train_file": "a.csv", "dev_file": "a.csv", "losses": {"logits_mse": 1.0}}},
        r"distil\.labels: task multi_regression has a column",
    ),
    "columns of a known dataset": (
        "classification",
        {"train": {"dataset": "sst2", "labels": ["x"]}},
        r"train\.labels names a column of train_file; dataset sst2",
    ),
    "labels that never differ": (
        TASK,
        {"train": {"train_file": "a.csv", "dev_file": "a.csv", "max_length": 16}},
        "all 2 rows have the same labels, and a label has to be given to some",
    ),
    "a number that never differs": (
        NUMBERS,
        {"train": {"train_file": "n.csv", "dev_file": "n.csv", "labels": ["x", "y"], "max_length": 16}},
        "all 2 rows have the same number in column 'y'",
    ),
    "thresholds of classes": (
        "classification",
        {"thresholds": {"file": "a.csv"}},
        "thresholds: task classification has none; there are some for: multi_label_classification",
    ),
    "thresholds of nothing": (TASK, {"thresholds": {}}, r"\[thresholds\] has no file, and the recipe trains on no"),
    "a column of nothing": (TASK, {"thresholds": {"label": "x"}}, r"thresholds\.label names a column of thresholds\.f"),
    "an unknown label": (TASK, {"thresholds": {"file": "a.csv"}}, "its labels are x, and the checkpoint has negative"),
    "no such file": (TASK, {"thresholds": {"file": "b.csv"}}, r"b\.csv does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_before_any_work(
    case: str, tiny_student: Callable[..., Path], tmp_path: Path
) -> None:
    task, sections, message = REFUSED[case]
    (tmp_path / "a.csv").write_text(SAME)
    (tmp_path / "n.csv").write_text("text,x,y\na,1,2\nb,2,2\n")
    recipe = recipe_file(tmp_path, task=task, student={"source": str(tiny_student("bert", task))}, **sections)
    with pytest.raises((RecipeError, InputError), match=message):
        planned(recipe, "student")


def test_thresholds_are_part_of_the_student_s_key(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    source = {"source": str(tiny_student("bert", TASK))}
    found = []
    calibrated = {"thresholds": {"file": "labelled.csv"}}
    for rows, sections in ((60, {}), (60, calibrated), (50, calibrated)):
        labelled(tmp_path, rows=rows)
        path = recipe_file(tmp_path, task=TASK, student=source, **sections)
        parsed, file = loading.read_recipe(str(path))
        graph = build(Request(parsed, file, "student", []))
        (node,) = (node for node in graph.nodes.values() if node.name == "student")
        found.append(json.dumps(node.params, sort_keys=True))
    assert len(set(found)) == 3


# --- thresholds -----------------------------------------------------------------------------------------------------


def test_the_best_threshold_is_that_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        true = rng.random(40) < 0.2
        chances = np.round(np.clip(0.35 * true + rng.normal(0.3, 0.15, 40), 0.01, 0.99), 3)
        found = best_threshold(chances, true)
        # Which labels are given changes at a probability alone, so these are all thresholds that there are.
        scores = [f1_score(true, chances >= at, zero_division=0) for at in (*np.unique(chances), 0.999)]
        assert f1_score(true, chances >= found) == pytest.approx(max(scores))


def test_of_equal_thresholds_the_nearest_to_one_half_is_taken() -> None:
    chances = np.array([0.1, 0.2, 0.3, 0.9])
    # Between .3 and .9 one half is as good as any other.
    assert best_threshold(chances, np.array([False, False, False, True])) == 0.5
    assert best_threshold(chances, np.array([False, False, True, True])) == 0.25
    # 1 of 1 given rightly, of 2 there are; or 2 of 4: F1 is 2/3 either way.
    assert best_threshold(chances, np.array([True, False, False, True])) == 0.5
    assert best_threshold(chances, np.zeros(4, bool)) == 0.5
    assert 0 < best_threshold(np.array([0.0, 1e-9, 1.0]), np.array([True, True, True])) < 1


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, randomised: Callable[..., Path]) -> tuple[Path, Outcome]:
    """A student of three labels at once with calibrated thresholds, verified as LiteRT."""
    folder = tmp_path_factory.mktemp("labels")
    recipe = recipe_file(
        folder,
        task=TASK,
        student={"source": str(randomised("bert", TASK)), "random_weights": True},
        thresholds={"file": labelled(folder)},
        targets={"litert": {"schemes": ["fp32", "int8_dynamic"]}},
    )
    return folder, run_command_here("verify", recipe, "--build", folder / "build", "--json", cwd=folder)


@pytest.mark.numeric
def test_thresholds_go_from_labelled_texts_into_every_file(line: tuple[Path, Outcome]) -> None:
    folder, outcome = line
    assert outcome.document["verdicts"] == {"litert-fp32": "passed", "litert-int8_dynamic": "passed"}, outcome.stdout
    student = folder / "build" / "tiny" / "student"
    found = thresholds.read(student)
    assert found is not None
    assert len(found) == len(LABELS)
    assert 0.5 not in found
    metrics = artifact.read_manifest(student).metrics
    assert metrics["thresholds"] == found
    known = metrics["calibration"]
    assert known["texts"] == 60
    # Each label has its best F1, so their mean cannot be lower.
    assert known["calibrated"]["macro_f1"] > known["at_half"]["macro_f1"]
    assert known["calibrated"]["micro_f1"] > known["at_half"]["micro_f1"]
    for scheme in ("fp32", "int8_dynamic"):
        model = folder / "build" / "tiny" / f"litert-{scheme}"
        assert signature.read(model / "model").thresholds == tuple(found)
        measures = verify.read_parity(model / "parity").measures
        assert measures is not None
        assert measures.agreement is not None
        assert measures.kl is not None
        assert measures.agreement > 0.9


def test_a_prediction_has_every_probability_and_the_labels_that_are_given(
    line: tuple[Path, Outcome], command_here: Callable[..., Outcome]
) -> None:
    model = line[0] / "build" / "tiny" / "litert-fp32" / "model"
    with Model(model) as opened:
        (found,) = opened.predict(["the old house"])
        at = opened.signature.thresholds
    assert at is not None
    chances = 1 / (1 + np.exp(-found.vector.astype(float)))
    assert found.scores == pytest.approx(dict(zip(LABELS, chances, strict=True)))
    given = [label for label, chance, least in zip(LABELS, chances, at, strict=True) if chance >= least]
    assert found.given is not None
    assert set(found.given) == set(given)
    document = command_here("predict", model, "the old house", "--json").document["predictions"][0]
    assert document["given"] == list(found.given)
    assert document["labels"] == pytest.approx(found.scores)
    said = command_here("predict", model, "the old house").stdout
    lines = [row.split() for row in said.splitlines()[1:]]
    assert {row[1]: row[2:] for row in lines} == {label: ["given"] * (label in given) for label in LABELS}


@pytest.fixture
def copied(line: tuple[Path, Outcome], tmp_path: Path) -> Path:
    return Path(shutil.copytree(line[0] / "build" / "tiny" / "litert-fp32" / "model", tmp_path / "model"))


def edited(model: Path, **fields: Any) -> None:
    file = model / signature.SIGNATURE
    file.chmod(0o644)
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"thresholds": [0.5, 0.5]}, "thresholds: there are 2 for 3 labels"),
        ({"thresholds": [0.5, 0.5, 1.5]}, "are not all above 0 and below 1"),
        ({"thresholds": [0.0, 0.5, 0.5]}, "are not all above 0 and below 1"),
        ({"task": "classification", "output_kind": "logits"}, "thresholds: task classification has none"),
        ({"labels": None}, "labels: there are 0 for 3 outputs"),
    ],
)
def test_thresholds_that_cannot_be_are_refused(copied: Path, fields: dict[str, Any], message: str) -> None:
    edited(copied, **fields)
    with pytest.raises(ArtifactError, match=message):
        signature.read(copied)


def test_without_thresholds_one_half_decides(copied: Path) -> None:
    edited(copied, thresholds=None)
    with Model(copied) as model:
        for one in model.predict(["the old house", "seven rivers"]):
            assert one.scores is not None
            assert set(one.given or ()) == {label for label, share in one.scores.items() if share >= 0.5}


def test_other_thresholds_than_the_student_s_fail_verification(line: tuple[Path, Outcome], copied: Path) -> None:
    build = line[0] / "build" / "tiny"
    claimed = signature.read(copied)
    request = VerifyRequest(Target("litert", "fp32"), Gates(), random_weights=True)
    known, of_student = reference.read(build / "reference-32"), artifact.read_manifest(build / "student")
    assert companions._wrong_signature(claimed, claimed.functions, known, request, of_student) is None
    for wrong in ((0.2, *(claimed.thresholds or ())[1:]), None):
        other = claimed.model_copy(update={"thresholds": wrong})
        said = companions._wrong_signature(other, claimed.functions, known, request, of_student)
        assert said is not None
        assert said.startswith("signature.json has thresholds")


# --- several numbers, and training ---------------------------------------------------------------------------------


def test_several_numbers_are_trained_converted_and_predicted_by_name(
    tiny_student: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    draw = random.Random(1)
    rows = [
        (" ".join([*draw.choices(WORDS, k=3), *["very"] * 4 * size]), size, 1 - size)
        for size in (draw.randint(0, 1) for _ in range(128))
    ]
    (tmp_path / "a.csv").write_text("\n".join(["text,size,speed", *(f"{a},{b},{c}" for a, b, c in rows)]))
    train = {"train_file": "a.csv", "dev_file": "a.csv", "labels": ["size", "speed"], "steps": 40, "max_length": 16}
    recipe = recipe_file(
        tmp_path,
        task=NUMBERS,
        student={"source": str(tiny_student("bert", "embedding"))},
        train=train | {"learning_rate": 2e-3, "batch_size": 16},
        targets={"executorch": {"schemes": ["fp32"]}},
    )
    outcome = command_here("verify", recipe, "--json")
    assert outcome.document["verdicts"] == {"executorch-fp32": "passed"}, outcome.stdout
    tiny = tmp_path / "build" / "tiny"
    (scored,) = verify.read_parity(tiny / "executorch-fp32" / "parity").datasets
    assert scored.metric == "mean_spearman"
    assert scored.reference > 0.7
    assert json.loads((tiny / "trained" / "config.json").read_text())["problem_type"] == "regression"
    large, small = command_here(
        "predict", tiny / "executorch-fp32" / "model", "river very very very very", "paper house", "--json"
    ).document["predictions"]
    assert set(large["values"]) == {"size", "speed"}
    assert large["values"]["size"] > small["values"]["size"]
    assert large["values"]["speed"] < small["values"]["speed"]
    said = command_here("predict", tiny / "executorch-fp32" / "model", "paper house").stdout
    assert [row.split()[1] for row in said.splitlines()[1:]] == ["size", "speed"]
