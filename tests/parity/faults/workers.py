"""What one thread of a run works with: a worker that converts and a worker that runs files.

ExecuTorch takes five seconds to import: over hundreds of files a worker for each would mostly import. So files are
verified in the thread's second worker, a new one after each crash.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from pipeline.errors import WorkerDied
from pipeline.execution.worker import Worker
from pipeline.verify import stage as verify

HOMES = [str(folder) for folder in Path(__file__).resolve().parents[1:3]]
"""What workers import this package from, and what it imports."""
_TOO_LARGE_BYTES = 4 << 30
"""Toolchains leak with every conversion; a worker beyond this is ended before its next job."""
_current = threading.local()
Start = Callable[[Path], Worker]
"""Starts a worker with its log."""


class Workers:
    """Two workers of one thread, started when they are needed."""

    def __init__(self, logs: Path, number: int, start: Start | None = None) -> None:
        """Remember where the workers' own words go, and what starts one, if that is not `Worker`."""
        self._logs = logs
        self._number = number
        self._start = start
        self._converter: Worker | None = None
        self._runner: Worker | None = None

    @property
    def converter(self) -> Worker:
        """The worker that holds the toolchains."""
        if self._converter is not None and self._converter.memory_bytes() > _TOO_LARGE_BYTES:
            self._converter.close()
            self._converter = None
        if self._converter is None:
            self._converter = (self._start or Worker)(self._logs / f"convert-{self._number}.log")
        return self._converter

    @contextlib.contextmanager
    def runner(self) -> Iterator[Worker]:
        """Lend the worker that runs files: the converter itself where `start` keeps workers, as tests do."""
        if self._start:
            worker = self.converter
        else:
            worker = self._runner = self._runner or self.fresh_runner()
        try:
            yield worker
        except WorkerDied:
            worker.close()
            if worker is self._runner:
                self._runner = None
            else:
                self._converter = None
            raise

    def fresh_runner(self) -> Worker:
        """Start a worker of its own."""
        return Worker(self._logs / f"run-{self._number}.log", threads=1)

    def close(self) -> None:
        """End both."""
        for worker in (self._converter, self._runner):
            if worker is not None:
                worker.close()


class WorkerPool:
    """As many pairs of workers as jobs may run at once."""

    def __init__(self, logs: Path, parallel: int, start: Start | None = None) -> None:
        """Make the pairs; nothing is started yet."""
        self._all = [Workers(logs, number, start) for number in range(parallel)]
        self._free: queue.SimpleQueue[Workers] = queue.SimpleQueue()
        for workers in self._all:
            self._free.put(workers)

    @contextlib.contextmanager
    def take(self) -> Iterator[Workers]:
        """Lend a pair of workers to the current thread."""
        workers = self._free.get()
        _current.workers = workers
        try:
            yield workers
        finally:
            self._free.put(workers)

    @contextlib.contextmanager
    def at_work(self) -> Iterator["WorkerPool"]:
        """Let workers import this package, and end them with the context."""
        paths = os.pathsep.join([*HOMES, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            with mock.patch.dict(os.environ, PYTHONPATH=paths):
                yield self
        finally:
            for workers in self._all:
                workers.close()


def verify_in_worker(*arguments: Any) -> None:
    """Verify a file in the current thread's worker, as the executor does it; `arguments` are those of `verify.make`."""
    special = getattr(_current, "special", None)
    try:
        with contextlib.nullcontext(special) if special else _current.workers.runner() as worker:
            worker.call(verify.make, *arguments)
    except WorkerDied as error:
        with _current.workers.runner() as worker:
            worker.call(verify.record_crash, str(error), *arguments)


@contextlib.contextmanager
def instead(worker: Worker) -> Iterator[None]:
    """Let verify use this very worker in the current thread; it is ended with the context."""
    _current.special = worker
    try:
        yield
    finally:
        _current.special = None
        worker.close()
