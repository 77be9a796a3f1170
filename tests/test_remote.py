"""A remote store: another machine finds what one made; what is half-written, changed or hostile is not there."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Silent

from pipeline import artifact, tasks
from pipeline.artifact import Artifact, FileEntry, Manifest, digest_of, sha256_file
from pipeline.data import corpus, files, readers
from pipeline.data.datasets import DATA_VARIABLE, DATASETS, Columns
from pipeline.errors import ArtifactError, InputError
from pipeline.execution import elsewhere, executor, planned, remote, store
from pipeline.execution.elsewhere import Elsewhere, Origin
from pipeline.execution.executor import Job, Outcome
from pipeline.execution.node import Estimate, External, Graph, Input, Log, Node, Scratch
from pipeline.execution.remote import Remote
from pipeline.execution.store import Store
from pipeline.planning import run


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

    here = True

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
        return self.there.run(job, planned.counted(), super().run)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a remote store, which the environment names."""
    monkeypatch.setenv(remote.VARIABLE, f"file://{tmp_path}/remote")
    return tmp_path / "remote"


def graph(outside: Path) -> Graph:
    """Two nodes, of which the second one reads the first one and what lies outside."""
    digest = sha256_file(outside / "named.txt")
    folder = External(outside, digest_of([["named.txt", digest]]), ("named.txt",))
    file = External(outside / "named.txt", digest)
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


def carried_out(graph: Graph, build: Path, runs: Here | None = None) -> Outcome:
    kept = Store(build)
    with kept.running():
        return executor.carry_out(graph, kept, runs or Here(), Silent())


def described(address: Path, made: Artifact) -> Path:
    key = made.manifest.key
    return address / "artifacts" / key[:2] / f"{key}.json"


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
        victim = described(address, made)
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
        {"path": "deep//text.txt"},
        {"path": "./text.txt"},
        {"path": "a\0b"},
        {"path": "\x1b[2Ja"},
        {"path": "a" * 256},
        {"path": "a/" * 999 + "a"},
        {"path": ".origin"},
        {"path": "deep/.DS_Store"},
    ],
)
def test_a_manifest_that_leads_outside_is_not_followed(
    tmp_path: Path, address: Path, outside: Path, edit: dict[str, Any]
) -> None:
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    place = described(address, made)
    document = json.loads(place.read_text())
    document["files"][0] |= edit
    place.write_text(json.dumps(document))
    before = {path for path in tmp_path.rglob("*") if path.name == "escaped.txt"}
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE | {"third": True}
    assert steps(carried_out(graph(outside), tmp_path / "three")) == NONE, "and it is mended"
    assert before == {path for path in tmp_path.rglob("*") if path.name == "escaped.txt"} == set()
    assert not Path("/tmp/escaped.txt").exists()


def test_another_artifact_under_a_key_is_not_taken(tmp_path: Path, address: Path, outside: Path) -> None:
    outcome = carried_out(graph(outside), tmp_path / "one")
    first, third = outcome.at("own", "first"), outcome.at("own", "third")
    assert first
    assert third
    shutil.copy(described(address, first), described(address, third))
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE | {"third": True}


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ("nonsense://bucket", InputError, "'nonsense://bucket'.*install the package of its protocol"),
        ("s3:/bucket", InputError, "// is missing"),
        ("ftp://[bucket", InputError, "'ftp://\\[bucket': Invalid IPv6"),
        ("ftp://me:secret@127.0.0.1:1/x", ArtifactError, "ftp://me:…@127.0.0.1:1/x failed: .*refused"),
        ("simplecache::ftp://me:secret@127.0.0.1:1/x", ArtifactError, "failed: .*refused"),
        ("ftp://me:secret/of@127.0.0.1:1/x", InputError, "'ftp://me:…@127.0.0.1:1/x': .* as %2F"),
        ("/proc/self/status", ArtifactError, "/proc/self/status failed: .*Not a directory"),
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
    received = set(worker.keys()) - set(Store(tmp_path / "driver").keys())
    assert len(received) == 2
    sent = {path.name for key in received for path in worker.place(key).rglob("*") if path.is_file()}
    assert sent == {"named.txt", artifact.MANIFEST}, "only what counts"
    assert worker.evict() == [], "this process uses them"
    apart.there._running.close()
    assert received <= set(worker.evict()), "a worker's checkpoints count towards its limit"
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


def test_a_worker_reads_what_the_driver_s_key_says_or_nothing(tmp_path: Path, address: Path, outside: Path) -> None:
    """A step without a fixed result, such as training, that two machines carried out at once."""
    driver, other = tmp_path / "driver", tmp_path / "other"
    first = Graph("own")
    first.include(node("first", write_anything, (str(tmp_path / "count"),)))
    second = Graph("own")
    second.include(node("second", join, (Scratch(), (Input("before"),)), before=next(iter(first.nodes.values()))))
    carried_out(first, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(remote.VARIABLE)
        carried_out(first, driver)
    apart = Apart(driver, Remote(os.environ[remote.VARIABLE]))
    with pytest.raises(
        ArtifactError, match=r"second reads .* another machine's.* Rename (/\S+/store/\w+), so"
    ) as raised:
        carried_out(second, driver, apart)
    place = Path(str(raised.value).split("Rename ")[1].split(",")[0])
    place.rename(driver / "aside")
    made = carried_out(second, driver, apart).at("own", "second")
    assert made
    assert (made.path / "deep/text.txt").read_text() == "1"


def write_anything(count: str, out: Path) -> Mapping[str, Any]:
    number = int(Path(count).read_text()) + 1 if Path(count).exists() else 1
    Path(count).write_text(str(number))
    (out / "deep").mkdir()
    (out / "deep" / "text.txt").write_text(str(number))
    return {}


def words(kind: str, name: str, out: Path) -> Mapping[str, Any]:
    """Write what a node reads by itself: a dataset's texts, or plain ones."""
    if kind == "dataset":
        row = DATASETS[name]
        read = [] if row.absent("train") else [one.first for one in row.load("train")]
    else:
        read = [str(one) for one in corpus.texts([name], out, "texts")]
    (out / "text.txt").write_text("\n".join(read))
    return {}


def digest_of_data(kind: str, name: str) -> str:
    return str(DATASETS[name].digest("train") if kind == "dataset" else corpus.digests([name], Path(), "texts"))


DATA = {
    "dataset": ("rte", "rte/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tIt {}.\tIt falls.\tentailment\n"),
    "texts": ("wikitext2", "lm/wikitext2-valid.txt", "It {}.\n"),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_worker_with_other_data_stores_nothing(
    kind: str, tmp_path: Path, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file, text = DATA[kind]
    driver, worker = tmp_path / "driver", tmp_path / "worker-data"
    for folder, verb in ((driver, "rains"), (worker, "rains")):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text.format(verb))
    monkeypatch.setenv(DATA_VARIABLE, str(driver))

    class There(Apart):
        def run(self, job: Job) -> Manifest:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(DATA_VARIABLE, str(worker))
                return super().run(job)

    def carried(build: Path) -> dict[str, bool]:
        graph = Graph("own")
        graph.include(replace(node("first", words, (kind, name)), params={"data": digest_of_data(kind, name)}))
        return steps(carried_out(graph, build, There(build, Remote(f"file://{address}"))))

    assert carried(tmp_path / "same") == {"first": True}
    (driver / file).write_text(text.format("snows"))
    with pytest.raises(InputError, match=r"is not the file that this run was planned with. Copy it"):
        carried(tmp_path / "other")
    (worker / file).unlink()
    with pytest.raises(InputError, match=r"does not exist"):
        carried(tmp_path / "absent")
    (worker / file).write_text(text.format("snows"))
    assert carried(tmp_path / "mended") == {"first": True}
    # The driver itself reads what it likes.
    (driver / file).write_text(text.format("hails"))
    assert words(kind, name, tmp_path) == {}


def read_files(files: tuple[Path, ...], out: Path) -> Mapping[str, Any]:
    (out / "text.txt").write_text("".join(readers.read_text(file) for file in files))
    return {}


def test_own_files_of_two_recipes_are_told_apart(tmp_path: Path, address: Path) -> None:
    places = [tmp_path / name / "train.csv" for name in ("one", "two")]
    for place in places:
        place.parent.mkdir()
        place.write_text(f"text,label\nIt rains in {place.parent.name}.,1\n")
        assert files.dataset(tasks.get("classification"), place, place, Columns("text", None, "label")).digest("train")
    graph, build = Graph("own"), tmp_path / "build"
    graph.include(node("first", read_files, (tuple(places),)))
    assert steps(carried_out(graph, build, Apart(build, Remote(f"file://{address}")))) == {"first": True}
    # The other one's content, which the run was planned with, is another file's.
    places[0].write_text(places[1].read_text())
    graph = Graph("own")
    graph.include(node("second", read_files, (tuple(places),)))
    with pytest.raises(InputError, match=r"one/train\.csv on .* is not the file that this run was planned with"):
        carried_out(graph, build, Apart(build, Remote(f"file://{address}")))


def test_a_dataset_that_the_driver_lacks_is_absent_for_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file, text = DATA["dataset"]
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(text.format("rains"))
    (tmp_path / "out").mkdir()
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert DATASETS[name].absent("train") is None
    planned.call({}, words, "dataset", name, tmp_path / "out")
    assert (tmp_path / "out" / "text.txt").read_text() == ""


def test_what_a_lost_worker_finished_is_not_made_again(tmp_path: Path, address: Path) -> None:
    apart = Apart(tmp_path / "driver", Remote(os.environ[remote.VARIABLE]))
    first = Graph("own")
    first.include(node("first", write_anything, (str(tmp_path / "count"),)))

    class Twice(Here):
        def run(self, job: Job) -> Manifest:
            apart.run(job)
            again = Apart(tmp_path / "second", apart.remote)
            again.there._origin = apart.there._origin
            return again.run(job)

    made = carried_out(first, tmp_path / "driver", Twice()).at("own", "first")
    assert made
    assert (tmp_path / "count").read_text() == (made.path / "deep/text.txt").read_text() == "1"


def test_what_the_store_got_meanwhile_is_what_the_driver_goes_on_with(tmp_path: Path, address: Path) -> None:
    first = Graph("own")
    first.include(node("first", write_anything, (str(tmp_path / "count"),)))

    class Slower(Here):
        def run(self, job: Job) -> Manifest:
            carried_out(first, tmp_path / "other")
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv(remote.VARIABLE)
                made = carried_out(first, tmp_path / "third").at("own", "first")
            assert made
            return made.manifest

    made = carried_out(first, tmp_path / "driver", Slower()).at("own", "first")
    assert made
    assert made.manifest == artifact.load(made.path).manifest


def test_a_target_that_another_machine_made_anew_is_told_as_outdated(
    tmp_path: Path, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def target(text: str) -> Graph:
        found = Graph("own")
        place = "coreml-int8/model"
        found.include(Node("own", "m", place, "m", 1, {"t": text}, {}, {}, write, (text, Log()), Estimate(1, 1)))
        return found

    build = tmp_path / "build"
    carried_out(target("one"), build)
    carried_out(target("two"), tmp_path / "other")
    monkeypatch.setattr(run, "plan", lambda _, folder: executor.plan(target("two"), Store(folder)))
    request: Any = SimpleNamespace(recipe=SimpleNamespace(name="own"), thorough=True)
    assert run.outdated(request, build) == {"coreml-int8": "its folder shows another artifact"}


def test_a_lost_connection_is_not_an_absent_artifact(tmp_path: Path, address: Path, outside: Path) -> None:
    """`exists` of fsspec says no to any error, and servers end a connection that a long step left idle."""
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    lost = []

    class Lost:
        def exists(self, *_: Any) -> bool:
            return False

        def __getattr__(self, name: str) -> Any:
            lost.append(name)
            raise BrokenPipeError(32, "Broken pipe")

    key = made.manifest.key
    there = Remote(os.environ[remote.VARIABLE])
    there._connected = (Lost(), str(address))
    assert there.manifest(key) == made.manifest
    there._connected = (Lost(), str(address))
    (entry,) = made.manifest.files
    assert there._ask(lambda files, root: remote._get(entry, tmp_path / "got", files, root))
    assert "rm_file" not in lost


def test_files_that_one_folder_cannot_hold_do_not_stop_a_run(tmp_path: Path, address: Path, outside: Path) -> None:
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    (entry,) = made.manifest.files
    place = described(address, made)
    for number, names in enumerate((["a", "a"], ["a", "A"], ["a", "a/b"], ["A/b", "a"])):
        files = [FileEntry(path=name, sha256=entry.sha256, bytes=entry.bytes) for name in names]
        place.write_text(made.manifest.model_copy(update={"files": files}).model_dump_json())
        assert steps(carried_out(graph(outside), tmp_path / f"two{number}")) == NONE | {"third": True}
        assert steps(carried_out(graph(outside), tmp_path / f"three{number}")) == NONE


def test_a_manifest_that_would_fill_the_memory_is_not_read(tmp_path: Path, address: Path, outside: Path) -> None:
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    os.truncate(described(address, made), 1 << 40)
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE | {"third": True}
    assert steps(carried_out(graph(outside), tmp_path / "three")) == NONE


def test_nothing_is_written_through_a_planted_link(tmp_path: Path, address: Path, outside: Path) -> None:
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    (entry,) = made.manifest.files
    (mine := tmp_path / "mine").write_text("mine")
    for place in (
        described(address, made),
        address / f"files/{entry.sha256[:2]}/{entry.sha256}",
    ):
        place.unlink()
        place.symlink_to(mine)
    assert steps(carried_out(graph(outside), tmp_path / "two")) == NONE | {"third": True}
    assert mine.read_text() == "mine"
    assert steps(carried_out(graph(outside), tmp_path / "three")) == NONE


def test_two_machines_may_find_the_same_damage(tmp_path: Path, address: Path, outside: Path, monkeypatch: Any) -> None:
    made = carried_out(graph(outside), tmp_path / "one").at("own", "third")
    assert made
    (entry,) = made.manifest.files
    (address / f"files/{entry.sha256[:2]}/{entry.sha256}").write_bytes(b"\0" * entry.bytes)
    there, get = Remote(os.environ[remote.VARIABLE]), remote._get

    def both(*given: Any) -> bool:
        monkeypatch.setattr(remote, "_get", get)
        assert not Remote(there.address).fetch(made.manifest.key, tmp_path / "two")
        return get(*given)

    monkeypatch.setattr(remote, "_get", both)
    assert not there.fetch(made.manifest.key, tmp_path / "three")


def test_a_file_that_changed_meanwhile_is_not_sent_as_the_earlier_one(tmp_path: Path, address: Path) -> None:
    (file := tmp_path / "file.txt").write_text("one")
    digest = sha256_file(file)
    file.write_text("two")
    with pytest.raises(ArtifactError, match=r"file\.txt was changed since the run began"):
        remote.outside(file, digest, ())


def test_another_file_in_the_place_of_an_outside_one_is_refused(tmp_path: Path, address: Path, outside: Path) -> None:
    apart = Apart(tmp_path / "driver", Remote(os.environ[remote.VARIABLE]))
    digest = sha256_file(outside / "named.txt")
    (other := tmp_path / "named.txt").write_text("other")
    described, paths = remote.outside(other, sha256_file(other), ())
    planted = described.model_copy(update={"key": remote.outside_key(digest)})
    apart.remote.push(other, planted, source=paths)
    with pytest.raises(ArtifactError, match=r"named\.txt is something else; remove \w+\.json there"):
        carried_out(graph(outside), tmp_path / "driver", apart)


def test_a_worker_s_folder_is_its_user_s_alone(tmp_path: Path, address: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv(elsewhere.BUILD_VARIABLE, raising=False)
    folder = tmp_path / f"pocketbert-{os.getuid()}"
    assert elsewhere._temporary() == folder
    assert not folder.stat().st_mode & 0o077
    folder.chmod(0o777)
    with pytest.raises(
        ArtifactError, match=r"not this user's alone. Name a folder of your own in POCKETBERT_WORKER_BUILD"
    ):
        Elsewhere(Origin(tmp_path, "x"))
    folder.rename(tmp_path / "planted")
    folder.symlink_to(tmp_path / "planted")
    with pytest.raises(ArtifactError, match="not this user's alone"):
        Elsewhere(Origin(tmp_path, "x"))


def test_a_path_means_the_same_folder_to_a_worker(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(remote.VARIABLE, " models ")
    found = remote.from_environment()
    assert found
    assert found.address == str(tmp_path / "models")
    monkeypatch.setenv(remote.VARIABLE, " ")
    assert remote.from_environment() is None
