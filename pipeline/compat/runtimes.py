"""The runtimes that files are tried on, one row each, and what ExecuTorch promises of its own files."""

import difflib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import InputError


@dataclass(frozen=True)
class Runtime:
    """A release of an interpreter, and how it is had."""

    name: str
    backend: str
    """Whose files it runs."""
    distribution: str
    version: str
    module: str
    """Where `Interpreter` is imported from."""
    pythons: tuple[str, ...]
    """Python versions that it has wheels for, oldest first; on Linux x86-64, looked up in November 2026."""
    download_mb: int
    """Roughly, NumPy and other dependencies included."""
    pins: tuple[str, ...] = ()
    """What it needs besides, and does not say itself."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """What pip is asked for."""
        return (f"{self.distribution}=={self.version}", *self.pins)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to be compared with others of the same distribution."""
        return version_numbers(self.version)


_LITERT = ("litert", "ai-edge-litert")
_LITERT_MODULE = "ai_edge_litert.interpreter"
# Built against NumPy 1: with NumPy 2 they import, and end in a SystemError at the first file.
_OLD_NUMPY = ("numpy<2",)

RUNTIMES = (
    Runtime(
        "tflite-runtime-2.14.0",
        "litert",
        "tflite-runtime",
        "2.14.0",
        "tflite_runtime.interpreter",
        ("3.9", "3.10", "3.11"),
        21,
        _OLD_NUMPY,
    ),
    Runtime("litert-1.0.1", *_LITERT, "1.0.1", _LITERT_MODULE, ("3.9", "3.10", "3.11"), 21, _OLD_NUMPY),
    Runtime("litert-1.2.0", *_LITERT, "1.2.0", _LITERT_MODULE, ("3.10", "3.11", "3.12"), 21),
    Runtime("litert-2.1.6", *_LITERT, "2.1.6", _LITERT_MODULE, ("3.10", "3.11", "3.12", "3.13"), 36),
    Runtime("litert-2.3.0", *_LITERT, "2.3.0", _LITERT_MODULE, ("3.11", "3.12", "3.13"), 36),
    Runtime(
        "tensorflow-2.21.0",
        "litert",
        "tensorflow",
        "2.21.0",
        "tensorflow.lite.python.interpreter",
        ("3.10", "3.11", "3.12", "3.13"),
        640,
    ),
)
"""Oldest first within a family; the one that this project is pinned to is run by the project's own interpreter."""

EXECUTORCH_POLICY = "https://github.com/pytorch/executorch/blob/main/runtime/COMPATIBILITY.md"
EXECUTORCH_PROMISE = (
    "ExecuTorch promises that a .pte runs on the release that made it and on the next minor or major one at least, "
    "delegated parts included; it promises nothing for older runtimes"
)
"""Source: the policy's sections on backward and forward compatibility, see `EXECUTORCH_POLICY`."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a plain version such as `1.2.0` as numbers."""
    return tuple(int(part) for part in version.split("."))


def of_backend(backend: str) -> tuple[Runtime, ...]:
    """Return the runtimes that run a backend's files; none where only the pinned one is known."""
    return tuple(runtime for runtime in RUNTIMES if runtime.backend == backend)


def find(name: str) -> Runtime | None:
    """Return the runtime of a name, or None."""
    return next((runtime for runtime in RUNTIMES if runtime.name == name), None)


def choose(names: Sequence[str]) -> tuple[Runtime, ...]:
    """Return the runtimes of these names in the table's order, or all.

    Raises:
        InputError: a name that does not exist.
    """
    known = [runtime.name for runtime in RUNTIMES]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"runtime {name!r} is not known; there are: {', '.join(known)}.{hint}")
    return tuple(runtime for runtime in RUNTIMES if not names or runtime.name in names)


def is_own(runtime: Runtime) -> bool:
    """Whether this very environment has the runtime, at exactly its version."""
    try:
        return importlib.metadata.version(runtime.distribution) == runtime.version
    except importlib.metadata.PackageNotFoundError:
        return False
