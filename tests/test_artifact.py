"""Artifacts are whole or not there: keys, tampering, kills at any moment, full disks, two runs at once."""

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

from pipeline import artifact, atomic
from pipeline.artifact import MANIFEST, Artifact, Spec
from pipeline.errors import ArtifactError
from pipeline.execution import store
from pipeline.execution.store import Store

SPEC = Spec("stage", 1, {"size": 3, "names": ["a", "b"]}, {"student": "abc"}, {"torch": "2.13.0"})
OLD = replace(SPEC, stage_version=9)


def writes(text: str = "one", name: str = "file.txt") -> Callable[[Path], Mapping[str, Any]]:
    """Return a stage that writes a file, one of them in a folder, and gives a metric."""

    def make(out: Path) -> Mapping[str, Any]:
        (out / name).parent.mkdir(exist_ok=True)
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
def kept(tmp_path: Path) -> Store:
    return Store(tmp_path / "build")


def get(kept: Store, spec: Spec, make: Callable[[Path], Mapping[str, Any]]) -> tuple[Artifact, bool]:
    """Return the artifact of a spec as `push` and `compat` do, with a view `own/thing`."""
    return kept.get(spec, kept.build / "own" / "thing", make, waiting=lambda: None)


def names(kept: Store) -> list[str]:
    """Return the names in a store, but for the folders of its own."""
    own = {".locks", ".runs", ".used"}
    return [path.name for path in kept.root.iterdir() if path.name not in own]


@pytest.fixture
def made(kept: Store) -> Artifact:
    return get(kept, SPEC, writes())[0]


# --- keys --------------------------------------------------------------------------------------------------------

INGREDIENTS: dict[str, Any] = {
    "stage": "other",
    "stage_version": 2,
    "params": {"size": 4, "names": ["a", "b"]},
    "inputs": {"student": "abd"},
    "tools": {"torch": "2.13.1"},
}


@pytest.mark.parametrize("ingredient", INGREDIENTS)
def test_each_ingredient_changes_the_key(ingredient):
    assert replace(SPEC, **{ingredient: INGREDIENTS[ingredient]}).key != SPEC.key


def test_every_field_of_a_spec_that_decides_content_is_an_ingredient():
    """Not how its content counts for what is made of it."""
    assert set(INGREDIENTS) == set(Spec.__dataclass_fields__) - {"inexact_files"}


def test_neither_time_nor_order_of_keys_changes_the_key(tmp_path, monkeypatch):
    first = replace(SPEC, params={"size": 3, "names": ["a"]}).key
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.chdir(tmp_path)
    assert replace(SPEC, params={"names": ["a"], "size": 3}).key == first


def test_the_order_of_a_list_is_content():
    assert replace(SPEC, params={"names": ["a", "b"]}).key != replace(SPEC, params={"names": ["b", "a"]}).key


def test_the_schema_version_is_part_of_the_key(monkeypatch):
    before = replace(SPEC).key
    monkeypatch.setattr(artifact, "SCHEMA_VERSION", artifact.SCHEMA_VERSION + 1)
    assert replace(SPEC).key != before


def test_a_parameter_that_is_not_a_number_is_no_key():
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = replace(SPEC, params={"bound": float("nan")}).key


def test_the_digest_is_that_of_the_content_alone(tmp_path):
    def built(name: str, make: Callable[[Path], Mapping[str, Any]], **changes: Any) -> Artifact:
        return Artifact(tmp_path / name, store.make(tmp_path / name, replace(SPEC, **changes), make, []))

    one, two = built("one", writes()), built("two", writes(), params={})
    other, renamed = built("three", writes("other")), built("four", writes(name="renamed.txt"))
    assert one.digest == two.digest
    assert len({one.digest, other.digest, renamed.digest}) == 3


# --- making, keeping, finding out --------------------------------------------------------------------------------


def test_made_once_and_kept(made, kept):
    again, was_made = get(kept, SPEC, must_not_run)
    assert not was_made
    assert again == made
    assert artifact.load(made.path) == made
    assert made.manifest.metrics == {"length": 3}
    assert (kept.build / "own" / "thing").resolve() == made.path


def test_the_manifest_lists_every_file_with_hash_and_size(made):
    listed = {entry.path: (entry.bytes, len(entry.sha256)) for entry in made.manifest.files}
    assert listed == {"file.txt": (3, 64), "folder/inner.bin": (2, 64)}


def test_a_manifest_below_is_a_file_like_any_other(kept):
    """As in a bundle, whose targets are artifacts of their own."""
    found, _ = get(kept, SPEC, writes(name=f"below/{MANIFEST}"))
    assert f"below/{MANIFEST}" in {entry.path for entry in found.manifest.files}
    (found.path / "below" / MANIFEST).write_text("eno")
    with pytest.raises(ArtifactError, match=f"below/{MANIFEST} has sha256"):
        artifact.load(found.path)


def test_the_manifest_holds_no_path_of_this_machine(made, tmp_path):
    assert str(tmp_path) not in (made.path / MANIFEST).read_text()


def test_another_spec_is_made_beside_it_and_shown_instead(made, kept):
    again, was_made = get(kept, OLD, writes("two"))
    assert was_made
    assert (kept.build / "own" / "thing" / "file.txt").read_text() == "two"
    assert again.digest != made.digest
    assert sorted(names(kept)) == kept.keys() == sorted([SPEC.key, OLD.key])


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
def test_damage_is_refused_by_load_and_mended_by_the_store(damage, made, kept):
    change, words = DAMAGES[damage]
    change(made.path)
    with pytest.raises(ArtifactError, match=words):
        artifact.load(made.path)
    assert words in str(kept.damage(SPEC))

    again, was_made = get(kept, SPEC, writes())
    assert was_made
    assert again.digest == made.digest
    assert artifact.load(made.path) == again
    assert names(kept) == [SPEC.key]


def test_a_finder_file_is_no_damage(made):
    (made.path / ".DS_Store").write_bytes(b"\0")
    assert artifact.load(made.path) == made


def test_a_file_in_the_place_of_an_artifact_is_replaced(kept):
    kept.root.mkdir(parents=True)
    kept.place(SPEC.key).write_text("a file")
    assert get(kept, SPEC, writes())[1]
    assert names(kept) == [SPEC.key]


def test_a_stage_that_leaves_a_link_makes_nothing(kept):
    def links(out: Path) -> Mapping[str, Any]:
        (out / "link").symlink_to("/etc/hostname")
        return {}

    with pytest.raises(ArtifactError, match="plain files only"):
        get(kept, SPEC, links)
    assert names(kept) == []


# --- errors and kills --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_in_a_stage_leaves_what_was_finished_and_shown(error, made, kept):
    before = content(kept.place(SPEC.key))
    with pytest.raises(type(error)):
        get(kept, OLD, fails(error))
    assert content(kept.build / "own" / "thing") == before
    assert names(kept) == [SPEC.key]
    assert artifact.load(made.path) == made


def test_an_error_while_damage_is_mended_leaves_the_damaged(made, kept):
    (made.path / "file.txt").write_text("eno")
    with pytest.raises(ValueError, match="broken"):
        get(kept, SPEC, fails(ValueError("broken")))
    assert (made.path / "file.txt").read_text() == "eno"
    assert names(kept) == [SPEC.key]


def in_a_process(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    """Start Python with a store; in `body`, `ready()` tells the test and `hang()` waits to be killed."""
    script = f"""
import os, resource, signal, sys, threading
from pathlib import Path
from pipeline.artifact import Spec
from pipeline.errors import ArtifactError
from pipeline.execution.store import Store
kept = Store(Path({str(tmp_path / "build")!r}))
spec = {SPEC!r}
def ready(): print("ready", flush=True)
def hang(): threading.Event().wait()
def get(make): kept.get(spec, kept.build / "own" / "thing", make, waiting=lambda: print("waits", flush=True))
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
get(make)
"""
HANGS_BEFORE_ITS_PLACE = """
rename = Path.replace
def hanging(self, target):
    if self.name.endswith(".new"): ready(); hang()
    return rename(self, target)
Path.replace = hanging
def make(out):
    (out / "file.txt").write_text("new")
    return {}
get(make)
"""


@pytest.mark.parametrize("hangs", [HANGS_IN_MAKE, HANGS_BEFORE_ITS_PLACE], ids=["in the stage", "before the rename"])
def test_killed_nothing_half_made_is_there_and_the_next_run_sweeps(hangs, tmp_path, kept):
    old = get(kept, OLD, writes("old"))[0]
    kill_when_ready(in_a_process(tmp_path, hangs))
    assert kept.keys() == [OLD.key]
    assert len(names(kept)) == 2
    assert artifact.load(kept.build / "own" / "thing").manifest == old.manifest

    assert not get(kept, OLD, must_not_run)[1]
    assert names(kept) == [OLD.key]
    assert get(kept, SPEC, writes())[1]


def test_killed_after_the_rename_it_is_finished(tmp_path, kept):
    body = """
def finished(self, key): ready(); hang()
Store.finished = finished
get(lambda out: {"bytes": (out / "file.txt").write_text("new")})
"""
    kill_when_ready(in_a_process(tmp_path, body))
    found, was_made = get(kept, SPEC, must_not_run)
    assert not was_made
    assert not found.path.stat().st_mode & 0o222


# --- files and folders written aside -------------------------------------------------------------------------------


def test_a_file_written_aside_replaces_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "new folder" / "record.json"
    for text in ("first", "second"):
        with atomic.write_aside(path) as aside:
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
        atomic.write_text(place, "whole")
    assert place.read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == [alive, other, place]


def test_a_folder_written_aside_replaces_the_old_one_whole(tmp_path):
    place = tmp_path / "model"
    for name in ("first", "second"):
        with atomic.write_aside(place) as aside:
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
        with atomic.write_aside(place) as aside:
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
try: get(make)
except ArtifactError as error: print(error)
"""


def test_a_disk_that_is_full_is_said_so_and_what_is_finished_stays(tmp_path, kept):
    old = get(kept, OLD, writes("old"))[0]
    out, err = in_a_process(tmp_path, TOO_LARGE).communicate(timeout=60)
    assert "stage: " in out, err
    assert "cannot be written: File too large" in out
    assert "Finished artifacts are untouched" in out
    assert artifact.load(old.path) == old
    assert names(kept) == [OLD.key]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_no_space_left_on_the_device(kept):
    def make(out: Path) -> Mapping[str, Any]:
        with Path("/dev/full").open("wb", buffering=0) as handle:
            handle.write(b"x")
        return {}

    with pytest.raises(ArtifactError, match=r"no space left on \S+store: stage: .*: No space left on device"):
        get(kept, SPEC, make)


def test_a_place_below_a_file_is_an_artifact_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"stage: \S+ cannot be written: File exists"):
        store.make(tmp_path / "file" / "thing", SPEC, must_not_run, [])
    with pytest.raises(ArtifactError, match="Choose another folder with --build"):
        get(Store(tmp_path / "file" / "build"), SPEC, must_not_run)


# --- two runs at once --------------------------------------------------------------------------------------------


def test_of_two_runs_at_once_the_second_waits_says_so_and_takes_what_the_first_made(tmp_path, kept):
    counts = """
def make(out):
    ready()
    while not Path(kept.build, "go").exists(): threading.Event().wait(0.05)
    return {"length": (out / "file.txt").write_text(str(os.getpid()))}
get(make)
"""
    first = in_a_process(tmp_path, counts)
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    second = in_a_process(tmp_path, counts)
    assert second.stdout is not None
    assert second.stdout.readline() == "waits\n"
    (kept.build / "go").touch()
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert [out for out, _ in outputs] == ["", ""]
    assert (kept.place(SPEC.key) / "file.txt").read_text() == str(first.pid)


def test_a_lock_ends_with_its_process_however_it_ends(tmp_path, kept):
    kill_when_ready(in_a_process(tmp_path, "with kept.making(spec.key): ready(); hang()"))
    with kept.making(SPEC.key) as alone:
        assert alone


def test_the_manifest_is_written_last(kept):
    seen = []

    def make(out: Path) -> Mapping[str, Any]:
        seen.append((out / MANIFEST).exists())
        return writes()(out)

    place = get(kept, SPEC, make)[0].path
    assert seen == [False]
    assert json.loads((place / MANIFEST).read_text())["stage"] == "stage"
    assert os.stat(place / MANIFEST).st_mtime_ns >= os.stat(place / "file.txt").st_mtime_ns
