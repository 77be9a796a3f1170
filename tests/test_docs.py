"""README and docs/: what they name exists, their recipes are valid, and every command in them is run somewhere."""

import json
import tomllib
from pathlib import Path

import pytest
import typer
from conftest import REPOSITORY

from docs import commands, keys, links
from docs.commands import Form, Row
from pipeline import formats
from pipeline.cli.app import app
from pipeline.fronts.spec import Study
from pipeline.recipe import reference
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES

PAGES = commands.pages()
LIST = commands.read()


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def test_what_is_known_of_untried_units_stands_as_apps_say_it() -> None:
    lines = (REPOSITORY / "docs" / "formats.md").read_text(encoding="utf-8").splitlines()
    for scheme in SCHEMES.values():
        for backend, support in scheme.support.items():
            for known in support.untried_units.values():
                (line,) = [line for line in lines if known in line]
                assert f"`{scheme.name}`" in line
                assert formats.get(backend).TITLE in line


# --- links, paths, modules ---------------------------------------------------------------------------------------


def test_everything_that_the_pages_name_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert links.main([]) == 0, capsys.readouterr().out


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository whose one page is right."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text("")
    (tmp_path / "pipeline" / "tasks.py").write_text("def get(): ...\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "picture.png").write_bytes(b"")
    (tmp_path / "docs" / "page.md").write_text(
        "# A page, `of` [two](page.md) words\n\n## Twice\n\n## Twice\n\n"
        "[here](#twice-1) [there](../README.md#top_of-it) ![it](picture.png) <https://example.org> [web](https://x.org/#a)\n"
        "`pipeline/tasks.py` `pipeline/*.py` `pipeline/` `pipeline.tasks.get` `[link](in-code.md)`\n\n"
        "```sh\npython -m pipeline.tasks   # [not a link](in-a-block.md)\n```\n\n"
        "```python\nfrom pipeline.tasks import get\n```\n\n[reference]: page.md#a-page-of-two-words\n"
    )
    (tmp_path / "README.md").write_text("# Top_of it\n\n[page](docs/page.md#a-page-of-two-words)\n")
    return tmp_path


def test_a_page_that_is_right_passes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert links.main(["--root", str(tree)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a](gone.md)", "link gone.md: gone.md does not exist"),
        ("![a](gone.png)", "link gone.png: gone.png does not exist"),
        ("[a](../README.md#gone)", "link ../README.md#gone: README.md has no heading #gone"),
        ("[a](#gone)", "link #gone: page.md has no heading #gone"),
        ("[a](#twice-2)", "link #twice-2: page.md has no heading #twice-2"),
        ("[reference]: gone.md", "link gone.md: gone.md does not exist"),
        ("[a](/README.md)", "link /README.md leaves the repository"),
        ("[a](../../elsewhere.md)", "link ../../elsewhere.md leaves the repository"),
        ("`pipeline/gone.py`", "`pipeline/gone.py` does not exist"),
        ("`pipeline/*.toml`", "`pipeline/*.toml` does not exist"),
        ("`pipeline.gone`", "`pipeline.gone`: there is no such module, and no such name in one"),
        ("`pipeline.tasks.gone`", "`pipeline.tasks.gone`: there is no such module, and no such name in one"),
        ("```sh\npython -m pipeline.gone\n```", "-m pipeline.gone: there is no such module"),
        ("```python\nfrom pipeline.tasks import get, gone\n```", "import of pipeline.tasks.gone: there is no such"),
    ],
)
def test_what_is_not_there_is_named(text: str, says: str, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tree / "docs" / "page.md"
    page.write_text(f"{page.read_text()}\n{text}\n")
    assert links.main(["--root", str(tree)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"docs/page.md: {says}")


def test_the_log_may_name_what_is_gone_but_not_link_to_it(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tree / "benchmarks" / "LOG.md"
    log.parent.mkdir()
    log.write_text("`pipeline/gone.py`\n")
    assert links.main(["--root", str(tree)]) == 0, capsys.readouterr().out
    log.write_text("[a](gone.md)\n")
    assert links.main(["--root", str(tree)]) == 1


def test_pictures_are_small() -> None:
    assert not [file.name for file in (REPOSITORY / "docs").glob("*.png") if file.stat().st_size > 200_000]


# --- keys and recipes --------------------------------------------------------------------------------------------


def test_the_generated_parts_of_pages_are_those_of_the_code() -> None:
    assert keys.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("name", "here", "wrong"),
    [
        ("recipes.md", "`max_length`", "`longest`"),
        ("students.md", "`mpnet`", "`mp`"),
        ("verification.md", "`int8_dynamic`", "`int8`"),
    ],
)
def test_a_page_that_is_older_than_the_code_fails_and_is_mended(
    name: str, here: str, wrong: str, tmp_path: Path
) -> None:
    right = {page: (keys.DOCS / page).read_text(encoding="utf-8") for page in keys.PAGES}
    stale = right | {name: right[name].replace(f"| {here} |", f"| {wrong} |")}
    assert stale != right
    for page, text in stale.items():
        (tmp_path / page).write_text(text, encoding="utf-8")
    assert keys.main(["--check"], tmp_path) == 1
    assert (tmp_path / name).read_text(encoding="utf-8") == stale[name]
    assert keys.main([], tmp_path) == 0
    assert {page: (tmp_path / page).read_text(encoding="utf-8") for page in keys.PAGES} == right


@pytest.mark.parametrize("of", [Recipe, Study])
def test_every_key_says_what_it_means(of: type[Recipe] | type[Study]) -> None:
    keys = [(section.name, key) for section in reference.sections(of).values() for key in section.keys]
    assert [f"{section}.{key.name}" for section, key in keys if not key.meaning] == []


def test_every_section_and_key_is_on_the_page() -> None:
    text = "\n".join(keys.key_lines())
    for field in Recipe.model_fields:
        assert f"| `{field}` |" in text


def test_each_key_is_named_in_its_section_and_stands_once_where_sections_share_it() -> None:
    parts = {part.partition("`")[0]: part for part in "\n".join(keys.key_lines()).split("\n### `[")[1:]}
    parts = {title.partition("]")[0]: part for title, part in parts.items()}
    for section in reference.sections().values():
        if section.name != reference.TOP:
            missing = [key.name for key in section.keys if f"`{key.name}`" not in parts[section.name]]
            assert not missing, section.name
    assert "| `gradient_accumulation` |" in parts["train"]
    assert "As in [`[train]`](#train): `epochs`" in parts["head"]
    for name in ("head", "distil", "quantize.training"):
        assert "| `gradient_accumulation` |" not in parts[name]
    # A default of its own is said where it holds.
    assert "| `learning_rate` | number > 0, &lt; 1 | `0.001` |" in parts["head"]


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{name_of(page)}:{number}", block)
        for page in PAGES
        for number, (kind, block) in enumerate(commands.FENCE.findall(page.read_text(encoding="utf-8")))
        if kind == "toml"
    ]


@pytest.mark.parametrize(("place", "block"), blocks(), ids=[place for place, _ in blocks()])
def test_a_recipe_on_a_page_is_one(place: str, block: str) -> None:
    """Whole recipes and studies as they are, and sections in one that has nothing else."""
    values = tomllib.loads(block)
    if place.startswith("docs/studies.md") and "task" not in values:
        of_study = {"name": "base", "recipe": "minilm", "space": {"prune.compute": [0.5]}}
        Study.model_validate(of_study | values)
        return
    base = {
        "name": "base",
        "task": "classification",
        "student": {"source": "bundled:all-MiniLM-L6-v2"},
        "targets": {"litert": {"schemes": ["fp32"]}},
    }
    Recipe.model_validate(base | values)


# --- commands ----------------------------------------------------------------------------------------------------


def covered(form: Form) -> bool:
    return any(known.covers(form) for row in LIST for known in row.forms())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_a_page_is_in_the_list(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [form for line in commands.documented(text) for form in commands.forms(line)]
    assert not [str(form) for form in found if not covered(form)]
    if commands.snippets(text):
        assert any(f"--snippets {name_of(page)}" in line for row in LIST for line in row.run)


def test_every_target_of_the_makefile_is_in_the_list() -> None:
    targets = commands.make_targets((REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    assert {"run", "peers", "commands", "distclean"} <= set(targets)
    assert not [name for name in targets if not covered(Form(f"make {name}"))]


def test_every_verb_is_in_the_list() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    names = [f"{name} {sub}".strip() for name, verb in verbs.items() for sub in getattr(verb, "commands", [""])]
    assert {"run", "mil ops", "predict"} <= set(names)
    assert not [name for name in names if not covered(Form(f"pocketbert {name}"))]


def test_the_list_is_whole() -> None:
    names = {row.name for row in LIST if row.name}
    for row in LIST:
        assert bool(row.run) != bool(row.names and row.by), row
        assert bool(row.run) == bool(row.seconds), row
        assert set(row.after) <= names, row
        if row.by:
            file, _, test = row.by.partition("::")
            assert f"def {test}(" in (REPOSITORY / file).read_text(encoding="utf-8") or not test, row


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "POCKETBERT_DATA=~/data .venv/bin/pocketbert push a b/c --no-dry-run   # it goes",
            ["pocketbert push --no-dry-run"],
        ),
        ("make check test JOBS=2", ["make check JOBS", "make test JOBS"]),
        ("pocketbert mil ops a/b", ["pocketbert mil ops"]),
        ("python -m pipeline keys prune", ["pocketbert keys"]),
        ("accelerate launch --cpu -m pipeline.train x --out=y", ["accelerate launch -m pipeline.train --cpu --out"]),
        ("make VERB RECIPE=my.toml", []),
        ("# a remark", []),
    ],
)
def test_a_line_of_shell_is_taken_apart(line: str, found: list[str]) -> None:
    assert [str(form) for form in commands.forms(line)] == found


def test_a_flag_that_no_row_gives_is_not_covered() -> None:
    assert covered(Form("pocketbert init", frozenset({"--output"})))
    assert not covered(Form("pocketbert init", frozenset({"--no-such-flag"})))
    assert not covered(Form("pocketbert no-such-verb"))


@pytest.mark.toolchain
def test_the_walk_runs_each_command_and_tells_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself, on a list of its own: what works, what fails, what hangs, what cannot run here."""
    table = tmp_path / "list.toml"
    table.write_text(
        '[[command]]\nrun = ["make recipes", "test -f student/config.json"]\nseconds = 60\n'
        '[[command]]\nname = "bad"\nrun = ["make plan RECIPE=gone.toml"]\nseconds = 60\n'
        '[[command]]\nrun = ["sleep 60"]\nseconds = 1\n'
        '[[command]]\nafter = ["bad"]\nrun = ["echo never"]\nseconds = 5\nneeds = ["no_such_module"]\n'
        '[[command]]\nnames = ["make test"]\nby = ".ci/run"\n'
    )
    given = ["--list", str(table), "--sandbox", str(tmp_path / "sandbox"), "--json"]
    assert commands.main(given) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"ok": 2, "FAILED": 2, "not run": 1}
    refused, hung, absent = document["commands"][2:]
    assert "exit code 2" in refused["why"]
    assert "gone.toml" in refused["why"]
    assert hung["why"].startswith("out of time")
    assert hung["seconds"] < 20
    assert absent["why"] == "no_such_module not installed"


def test_only_takes_a_row_and_what_it_comes_after() -> None:
    rows = [Row(run=("a",), name="first"), Row(run=("b",)), Row(run=("c d",), after=("first",)), Row(names=("e",))]
    assert commands.chosen(rows, ["c d"]) == [rows[0], rows[2]]
    assert commands.chosen(rows, []) == rows[:3]
    with pytest.raises(SystemExit, match=r"no command of .* contains this"):
        commands.chosen(rows, ["gone"])
