"""A whole study of a tiny student by the real command: shared artifacts, a kill, the answer, and its recipe."""

import json
import os
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from conftest import COMMAND, Outcome, Silent, environment, recipe_file, run_command_here
from study.test_study_space import study_file

from pipeline.errors import RecipeError
from pipeline.execution.node import Graph, Needs
from pipeline.fronts import page, record, spec
from pipeline.fronts.front import PUBLISHED
from pipeline.fronts.record import Record
from pipeline.study import estimate, run
from pipeline.study.bench import Bench, Request

pytestmark = pytest.mark.toolchain
SPACE = {"prune": ["none", {"compute": 0.5, "max_length": 16}], "factorise.embedding": ["none", 16]}


def begun(folder: Path, source: Path, **overrides: Any) -> Path:
    """Write a study of four choices over a tiny student, and its recipe."""
    recipe_file(
        folder,
        student={"source": str(source), "random_weights": True},
        convert={"sequence_lengths": [16]},
        targets={"executorch": {"schemes": ["fp32"]}},
        verify={"datasets": ["none"]},
    )
    values: dict[str, Any] = {
        "objectives": ["metric", "size_mb"],
        "space": SPACE,
        "trials": {"compressed": 4, "trained": 0, "files": 1, "checked_every": 4},
        "judge": {"file": "judge.csv", "length": 16},
        "beside": ["./recipe.toml"],
        "published": [{"name": "theirs", "source": "a paper", "metric": "90 on another split", "size_mb": 9}],
    }
    return study_file(folder, **values | overrides)


def record_of(outcome: Outcome) -> Record:
    document = dict(outcome.document)
    assert document.pop("exit") == 0
    return Record.model_validate(document)


@pytest.fixture(scope="module")
def finished(tiny_student: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    folder = tmp_path_factory.mktemp("study")
    path = begun(folder, tiny_student("bert", "embedding"))
    outcome = run_command_here("search", path, "--json", cwd=folder)
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    return folder, record_of(outcome)


def test_all_choices_are_tried_once_and_share_what_they_have_in_common(finished: tuple[Path, Record]) -> None:
    folder, found = finished
    choices = [json.dumps(one.choice, sort_keys=True) for one in found.trials]
    assert len(choices) == len({*choices}) == 4
    assert all(one.failed is None for one in found.trials)
    # Two prunings and two factorisations of four trials: one of each is another trial's.
    assert 0 < found.made < found.asked
    assert found == record.read(folder / "build/studies/tiny")
    whole = {json.dumps(one.choice): one for one in found.trials}[json.dumps(dict.fromkeys(SPACE, "none"))]
    assert whole.drop == (0.0, 0.0, 0.0), "the recipe as it is loses nothing against itself"
    assert whole.measures["size_mb"] == pytest.approx(found.base.measures["size_mb"], rel=0.01)


def test_estimates_of_size_are_held_to_files(finished: tuple[Path, Record]) -> None:
    _, found = finished
    checked = [one for one in found.trials if one.measured]
    assert checked
    for one in checked:
        assert one.measured
        assert one.estimated["size_mb"] == pytest.approx(one.measured.size_mb, rel=0.1)


def test_the_answer_s_recipe_is_what_was_measured(finished: tuple[Path, Record]) -> None:
    folder, found = finished
    place = folder / "build/studies/tiny"
    best = next(one for one in found.trials if one.number == found.answer.trial)
    assert (best.step, best.verdict) == ("files", "passed")
    assert (place / page.PAGE).is_file()
    assert tomllib.loads((place / page.BEST).read_text())["name"] == f"tiny-{best.number}"
    planned = run_command_here(
        "plan", place / page.BEST, "--until", "convert", "--build", "build", "--json", cwd=folder
    )
    steps = {step["name"]: step["made"] for step in planned.document["steps"]}
    # Whoever runs the recipe finds what the study made.
    assert steps
    assert not any(steps.values()), steps


def test_other_recipes_and_what_is_published_stand_beside_the_trials(finished: tuple[Path, Record]) -> None:
    folder, found = finished
    (beside,) = found.beside
    assert (beside.choice, beside.step, beside.verdict) == ({"recipe": "tiny"}, "files", "passed")
    assert beside.drop
    for name in (page.PAGE, page.FRONT):
        text = (folder / "build/studies/tiny" / name).read_text()
        assert "a paper" in text
        assert PUBLISHED in text
    assert "| tiny |" in (folder / "build/studies/tiny" / page.FRONT).read_text()


def test_begun_again_nothing_is_made_anew_and_recommend_finds_it(finished: tuple[Path, Record]) -> None:
    folder, found = finished
    before = (folder / "build/studies/tiny/trials.jsonl").read_text()
    outcome = run_command_here("study", "study.toml", cwd=folder)
    assert outcome.rc == 0, outcome.stderr
    assert "  made " not in outcome.stderr
    assert (folder / "build/studies/tiny/trials.jsonl").read_text() == before
    smallest = min(one.measures["size_mb"] for one in found.trials if one.step == "files")
    study = folder / "build/studies/tiny"
    asked = ("recommend", "--study", study, "--size-mb", f"{smallest + 1}", "--output", "mine.toml", "--json")
    recommended = run_command_here(*asked, cwd=folder)
    assert (recommended.rc, recommended.document["fits"]) == (0, True)
    assert (folder / "mine.toml").read_text() == recommended.document["recipe"]
    small = run_command_here("recommend", "--study", study, "--size-mb", "0.001", cwd=folder)
    assert small.rc == 1
    assert "nearest; nothing known fits" in small.stdout
    assert "0.001 was asked" in small.stdout


def test_killed_in_the_middle_it_goes_on(finished: tuple[Path, Record], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    trials = tmp_path / "build/studies/killed/trials.jsonl"
    values = tomllib.loads((tmp_path / "study.toml").read_text())
    values |= {"name": "killed", "trials": {"compressed": 4, "trained": 0, "files": 0}}
    del values["beside"]
    values["space"] = {"prune": ["none", {"compute": 0.6, "max_length": 16}], "factorise.embedding": [8, 16]}
    path = tmp_path / "killed.toml"
    path.write_text(tomli_w.dumps(values))
    command = [*COMMAND, "study", path.name, "--parallel", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 300
        while not (trials.is_file() and trials.read_bytes().count(b"\n")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    kept = record.read_trials(trials.parent)
    outcome = run_command_here("study", path.name, "--json", cwd=tmp_path)
    assert outcome.rc == 0, outcome.stderr
    found = record_of(outcome)
    assert len({json.dumps(one.choice, sort_keys=True) for one in found.trials}) == len(found.trials) == 4
    for number, one in kept.items():
        again = next(other for other in found.trials if other.number == number)
        assert (again.choice, again.seconds) == (one.choice, one.seconds), "a finished trial is not tried again"


def test_a_plan_tells_hours_and_makes_nothing(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    path = begun(tmp_path, tiny_student("bert", "embedding"))
    for verb in (("plan", path.name), ("study", path.name, "--dry-run")):
        outcome = run_command_here(*verb, "--json", cwd=tmp_path)
        assert outcome.rc == 0, outcome.stderr
        assert outcome.document["choices"] == 4
        hours = outcome.document["hours_by_step"]
        assert outcome.document["hours"] == pytest.approx(sum(hours.values()))
        assert [step for step, of_step in hours.items() if of_step] == ["baseline", "compressed", "files", "beside"], (
            hours
        )
        assert outcome.document["asked"] >= outcome.document["sampled"] == 4
    assert not (tmp_path / "build").exists()


@pytest.mark.full
def test_trials_are_trained_in_one_graph_so_that_machines_share_them(
    tiny_student: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"a cat {number}\n" for number in range(40)))
    space, trials = {"factorise.embedding": [8, 16]}, {"compressed": 2, "trained": 2, "files": 1}
    path = begun(tmp_path, tiny_student("bert", "embedding"), space=space, trials=trials)
    path.write_text(
        tomli_w.dumps({key: one for key, one in tomllib.loads(path.read_text()).items() if key != "beside"})
    )
    recipe = tmp_path / "recipe.toml"
    distil = {"losses": {"sentence_cosine": 1.0}, "texts": ["texts.txt"], "steps": 2, "max_length": 99}
    recipe.write_text(tomli_w.dumps(tomllib.loads(recipe.read_text()) | {"distil": distil}))
    with pytest.raises(RecipeError, match="max_length = 99 is beyond"):
        estimate.plan(Request(spec.read(path), path, tmp_path / "build", 2, lambda: None))
    recipe.write_text(recipe.read_text().replace("max_length = 99", "max_length = 16"))
    planned = estimate.plan(Request(spec.read(path), path, tmp_path / "build", 2, lambda: None))
    assert planned.hours_by_step["trained"] > 0
    graphs: list[list[Needs]] = []
    carry_out = Bench.carry_out

    def watched(self: Bench, graph: Graph) -> Any:
        graphs.append([node.needs for node in graph.nodes.values() if node.stage == "distil"])
        return carry_out(self, graph)

    monkeypatch.setattr(Bench, "carry_out", watched)
    found = run.run(Request(spec.read(path), path, tmp_path / "build", 2, lambda: None), Silent())
    trained = [one for one in found.trials if one.trained]
    assert sorted(one.step for one in trained) == ["files", "trained"]
    alone: Needs = "machine" if torch.accelerator.is_available() else "core"
    assert max(graphs, key=len) == [alone, alone]
    assert 0 < found.made < found.asked, "what a graph made counts for one of its trials"


def test_a_study_takes_no_question(tmp_path: Path) -> None:
    assert run_command_here("search", "study.toml", "a cat", cwd=tmp_path).rc == 2
    absent = run_command_here("search", "study.toml", cwd=tmp_path)
    assert absent.rc == 2
    assert "study.toml" in absent.stderr
    index = run_command_here("search", "index/notes", cwd=tmp_path)
    assert index.rc == 2
    assert "lacks a question" in index.stderr


@pytest.mark.full
def test_a_csv_of_one_s_own_is_enough(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    for name, count in (("train.csv", 84), ("dev.csv", 40)):
        lines = (f"a {'fine' if number % 2 else 'dull'} film {number},{number % 2}\n" for number in range(count))
        (tmp_path / name).write_text("text,label\n" + "".join(lines))
    rows: dict[str, Any] = {
        "train_file": "train.csv",
        "dev_file": "dev.csv",
        "held_out": 24,
        "steps": 4,
        "max_length": 16,
    }
    recipe_file(
        tmp_path,
        task="classification",
        student={"source": str(tiny_student("bert", "embedding"))},
        train=rows,
        distil=rows | {"losses": {"soft_targets": 1.0}},
        convert={"sequence_lengths": [16]},
        targets={"executorch": {"schemes": ["fp32"]}},
        verify={"datasets": ["none"]},
    )
    trials = {"compressed": 2, "trained": 1, "files": 1}
    more = {"judge": {"length": 16}, "space": {"factorise.embedding": ["none", 8]}, "trials": trials}
    path = study_file(tmp_path, objectives=["metric", "size_mb"], **more)
    outcome = run_command_here("search", path, "--json", cwd=tmp_path)
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    found = record_of(outcome)
    assert found.judged_on == "24 rows of train_file"
    (best,) = [one for one in found.trials if one.step == "files"]
    assert best.trained
    assert best.drop is not None
