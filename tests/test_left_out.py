"""What conversions leave out of their toolchains' work changes no byte of a file, and is work indeed."""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from warm import session

from pipeline import architectures, formats
from pipeline.formats import ConvertRequest

pytestmark = pytest.mark.toolchain

Case = tuple[str, str, int, tuple[int, ...]]
"""Architecture, scheme, layers, lengths."""
ARCHITECTURES = ("bert", "distilbert", "albert", "roberta", "electra", "mobilebert")


@dataclass(frozen=True)
class Work:
    """What is left out by default: the function that is patched for it, and the method that is called less often."""

    backend: str
    left_out: tuple[str, str]
    counted: tuple[str, str, str]


EXECUTORCH = Work(
    "executorch",
    ("pipeline.formats.executorch.passes", "fewer"),
    ("executorch.exir.pass_base", "ExportPass", "call_submodule"),
)
LITERT = Work(
    "litert",
    ("pipeline.formats.litert.convert", "_decomposed_once"),
    ("torch.export", "ExportedProgram", "run_decompositions"),
)


def every(schemes: tuple[str, ...]) -> list[Any]:
    """Return all architectures with all schemes; one layer of BERT in fp32, at one length, is the one for every run."""
    cases = [(architecture, scheme, 2, (8, 16)) for architecture in ARCHITECTURES for scheme in schemes]
    return [pytest.param(("bert", "fp32", 1, (16,))), *(pytest.param(case, marks=pytest.mark.full) for case in cases)]


@contextlib.contextmanager
def counting(module: str, owner: str, name: str) -> Iterator[list[None]]:
    """Yield a list that gets an entry at each call of a method."""
    calls: list[None] = []
    kind = getattr(importlib.import_module(module), owner)
    method = getattr(kind, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return method(*args, **kwargs)

    with mock.patch.object(kind, name, counted):
        yield calls


def converted_twice(work: Work, request: ConvertRequest, out: Path) -> tuple[list[bytes], list[int]]:
    """Return a file converted as always and one with nothing left out, and the calls that each took. In a worker."""
    backend, contents, calls = formats.get(work.backend), [], []
    # A function hides its module, so neither is an attribute of its package.
    module, name = importlib.import_module(work.left_out[0]), work.left_out[1]
    for place, patch in (("less", contextlib.nullcontext()), ("all", mock.patch.object(module, name, _no_change))):
        (out / place).mkdir()
        with patch, counting(*work.counted) as counted:
            backend.convert(request, out / place)
        contents.append((out / place / backend.FILE).read_bytes())
        calls.append(len(counted))
    return contents, calls


_no_change = contextlib.nullcontext


def converted(work: Work, case: Case, folder: Path) -> tuple[list[bytes], list[int]]:
    architecture, scheme, layers, lengths = case
    with session().one(folder / "convert.log") as worker:
        worker.call(write, folder / "student", architecture, layers)
        request = ConvertRequest(folder / "student", "embedding", scheme, lengths, None, None, {}, None)
        found: tuple[list[bytes], list[int]] = worker.call(converted_twice, work, request, folder)
    return found


def write(folder: Path, architecture: str, layers: int) -> None:
    """Write a tiny student with so many layers. In a worker."""
    from conftest import write_student

    write_student(folder, architecture, "embedding", **{architectures.ARCHITECTURES[architecture].keys.layers: layers})


@pytest.mark.parametrize("case", every(("fp32", "int8_weight_only", "int8_dynamic")), ids=str)
def test_executorch_files(case: Case, tmp_path: Path) -> None:
    (fewer, every_pass), (few, many) = converted(EXECUTORCH, case, tmp_path)
    assert fewer == every_pass
    assert few < many / 2


@pytest.mark.parametrize("case", every(("fp32",)), ids=str)
def test_litert_files(case: Case, tmp_path: Path) -> None:
    (once, twice), (few, many) = converted(LITERT, case, tmp_path)
    assert once == twice
    assert few < many
