"""Graphs and their store: equal nodes are one, what is there is found again, and nothing in use is ever removed."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, Silent, TinyLine, environment, planned, recipe_file, run_command_here, write_student

from pipeline import artifact, atomic, tasks
from pipeline.artifact import Manifest
from pipeline.convert.targets import choose_targets
from pipeline.errors import ArtifactError, InputError
from pipeline.execution import cache, executor, runs, store, worker
from pipeline.execution.executor import Job, Step, carry_out
from pipeline.execution.kept import Kept
from pipeline.execution.local import Local
from pipeline.execution.node import Cache, Estimate, External, Graph, Input, Needs, Node, Scratch, resolve
from pipeline.execution.store import Store
from pipeline.execution.worker import Worker
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.scoring import Labels
from pipeline.planning import cleaning
from pipeline.planning import run as running
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.recipe import loading
from pipeline.student import reference

Make = Callable[..., Mapping[str, Any]]


def write(text: str, out: Path) -> dict[str, Any]:
    (out / "text.txt").write_text(text)
    return {"length": len(text)}


def join(*folders_and_out: Path) -> dict[str, Any]:
    *folders, out = folders_and_out
    (out / "text.txt").write_text("+".join((folder / "text.txt").read_text() for folder in folders))
    return {}


def node(
    name: str,
    make: Make = write,
    arguments: tuple[Any, ...] = ("one",),
    *,
    recipe: str = "own",
    params: dict[str, Any] | None = None,
    seconds: float = 1,
    needs: Needs = "core",
    version: int = 1,
    **inputs: Node | External,
) -> Node:
    decides = {"arguments": repr(arguments)} if params is None else params
    return Node(
        recipe, name, name, name, version, decides, inputs, {}, make, arguments, Estimate(seconds, 1), needs=needs
    )


class InThisProcess:
    """An executor with threads, which remembers what ran beside what."""

    here = True

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.began: list[str] = []
        self.stopped = False
        self._running: dict[Future[Manifest], Node] = {}
        self._pool = ThreadPoolExecutor(8)

    def has_room(self, due: Node) -> bool:
        running = [one for future, one in self._running.items() if not future.done()]
        alone = due.needs != "core" or any(one.needs != "core" for one in running)
        return not running if alone else len(running) < self.slots

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        self.began.append(job.name)
        future = self._pool.submit(store.make, job.place, job.spec, job.function, job.arguments)
        self._running[future] = job.node
        return future

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self._pool.shutdown()


def graph_of(*nodes: Node, root: str = "own") -> Graph:
    graph = Graph(root)
    graph.include(*nodes)
    return graph


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    """A store of which this process is a user."""
    found = Store(tmp_path / "build")
    with found.running():
        yield found


def made(graph: Graph, kept: Store, slots: int = 2) -> dict[str, bool]:
    outcome = carry_out(graph, kept, InThisProcess(slots), Silent())
    return {step.name: step.made for step in outcome.steps}


def test_a_kept_executor_serves_one_graph_after_the_other_until_it_ends(kept: Store) -> None:
    opened: list[InThisProcess] = []

    def make() -> InThisProcess:
        opened.append(InThisProcess())
        return opened[-1]

    executor = Kept(make)
    executor.end()
    assert not opened, "nothing is opened before a node asks"
    for name in ("first", "second"):
        carry_out(graph_of(node(name)), kept, executor, Silent())
    assert [one.began for one in opened] == [["first", "second"]]
    executor.end()
    carry_out(graph_of(node("third")), kept, executor, Silent())
    assert [one.began for one in opened] == [["first", "second"], ["third"]]
    executor.end()


def test_a_run_inside_another_one_keeps_its_temporary_folder_which_processes_outlive(tmp_path: Path) -> None:
    outside = tempfile.gettempdir()
    with Store(tmp_path / "build").running():
        folder = tempfile.gettempdir()
        assert folder != outside
        with Store(tmp_path / "build").running():
            assert tempfile.gettempdir() == folder
        assert Path(folder).is_dir()
        with Store(tmp_path / "another").running():
            assert tempfile.gettempdir() not in (folder, outside)
    assert tempfile.gettempdir() == outside


def test_a_worker_that_died_while_it_was_idle_is_replaced(tmp_path: Path) -> None:
    job: Any = SimpleNamespace(node=node("first"), log=tmp_path / "log")
    local = Local()
    try:
        kind, first = local._worker(job, lambda *_: None)
        pid = first.call(os.getpid)
        local._put_back(kind, first)
        assert local._worker(job, lambda *_: None)[1] is first
        local._put_back(kind, first)
        os.kill(pid, signal.SIGKILL)
        kind, second = local._worker(job, lambda *_: None)
        assert second.call(os.getpid) != pid
        local._put_back(kind, second)
    finally:
        local.close()


# --- the graph ----------------------------------------------------------------------------------------------------


def test_equal_nodes_of_two_recipes_are_one_and_both_show_it(kept: Store) -> None:
    mine = [node("first"), node("first", recipe="other")]
    graph = graph_of(*(node("second", join, (Input("a"),), recipe=one.recipe, a=one) for one in mine))
    assert len(graph.nodes) == 2
    assert made(graph, kept) == {"first": True, "second": True}
    for place in ("own/first", "own/second", "other/first", "other/second"):
        assert (kept.build / place).is_symlink()
        assert artifact.load(kept.build / place).path == kept.build / place
    assert len(kept.keys()) == 2


@pytest.mark.parametrize("changed", ["params", "version", "input", "tools"])
def test_whatever_decides_the_content_is_another_node(changed: str, tmp_path: Path) -> None:
    before = node("first", source=External(tmp_path, "a"))
    if changed == "params":
        after = node("first", params={"size": 4}, source=External(tmp_path, "a"))
    elif changed == "version":
        after = node("first", version=2, source=External(tmp_path, "a"))
    elif changed == "input":
        after = node("first", source=External(tmp_path, "b"))
    else:
        fields = {**vars(before), "tools": {"torch": "2.14"}}
        fields.pop("identity", None)
        after = Node(**fields)
    assert before.identity != after.identity


def test_a_node_s_name_place_and_estimate_decide_nothing(tmp_path: Path) -> None:
    plain = node("first", params={})
    other = Node("other", "name", "place", "first", 1, {}, {}, {}, join, (), Estimate(9, 9), needs="quiet")
    assert plain.identity == other.identity


def test_placeholders_are_resolved_wherever_they_stand(tmp_path: Path) -> None:
    arguments = (Input("a"), [("x", Input("b"))], Scratch(), Cache(), None, 3)
    found = resolve(arguments, {"a": Path("A"), "b": Path("B")}, Path("S"), Path("C"), Path("L"))
    assert found == [Path("A"), [("x", Path("B"))], Path("S"), Path("C"), None, 3]


def test_the_longest_way_to_the_end_begins_first(kept: Store) -> None:
    def unhurried(out: Path) -> dict[str, Any]:
        # `long` may begin as soon as this ends, so it ends after the graph was looked at.
        time.sleep(0.3)
        return write("one", out)

    short = node("short", unhurried, (), params={"a": 1}, seconds=1)
    long = node("long", params={"a": 2}, seconds=5)
    behind = node("behind", join, (Input("a"),), seconds=50, a=short)
    graph = graph_of(long, behind)
    runner = InThisProcess(slots=1)
    carry_out(graph, kept, runner, Silent())
    assert runner.began == ["short", "behind", "long"]


def test_what_takes_times_runs_alone_and_after_the_rest(kept: Store) -> None:
    together: list[int] = []
    count = threading.Semaphore(0)

    def timed(out: Path) -> dict[str, Any]:
        together.append(len([one for one in runner._running if not one.done()]))
        return {}

    def slow(out: Path) -> dict[str, Any]:
        count.acquire(timeout=0.1)
        return {}

    runner = InThisProcess(slots=4)
    others = [node(f"other {number}", slow, (), params={"number": number}) for number in range(3)]
    carry_out(graph_of(node("timed", timed, (), seconds=99, needs="quiet"), *others), kept, runner, Silent())
    assert runner.began[-1] == "timed"
    assert together == [1]


def test_the_drawing_and_the_document_have_every_node_and_edge() -> None:
    first = node("first")
    graph = graph_of(node("second", join, (Input("a"),), a=first))
    assert graph.mermaid().splitlines() == [
        "flowchart LR",
        '  n0["first"]',
        '  n1["second"]',
        '  n0 -- "a" --> n1',
    ]
    told = {row["name"]: row for row in graph.document()}
    assert told["second"]["inputs"] == {"a": {"node": first.identity}}
    assert told["first"]["places"] == ["own/first"]


# --- carrying it out ----------------------------------------------------------------------------------------------


def test_a_step_back_and_forth_finds_what_is_there(kept: Store) -> None:
    assert made(graph_of(node("first", arguments=("one",))), kept) == {"first": True}
    assert made(graph_of(node("first", arguments=("two",))), kept) == {"first": True}
    assert made(graph_of(node("first", arguments=("one",))), kept) == {"first": False}
    assert (kept.build / "own/first/text.txt").read_text() == "one"
    assert made(graph_of(node("first", arguments=("two",))), kept) == {"first": False}


def test_an_input_that_comes_out_the_same_leaves_what_is_behind_it(kept: Store) -> None:
    for version, expected in ((1, True), (2, False)):
        first = node("first", version=version)
        assert made(graph_of(node("second", join, (Input("a"),), a=first)), kept) == {"first": True, "second": expected}


def test_other_last_digits_of_another_processor_leave_what_is_behind_them(kept: Store) -> None:
    """The file of numbers is made again with others and nothing behind it is; the exact file beside it still counts."""
    computed = iter(["0.1", "0.2", "0.3"])
    texts = iter(["one", "one", "two"])

    def measure(out: Path) -> dict[str, Any]:
        (out / "numbers.txt").write_text(next(computed))
        return write(next(texts), out)

    first = dataclasses.replace(node("first", measure, ()), inexact_files=("numbers.txt",))
    graph = graph_of(node("second", join, (Input("a"),), a=first))
    found = []
    for _ in range(3):
        found.append((made(graph, kept), (kept.build / "own/first/numbers.txt").read_text()))
        atomic.remove((kept.build / "own/first").resolve())
    assert found == [
        ({"first": True, "second": True}, "0.1"),
        ({"first": True, "second": False}, "0.2"),
        ({"first": True, "second": True}, "0.3"),
    ]


def test_inexact_numbers_by_another_version_are_others_and_by_other_parameters_are_not(kept: Store) -> None:
    """What parameters change has to show in an exact file."""
    found = []
    for version, size in ((1, 1), (2, 1), (2, 2)):
        first = dataclasses.replace(node("first", version=version, params={"size": size}), inexact_files=("text.txt",))
        found.append(made(graph_of(node("second", join, (Input("a"),), a=first)), kept)["second"])
    assert found == [True, True, False]


def test_the_first_error_is_raised_when_what_runs_beside_it_has_ended(kept: Store) -> None:
    def fails(out: Path) -> dict[str, Any]:
        raise InputError("no text; name one.")

    def slow(out: Path) -> dict[str, Any]:
        time.sleep(0.3)
        return {}

    beside = node("beside", slow, ())
    graph = graph_of(node("fails", fails, ()), beside, node("behind", join, (Input("a"),), a=beside))
    with pytest.raises(InputError, match="no text"):
        carry_out(graph, kept, InThisProcess(), Silent())
    assert [path.name for path in (kept.build / "own").iterdir()] == ["beside"]
    assert not list(kept.root.glob(".*.new"))


def test_ctrl_c_stops_the_executor(kept: Store) -> None:
    class Interrupted(Silent):
        def started(self, step: str) -> None:
            raise KeyboardInterrupt

    runner = InThisProcess()
    with pytest.raises(KeyboardInterrupt):
        carry_out(graph_of(node("first")), kept, runner, Interrupted())
    assert runner.stopped
    # Its key is free again.
    assert made(graph_of(node("first")), kept) == {"first": True}


def test_a_damaged_artifact_is_made_again_and_said_so(kept: Store) -> None:
    class Noting(Silent):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    graph = graph_of(node("first"))
    made(graph, kept)
    file = kept.build / "own/first/text.txt"
    file.chmod(0o644)
    file.write_text("changed")
    noting = Noting()
    (step,) = carry_out(graph, kept, InThisProcess(), noting).steps
    assert step.made
    assert "text.txt has 7 bytes" in step.reason
    assert "made again" in noting.notes[0]
    assert file.read_text() == "one"


def test_artifacts_are_read_only(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    folder = kept.build / "own/first"
    assert not folder.stat().st_mode & 0o222
    assert not (folder / "text.txt").stat().st_mode & 0o222


# --- plans --------------------------------------------------------------------------------------------------------


def test_a_plan_says_which_input_changed_from_what_to_what(kept: Store) -> None:
    params = {"settings": {"compute": 0.5, "layers": [0, 2]}}
    made(graph_of(node("first", params=params)), kept)
    changed = {"settings": {"compute": 0.7, "layers": [0, 2]}, "seed": 3}
    (step,) = executor.plan(graph_of(node("first", params=changed, version=2)), kept).steps
    assert step.reason == "stage version 1 → 2; settings.compute: 0.5 → 0.7; seed: none → 3"
    first = node("first", arguments=("two",))
    made(graph_of(node("second", join, (Input("a"),), a=node("first"))), kept)
    one, two = executor.plan(graph_of(node("second", join, (Input("a"),), a=first)), kept).steps
    assert one.made
    assert two.reason == "what it is made from is made again first: a"
    made(graph_of(first), kept)
    _, two = executor.plan(graph_of(node("second", join, (Input("a"),), a=first)), kept).steps
    assert two.reason.startswith("input a: ")
    assert " → " in two.reason


def test_a_plan_names_three_of_what_is_made_again_first(kept: Store) -> None:
    parents: dict[str, Any] = {f"p{number}": node(f"n{number}", arguments=("new",)) for number in range(5)}
    before: dict[str, Any] = {name: node(f"n{name[1]}") for name in parents}
    made(graph_of(node("last", join, tuple(map(Input, parents)), **before)), kept)
    *_, last = executor.plan(graph_of(node("last", join, tuple(map(Input, parents)), **parents)), kept).steps
    assert last.reason == "what it is made from is made again first: p0, p1, p2 and 2 more"


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    (step,) = executor.plan(graph_of(node("first")), Store(tmp_path / "build")).steps
    assert (step.made, step.reason) == (True, "new")
    assert not (tmp_path / "build").exists()


def test_a_recipe_s_graph_is_printed_as_json_and_drawn(
    tmp_path: Path, tiny_student: Callable[..., Path], command_here: Callable[..., Outcome]
) -> None:
    source = {"source": str(tiny_student("bert", "embedding")), "random_weights": True}
    path = recipe_file(tmp_path, student=source)
    told = command_here("plan", path, "--json").document["graph"]
    names = {row["name"]: row for row in told}
    assert {row["node"] for row in names["verify litert-fp32"]["inputs"].values()} == {
        names[name]["identity"] for name in ("convert litert-fp32", "student", "reference 32")
    }
    assert names["benchmark"]["needs"] == "quiet"
    drawn = command_here("plan", path, "--mermaid").stdout
    assert drawn.startswith("flowchart LR")
    assert drawn.count("[") == len(told)


def test_the_variable_of_the_data_set_and_unset_throws_nothing_away(
    tmp_path: Path, tiny_student: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What depends on the data has two artifacts, and what does not has one: a plan's identities tell."""
    source = {"source": str(tiny_student("bert", "embedding")), "random_weights": True}
    parsed, file = loading.read_recipe(str(recipe_file(tmp_path, student=source)))
    (tmp_path / "data" / "stsb").mkdir(parents=True)
    (tmp_path / "data" / "stsb" / "dev.csv").write_text("a cat,a dog,3.0\na house,a home,4.5\na,b,1.0\n")
    identities = []
    for folder in (None, tmp_path / "data", None):
        monkeypatch.delenv("POCKETBERT_DATA", raising=False)
        if folder:
            monkeypatch.setenv("POCKETBERT_DATA", str(folder))
        graph = build(Request(parsed, file, "verify", choose_targets(parsed, [])))
        identities.append({graph.name(one): identity for identity, one in graph.nodes.items()})
    without, with_data, again = identities
    assert without == again
    differ = {name for name in without if without[name] != with_data[name]}
    assert differ == {name for name in without if name.startswith(("reference", "verify"))}


def test_another_licence_or_origin_is_another_file(tmp_path: Path, tiny_student: Callable[..., Path]) -> None:
    """The converted file states both, and no file of the student does."""
    source = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "source"))
    parsed, file = loading.read_recipe(str(recipe_file(tmp_path, student={"source": "source", "random_weights": True})))

    def convert_params() -> list[Mapping[str, Any]]:
        graph = build(Request(parsed, file, "convert", choose_targets(parsed, [])))
        return [node.params for node in graph.nodes.values() if node.stage == "convert"]

    before = convert_params()
    (source / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    after = convert_params()
    assert [one["licence"] for one in after] == ["cc-by-nc-4.0"] * len(before)
    assert all({**new, "licence": None} == dict(old) for new, old in zip(after, before, strict=True))
    assert {one["origin"] for one in before} == {"source"}


@pytest.mark.parametrize("counts", [True, False])
def test_what_reads_a_manifest_is_made_again_when_it_says_something_else(counts: bool, kept: Store) -> None:
    """Parameters and tools may change and leave the files as they are."""

    def report_of(first: Node) -> Node:
        return dataclasses.replace(node("report", join, (Input("a"),), a=first), counts_manifest=counts)

    first = node("first", params={"licence": "mit"})
    assert made(graph_of(report_of(first)), kept)["report"]
    assert made(graph_of(report_of(node("first", params={"licence": "other"}))), kept)["report"] == counts
    assert made(graph_of(report_of(dataclasses.replace(first, tools={"torch": "9"}))), kept)["report"] == counts


def test_a_build_folder_of_before_is_made_again_and_said_so(tiny_line: TinyLine, tmp_path: Path) -> None:
    """Before there was a store, artifacts were folders; each is replaced by a view when it is made."""
    line = tiny_line.copy(tmp_path)
    old = line.folder / "student"
    target = old.resolve()
    old.unlink()
    old.mkdir()
    (old / "manifest.json").write_text("{}")
    kept = Store(line.build)
    kept.link(old, target.name)
    assert old.is_symlink()
    assert not any(planned(line.recipe, "verify").values())


@pytest.mark.parametrize("kind", ["file", "folder", "linked folder"])
def test_what_a_user_keeps_in_a_view_s_place_is_refused_before_any_work(kind: str, tmp_path: Path) -> None:
    graph, build = graph_of(node("first")), tmp_path / "build"
    users = build / "own" / "first"
    if kind == "file":
        users.parent.mkdir(parents=True)
        users.write_text("mine")
    elif kind == "folder":
        users.mkdir(parents=True)
        (users / "notes.txt").write_text("mine")
    else:
        build.mkdir()
        (tmp_path / "own").mkdir()
        users.parent.symlink_to(tmp_path / "own")
    runner = InThisProcess()
    with pytest.raises(ArtifactError, match=r"build/own is a link|build/own/first is a (file|folder).* Move it away"):
        running.carry_out(graph, build, Silent(), runner)
    assert runner.began == []
    with pytest.raises(ArtifactError, match=r"is a (file|folder|link)"):
        Store(build).link(users, "0" * 64)
    kept_by_user = {"file": users, "folder": users / "notes.txt", "linked folder": tmp_path / "own"}[kind]
    assert kept_by_user.is_dir() or kept_by_user.read_text() == "mine"


def test_what_a_run_left_that_was_killed_before_it_took_the_permissions_is_finished(kept: Store) -> None:
    graph = graph_of(node("first"))
    (step,) = carry_out(graph, kept, InThisProcess(), Silent()).steps
    place, scratch = kept.root / str(step.key), kept.scratch(str(step.key))
    for path in (place, place / "text.txt"):
        path.chmod(path.stat().st_mode | 0o200)
    scratch.mkdir(parents=True)
    assert made(graph, kept) == {"first": False}
    assert not any(path.stat().st_mode & 0o222 for path in (place, place / "text.txt"))
    assert not scratch.exists()


def cached(place: Path, name: str, days: float) -> Path:
    """Make a folder of a cache that was used so long ago, with 1,000 bytes."""
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "part.arrow").write_bytes(bytes(1000))
    then = time.time() - days * 24 * 3600
    os.utime(folder, (then, then))
    return folder


def test_what_the_cache_has_unused_goes_after_a_week_or_when_room_is_asked_for(kept: Store) -> None:
    today, old, older, unused, own = (
        cached(kept.cache, name, days)
        for name, days in (
            (f"teacher-{'0' * 64}", 0.5),
            (f"teacher-{'1' * 64}", 2),
            (f"candidates-{'2' * 64}", 3),
            (f"teacher-{'3' * 64}", 8),
            ("notes", 9),
        )
    )
    kept.sweep()
    assert not unused.exists()
    assert own.exists(), "no store made it"
    kept.evict(limit_bytes=2500)
    assert (today.exists(), old.exists(), older.exists()) == (True, True, False)
    kept.evict(limit_bytes=0)
    assert (today.exists(), old.exists()) == (True, False), "what was used today may be in use"
    with cache.using(today):
        kept.evict(older_than_seconds=0)
        assert today.exists()
    kept.evict(older_than_seconds=0)
    assert not today.exists()


def test_progress_that_nobody_can_be_told_ends_the_process_and_hangs_nothing(tmp_path: Path) -> None:
    def full(what: str, fraction: float) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Worker(tmp_path / "log", full) as process, pytest.raises(OSError, match="No space left"):
        process.call(worker.tell, "half of it", 0.5)


def test_a_link_in_the_place_of_the_cache_leads_no_sweep_astray(kept: Store, tmp_path: Path) -> None:
    theirs = cached(tmp_path / "theirs", f"teacher-{'0' * 64}", 99)
    kept.cache.symlink_to(tmp_path / "theirs")
    kept.sweep()
    kept.evict(limit_bytes=0)
    assert (theirs / "part.arrow").exists()


def test_a_folder_of_the_cache_that_was_removed_is_made_anew(kept: Store) -> None:
    folder = cached(kept.cache, f"teacher-{'0' * 64}", 8)
    (folder / ".00000.arrow.1.new").touch()
    with cache.using(folder):
        assert [path.name for path in folder.iterdir()] == ["part.arrow"]
    kept.evict(older_than_seconds=0)
    assert not folder.exists()
    with cache.using(folder):
        assert not list(folder.iterdir())


@pytest.mark.parametrize("verb", ["run", "clean", "clean_older"])
def test_a_disk_that_cannot_be_written_is_told_in_one_error(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, graph = Store(tmp_path / "build"), graph_of(node("first"))
    with kept.running():
        three(kept)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.Store, "_use" if verb == "run" else "making", full)
    verbs: dict[str, Callable[[], object]] = {
        "run": lambda: running.carry_out(graph, kept.build, Silent(), InThisProcess()),
        "clean": lambda: cleaning.clean(kept.build),
        "clean_older": lambda: cleaning.clean_older(kept.build, "0d"),
    }
    with pytest.raises(ArtifactError, match=r"build cannot be written: No space left on device"):
        verbs[verb]()


def test_a_copy_that_fails_names_what_it_writes(tmp_path: Path) -> None:
    """`shutil` names first the file that it reads."""

    def copies(out: Path) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/weights", None, str(out / "weights"))

    kept = Store(tmp_path / "build")
    with (
        kept.running(),
        pytest.raises(
            ArtifactError, match=r"no space left on \S+: first: \S+build/store/\S+/weights cannot be written: No space"
        ),
    ):
        carry_out(graph_of(node("first", copies, ())), kept, InThisProcess(), Silent())


# --- what holds an artifact, and making room ----------------------------------------------------------------------


def three(kept: Store) -> list[str]:
    """Make three artifacts in one place, so that only the last one is shown; return their keys in order."""
    keys = []
    for text in ("one", "two", "three"):
        (step,) = carry_out(graph_of(node("first", arguments=(text,))), kept, InThisProcess(), Silent()).steps
        keys.append(str(step.key))
    for age, key in enumerate(reversed(keys)):
        os.utime(kept.root / ".used" / key, (time.time() - age * 86_400,) * 2)
    return keys


def test_what_a_view_shows_is_never_removed_and_the_oldest_goes_first(tmp_path: Path) -> None:
    kept = Store(tmp_path / "build")
    with kept.running():
        one, two, three_ = three(kept)
    size = sum(path.stat().st_size for path in (kept.root / one).rglob("*") if path.is_file())
    assert kept.evict(limit_bytes=3 * size + 100) == []
    assert kept.evict(limit_bytes=2 * size + 100) == [one]
    assert kept.evict(older_than_seconds=2 * 86_400) == []
    assert kept.evict(older_than_seconds=3_600) == [two]
    assert kept.evict() == []
    assert kept.keys() == [three_]
    assert artifact.load(kept.build / "own/first")


HOLD = """
import sys, time
from pathlib import Path
from pipeline.execution.store import Store
store = Store(Path(sys.argv[1]))
with store.running():
    store.runs.use(sys.argv[2])
    print("held", flush=True)
    time.sleep(600)
"""


def test_what_a_running_process_uses_is_never_removed_however_it_ends(tmp_path: Path) -> None:
    kept = Store(tmp_path / "build")
    with kept.running():
        one, two, _ = three(kept)
        assert kept.evict() == [], "this process used them all"
    command = [sys.executable, "-c", HOLD, str(kept.build), one]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert kept.evict() == [two]
        process.kill()
    assert kept.evict() == [one]
    assert not list((kept.root / ".runs").iterdir()), "what a killed process left is gone"


def test_a_run_that_is_taken_for_a_dead_one_while_it_begins_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of its file and the kernel's lock on it, another process looks which runs are alive."""
    kept, lock, between = Store(tmp_path / "build"), fcntl.flock, [True]

    def flock(handle: Any, how: int) -> None:
        if between.pop() if between else False:
            assert Store(tmp_path / "build").runs.alive() == []
        lock(handle, how)

    monkeypatch.setattr(runs, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    with kept.running():
        (key, *_) = three(kept)
        assert Store(tmp_path / "build").evict() == [], f"this process uses {key}"


def test_an_artifact_that_is_being_made_is_not_swept_by_a_run_that_begins(tmp_path: Path) -> None:
    """Nor where its maker began after the other run had looked which ones are alive."""
    kept = Store(tmp_path / "build")
    half_made = kept.root / ".abc.12345678.new"
    half_made.mkdir(parents=True)
    with kept.making("abc"), Store(tmp_path / "build").running():
        assert half_made.is_dir()


def test_what_a_run_shows_while_another_one_makes_room_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may begin, find an artifact and end while others are being removed."""
    kept = Store(tmp_path / "build")
    with kept.running():
        one, two, _ = three(kept)
    last_used = store.Store._last_used

    def look(self: Store, key: str) -> float:
        kept.link(kept.build / "other" / "first", two)
        return last_used(self, key)

    monkeypatch.setattr(store.Store, "_last_used", look)
    assert Store(tmp_path / "build").evict() == [one]
    assert artifact.load(kept.build / "other/first")


def test_a_view_that_a_killed_run_left_aside_holds_nothing(tmp_path: Path) -> None:
    kept = Store(tmp_path / "build")
    with kept.running():
        one, two, _ = three(kept)
    (kept.build / "own" / ".first.12345678.link").symlink_to(f"../store/{one}")
    assert kept.evict() == [one, two]


def test_what_disappears_while_it_is_looked_at_is_no_crash(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs make room at once, or one plans beside `clean`."""
    graph = graph_of(node("first"))
    made(graph, kept)
    assert store._bytes(kept.root / "gone") == 0

    def gone(path: Path) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(artifact, "sha256_file", gone)
    (step,) = executor.plan(graph, Store(kept.build)).steps
    assert step.made
    assert "text.txt cannot be read (No such file or directory)" in step.reason


def test_clean_leaves_a_folder_whose_links_lead_elsewhere(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    users = kept.build / "notes"
    users.mkdir()
    (users / "models").symlink_to(kept.build.parent / "elsewhere" / "store" / "models")
    assert cleaning.clean(kept.build).folders == [kept.build / "own"]
    assert (users / "models").is_symlink()


def nobody_uses(kept: Store) -> None:
    """Let the store look as another process sees it once this one has ended."""
    assert kept.runs.own
    kept.runs.own.write_text("")


def copied(name: str, **facts: Any) -> Node:
    return dataclasses.replace(node(name, **facts), copied=True)


def test_a_view_that_is_handed_on_is_a_copy_without_links(kept: Store, tmp_path: Path) -> None:
    graph, view = graph_of(copied("first")), kept.build / "own" / "first"
    assert made(graph, kept) == {"first": True}
    shutil.copytree(view, tmp_path / "handed on", symlinks=True)
    for folder in (view, tmp_path / "handed on"):
        assert not folder.is_symlink()
        assert not any(path.is_symlink() for path in folder.rglob("*"))
        assert all(os.access(path, os.W_OK) for path in (folder, *folder.rglob("*")))
        (key,) = kept.keys()
        assert artifact.load(folder).manifest.key == key
    assert kept.viewed() == {key}
    written = (view / "manifest.json").stat().st_mtime_ns
    assert made(graph, kept) == {"first": False}
    assert (view / "manifest.json").stat().st_mtime_ns == written


def test_a_copy_is_made_again_where_it_is_a_link_or_changed_or_of_another_artifact(kept: Store) -> None:
    view = kept.build / "own" / "first"
    made(graph_of(node("first")), kept)
    assert view.is_symlink()
    made(graph_of(copied("first")), kept)
    assert not view.is_symlink()
    (view / "text.txt").write_text("changed")
    made(graph_of(copied("first")), kept)
    assert (view / "text.txt").read_text() == "one"
    made(graph_of(copied("first", arguments=("two",))), kept)
    assert (view / "text.txt").read_text() == "two"
    hidden = [path for folder in (view.parent, kept.root) for path in folder.glob(".*.*")]
    assert [path for path in hidden if path.suffix in (".new", ".old", ".link")] == []


def test_a_user_s_file_in_a_copy_is_neither_removed_nor_shadowed(kept: Store) -> None:
    made(graph_of(copied("first"), node("second")), kept)
    notes = kept.build / "own" / "first" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(ArtifactError, match="was not made by pocketbert, and a new first belongs there"):
        made(graph_of(copied("first", arguments=("two",))), kept)
    nobody_uses(kept)
    assert notes in cleaning.clean(kept.build, "own").kept
    assert notes.read_text() == "mine"


def test_clean_removes_a_copy_with_its_artifact(kept: Store) -> None:
    made(graph_of(copied("second", make=join, arguments=(Input("a"),), a=node("first"))), kept)
    assert sorted(path.name for path in cleaning.clean(kept.build).in_use) == ["first", "second"]
    nobody_uses(kept)
    assert kept.evict() == []
    assert len(cleaning.clean(kept.build).artifacts) == 2
    assert not (kept.build / "own").exists()


def test_an_empty_folder_is_somebody_s_and_stays(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    emptied = kept.build / "emptied"
    emptied.mkdir()
    assert cleaning.clean(kept.build, "emptied").folders == []
    assert cleaning.clean(kept.build).folders == [kept.build / "own"]
    assert emptied.is_dir()


def test_clean_takes_names_alone_for_nothing_of_ours(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    folder = kept.build / "own"
    users = (
        *(".lock", "work/.lock", ".vimrc.new", "work/.thesis.old", "work/logs/train.log", "logs/own.log"),
        *(".backup.old/data", ".first.old/data", ".other.01234567.new/data", "litert-fp32/notes.txt"),
    )
    for name in users:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    (folder / ".etc.link").symlink_to("/etc")
    (folder / "empty").mkdir()
    (folder / "logs" / "first.log").write_text("ours")
    told: list[str] = []
    removed = cleaning.clean(kept.build, "own", told.append)
    assert all((folder / name).read_text() == "mine" for name in users)
    assert (folder / ".etc.link").is_symlink()
    assert (folder / "empty").is_dir()
    assert folder / "work" in removed.kept
    gone = ("first", "logs/first.log")
    assert not any(os.path.lexists(folder / name) for name in gone)
    assert all(name in told[0].split("; keeps")[0] for name in gone)


def test_clean_knows_the_logs_of_all_stages(kept: Store) -> None:
    """Those of compression lie above the graph's store, so that `cleaning` names them by itself."""
    from pipeline import compress

    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    logs = kept.build / "own" / "logs"
    logs.mkdir()
    of_schemes = ("quantize-int8_static", "train-int4_dynamic", "convert-litert-fp32-again")
    for name in ("train", *(stage.name for stage in compress.STAGES), *of_schemes, "reference-32"):
        (logs / f"{name}.log").write_text("ours")
    assert cleaning.clean(kept.build, "own").kept == []


def test_clean_removes_what_sensitivity_tried_and_keeps_what_lies_beside_it(kept: Store) -> None:
    """`clean` names its files by itself, since importing what writes them takes long."""
    from pipeline.quantize import sensitivity

    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    tried, noted, other = (
        kept.build / "own" / f"sensitivity-{name}" for name in ("litert-int4_dynamic", "coreml-int4_weight_only", "x")
    )
    for folder in (tried, noted, other):
        (folder / "files").mkdir(parents=True)
        (folder / sensitivity.FILE).write_text("{}")
    (noted / "notes.txt").write_text("mine")
    assert cleaning.clean(kept.build, "own").kept == [noted, other]
    assert not tried.exists()


def test_a_bundle_that_push_finished_beside_a_clean_is_removed_by_the_next(kept: Store) -> None:
    bundle = kept.build / "late" / "bundle"
    spec = artifact.Spec("write", 1, {}, {}, {})
    found, made_now = Store(kept.build).get(spec, bundle, lambda out: write("two", out), waiting=lambda: None)
    assert made_now
    assert bundle.resolve() == found.path
    assert cleaning.clean(kept.build, "late").folders == [kept.build / "late"]
    assert not (kept.build / "late").exists()
    assert kept.keys() == []


def test_clean_says_what_will_go_before_anything_goes(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    (kept.build / "own" / "notes.txt").write_text("mine")
    told = []

    def tell(text: str) -> None:
        assert (kept.build / "own" / "first" / "manifest.json").is_file()
        told.append(text)

    cleaning.clean(kept.build, "own", tell)
    own = kept.build / "own"
    assert told[0] == f"will remove of {own}: first; keeps what pocketbert did not make: notes.txt"
    assert told[1] == f"will remove 1 artifacts of {kept.build / 'store'}"


def test_a_file_that_was_put_into_an_artifact_keeps_it(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    bundle = kept.build / "own" / "bundle"
    shutil.copytree(kept.build / "own" / "first", bundle)
    bundle.chmod(0o755)
    (bundle / "notes.txt").write_text("mine")
    assert cleaning.clean(kept.build, "own").kept == [bundle / "notes.txt"]
    (bundle / "notes.txt").rename(kept.build.parent / "notes.txt")


def test_the_views_of_what_a_running_process_uses_stay(kept: Store) -> None:
    made(graph_of(node("first"), node("second", arguments=("second",))), kept)
    assert kept.runs.own
    key = Path(os.readlink(kept.build / "own" / "first")).name
    kept.runs.own.write_text(f"{key}\n")
    removed = cleaning.clean(kept.build, "own")
    assert removed.in_use == [kept.build / "own" / "first"]
    assert artifact.load(kept.build / "own" / "first")
    assert not os.path.lexists(kept.build / "own" / "second")


def test_a_folder_that_may_not_be_written_is_refused_before_anything_goes(
    kept: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    own = kept.build / "own"
    monkeypatch.setattr(os, "access", lambda path, how: path != own or not how & os.W_OK)
    with pytest.raises(ArtifactError, match=r"own cannot be written: you have no permission, so nothing was removed"):
        cleaning.clean(kept.build, "own")
    assert artifact.load(own / "first")


@pytest.mark.toolchain
@pytest.mark.skipif(shutil.which("unshare") is None, reason="a small disk of one's own takes Linux")
@pytest.mark.parametrize(
    ("megabytes", "words"),
    [(3, "and what follows need about"), (24, "no space left on")],
    ids=["too small for the estimate", "full while a node writes"],
)
def test_a_full_disk_is_named_and_nothing_is_left_half_made(megabytes: int, words: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    source = write_student(tmp_path / "source", "bert", "embedding", vocab_size=30522)
    recipe = recipe_file(tmp_path, student={"source": str(source), "random_weights": True})
    # Another program takes what the estimate has seen.
    filler = f"(sleep 3; head -c {megabytes - 1}M /dev/zero > {disk}/filler) & " if megabytes > 3 else ""
    command = f"mount -t tmpfs -o size={megabytes}m none {disk} || exit 77; {filler}"
    command += f"{sys.executable} -m pipeline student {recipe} --build {disk}/build; code=$?; wait; "
    command += f"find {disk}/build/store -maxdepth 1 -type d -name '[0-9a-f]*' | wc -l; exit $code"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"this machine lets nobody mount a disk: {done.stderr.strip()[-200:]}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.split()[-1] == "0"


@pytest.mark.parametrize("stop_after", range(4))
def test_a_killed_clean_leaves_nothing_that_the_next_one_does_not_find(
    stop_after: int, kept: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(graph_of(node("first"), node("second", arguments=("second",))), kept)
    assert kept.runs.own
    kept.runs.own.write_text("")
    remove = atomic.remove
    removed: list[Path] = []

    def killed(path: Path) -> None:
        if len(removed) == stop_after:
            raise KeyboardInterrupt
        removed.append(path)
        remove(path)

    # Two artifacts, two views, the folder.
    for module in (cleaning, store):
        monkeypatch.setattr(module, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        cleaning.clean(kept.build, "own")
    monkeypatch.undo()
    if (kept.build / "own").exists() and cleaning._ours(kept.build):
        cleaning.clean(kept.build, "own")
    assert kept.keys() == []
    assert not list((kept.build / "own").glob("*"))


def test_clean_takes_a_lock_or_a_manifest_of_others_for_nothing_of_ours(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    for name in (".lock", "student/manifest.json"):
        file = kept.build / f"notes-{Path(name).name}" / name
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    assert cleaning.clean(kept.build).folders == [kept.build / "own"]
    assert sorted(path.name for path in kept.build.glob("notes-*")) == ["notes-.lock", "notes-manifest.json"]
    with pytest.raises(InputError, match="was not made by pocketbert"):
        cleaning.clean(kept.build, "notes-.lock")


def test_clean_keeps_files_of_others_in_a_recipe_s_folder_and_names_them(kept: Store) -> None:
    made(graph_of(node("first")), kept)
    nobody_uses(kept)
    folder = kept.build / "own"
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "first.log").write_text("x")
    (folder / "notes.txt").write_text("keep")
    (folder / "mine").mkdir()
    (folder / "mine" / "plot.png").write_text("keep")
    removed = cleaning.clean(kept.build)
    assert removed.kept == [folder / "mine", folder / "notes.txt"]
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == [
        "mine",
        "mine/plot.png",
        "notes.txt",
    ]


def test_what_a_killed_run_left_half_made_is_swept_by_the_next(tmp_path: Path) -> None:
    kept = Store(tmp_path / "build")
    (kept.root / ".abc.12345678.new").mkdir(parents=True)
    with kept.running():
        assert not list(kept.root.glob(".*.new"))


@pytest.mark.parametrize("value", ["many", "-1", "inf", "nan"])
def test_a_limit_that_is_no_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.LIMIT_VARIABLE, value)
    with pytest.raises(ArtifactError, match=r"POCKETBERT_STORE_GB is .* give the store's limit"):
        store.limit_bytes()


@pytest.mark.parametrize("age", ["30", "d", "-3d", "3 d", "3y"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    with pytest.raises(InputError, match="give hours, days or weeks"):
        cleaning.seconds(age)


def test_cleaning_a_recipe_keeps_what_another_one_shows(kept: Store) -> None:
    shared, own = node("shared"), node("shared", recipe="other")
    mine = node("mine", arguments=("mine",))
    steps: list[Step] = carry_out(graph_of(shared, own, mine), kept, InThisProcess(), Silent()).steps
    keys = {step.name: step.key for step in steps}
    # As another process sees it: nothing is in use.
    assert kept.runs.own
    kept.runs.own.write_text("")
    removed = cleaning.clean(kept.build, "own")
    assert removed.folders == [kept.build / "own"]
    assert removed.artifacts == [keys["mine"]]
    assert artifact.load(kept.build / "other/shared")


@pytest.mark.toolchain
def test_a_student_at_chance_is_known_before_any_conversion(tiny_student, tmp_path):
    """Its labels are those of the data, and its head was never trained, which nothing declares."""
    source = {"source": str(tiny_student("bert", "classification"))}
    values = {"task": "classification", "student": source, "verify": {"datasets": ["sentiment"]}}
    recipe = recipe_file(tmp_path, **values, targets={"litert": {"schemes": ["fp32"]}})
    outcome = run_command_here("verify", recipe, "--build", tmp_path / "build", cwd=tmp_path)
    assert outcome.rc == 2, outcome.stdout
    assert "the student itself is at chance, in PyTorch: accuracy 0." in outcome.stderr
    assert "Nothing was converted" in outcome.stderr
    left = sorted(path.name for path in (tmp_path / "build" / "tiny").iterdir())
    assert left == ["link-to-recipe.toml", "logs", "student"]


@pytest.mark.parametrize(("metric", "refused"), [("accuracy", True), ("matthews", False)])
def test_rows_that_cannot_tell_a_perfect_student_from_luck_are_not_held_against_it(metric: str, refused: bool) -> None:
    """18 of 20 rows have one label: two standard errors above .9 is more than 1."""
    gold = [0.0] * 18 + [1.0] * 2
    labels = Labels("dev_file", list(range(20)), None, gold, metric, ["a", "b"])
    perfect = RowOutputs(np.array([[1.0 - one, one] for one in gold], np.float32), np.ones(20, np.int64))
    said = pytest.raises(InputError, match=r"dev_file cannot tell any student from luck: on 20 rows .* accuracy 1\.034")
    with said if refused else contextlib.nullcontext():
        reference._check_above_chance(tasks.get("classification"), [labels], perfect)
