"""What an index is after kills, on a full disk, behind a link, and while somebody else writes it."""

import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from indexes import ENGINES, ROWS, TEXTS, about, embeddings, filled, no_file_beyond

from pipeline.errors import ArtifactError, InputError
from pipeline.search import files
from pipeline.search.flat import FlatIndex, Passage
from pipeline.search.hnsw import GRAPH, GraphIndex
from pipeline.search.indexing import open_index
from pipeline.search.sqlite import SqliteIndex

MOST = [one.id for one in TEXTS[: ROWS - 50]]


def mostly_removed(folder: Path) -> None:
    """Remove most passages, which writes a flat index anew."""
    with open_index(folder, writing=True) as index:
        index.remove(MOST)
        index.finish()


def nearest(folder: Path, row: int = ROWS - 1) -> str:
    with open_index(folder) as index:
        return index.search(embeddings(2)[row], 1)[0].id


def killed(work: Callable[[], object]) -> None:
    """Do something in a process that is killed at the end of it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_what_killed_writers_left_is_removed_and_hinders_no_compaction(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(GraphIndex.create, folder, about())
    # As a kill leaves it after the second rename, and one during an earlier compaction or in the midst of a graph.
    for place in (".index.before", ".index.new"):
        shutil.copytree(folder, tmp_path / place)
    (folder / f".{GRAPH}.0123abcd.new").write_bytes(b"half")
    mostly_removed(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert nearest(folder) == f"n{ROWS - 1}"


@pytest.mark.parametrize("engine", ["flat", "usearch"])
def test_a_kill_between_the_renames_keeps_the_index_and_its_engine(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    folder.rename(tmp_path / ".index.before")
    with open_index(folder) as index:
        assert (index.engine, len(index)) == (engine, ROWS)


def test_a_graph_that_a_kill_left_unwritten_after_a_compaction_is_made_again(tmp_path: Path) -> None:
    folder, whole = tmp_path / "index", tmp_path / "whole"
    filled(GraphIndex.create, folder, about())
    shutil.copytree(folder, whole)
    mostly_removed(whole)
    with GraphIndex.open(folder, writing=True) as index:
        index.remove(MOST)
        index.compact()
    assert nearest(folder) == f"n{ROWS - 1}"
    with open_index(folder, writing=True) as again:
        assert again.engine == "usearch"
        again.finish()
    assert (folder / GRAPH).read_bytes() == (whole / GRAPH).read_bytes()


def test_whoever_reads_leaves_a_compaction_that_goes_on_alone(tmp_path: Path) -> None:
    folder, before = tmp_path / "index", tmp_path / ".index.before"
    filled(FlatIndex.create, folder, about())
    lock = files.locked(folder)
    shutil.copytree(folder, tmp_path / "other")
    folder.rename(before)

    def second_rename() -> None:
        time.sleep(0.3)
        (tmp_path / "other").rename(folder)

    writer = threading.Thread(target=second_rename)
    writer.start()
    assert nearest(folder) == f"n{ROWS - 1}"
    writer.join()
    assert before.is_dir()
    lock.release()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_open_index_stays_what_it_was_while_another_is_put_in_its_place(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    with open_index(folder) as index:
        mostly_removed(folder)
        if engine in ("flat", "usearch"):
            assert [hit.id for hit in index.search(embeddings(2)[0], 1)] == ["n0"]
        else:
            # One file, of which each question sees what is committed.
            assert index.search(embeddings(2)[ROWS - 1], 1)[0].id == f"n{ROWS - 1}"
        with open_index(folder, writing=True) as writer:
            writer.add([Passage(f"m{number}", f"more {number}") for number in range(ROWS)], embeddings(7))
        assert index.search(embeddings(2)[ROWS - 2], 1)[0].id == f"n{ROWS - 2}"
    assert nearest(folder) == f"n{ROWS - 1}"


def test_questions_to_sqlite_are_answered_after_what_another_process_removed(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(ENGINES["sqlite"], folder, about())
    with open_index(folder) as index:
        assert index.search(embeddings(2)[7], 1)[0].id == "n7"
        with open_index(folder, writing=True) as writer:
            writer.remove(["n7"])
        assert index.search(embeddings(2)[7], 1)[0].id != "n7"


def test_a_transaction_that_a_kill_cut_off_is_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(ENGINES["sqlite"], folder, about())

    def in_the_middle() -> None:
        index = SqliteIndex.open(folder, writing=True)
        # So that pages are in the file before the commit.
        index._connection.execute("pragma cache_size = 2")
        index._connection.execute("begin")
        for number in range(2000):
            row = (f"later{number}", "text " * 40)
            index._connection.execute("insert into passages (id, text) values (?, ?)", row)

    killed(in_the_middle)
    assert (folder / "index.sqlite-journal").is_file()
    assert nearest(folder) == f"n{ROWS - 1}"
    killed(in_the_middle)
    with open_index(folder, writing=True) as index:
        assert len(index) == ROWS


def test_a_compaction_on_a_full_disk_leaves_the_index_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    with open_index(folder, writing=True) as index:
        index.remove(MOST)
        with no_file_beyond(1000), pytest.raises(ArtifactError, match="make room"):
            index.finish()
        assert [path.name for path in tmp_path.iterdir()] == ["index"]
        assert len(index) == 50
        index.finish()
    assert nearest(folder) == f"n{ROWS - 1}"


def test_a_compaction_that_is_interrupted_between_its_renames_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "index", Path.rename
    filled(FlatIndex.create, folder, about())

    def interrupted(path: Path, goal: Path) -> Path:
        if path.name == ".index.new":
            raise KeyboardInterrupt
        return rename(path, goal)

    with open_index(folder, writing=True) as index:
        index.remove(MOST)
        monkeypatch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert nearest(folder) == f"n{ROWS - 1}"


def test_an_index_behind_a_link_stays_there(tmp_path: Path) -> None:
    folder, real = tmp_path / "index", tmp_path / "elsewhere" / "real"
    real.parent.mkdir()
    filled(FlatIndex.create, real, about())
    folder.symlink_to(real)
    mostly_removed(folder)
    assert folder.is_symlink()
    assert [path.name for path in real.parent.iterdir()] == ["real"]
    assert b"note 0:" not in (real / "passages.jsonl").read_bytes()


def test_an_index_in_which_one_stands_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    monkeypatch.chdir(folder)
    mostly_removed(Path())
    os.chdir(tmp_path)
    assert nearest(folder) == f"n{ROWS - 1}"


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Be somebody to whom the modes of files mean something; root may read and write all of them."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_may_not_be_read_is_told(
    engine: str, writing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in (*(path for path in folder.iterdir() if writing or path.name != "lock"), folder):
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            with as_nobody(), pytest.raises((ArtifactError, InputError)):
                open_index(Path("index"), writing=writing)
        finally:
            path.chmod(mode)


@pytest.mark.parametrize("name", ["a" * 300, "loop"])
def test_a_name_that_leads_nowhere_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is no index"):
        open_index(Path(name))


def test_keys_of_a_graph_without_a_row_are_passed_over(tmp_path: Path) -> None:
    folder, larger = tmp_path / "index", tmp_path / "larger"
    filled(GraphIndex.create, larger, about())
    with GraphIndex.create(folder, about()) as index:
        index.add(TEXTS[:100], embeddings(2)[:100])
        index.finish()
    shutil.copy(larger / GRAPH, folder / GRAPH)
    assert nearest(folder, 5) == "n5"
    assert nearest(folder).startswith("n")


@pytest.mark.parametrize(
    "change",
    [
        "delete from passages where row = 6",
        "delete from vectors where row = 6",
        "update vectors set vector = 'text'",
        "update vectors set vector = zeroblob(16 * row) where row in (1, 3)",
        "update passages set id = x'ff' where row = 6",
        "update passages set text = x'ff' where row = 6",
    ],
)
def test_a_sqlite_file_with_other_rows_is_refused(change: str, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    filled(ENGINES["sqlite"], folder, about())
    connection = sqlite3.connect(folder / "index.sqlite")
    connection.executescript(change)
    connection.close()
    with open_index(folder) as index:
        for read in (lambda: index.search(embeddings(2)[5], 3), lambda: index.sample(10)):
            with pytest.raises(ArtifactError, match="is damaged"):
                read()
