"""[head], [start] and [distil] in a recipe: labelled files of one's own, what is left behind, and what is refused."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from conftest import Outcome, branch_of, planned, recipe_file
from datasets import ClassLabel, Features, Value
from pyarrow import parquet

from pipeline import artifact, tasks
from pipeline.checkpoint.files import read_json
from pipeline.compress.distil import dataset as distil_dataset
from pipeline.compress.distil import stage
from pipeline.data import corpus, files
from pipeline.data import datasets as data
from pipeline.data.datasets import Columns
from pipeline.data.location import locate
from pipeline.errors import InputError, PipelineError
from pipeline.recipe.distillation import DistilSection
from pipeline.text.bundled import verification_texts
from pipeline.text.encoding import Encoder
from pipeline.text.tokenizers import load_tokenizer

LABELS = ("negative", "neutral", "positive")
OWN = {"train_file": "train.csv", "dev_file": "dev.csv", "max_length": 16}
FAST = {"learning_rate": 2e-3, "batch_size": 16, "weight_decay": 0.0}
SOFT = {"losses": {"soft_targets": 1.0}, "alpha": 0.5, "steps": 20}


def table(count: int, labels: tuple[str, ...] = LABELS) -> str:
    draw = random.Random(5)
    lines = ["text,label"]
    for number in range(count):
        words = draw.choices(["the", "house", "river", "of", "seven", "old", "tables", "and", "paper"], k=6)
        label = labels[number % len(labels)]
        lines.append(f"{' '.join([*words, label])},{label}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def place(tmp_path: Path, tiny_student: Callable[..., Path]) -> Path:
    """A folder with a tiny encoder, a tiny classifier, and labelled files."""
    for name, task in (("encoder", "embedding"), ("classifier", "classification")):
        shutil.copytree(tiny_student("bert", task), tmp_path / name)
    for name, count in (("train", 96), ("dev", 30)):
        (tmp_path / f"{name}.csv").write_text(table(count))
    (tmp_path / "plain.txt").write_text(
        "\n".join(sorted({text.first.replace("\n", " ") for text in verification_texts()}))
    )
    return tmp_path


def written(place: Path, source: str, task: str = "classification", **sections: Any) -> Path:
    return recipe_file(
        place,
        task=task,
        student={"source": source},
        convert={"sequence_lengths": [16]},
        targets={"litert": {"schemes": ["fp32"]}},
        **sections,
    )


# --- what it makes ------------------------------------------------------------------------------------------------


def test_soft_targets_are_mixed_with_the_labels_of_own_files(
    place: Path, command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    settings = SOFT | FAST | OWN | {"alpha": 0.9, "steps": 60}
    outcome = command_here("compress", written(place, "classifier", distil=settings))
    assert outcome.rc == 0, outcome.stderr
    assert " on dev_file" in outcome.stdout + outcome.stderr
    folder = tmp_path / "build" / "tiny"
    store = tmp_path / "build" / "store"
    assert not list((store / ".scratch").glob("*")), "checkpoints go when the artifact is whole"
    assert len(list((store / ".cache").glob("teacher-*"))) == 1, "the teacher's outputs stay for other settings"
    record = stage.read_record(folder / "distilled")
    assert set(record.curve[0].terms) == {"soft_targets", "labels"}
    assert (record.dataset, record.metric, record.rows) == ("dev_file", "accuracy", 96)
    assert record.before is not None
    assert record.dev[-1].value > record.before
    modes = {path.stat().st_mode & 0o777 for path in (folder / "distilled").iterdir()}
    assert modes == {(folder / "distilled").stat().st_mode & 0o666}
    # Another label in a file of the same name is another result.
    for label, made in (("negative", False), ("neutral", True)):
        (place / "train.csv").write_text(table(96).replace(",negative\n", f",{label}\n", 1))
        assert list(planned(tmp_path / "recipe.toml").values()) == [made]


@pytest.mark.full
def test_a_teacher_that_the_recipe_trains_teaches_a_smaller_student(
    place: Path, command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        "train": OWN | FAST | {"steps": 60},
        "start": {"teacher_layers": [0]},
        "distil": SOFT | FAST | OWN | {"augment": {"copies": 2, "single_pieces": "neighbours"}},
    }
    outcome = command_here("compress", written(place, "encoder", **sections))
    assert outcome.rc == 0, outcome.stderr
    folder = tmp_path / "build" / "tiny"
    assert artifact.load(folder / "trained").manifest.metrics["dev"] > 0.9
    metrics = artifact.load(folder / "distilled").manifest.metrics
    assert metrics["dev"] > 0.9
    assert metrics["augmented_rows"] > 96
    labels = read_json(folder / "distilled" / "config.json")["id2label"]
    assert labels == {"0": "negative", "1": "neutral", "2": "positive"}


@pytest.mark.full
def test_a_head_is_trained_first_and_teaches_masked_tokens(
    place: Path, command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    text = {"texts": ["plain.txt"], "max_length": 24}
    losses = {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0}
    sections = {
        "head": FAST | text | {"learning_rate": 0.3, "steps": 30},
        "start": {"teacher_layers": [0]},
        "distil": FAST | text | {"losses": losses, "head": "masked_lm", "steps": 3},
    }
    outcome = command_here("compress", written(place, "encoder", "embedding", **sections))
    assert outcome.rc == 0, outcome.stderr
    folder = tmp_path / "build" / "tiny"
    head = artifact.load(folder / "headed").manifest.metrics
    assert head["metric"] == "perplexity"
    assert head["dev"] < 0.2 * head["before"]
    assert stage.read_record(folder / "distilled").before == pytest.approx(head["dev"], rel=0.2)
    assert not list(folder.glob("checkpoints*"))


# --- what is read -------------------------------------------------------------------------------------------------


def test_parquet_files_give_the_names_of_their_classes(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    for name in ("train", "dev"):
        found = pyarrow.table({"text": ["one", "two"], "label": [1, 0]}, schema=features.arrow_schema)
        parquet.write_table(found, tmp_path / f"{name}.parquet")
    task, columns = tasks.get("classification"), Columns("text", None, "label")
    dataset = files.dataset(task, tmp_path / "train.parquet", tmp_path / "dev.parquet", columns)
    assert dataset.names == ("bad", "good")
    assert [row.label for row in dataset.load("train")] == [1.0, 0.0]
    (tmp_path / "train.parquet").write_text("no")
    with pytest.raises(InputError, match=r"train\.parquet is not a parquet file"):
        files.dataset(task, tmp_path / "train.parquet", tmp_path / "dev.parquet", columns)


COMMIT = "0123456789" * 4


def test_a_file_of_a_hub_data_set_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "datasets--owner--name" / "snapshots" / COMMIT
    (snapshot / "data").mkdir(parents=True)
    blob = tmp_path / "blob"
    blob.write_text("text,label\na,x\nb,y\n")
    (snapshot / "data" / "train.csv").symlink_to(blob)
    name = f"hub:owner/name@{COMMIT}/data/"
    path = locate(f"{name}train.csv", tmp_path / "recipe.toml")
    dataset = files.dataset(tasks.get("classification"), path, path, Columns("text", None, "label"))
    assert [row.first for row in dataset.load("train")] == ["a", "b"]
    with pytest.raises(InputError, match=r"dev\.csv of dataset owner/name@01234567 is not in the local hub cache"):
        locate(f"{name}dev.csv", tmp_path / "recipe.toml")
    with pytest.raises(InputError, match=r"hub:owner/name@main/a\.csv is not hub:owner/name@<40-digit commit>/file"):
        locate("hub:owner/name@main/a.csv", tmp_path / "recipe.toml")


def test_plain_text_of_the_data_folder_is_named_without_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    assert corpus.plain_file("wikitext2", tmp_path / "a.toml", "texts") == tmp_path / "lm" / "wikitext2-valid.txt"
    monkeypatch.delenv(data.DATA_VARIABLE)
    with pytest.raises(InputError, match=r"'wikitext2' is lm/wikitext2-valid\.txt of the folder that POCKETBERT_DATA"):
        corpus.plain_file("wikitext2", tmp_path / "a.toml", "texts")


def test_tags_of_own_files_are_targets(place: Path) -> None:
    for name in ("train", "dev"):
        (place / f"{name}.conll").write_text("Ada B-person\nran O\n\nhome O\nBob B-person\n")
    section = DistilSection.model_validate(
        {"losses": {"soft_targets": 1.0}, "alpha": 0.5, "train_file": "train.conll", "dev_file": "dev.conll"}
    )
    task = tasks.get("token_classification")
    found = distil_dataset.find_data(section, task, None, place / "recipe.toml")
    assert found.dataset is not None
    assert found.dataset.names == ("O", "B-person")
    texts = distil_dataset.training_texts(section, task, found)
    encoder = Encoder(load_tokenizer(place / "encoder"), 16)
    encoded = distil_dataset.encode(encoder, section, task, found.dataset, texts, labels=("B-person", "O"))
    assert [one.target for one in encoded] == [(-100, 0, 1, -100), (-100, 1, 0, -100)]


def test_a_corpus_is_read_once_for_check_and_work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(place, "encoder", "embedding", vocabulary={"corpus": ["plain.txt"]})
    read = []

    def counted(file: Path, asked: str) -> list[str]:
        read.append(file.name)
        return lines(file, asked)

    lines = corpus.lines
    monkeypatch.setattr(corpus, "lines", counted)
    planned(path)
    assert read == ["plain.txt"]


@pytest.mark.parametrize(
    ("section", "settings"), [("prune", {"attention_heads": 0.5, "max_length": 16}), ("factorise", {"embedding": 4})]
)
def test_calibration_texts_are_read_once_too(
    section: str, settings: dict[str, Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "own.txt").write_text("\n".join(f"film number {number}" for number in range(12)))
    path = written(place, "encoder", "embedding", **{section: {"calibration": ["own.txt"]} | settings})
    read = []

    def counted(file: Path, asked: str) -> list[str]:
        read.append((file.name, asked))
        return lines(file, asked)

    lines = corpus.lines
    monkeypatch.setattr(corpus, "lines", counted)
    planned(path)
    assert read == [("own.txt", f"{section}.calibration")]


# --- what is refused before any work ------------------------------------------------------------------------------


def own_data(**settings: Any) -> dict[str, Any]:
    return SOFT | OWN | settings


TRAINED: dict[str, Any] = {"train": OWN | {"steps": 2}}
BAD: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "no labels": (
        "classifier",
        "classification",
        {"distil": own_data(train_file="bare.csv")},
        "bare.csv, row 1: there is no column 'label'; there are: text",
    ),
    "labels of plain text": (
        "classifier",
        "classification",
        {"distil": SOFT | {"texts": ["plain.txt"], "max_length": 16}},
        "asks for hard labels, and distil.texts have no labels. Give dataset, or train_file and dev_file, alone",
    ),
    "one class": (
        "classifier",
        "classification",
        {"distil": own_data(train_file="one.csv", dev_file="one.csv")},
        "all 6 rows have the label 'positive', and at least two labels are needed",
    ),
    "one class to be judged by": (
        "classifier",
        "classification",
        {"distil": own_data(dev_file="one.csv")},
        "one.csv: all 6 rows have the label 'positive', and at least two labels are needed",
    ),
    "a head that the start drops": (
        "encoder",
        "classification",
        TRAINED | {"start": {"kind": "distilbert"}},
        "the student that [start] leaves has no head for task classification: a start in another layout drops it. "
        "Add [distil]",
    ),
    "heads that do not map": (
        "encoder",
        "classification",
        TRAINED | {"start": {"kind": "width", "hidden_size": 32}, "distil": OWN | {"losses": {"attention": 1.0}}},
        "compares head by head, and layer 0 of the student has 2 where the teacher's layer 0 has 4",
    ),
    "relations that do not divide": (
        "encoder",
        "classification",
        TRAINED
        | {"start": {"teacher_layers": [0]}, "distil": OWN | {"losses": {"relations": 1.0}, "relation_heads": 3}},
        "distil.relation_heads = 3 does not divide the 64 features of the student's last layer",
    ),
    "hardly any text": (
        "encoder",
        "embedding",
        {"head": {"texts": ["few.txt"], "max_length": 24}},
        "the texts have 4 tokens, and two blocks need 42: one to train on and one to measure on",
    ),
    "hardly any text behind a head": (
        "encoder",
        "embedding",
        {
            "head": {"texts": ["plain.txt"], "max_length": 24},
            "distil": {"preset": "distilbert", "texts": ["few.txt"], "max_length": 24},
        },
        "the texts have 4 tokens, and two blocks need 42",
    ),
    "texts that nothing looks at": (
        "encoder",
        "embedding",
        {"factorise": {"embedding": 4, "weighted": False, "calibration": ["plain.txt"]}},
        "factorise.calibration names texts, and [factorise] as it is set looks at none; leave it out",
    ),
    "empty split": (
        "classifier",
        "classification",
        {"distil": own_data(train_file="empty.csv", dev_file="empty.csv")},
        "empty.csv holds no rows",
    ),
    "empty dev split": (
        "classifier",
        "classification",
        {"distil": own_data(dev_file="empty.csv")},
        "empty.csv holds no rows",
    ),
    "other labels": (
        "classifier",
        "classification",
        {"distil": own_data(train_file="stars.csv", dev_file="stars.csv")},
        "its labels are five, one, and the checkpoint has negative, neutral, positive",
    ),
    "two data": (
        "classifier",
        "classification",
        {"distil": own_data(dataset="sst2")},
        "distil has dataset and train_file; give one of them",
    ),
    "half": (
        "classifier",
        "classification",
        {"distil": SOFT | {"train_file": "train.csv", "max_length": 16}},
        "distil has train_file alone; give train_file and dev_file",
    ),
    "ending": (
        "classifier",
        "classification",
        {"distil": own_data(train_file="plain.txt")},
        "distil.train_file = 'plain.txt': task classification is distilled on .csv or .tsv or .jsonl or .parquet",
    ),
    "pairs of an embedding": (
        "encoder",
        "embedding",
        {"distil": OWN | {"losses": {"sentence_mse": 1.0}}},
        "distil.pair names no column of the second text",
    ),
    "no head of the teacher": (
        "encoder",
        "classification",
        {"distil": own_data()},
        "the teacher encoder has no head for classification: it was saved as BertModel",
    ),
    "trained, but other labels": (
        "encoder",
        "classification",
        TRAINED | {"distil": own_data(train_file="stars.csv", dev_file="stars.csv")},
        "does not fit encoder, fine-tuned on dev_file: its labels are five, one",
    ),
    "another vocabulary": (
        "classifier",
        "classification",
        TRAINED | {"distil": OWN | {"losses": {"hidden": 1.0}, "teacher": "foreign"}},
        "the teacher has another vocabulary (the student has 1000 tokens and foreign has 8)",
    ),
    "layers that do not map": (
        "encoder",
        "classification",
        TRAINED
        | {"start": {"teacher_layers": [0]}, "distil": OWN | {"losses": {"hidden": 1.0}, "teacher_layers": [0, 1]}},
        "distil.teacher_layers names 2 layers, and the student has 1",
    ),
    "layers that do not divide": (
        "encoder",
        "embedding",
        {
            "start": {"teacher_layers": [0, 1]},
            "distil": {"teacher": "three", "losses": {"hidden": 1.0}, "texts": ["plain.txt"], "max_length": 16},
        },
        "the teacher's 3 layers do not divide by the student's 2",
    ),
    "another width": (
        "encoder",
        "embedding",
        {
            "start": {"kind": "width", "hidden_size": 32},
            "distil": {"losses": {"cosine": 1.0}, "texts": ["plain.txt"], "max_length": 16},
        },
        "distil.losses.cosine needs equal hidden sizes; the student has 32 and the teacher 64",
    ),
    "head of a classifier": (
        "classifier",
        "classification",
        {"head": {"texts": ["plain.txt"], "max_length": 24}},
        "[head] gives the checkpoint a masked-LM head instead of the one for classification",
    ),
    "masked tokens of a classifier": (
        "classifier",
        "classification",
        {"distil": {"head": "masked_lm", "losses": {"masked_lm": 1.0}, "texts": ["plain.txt"], "max_length": 24}},
        "distil.head = 'masked_lm' leaves a student without a head for classification",
    ),
    "no masked-LM head": (
        "encoder",
        "embedding",
        {"distil": {"head": "masked_lm", "losses": {"soft_targets": 1.0}, "texts": ["plain.txt"], "max_length": 24}},
        "the teacher encoder has no trained masked-LM head: it was saved as BertModel. Train one on plain text first",
    ),
    "no text for a head": (
        "encoder",
        "embedding",
        {"head": {"texts": ["nowhere.txt"], "max_length": 24}},
        "nowhere.txt does not exist",
    ),
    "masked tokens of a trimmed vocabulary": (
        "encoder",
        "embedding",
        {
            "head": {"texts": ["plain.txt"], "max_length": 24},
            "vocabulary": {"corpus": ["plain.txt"]},
            "distil": {"head": "masked_lm", "losses": {"soft_targets": 1.0}, "texts": ["plain.txt"], "max_length": 24},
        },
        "needs one vocabulary for student and teacher, and [vocabulary] trims",
    ),
    "a table in two factors under a masked-LM head": (
        "encoder",
        "embedding",
        {
            "head": {"texts": ["plain.txt"], "max_length": 24},
            "factorise": {"embedding": 8},
            "distil": {"preset": "distilbert", "texts": ["plain.txt"], "max_length": 24},
        },
        "a masked-LM head is tied to the embedding table, and this table is factorised",
    ),
    "heads that were pruned": (
        "classifier",
        "classification",
        {"prune": {"attention_heads": 0.5, "max_length": 16}, "distil": OWN | {"losses": {"attention": 1.0}}},
        "compares head by head, and layer 0 of the student has 3 where the teacher's layer 0 has 4",
    ),
    "heads that a budget takes": (
        "classifier",
        "classification",
        {"prune": {"compute": 0.5, "max_length": 16}, "distil": OWN | {"losses": {"attention": 1.0}}},
        "compares head by head, and layer 0 of the student has 1 where the teacher's layer 0 has 4",
    ),
    "relations of heads that were pruned": (
        "classifier",
        "classification",
        {
            "prune": {"compute": 0.5, "max_length": 16},
            "distil": OWN | {"losses": {"relations": 1.0}, "teacher": "many heads"},
        },
        "relation_heads = 32, which are the teacher's heads, does not divide the 16 features of the student's last",
    ),
    "relation heads that divide no head": (
        "classifier",
        "classification",
        {
            "prune": {"attention_heads": 0.5, "max_length": 16},
            "distil": OWN | {"losses": {"relations": 1.0}, "relation_heads": 3},
        },
        "relation_heads = 3 does not divide the 16 features of the student's last layer",
    ),
    "heads of another teacher than the unpruned": (
        "encoder",
        "embedding",
        {
            "prune": {"attention_heads": 0.5, "max_length": 16},
            "distil": {
                "teacher": "three",
                "teacher_layers": [1, 2],
                "losses": {"attention": 1.0},
                "texts": ["plain.txt"],
                "max_length": 16,
            },
        },
        "compares head by head, and layer 0 of the student has 3 where the teacher's layer 1 has 4",
    ),
    "relations of another teacher": (
        "encoder",
        "embedding",
        {
            "prune": {"compute": 0.5, "max_length": 16},
            "distil": {
                "teacher": "three",
                "losses": {"relations": 1.0},
                "relation_heads": 3,
                "texts": ["plain.txt"],
                "max_length": 16,
            },
        },
        "relation_heads = 3 does not divide the 16 features of the student's last layer",
    ),
    "tokens of texts that the vocabulary was not trimmed on": (
        "encoder",
        "embedding",
        {
            "vocabulary": {"corpus": ["few.txt"]},
            "distil": {"losses": {"hidden": 1.0}, "texts": ["plain.txt"], "max_length": 16},
        },
        "the student's vocabulary gives",
    ),
    "tokens of words that augmentation puts in": (
        "encoder",
        "embedding",
        {
            "vocabulary": {"corpus": ["plain.txt"]},
            "distil": {
                "losses": {"hidden": 1.0},
                "texts": ["plain.txt"],
                "max_length": 16,
                "augment": {"copies": 1, "single_pieces": "neighbours"},
            },
        },
        "the words that [distil.augment] puts in need not be in the vocabulary that [vocabulary] keeps",
    ),
    "a teacher whose classes are in another order": (
        "classifier",
        "classification",
        {"start": {"teacher_layers": [0]}, "distil": own_data(alpha=0.0, teacher="turned")},
        "the student's labels are negative, neutral, positive, and those of turned are positive, neutral, negative",
    ),
    "zeros that pruning would fill": (
        "encoder",
        "classification",
        {"train": OWN | {"steps": 2, "sparse": {"sparsity": 0.5}}, "prune": {"compute": 0.6, "max_length": 16}},
        "those that [train.sparse] made zero would not stay zero",
    ),
    "zeros that factors would fill": (
        "encoder",
        "embedding",
        {"prune": {"sparse": {"sparsity": 0.5}}, "factorise": {"feed_forward": 16}},
        "those that [prune.sparse] made zero would not stay zero",
    ),
    "relation heads of no relations": (
        "classifier",
        "classification",
        {
            "start": {"teacher_layers": [0]},
            "distil": OWN | {"losses": {"hidden": 1.0}, "teacher_layers": [0], "relation_heads": 2},
        },
        "distil.relation_heads is for losses.relations",
    ),
    "a temperature of no logits": (
        "classifier",
        "classification",
        {"start": {"teacher_layers": [0]}, "distil": OWN | {"losses": {"prediction": 1.0}, "temperature": 4.0}},
        "distil.temperature = 4 is for losses.soft_targets",
    ),
    "a head that is left behind": (
        "encoder",
        "embedding",
        {"head": {"texts": ["plain.txt"], "max_length": 24}, "prune": {"attention_heads": 0.5, "max_length": 16}},
        "[prune] leaves the head behind that [head] trains, and no [distil] learns from it",
    ),
    "a head to be pruned with": (
        "encoder",
        "classification",
        {"prune": {"attention_heads": 0.5, "max_length": 16}, "distil": own_data()},
        "encoder lacks 2 tensors that task classification needs, classifier.bias first: it was saved as BertModel",
    ),
    "passes twice": (
        "encoder",
        "embedding",
        {"head": {"texts": ["plain.txt"], "max_length": 24, "epochs": 1.0, "steps": 2}},
        "head has epochs and steps; give one of them",
    ),
    "layers that nothing compares": (
        "classifier",
        "classification",
        {"distil": own_data(teacher_layers=[9])},
        "distil.teacher_layers maps layers, and none of the losses compares layers; those that do: ",
    ),
    "rows of an update of one": (
        "encoder",
        "embedding",
        {"distil": {"losses": {"similarity": 1.0}, "texts": ["plain.txt"], "max_length": 16, "batch_size": 1}},
        "compares the rows of an update, and distil.batch_size is 1",
    ),
    "a sample of one class": (
        "classifier",
        "classification",
        {"distil": own_data(max_rows=1)},
        "all 1 rows have the label",
    ),
    "a width that only one kind has": (
        "classifier",
        "classification",
        {"start": {"kind": "layers", "hidden_size": 32}, "distil": own_data()},
        "start.hidden_size says nothing of kind 'layers'; it is for width",
    ),
    "wider tables than the teacher's": (
        "encoder",
        "embedding",
        {"start": {"kind": "albert", "embedding_size": 128}},
        "start.embedding_size = 128 is more than the teacher's 64 columns",
    ),
    "a home that nobody has": (
        "classifier",
        "classification",
        {"distil": own_data(train_file="~nobody-here/train.csv")},
        "~nobody-here/train.csv does not exist",
    ),
    "a name that is too long": (
        "classifier",
        "classification",
        {"distil": own_data(teacher="x" * 5000)},
        "cannot be read: File name too long",
    ),
    "oneself as a teacher": (
        "classifier",
        "classification",
        {"distil": own_data(alpha=0.0)},
        "would have the student learn from itself: distil.teacher is the recipe's own checkpoint, and nothing makes it",
    ),
    "labels that the head to be judged by lacks": (
        "classifier",
        "classification",
        {"start": {"teacher_layers": [0]}, "distil": own_data(alpha=0.0, train_file="stars.csv", dev_file="stars.csv")},
        "its labels are five, one, and the checkpoint has negative, neutral, positive",
    ),
    "nobody to augment": (
        "classifier",
        "classification",
        {"distil": own_data(augment={})},
        "distil.augment.model classifier has no trained masked-LM head: it was saved as BertForSequenceClassification",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_go_well_is_refused_before_any_work(case: str, place: Path) -> None:
    source, task, sections, message = BAD[case]
    (place / "bare.csv").write_text("text\na\nb\n")
    (place / "one.csv").write_text(table(6, ("positive",)))
    (place / "empty.csv").write_text("text,label\n")
    (place / "few.txt").write_text("the house\nthe river\n")
    (place / "stars.csv").write_text(table(6, ("one", "five")))
    foreign(place)
    other_teacher(place, "encoder", "three", num_hidden_layers=3)
    other_teacher(place, "classifier", "turned", id2label=dict(enumerate(reversed(LABELS))))
    other_teacher(place, "classifier", "many heads", num_attention_heads=32)
    with pytest.raises(PipelineError) as caught:
        branch_of(written(place, source, task, **sections), "student")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def foreign(place: Path) -> None:
    """Write a teacher whose vocabulary is another one."""
    shutil.copytree(place / "classifier", place / "foreign")
    path = place / "foreign" / "tokenizer.json"
    document = json.loads(path.read_text())
    specials = [token["content"] for token in document["added_tokens"]]
    document["model"]["vocab"] = {piece: number for number, piece in enumerate([*specials, "a", "b", "xyz"])}
    for token in document["added_tokens"]:
        token["id"] = specials.index(token["content"])
    path.write_text(json.dumps(document))


def other_teacher(place: Path, source: str, name: str, **changed: Any) -> None:
    """Write a random teacher of a config that differs from another one's."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(place / source, **changed)
    getattr(transformers, config.architectures[0])(config).save_pretrained(place / name)
    shutil.copyfile(place / source / "tokenizer.json", place / name / "tokenizer.json")


def test_tokens_of_texts_that_the_vocabulary_was_trimmed_on_are_no_fault(place: Path) -> None:
    text = {"texts": ["plain.txt"], "max_length": 16}
    for kept in ({}, {"size": 900}):
        trimmed = {"corpus": ["plain.txt"]} | kept
        branch_of(written(place, "encoder", "embedding", vocabulary=trimmed, distil=text | {"losses": {"hidden": 1.0}}))


def test_a_vocabulary_that_was_trimmed_before_is_not_trimmed_again(
    place: Path, command_here: Callable[..., Outcome]
) -> None:
    trimmed = {"corpus": ["plain.txt"], "keep": 0.95}
    assert command_here("compress", written(place, "encoder", "embedding", vocabulary=trimmed)).rc == 0
    distil = {"losses": {"hidden": 1.0}, "texts": ["plain.txt"], "max_length": 16}
    path = written(place, "encoder", "embedding", vocabulary=trimmed, distil=distil)
    assert planned(path) == {"vocabulary": False, "distil": True}


def test_what_the_recipe_will_have_trained_is_no_fault(place: Path) -> None:
    path = written(place, "encoder", **TRAINED, start={"teacher_layers": [1]}, distil=own_data())
    found = branch_of(path)
    assert found.recipe.train is not None
    assert found.named is not None
    assert found.named.source.config["architectures"] == ["BertModel"], "what is on the disk stays what it is"
    heads = {"texts": ["plain.txt"], "max_length": 24}
    triple = {"losses": {"soft_targets": 1.0, "masked_lm": 1.0}, "head": "masked_lm"}
    branch_of(written(place, "encoder", "embedding", head=heads, distil=heads | triple))
