"""The command: what it lists, plans, makes, keeps and says, and that no moment is a bad one to stop it."""

import contextlib
import functools
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w
from conftest import COMMAND, Outcome, TinyLine, environment, recipe_file, run_command
from processors import SETTINGS
from store import kept

from pipeline import artifact, formats
from pipeline.architectures import ARCHITECTURES, UNSUPPORTED
from pipeline.atomic import remove
from pipeline.cli import app as cli
from pipeline.convert import predicting
from pipeline.convert.model import text_pairs
from pipeline.devices.table import read_devices
from pipeline.errors import InputError
from pipeline.planning.build import STAGES
from pipeline.recipe import loading as recipe
from pipeline.recipe.compression import PruneSection, ShareSection
from pipeline.recipe.distillation import DistilSection
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES
from pipeline.schemes import UNSUPPORTED as UNSUPPORTED_SCHEMES
from pipeline.tasks import TASKS
from pipeline.verify import stage as verify

VERBS = (
    *("init", "run", "plan", "train", "student", "convert", "verify", "benchmark", "report", "ship", "push", "compat"),
    *("compress", "predict", "recipes", "keys", "list", "clean", "mil"),
    *("signing-key", "verify-signature", "demo", "gate", "index", "search"),
)
STEPS = (
    "student",
    "convert litert-fp32",
    "convert litert-int8_dynamic",
    "convert executorch-fp32",
    "reference 32",
    "verify litert-fp32",
    "verify litert-int8_dynamic",
    "verify executorch-fp32",
)
"""Steps of `verify` on the tiny line."""
HEAVY = ("torch", "transformers", "coremltools", "executorch", "litert_torch", "ai_edge_litert", "tensorflow", "scipy")


@pytest.fixture
def line(tiny_line: TinyLine, tmp_path: Path) -> Iterator[TinyLine]:
    """A copy of the tiny line, to change; removed afterwards, since pytest would keep its 40 MB."""
    yield tiny_line.copy(tmp_path)
    shutil.rmtree(tmp_path)


def steps_of(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in outcome.document["steps"]}


def to_make(outcome: Outcome) -> set[str]:
    return {name for name, step in steps_of(outcome).items() if step["made"]}


# --- help, list, plan --------------------------------------------------------------------------------------------


def test_help_names_every_verb(pocketbert):
    outcome = pocketbert("--help")
    assert outcome.rc == 0
    for verb in VERBS:
        assert f" {verb} " in outcome.stdout
    assert outcome.stderr == ""


def test_help_is_in_the_order_of_work_and_what_is_rare_comes_last(command_here):
    names = [line.split()[1] for line in command_here("--help").stdout.splitlines() if line.startswith("│ ")]
    verbs = [name for name in names if name in VERBS]
    assert verbs[:7] == ["init", "run", "plan", "predict", "index", "search", "ship"]
    stages = ["train", "compress", "student", "convert", "verify", "benchmark", "report"]
    assert [verb for verb in verbs if verb in stages] == stages
    assert {*verbs[-5:]} == {"compat", "demo", "verify-signature", "signing-key", "mil"}


def test_each_verb_has_one_plain_line():
    helps = {one.name: inspect.getdoc(one.callback) or "" for one in cli.app.registered_commands}
    firsts = {name: text.split("\n\n")[0] for name, text in helps.items()}
    assert [name for name, line in firsts.items() if not 0 < len(line) <= 75 or "\n" in line or ";" in line] == []


def test_without_arguments_it_is_the_help_and_a_usage_error(command_here):
    outcome = command_here()
    assert outcome.rc == 2
    assert "Usage:" in outcome.stdout
    assert outcome.stderr == ""


@pytest.mark.parametrize("verb", ["run", "predict"])
def test_a_verb_explains_itself(verb, command_here):
    outcome = command_here(verb, "--help")
    assert outcome.rc == 0
    assert "--json" in outcome.stdout


def test_help_names_a_recipe_s_sections_as_a_recipe_does(command_here):
    outcome = command_here("compress", "--help")
    assert "[vocabulary]" in outcome.stdout
    assert "[distil]" in outcome.stdout


def test_list_tells_what_exists_and_what_is_unsupported(command_here):
    outcome = command_here("list")
    assert outcome.rc == 0
    for name in (
        *ARCHITECTURES,
        *TASKS,
        *formats.NAMES,
        *SCHEMES,
        *UNSUPPORTED_SCHEMES,
        *read_devices(),
        *recipe.names(),
    ):
        assert name in outcome.stdout
    refused = [row.refusal(backend) for backend in formats.NAMES for row in SCHEMES.values()]
    refused += [row.refusal(backend) for backend in formats.NAMES for row in UNSUPPORTED_SCHEMES.values()]
    assert outcome.stdout.count("UNSUPPORTED") == len(UNSUPPORTED) + sum(reason is not None for reason in refused)


def test_recipes_say_what_they_do_what_they_need_and_what_to_take_instead(command_here):
    outcome = command_here("recipes")
    assert outcome.rc == 0
    assert "dataset sst2: POCKETBERT_DATA is not set" in outcome.stdout
    rows = {row["name"]: row for row in command_here("recipes", "--json").document["recipes"]}
    assert set(rows) == set(recipe.names())
    assert rows["minilm-half"]["stages"] == ["prune"]
    assert rows["minilm-half"]["needs"] == []
    assert "text own-text: POCKETBERT_DATA is not set" in rows["multilingual-e5-small-trimmed"]["needs"]
    for row in rows.values():
        # A twin is of what is here, for the same task and on the same data.
        if row["student"].startswith("recipe:"):
            assert rows[row["student"].removeprefix("recipe:")]["student"].startswith("bundled:")
        elif row["twin"] is None:
            # Nothing here does the same: a published model as it is, or with the tokens of some of its languages.
            assert row["student"].startswith("bundled:") or row["stages"] in ([], ["vocabulary"])
        elif not row["student"].startswith("bundled:"):
            assert rows[row["twin"]]["student"].startswith("bundled:")
            one, other = (recipe.read_recipe(name)[0] for name in (row["name"], row["twin"]))
            assert (other.task, other.targets) == (one.task, one.targets)
            assert one.train is None or (other.train is not None and other.train.dataset == one.train.dataset)


def test_a_hub_checkpoint_that_cannot_be_had_names_its_twin(pocketbert):
    outcome = pocketbert("student", "albert")
    assert outcome.rc == 2
    assert "Recipe albert-sst2-bundled does the same with what is here." in outcome.stderr.replace("\n", " ")


def test_list_as_json_has_the_same_tables(command_here):
    found = command_here("list", "--json").document
    tables = {"architectures", "tasks", "formats", "schemes", "datasets", "losses", "presets", "devices", "recipes"}
    assert set(found) == tables | {"exit"}
    assert found["datasets"]["sst2"].startswith("accuracy; sst2/train.tsv and sst2/dev.tsv of POCKETBERT_DATA")
    assert set(found["schemes"]) == {*SCHEMES, *UNSUPPORTED_SCHEMES}


def test_every_key_of_a_recipe_is_told_with_its_default_and_meaning(command_here):
    found = {one["name"]: one for one in command_here("keys", "--json").document["sections"]}
    assert {*Recipe.model_fields} <= {key["name"] for key in found["recipe"]["keys"]}
    for name, model in (
        ("prune", PruneSection),
        ("distil", DistilSection),
        ("share", ShareSection),
    ):
        keys = {key["name"]: key for key in found[name]["keys"]}
        assert {*model.model_fields} <= {*keys}
        for key, field in model.model_fields.items():
            assert (keys[key]["default"] is None) == field.is_required(), key
    prune = {key["name"]: key for key in found["prune"]["keys"]}
    assert prune["compute"]["accepts"] == "number > 0, < 1"
    assert prune["importance"]["default"] == '"optimal_brain_surgeon"'
    assert prune["layers"]["meaning"].startswith("The layers that stay, by number from 0")
    assert {"train.sparse", "distil.augment", "targets.FORMAT", "verify.gates.SCHEME"} <= {*found}


def test_the_keys_of_one_section_are_printed(command_here):
    outcome = command_here("keys", "[distil]")
    assert outcome.rc == 0
    assert "tinybert-general" in outcome.stdout
    assert "default: 2.0" in outcome.stdout
    assert "section [distil.augment]" in outcome.stdout
    outcome = command_here("keys", "prun")
    assert outcome.rc == 2
    assert "section 'prun' does not exist" in outcome.stderr
    assert "Did you mean 'prune'?" in outcome.stderr.replace("\n", " ")


def test_a_plan_prints_steps_and_makes_nothing(tmp_path, command_here):
    outcome = command_here("plan", recipe_file(tmp_path))
    assert outcome.rc == 0, outcome.stderr
    for step in (*STEPS, "benchmark", "report"):
        assert step in outcome.stdout
    assert "10 of 10 to make in build" in outcome.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_a_dry_run_is_the_plan(tmp_path, command_here):
    path = recipe_file(tmp_path)
    dry, plan = command_here("run", path, "--dry-run", "--json"), command_here("plan", path, "--json")
    assert dry.document == plan.document
    assert all(step["made"] and step["seconds"] > 0 for step in plan.document["steps"])
    assert not (tmp_path / "build").exists()


def test_a_plan_of_one_target_leaves_the_others_out(tmp_path, command_here):
    outcome = command_here("plan", recipe_file(tmp_path), "--target", "executorch:fp32", "--json")
    assert {name for name in steps_of(outcome) if "litert" in name} == set()


def test_a_plan_ends_with_the_stage_that_is_asked_for(tmp_path, command_here):
    path = recipe_file(tmp_path)
    assert {*steps_of(command_here("plan", path, "--until", "verify", "--json"))} == {*STEPS}
    made = command_here("run", path, "--until", "convert", "--dry-run", "--json")
    assert {*steps_of(made)} == {step for step in STEPS if step.startswith(("student", "convert"))}


def test_a_stage_that_does_not_exist_is_an_error_that_lists_them(tmp_path, command_here):
    outcome = command_here("run", recipe_file(tmp_path), "--until", "ship")
    assert outcome.rc == 2
    assert f"'ship' is not one of {', '.join(map(repr, STAGES))}. See `" in outcome.stderr
    assert "Value error" not in outcome.stderr


# --- what the first run made -------------------------------------------------------------------------------------


def test_the_first_run_makes_everything_and_a_failed_verdict_is_exit_1(tiny_line):
    assert tuple(sorted(to_make(tiny_line.outcome))) == tuple(sorted(STEPS))
    document = tiny_line.outcome.document
    assert document["verdicts"] == {
        "litert-fp32": "passed",
        "litert-int8_dynamic": "failed",
        "executorch-fp32": "passed",
    }
    assert (tiny_line.outcome.rc, document["exit"]) == (1, 1)
    assert tiny_line.outcome.stderr == ""


def test_the_failed_verdict_names_bound_and_worst_input(tiny_line):
    parity = verify.read_parity(tiny_line.folder / "litert-int8_dynamic" / "parity")
    assert any(reason.startswith("min_sqnr_db: ") and "worst on " in reason for reason in parity.reasons)
    assert parity.measures
    assert parity.measures.worst_score > 0.96, "an honest file: only the impossible bound fails it"


def test_every_artifact_is_whole_and_nothing_hidden_is_left(tiny_line):
    for manifest in tiny_line.folder.rglob(artifact.MANIFEST):
        assert artifact.load(manifest.parent)
    assert half_made(tiny_line) == []


# --- the second run ----------------------------------------------------------------------------------------------

# At exit, write down which modules were ever imported.
RECORDER = """
import atexit, os, pathlib, sys
path = os.environ.get("MODULES_FILE")
if path: atexit.register(lambda: pathlib.Path(path).write_text(" ".join(sys.modules)))
"""


def test_a_second_run_keeps_everything_says_so_and_imports_no_toolchain(line, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(RECORDER)
    paths = os.pathsep.join([str(tmp_path / "site"), environment()["PYTHONPATH"]])
    record = tmp_path / "modules.txt"
    outcome = run_command("verify", line.recipe, cwd=tmp_path, PYTHONPATH=paths, MODULES_FILE=str(record))
    assert outcome.rc == 1
    assert f"0 made, {len(STEPS)} kept because nothing changed." in outcome.stdout
    for step in STEPS:
        assert f"kept {step}: nothing changed" in outcome.stderr
    modules = set(record.read_text().split())
    assert "pipeline.planning.build" in modules
    assert modules & set(HEAVY) == set()


def test_a_second_run_keeps_every_byte(line, command_here):
    before = {path: path.stat().st_mtime_ns for path in line.folder.rglob("*") if path.is_file()}
    outcome = command_here("verify", line.recipe, "--json")
    assert to_make(outcome) == set()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_it_works_from_another_folder_and_path(line, tmp_path, command_here):
    elsewhere = (tmp_path / "build").rename(tmp_path / "moved")
    assert to_make(command_here("verify", line.recipe, "--build", elsewhere, "--json")) == set()


def setting(*path: str, value: Any) -> Callable[[TinyLine], Any]:
    """Return a change of one key of the recipe."""

    def change(line: TinyLine) -> None:
        recipe = tomllib.loads(line.recipe.read_text())
        functools.reduce(lambda section, key: section[key], path[:-1], recipe)[path[-1]] = value
        line.recipe.write_text(tomli_w.dumps(recipe))

    return change


def tamper(name: str) -> Callable[[TinyLine], Any]:
    """Return a change of a file in the build folder."""
    return lambda line: (line.folder / name).write_bytes(b"changed")


INT8 = {"convert litert-int8_dynamic", "verify litert-int8_dynamic"}
FP32 = {"convert litert-fp32", "verify litert-fp32"}
EXECUTORCH = {"convert executorch-fp32", "verify executorch-fp32"}
LINE = set(STEPS)

CHANGES: dict[str, tuple[Callable[[TinyLine], object], set[str]]] = {
    "a scheme is added": (
        setting("targets", "litert", "schemes", value=["fp32", "int8_dynamic", "fp16"]),
        {"convert litert-fp16", "verify litert-fp16"},
    ),
    "a scheme is dropped": (setting("targets", "litert", "schemes", value=["fp32"]), set()),
    "a comment is added": (lambda line: line.recipe.write_text("# new\n" + line.recipe.read_text()), set()),
    "a gate that the golden rows carry": (
        setting("verify", "gates", "int8_dynamic", "min_sqnr_db", value=400),
        INT8,
    ),
    "a gate of the verdict alone": (
        setting("verify", "gates", "int8_dynamic", "max_task_drop", value=0.5),
        {"verify litert-int8_dynamic"},
    ),
    "lengths": (
        # A .pte holds the longest length only, as the bound of a free one.
        setting("convert", "sequence_lengths", value=[8, 24, 32]),
        FP32 | INT8,
    ),
    "the longest length": (
        setting("convert", "sequence_lengths", value=[8, 16, 48]),
        LINE - {"student", "reference 32"} | {"reference 48"},
    ),
    "datasets": (
        setting("verify", "datasets", value=["none"]),
        LINE - {"student"} - {step for step in STEPS if step.startswith("convert")},
    ),
    "weights are no longer declared random": (setting("student", "random_weights", value=False), LINE),
    "a model was changed": (tamper("executorch-fp32/model/model.pte"), EXECUTORCH),
    "a base was changed": (tamper("litert-fp32/model/model.tflite"), FP32 | INT8),
    "a verdict was changed": (tamper("litert-fp32/parity/parity.json"), {"verify litert-fp32"}),
    "the student was changed": (tamper("student/config.json"), LINE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_re_makes_what_hangs_on_it_and_nothing_else(name, line, command_here):
    make_change, expected = CHANGES[name]
    make_change(line)
    outcome = command_here("plan", line.recipe, "--json")
    assert outcome.rc == 0, outcome.stdout
    assert to_make(outcome) - {"benchmark", "report"} == expected


def test_a_damaged_model_is_mended_and_its_verdict_kept_since_equal_bytes_come_out(line, command_here):
    before = artifact.load(line.folder / "litert-int8_dynamic" / "model")
    tamper("litert-int8_dynamic/model/model.tflite")(line)
    outcome = command_here("verify", line.recipe)
    assert "model.tflite has " in outcome.stderr
    assert "made again" in outcome.stderr
    assert f"1 made, {len(STEPS) - 1} kept" in outcome.stdout
    assert artifact.load(line.folder / "litert-int8_dynamic" / "model").digest == before.digest


# --- stopped at any moment ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(line: TinyLine, *extra: str) -> Iterator[subprocess.Popen[str]]:
    """Start `verify` as a process group of its own, as a shell does; whatever is left of it at the end is killed."""
    process = subprocess.Popen(
        [*COMMAND, "verify", str(line.recipe), "--build", str(line.build), *extra],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(true: Callable[[], Any], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def half_made(line: TinyLine) -> list[Path]:
    """Return the folders in which artifacts are being made."""
    return [*(line.build / "store").glob(".*.new"), *line.folder.rglob(".*")]


def forget(line: TinyLine, *names: str) -> TinyLine:
    for name in names:
        remove((line.folder / name).resolve())
        (line.folder / name).unlink()
    return line


def group_is_gone(process: subprocess.Popen[str]) -> bool:
    """Return whether no process of the group runs; what nobody has reaped yet does not run."""
    for member in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(member.pid) == process.pid and member.status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def test_ctrl_c_is_130_one_line_and_leaves_nothing_half_made(line):
    forget(line, "executorch-fp32/model", "litert-int8_dynamic/model")
    with started(line) as process:
        wait_until(lambda: len(half_made(line)) == 2)
        os.killpg(process.pid, signal.SIGINT)
        # Less than the conversions under way take.
        _, stderr = process.communicate(timeout=10)
        wait_until(lambda: group_is_gone(process), seconds=5)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    complaints = [text for text in stderr.splitlines() if not text.startswith("  ")]
    assert [text.partition(";")[0] for text in complaints] == ["error: interrupted"]
    assert half_made(line) == []


def test_ctrl_c_with_json_is_a_document(line):
    forget(line, "reference-32")
    with started(line, "--json") as process:
        wait_until(lambda: half_made(line))
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
    assert (process.returncode, json.loads(stdout)["exit"], stderr) == (130, 130, "")


def test_killed_in_the_middle_the_next_run_goes_on_from_there(line, command_here):
    forget(line, "reference-32")
    with started(line) as process:
        wait_until(lambda: half_made(line) and (line.folder / "logs" / "reference-32.log").exists())
        process.kill()
        process.wait()
        assert half_made(line)
        # A worker sees within half a second that its parent is gone, once it runs.
        wait_until(lambda: group_is_gone(process), seconds=60)

    outcome = command_here("verify", line.recipe, "--json")
    assert outcome.rc == 1
    assert to_make(outcome) == {"reference 32"}
    assert half_made(line) == []


def test_two_runs_at_once_take_turns_and_both_succeed(line):
    forget(line, "reference-32")
    with started(line, "--target", "litert:fp32") as first:
        wait_until(lambda: half_made(line))
        with started(line, "--target", "litert:fp32") as second:
            (one, _), (two, told) = first.communicate(timeout=120), second.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (0, 0), told
    assert "1 made" in one
    assert "0 made" in two
    assert "another run makes reference 32; waiting for it" in told


@pytest.mark.full
def test_what_another_processor_computed_counts(line, tmp_path):
    """Golden rows and the reference are made again by plainer kernels; files and verdicts still fit them."""
    before = {
        target: verify.read_parity(line.folder / target / "parity") for target in ("litert-fp32", "executorch-fp32")
    }
    forget(line, "student", "reference-32", "litert-fp32/parity")
    elsewhere = SETTINGS["plainest"]
    outcome = run_command("verify", line.recipe, "--build", line.build, "--json", cwd=tmp_path, **elsewhere)
    assert to_make(outcome) == {"student", "reference 32", "verify litert-fp32"}
    for target, parity in before.items():
        assert verify.read_parity(line.folder / target / "parity").verdict == parity.verdict == "passed"
    into = tmp_path / "apps"
    arguments = ("ship", line.recipe, "--build", line.build, "--into", into, "--target", "litert:fp32")
    assert run_command(*arguments, cwd=tmp_path).rc == 0


def test_sigterm_is_143_and_ends_the_workers_too(line):
    forget(line, "executorch-fp32/model", "litert-int8_dynamic/model")
    with started(line) as process:
        wait_until(lambda: len(half_made(line)) == 2)
        # To the command alone, as a supervisor sends it.
        process.terminate()
        _, stderr = process.communicate(timeout=10)
        wait_until(lambda: group_is_gone(process), seconds=5)
    assert process.returncode == 143
    assert "Traceback" not in stderr
    complaints = [text for text in stderr.splitlines() if not text.startswith("  ")]
    assert [text.partition(";")[0] for text in complaints] == ["error: ended by SIGTERM"]
    assert half_made(line) == []
    for manifest in (line.build / "store").glob(f"*/{artifact.MANIFEST}"):
        assert artifact.load(manifest.parent)


# --- predict, ship, clean ----------------------------------------------------------------------------------------


def test_predict_shows_neighbours_and_nothing_of_the_runtime(tiny_line, tmp_path, command_here):
    (tmp_path / "lines.txt").write_text("one\n\ntwo words\nthree more words\n")
    among = ("--among", tmp_path / "lines.txt", "--top", "2")
    outcome = command_here("predict", tiny_line.folder / "litert-fp32", "two words", "another", *among)
    assert (outcome.rc, outcome.stderr) == (0, "")
    rows = outcome.stdout.splitlines()
    assert len(rows) == 6
    assert rows[1].split(maxsplit=1) == ["1.000", "two words"]


def test_predict_takes_folder_target_and_file_alike(tiny_line, command_here):
    target = tiny_line.folder / "litert-int8_dynamic"
    places = (target, target / "model", target / "model" / "model.tflite")
    vectors = [
        command_here("predict", place, "hello", "--json").document["predictions"][0]["vector"] for place in places
    ]
    assert len(vectors[0]) == 64
    assert vectors[0] == vectors[1] == vectors[2]


def test_a_vector_is_one_line_of_the_document(tiny_line, command_here):
    outcome = command_here("predict", tiny_line.folder / "litert-fp32", "hello", "--json")
    (vector,) = [line for line in outcome.stdout.splitlines() if '"vector"' in line]
    assert json.loads("{" + vector.strip().rstrip(",") + "}")["vector"] == outcome.document["predictions"][0]["vector"]


@contextlib.contextmanager
def standard_input() -> Iterator[int]:
    """Make a pipe standard input, and yield the end to write to."""
    kept_input = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield writing
    finally:
        os.dup2(kept_input, 0)
        os.close(kept_input)


def test_lines_of_standard_input_are_answered_as_they_come(tiny_line, command_here):
    early = []

    def feed(writing: int) -> None:
        before = os.fstat(1).st_size
        os.write(writing, b"one\n\ntwo words\nthr")
        wait_until(lambda: os.fstat(1).st_size > before)
        early.append(os.fstat(1).st_size)
        os.write(writing, b"ee")
        os.close(writing)

    with standard_input() as writing, ThreadPoolExecutor() as pool:
        feeding = pool.submit(feed, writing)
        outcome = command_here("predict", "tiny/litert-fp32", "--build", tiny_line.build, "--json")
        feeding.result()
    assert outcome.rc == 0, outcome.stdout
    *rows, last = map(json.loads, outcome.stdout.splitlines())
    assert [row["text"] for row in rows] == ["one", "two words", "three"]
    assert last == {"exit": 0}
    assert 0 < early[0] < len(outcome.stdout)


def test_a_closed_standard_input_is_none(tiny_line):
    # What is opened next gets its number, and reading that would never end.
    command = [sys.executable, "-m", "pipeline", "predict", str(tiny_line.folder / "litert-fp32")]
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    outcome = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "there is no text: give one or more after the file" in outcome.stderr


def test_lines_are_read_in_batches_and_a_bad_one_is_named(monkeypatch):
    monkeypatch.setattr(predicting, "_BATCH", 2)
    read = {b"a\nb\nc\n": [["a", "b"], ["c"]], b"\xef\xbb\xbfa\r\n \nb": [["a"], ["b"]], b"": []}
    for content, expected in read.items():
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        assert list(predicting.batches(reading)) == expected
        os.close(reading)
    reading, writing = os.pipe()
    os.write(writing, b"a\n\xff\n")
    os.close(writing)
    with pytest.raises(InputError, match="line 2 of standard input is not UTF-8"):
        list(predicting.batches(reading))
    os.close(reading)


def test_no_text_at_all_says_how_to_give_one(tiny_line, command_here):
    with standard_input() as writing:
        os.close(writing)
        outcome = command_here("predict", tiny_line.folder / "litert-fp32")
    assert outcome.rc == 2
    assert "standard input has no line of text; give texts after the file, or pipe in" in outcome.stderr


def test_a_pair_is_a_pair_however_it_is_given():
    pair = [("first", "second")]
    assert text_pairs("first", "second") == text_pairs(pair, None) == text_pairs([["first", "second"]], None) == pair  # type: ignore[list-item]
    assert text_pairs("first", None) == text_pairs(["first"], None) == [("first", None)]
    with pytest.raises(InputError, match=r"give several pairs as predict\(\[\(first, second\), …\]\), and a prompt by"):
        text_pairs(["first"], "query")
    with pytest.raises(InputError, match="takes texts, or pairs of texts, and got \\('a', 'b', 'c'\\)"):
        text_pairs([("a", "b", "c")], None)  # type: ignore[list-item]


def test_a_recipe_of_one_s_own_ships_by_its_name(tiny_line, tmp_path, command_here):
    arguments = ("ship", "tiny", "--build", tiny_line.build, "--into", tmp_path / "apps", "--target", "litert:fp32")
    outcome = command_here(*arguments, "--json")
    assert (outcome.rc, len(outcome.document["shipped"])) == (0, 1), outcome.stdout


def shipped_files(into: Path) -> dict[str, Any]:
    return {str(path.parent.relative_to(into)): json.loads(path.read_text()) for path in into.rglob("shipped.json")}


def test_ship_puts_a_passed_model_into_both_apps_byte_for_byte(tiny_line, tmp_path, command_here):
    into = tmp_path / "apps"
    arguments = ("ship", tiny_line.recipe, "--build", tiny_line.build, "--into", into, "--target", "litert:fp32")
    for _ in range(2):
        outcome = command_here(*arguments, "--json")
        assert outcome.rc == 0, outcome.stdout
    found = shipped_files(into)
    assert {place.split("/")[0] for place in found} == {"android-demo", "ios-demo"}
    for place, record in found.items():
        assert record["verdict"] == "passed"
        for entry in record["files"]:
            assert artifact.sha256_file(into / place / entry["path"]) == entry["sha256"]
        assert len(list((into / place).iterdir())) == len(record["files"]) + 1
    assert list(into.rglob(".*")) == []


def test_ship_without_a_target_takes_the_smallest_and_all_or_none(tiny_line, tmp_path, command_here):
    outcome = command_here("ship", tiny_line.recipe, "--build", tiny_line.build, "--into", tmp_path / "apps")
    assert outcome.rc == 1
    assert "litert-int8_dynamic is not shipped" in outcome.stderr
    assert shipped_files(tmp_path) == {}


def test_ship_of_several_targets_is_refused_whole_if_one_failed(tiny_line, tmp_path, command_here):
    targets = ("--target", "litert:fp32", "--target", "litert:int8_dynamic")
    outcome = command_here("ship", tiny_line.recipe, "--build", tiny_line.build, "--into", tmp_path / "apps", *targets)
    assert outcome.rc == 1
    assert shipped_files(tmp_path) == {}


def test_a_model_that_was_not_run_ships_only_when_told_and_says_so(line, tmp_path, command_here):
    place = line.folder / "litert-fp32" / "parity"
    judged = verify.read_parity(place).model_copy(update={"verdict": "not_run", "reasons": ["needs macOS."]})
    model = artifact.load(line.folder / "litert-fp32" / "model")
    spec = artifact.Spec("verify", 1, {}, {"model": model.digest}, {})
    kept(place, spec, lambda out: {"bytes": (out / verify.PARITY).write_text(judged.model_dump_json())})

    arguments = ("ship", line.recipe, "--target", "litert:fp32", "--into", tmp_path / "apps")
    refused = command_here(*arguments)
    assert refused.rc == 1
    assert "needs macOS" in refused.stderr
    assert "--allow-not-run" in refused.stderr
    assert command_here(*arguments, "--allow-not-run", "--stale").rc == 0
    assert {record["verdict"] for record in shipped_files(tmp_path / "apps").values()} == {"not_run"}


def test_clean_removes_what_is_ours_and_nothing_else(line, pocketbert):
    (line.build / "mine").mkdir()
    (line.build / "mine" / "notes.txt").write_text("keep")
    outcome = pocketbert("clean", "--json")
    assert outcome.document["removed"] == ["build/tiny"]
    assert len(outcome.document["artifacts"]) == len(STEPS)
    assert [path.name for path in line.build.iterdir()] == ["mine"]
    assert "nothing to remove" in pocketbert("clean").stdout
