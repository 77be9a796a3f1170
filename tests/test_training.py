"""Fine-tuning learns, goes on after a stop as if there had been none, and refuses data that cannot be learnt from."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from conftest import COMMAND, LABELS, environment, recipe_file, run_command
from rich.console import Console
from safetensors.torch import load_file

from pipeline import artifact
from pipeline.checkpoint import source as student
from pipeline.cli import progress as cli_progress
from pipeline.data import datasets as data
from pipeline.data import files
from pipeline.data.datasets import Columns, LocatedAnswer
from pipeline.errors import InputError, RecipeError
from pipeline.metrics import scoring
from pipeline.planning.branches import branch_for
from pipeline.recipe import loading as recipes
from pipeline.schemes import SCHEMES
from pipeline.tasks import TASKS
from pipeline.train import checkpoints, examples, loop, model, stage
from pipeline.train.job import TrainingJob, read_record
from pipeline.train.objectives import TASK_LOSSES

pytestmark = pytest.mark.usefixtures("one_thread")

FILLER = ("the", "house", "river", "of", "seven", "old", "tables", "and", "paper", "runs", "slowly", "under")
NAMES, COLOURS = ("alice", "bob", "clara"), ("red", "blue", "green", "black")
TRAINED = [name for name, task in TASKS.items() if task.output_kind in TASK_LOSSES]
FAST = {"learning_rate": 2e-3, "batch_size": 16, "max_length": 32, "steps": 60}


# --- toy data: rules that a model of two layers can learn ---------------------------------------------------------


def words(draw: random.Random) -> list[str]:
    return draw.choices(FILLER, k=draw.randint(3, 12))


def with_one(draw: random.Random, choices: tuple[str, ...]) -> tuple[list[str], int]:
    """Return words with one of the choices among them, and where it is."""
    text = words(draw)
    at = draw.randrange(len(text))
    text[at] = draw.choice(choices)
    return text, at


def table(draw: random.Random, count: int, graded: bool) -> str:
    lines = ["text,label"]
    for _ in range(count):
        if graded:
            text = [*words(draw), *["very"] * (grade := draw.randint(0, 5))]
            lines.append(f"{' '.join(draw.sample(text, len(text)))},{grade / 5}")
        else:
            text, at = with_one(draw, COLOURS[:2])
            lines.append(f"{' '.join(text)},{text[at]}")
    return "\n".join(lines) + "\n"


def conll(draw: random.Random, count: int) -> str:
    rows = [with_one(draw, NAMES) for _ in range(count)]
    lines = [[f"{word}\t{'B-person' if word in NAMES else 'O'}" for word in text] for text, _ in rows]
    return "\n\n".join("\n".join(block) for block in lines) + "\n"


def squad(draw: random.Random, count: int) -> str:
    paragraphs = []
    for _ in range(count):
        text, at = with_one(draw, COLOURS)
        answer = {"text": text[at], "answer_start": len(" ".join([*text[:at], ""]))}
        paragraphs.append({"context": " ".join(text), "qas": [{"question": "which colour?", "answers": [answer]}]})
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


def several(draw: random.Random, count: int) -> str:
    """Each text has one colour of two pairs; the first of a pair is a label, so that a text has two labels or none."""
    rows = []
    for _ in range(count):
        colours = [draw.choice(pair) for pair in (COLOURS[:2], COLOURS[2:])]
        labels = [colour for colour in colours if colour in ("red", "green")]
        text = [*draw.choices(FILLER, k=2), *colours * 3]
        rows.append(f"{' '.join(draw.sample(text, len(text)))},{'|'.join(labels)}")
    return "\n".join(("text,label", *rows)) + "\n"


def graded_twice(draw: random.Random, count: int) -> str:
    rows = []
    for _ in range(count):
        first, second = draw.randint(0, 1), draw.randint(0, 2)
        text = [*draw.choices(FILLER, k=4), *["very"] * 4 * first, *["quite"] * 4 * second]
        rows.append(f"{' '.join(draw.sample(text, len(text)))},{first},{second / 2}")
    return "\n".join(("text,size,speed", *rows)) + "\n"


WRITERS: dict[str, tuple[str, Callable[[random.Random, int], str]]] = {
    "classification": (".csv", lambda draw, count: table(draw, count, graded=False)),
    "regression": (".csv", lambda draw, count: table(draw, count, graded=True)),
    "multi_label_classification": (".csv", several),
    "multi_regression": (".csv", graded_twice),
    "token_classification": (".conll", conll),
    "question_answering": (".json", squad),
}
MORE_KEYS: dict[str, dict[str, Any]] = {"multi_regression": {"labels": ["size", "speed"]}}


def write_toy(folder: Path, task: str, *, train: int = 320, dev: int = 80) -> dict[str, Any]:
    """Write a toy dataset; return what the recipe's [train] says of it."""
    suffix, write = WRITERS[task]
    draw = random.Random(7)
    for name, count in (("train", train), ("dev", dev)):
        (folder / f"{name}{suffix}").write_text(write(draw, count), encoding="utf-8")
    return {"train_file": f"train{suffix}", "dev_file": f"dev{suffix}"} | MORE_KEYS.get(task, {})


def recipe_of(folder: Path, task: str, source: Path | str, train: dict[str, Any], **more: Any) -> Path:
    return recipe_file(folder, task=task, student={"source": str(source)}, train=train, **more)


def job_of(path: Path) -> TrainingJob:
    found, file = recipes.read_recipe(str(path))
    return stage.job(found, file, student.find(found, file), path.parent / "checkpoints")


def silent(what: str, fraction: float) -> None:
    pass


@pytest.fixture
def toy(tmp_path: Path, tiny_student: Callable[..., Path]) -> Callable[..., TrainingJob]:
    """A factory of jobs over toy data, on a tiny encoder without a head; a setting that is None is left out."""

    def make(task: str = "classification", **settings: Any) -> TrainingJob:
        source = tiny_student(settings.pop("architecture", "bert"), settings.pop("head", "embedding"))
        asked = FAST | write_toy(tmp_path, task) | settings
        return job_of(
            recipe_of(tmp_path, task, source, {key: value for key, value in asked.items() if value is not None})
        )

    return make


# --- it learns ----------------------------------------------------------------------------------------------------


def test_every_task_but_embedding_is_trained():
    assert set(TRAINED) == set(TASKS) - {"embedding"} == set(WRITERS)


@pytest.mark.numeric
@pytest.mark.parametrize("task", TRAINED)
def test_a_rule_is_learnt(task, toy):
    told: list[float] = []
    trained, found = stage.fine_tune(toy(task), lambda what, fraction: told.append(fraction))
    losses = [point.loss for point in found.curve]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:3])
    assert found.dev[-1].value > 0.8
    assert (found.train_rows, found.dev_rows, found.steps) == (320, 80, 60)
    assert [score.step for score in found.dev] == [20, 40, 60]
    assert found.new_tensors, "an encoder has no head"
    assert not trained.training
    assert told
    assert told == sorted(told)


def test_the_learning_rate_rises_and_falls_in_lines(toy):
    _, found = stage.fine_tune(toy(steps=20, warmup_fraction=0.5), silent)
    rates = [point.learning_rate for point in found.curve]
    # After n updates: the rate of the next one.
    assert rates == pytest.approx([2e-3 * (n / 10 if n <= 10 else (20 - n) / 10) for n in range(1, 21)])


@pytest.mark.parametrize(
    ("precision", "times", "said"), [("bf16", 1.9, True), ("bf16", 0.3, False), ("no", 1.9, False)]
)
def test_a_run_says_where_bf16_costs_time(precision, times, said, toy, monkeypatch):
    # How fast a processor is by either is its own affair.
    assert loop.bf16_slowdown() > 0
    monkeypatch.setattr(loop, "bf16_slowdown", lambda: times)
    told: list[str] = []
    stage.fine_tune(toy(steps=3, precision=precision), lambda what, _: told.append(what))
    assert (" take 1.9 times as long as in fp32 here: take train.precision out" in told[-1]) == said


def test_biases_and_norms_do_not_decay(toy):
    found, _ = model.load_for_task(toy())
    matrices, vectors = model.decay_groups(found, 0.01)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in found.named_parameters()}
    assert all(names[id(one)].endswith("bias") or "LayerNorm" in names[id(one)] for one in vectors["params"])
    assert not any(names[id(one)].endswith("bias") or "LayerNorm" in names[id(one)] for one in matrices["params"])
    assert len(matrices["params"]) + len(vectors["params"]) == len(names)


@pytest.mark.parametrize("architecture", ["albert", "distilbert", "electra", "mobilebert", "roberta"])
def test_other_architectures_train(architecture, toy):
    _, found = stage.fine_tune(toy(architecture=architecture, steps=3), silent)
    assert np.isfinite([point.loss for point in found.curve]).all()


def test_epochs_are_passes_over_the_rows_each_in_an_order_of_its_own(toy, monkeypatch):
    orders = []

    def watched(lengths, batch_size, *, seed, number, near):
        orders.append(number)
        return epoch(lengths, batch_size, seed=seed, number=number, near=near)

    epoch = examples.epoch_batches
    monkeypatch.setattr(examples, "epoch_batches", watched)
    _, found = stage.fine_tune(toy(steps=None, epochs=1.5), silent)
    assert (found.steps, found.epochs, orders) == (30, 1.5, [0, 1]), "320 rows, 16 an update"
    assert [score.epoch for score in found.dev] == [1.0, 1.5]
    lengths = np.arange(3, 67)
    first, second, other = (
        np.concatenate(epoch(lengths, 8, seed=seed, number=number)) for seed, number in ((0, 0), (0, 1), (1, 0))
    )
    assert set(first) == set(second) == set(other) == set(range(64))
    assert not np.array_equal(first, second), "epochs differ"
    assert not np.array_equal(first, other), "and seeds"


def test_a_seed_decides_the_head(toy):
    first, again, other = (stage.fine_tune(toy(steps=5, seed=seed), silent)[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@pytest.mark.parametrize("what", ["order", "dropout"])
def test_a_seed_decides_order_and_dropout(what, toy, monkeypatch):
    """Nothing else differs between seeds where a head is kept, and intervals over seeds rest on it."""
    settings = {"task": "regression", "head": "regression", "steps": 3}
    if what == "order":
        settings["dropout"] = 0.0
    else:
        epoch = examples.epoch_batches
        monkeypatch.setattr(
            examples,
            "epoch_batches",
            lambda lengths, size, *, seed, number, near: epoch(lengths, size, seed=0, number=number, near=near),
        )
    first, again, other = (stage.fine_tune(toy(seed=seed, **settings), silent)[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@pytest.mark.parametrize("architecture", ["albert", "bert", "distilbert", "electra", "mobilebert", "roberta"])
def test_without_dropout_a_student_that_learns_is_the_one_that_is_judged(architecture, toy):
    learner, _ = model.load_for_task(toy(architecture=architecture))
    ids = torch.arange(5, 29).reshape(2, 12)
    model.set_dropout(learner, 0.5)
    assert not torch.equal(learner.train()(ids).logits, learner.eval()(ids).logits)
    model.set_dropout(learner, 0.0)
    assert torch.equal(learner.train()(ids).logits, learner.eval()(ids).logits)


def test_dropout_is_of_the_run_and_not_of_what_is_saved(toy):
    asked, plain = toy(steps=1, dropout=0.0), toy(steps=1)
    assert (asked.settings.model_dump()["dropout"], "dropout" in plain.settings.model_dump()) == (0.0, False)
    config = stage.fine_tune(asked, silent)[0].config
    assert config.hidden_dropout_prob == stage.fine_tune(plain, silent)[0].config.hidden_dropout_prob > 0


def test_parts_of_an_update_are_the_same_update(tmp_path, tiny_student):
    # Tokens are unevenly spread over the parts: a mean of means would be another gradient.
    source = tiny_student("bert", "embedding")
    train = FAST | write_toy(tmp_path, "token_classification") | {"steps": 4, "dropout": 0.0}
    curves = []
    for count in (1, 4):
        job = job_of(recipe_of(tmp_path, "token_classification", source, train | {"gradient_accumulation": count}))
        # AdamW does not see gradients that are all scaled alike; their norms tell.
        found = stage.fine_tune(job, silent)[1].curve
        curves.append([value for point in found for value in (point.loss, point.gradient_norm)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


def test_a_head_that_fits_is_kept_and_a_new_one_is_made_on_request(tmp_path, tiny_student):
    source = tiny_student("bert", "classification")
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"a {name} text,{name}\n" for name in LABELS))
    (tmp_path / "dev.csv").write_text((tmp_path / "train.csv").read_text())
    train = {"train_file": "train.csv", "dev_file": "dev.csv", "max_length": 16}
    kept = job_of(recipe_of(tmp_path, "classification", source, train))
    new = job_of(recipe_of(tmp_path, "classification", source, train | {"new_head": True}))
    before = load_file(source / "model.safetensors")["classifier.weight"]
    assert model.load_for_task(kept)[1] == []
    assert torch.equal(model.load_for_task(kept)[0].classifier.weight, before)
    assert model.load_for_task(new)[1] == ["classifier.bias", "classifier.weight"]
    assert not torch.equal(model.load_for_task(new)[0].classifier.weight, before)


# --- batches, examples, losses ------------------------------------------------------------------------------------


def test_an_epoch_holds_each_row_once_in_another_order_each_time(seed):
    lengths = np.random.default_rng(seed).integers(2, 60, 1003)
    first, second = (examples.epoch_batches(lengths, 8, seed=seed, number=number) for number in (0, 1))
    for order in (first, second):
        assert sorted(np.concatenate(order)) == list(range(1003))
        assert [len(rows) for rows in order].count(8) == 125
    assert not np.array_equal(first[0], second[0])
    padding = sum(lengths[rows].max() * len(rows) for rows in first) / lengths.sum()
    assert padding < 1.15, "rows of like lengths share a batch"


def test_rows_that_are_near_each_other_share_an_update_and_each_row_comes_once(seed):
    draw = np.random.default_rng(seed)
    clusters = draw.permutation(1000).reshape(125, 8)
    nearest = np.empty((1000, 7), np.int64)
    for cluster in clusters:
        for row in cluster:
            nearest[row] = draw.permutation(cluster[cluster != row])
    lengths, near = draw.integers(2, 60, 1000), examples.Neighbourhoods(nearest, 4)
    first, second = (examples.epoch_batches(lengths, 32, seed=seed, number=number, near=near) for number in (0, 1))
    for order in (first, second):
        assert sorted(np.concatenate(order)) == list(range(1000))
        assert [len(rows) for rows in order].count(32) == 31
        update = {int(row): number for number, rows in enumerate(order) for row in rows}
        together = np.mean([update[row] == update[other] for row in range(1000) for other in nearest[row]])
        assert together > 3 / 7, "four of a cluster come together, and some of its other four by chance"
    assert {frozenset(rows) for rows in map(tuple, first)} != {frozenset(rows) for rows in map(tuple, second)}


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_and_parts_share_an_update(processes):
    rows = np.arange(10, 17)
    shares = [examples.process_batches(rows, process=one, processes=processes, count=2) for one in range(processes)]
    assert sorted(np.concatenate([part for share in shares for part in share])) == list(rows)
    assert {len(share) for share in shares} == {2}


def test_targets_are_where_verification_looks(tiny_student):
    from pipeline.text.encoding import Encoder

    encoder = Encoder.from_folder(tiny_student("bert", "embedding"), 32)
    tagged = data.Labelled("alice unbelievablyyy runs", None, tags=(1, 2, 0))
    (one,) = examples.encode(encoder, TASKS["token_classification"], [tagged], [5, 6, 7])
    firsts = [at for at, tag in enumerate(one.target) if tag != examples.IGNORED]
    assert [one.target[at] for at in firsts] == [6, 7, 5]
    assert len(one.target) == len(one.row) > 5, "the long word has more tokens than one"

    passage = "the old house is green and " * 12 + "seven tables"
    asked = data.Labelled("how many tables?", passage, answers=("seven tables",))
    windows = list(examples.encode(encoder, TASKS["question_answering"], [asked], []))
    assert len(windows) > 2
    assert {one.target for one in windows[:-1]} == {(0.0, 0.0)}
    start, end = map(int, windows[-1].target)
    assert encoder.tokens(windows[-1].row)[start : end + 1] == ["seven", "tables"]
    # An annotator's space around the answer is part of no token.
    spaced = data.LocatedAnswer("how many?", "there are seven tables here", answers=(" seven tables ",), answer_start=9)
    (one,) = examples.encode(encoder, TASKS["question_answering"], [spaced], [])
    start, end = map(int, one.target)
    assert encoder.tokens(one.row)[start : end + 1] == ["seven", "tables"]


def test_padding_takes_no_part_in_a_span_s_loss():
    torch.manual_seed(0)
    logits = torch.randn(2, 1, 5)
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    target = torch.tensor([[1, 2]])
    long = examples.Batch({"attention_mask": mask}, target)
    short = examples.Batch({"attention_mask": mask[:, :3]}, target)
    loss = TASK_LOSSES["spans"].loss
    whole = loss(SimpleNamespace(start_logits=logits[0], end_logits=logits[1]), long)
    assert whole == loss(SimpleNamespace(start_logits=logits[0, :, :3], end_logits=logits[1, :, :3]), short)


def test_a_sample_of_the_rows_is_fixed_by_the_seed(toy):
    from pipeline.train.checks import training_rows

    samples = [training_rows(job.dataset, job.settings) for job in (toy(max_rows=30), toy(max_rows=30))]
    assert samples[0] == samples[1]
    assert len(samples[0]) == 30
    other = toy(max_rows=30, seed=1)
    assert training_rows(other.dataset, other.settings) != samples[0]


# --- going on -----------------------------------------------------------------------------------------------------


class Stop(Exception):
    """Something that ends a run in its middle."""


def stop_after(done: float) -> loop.Tell:
    def tell(what: str, fraction: float) -> None:
        if fraction >= done:
            raise Stop

    return tell


@pytest.fixture
def each_step(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings under which every update is told of and every one leaves a checkpoint."""
    monkeypatch.setattr(loop, "_TELL_EVERY_S", 0.0)
    return {"steps": 10, "checkpoint_minutes": 1e-9}


@pytest.mark.parametrize("task", ["classification", "token_classification"])
def test_a_run_that_was_stopped_ends_with_the_same_weights(task, toy, each_step, tmp_path):
    job = toy(task, **each_step)
    whole, uncut = stage.fine_tune(replace(job, checkpoints=tmp_path / "others"), silent)
    for done in (0.4, 0.8):
        with pytest.raises(Stop):
            stage.fine_tune(job, stop_after(done))
    resumed, cut = stage.fine_tune(job, silent)
    assert cut.resumed_at == [3, 7]
    assert [(one.step, one.loss) for one in cut.curve] == [(one.step, one.loss) for one in uncut.curve]
    assert cut.dev == uncut.dev
    assert all(torch.equal(resumed.state_dict()[name], tensor) for name, tensor in whole.state_dict().items())


def test_a_checkpoint_of_another_setting_is_not_used(toy, each_step):
    with pytest.raises(Stop):
        stage.fine_tune(toy(**each_step), stop_after(0.5))
    _, other = stage.fine_tune(toy(**each_step | {"learning_rate": 1e-3}), silent)
    assert other.resumed_at == []


def test_a_checkpoint_that_was_not_whole_is_not_used(toy, each_step):
    job = toy(**each_step)
    with pytest.raises(Stop):
        stage.fine_tune(job, stop_after(0.5))
    (place,) = (job.checkpoints / job.key).glob("step-*")
    (place / "state.json").unlink()
    assert stage.fine_tune(job, silent)[1].resumed_at == []


def test_nothing_in_a_checkpoint_is_pickled(toy, each_step):
    job = toy(**each_step)
    with pytest.raises(Stop):
        stage.fine_tune(job, stop_after(0.5))
    (place,) = (job.checkpoints / job.key).iterdir()
    assert {path.suffix for path in place.iterdir()} == {".safetensors", ".json"}
    nothing: Any = SimpleNamespace()
    assert checkpoints.load(job.checkpoints, "another key", nothing) is None


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_trains_keeps_and_hands_on(tmp_path, tiny_student, command_here):
    train = FAST | write_toy(tmp_path, "classification")
    path = recipe_of(tmp_path, "classification", tiny_student("bert", "embedding"), train)
    first = command_here("student", path, "--json")
    assert first.rc == 0, first.stdout + first.stderr
    trained, laid_out = first.document["steps"]
    assert trained["metrics"]["dev"] > 0.8
    assert laid_out["metrics"]["labels"] == ["blue", "red"]
    folder = tmp_path / "build" / "tiny"
    config = json.loads((folder / "student" / "config.json").read_text())
    assert (config["label2id"], config["problem_type"]) == ({"blue": 0, "red": 1}, "single_label_classification")
    assert artifact.load(folder / "trained")
    assert read_record(folder / "trained").dev[-1].value == trained["metrics"]["dev"]
    assert not (folder / "checkpoints").exists()

    planned = command_here("plan", path, "--json")
    made = {step["name"]: step["made"] for step in planned.document["steps"]}
    assert (made.pop("train"), made.pop("student")) == (False, False)
    assert all(made.values()), "nothing of these was asked for yet"
    (tmp_path / "dev.csv").write_text((tmp_path / "dev.csv").read_text() + "a red river,red\n")
    changed = command_here("plan", path, "--json")
    assert {step["name"]: step["made"] for step in changed.document["steps"]}["train"]


def test_a_training_in_a_pipe_prints_how_far_it_is(tmp_path, tiny_student, command_here):
    train = FAST | write_toy(tmp_path, "classification") | {"steps": None, "epochs": 20}
    train = {key: value for key, value in train.items() if value is not None}
    path = recipe_of(tmp_path, "classification", tiny_student("bert", "embedding"), train)
    done = command_here("train", path)
    assert done.rc == 0, done.stderr
    figures = r"(loss \d.\d{4}, )?(dev metric \d.\d{4}, )?[\d.]+ steps/s, \d+:\d\d left"
    found = re.findall(rf"^ +(\d+) %  train: step (\d+) of 400, {figures}$", done.stderr, re.MULTILINE)
    assert len(found) > 1, done.stderr
    assert all(int(percent) == pytest.approx(int(step) / 4, abs=1) for percent, step, *_ in found)
    assert found[-1][2], "the loss is known by then"
    assert found[-1][3], "an epoch is done by then"


def test_without_a_terminal_a_line_comes_at_each_tenth_and_every_half_minute(monkeypatch):
    now = [0.0]
    printed = io.StringIO()
    monkeypatch.setattr("pipeline.cli.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(cli_progress, "_err", Console(file=printed, width=200))
    with cli_progress.Progress(quiet=False) as progress:
        progress.started("train")
        for second in range(100):
            now[0] = float(second)
            progress.advanced("train", f"second {second}", 0.0 if second < 70 else 0.25 + (second - 70) / 1000)
    lines = printed.getvalue().splitlines()
    seconds = [int(line.rpartition(" ")[2]) for line in lines if "second" in line]
    assert seconds == [30, 60, 70]


@pytest.mark.full
def test_a_command_that_was_killed_goes_on_to_the_same_weights(tmp_path, tiny_student):
    train = FAST | write_toy(tmp_path, "classification") | {"steps": 400, "checkpoint_minutes": 0.003}
    path = recipe_of(tmp_path, "classification", tiny_student("bert", "embedding"), train)
    assert run_command("train", path, "--build", "whole", cwd=tmp_path).rc == 0
    killed = 0
    while killed < 2:
        process = subprocess.Popen(
            [*COMMAND, "train", str(path)], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL
        )
        steps = set(tmp_path.glob("build/tiny/checkpoints/*/step-*"))
        while not set(tmp_path.glob("build/tiny/checkpoints/*/step-*")) - steps:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # Nobody told the worker: it sees for itself that its parent is gone.
        assert not psutil.wait_procs(workers, timeout=30)[1]
        killed += 1
    assert not (tmp_path / "build" / "tiny" / "trained").exists()
    outcome = run_command("train", path, cwd=tmp_path)
    assert outcome.rc == 0, outcome.stderr
    assert len(read_record(tmp_path / "build" / "tiny" / "trained").resumed_at) == 2
    resumed, whole = (tmp_path / place / "tiny" / "trained" / "model.safetensors" for place in ("build", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "build" / "tiny" / "checkpoints").exists()


@pytest.mark.full
def test_ctrl_c_ends_it_cleanly_and_keeps_the_checkpoint(tmp_path, tiny_student):
    train = FAST | write_toy(tmp_path, "classification") | {"steps": 100_000, "checkpoint_minutes": 0.003}
    path = recipe_of(tmp_path, "classification", tiny_student("bert", "embedding"), train)
    process = subprocess.Popen(
        [*COMMAND, "train", str(path)], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, start_new_session=True
    )
    while not list(tmp_path.glob("build/tiny/checkpoints/*/step-*")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"interrupted" in stderr
    assert b"Traceback" not in stderr
    assert list(tmp_path.glob("build/tiny/checkpoints/*/step-*"))


@pytest.mark.full
def test_two_processes_learn_what_one_does(tmp_path, tiny_student):
    source = tiny_student("bert", "embedding")
    # 75 rows in updates of 16: the last one of an epoch cannot be shared evenly.
    train = FAST | write_toy(tmp_path, "token_classification", train=75) | {"steps": 12, "dropout": 0.0}
    path = recipe_of(tmp_path, "token_classification", source, train)
    # accelerate 1.15 launches several processes on GPUs or by mpirun alone; under torchrun it finds them as well.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    curves = []
    for count in (1, 2):
        out = tmp_path / f"of-{count}"
        done = subprocess.run(
            [*launch, str(count), "-m", "pipeline.train", str(path), "--out", str(out)],
            cwd=tmp_path,
            env=environment(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = read_record(out)
        assert found.processes == count
        curves.append([value for point in found.curve for value in (point.loss, point.gradient_norm)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


# --- bad input ----------------------------------------------------------------------------------------------------

GOOD = "text,label\na,x\nb,y\n"

BAD_FILES: dict[str, tuple[str, str, str, str]] = {
    "absent": ("classification", "train.csv", "", r"train\.csv does not exist"),
    "empty": ("classification", "train.csv", "text,label\n", r"train\.csv holds no rows"),
    "no header": ("classification", "train.csv", "one,x\ntwo,y\n", r"no column 'text'; there are: one, x"),
    "empty label": ("classification", "train.csv", "text,label\na,x\nb,\n", r"row 2: column 'label' is empty"),
    "one class": (
        "classification",
        "train.csv",
        "text,label\na,x\nb,x\n",
        r"all 2 rows have the label 'x', and at least two",
    ),
    "another way to tag": (
        "token_classification",
        "train.conll",
        "Ada U-x\nran O\n",
        r"line 1: tag 'U-x' is not O, B-KIND or I-KIND\. Write U- and S- as B-, L- and E- as I-\.",
    ),
    "unknown class": ("classification", "train.csv", "text,label\na,x\nb,z\n", r"label 'y' is not in train\.csv"),
    "too many fields": ("classification", "train.csv", "text,label\na,x,y\n", r"row 1: more fields"),
    "not UTF-8": ("classification", "train.csv", "text,label\n\udcff,x\n", r"train\.csv is not UTF-8"),
    "not JSON": ("classification", "train.jsonl", "{\n", r"train\.jsonl, line 1 is not JSON"),
    "not an object": ("classification", "train.jsonl", "[1]\n", r"line 1 holds a list, not an object"),
    "half a character": (
        "classification",
        "train.jsonl",
        '{"text": "a", "label": "x"}\n{"text": "b", "label": "\\ud83d"}\n',
        r"row 2: column 'label' holds half a character",
    ),
    "a list": ("classification", "train.jsonl", '{"text": ["a"], "label": "x"}\n', r"column 'text' holds a list"),
    "a column twice": ("classification", "train.csv", "text,label,label\na,x,y\n", r"names column 'label' twice"),
    "what pandas writes": ("classification", "train.csv", "text,label\na,x\nb,nan\n", r"'nan' is not a finite number"),
    "a quote left open": ("classification", "train.csv", 'text,label\na,x\n"b,y\n', r"malformed at line 3: "),
    "other tags": ("token_classification", "train.conll", "a O\nb PER\n", r"line 2: tag 'PER' is not O, B-KIND or"),
    "an answer beyond all": (
        "question_answering",
        "train.json",
        '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "a?", "answers": '
        '[{"text": "a", "answer_start": 1e999}]}]}]}]}',
        r"train\.json is not SQuAD's JSON",
    ),
    "no number": ("regression", "train.csv", "text,label\na,0.5\nb,high\n", r"label 'high' is not a number"),
    "infinite": ("regression", "train.csv", "text,label\na,0.5\nb,inf\n", r"'inf' is not a finite number"),
    "a word without a tag": ("token_classification", "train.conll", "a O\nb\n", r"line 2: 'b' has no tag"),
    "one tag": ("token_classification", "train.conll", "a O\nb O\n", r"the label 'O', and at least two"),
    "not SQuAD": ("question_answering", "train.json", '{"data": 3}', r"train\.json is not SQuAD's JSON"),
    "no answer": (
        "question_answering",
        "train.json",
        '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"question": "a?", "answers": []}]}]}]}',
        r"question 1 has no answer",
    ),
    "a misplaced answer": (
        "question_answering",
        "train.json",
        '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"question": "a?", "answers": '
        '[{"text": "b", "answer_start": 0}]}]}]}]}',
        r"answer 'b' is not at character 0",
    ),
}


def test_line_ends_alone_end_a_row_and_comments_are_no_words(tmp_path):
    text = "text,label\na\u2028b,x\nc\x0cd,y\n"
    for name, kind, whole in (("train.csv", "classification", text), ("train.tsv", "classification", text)):
        (tmp_path / name).write_text(whole.replace(",", "\t") if name.endswith("tsv") else whole, newline="")
        found = files.dataset(TASKS[kind], tmp_path / name, tmp_path / name, Columns("text", None, "label"))
        assert [row.first for row in found.load("train")] == ["a\u2028b", "c\x0cd"]
    (tmp_path / "a.conll").write_text("# sent_id = 1\n# O\nAda B-person\n\n")
    found = files.dataset(
        TASKS["token_classification"], tmp_path / "a.conll", tmp_path / "a.conll", Columns("", None, "")
    )
    assert [(row.first, row.tags) for row in found.load("train")] == [("# Ada", (0, 1))]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_fields_stay_the_text_that_they_are(ending, tmp_path):
    texts, path = ["NA", "null", "2020-01-01", "007", "1.50", "True"], tmp_path / f"texts.{ending}"
    if ending == "jsonl":
        rows = [json.dumps({"text": text, "label": text}) for text in texts]
    else:
        rows = [
            ("," if ending == "csv" else "\t").join(row) for row in [("text", "label"), *zip(texts, texts, strict=True)]
        ]
    path.write_text("\n".join(rows) + "\n")
    found = files.dataset(TASKS["classification"], path, path, Columns("text", None, "label"))
    assert [row.first for row in found.load("train")] == texts
    assert [found.names[int(row.label)] for row in found.load("train")] == texts


def test_a_first_row_that_is_too_long_does_not_shift_the_columns(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x,y\nb,y,z\n")
    path = tmp_path / "train.csv"
    with pytest.raises(InputError, match=r"train\.csv, row 1: more fields than the header has \(2\)"):
        files.dataset(TASKS["classification"], path, path, Columns("text", None, "label"))


def test_a_known_dataset_is_refused_by_file_and_row(tmp_path, monkeypatch):
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    for name, text, message in (
        (
            "rte/train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n",
            "row 1: label 'maybe' is not one of: ent",
        ),
        ("cola/train.tsv", "x\t1\t\ta\nx\t2\t\tb\n", "row 2: label '2' is not one of: 0, 1"),
        ("wnut17/train.conll", "Ada\tB-person\n\nran\tB-place\n", "line 3: label 'B-place' is not one of: O, B-corp"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=f"{name}, {message}"):
            data.DATASETS[name.partition("/")[0]].load("train")


def test_a_line_without_a_word_ends_a_sentence_in_ready_datasets_and_in_own_files(tmp_path, monkeypatch):
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    path = tmp_path / "wnut17" / "train.conll"
    path.parent.mkdir()
    path.write_text("a\tO\n\t\nb\tO\n\nc\tO\n")
    assert [row.first for row in data.DATASETS["wnut17"].load("train")] == ["a", "b", "c"]
    found = files.dataset(TASKS["token_classification"], path, path, Columns("", None, ""))
    assert [row.first for row in found.load()] == ["a", "b", "c"]


def test_labels_that_differ_in_case_alone_stay_apart():
    names = data.Dataset("own", "a.csv", True, "accuracy", names=("Spam", "spam"))
    assert names.label_ids(["spam", "Spam"]) == [1, 0]
    assert "its labels are Spam, spam" in str(names.label_ids(["SPAM", "x"]))
    one = data.Dataset("own", "a.csv", True, "accuracy", names=("Good", "bad"))
    assert one.label_ids(["bad", "good"]) == [1, 0]


ONE_LABEL = {
    "classification": ("train.csv", GOOD, "dev.csv", "text,label\na,x\nb,x\n"),
    "regression": ("train.csv", "text,label\na,0.5\nb,1\n", "dev.csv", "text,label\na,0.5\nb,0.5\n"),
    "token_classification": ("train.conll", "a O\nb B-x\n", "dev.conll", "a O\nb O\n"),
}


@pytest.mark.parametrize("task", ONE_LABEL)
def test_a_dev_split_of_one_label_is_refused(task, tmp_path, tiny_student):
    train, rows, dev, same = ONE_LABEL[task]
    (tmp_path / train).write_text(rows)
    (tmp_path / dev).write_text(same)
    values = {"train_file": train, "dev_file": dev, "max_length": 32}
    with pytest.raises(InputError, match=r"dev data .*dev\..*: all \d rows have the label"):
        job_of(recipe_of(tmp_path, task, tiny_student("bert", "embedding"), values))


DEVS = {
    "classification": ("dev.csv", GOOD),
    "regression": ("dev.csv", "text,label\na,0.5\nb,1\n"),
    "token_classification": ("dev.conll", "a O\nb B-x\n"),
    "question_answering": ("dev.json", '{"data": []}'),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line_that_names_it(case, tmp_path, tiny_student):
    task, name, text, message = BAD_FILES[case]
    if text:
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    dev, good = DEVS[task]
    (tmp_path / dev).write_text(good)
    train = {"train_file": name, "dev_file": dev, "max_length": 32}
    with pytest.raises(InputError, match=message) as caught:
        job_of(recipe_of(tmp_path, task, tiny_student("bert", "embedding"), train))
    assert "\n" not in str(caught.value)


def test_questions_to_judge_by_that_are_none_are_refused(tmp_path, tiny_student):
    files = write_toy(tmp_path, "question_answering") | {"max_length": 32}
    (tmp_path / "dev.json").write_text('{"data": []}')
    with pytest.raises(InputError, match=r"dev\.json holds no"):
        job_of(recipe_of(tmp_path, "question_answering", tiny_student("bert", "embedding"), files))


OWN = {"train_file": "train.csv", "dev_file": "dev.csv"}
BAD_RECIPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "embedding": ("embedding", {"dataset": "stsb"}, "task embedding has no training here; there is some for: classi"),
    "nothing": ("classification", {}, "train has no data; give dataset, or train_file and dev_file"),
    "half": ("classification", {"train_file": "a.csv"}, "train has train_file alone"),
    "both": ("classification", {"dataset": "sst2", **OWN}, "train has dataset and train_file"),
    "unknown": ("classification", {"dataset": "sst3"}, "'sst3' does not exist; there are: sentiment, sst2, cola, rte"),
    "no training rows": ("question_answering", {"dataset": "questions"}, "'questions' has no rows to train question"),
    "of another task": ("classification", {"dataset": "stsb"}, "'stsb' has no rows to train classification on"),
    "of questions": (
        "question_answering",
        {"dataset": "questions"},
        "to train question_answering on; there are: xquad",
    ),
    "epochs and steps": ("classification", {"epochs": 1, "steps": 9, **OWN}, "train has epochs and steps"),
    "ending": ("token_classification", OWN, "'train.csv': task token_classification is trained on .conll"),
    "columns": ("classification", {"dataset": "sst2", "text": "a"}, "train.text names a column of train_file"),
    "precision": ("classification", {"precision": "fp8", **OWN}, "train.precision = 'fp8'"),
    "rate": ("classification", {"learning_rate": 0, **OWN}, "train.learning_rate = 0"),
    "size": ("classification", {"batch_size": 0, **OWN}, "train.batch_size = 0"),
    "warmup": ("classification", {"warmup_fraction": 1.5, **OWN}, "train.warmup_fraction = 1.5"),
    "misspelt": ("classification", {"epoch": 1, **OWN}, "key 'train.epoch' does not exist"),
}


@pytest.mark.parametrize("case", BAD_RECIPES)
def test_a_recipe_that_cannot_be_trained_is_refused(case, tmp_path):
    task, train, message = BAD_RECIPES[case]
    path = recipe_of(tmp_path, task, "nowhere", train)
    with pytest.raises(RecipeError) as caught:
        branch_for(*recipes.read_recipe(str(path)))
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_random_weights_that_are_trained_are_refused(tmp_path):
    source = {"source": "nowhere", "random_weights": True}
    with pytest.raises(RecipeError, match=r"random_weights says .* and \[train\] trains them"):
        branch_for(*recipes.read_recipe(str(recipe_file(tmp_path, task="classification", student=source, train=OWN))))


def test_rows_longer_than_the_model_takes_are_refused(toy):
    with pytest.raises(RecipeError, match=r"max_length = 65 is beyond the checkpoint's limit of 64 positions"):
        toy(max_length=65)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("classification", r"does not fit .*: its labels are blue, red, and the checkpoint has negative, .*new_head"),
        ("regression", r"has 3 outputs, and task regression needs 1\. Set train\.new_head = true"),
    ],
)
def test_a_head_of_other_labels_is_refused(task, message, tmp_path, tiny_student):
    train = FAST | write_toy(tmp_path, task)
    source = tiny_student("bert", "classification")
    with pytest.raises(InputError, match=message):
        job_of(recipe_of(tmp_path, task, source, train))
    assert job_of(recipe_of(tmp_path, task, source, train | {"new_head": True}))


def test_data_that_are_not_here_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
    found, file = recipes.read_recipe("sst2")
    with pytest.raises(InputError, match="sst2: POCKETBERT_DATA is not set"):
        stage.job(found, file, student.find(found, file), tmp_path)


def test_an_answer_is_learnt_where_it_stands_and_not_where_its_word_is_first(tmp_path, monkeypatch):
    passage = "Oxygen is common. The isotope that is meant is oxygen, said oxygen's friend."
    answer: dict[str, Any] = {"text": "oxygen", "answer_start": passage.index("oxygen, said")}
    asked = {"question": "Which?", "id": "1", "answers": [answer]}
    document = {"data": [{"paragraphs": [{"context": passage, "qas": [asked]}]}] * 3}
    (tmp_path / "xquad").mkdir()
    (tmp_path / "xquad" / "dev.json").write_text(json.dumps(document))
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    xquad = data.DATASETS["xquad"]
    assert [row.answer_start for row in xquad.load("train") if isinstance(row, LocatedAnswer)] == [
        answer["answer_start"]
    ] * 2
    assert xquad.digest("train") != xquad.digest("dev"), "how it is read is a part of it"
    answer["answer_start"] += 1
    (tmp_path / "xquad" / "dev.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"dev\.json, question 1: answer 'oxygen' is not at character 48 of"):
        xquad.load("train")


def test_a_loss_that_is_no_number_ends_the_run(toy):
    job = toy("regression", steps=40)
    broken = replace(job, settings=job.settings.model_copy(update={"learning_rate": 1e30}))
    with pytest.raises(InputError, match=r"the loss is (nan|inf) after \d+ updates\. Lower train\.learning_rate"):
        stage.fine_tune(broken, silent)


def test_half_precision_without_a_device_for_it_is_refused(toy):
    if torch.accelerator.is_available():
        pytest.skip("there is one here")
    with pytest.raises(RecipeError, match=r"train\.precision = 'fp16' needs a GPU"):
        stage.fine_tune(toy(precision="fp16"), silent)


@pytest.mark.numeric
def test_bfloat16_trains_float32_weights(toy):
    trained, found = stage.fine_tune(toy(precision="bf16", steps=60), silent)
    assert {tensor.dtype for tensor in trained.state_dict().values()} <= {torch.float32, torch.int64}
    assert found.curve[-1].loss < found.curve[0].loss


def test_the_command_says_that_there_is_nothing_to_train(tmp_path, command_here):
    outcome = command_here("train", recipe_file(tmp_path))
    assert outcome.rc == 2
    assert "recipe tiny has no [train] section" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not (tmp_path / "build" / "tiny" / "student").exists()


# --- ready recipes ------------------------------------------------------------------------------------------------

READY = [name for name in recipes.names() if recipes.read_recipe(name)[0].train]


def test_there_is_a_ready_recipe_for_each_task_with_data_to_train_on():
    able = {name for name in TRAINED if any(data.DATASETS[one].train for one in TASKS[name].datasets)}
    assert {recipes.read_recipe(name)[0].task for name in READY} == able


@pytest.mark.parametrize("name", READY)
def test_a_ready_recipe_makes_all_three_formats_and_fits_the_bundled_student(name):
    found, file = recipes.read_recipe(name)
    assert set(found.targets) == {"litert", "coreml", "executorch"}
    assert {scheme for section in found.targets.values() for scheme in section.schemes} <= set(SCHEMES)
    assert found.train
    # What has to be downloaded is looked at when it is there.
    if found.student.twin is None:
        assert found.train.max_length <= student.at("bundled:all-MiniLM-L6-v2", file).max_length
    if found.train.dataset is None:
        # Files that the package carries, beside the library.
        train, dev = carried(found.train, file)
        assert files.dataset(TASKS[found.task], train, dev, COLUMNS).load("train")
        return
    row = data.DATASETS[found.train.dataset]
    assert row.metric in scoring.METRICS
    assert row.bundled != (data.DATA_VARIABLE in file.read_text())


COLUMNS = data.Columns("text", None, "label")


def carried(section, recipe_file: Path) -> list[Path]:
    """Return the files that a recipe of the package names, which have to be files of the package."""
    found = [(recipe_file.parent / name).resolve() for name in (section.train_file, section.dev_file)]
    assert all(file.is_file() and "text/demo" in file.as_posix() for file in found)
    return found
