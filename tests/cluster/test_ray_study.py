"""A study on a cluster: the trials of a batch run beside each other, and a lost worker or driver loses none of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w
from conftest import REPOSITORY, Silent, recipe_file

from pipeline.execution.ray import Ray
from pipeline.fronts import record, spec
from pipeline.study import run
from pipeline.study.bench import Request

pytest_plugins = ("cluster.machines",)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SPACE = {"prune": ["none", {"compute": 0.5, "max_length": 16}], "factorise.embedding": ["none", 8, 16]}


@pytest.fixture
def study(tiny_student: Callable[..., Path], tmp_path: Path) -> Path:
    """A study of six choices over a tiny student."""
    recipe_file(
        tmp_path,
        student={"source": str(tiny_student("bert", "embedding")), "random_weights": True},
        convert={"sequence_lengths": [16]},
        targets={"executorch": {"schemes": ["fp32"]}},
        distil={"losses": {"sentence_cosine": 1.0}, "texts": ["texts.txt"], "steps": 2, "max_length": 16},
        verify={"datasets": ["none"]},
    )
    (tmp_path / "texts.txt").write_text("".join(f"a cat {number}\n" for number in range(40)))
    pairs = "".join(f"a cat {one},a dog {one},{one % 5}\n" for one in range(60))
    (tmp_path / "judge.csv").write_text("text,pair,label\n" + pairs)
    values = {
        "name": "tiny",
        "recipe": "./recipe.toml",
        "objectives": ["metric", "size_mb"],
        "space": SPACE,
        "judge": {"file": "judge.csv", "length": 16},
        "trials": {"compressed": 6, "trained": 2, "files": 2},
    }
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(values))
    return path


def check(found: record.Record) -> None:
    choices = {json.dumps(one.choice, sort_keys=True) for one in found.trials}
    assert len(choices) == len(found.trials) == 6
    assert [one.failed for one in found.trials] == [None] * 6
    assert found.answer.trial is not None
    assert [one.verdict for one in found.trials if one.trained] == ["passed", "passed"]
    assert found.made < found.asked


def wait_for(true: Callable[[], Any], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_study_on_a_cluster_survives_a_lost_worker(cluster: Any, study: Path) -> None:
    build = study.parent / "build"
    killed: list[int] = []

    def kill() -> None:
        def working() -> list[psutil.Process]:
            # Processes of Ray below which a node runs.
            every = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"]]
            nodes = [one for one in every if "pipeline.execution.worker" in one.info["cmdline"]]
            parents = [one.parent() for one in nodes]
            return [one for one in parents if one is not None and "ray::" in " ".join(one.cmdline())]

        wait_for(lambda: (build / "studies/tiny/journal.log").is_file() and working())
        chosen = working()[0]
        killed.append(chosen.pid)
        chosen.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    request = Request(spec.read(study), study, build, 6, lambda: Ray(cluster.address))
    found = run.run(request, Silent())
    killer.join()
    assert killed
    check(found)


def test_a_driver_that_is_killed_goes_on_where_it_was(cluster: Any, study: Path) -> None:
    trials = study.parent / "build/studies/tiny/trials.jsonl"
    command = [sys.executable, "-m", "pipeline", "study", study.name, "--parallel", "2", "--cluster", cluster.address]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=study.parent, env=environment, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: process.poll() is not None or (trials.is_file() and trials.read_bytes().count(b"\n")))
        assert process.poll() is None
        process.kill()
    kept = record.read_trials(trials.parent)
    request = Request(spec.read(study), study, study.parent / "build", 2, lambda: Ray(cluster.address))
    found = run.run(request, Silent())
    check(found)
    assert all(one in found.trials or one.number == found.answer.trial for one in kept.values())
