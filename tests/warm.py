"""Workers that live on from one test to the next: toolchains take ten seconds to import, a tiny student's file one.

While `lent` lasts, a `Worker` that is closed is kept, and the next one that is opened takes its process, which then
gets the folder, variables and log that a new one would have. Torch has one thread in all of them: as many tests run at
once as there are cores. For that reason also one node runs at a time, and the next takes the same process, of whatever
kind it is: a process for each of LiteRT, Core ML, ExecuTorch and torch would import all four in the end.
"""

import contextlib
import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processors
import pytest

from pipeline.errors import PipelineError, WorkerDied
from pipeline.execution import local
from pipeline.execution.worker import Worker, redirect

_TOO_LARGE_BYTES = 3 << 30
"""Toolchains leak with every conversion; a worker beyond this is ended."""
_HOMES = [str(place) for place in (Path(__file__).parents[1], Path(__file__).parent, Path(__file__).parent / "parity")]
"""What workers import from: the package, and tests that call functions of their own in them."""


class Workers:
    """Idle workers; whether they keep freed memory or tokenise on all cores is of no account to tiny students."""

    def __init__(self) -> None:
        """Begin with none."""
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._open, self._close, self._exit, self._call = (
            getattr(Worker, name) for name in ("__init__", "close", "__exit__", "call")
        )

    @contextlib.contextmanager
    def lent(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Let every `Worker` of this process take an idle one's process, and leave its own behind."""

        def opened(
            worker: Any,
            log: Path,
            tell: Any = None,
            *,
            threads: int | None = None,
            keep_memory: bool = False,
            tokenize_on_all_cores: bool = False,
            patience_seconds: float | None = None,
        ) -> None:
            del threads, keep_memory, tokenize_on_all_cores  # see above
            worker._in_call, worker._kept = False, False
            idle = self._take()
            if idle is None:
                self._open(worker, log, tell, threads=_threads(), patience_seconds=patience_seconds)
                return
            worker._patience_seconds = patience_seconds
            log.parent.mkdir(parents=True, exist_ok=True)
            worker.log, worker.tell = log, tell
            worker._connection, worker._process = idle._connection, idle._process
            self._call(worker, begin_anew, os.getcwd(), _variables(), log.absolute())

        def left(worker: Any, kind: Any, error: Any, trace: Any) -> None:
            if not self._keep(worker):
                self._exit(worker, kind, error, trace)

        def closed(worker: Any) -> None:
            self._put_back(worker)

        def put_back(executor: Any, kind: str, worker: Any) -> None:
            del executor, kind
            worker.close()

        def called(worker: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self._called(worker, function, *args, **kwargs)

        with monkeypatch.context() as patch:
            # Once for all: the executor opens workers from several threads.
            patch.setenv("PYTHONPATH", processors.python_path(*_HOMES))
            for name, function in (("__init__", opened), ("call", called), ("close", closed), ("__exit__", left)):
                patch.setattr(Worker, name, function)
            patch.setattr(local, "slots", lambda: 1)
            patch.setattr(local.Local, "_put_back", put_back)
            yield

    @contextlib.contextmanager
    def one(self, log: Path) -> Iterator[Worker]:
        """Lend one worker."""
        worker = self.start(log)
        try:
            yield worker
        finally:
            worker.close()

    def start(self, log: Path) -> Worker:
        """Return a worker that is kept when it is closed."""
        with pytest.MonkeyPatch.context() as patch, self.lent(patch):
            worker: Any = Worker(log)

        worker.close = functools.partial(self._put_back, worker)
        worker.call = functools.partial(self._called, worker)
        return worker

    def _called(self, worker: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a worker, and remember whether it has answered: one that has not is not kept."""
        worker._in_call = True
        try:
            result = self._call(worker, function, *args, **kwargs)
        except WorkerDied:
            raise
        except PipelineError:
            worker._in_call = False
            raise
        worker._in_call = False
        return result

    def _take(self) -> Any:
        """Take the largest idle worker, which has imported most: a benchmark leaves several that have but a runtime."""
        with self._lock:
            self._idle = [worker for worker in self._idle if worker._process.poll() is None]
            if not self._idle:
                return None
            worker: Any = max(self._idle, key=Worker.memory_bytes)
            self._idle.remove(worker)
            return worker

    def _put_back(self, worker: Any) -> None:
        """Keep a worker, or end it."""
        if not self._keep(worker):
            self._close(worker)

    def _keep(self, worker: Any) -> bool:
        """Put a worker that lives and answers among the idle ones, once; say whether it is there."""
        if worker._kept:
            return True
        if worker._in_call or worker._process.poll() is not None or worker.memory_bytes() > _TOO_LARGE_BYTES:
            return False
        with self._lock:
            worker._kept = True
            self._idle.append(worker)
        return True

    def end(self) -> None:
        """End all of them."""
        for worker in self._idle:
            self._close(worker)
        self._idle.clear()


@functools.cache
def session() -> Workers:
    """Return the workers of this process's tests; `conftest` ends them."""
    return Workers()


_CACHES = {
    "pipeline.formats.coreml.convert": ("_float_model", "_graph"),
    "pipeline.formats.sparsity": ("sparse_matrices",),
}
"""What a process remembers by a path, which in the next test may be another file's."""


def begin_anew(folder: str, variables: dict[str, str], log: Path) -> None:
    """In a worker: work in a folder, with variables, and write what is printed to a log."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    # Those of the run before are gone, with what was made for the schemes of one conversion.
    tempfile.tempdir = None
    for module, names in _CACHES.items():
        for name in names if module in sys.modules else ():
            getattr(sys.modules[module], name).cache_clear()
    redirect(log)


def _threads() -> int:
    """Return how many threads torch has in a worker: one, unless a setting of `processors` asks for more."""
    return int(os.environ.get(processors.THREADS, "1"))


def _variables() -> dict[str, str]:
    """Return the environment that a new worker would have."""
    return dict(os.environ) | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(_threads()),
        "OPENBLAS_NUM_THREADS": str(_threads()),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
