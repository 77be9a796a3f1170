"""A temporary log for a worker of one command: removed at the end, with its last line copied into any error."""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import psutil

from pipeline.atomic import FULL
from pipeline.errors import ArtifactError, ToolchainError
from pipeline.execution.worker import Worker

_P = ParamSpec("_P")
_R = TypeVar("_R")

_PREFIX = "pocketbert-predict-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)-\w+\.log")
_SHOWN_CHARACTERS = 300
_READ_BYTES = 1 << 16


@contextmanager
def private_log() -> Iterator[Path]:
    """Make an empty log in the system's temporary folder, and remove it at the end.

    If an error refers to the log, the reference is replaced by its last line. A killed process leaves its log, which
    the next one removes.

    Raises:
        ArtifactError: the temporary folder takes no file.
    """
    _sweep(Path(tempfile.gettempdir()))
    try:
        handle, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=".log")
    except OSError as error:
        remedy = "Free some space" if error.errno in FULL else "Set TMPDIR to a folder that can be written"
        raise ArtifactError(f"{tempfile.gettempdir()} takes no log: {error.strerror}. {remedy}.") from error
    os.close(handle)
    log = Path(name)
    try:
        yield log
    except ToolchainError as error:
        if str(log) not in str(error):
            raise
        raise type(error)(_with_last_line(str(error), log)) from error
    finally:
        log.unlink(missing_ok=True)


def call_in_worker(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function once in a process with a private log: a runtime may write much, or take its process down."""
    with private_log() as log, Worker(log) as worker:
        return worker.call(function, *args, **kwargs)


def _with_last_line(message: str, log: Path) -> str:
    """Replace the sentence of a message that names the log by the place of the error, or else the log's last line."""
    with log.open("rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - _READ_BYTES))
        lines = [line.strip() for line in handle.read().decode(errors="replace").splitlines() if line.strip()]
    place = next((line for line in reversed(lines) if line.startswith("File ")), None)
    last = lines[-1][:_SHOWN_CHARACTERS] if lines else "nothing"
    said = f" It was raised in {place}." if place else f" Its log ends with: {last.rstrip('.')}."
    # The sentence that sends the reader there ends with the log's name.
    return re.sub(rf" [^.]* in {re.escape(str(log))}\.", lambda _: said, message)


def _sweep(folder: Path) -> None:
    """Remove the logs of this user's processes that are gone."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_PREFIX}*"):
            match = _NAME.fullmatch(path.name)
            if match and not psutil.pid_exists(int(match.group(1))):
                with contextlib.suppress(OSError):
                    if path.lstat().st_uid == os.geteuid():
                        path.unlink()
