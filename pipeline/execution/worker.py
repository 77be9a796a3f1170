"""Workers: child processes that run toolchains and runtimes.

Toolchains print much, hold gigabytes, and some abort the whole process on bad input. In a worker their output goes to a
log file, their memory can be measured, and an abort becomes an error that names the function that was running.
"""

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

import psutil

from pipeline.atomic import FULL
from pipeline.errors import ArtifactError, PipelineError, ToolchainError, WorkerDied

_P = ParamSpec("_P")
_R = TypeVar("_R")


_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
"""glibc's thresholds in bytes: below them, freed memory is reused instead of unmapped and zeroed again.

Without them that happens to every gradient of an embedding table.
"""


_ROOT = str(Path(__file__).resolve().parents[2])
"""The folder from which this package was imported."""
_FULL_BYTES = 1 << 20
"""Free bytes below which a disk counts as full."""


class Worker:
    """A child process that runs functions of importable modules, one at a time, and keeps its state between calls."""

    def __init__(
        self,
        log: Path,
        tell: Callable[[str, float], None] | None = None,
        *,
        threads: int | None = None,
        keep_memory: bool = False,
        tokenize_on_all_cores: bool = False,
        patience_seconds: float | None = None,
    ) -> None:
        """Start the process; its output is appended to `log`, and its progress messages are passed to `tell`.

        NumPy and torch use `threads` threads, by default one per core: parallel workers that each use all cores slow
        each other down. The runtimes' own threads are not affected. With `keep_memory` glibc keeps freed blocks, which
        training allocates again in every update. Many texts are tokenised on one core, with `tokenize_on_all_cores` on
        all. A process that sends nothing for `patience_seconds` of a call is ended.
        """
        self.log = log
        self._patience_seconds = patience_seconds
        self.tell = tell
        log.parent.mkdir(parents=True, exist_ok=True)
        self._connection, child_end = Pipe()
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": str(tokenize_on_all_cores).lower(),
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH")))),
        }
        if threads:
            environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        if keep_memory:
            environment |= _KEEP_MEMORY
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                # -P: a `psutil.py` in the folder that the user stands in, or in a model's, is not ours.
                [sys.executable, "-P", "-m", "pipeline.execution.worker", str(child_end.fileno()), str(os.getpid())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
            )
        child_end.close()

    def call(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a module-level function in the worker and return its result.

        Raises:
            PipelineError: the function raised one.
            ToolchainError: the function raised something else; the log has its traceback.
            WorkerDied: the process died.
            ArtifactError: it died or failed because the disk is full or read-only.
        """
        try:
            self._connection.send((function, args, kwargs))
        except OSError as error:
            raise self._died(function.__name__) from error
        while True:
            try:
                kind, value = self._receive(function.__name__)
            except (EOFError, OSError) as error:
                raise self._died(function.__name__) from error
            if kind != "told":
                break
            if self.tell:
                self._pass_on(value)
        if kind == "result":
            return cast(_R, value)
        if isinstance(value, PipelineError):
            raise value
        self._check_disk(function.__name__, str(value))
        raise ToolchainError(f"{function.__name__} failed: {value}. The whole story is in {self.log}.")

    def _died(self, what: str) -> WorkerDied:
        """Return the error that says how the process ended.

        Raises:
            ArtifactError: the disk is full or read-only.
        """
        self._check_disk(what)
        return WorkerDied(f"{what}: {self._how_it_ended()} Its last words are in {self.log}.")

    def _pass_on(self, told: tuple[str, float]) -> None:
        """Pass on a message of progress; if that fails, the process ends, since nobody will take its answer."""
        assert self.tell
        try:
            self.tell(*told)
        except BaseException:
            self._process.kill()
            raise

    def _receive(self, what: str) -> tuple[str, Any]:
        if self._patience_seconds is not None and not self._connection.poll(self._patience_seconds):
            self._process.kill()
            raise WorkerDied(f"{what}: its process said nothing for {self._patience_seconds:g} s and was ended.")
        answer: tuple[str, Any] = self._connection.recv()
        return answer

    def _check_disk(self, what: str, said: str = "") -> None:
        """Raise an error if the disk is full or read-only, which would otherwise look like a crash.

        Toolchains wrap the system's error in their own and keep its text, in which `said` is searched.

        Raises:
            ArtifactError: it is full or read-only.
        """
        folder = self.log.parent
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            # A file system that makes inodes as it needs them counts none at all.
            full = disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
            if full or any(os.strerror(number) in said for number in FULL):
                raise ArtifactError(
                    f"no space left on {folder}: {what} could not write. Free some space; finished artifacts stay."
                )
        if os.strerror(errno.EROFS) in said:
            raise ArtifactError(f"{folder} is on a read-only disk: {what} could not write. Finished artifacts stay.")

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}."
        return f"its process ended with exit code {code}."

    def memory_bytes(self) -> int:
        """Return the resident memory of the process in bytes."""
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        """Return the worker itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process, at once if something went wrong."""
        if kind is not None:
            self._process.kill()
        self.close()


_parent: Connection | None = None
"""In a worker process: the connection to its parent."""


def tell(what: str, fraction: float) -> None:
    """Send the progress of a call from a worker to its parent; outside of a worker, do nothing."""
    if _parent is not None:
        # A missing parent is noticed when the answer is sent.
        with contextlib.suppress(OSError):
            _parent.send(("told", (what, fraction)))


def redirect(log: Path) -> None:
    """Redirect the output of this worker process to another log file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as sink:
        for stream in (1, 2):
            os.dup2(sink.fileno(), stream)


def _serve(connection: Connection) -> None:
    """Run the calls that arrive on a connection and send back their results, until the other end closes."""
    while True:
        try:
            function, args, kwargs = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[str, object] = ("result", function(*args, **kwargs))
        except PipelineError as error:
            answer = ("error", error)
        except Exception as error:  # whatever a toolchain raises is logged here and reported by the parent
            traceback.print_exc()
            first_line = (str(error).strip().splitlines() or [""])[0][:300]
            answer = ("error", f"{type(error).__name__}: {first_line}")
        try:
            connection.send(answer)
        except (BrokenPipeError, OSError):
            return


def _end_with_parent(parent: int) -> None:
    """Exit once the parent is gone, even in the middle of a conversion: a parent killed by SIGKILL cannot say so."""

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run the worker's loop until the parent closes the pipe or is gone."""
    global _parent
    # Ctrl-C reaches the whole group; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Toolchains make millions of objects that stay: collections among them take a seventh of the imports' seconds.
    gc.set_threshold(100_000, 20, 100)
    _end_with_parent(int(sys.argv[2]))
    _parent = Connection(int(sys.argv[1]))
    _serve(_parent)


if __name__ == "__main__":
    # As a module of its own name: what functions import is another than the one that runs as `__main__`.
    from pipeline.execution import worker  # noqa: PLW0406

    worker.main()
