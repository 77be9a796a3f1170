"""In: a student's folder, a scheme and lengths. Out: a converted file, what it holds, and a session that runs it.

One folder a backend, each with the names of `Backend`; to add one, write it and add its name to `NAMES`.
May import checkpoint, mil, schemes and what they import; each imports its toolchain inside the function that needs it.
"""

import contextlib
import importlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

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
class ConvertRequest:
    """What a backend is asked to convert."""

    student: Path
    """Folder in Hugging Face layout."""
    task: str
    scheme: str
    lengths: tuple[int, ...]
    """Ascending, in tokens."""
    minimum_ios: int | None
    """The oldest iOS release that has to read the file; None for all but Core ML."""
    base: Path | None
    """The file of the backend's `BASE_SCHEME`, where that is what the scheme is made from."""
    metadata: Mapping[str, str]
    """Author, licence, source and summary, for formats that carry such."""
    labels: tuple[str, ...] | None


class Session(Protocol):
    """A loaded file."""

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function on `(1, seq_len)` int32 arrays; the outputs are the caller's own copies."""

    def close(self) -> None:
        """Free what the runtime holds."""


@dataclass(frozen=True)
class Evaluator:
    """Something that runs a backend's files."""

    name: str
    """With its version, as `parity.json` has it."""
    load: Callable[[Path, Signature, int], Session]
    """`(file, signature, threads) -> session`."""
    uses_threads: bool
    """Whether it heeds the number of threads."""
    stands_in: str | None = None
    """What its verdict does not cover, if it stands in for a runtime that this machine lacks."""
    unit: str | None = None
    """The compute units on which it runs files, where it is one of several of the same runtime."""
    load_flushed: Callable[[Path, Signature], Session] | None = None
    """Opens a file so that subnormal numbers of half precision are zero, as on some units; None where it cannot."""


class Backend(Protocol):
    """What a backend module offers."""

    TITLE: str
    DELEGATE: str
    """What runs most of a file's operations."""
    RUNTIME: str | None
    """The Python distribution of the runtime; None where the runtime comes with the system."""
    CONVERT_SECONDS: float
    """Seconds that a conversion of MiniLM took on two cores; for estimates, and for what to begin first."""
    APPS: tuple[str, ...]
    """The systems whose demo app runs its files: `android`, `ios`."""
    DRAFTED: tuple[str, bool]
    """The scheme that a drafted recipe names, and whether it is a target or a comment that suggests one."""
    ROUNDING: Rounding
    """How the toolchain rounds weights to int8, to the last bit."""
    COMPUTED_AS: Mapping[str, ComputedAs]
    """By activation of a checkpoint, the other forms in which files may compute it."""
    PHONE_RUNNER: PhoneRunner | None
    """The runtime's own program for Android phones; None where there is none."""
    FILE: str
    """Name of the model file or package."""
    DISTRIBUTIONS: tuple[str, ...]
    """Python distributions whose versions decide the file's content."""
    BASE_SCHEME: str | None
    """Scheme from whose file the others are made; None where each starts from the student."""
    VERSION: int
    """Raised when the same request gives another file; a part of the key of this backend's files alone."""
    MINIMUM_RUNTIME: str
    """Oldest runtime that computes every scheme rightly which asks for no later one, see `minimum_runtime`."""
    COMPUTE_UNITS: tuple[str, ...]
    """Compute units on which its files run, by the runtime's own names; the first is the default. An app offers them
    unless a scheme's row says that no such file has passed there."""
    CONVERTS: frozenset[str]
    """Schemes that `convert` can tell its toolchain: those of which the rows of `SCHEMES` say that it supports them."""

    def lengths_in_file(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the recipe's lengths that change the file."""

    def no_runtime(self) -> str | None:
        """Say why the real runtime is not on this machine, so that nothing can be timed, or return None."""

    def import_runtime(self) -> None:
        """Import the runtime, so that opening a file can be timed without it."""

    def convert(self, request: ConvertRequest, out: Path) -> dict[str, Any]:
        """Write `FILE` into a folder and return a metrics record."""

    def inspect(self, file: Path) -> tuple[Function, ...]:
        """Read the functions back from a file, shortest first."""

    def claims(self, file: Path) -> dict[str, str]:
        """Return what a file says of itself, by the names of `ConvertRequest.metadata`; none where it carries none.

        Of several functions, `default function` is the one that runs where none is asked for.
        """

    def operations(self, file: Path) -> dict[str, int]:
        """Count a file's operations: `ops_total`, and `ops_delegated` where the runtime here tells it of the file.

        Empty where the file does not tell, so that `convert` has to say it.
        """

    def structure(self, file: Path) -> Structure:
        """Read back what can be compared with the checkpoint without running the file."""

    def load(self, file: Path, signature: Signature, *, threads: int) -> Session:
        """Open a file in its real runtime, or in what stands in for it on this machine."""

    def load_control(self, file: Path, signature: Signature, scratch: Path) -> Session:
        """Open a file's own graph and weights, computed in single precision: what is wrong there no rounding hides.

        Args:
            file: the file.
            signature: its signature.
            scratch: an empty folder for a copy, which has to outlive the session.
        """

    def evaluators(self) -> list[Evaluator]:
        """Return what can run files on this machine: the first gives the verdict, the others are compared with it."""


def runtime_evaluator(title: str, distribution: str, load: Callable[..., Session]) -> Evaluator:
    """Return the evaluator that is a backend's real runtime.

    Args:
        title: what people call the backend.
        distribution: the Python distribution of the runtime, whose version goes into the evaluator's name.
        load: the backend's `load`.
    """
    return Evaluator(
        f"{title} ({distribution} {importlib.metadata.version(distribution)})",
        lambda file, signature, threads: load(file, signature, threads=threads),
        uses_threads=True,
    )


def get(name: str) -> Backend:
    """Return a backend's module; its toolchain is imported only when it is used."""
    if name not in NAMES:
        raise KeyError(name)
    return cast(Backend, importlib.import_module(f"pipeline.formats.{name}"))


def minimum_runtime(backend: str, scheme: str) -> str:
    """Return the oldest runtime that computes a scheme's files rightly."""
    module = get(backend)
    needed = SCHEMES[scheme].support[backend].right_from.get(module.DISTRIBUTIONS[0])
    return max(filter(None, (module.MINIMUM_RUNTIME, needed)), key=version_numbers)


def compute_units(backend: str, scheme: str) -> tuple[list[str], dict[str, str]]:
    """Return the compute units that an app may offer for a scheme's files, and those that are untried, with reasons."""
    untried = dict(SCHEMES[scheme].support[backend].untried_units)
    return [unit for unit in get(backend).COMPUTE_UNITS if unit not in untried], untried


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let a toolchain find another value under a name of one of its modules or classes."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def native_log_hidden() -> Iterator[None]:
    """Keep what a runtime writes to descriptor 2 out of the user's program, unless an error is raised.

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
