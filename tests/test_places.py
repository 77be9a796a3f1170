"""Names in place of paths: recipes, models and reports by name; no message suggests what was refused."""

from pathlib import Path

import pytest
import tomli_w
from conftest import recipe_values

from pipeline.convert.model import model_folder
from pipeline.errors import InputError, RecipeError
from pipeline.execution.store import KEY_LENGTH
from pipeline.formats import signature
from pipeline.planning import cleaning, places
from pipeline.recipe import loading

BUILD = Path("build")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, in which the user stands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: Path, name: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(recipe_values(name=name)), encoding="utf-8")
    return file


def remembered(file: Path, name: str) -> Path:
    """Write a recipe and link it as a run does that made a student."""
    view = BUILD / name / "student"
    if not view.is_symlink():
        view.parent.mkdir(parents=True, exist_ok=True)
        view.symlink_to(f"../store/{'0' * KEY_LENGTH}")
    places.remember(places.recipe(str(write(file, name)), BUILD)[0], file, BUILD)
    return file


# --- recipes -----------------------------------------------------------------------------------------------------


def test_a_recipe_of_one_s_own_is_found_by_its_name_in_the_folder_one_stands_in() -> None:
    write(Path("recipe.toml"), "tickets")
    Path("pyproject.toml").write_text('[project]\nname = "tickets"\n')
    Path("noise.toml").write_bytes(b"\xff")
    found, file = places.recipe("tickets", BUILD)
    assert (found.name, file) == ("tickets", Path("recipe.toml"))


def test_a_recipe_that_was_run_is_found_from_its_folder_in_the_build_folder(here: Path) -> None:
    file = remembered(Path("elsewhere/mine.toml"), "tickets")
    for named in ("tickets", "build/tickets"):
        found, path = places.recipe(named, BUILD)
        assert (found.name, path) == ("tickets", here / file)
    # What the folder was made of goes before another file of that name.
    write(Path("copy.toml"), "tickets")
    assert places.recipe("tickets", BUILD)[1] == here / file


def test_where_a_folder_s_recipe_was_is_said() -> None:
    remembered(Path("elsewhere/mine.toml"), "tickets").unlink()
    said = r"build/tickets was made of elsewhere/mine\.toml, which no longer is a recipe of that name; name its file\."
    with pytest.raises(RecipeError, match=said):
        places.recipe("tickets", BUILD)


def test_a_link_that_leads_to_another_recipe_now_or_nowhere_counts_no_more() -> None:
    file = remembered(Path("elsewhere/mine.toml"), "tickets")
    write(file, "renamed")
    with pytest.raises(RecipeError, match=r"recipe 'tickets' does not exist; there are: .* Your own: renamed\."):
        places.recipe("tickets", BUILD)
    file.unlink()
    with pytest.raises(RecipeError, match=r"or a path to a .toml\. build/tickets was made of "):
        places.recipe("tickets", BUILD)
    assert places.recipe(str(write(Path("tickets.toml"), "tickets")), BUILD)[0].name == "tickets"


def test_two_recipes_of_one_name_are_both_named() -> None:
    write(Path("one.toml"), "tickets")
    write(Path("two.toml"), "tickets")
    with pytest.raises(RecipeError, match=r"have the name 'tickets': one\.toml, two\.toml\. Name the file"):
        places.recipe("tickets", BUILD)


def test_a_name_that_is_nearly_one_s_own_is_guessed() -> None:
    write(Path("recipe.toml"), "tickets")
    with pytest.raises(RecipeError, match="Did you mean 'tickets'"):
        places.recipe("ticket", BUILD)


def test_a_ready_recipe_is_the_ready_one_and_leaves_no_link() -> None:
    write(Path("minilm.toml"), "minilm")
    found, file = places.recipe("minilm", BUILD)
    assert file.parent == loading.RECIPES
    remembered(Path("mine/minilm.toml"), "minilm")
    assert (BUILD / "minilm" / places.LINK).is_symlink()
    places.remember(found, file, BUILD)
    assert not (BUILD / "minilm" / places.LINK).is_symlink()


def test_a_file_of_the_user_s_in_the_link_s_place_stays() -> None:
    theirs = BUILD / "tickets" / places.LINK
    theirs.parent.mkdir(parents=True)
    theirs.write_text("notes")
    remembered(Path("mine.toml"), "tickets")
    assert theirs.read_text() == "notes"


def test_clean_takes_the_link_and_not_the_recipe(here: Path) -> None:
    file = remembered(Path("mine.toml"), "tickets")
    found = cleaning._look(BUILD / "tickets", BUILD, set())
    assert found.ours == [BUILD / "tickets" / name for name in (places.LINK, "student")]
    assert found.kept == []
    assert file.is_file()


def test_a_run_that_made_nothing_leaves_no_link() -> None:
    file = write(Path("mine.toml"), "tickets")
    places.remember(places.recipe(str(file), BUILD)[0], file, BUILD)
    assert not BUILD.exists()


# --- models and reports ------------------------------------------------------------------------------------------


def model(target: str) -> Path:
    folder = BUILD / "tickets" / target / "model"
    folder.mkdir(parents=True)
    (folder / signature.SIGNATURE).write_text("{}")
    return folder


def test_a_model_goes_by_recipe_and_target_and_by_the_recipe_if_there_is_one() -> None:
    first = model("litert-fp32")
    for named in ("tickets", "tickets/litert-fp32", "tickets/litert-fp32/model"):
        assert places.model(Path(named), BUILD) == places.model(BUILD / named, BUILD) == first
    model("litert-fp16")
    with pytest.raises(InputError, match="tickets has several files: tickets/litert-fp16, tickets/litert-fp32"):
        places.model(Path("tickets"), BUILD)


@pytest.mark.parametrize(
    "named", ["build/minilm/litert-int8_dynamic/model", "build/tickets/litert-int8/model", "tickets/litert-int8"]
)
def test_no_message_suggests_the_path_that_it_refuses(named: str) -> None:
    with pytest.raises(InputError) as raised:
        model_folder(Path(named))
    assert str(raised.value).count(named) == 1
    assert "pocketbert run" in str(raised.value)


def test_a_model_that_is_not_there_names_those_that_are() -> None:
    there = model("litert-fp32")
    with pytest.raises(InputError, match=f"does not exist; there are: {there}"):
        places.model(Path("tickets/litert-int8"), BUILD)


def test_a_report_goes_by_the_recipe_its_folder_and_its_file() -> None:
    file = BUILD / "tickets" / "report" / "report.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    for named in ("tickets", "tickets/report", "build/tickets", str(file)):
        assert places.report(Path(named), BUILD) == file
    assert places.report(Path("nowhere"), BUILD) == Path("nowhere")
    file.unlink()
    with pytest.raises(InputError, match=r"build/tickets has no report\.json, nor has .* writes one"):
        places.report(Path("tickets"), BUILD)
