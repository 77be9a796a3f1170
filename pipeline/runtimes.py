"""Runtimes: releases of the interpreters that run converted files, one row each, and which schemes each computes right.

A recipe's `minimum_runtime` is checked here, `pocketbert compat` tries files on every row, and a format refuses an
installed runtime that is too old.
"""

import difflib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.errors import InputError, ToolchainError
from pipeline.schemes import SCHEMES, supported


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


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version such as `1.2.0` or `2.14.0+cpu`."""
    return tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:3] if part.isdigit())


def of_backend(backend: str) -> tuple[Runtime, ...]:
    """Return the runtimes that run a format's files; none where only the pinned one is known."""
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


def is_installed(runtime: Runtime) -> bool:
    """Return whether this very environment has the runtime, at exactly its version."""
    try:
        return importlib.metadata.version(runtime.distribution) == runtime.version
    except importlib.metadata.PackageNotFoundError:
        return False


def require_version(distribution: str, minimum: str) -> None:
    """Refuse an installed runtime that is older than the first one whose results are right.

    Raises:
        ToolchainError: it is absent or older.
    """
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolchainError(
            f"{distribution} is not installed; {minimum} or later is needed. Run `make setup`."
        ) from error
    if version_numbers(version) < version_numbers(minimum):
        raise ToolchainError(
            f"{distribution} {version} is too old: below {minimum} these files fail or give wrong numbers silently."
        )


def known_right(scheme: str, runtime: Runtime) -> bool:
    """Return whether the scheme's row has nothing against a runtime."""
    known = SCHEMES[scheme].support[runtime.backend].right_from
    if runtime.distribution not in known:
        return True
    oldest = known[runtime.distribution]
    return oldest is not None and runtime.numbers >= version_numbers(oldest)


def minimum_refusal(backend: str, name: str, schemes: Sequence[str]) -> str | None:
    """Say why a recipe may not ask for a minimum runtime, or return None.

    Args:
        backend: the format whose files are meant.
        name: a runtime's name, such as `litert-1.2.0`.
        schemes: the recipe's schemes for that backend.
    """
    runtime = find(name)
    able = of_backend(backend)
    if runtime is None or runtime not in able:
        exist = ", ".join(one.name for one in able) or f"none: older runtimes are not tried for {backend}"
        return f"{name!r} is no runtime of {backend}'s files; there are: {exist}."
    wrong = [scheme for scheme in schemes if not known_right(scheme, runtime)]
    if not wrong:
        return None
    others = [one.name for one in able if all(known_right(scheme, one) for scheme in schemes)]
    right = [scheme for scheme in supported(backend) if known_right(scheme, runtime)]
    return (
        f"{', '.join(wrong)} is not computed right by {name}. Either take schemes that are ({', '.join(right)}), "
        f"or ask for one of: {', '.join(others)}."
    )
