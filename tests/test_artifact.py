"""Artifacts are whole or not there: keys, tampering, kills at any moment, full disks, two runs at once."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import environment

from pipeline import artifact
from pipeline.artifact import MANIFEST, Artifact, Order
from pipeline.errors import ArtifactError


def order_at(place: Path, **changes: Any) -> Order:
    order = Order(place, "stage", 1, {"size": 3, "names": ["a", "b"]}, {"student": "abc"}, {"torch": "2.13.0"})
    return replace(order, **changes)


def writes(text: str = "one", name: str = "file.txt") -> Callable[[Path], Mapping[str, Any]]:
    """Return a stage that writes a file, one of them in a folder, and gives a metric."""

    def make(out: Path) -> Mapping[str, Any]:
        (out / name).write_text(text)
        (out / "folder").mkdir()
        (out / "folder" / "inner.bin").write_bytes(b"\0\1")
        return {"length": len(text)}

    return make


def fails(error: BaseException) -> Callable[[Path], Mapping[str, Any]]:
    """Return a stage that writes half of its files and raises."""

    def make(out: Path) -> Mapping[str, Any]:
        (out / "half.txt").write_text("half")
        raise error

    return make


def must_not_run(out: Path) -> Mapping[str, Any]:
    raise AssertionError("a finished artifact was made again")


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "build" / "thing"


@pytest.fixture
def made(place) -> Artifact:
    return artifact.build(order_at(place), writes())[0]


# --- keys --------------------------------------------------------------------------------------------------------

INGREDIENTS = {
    "stage": "other",
    "stage_version": 2,
    "params": {"size": 4, "names": ["a", "b"]},
    "inputs": {"student": "abd"},
    "tools": {"torch": "2.13.1"},
}


@pytest.mark.parametrize("ingredient", INGREDIENTS)
def test_each_ingredient_changes_the_key(ingredient, place):
    assert order_at(place, **{ingredient: INGREDIENTS[ingredient]}).key != order_at(place).key


def test_every_field_of_an_order_that_decides_content_is_an_ingredient(place):
    """Not where it lies, nor how its content counts for what is made of it."""
    assert set(INGREDIENTS) == set(Order.__dataclass_fields__) - {"place", "inexact_files"}


def test_neither_place_nor_time_nor_order_of_keys_changes_the_key(tmp_path, monkeypatch):
    first = order_at(tmp_path / "a", params={"size": 3, "names": ["a"]}).key
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.chdir(tmp_path)
    assert order_at(Path("b"), params={"names": ["a"], "size": 3}).key == first


def test_the_order_of_a_list_is_content(place):
    assert order_at(place, params={"names": ["a", "b"]}).key != order_at(place, params={"names": ["b", "a"]}).key


def test_the_schema_version_is_part_of_the_key(place, monkeypatch):
    before = order_at(place).key
    monkeypatch.setattr(artifact, "SCHEMA_VERSION", artifact.SCHEMA_VERSION + 1)
    assert order_at(place).key != before


def test_a_parameter_that_is_not_a_number_is_no_key(place):
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = order_at(place, params={"bound": float("nan")}).key


def test_the_digest_is_that_of_the_content_alone(tmp_path):
    one = artifact.build(order_at(tmp_path / "one"), writes())[0]
    two = artifact.build(order_at(tmp_path / "two", params={}), writes())[0]
    other = artifact.build(order_at(tmp_path / "three"), writes("other"))[0]
    renamed = artifact.build(order_at(tmp_path / "four"), writes(name="renamed.txt"))[0]
    assert one.digest == two.digest
    assert len({one.digest, other.digest, renamed.digest}) == 3


# --- making, keeping, finding out --------------------------------------------------------------------------------


def test_made_once_and_kept(made, place):
    again, was_made = artifact.build(order_at(place), must_not_run)
    assert not was_made
    assert again == made
    assert artifact.load(place) == made
    assert made.manifest.metrics == {"length": 3}


def test_the_manifest_lists_every_file_with_hash_and_size(made):
    listed = {entry.path: (entry.bytes, len(entry.sha256)) for entry in made.manifest.files}
    assert listed == {"file.txt": (3, 64), "folder/inner.bin": (2, 64)}


def test_the_manifest_holds_no_path_of_this_machine(made, place):
    assert str(place.parent.parent) not in (place / MANIFEST).read_text()


def test_another_order_makes_it_again(made, place):
    order = order_at(place, stage_version=2)
    assert artifact.lookup(order) == (None, "changed inputs or settings")
    again, was_made = artifact.build(order, writes("two"))
    assert was_made
    assert (place / "file.txt").read_text() == "two"
    assert again.digest != made.digest
    assert [path.name for path in place.parent.iterdir()] == ["thing"]


def test_what_is_new_is_said_to_be_new(place):
    assert artifact.lookup(order_at(place)) == (None, "new")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "changed": (lambda place: (place / "file.txt").write_text("eno"), "file.txt has sha256"),
    "grown": (lambda place: (place / "file.txt").write_text("one more"), "file.txt has 8 bytes, the manifest says 3"),
    "missing": (lambda place: (place / "folder" / "inner.bin").unlink(), "folder/inner.bin is missing"),
    "added": (lambda place: (place / "folder" / "new.txt").write_text(""), "folder/new.txt is not in the manifest"),
    "linked": (lambda place: (place / "link").symlink_to("file.txt"), "link is a link"),
    "linked folder": (lambda place: (place / "link").symlink_to("folder"), "link is a link"),
    "no manifest": (lambda place: (place / MANIFEST).unlink(), "not a finished artifact"),
    "manifest of noise": (lambda place: (place / MANIFEST).write_bytes(b"\xff{"), "manifest.json cannot be read"),
    "manifest of another schema": (lambda place: (place / MANIFEST).write_text("{}"), "manifest.json cannot be read"),
    "manifest edited": (
        lambda place: (place / MANIFEST).write_text((place / MANIFEST).read_text().replace("file.txt", "fool.txt")),
        "fool.txt is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_load_and_mended_by_build(damage, made, place):
    change, words = DAMAGES[damage]
    change(place)
    with pytest.raises(ArtifactError, match=words):
        artifact.load(place)
    found, reason = artifact.lookup(order_at(place))
    assert found is None
    assert words in reason

    again, was_made = artifact.build(order_at(place), writes())
    assert was_made
    assert again.digest == made.digest
    assert artifact.load(place) == again


def test_a_finder_file_is_no_damage(made, place):
    (place / ".DS_Store").write_bytes(b"\0")
    assert artifact.load(place) == made


def test_a_file_where_the_artifact_goes_is_replaced(place):
    place.parent.mkdir(parents=True)
    place.write_text("a file")
    assert artifact.build(order_at(place), writes())[1]
    assert artifact.build(order_at(place, stage_version=2), writes())[1]
    assert [path.name for path in place.parent.iterdir()] == ["thing"]


def test_a_stage_that_leaves_a_link_makes_nothing(place):
    def links(out: Path) -> Mapping[str, Any]:
        (out / "link").symlink_to("/etc/hostname")
        return {}

    with pytest.raises(ArtifactError, match="plain files only"):
        artifact.build(order_at(place), links)
    assert list(place.parent.iterdir()) == []


# --- errors and kills --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_in_a_stage_leaves_the_old_artifact(error, made, place):
    before = content(place.parent)
    with pytest.raises(type(error)):
        artifact.build(order_at(place, stage_version=2), fails(error))
    assert content(place.parent) == before
    assert artifact.load(place) == made


def test_an_error_in_a_new_stage_leaves_nothing(place):
    with pytest.raises(ValueError, match="broken"):
        artifact.build(order_at(place), fails(ValueError("broken")))
    assert list(place.parent.iterdir()) == []


def in_a_process(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    """Start Python that builds `place`; in `body`, `ready()` tells the test and `hang()` waits to be killed."""
    script = f"""
import os, resource, signal, sys, threading
from pathlib import Path
from pipeline import artifact
from pipeline.artifact import Order
place = Path({str(tmp_path / "build" / "thing")!r})
order = Order(place, "stage", 1, {{"size": 3, "names": ["a", "b"]}}, {{"student": "abc"}}, {{"torch": "2.13.0"}})
def ready(): print("ready", flush=True)
def hang(): threading.Event().wait()
{body}
"""
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_when_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        process.kill()
    assert process.returncode == -signal.SIGKILL


HANGS_IN_MAKE = """
def make(out):
    (out / "file.txt").write_text("half")
    ready(); hang()
artifact.build(order, make)
"""


def test_killed_in_a_stage_nothing_is_there_and_the_next_build_sweeps(tmp_path, place):
    kill_when_ready(in_a_process(tmp_path, HANGS_IN_MAKE))
    assert not place.exists()
    left = list(place.parent.iterdir())
    assert [path.name.startswith(".thing.") for path in left] == [True]

    assert artifact.build(order_at(place), writes())[1]
    assert [path.name for path in place.parent.iterdir()] == ["thing"]


def test_killed_in_a_stage_the_old_artifact_stays_and_is_used(tmp_path, place):
    old = artifact.build(order_at(place, stage_version=9), writes("old"))[0]
    kill_when_ready(in_a_process(tmp_path, HANGS_IN_MAKE))
    assert artifact.load(place) == old
    assert not artifact.build(order_at(place, stage_version=9), must_not_run)[1]


# The second rename of `replace` is the one with the new artifact as its source.
HANGS_BETWEEN_RENAMES = """
rename = Path.rename
def hanging(self, target):
    if self.name.endswith(".new"): ready(); hang()
    return rename(self, target)
Path.rename = hanging
def make(out):
    (out / "file.txt").write_text("new")
    return {}
artifact.build(order, make)
"""


def test_killed_between_the_renames_the_old_artifact_comes_back(tmp_path, place):
    old = artifact.build(order_at(place, stage_version=9), writes("old"))[0]
    kill_when_ready(in_a_process(tmp_path, HANGS_BETWEEN_RENAMES))
    assert not place.exists()

    again, was_made = artifact.build(order_at(place, stage_version=9), must_not_run)
    assert (again, was_made) == (old, False)


def test_killed_between_the_renames_the_new_one_is_made_over_the_old(tmp_path, place):
    artifact.build(order_at(place, stage_version=9), writes("old"))
    kill_when_ready(in_a_process(tmp_path, HANGS_BETWEEN_RENAMES))
    assert artifact.build(order_at(place), writes("new"))[1]
    assert (place / "file.txt").read_text() == "new"
    assert [path.name for path in place.parent.iterdir()] == ["thing"]


# --- files and folders written aside -------------------------------------------------------------------------------


def test_a_file_written_aside_replaces_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "new folder" / "record.json"
    for text in ("first", "second"):
        with artifact.write_aside(path) as aside:
            aside.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
    assert [one.name for one in path.parent.iterdir()] == ["record.json"]


def test_what_killed_processes_left_beside_a_file_goes_with_the_next_and_what_is_being_written_stays(tmp_path):
    place = tmp_path / "models.json"
    dead, alive, other = (tmp_path / f".models.json.0123456{n}.new" for n in (1, 2, 3))
    for path in (dead, alive):
        path.write_text("half")
    other.mkdir()
    with alive.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        artifact.write_text(place, "whole")
    assert place.read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == [alive, other, place]


def test_a_folder_written_aside_replaces_the_old_one_whole(tmp_path):
    place = tmp_path / "model"
    for name in ("first", "second"):
        with artifact.write_aside(place) as aside:
            aside.mkdir()
            (aside / name).write_text(name)
    assert [one.name for one in place.iterdir()] == ["second"]
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def half_a_file(aside: Path) -> None:
    aside.write_text("half")


def half_a_folder(aside: Path) -> None:
    aside.mkdir()
    (aside / "file").write_text("half")


@pytest.mark.parametrize("write", [half_a_file, half_a_folder])
def test_writing_aside_that_fails_leaves_what_was_there(tmp_path, write):
    place = tmp_path / "place"
    place.write_text("old")

    def interrupted() -> None:
        with artifact.write_aside(place) as aside:
            write(aside)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert place.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["place"]


# --- full and forbidden places -----------------------------------------------------------------------------------

# A limit on file size stands for a full disk: the same write fails, with EFBIG for ENOSPC.
TOO_LARGE = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def make(out):
    (out / "file.txt").write_bytes(bytes(200_000))
    return {}
try: artifact.build(order, make)
except artifact.ArtifactError as error: print(error)
"""


def test_a_disk_that_is_full_is_said_so_and_the_old_artifact_stays(tmp_path, place):
    old = artifact.build(order_at(place, stage_version=9), writes("old"))[0]
    out, err = in_a_process(tmp_path, TOO_LARGE).communicate(timeout=60)
    assert "stage cannot write" in out, err
    assert "File too large" in out
    assert "Finished artifacts are untouched" in out
    assert artifact.load(place) == old
    assert [path.name for path in place.parent.iterdir()] == ["thing"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_no_space_left_on_the_device(place):
    def make(out: Path) -> Mapping[str, Any]:
        with Path("/dev/full").open("wb", buffering=0) as handle:
            handle.write(b"x")
        return {}

    with pytest.raises(ArtifactError, match="No space left on device"):
        artifact.build(order_at(place), make)


def test_a_place_below_a_file_is_an_artifact_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="stage cannot write"):
        artifact.build(order_at(tmp_path / "file" / "thing"), must_not_run)
    with pytest.raises(ArtifactError, match="Choose another folder with --build"), held(tmp_path / "file" / "x"):
        pass


# --- two runs at once --------------------------------------------------------------------------------------------


def held(folder: Path, *, waiting: Callable[[], None] = lambda: None) -> contextlib.AbstractContextManager[None]:
    return artifact.only_run(folder, waiting=waiting)


HOLDS = """
with artifact.only_run(place.parent, waiting=lambda: print("waits", flush=True)):
    ready(); sys.stdin.read()
"""


def test_a_second_run_waits_for_the_first_and_says_so(tmp_path):
    with held(tmp_path / "build"):
        second = in_a_process(tmp_path, HOLDS)
        assert second.stdout is not None
        assert second.stdout.readline() == "waits\n"
    with second:
        assert second.stdout.readline() == "ready\n"
        second.kill()


def test_a_lock_ends_with_its_process_however_it_ends(tmp_path):
    kill_when_ready(in_a_process(tmp_path, "with artifact.only_run(place.parent, waiting=ready): ready(); hang()"))
    told: list[str] = []
    with held(tmp_path / "build", waiting=lambda: told.append("waited")):
        assert told == []


COUNTS = """
def make(out):
    print("made", flush=True)
    (out / "file.txt").write_text(str(os.getpid()))
    threading.Event().wait(0.3)
    return {}
with artifact.only_run(place.parent, waiting=lambda: None):
    artifact.build(order, make)
"""


def test_two_runs_at_once_make_a_thing_once(tmp_path, place):
    both = [in_a_process(tmp_path, COUNTS) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted(out for out, _ in outputs) == ["", "made\n"]
    assert artifact.load(place)


def test_the_manifest_is_written_last(place, monkeypatch):
    seen = []

    def make(out: Path) -> Mapping[str, Any]:
        seen.append((out / MANIFEST).exists())
        return writes()(out)

    artifact.build(order_at(place), make)
    assert seen == [False]
    assert json.loads((place / MANIFEST).read_text())["stage"] == "stage"
    assert os.stat(place / MANIFEST).st_mtime_ns >= os.stat(place / "file.txt").st_mtime_ns
