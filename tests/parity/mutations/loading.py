"""What becomes of a damaged file where it is loaded and run once: in a process of its own, forked for it alone.

`pipeline.load(folder, isolated=True)` starts an interpreter and imports a runtime for each file, which takes seconds.
Here the runtime is imported once, and every file gets a fork of that process.
"""

import atexit
import os
import resource
import select
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from mutations.mutation import Mutation
from mutations.subject import Subject, make_whole
from pipeline import formats
from pipeline.convert import opening
from pipeline.convert.isolated import IsolatedModel
from pipeline.errors import ArtifactError, PipelineError, WorkerDied
from pipeline.formats import signature
from pipeline.formats.signature import Function

LIMIT_SECONDS = 10.0
_MOST_BYTES = 16 << 30
"""A fork's address space: a file may ask for any amount of memory."""
REFUSED, BY_RUNTIME, CRASHED, HUNG, RAN = (
    "refused by the reader",
    "refused by the runtime",
    "crashed",
    "timed out",
    "ran",
)
OUTCOMES = (REFUSED, BY_RUNTIME, CRASHED, HUNG, RAN)


@dataclass(frozen=True)
class Attempt:
    """What became of one file."""

    outcome: str
    said: str
    """The error, or the signal."""


_scratch: dict[tuple[str, int], Path] = {}
"""In each thread of a worker: a copy of each clean folder, whose files are written over and put back."""


@contextmanager
def damaged(subject: Subject, mutation: Mutation) -> Iterator[Path]:
    """Give a model folder with the damaged part in its place, and its hashes in its manifest."""
    mine = subject.name, threading.get_ident()
    if mine not in _scratch:
        scratch = Path(mkdtemp(prefix="pocketbert-mutations-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        _scratch[mine] = subject.copy(scratch / "model")
    folder = _scratch[mine]
    part = folder / mutation.path
    part.write_bytes(mutation.content)
    try:
        yield folder
    finally:
        shutil.copyfile(subject.folder / mutation.path, part)


def attempt(subject: Subject, mutation: Mutation) -> Attempt:
    """Load a damaged file and run it once. Runs in a worker, which lives on whatever the file does."""
    formats.get(subject.name).import_runtime()
    with damaged(subject, mutation) as folder:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _be_child(subject, folder, write)
        os.close(write)
        try:
            return _ended(child, read)
        finally:
            os.close(read)


def isolated(subject: Subject, mutation: Mutation) -> Attempt:
    """Load a damaged file as a user's program does, `pipeline.load(folder, isolated=True)`, and predict once."""
    with damaged(subject, mutation) as folder:
        make_whole(folder)
        try:
            with IsolatedModel(folder, patience_seconds=2 * LIMIT_SECONDS) as model:
                model.predict(["Where is my parcel?"])
        except WorkerDied as error:
            return Attempt(HUNG if "said nothing" in str(error) else CRASHED, str(error))
        except ArtifactError as error:
            return Attempt(REFUSED, str(error))
        except PipelineError as error:
            return Attempt(BY_RUNTIME, str(error))
        return Attempt(RAN, "")


def _ended(child: int, read: int) -> Attempt:
    """Wait for a fork to say how it went, or to end, or for too long."""
    until = time.monotonic() + LIMIT_SECONDS
    said = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            break
        more = os.read(read, 1 << 16)
        if not more:
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                return Attempt(CRASHED, signal.Signals(os.WTERMSIG(status)).name)
            if not said:
                return Attempt(CRASHED, f"exit code {os.WEXITSTATUS(status)}")
            outcome, _, text = said.decode(errors="replace").partition("\n")
            return Attempt(outcome, text)
        said += more
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Attempt(HUNG, f"after {LIMIT_SECONDS:g} s")


def _be_child(subject: Subject, folder: Path, write: int) -> None:
    """Load and run, say how it went, and leave without Python's own end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    try:
        run_once(subject, folder)
        outcome = f"{RAN}\n"
    except ArtifactError as error:
        outcome = f"{REFUSED}\n{error}"
    except BaseException as error:
        outcome = f"{BY_RUNTIME}\n{type(error).__name__}: {error}"
    os.write(write, outcome.encode(errors="replace")[:2000])
    os._exit(0)


def run_once(subject: Subject, folder: Path) -> None:
    """Open a folder as `pipeline.load` does, but for its hashes, and run each function of its file."""
    opening.check(folder)
    claimed = signature.read(folder)
    session = formats.get(subject.name).load(folder / claimed.file, claimed, threads=1)
    for function in claimed.functions:
        session.run(function, inputs(function))


def inputs(function: Function) -> dict[str, np.ndarray]:
    """Return a row of ids with padding at its end."""
    length = function.max_length
    real = np.arange(length) < length - 3
    rows = {
        "input_ids": np.where(real, 1000 + 7 * np.arange(length), 0),
        "attention_mask": real,
        "token_type_ids": np.zeros(length),
    }
    return {tensor.name: rows[tensor.name].astype(np.int32)[None] for tensor in function.inputs}
