"""Where a model is opened: here if this user's store made it or a trusted key signed it, else in its own process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TinyLine
from test_hostile import copied_model, make_whole

import pipeline
from pipeline import artifact, formats, mil, strict
from pipeline.convert.isolated import IsolatedModel
from pipeline.convert.model import Model
from pipeline.errors import ArtifactError
from pipeline.execution import store
from pipeline.formats.executorch.reader import _Program
from pipeline.trust import origin

TEXTS = ["Where is my parcel?"]


@pytest.fixture
def own(tiny_line: TinyLine, tmp_path: Path) -> Path:
    """A copy of a model that the store made, to change."""
    return copied_model(tiny_line.folder / "litert-fp32" / "model", tmp_path / "model")


def is_own(folder: Path) -> bool:
    return origin.is_own(artifact.load(folder))


def opened(folder: Path) -> type:
    """Return how a folder is opened."""
    with pipeline.load(folder) as model:
        model.predict(TEXTS)
        return type(model)


def test_a_copy_of_what_the_store_made_is_opened_here(own: Path) -> None:
    assert is_own(own)
    assert opened(own) is Model


def test_a_folder_with_another_manifest_has_a_process_of_its_own(own: Path) -> None:
    """Its hashes fit, so only the mark tells that somebody else wrote them."""
    (own / "more.txt").write_text("more")
    with pytest.raises(ArtifactError, match=r"more\.txt is not in the manifest"):
        pipeline.load(own)
    make_whole(own)
    assert not is_own(own)
    assert opened(own) is IsolatedModel


def test_a_mark_says_nothing_about_another_folder(own: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(own, tmp_path / "other"))
    (other / "more.txt").write_text("more")
    make_whole(other)
    shutil.copyfile(own / artifact.ORIGIN, other / artifact.ORIGIN)
    assert not is_own(other)


@pytest.mark.parametrize("mark", [b"", b"0" * 64, b"\xff" * 64, b"a" * 100_000])
def test_a_mark_of_nonsense_is_none(mark: bytes, own: Path) -> None:
    (own / artifact.ORIGIN).write_bytes(mark)
    assert not is_own(own)


def test_another_user_s_mark_is_none(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not is_own(own)
    key = tmp_path / "state" / "pocketbert" / "origin.key"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    origin.mark(own)
    assert is_own(own)
    assert key.read_bytes() == before


def test_without_a_place_for_the_key_nothing_is_marked(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (own / artifact.ORIGIN).unlink()
    origin.mark(own)
    assert not (own / artifact.ORIGIN).exists()
    assert not is_own(own)


def test_a_key_that_was_cut_off_is_no_key(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "pocketbert").mkdir()
    (tmp_path / "pocketbert" / "origin.key").write_bytes(b"short")
    origin.mark(own)
    assert not is_own(own)


def test_the_store_marks_what_it_makes_and_nothing_else(tmp_path: Path) -> None:
    spec = artifact.Spec("write", 1, {}, {}, {})

    def write(out: Path) -> dict[str, int]:
        return {"bytes": (out / "file").write_text("text")}

    place = tmp_path / "key"
    store.make(place, spec, write, [])
    assert is_own(place)
    # The same artifact, put into the store by somebody else.
    (place / artifact.ORIGIN).unlink()
    store.make(place, spec, write, [])
    assert not is_own(place)


# --- folders that somebody prepared -----------------------------------------------------------------------------------


def test_a_pipe_or_a_link_in_the_place_of_a_mark_is_not_read(own: Path, tmp_path: Path) -> None:
    place = own / artifact.ORIGIN
    place.rename(tmp_path / "mark")
    place.symlink_to(tmp_path / "mark")
    with pytest.raises(ArtifactError, match="is a link"):
        pipeline.load(own)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(ArtifactError, match="is a device, pipe or socket"):
        pipeline.load(own)
    assert not origin.is_own(artifact.Artifact(own, artifact.read_manifest(own)))


def test_a_key_that_others_may_read_is_no_key(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    origin.mark(own)
    assert is_own(own)
    (tmp_path / "pocketbert" / "origin.key").chmod(0o644)
    assert not is_own(own)


def test_a_relative_folder_of_state_is_ignored(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    origin.mark(own)
    assert not (tmp_path / "here").exists()
    assert (tmp_path / "home" / ".local" / "state" / "pocketbert" / "origin.key").is_file()


def test_a_file_that_is_listed_twice_is_refused_before_it_is_hashed(own: Path) -> None:
    manifest = artifact.read_manifest(own)
    artifact.write_manifest(own, manifest.model_copy(update={"files": [*manifest.files, manifest.files[0]]}))
    with pytest.raises(ArtifactError, match="the manifest lists a file twice"):
        pipeline.load(own)


def test_keys_without_end_are_counted_in_one_pass() -> None:
    keys = ",".join(f'"{number}": 0' for number in range(200_000))
    with pytest.raises(ValueError, match="199999: the key is there more than once"):
        strict.parse(f'{{{keys}, "199999": 1}}'.encode())


def test_a_vector_that_ends_outside_of_a_file_is_refused(tiny_line: TinyLine, tmp_path: Path) -> None:
    content = bytearray((tiny_line.folder / "executorch-fp32" / "model" / "model.pte").read_bytes())
    table = _Program.read(memoryview(content)).table
    slot = table.schema.tables["Program"]["execution_plan"].slot
    vtable = table.position - int.from_bytes(content[table.position : table.position + 4], "little", signed=True)
    at = table.position + int.from_bytes(content[vtable + slot : vtable + slot + 2], "little")
    start = at + int.from_bytes(content[at : at + 4], "little")
    content[start : start + 4] = b"\xff" * 4
    (tmp_path / "model.pte").write_bytes(content)
    with pytest.raises(ArtifactError, match="a vector of 4294967295 elements ends outside"):
        formats.get("executorch").inspect(tmp_path / "model.pte")


def test_a_model_folder_s_own_python_is_not_run(own: Path) -> None:
    """As the current folder, it came first on the path of the process that runs its file."""
    (own / "psutil.py").write_text(f"open({str(own / 'ran')!r}, 'w').close()")
    command = [sys.executable, "-c", "import pipeline; pipeline.load('.', isolated=True)"]
    environment = os.environ | {"PYTHONPATH": str(Path(pipeline.__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=own, env=environment, capture_output=True, text=True, check=False)
    assert "psutil.py is not in the manifest" in done.stderr
    make_whole(own)
    del environment["PYTHONSAFEPATH"]
    command[2] = f"import sys; sys.path.remove(''); {command[2]}"
    done = subprocess.run(command, cwd=own, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (own / "ran").exists()


def test_a_package_of_links_is_not_followed(tmp_path: Path) -> None:
    package = tmp_path / "model.mlpackage"
    package.mkdir()
    (package / "Manifest.json").write_text("{}")
    (package / "Data").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="is a link, a pipe or a device"):
        mil.read(package)
