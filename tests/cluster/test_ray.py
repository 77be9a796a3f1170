"""The Ray executor, on a cluster of two nodes that are processes of this machine: the same files, whatever is lost."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Silent, TinyLine

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert.targets import choose_targets
from pipeline.errors import InputError, PipelineError, ToolchainError, WorkerDied
from pipeline.execution.executor import Outcome
from pipeline.execution.node import Estimate, Graph, Input, Node
from pipeline.execution.remote import VARIABLE
from pipeline.execution.store import Store
from pipeline.planning import run as running
from pipeline.planning.branches import StageName
from pipeline.planning.request import Request
from pipeline.recipe import loading

pytest_plugins = ("cluster.machines",)
pytestmark = [
    pytest.mark.cluster,
    # Ray 2.60 leaves sockets of its own processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def line(tiny_line: TinyLine, tmp_path: Path) -> TinyLine:
    return tiny_line.copy(tmp_path)


def run(line: TinyLine, build: Path, until: StageName, address: str | None, *targets: str) -> Outcome:
    from pipeline.execution.ray import Ray

    parsed, file = loading.read_recipe(str(line.recipe))
    request = Request(parsed, file, until, choose_targets(parsed, targets))
    return running.run(request, build, Silent(), Ray(address) if address else None)


def test_a_cluster_makes_the_same_files_and_takes_times(cluster: Any, line: TinyLine, tmp_path: Path) -> None:
    quick = "\n[benchmark]\nrounds = 1\nblock_ms = 1.0\ntexts = 2\ntext_passes = 1\nlengths = [8, 32]\n"
    line.recipe.write_text(line.recipe.read_text() + quick)
    made = run(line, tmp_path / "shared", "report", cluster.address)
    assert all(step.made for step in made.steps)
    for place in ("student", "litert-fp32/model", "litert-int8_dynamic/model", "executorch-fp32/model"):
        files = {entry.path: entry.sha256 for entry in artifact.load(tmp_path / "shared/tiny" / place).manifest.files}
        assert files == {entry.path: entry.sha256 for entry in artifact.load(line.folder / place).manifest.files}
    assert (tmp_path / "shared/tiny/report/index.html").is_file()
    # What a cluster made is there for this machine, and the other way round.
    assert not any(step.made for step in run(line, tmp_path / "shared", "report", None).steps)


def test_machines_that_share_no_folder_make_the_same_files(
    apart: tuple[Any, list[Path]], line: TinyLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, workers = apart
    monkeypatch.setenv(VARIABLE, f"file://{tmp_path}/remote")
    made = run(line, tmp_path / "driver", "verify", cluster.address)
    assert all(step.made for step in made.steps)
    for place in ("student", "litert-fp32/model", "litert-int8_dynamic/model", "executorch-fp32/model"):
        files = {entry.path: entry.sha256 for entry in artifact.load(tmp_path / "driver/tiny" / place).manifest.files}
        assert files == {entry.path: entry.sha256 for entry in artifact.load(line.folder / place).manifest.files}
    held = [set(Store(worker).keys()) for worker in workers]
    # Beside what the driver has there is the checkpoint that the recipe names.
    driver = set(Store(tmp_path / "driver").keys())
    assert held[0] | held[1] > driver
    assert len((held[0] | held[1]) - driver) == 1
    assert all(held), "both worked"
    # A machine that has nothing yet needs no cluster.
    assert not any(step.made for step in run(line, tmp_path / "another", "verify", None).steps)


def test_without_a_machine_for_times_it_is_said_before_it_waits(
    cluster: Any, line: TinyLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.execution.ray.machine_resource", lambda: "machine-of-another-kind")
    with pytest.raises(ToolchainError, match="none of the cluster carries its resource"):
        run(line, line.build, "benchmark", cluster.address, "litert:fp32")


def sleep(seconds: float, started: Path, out: Path) -> dict[str, Any]:
    """Say which process runs, and take time."""
    with started.open("a") as handle:
        handle.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    (out / "done.txt").write_text("done")
    return {}


def copy(before: Path, out: Path) -> dict[str, Any]:
    (out / "copied.txt").write_text((before / "done.txt").read_text())
    return {}


def node(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], **inputs: Node) -> Node:
    return Node("tiny", name, name, name, 1, {}, inputs, {}, function, arguments, Estimate(1, 1))


def two_nodes(seconds: float, started: Path) -> Graph:
    first = node("first", sleep, (seconds, started))
    graph = Graph("tiny")
    graph.include(node("second", copy, (Input("before"),), before=first))
    return graph


def wait_for(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_is_lost_is_replaced(cluster: Any, tmp_path: Path) -> None:
    from pipeline.execution.ray import Ray

    started = tmp_path / "started"

    def kill() -> None:
        wait_for(started.exists)
        (child,) = map(int, started.read_text().split())
        # The process of Ray, not the child in which the node runs: what a machine that goes down takes with it.
        parent = psutil.Process(child).parent()
        assert parent is not None
        parent.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = running.carry_out(two_nodes(5, started), tmp_path / "build", Silent(), Ray(cluster.address))
    killer.join()
    assert len(started.read_text().split()) == 2, "it was begun again"
    found = outcome.at("tiny", "second")
    assert isinstance(found, Artifact)
    assert (found.path / "copied.txt").read_text() == "done"


def test_a_run_that_is_cancelled_leaves_nothing_half_made(cluster: Any, tmp_path: Path) -> None:
    from pipeline.execution.ray import Ray

    started = tmp_path / "started"

    def interrupt() -> None:
        wait_for(started.exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    executor = Ray(cluster.address)
    with pytest.raises(KeyboardInterrupt):
        running.carry_out(two_nodes(120, started), tmp_path / "build", Silent(), executor)
    (child,) = map(int, started.read_text().split())
    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
    assert not list((tmp_path / "build" / "store").glob(".*.new"))
    assert not list((tmp_path / "build" / "store").glob("[0-9a-f]*"))


def refuse(out: Path) -> dict[str, Any]:
    (out / "half.txt").write_text("half")
    raise InputError("the text is missing; name one.")


def die(out: Path) -> dict[str, Any]:
    os._exit(3)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [(refuse, InputError, "the text is missing"), (die, WorkerDied, "its process ended with exit code 3")],
)
def test_an_error_of_a_node_is_the_node_s_own(
    cluster: Any, tmp_path: Path, function: Callable[..., Any], error: type[PipelineError], message: str
) -> None:
    from pipeline.execution.ray import Ray

    graph = Graph("tiny")
    graph.include(node("first", function, ()))
    with pytest.raises(error, match=message):
        running.carry_out(graph, tmp_path / "build", Silent(), Ray(cluster.address))
    assert not [
        path for path in (tmp_path / "build" / "store").iterdir() if not path.name.startswith((".l", ".r", ".s", ".u"))
    ]
