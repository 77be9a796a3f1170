"""Facts live at home: only an architecture's module, a format's folder or the table of schemes asks for a name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.architectures import ARCHITECTURES
from pipeline.schemes import BACKENDS, SCHEMES

PACKAGE = Path(__file__).resolve().parents[1] / "pipeline"
HOMES = ("architectures/", "formats/")
EXCEPTIONS = {
    # Types of numbers in MIL, and of training on a GPU, which schemes are named after.
    *((f"mil/{file}.py", name) for file in ("constants", "interpreter", "ops_arithmetic") for name in ("fp16", "fp32")),
    *((f"train/{file}.py", "fp16") for file in ("checks", "loop")),
    # What users type: the section of a recipe with its own keys, and the names of published recipes for losses.
    ("recipe/schema.py", "coreml"),
    ("recipe/losses.py", "distilbert"),
    # Which older releases of a runtime are tried.
    ("runtimes.py", "litert"),
    # The rows of the schemes answer for every format.
    *(("schemes/__init__.py", name) for name in BACKENDS),
    # What a guest without this package is handed, and what it needs.
    *(("devices/arm64_packages.py", name) for name in BACKENDS),
    *(("devices/arm64_guest.py", name) for name in BACKENDS),
}
"""By file, names that it may ask for, with the reason."""


def asked(tree: ast.AST) -> Iterator[str]:
    """Yield the strings that a file compares something with, matches, or has as keys of a dictionary."""
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = node.keys
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        for part in parts:
            for one in ast.walk(part) if part is not None else ():
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.value


def found(names: tuple[str, ...]) -> set[tuple[str, str]]:
    result = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(HOMES):
            result |= {(place, one) for one in asked(ast.parse(path.read_text(encoding="utf-8"))) if one in names}
    return result


def test_no_room_but_its_home_asks_for_an_architecture_s_name() -> None:
    assert found(tuple(ARCHITECTURES)) - EXCEPTIONS == set()


def test_no_room_but_its_home_asks_for_a_format_s_name() -> None:
    assert found(BACKENDS) - EXCEPTIONS == set()


def test_no_room_but_the_table_and_the_formats_asks_for_a_scheme_s_name() -> None:
    assert found(tuple(SCHEMES)) - EXCEPTIONS == set()


@pytest.mark.parametrize(
    "code",
    [
        "if kind == 'albert': pass",
        "x = {'albert': 1}",
        "y = kind in ('bert', 'albert')",
        "match k:\n case 'albert': pass",
    ],
)
def test_a_name_is_found_wherever_it_is_asked_for(code: str) -> None:
    assert "albert" in set(asked(ast.parse(code)))


def test_a_name_that_is_told_is_not_asked_for() -> None:
    assert set(asked(ast.parse("started = ('albert', 'bert')"))) == set()
