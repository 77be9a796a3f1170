"""`pocketbert init`: what it finds in a checkpoint, what it chooses, and what it refuses, in one line."""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server
import pytest
from conftest import LABELS, PAIRS, Outcome, run_command
from test_sentences import STACKS

from pipeline import formats, tasks
from pipeline.architectures import ARCHITECTURES
from pipeline.checkpoint import inspection
from pipeline.checkpoint import source as student
from pipeline.cli import app as cli
from pipeline.errors import InputError, RecipeError, StudentError
from pipeline.planning import draft as drafting
from pipeline.recipe import loading as recipe
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES

MULTI_LABEL = "multi_label_classification"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def draft(checkpoint: Any, output: Path, **options: Any) -> drafting.Draft:
    given = {"name": None, "task": None, "force": False, "tell": lambda text: None} | options
    try:
        return drafting.draft(str(checkpoint), output, **given)
    except StudentError as error:
        if "--pooling" not in str(error):
            raise
        return drafting.draft(str(checkpoint), output, **given, pooling="mean")


def copied(source: Path, place: Path, **config: Any) -> Path:
    """Copy a student and change its config; None removes a key."""
    shutil.copytree(source, place)
    file = place / "config.json"
    values = json.loads(file.read_text()) | config
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return place


# --- what is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "task"), [pair for pair in PAIRS if pair[1] in ("embedding", "classification")]
)
def test_every_architecture_gets_a_recipe_that_is_read_back(architecture, task, tiny_student, tmp_path):
    made = draft(tiny_student(architecture, task), tmp_path / "recipe.toml")
    parsed, file = recipe.read_recipe(str(tmp_path / "recipe.toml"))
    assert parsed.task == task == made.task
    source = student.find(parsed, file)
    assert source.folder == tiny_student(architecture, task)
    assert made.checkpoint.model_type == architecture
    assert made.checkpoint.max_length == source.max_length == parsed.lengths("litert")[-1]
    assert made.checkpoint.tokenizer == "WordPiece"
    assert made.checkpoint.layers == (None if ARCHITECTURES[architecture].states_are_rows else 2)


def test_two_targets_are_drafted_and_every_other_scheme_is_named_or_its_reason_is(tiny_student, tmp_path):
    draft(tiny_student("bert", "embedding"), tmp_path / "recipe.toml")
    parsed, file = recipe.read_recipe(str(tmp_path / "recipe.toml"))
    drafted = {name: section.schemes for name, section in parsed.targets.items()}
    assert drafted == {"litert": ("int8_dynamic",), "coreml": ("int8_weight_only",)}
    text = file.read_text()
    sections = re.split(r"\n(?=\[targets|# ExecuTorch)", text.split("[verify]")[0])[1:]
    for name, section in zip(formats.NAMES, sections, strict=True):
        listed = re.findall(r"There are (.*)\.", section)[0].split(", ")
        for scheme in SCHEMES:
            refused = SCHEMES[scheme].refusal(name, minimum_ios=18) is not None
            assert (scheme in listed) != refused
            assert (f"# Not {scheme}: " in section) == refused


def test_a_draft_evens_outliers_out_before_int8_dynamic_and_only_there(tiny_student, tmp_path, monkeypatch):
    """Its files are made of a checkpoint with gains; a draft without that scheme has no use for the section."""
    checkpoint = tiny_student("bert", "embedding")
    parsed, _ = recipe.read_recipe(str(draft(checkpoint, tmp_path / "recipe.toml").file))
    assert parsed.quantize == QuantizeSection()
    assert "# SmoothQuant scales shrink outliers" in (tmp_path / "recipe.toml").read_text()
    monkeypatch.setattr(formats.get("litert"), "DRAFTED", ("fp32", True))
    parsed, _ = recipe.read_recipe(str(draft(checkpoint, tmp_path / "other.toml").file))
    assert parsed.quantize is None


@pytest.mark.full
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_a_draft_is_carried_out_for_every_architecture(architecture, randomised, command_here, tmp_path):
    """Weights that were never trained have to be declared, and are looked at without labelled data."""
    file = draft(randomised(architecture, "embedding"), tmp_path / "recipe.toml").file
    declared = re.sub(r"(?m)^\[student\]$", "[student]\nrandom_weights = true", file.read_text())
    file.write_text(re.sub(r"(?m)^datasets = .*$", 'datasets = ["none"]', declared))
    outcome = command_here("verify", file, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
    evened_out = "quantize int8_dynamic" in {step["name"] for step in outcome.document["steps"]}
    assert evened_out != ARCHITECTURES[architecture].states_are_rows


def test_a_commented_section_of_a_draft_is_one_that_is_taken(tiny_student, tmp_path):
    draft(tiny_student("bert", "embedding"), tmp_path / "recipe.toml")
    file = tmp_path / "recipe.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(re.sub(r"^# (?=\[targets|schemes)", "", line) for line in lines))
    parsed, _ = recipe.read_recipe(str(file))
    assert parsed.targets["executorch"].schemes == ("int8_dynamic",)


def test_a_bare_encoder_s_pooling_is_asked_for(tiny_student, tmp_path):
    how: dict[str, Any] = {"name": None, "task": None, "force": False, "tell": lambda text: None}
    bare, output = str(tiny_student("bert", "embedding")), tmp_path / "recipe.toml"
    with pytest.raises(StudentError, match=r"is a bare encoder.*--pooling: cls, max, mean"):
        drafting.draft(bare, output, **how)
    drafting.draft(bare, output, **how, pooling="cls")
    assert recipe.read_recipe(str(output))[0].student.pooling == "cls"
    with pytest.raises(StudentError, match="--pooling is for an encoder without a head"):
        drafting.draft(str(tiny_student("bert", "classification")), tmp_path / "two.toml", **how, pooling="cls")


def test_a_tokenizer_of_another_model_is_noted(tiny_student, tmp_path):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "student")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = dict(list(tokenizer["model"]["vocab"].items())[:200])
    tokenizer["model"]["vocab"] = words
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    notes = draft(folder, tmp_path / "recipe.toml").notes
    assert (
        "the tokenizer has 200 tokens, and the model's table of words 1,000 rows; it may belong to another" in notes[0]
    )


def test_parameters_are_those_of_the_header_without_whole_numbers(tiny_student, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    folder = copied(tiny_student("bert", "embedding"), tmp_path / "student")
    tensors = load_file(folder / "model.safetensors")
    expected = sum(tensor.numel() for tensor in tensors.values())
    positions = {"embeddings.position_ids": torch.arange(64)[None]}
    save_file(tensors | positions, folder / "model.safetensors", metadata={"format": "pt"})
    made = draft(folder, tmp_path / "recipe.toml")
    assert made.checkpoint.parameters == expected
    assert made.checkpoint.dtypes == ["F32"]


@pytest.mark.parametrize(
    ("name", "change", "task", "labels"),
    [
        ("BertModel", {}, "embedding", 0),
        ("BertForSequenceClassification", {}, "classification", 3),
        ("BertForSequenceClassification", {"id2label": {"0": "score"}}, "regression", 1),
        ("BertForSequenceClassification", {"problem_type": "regression"}, "multi_regression", 3),
        ("BertForSequenceClassification", {"problem_type": MULTI_LABEL}, MULTI_LABEL, 3),
        ("BertForSequenceClassification", {"problem_type": MULTI_LABEL, "id2label": {"0": "toxic"}}, MULTI_LABEL, 1),
        ("BertForSequenceClassification", {"problem_type": "single_label_classification"}, "classification", 3),
        ("BertForTokenClassification", {}, "token_classification", 3),
        ("BertForQuestionAnswering", {"id2label": None}, "question_answering", 2),
    ],
)
def test_the_class_decides_the_task(name, change, task, labels, tiny_student, tmp_path):
    folder = copied(tiny_student("bert", "classification"), tmp_path / "student", architectures=[name], **change)
    source = student.inspect_folder(folder, origin="student", licence=None)
    seen = inspection.summarise(source, "student")
    chosen, why, _ = drafting.choose_task(seen, None)
    assert chosen == task
    assert name in why
    assert len(seen.labels) == labels


def test_a_sentence_transformers_folder_is_an_embedding_whatever_its_class(tiny_student, tmp_path):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "student", architectures=["BertForMaskedLM"])
    (folder / "modules.json").write_text("[]")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    made = draft(folder, tmp_path / "recipe.toml")
    assert (made.task, made.lengths) == ("embedding", [16, 24])
    assert "sentence-transformers truncates texts at 24" in (tmp_path / "recipe.toml").read_text()


def test_a_masked_language_model_is_only_taken_without_its_head(tiny_student, tmp_path):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "student", architectures=["BertForMaskedLM"])
    with pytest.raises(
        StudentError, match=r"BertForMaskedLM, and no task here.*--task embedding takes the bare encoder"
    ):
        draft(folder, tmp_path / "recipe.toml")
    made = draft(folder, tmp_path / "recipe.toml", task="embedding")
    assert any("head is left out" in note for note in made.notes)


@pytest.mark.parametrize(("limit", "lengths"), [(512, [16, 32, 64, 128]), (50, [16, 32, 50]), (16, [16]), (9, [9])])
def test_lengths_end_at_the_model_or_at_the_task(limit, lengths, tiny_student, tmp_path):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "student", max_position_embeddings=limit)
    assert draft(folder, tmp_path / "recipe.toml").lengths == lengths


def test_a_question_gets_room_for_its_passage(tiny_student, tmp_path):
    config = {"architectures": ["BertForQuestionAnswering"], "max_position_embeddings": 512, "id2label": None}
    folder = copied(tiny_student("bert", "classification"), tmp_path / "student", **config)
    made = draft(folder, tmp_path / "recipe.toml")
    assert made.lengths[-1] == 384
    assert "questions" in made.datasets


@pytest.mark.parametrize(
    ("labels", "datasets"),
    [
        (("negative", "positive"), ["sentiment", "sst2"]),
        (("POSITIVE", "NEGATIVE"), ["sentiment", "sst2"]),
        (("LABEL_0", "LABEL_1"), ["none"]),
        (("cat", "dog"), ["none"]),
    ],
)
def test_data_are_chosen_by_the_names_of_the_labels(labels, datasets, tiny_student, tmp_path):
    names = {"id2label": {str(number): name for number, name in enumerate(labels)}}
    folder = copied(tiny_student("bert", "classification"), tmp_path / "student", **names)
    assert draft(folder, tmp_path / "recipe.toml").datasets == datasets


def test_words_of_a_checkpoint_cannot_break_the_file(tiny_student, tmp_path):
    folder = copied(
        tiny_student("bert", "classification"), tmp_path / 'a "b" \\ é', id2label={"0": 'x"\n[y]', "1": "z"}
    )
    made = draft(folder, tmp_path / "recipe.toml")
    parsed, file = recipe.read_recipe(str(made.file))
    assert student.find(parsed, file).folder == folder
    assert parsed.name == "a-b"


def test_a_folder_is_named_from_the_recipe(tiny_student, tmp_path, monkeypatch):
    copied(tiny_student("bert", "embedding"), tmp_path / "models" / "mine")
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    made = draft("models/mine", Path("recipes/mine.toml"))
    assert made.checkpoint.source == "../models/mine"
    assert made.next == "make run RECIPE=recipes/mine.toml"


# --- the hub's cache ---------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tiny_student, tmp_path, monkeypatch):
    """A local hub cache with one commit of me/tiny; the network is out of reach."""
    from huggingface_hub import constants

    root = tmp_path / "hub"
    copied(tiny_student("bert", "embedding"), root / "models--me--tiny" / "snapshots" / COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kwargs: pytest.fail("downloads"))
    return root / "models--me--tiny"


def test_a_cached_name_is_pinned_to_its_commit_without_asking_anybody(cache, tmp_path):
    told: list[str] = []
    made = draft("me/tiny", tmp_path / "recipe.toml", tell=told.append)
    assert made.checkpoint.source == f"hub:me/tiny@{COMMIT}"
    assert recipe.read_recipe(str(made.file))[0].student.source == made.checkpoint.source
    assert (made.name, told) == ("tiny", [])


def test_of_several_cached_commits_main_is_taken_or_one_has_to_be_named(cache, tmp_path):
    other = "f" * 40
    shutil.copytree(cache / "snapshots" / COMMIT, cache / "snapshots" / other)
    with pytest.raises(StudentError, match="has 2 commits of me/tiny"):
        draft("me/tiny", tmp_path / "recipe.toml")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(other)
    assert draft("me/tiny", tmp_path / "recipe.toml").checkpoint.source.endswith(other)


def test_a_plain_name_is_not_downloaded(cache, tmp_path):
    with pytest.raises(StudentError, match=r"neither a folder nor in the local hub cache.*hub:me/other@<40-digit"):
        draft("me/other", tmp_path / "recipe.toml")


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_hub() -> Iterator[hub_server.Hub]:
    with hub_server.serving() as hub:
        yield hub


def test_online_the_hub_is_asked_for_the_commit_and_the_whole_folder_comes(small_hub, tiny_student, tmp_path):
    """A stack with a Dense in a folder of its own, as the real client downloads it, in a process with its settings."""
    folder = tmp_path / "leaf"
    STACKS["leaf"](tiny_student("bert", "embedding"), folder)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    small_hub.repositories["me/leaf"] = hub_server.Repository(private=False, branches={"main": files})
    given = {"HF_ENDPOINT": small_hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    given["HF_HOME"] = str(tmp_path / "home")

    def init(*arguments: str) -> Outcome:
        return run_command("init", *arguments, cwd=tmp_path, **given)

    refused = init("me/leaf")
    assert (refused.rc, "Say hub:me/leaf" in refused.stderr) == (2, True)
    made = init("hub:me/leaf")
    assert made.rc == 0, made.stderr
    assert "Pooling (mean) → Dense → Normalize" in made.stdout
    assert f"the newest commit of me/leaf is {hub_server.COMMIT}" in made.stderr
    assert all(f"{name} (" in made.stdout.partition("\nprompts ")[2] for name in ("query", "passage"))
    written = recipe.read_recipe(str(tmp_path / "recipe.toml"))[0]
    assert written.student.source == f"hub:me/leaf@{hub_server.COMMIT}"
    absent = init("hub:me/other", "--output", "other.toml")
    assert absent.rc == 2, absent.stderr
    assert "me/other" in absent.stderr
    assert "Traceback" not in absent.stderr


def test_a_hub_that_does_not_answer_is_one_line_and_soon(tmp_path):
    """Its library would ask again for half a minute, and a name that nobody resolves is an error of its own."""
    absent = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    for checkpoint in ("hub:me/leaf", f"hub:me/leaf@{COMMIT}"):
        outcome = run_command("init", checkpoint, cwd=tmp_path, **absent)
        assert outcome.rc == 2, outcome.stderr
        assert "is not in the local hub cache" in outcome.stderr
        assert "Traceback" not in outcome.stderr


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def unknown(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "mamba"}')


def no_class(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    del values["architectures"]
    (folder / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_config, "has no config.json"),
        (only_a_pickle, "Pickles can run code"),
        (unknown, "model_type is 'mamba'; supported: "),
        (no_class, "config.json names no class"),
    ],
)
def test_a_broken_folder_is_one_line_and_nothing_is_written(change, words, tiny_student, tmp_path, capsys, monkeypatch):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "student")
    change(folder)
    # Where this test comes first, the student was made in it, and its weights were written with a bar.
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["pocketbert", "init", str(folder), "--output", str(tmp_path / "recipe.toml")])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["student"]


def test_a_head_that_does_not_match_is_refused(tiny_student, tmp_path):
    folder = tiny_student("bert", "classification")
    assert len(LABELS) == 3
    with pytest.raises(StudentError, match="classification with 3 outputs; --task regression needs another head"):
        draft(folder, tmp_path / "recipe.toml", task="regression")
    with pytest.raises(StudentError, match="--task embedding needs another head"):
        draft(folder, tmp_path / "recipe.toml", task="embedding")
    with pytest.raises(RecipeError, match="task 'ranking' does not exist"):
        draft(folder, tmp_path / "recipe.toml", task="ranking")


def test_a_task_that_the_config_leaves_open_may_be_given(tiny_student, tmp_path):
    """Older checkpoints with several sigmoids have no problem type, and read as classification."""
    folder = copied(tiny_student("bert", "classification"), tmp_path / "student", problem_type=None)
    assert draft(folder, tmp_path / "plain.toml").task == "classification"
    made = draft(folder, tmp_path / "recipe.toml", task=MULTI_LABEL)
    assert (made.task, made.why) == (
        MULTI_LABEL,
        "given by --task; BertForSequenceClassification has no problem_type that would tell",
    )
    text = made.file.read_text()
    uncommented = re.sub(r"(?m)^# (?=\[thresholds|file|label)", "", text)
    made.file.write_text(uncommented)
    parsed, _ = recipe.read_recipe(str(made.file))
    assert parsed.thresholds is not None
    assert parsed.thresholds.file == "labelled.csv"
    told = copied(tiny_student("bert", "classification"), tmp_path / "told")
    with pytest.raises(StudentError, match="which is classification with 3 outputs; --task multi_label"):
        draft(told, tmp_path / "other.toml", task=MULTI_LABEL)


def test_a_file_in_place_stays_unless_forced(tiny_student, tmp_path):
    output = tmp_path / "recipe.toml"
    output.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        draft(tiny_student("bert", "embedding"), output)
    with pytest.raises(RecipeError, match=r"recipe\.toml: name = 'No Good'"):
        draft(tiny_student("bert", "embedding"), output, force=True, name="No Good")
    assert output.read_text() == "mine"
    draft(tiny_student("bert", "embedding"), output, force=True)
    assert recipe.read_recipe(str(output))[0].task == "embedding"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_a_folder_whose_name_cannot_stand_in_a_recipe_is_refused(tiny_student, tmp_path):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "new\nline")
    with pytest.raises(StudentError, match=r"'.*new\\nline' cannot be named in a recipe: it has control characters"):
        draft(str(folder), folder.parent / "recipe.toml")


def test_a_folder_that_may_not_be_looked_into_is_refused(tiny_student, tmp_path, monkeypatch):
    folder = copied(tiny_student("bert", "embedding"), tmp_path / "locked")
    looked = Path.exists

    def denied(self, **options):
        # As the system says of a folder of mode 0; root may look into that.
        if self.parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return looked(self, **options)

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(StudentError, match=r"config\.json cannot be read: Permission denied"):
        draft(str(folder), tmp_path / "recipe.toml")


@pytest.mark.parametrize(("output", "words"), [("no/recipe.toml", "no does not exist"), ("recipe", "end in .toml")])
def test_a_place_that_cannot_be_is_refused(output, words, tiny_student, tmp_path):
    with pytest.raises(InputError, match=words):
        draft(tiny_student("bert", "embedding"), tmp_path / output)


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_found_and_what_comes_next(command_here, tmp_path):
    outcome = command_here("init", "bundled:all-MiniLM-L6-v2", "--name", "mine")
    assert (outcome.rc, outcome.stderr) == (0, "")
    for words in ("22.7 M parameters", "6 layers", "WordPiece, 30,522 tokens", "embedding: modules.json", "takes 512"):
        assert words in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == "wrote recipe.toml; next: make run RECIPE=recipe.toml"
    plan = command_here("plan", "recipe.toml", "--json")
    assert (plan.rc, plan.document["recipe"]) == (0, "mine")
    again = command_here("init", "bundled:all-MiniLM-L6-v2", "--json")
    assert (again.rc, again.document["error"]["kind"]) == (2, "InputError")


def test_lengths_are_set_for_tasks_that_exist():
    assert set(drafting._LONGEST) <= set(tasks.TASKS)
