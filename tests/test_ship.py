"""Shipping into apps: all or nothing, side by side, and nothing of anybody else's is replaced."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY, Outcome, TinyLine

from docs import schemas
from pipeline import artifact
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError
from pipeline.recipe import loading
from pipeline.recipe.schema import Recipe
from pipeline.ship import apps, placing
from pipeline.ship.placing import INDEX, SHIPPED, Index

FP32 = Target("litert", "fp32")
PTE = Target("executorch", "fp32")


def ship(line: TinyLine, into: Path, *targets: Target, name: str = "tiny") -> None:
    recipe: Recipe = loading.read_recipe(str(line.recipe))[0]
    own = recipe.model_copy(update={"name": name})
    apps.ship(own, line.build, targets or (FP32,), into, allow_not_run=False, outdated={}, named="tiny")


def roots(into: Path) -> tuple[Path, Path]:
    return into / apps.ANDROID, into / apps.IOS


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_models_of_two_recipes_lie_side_by_side_under_one_index(tiny_line: TinyLine, tmp_path: Path) -> None:
    line = tiny_line.copy(tmp_path)
    into = tmp_path / "apps"
    ship(line, into, FP32, PTE)
    shutil.copytree(line.folder, line.build / "second", symlinks=True)
    ship(line, into, FP32, name="second")
    for root in roots(into):
        index = Index.model_validate_json((root / INDEX).read_bytes())
        assert [one.folder for one in index.models] == [
            "second/litert-fp32",
            "tiny/executorch-fp32",
            "tiny/litert-fp32",
        ]
        for one in index.models:
            said = json.loads((root / one.folder / SHIPPED).read_text())
            assert (one.digest, one.task, one.bytes) == (said["digest"], "embedding", said["bytes"])
            for entry in said["files"]:
                assert artifact.sha256_file(root / one.folder / entry["path"]) == entry["sha256"]


def test_a_core_ml_model_goes_to_ios_alone() -> None:
    assert apps.DESTINATIONS["coreml"] == (apps.IOS,)
    assert apps.DESTINATIONS.keys() == {"litert", "executorch", "coreml"}


def put_file(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("mine")


def put_beside(place: Path) -> None:
    (place / "notes.txt").write_text("mine")


def put_in_place(place: Path) -> None:
    place.parent.mkdir(parents=True)
    place.write_text("mine")


def put_pipe(place: Path) -> None:
    (place / "shipped.json").unlink()
    os.mkfifo(place / "shipped.json")


def put_link(place: Path) -> None:
    place.parent.mkdir(parents=True)
    (place.parent / "elsewhere").mkdir()
    place.symlink_to("elsewhere")


def put_empty_folder(place: Path) -> None:
    (place / "drafts").mkdir()


def put_edit(place: Path) -> None:
    with (place / "tokenizer.json").open("a") as handle:
        handle.write(" ")


def put_index(place: Path) -> None:
    place.parents[1].mkdir(parents=True)
    (place.parents[1] / INDEX).write_text('{"my":1}')


def put_index_link(place: Path) -> None:
    index = place.parents[1] / INDEX
    index.rename(index.with_name("mine.json"))
    index.symlink_to("mine.json")


def put_index_pipe(place: Path) -> None:
    (place.parents[1] / INDEX).unlink()
    os.mkfifo(place.parents[1] / INDEX)


def put_index_folder(place: Path) -> None:
    (place.parents[1] / INDEX).unlink()
    (place.parents[1] / INDEX).mkdir()


def put_old(place: Path) -> None:
    put_file(placing.old_of(place))


@pytest.mark.parametrize(
    ("put", "shipped_before", "message"),
    [
        (put_file, False, r"holds notes\.txt, which `pocketbert ship` did not put there"),
        (put_beside, True, r"holds notes\.txt, which `pocketbert ship` did not put there"),
        (put_in_place, False, "is a file, where a folder with the model should be"),
        (put_pipe, True, "which `pocketbert ship` did not put there"),
        (put_link, False, "is a link; models are shipped into plain folders"),
        (put_empty_folder, True, r"holds drafts, which `pocketbert ship` did not put there"),
        (put_edit, True, r"tokenizer\.json was changed after it was shipped"),
        (put_index, False, r"models\.json is no index that `pocketbert ship` wrote"),
        (put_index_link, True, r"models\.json is no index that `pocketbert ship` wrote"),
        (put_index_pipe, True, r"models\.json is no index that `pocketbert ship` wrote"),
        (put_index_folder, True, r"models\.json is no index that `pocketbert ship` wrote"),
        (put_old, True, r"\.litert-fp32\.old is not of `pocketbert ship`"),
    ],
)
def test_what_is_not_ours_is_refused_before_anything_changes(
    put: Callable[[Path], None], shipped_before: bool, message: str, tiny_line: TinyLine, tmp_path: Path
) -> None:
    into = tmp_path / "apps"
    if shipped_before:
        ship(tiny_line, into)
    put(roots(into)[1] / "tiny" / "litert-fp32")
    before = files(into)
    with pytest.raises(ArtifactError, match=message):
        ship(tiny_line, into)
    assert files(into) == before


def test_an_app_that_cannot_be_written_leaves_the_other_as_it_was(tiny_line: TinyLine, tmp_path: Path) -> None:
    into = tmp_path / "apps"
    ship(tiny_line, into, PTE)
    android, ios = roots(into)
    shutil.rmtree(ios)
    ios.write_text("a file where a folder should be")
    before = files(into)
    with pytest.raises(ArtifactError, match=r"The models in the apps are unchanged\."):
        ship(tiny_line, into, FP32, PTE)
    assert files(into) == before
    assert sorted(path.name for path in (android / "tiny").iterdir()) == ["executorch-fp32"]


def test_an_exchange_that_fails_half_way_is_taken_back(
    tiny_line: TinyLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "apps"
    ship(tiny_line, into)
    before = files(into)
    rename = Path.rename
    renamed = []

    def failing(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 4:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ArtifactError, match="No space left on device"):
        ship(tiny_line, into)
    monkeypatch.undo()
    assert files(into) == before


def test_what_a_killed_ship_left_is_swept_and_brought_back(tiny_line: TinyLine, tmp_path: Path) -> None:
    into = tmp_path / "apps"
    ship(tiny_line, into)
    folder = roots(into)[0] / "tiny"
    # Killed between its renames: the old model is aside, the new one hidden.
    (folder / "litert-fp32").rename(folder / ".litert-fp32.old")
    (folder / ".litert-fp32.0123abcd.new").mkdir()
    put_file(folder / ".mine.old")
    ship(tiny_line, into, PTE)
    assert sorted(path.name for path in folder.iterdir()) == [".mine.old", "executorch-fp32", "litert-fp32"]


@pytest.mark.parametrize("name", [".x.01234567.new", ".litert-fp32.01234567.new", ".litert-fp32.old"])
def test_what_a_user_keeps_under_a_hidden_name_is_not_swept(name: str, tiny_line: TinyLine, tmp_path: Path) -> None:
    into = tmp_path / "apps"
    for inside in ("draft.txt", SHIPPED):
        file = roots(into)[0] / "tiny" / name / inside
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    ship(tiny_line, into, PTE)
    assert file.read_text() == "mine"
    assert file.with_name("draft.txt").read_text() == "mine"


@pytest.mark.parametrize("number", range(1, 10))
def test_the_indexes_are_part_of_the_exchange(
    number: int, tiny_line: TinyLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "apps"
    ship(tiny_line, into)
    before = files(into)
    counted = 0

    def failing(move: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def moved(path: Path, target: Path) -> Path:
            nonlocal counted
            counted += 1
            if counted == number:
                raise OSError(28, "No space left on device")
            return move(path, target)

        return moved

    monkeypatch.setattr(Path, "rename", failing(Path.rename))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    # Four renames for a model that is there and one that is new, in two apps each, and the two indexes.
    if number <= 8:
        with pytest.raises(ArtifactError, match=r"The models in the apps are unchanged\."):
            ship(tiny_line, into, FP32, PTE)
        monkeypatch.undo()
        assert files(into) == before
    else:
        ship(tiny_line, into, FP32, PTE)
        assert counted == 8
    assert not [path for path in into.rglob(".*")]


def test_the_indexes_that_a_killed_ship_left_aside_are_removed_and_those_of_others_stay(
    tiny_line: TinyLine, tmp_path: Path
) -> None:
    into = tmp_path / "apps"
    ship(tiny_line, into)
    root = roots(into)[0]
    shutil.copy(root / INDEX, root / ".models.json.old")
    (root / ".models.json.01234567.new").write_bytes((root / INDEX).read_bytes()[:50])
    (root / ".models.json.89abcdef.new").write_text("mine")
    ship(tiny_line, into)
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [".models.json.89abcdef.new"]


def test_a_place_that_may_not_be_read_or_written_is_refused(
    tiny_line: TinyLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may be allowed everything, so the answers of the system are given here."""
    into = tmp_path / "apps"
    ship(tiny_line, into)
    before = files(into)
    place = roots(into)[1] / "tiny" / "litert-fp32"
    monkeypatch.setattr(os, "access", lambda path, how: path != place)
    with pytest.raises(ArtifactError, match=r"litert-fp32 cannot be replaced: it may not be written"):
        ship(tiny_line, into)
    monkeypatch.undo()

    def walk(top: Path, onerror: Callable[[OSError], None]) -> list[object]:
        onerror(PermissionError(13, "Permission denied", str(top)))
        return []

    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(ArtifactError, match=r"Permission denied\. The models in the apps are unchanged"):
        ship(tiny_line, into)
    monkeypatch.undo()
    assert files(into) == before


def test_a_full_disk_is_named_with_what_is_missing_before_anything_is_copied(
    tiny_line: TinyLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "apps"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000))
    with pytest.raises(ArtifactError, match=r"no space left on \S+/model: the models need [\d.]+ MB, and 0\.0 MB are"):
        ship(tiny_line, into)
    assert not into.exists()


def test_a_link_above_the_apps_is_nobody_s_harm(tiny_line: TinyLine, tmp_path: Path) -> None:
    """Not even one that is named like the recipe."""
    (tmp_path / "project").mkdir()
    (tmp_path / "tiny").symlink_to("project")
    ship(tiny_line, tmp_path / "tiny" / "apps")
    assert (roots(tmp_path / "project" / "apps")[0] / INDEX).is_file()


@pytest.mark.parametrize("verb", ["ship", "push"])
def test_what_is_of_other_inputs_than_the_recipe_has_now_goes_only_when_told(
    verb: str, tiny_line: TinyLine, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    line = tiny_line.copy(tmp_path)
    arguments = [
        "--build",
        line.build,
        "--target",
        "litert:fp32",
        *(["--into", tmp_path / "apps"] if verb == "ship" else []),
    ]
    place = ["me/tiny"] if verb == "push" else []
    assert command_here(verb, line.recipe, *place, *arguments).rc == 0
    line.recipe.write_text(line.recipe.read_text().replace("    8,\n", ""))
    refused = command_here(verb, line.recipe, *place, *arguments)
    assert refused.rc == 2
    assert "with other inputs than the recipe has now (" in refused.stderr
    assert "--stale" in refused.stderr
    # As it was typed: the recipe's own name would be looked for among the ready ones.
    assert verb == "push" or f"`pocketbert run {line.recipe}`" in refused.stderr
    assert command_here(verb, line.recipe, *place, *arguments, "--stale").rc == 0


def test_the_schema_of_the_index_is_the_one_that_is_committed() -> None:
    committed = json.loads((REPOSITORY / "docs" / "schemas" / "models.schema.json").read_text())
    assert committed == schemas.schema(placing.Index)
