"""`--quick`: the tests that need no toolchain. Which those are is derived, and what is derived wrongly fails."""

import ast
import importlib.abc
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLCHAINS = frozenset(
    {"accelerate", "ai_edge_litert", "ai_edge_quantizer", "coremltools", "datasets", "executorch", "litert_torch"}
    | {"ray", "tensorflow", "torch", "transformers"}
)
FIXTURES = frozenset(
    (
        "pocketbert",
        "tiny_student",
        "randomised",
        "tiny_line",
        "thorough_line",
        "one_thread",
        "worker_pool",
        "judged",
        "converter",
        "converted",
    )
)
"""Fixtures that import toolchains or start processes which do."""
TESTS = Path(__file__).parent


class Quick:
    """Plugin that leaves out what needs a toolchain, and refuses toolchains to the rest."""

    def __init__(self) -> None:
        """Refuse toolchains from now on."""
        sys.meta_path.insert(0, _Refusal())

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files that import a toolchain at their top."""
        return True if collection_path.suffix == ".py" and _imports_toolchain(collection_path) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests that take a fixture of a toolchain, or are marked since only running them tells."""
        left_out = [item for item in items if FIXTURES & set(getattr(item, "fixturenames", ()))]
        left_out += [item for item in items if item.get_closest_marker("toolchain") and item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


class _Refusal(importlib.abc.MetaPathFinder):
    """Finder that fails a test which imports a toolchain though nothing tells that it does."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] in TOOLCHAINS:
            pytest.fail(f"this test imports {name}: mark it with pytest.mark.toolchain, so that --quick leaves it out")
        return None


def _imports_toolchain(file: Path) -> bool:
    """Tell whether a file, or one of this repository that it imports at any depth, imports a toolchain at its top."""
    # What conftest.py imports is imported for every test.
    seen, waiting = {TESTS / "conftest.py"}, [file]
    while waiting:
        names = _imports(waiting.pop())
        if any(name.partition(".")[0] in TOOLCHAINS for name in names):
            return True
        new = {path for name in names for path in _files(name)} - seen
        seen |= new
        waiting += new
    return False


@cache
def _imports(file: Path) -> list[str]:
    """Return the names of modules that a file imports at its top, and what they may hold as submodules."""
    names: list[str] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


@cache
def _files(name: str) -> list[Path]:
    """Return the files of a module of this repository, those of the packages around it included."""
    files = []
    for root in (TESTS, TESTS / "parity", TESTS.parent):
        parts = name.split(".")
        packages = (root.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts) + 1))
        files += [root.joinpath(*parts).with_suffix(".py"), *packages]
    return [path for path in files if path.is_file()]
