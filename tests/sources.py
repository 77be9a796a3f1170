"""The source files behind a module: itself and all of `pipeline` that it imports at any depth, lazily too."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def digest(*modules: str) -> str:
    """Return the sha256 over the source files of modules and of everything of `pipeline` that they import."""
    seen: set[Path] = set()
    waiting = [path for module in modules for path in _files(module)]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += _imported(path)
    found = hashlib.sha256()
    for path in sorted(seen):
        found.update(path.relative_to(REPOSITORY).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


@cache
def _imported(path: Path) -> list[Path]:
    """Return the files that a file imports from `pipeline`, whether at its top or within a function."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [file for name in names if name.split(".")[0] == "pipeline" for file in _files(name)]


def _files(module: str) -> Iterator[Path]:
    """Yield the file of a module and those of the packages around it, which are imported with it."""
    path = REPOSITORY.joinpath(*module.split("."))
    if path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    for package in (path, *path.parents):
        if (package / "__init__.py").is_file():
            yield package / "__init__.py"
