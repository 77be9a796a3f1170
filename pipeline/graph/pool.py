"""Work beside work: a small pool whose first error wins, and a worker that starts only when it is needed."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from pipeline.devices import host
from pipeline.graph.worker import Worker

_R = TypeVar("_R")
PARALLEL = 2
"""Compressions, conversions and verifications that run beside each other; each may need 2 GB."""


def share_of_cores(parallel: int = PARALLEL) -> int:
    """Return the threads of a worker where so many are beside each other."""
    return max(1, host.usable_cores() // parallel)


class Pool:
    """Jobs in threads, begun in the order in which they were submitted; they mostly wait for workers."""

    def __init__(self, parallel: int, stopping: threading.Event) -> None:
        """Run at most `parallel` jobs at once; on Ctrl-C `stopping` is set, so that a job begins nothing more."""
        self._threads = ThreadPoolExecutor(parallel)
        self._jobs: list[Future[Any]] = []
        self._stopping = stopping

    def submit(self, job: Callable[[], _R]) -> "Future[_R]":
        """Queue a job."""
        future = self._threads.submit(job)
        self._jobs.append(future)
        return future

    def finish(self) -> None:
        """Wait for all jobs, and for what they submit; after an error those in flight end, and no other is begun.

        Raises:
            BaseException: the first error of any job.
        """
        while running := [job for job in self._jobs if not job.done()]:
            wait(running, timeout=1.0, return_when=FIRST_EXCEPTION)
            self._raise_first()
        self._raise_first()

    def _raise_first(self) -> None:
        for job in self._jobs:
            if job.done() and not job.cancelled():
                job.result()

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Begin nothing more and wait for what is in flight; on Ctrl-C that is ended."""
        self._threads.shutdown(wait=False, cancel_futures=kind is not None)
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._stopping.set()
            # Again and again: a job may be just about to start its worker.
            while running := [job for job in self._jobs if not job.done()]:
                _kill_children()
                wait(running, timeout=0.2)
        self._threads.shutdown()


def _kill_children() -> None:
    """End every child process: workers ignore Ctrl-C, and a conversion can take minutes."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


class LazyWorker:
    """A worker that starts with the first thing that has to be made: a run that skips all starts none."""

    def __init__(self, log: Path) -> None:
        """Remember where the worker's own words go."""
        self._log = log
        self._worker: Worker | None = None

    def get(self) -> Worker:
        """Return the worker, started now if need be."""
        if self._worker is None:
            self._worker = Worker(self._log, threads=share_of_cores())
        return self._worker

    def __enter__(self) -> Self:
        """Return itself; nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker if there is one."""
        if self._worker:
            self._worker.close()
