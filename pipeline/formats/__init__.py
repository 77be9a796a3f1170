"""In: a student's folder, a scheme and lengths. Out: a converted file, its structure, and a session that runs it.

One folder per backend, each with the names of `Backend`; to add one, write it and add its name to `NAMES`.
May import checkpoint, mil, schemes and what they import; each imports its toolchain inside the function that needs it.
"""

import contextlib
import importlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.browsers import BrowserRuntime
from pipeline.formats.rounding import ComputedAs, Rounding
from pipeline.formats.runners import PhoneRunner
from pipeline.formats.signature import Function, Signature
from pipeline.formats.structure import Structure
from pipeline.runtimes import version_numbers
from pipeline.schemes import BACKENDS, SCHEMES

NAMES = BACKENDS

Inputs = Mapping[str, NDArray[np.int32]]
Outputs = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class OtherHead:
    """Another head of a file, on an encoder whose tensors equal the student's."""

    student: Path
    """Folder in Hugging Face layout."""
    task: str


@dataclass(frozen=True)
class ConvertRequest:
    """The inputs of a backend's `convert`."""

    student: Path
    """Folder in Hugging Face layout."""
    task: str
    scheme: str
    lengths: tuple[int, ...]
    """Ascending, in tokens."""
    minimum_ios: int | None
    """The oldest iOS release that has to read the file; None for all but Core ML."""
    base: Path | None
    """The file of the backend's `BASE_SCHEME`, if the scheme is made from it."""
    metadata: Mapping[str, str]
    """Author, licence, source and summary, for formats that store such metadata."""
    labels: tuple[str, ...] | None
    heads: Mapping[str, OtherHead] = field(default_factory=dict)
    """Other heads, by name; each has functions of its own in the file."""

    def every_head(self) -> "Iterator[tuple[str | None, ConvertRequest]]":
        """Yield a request for each head of the file, with the head's name: the student's own first, as None."""
        yield None, replace(self, heads={})
        for name, head in self.heads.items():
            yield name, replace(self, student=head.student, task=head.task, labels=None, heads={})


class Session(Protocol):
    """A file opened in a runtime."""

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function on `(1, seq_len)` int32 arrays; the outputs are the caller's own copies."""

    def close(self) -> None:
        """Free the memory of the runtime."""


@dataclass(frozen=True)
class Evaluator:
    """A runtime, or a substitute for it, that runs a backend's files."""

    name: str
    """Its name with version, as in `parity.json`."""
    load: Callable[[Path, Signature, int], Session]
    """`(file, signature, threads) -> session`."""
    uses_threads: bool
    """Whether it uses the number of threads."""
    stands_in: str | None = None
    """The limits of its verdict, if it stands in for a runtime that this machine lacks."""
    unit: str | None = None
    """The compute units on which it runs files, if the same runtime has several."""
    load_flushed: Callable[[Path, Signature], Session] | None = None
    """Opens a file with subnormal numbers of half precision flushed to zero, as on some units; None if it cannot."""


class Backend(Protocol):
    """The names that a backend module offers."""

    TITLE: str
    DELEGATE: str
    """Name of the delegate that runs most of a file's operations."""
    RUNTIME: str | None
    """The Python distribution of the runtime; None where the runtime comes with the system."""
    CONVERT_SECONDS: float
    """Seconds of a conversion of MiniLM on two cores; for estimates, and to start the longest work first."""
    APPS: tuple[str, ...]
    """Systems whose demo app runs its files: `android`, `ios`."""
    DRAFTED: tuple[str, bool]
    """The scheme that a drafted recipe names, and whether it is a target or a comment that suggests one."""
    ROUNDING: Rounding
    """How the toolchain rounds weights to int8, to the last bit."""
    COMPUTED_AS: Mapping[str, ComputedAs]
    """Other operators by which files may compute an activation, by the checkpoint's activation."""
    PHONE_RUNNER: PhoneRunner | None
    """The runtime's own benchmark program for Android phones; None if there is none."""
    BROWSER_RUNTIME: BrowserRuntime | None
    """The runtime for web browsers; None if there is none."""
    FILE: str
    """Name of the model file or package."""
    DISTRIBUTIONS: tuple[str, ...]
    """Python distributions whose versions decide the file's content."""
    BASE_SCHEME: str | None
    """Scheme whose file the other schemes' files are made from; None if each starts from the student."""
    VERSION: int
    """Raised when the same request gives another file; part of the key of this backend's files only."""
    MINIMUM_RUNTIME: str
    """Oldest runtime for schemes that need no later one, see `minimum_runtime`."""
    COMPUTE_UNITS: tuple[str, ...]
    """Compute units on which its files run, by the runtime's own names; the first is the default. An app offers them
    unless a scheme's row says that no such file has passed there."""
    CONVERTS: frozenset[str]
    """Schemes that `convert` implements: those that the rows of `SCHEMES` support."""

    def lengths_in_file(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the recipe's lengths that change the file."""

    def no_runtime(self) -> str | None:
        """Return why the real runtime is not on this machine, so that nothing can be timed, or None."""

    def import_runtime(self) -> None:
        """Import the runtime, so that opening a file can be timed without it."""

    def convert(self, request: ConvertRequest, out: Path) -> dict[str, Any]:
        """Write `FILE` into a folder and return a metrics record."""

    def inspect(self, file: Path) -> tuple[Function, ...]:
        """Read the functions back from a file, shortest first."""

    def claims(self, file: Path) -> dict[str, str]:
        """Return a file's own metadata, by the names of `ConvertRequest.metadata`; empty for formats without metadata.

        Among several functions, `default function` is the one that runs unless another is named.
        """

    def operations(self, file: Path) -> dict[str, int]:
        """Count a file's operations: `ops_total`, and `ops_delegated` if the runtime here can count them in the file.

        Empty if the file cannot tell, so that `convert` has to report them.
        """

    def structure(self, file: Path, functions: Collection[str] | None = None) -> Structure:
        """Read back the constants and attributes that can be compared with the checkpoint without running the file.

        Args:
            file: the file.
            functions: only what these functions read and compute; None for the whole file.
        """

    def function_names(self, request: ConvertRequest, head: str | None) -> tuple[str, ...]:
        """Return the names of a head's functions in a request's file, shortest first; None is the student's own."""

    def load(self, file: Path, signature: Signature, *, threads: int) -> Session:
        """Open a file in its real runtime, or in its substitute on this machine."""

    def load_control(self, file: Path, signature: Signature, scratch: Path) -> Session:
        """Open a file's own graph and weights, computed in single precision, where rounding hides no fault.

        Args:
            file: the file.
            signature: its signature.
            scratch: an empty folder for a copy, which has to outlive the session.
        """

    def evaluators(self) -> list[Evaluator]:
        """Return the evaluators on this machine: the first gives the verdict, the others are compared with it."""


def runtime_evaluator(title: str, distribution: str, load: Callable[..., Session]) -> Evaluator:
    """Return an evaluator for a backend's real runtime.

    Args:
        title: the backend's name.
        distribution: the Python distribution of the runtime, whose version goes into the evaluator's name.
        load: the backend's `load`.
    """
    return Evaluator(
        f"{title} ({distribution} {importlib.metadata.version(distribution)})",
        lambda file, signature, threads: load(file, signature, threads=threads),
        uses_threads=True,
    )


def get(name: str) -> Backend:
    """Return a backend's module; its toolchain is imported at first use."""
    if name not in NAMES:
        raise KeyError(name)
    return cast(Backend, importlib.import_module(f"pipeline.formats.{name}"))


def minimum_runtime(backend: str, scheme: str) -> str:
    """Return the oldest runtime that computes a scheme's files correctly."""
    module = get(backend)
    needed = SCHEMES[scheme].support[backend].right_from.get(module.DISTRIBUTIONS[0])
    return max(filter(None, (module.MINIMUM_RUNTIME, needed)), key=version_numbers)


def compute_units(backend: str, scheme: str) -> tuple[list[str], dict[str, str]]:
    """Return the compute units that an app may offer for a scheme's files, and the untried ones with reasons."""
    untried = dict(SCHEMES[scheme].support[backend].untried_units)
    return [unit for unit in get(backend).COMPUTE_UNITS if unit not in untried], untried


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a toolchain's module or class inside the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def native_log_hidden() -> Iterator[None]:
    """Keep a runtime's output on descriptor 2 out of the user's terminal, unless an error is raised.

    Neither runtime has a setting for its log: cpuinfo and the thread pool write nine lines at ExecuTorch's first use,
    and LiteRT's wheel does not export `LiteRtSetMinLoggerSeverity` (google-ai-edge/LiteRT#7420).
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(saved, log.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
