"""A remote store: another machine finds what one made; what is half-written, changed or hostile is not there."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent

from pipeline import artifact
from pipeline.artifact import Manifest, sha256_file
from pipeline.errors import ArtifactError, InputError
from pipeline.execution import elsewhere, executor, remote, store
from pipeline.execution.elsewhere import Elsewhere, Origin
from pipeline.execution.executor import Job, Outcome
from pipeline.execution.node import Estimate, External, Graph, Input, Log, Node, Scratch
from pipeline.execution.remote import Remote
from pipeline.execution.store import Store


def write(text: str, log: Path, out: Path) -> Mapping[str, Any]:
    (out / "deep").mkdir()
    (out / "deep" / "text.txt").write_text(text)
    (out / "empty").touch()
    return {"length": len(text)}


def join(scratch: Path, given: tuple[Path, ...], out: Path) -> Mapping[str, Any]:
    assert not scratch.exists()
    texts = [path.read_text() if path.is_file() else (path / "deep/text.txt").read_text() for path in given]
    (out / "deep").mkdir()
    (out / "deep" / "text.txt").write_text("+".join(texts))
    return {}


def node(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], **inputs: Node | External) -> Node:
    return Node("own", name, name, name, 1, {"name": name}, inputs, {}, function, arguments, Estimate(1, 1))


class Here:
    """An executor of this process."""

    def has_room(self, node: Node) -> bool:
        return True

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        future: Future[Manifest] = Future()
        try:
            future.set_result(self.run(job))
        except BaseException as error:
            future.set_exception(error)
        return future

    def run(self, job: Job) -> Manifest:
        return store.make(job.place, job.spec, job.function, job.arguments)

    def stop(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Apart(Here):
    """An executor whose machine sees no folder of the driver's; it has a build folder of its own."""

    def __init__(self, build: Path, remote: Remote) -> None:
        self.remote = remote
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(elsewhere.BUILD_VARIABLE, str(build / "worker"))
            self.there = Elsewhere(Origin(build, remote.address))

    def run(self, job: Job) -> Manifest:
        elsewhere.offer(job, self.remote)
        return self.there.run(job, super().run)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a remote store, which the environment names."""
    monkeypatch.setenv(remote.VARIABLE, f"file://{tmp_path}/remote")
    return tmp_path / "remote"


def graph(outside: Path) -> Graph:
    """Two nodes, of which the second one reads the first one and what lies outside."""
    folder = External(outside, "a" * 64, ("named.txt",))
    file = External(outside / "named.txt", "b" * 64)
    first = node("first", write, ("one", Log()))
    second = node(
        "second",
        join,
        (Scratch(), (Input("before"), Input("file"))),
        before=first,
        file=file,
    )
    third = node("third", read, (Input("folder"), Input("before")), folder=folder, before=second)
    found = Graph("own")
    found.include(third)
    return found


def read(folder: Path, before: Path, out: Path) -> Mapping[str, Any]:
    (out / "text.txt").write_text(f"{(folder / 'named.txt').read_text()} {(before / 'deep/text.txt').read_text()}")
    return {}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "real.txt").write_text("two")
    # As the Hub's cache has its files.
    (folder / "named.txt").symlink_to("real.txt")
    return folder


def carried_out(graph: Graph, build: Path, run: Here | None = None) -> Outcome:
    kept = Store(build)
    with kept.running():
        return executor.carry_out(graph, kept, run or Here(), Silent())


def steps(outcome: Outcome) -> dict[str, bool]:
    return {step.name: step.made for step in outcome.steps}


ALL, NONE = dict.fromkeys(("first", "second", "third"), True), dict.fromkeys(("first", "second", "third"), False)


def files_of(outcome: Outcome) -> dict[str, str]:
    found = outcome.at("own", "third")
    assert found
    artifact.load(found.path)
    return {str(path.relative_to(found.path)): path.read_text() for path in found.path.rglob("*.txt")}


def test_what_one_machine_made_another_one_fetches(tmp_path: Path, address: Path, outside: Path) -> None:
    first = carried_out(graph(outside), tmp_path / "one")
    assert steps(first) == ALL
    planned = executor.plan(graph(outside), Store(tmp_path / "two"))
    assert steps(planned) == NONE
    assert {step.reason for step in planned.steps} == {executor.FETCHED}
    assert not (tmp_path / "two").exists(), "a plan writes nothing"
    second = carried_out(graph(outside), tmp_path / "two")
    assert steps(second) == NONE
    assert files_of(second) == files_of(first)
    place = tmp_path / "two/own/third"
    assert place.is_symlink()
    assert not (place / "text.txt").stat().st_mode & 0o222, "read-only, like what was made here"
    assert not (place / artifact.ORIGIN).exists(), "and not taken for it"


def test_a_store_that_began_without_it_gives_what_it_has(tmp_path: Path, outside: Path, monkeypatch: Any) -> None:
    carried_out(graph(outside), tmp_path / "one")
    monkeypatch.setenv(remote.VARIABLE, str(tmp_path / "remote"))
    assert steps(carried_out(graph(outside), tmp_path / "one")) == NONE
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE


def test_equal_files_lie_there_once_and_nothing_is_written_twice(tmp_path: Path, address: Path, outside: Path) -> None:
    carried_out(graph(outside), tmp_path / "one")
    files = [path for path in address.rglob("*") if path.is_file() and path.parent.parent.name == "files"]
    assert sorted(path.name for path in files) == sorted({sha256_file(path) for path in files})
    before = {path: path.stat().st_mtime_ns for path in address.rglob("*") if path.is_file()}
    carried_out(graph(outside), tmp_path / "one")
    carried_out(graph(outside), tmp_path / "two")
    assert before == {path: path.stat().st_mtime_ns for path in address.rglob("*") if path.is_file()}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _turn(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("damage", [_cut, _turn, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("what", ["artifacts", "files"])
def test_what_is_half_written_or_changed_is_made_again_and_mended(
    tmp_path: Path, address: Path, outside: Path, damage: Callable[[Path], None], what: str
) -> None:
    first = carried_out(graph(outside), tmp_path / "one")
    made = first.at("own", "third")
    assert made
    if what == "artifacts":
        victim = address / "artifacts" / f"{made.manifest.key}.json"
    else:
        (entry,) = made.manifest.files
        victim = address / "files" / entry.sha256[:2] / entry.sha256
    damage(victim)
    second = carried_out(graph(outside), tmp_path / "two")
    assert steps(second) == NONE | {"third": True}
    assert files_of(second) == files_of(first)
    assert steps(carried_out(graph(outside), tmp_path / "three")) == NONE, "the second machine mended it"


@pytest.mark.parametrize(
    "edit",
    [
        {"path": "../../../escaped.txt"},
        {"path": "/tmp/escaped.txt"},
        {"path": "manifest.json"},
        {"path": ""},
        {"sha256": "../../../outside/real.txt"},
        {"bytes": -1},
    ],
)
def test_a_manifest_that_leads_outside_is_not_followed(
    tmp_path: Path, address: Path, outside: Path, edit: dict[str, Any]
) -> None:
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    place = address / "artifacts" / f"{made.manifest.key}.json"
    document = json.loads(place.read_text())
    document["files"][0] |= edit
    place.write_text(json.dumps(document))
    before = {path for path in tmp_path.rglob("*") if path.name == "escaped.txt"}
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE | {"third": True}
    assert before == {path for path in tmp_path.rglob("*") if path.name == "escaped.txt"} == set()
    assert not Path("/tmp/escaped.txt").exists()


def test_another_artifact_under_a_key_is_not_taken(tmp_path: Path, address: Path, outside: Path) -> None:
    outcome = carried_out(graph(outside), tmp_path / "one")
    first, third = outcome.at("own", "first"), outcome.at("own", "third")
    assert first
    assert third
    folder = address / "artifacts"
    shutil.copy(folder / f"{first.manifest.key}.json", folder / f"{third.manifest.key}.json")
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE | {"third": True}


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ("nonsense://bucket", InputError, "'nonsense://bucket'.*install the package of its protocol"),
        ("ftp://me:secret@127.0.0.1:1/x", ArtifactError, "ftp://me:…@127.0.0.1:1/x failed: .*refused"),
        ("file:///proc/self/none", ArtifactError, "file:///proc/self/none failed"),
    ],
)
def test_a_store_out_of_reach_is_told_and_what_is_finished_stays(
    tmp_path: Path, outside: Path, monkeypatch: Any, wrong: str, error: type[Exception], said: str
) -> None:
    monkeypatch.setenv(remote.VARIABLE, wrong)
    with pytest.raises(error, match=said) as raised:
        carried_out(graph(outside), tmp_path / "one")
    assert "secret" not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    monkeypatch.delenv(remote.VARIABLE)
    assert set(steps(carried_out(graph(outside), tmp_path / "one"))) == set(ALL)


def test_a_machine_without_the_driver_s_folder_gets_its_inputs_and_gives_back_what_it_made(
    tmp_path: Path, address: Path, outside: Path
) -> None:
    apart = Apart(tmp_path / "driver", Remote(os.environ[remote.VARIABLE]))
    outcome = carried_out(graph(outside), tmp_path / "driver", apart)
    assert steps(outcome) == ALL
    assert files_of(outcome) == {"text.txt": "two one+two"}
    worker = Store(tmp_path / "driver/worker")
    assert worker.keys() == Store(tmp_path / "driver").keys()
    sent = {path.name for path in (tmp_path / "driver/worker/store/.outside").rglob("*") if path.is_file()}
    assert sent == {"named.txt", artifact.MANIFEST}, "only what counts"
    again = carried_out(graph(outside), tmp_path / "alone")
    assert files_of(again) == files_of(outcome)


def test_an_input_that_the_store_lost_is_told(tmp_path: Path, address: Path, outside: Path) -> None:
    apart = Apart(tmp_path / "driver", Remote(os.environ[remote.VARIABLE]))
    kept = Store(tmp_path / "driver")
    first = Graph("own")
    first.include(node("first", write, ("one", Log())))
    with kept.running():
        executor.carry_out(first, kept, Here(), Silent())
        kept._pushed.update(kept.keys())
        shutil.rmtree(address)
        with pytest.raises(ArtifactError, match=r"second needs .* which the remote store does not have"):
            executor.carry_out(graph(outside), kept, apart, Silent())
