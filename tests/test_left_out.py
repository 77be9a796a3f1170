"""What conversions leave out of their toolchains' work changes no byte of a file, and is work indeed."""

import contextlib
import functools
import importlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from warm import session

from pipeline import architectures, formats
from pipeline.formats import ConvertRequest

pytestmark = pytest.mark.toolchain

Files = dict[str, bytes]
Case = tuple[str, str, int, tuple[int, ...]]
"""Architecture, scheme, layers, lengths."""
ARCHITECTURES = ("bert", "distilbert", "albert", "roberta", "electra", "mobilebert")


@dataclass(frozen=True)
class Work:
    """What is left out by default: the function that is patched for it, and those that are called less often."""

    backend: str
    left_out: tuple[str, str]
    counted: tuple[tuple[str, str], ...]
    """Module, and the dotted name in it."""


EXECUTORCH = Work(
    "executorch",
    ("pipeline.formats.executorch.passes", "fewer"),
    (("executorch.exir.pass_base", "ExportPass.call_submodule"),),
)
LITERT = Work(
    "litert",
    ("pipeline.formats.litert.passes", "fewer"),
    (
        ("torch.export", "ExportedProgram.run_decompositions"),
        ("litert_torch.backend.jax_bridge._wrap", "_stablehlo_to_vhlo"),
    ),
)
COREML = Work(
    "coreml",
    ("pipeline.formats.coreml.passes", "fewer"),
    (("coremltools.converters.mil.mil.block", "Block._check_vars_visibility_in_block"),),
)
COREML_INTEGERS = replace(
    COREML, counted=(*COREML.counted, ("coremltools.optimize._utils", "quantize_weight_by_dtype"))
)


def every(schemes: tuple[str, ...]) -> list[Any]:
    """Return all architectures with all schemes, for `make test-full`."""
    cases = [(architecture, scheme, 2, (8, 16)) for architecture in ARCHITECTURES for scheme in schemes]
    return [pytest.param(case, marks=pytest.mark.full) for case in cases]


ONE = ("bert", "fp32", 1, (16,))
"""The case of every run, but for ExecuTorch, which takes longest."""


@contextlib.contextmanager
def counting(module: str, name: str) -> Iterator[list[None]]:
    """Yield a list that gets an entry at each call of a function."""
    calls: list[None] = []
    *owners, last = name.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, last)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return function(*args, **kwargs)

    with mock.patch.object(owner, last, counted):
        yield calls


def converted_twice(work: Work, request: ConvertRequest, out: Path) -> tuple[list[Files], list[list[int]]]:
    """Return what is written as always and with nothing left out, and how often each function ran. In a worker."""
    backend, contents, calls = formats.get(work.backend), [], []
    # A function hides its module, so neither is an attribute of its package.
    module, name = importlib.import_module(work.left_out[0]), work.left_out[1]
    for place, patch in (("less", contextlib.nullcontext()), ("all", mock.patch.object(module, name, _no_change))):
        (out / place).mkdir()
        # Core ML's backend keeps float models by the student's folder.
        student = shutil.copytree(request.student, out / f"student_{place}")
        with patch, contextlib.ExitStack() as stack:
            counted = [stack.enter_context(counting(*function)) for function in work.counted]
            backend.convert(replace(request, student=student), out / place)
        contents.append(files(out / place))
        calls.append([len(one) for one in counted])
    return contents, calls


def files(folder: Path) -> Files:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


_no_change = contextlib.nullcontext


def converted(work: Work, case: Case, folder: Path) -> tuple[list[Files], list[list[int]]]:
    architecture, scheme, layers, lengths = case
    with session().one(folder / "convert.log") as worker:
        worker.call(write, folder / "student", architecture, layers)
        request = ConvertRequest(folder / "student", "embedding", scheme, lengths, None, None, {}, None)
        found: tuple[list[Files], list[list[int]]] = worker.call(converted_twice, work, request, folder)
    return found


def write(folder: Path, architecture: str, layers: int) -> None:
    """Write a tiny student with so many layers. In a worker."""
    from conftest import write_student

    write_student(folder, architecture, "embedding", **{architectures.ARCHITECTURES[architecture].keys.layers: layers})


@pytest.mark.parametrize("case", every(("fp32", "int8_weight_only", "int8_dynamic")), ids=str)
def test_executorch_files(case: Case, tmp_path: Path) -> None:
    (fewer, every_pass), ((few,), (many,)) = converted(EXECUTORCH, case, tmp_path)
    assert fewer == every_pass
    assert few < many / 2


@pytest.mark.parametrize("case", [ONE, *every(("fp32",))], ids=str)
def test_litert_files(case: Case, tmp_path: Path) -> None:
    (once, again), (few, many) = converted(LITERT, case, tmp_path)
    assert once == again
    assert all(a < b for a, b in zip(few, many, strict=True))


@pytest.mark.parametrize("case", [ONE, *every(("fp32", "fp16"))], ids=str)
def test_coreml_files(case: Case, tmp_path: Path) -> None:
    (fewer, every_check), ((few,), (many,)) = converted(COREML, case, tmp_path)
    assert fewer == every_check
    assert few < many / 2


@pytest.mark.parametrize("architecture", [pytest.param(name, marks=pytest.mark.full) for name in ARCHITECTURES])
def test_coreml_integers(architecture: str, tmp_path: Path) -> None:
    case = (architecture, "int8_weight_only", 2, (8, 16))
    (once, again), (few, many) = converted(COREML_INTEGERS, case, tmp_path)
    assert once == again
    assert all(a < b for a, b in zip(few, many, strict=True))
