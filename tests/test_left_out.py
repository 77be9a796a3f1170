"""What conversions leave out of their toolchains' work changes no byte of a file, and is work indeed."""

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.formats import ConvertRequest, executorch, litert
from pipeline.formats.executorch import passes

# Toolchains warn of themselves, and work in a process of their own otherwise.
pytestmark = pytest.mark.filterwarnings("ignore")

ARCHITECTURES = ("bert", "distilbert", "albert", "roberta", "electra", "mobilebert")


def every(schemes: tuple[str, ...]) -> list[Any]:
    """Return all architectures with all schemes; BERT in fp32 is the one for every run."""
    cases = [(architecture, scheme) for architecture in ARCHITECTURES for scheme in schemes]
    return [pytest.param(*case, marks=[] if case == ("bert", "fp32") else [pytest.mark.full]) for case in cases]


class Counted:
    """Counts the calls of a method."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls = 0
        method = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return method(*args, **kwargs)

        patch.setattr(owner, name, counted)

    def since(self) -> int:
        calls, self.calls = self.calls, 0
        return calls


def content(backend: Any, student: Path, scheme: str, out: Path) -> bytes:
    out.mkdir()
    backend.convert(ConvertRequest(student, "embedding", scheme, (8, 16), None, None, {}, None), out)
    return bytes((out / backend.FILE).read_bytes())


@pytest.mark.parametrize(("architecture", "scheme"), every(("fp32", "int8_weight_only", "int8_dynamic")))
def test_executorch_files(
    architecture: str,
    scheme: str,
    tiny_student: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    one_thread: None,
    tmp_path: Path,
) -> None:
    from executorch.exir.pass_base import ExportPass

    student, traces = tiny_student(architecture), Counted(monkeypatch, ExportPass, "call_submodule")
    fewer, few = content(executorch, student, scheme, tmp_path / "fewer"), traces.since()
    monkeypatch.setattr(passes, "fewer", contextlib.nullcontext)
    assert fewer == content(executorch, student, scheme, tmp_path / "all")
    assert few < traces.since() / 2


@pytest.mark.parametrize(("architecture", "scheme"), every(("fp32",)))
def test_litert_files(
    architecture: str,
    scheme: str,
    tiny_student: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    one_thread: None,
    tmp_path: Path,
) -> None:
    from torch.export import ExportedProgram

    student, decomposed = tiny_student(architecture), Counted(monkeypatch, ExportedProgram, "run_decompositions")
    once, few = content(litert, student, scheme, tmp_path / "once"), decomposed.since()
    module = importlib.import_module("pipeline.formats.litert.convert")  # a function hides its module there
    monkeypatch.setattr(module, "_decomposed_once", contextlib.nullcontext)
    assert once == content(litert, student, scheme, tmp_path / "twice")
    assert few < decomposed.since()
