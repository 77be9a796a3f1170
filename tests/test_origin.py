"""Where a model is opened: here if this user's store made it or a trusted key signed it, else in its own process."""

import shutil
from pathlib import Path

import pytest
from conftest import TinyLine
from test_hostile import copied_model, make_whole

import pipeline
from pipeline import artifact
from pipeline.convert.isolated import IsolatedModel
from pipeline.convert.model import Model
from pipeline.errors import ArtifactError
from pipeline.execution import store
from pipeline.trust import origin

TEXTS = ["Where is my parcel?"]


@pytest.fixture
def own(tiny_line: TinyLine, tmp_path: Path) -> Path:
    """A copy of a model that the store made, to change."""
    return copied_model(tiny_line.folder / "litert-fp32" / "model", tmp_path / "model")


def opened(folder: Path) -> type:
    """Return how a folder is opened."""
    with pipeline.load(folder) as model:
        model.predict(TEXTS)
        return type(model)


def test_a_copy_of_what_the_store_made_is_opened_here(own: Path) -> None:
    assert origin.is_own(own)
    assert opened(own) is Model


def test_a_folder_with_another_manifest_has_a_process_of_its_own(own: Path) -> None:
    """Its hashes fit, so only the mark tells that somebody else wrote them."""
    (own / "more.txt").write_text("more")
    with pytest.raises(ArtifactError, match=r"more\.txt is not in the manifest"):
        pipeline.load(own)
    make_whole(own)
    assert not origin.is_own(own)
    assert opened(own) is IsolatedModel


def test_a_mark_says_nothing_about_another_folder(own: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(own, tmp_path / "other"))
    make_whole(other)
    shutil.copyfile(own / artifact.ORIGIN, other / artifact.ORIGIN)
    assert not origin.is_own(other)


@pytest.mark.parametrize("mark", [b"", b"0" * 64, b"\xff" * 64, b"a" * 100_000])
def test_a_mark_of_nonsense_is_none(mark: bytes, own: Path) -> None:
    (own / artifact.ORIGIN).write_bytes(mark)
    assert not origin.is_own(own)


def test_another_user_s_mark_is_none(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not origin.is_own(own)
    key = tmp_path / "state" / "pocketbert" / "origin.key"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    origin.mark(own)
    assert origin.is_own(own)
    assert key.read_bytes() == before


def test_without_a_place_for_the_key_nothing_is_marked(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (own / artifact.ORIGIN).unlink()
    origin.mark(own)
    assert not (own / artifact.ORIGIN).exists()
    assert not origin.is_own(own)


def test_a_key_that_was_cut_off_is_no_key(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "pocketbert").mkdir()
    (tmp_path / "pocketbert" / "origin.key").write_bytes(b"short")
    origin.mark(own)
    assert not origin.is_own(own)


def test_the_store_marks_what_it_makes_and_nothing_else(tmp_path: Path) -> None:
    spec = artifact.Spec("write", 1, {}, {}, {})

    def write(out: Path) -> dict[str, int]:
        return {"bytes": (out / "file").write_text("text")}

    place = tmp_path / "key"
    store.make(place, spec, write, [])
    assert origin.is_own(place)
    # The same artifact, put into the store by somebody else.
    (place / artifact.ORIGIN).unlink()
    store.make(place, spec, write, [])
    assert not origin.is_own(place)
