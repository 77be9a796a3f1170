"""Workers that live on from one test to the next: toolchains take five seconds and more to import.

While `lent` lasts, a `Worker` that is closed is kept, and the next one that is opened with the same settings takes its
process, which then gets the folder, variables and log that a new one would have.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError, WorkerDied
from pipeline.graph.worker import Worker, redirect

_TOO_LARGE_BYTES = 3 << 30
"""Toolchains leak with every conversion; a worker beyond this is ended."""
_Settings = tuple[int | None, bool]
"""Threads, and whether freed memory is kept: variables that are read when a process starts."""


class Workers:
    """Idle workers by their settings."""

    def __init__(self) -> None:
        """Begin with none."""
        self._idle: dict[_Settings, list[Worker]] = {}
        self._lock = threading.Lock()
        self._open, self._close, self._exit, self._call = (
            getattr(Worker, name) for name in ("__init__", "close", "__exit__", "call")
        )

    @contextlib.contextmanager
    def lent(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Let every `Worker` of this process take an idle one's process, and leave its own behind."""

        def opened(worker: Any, log: Path, tell: Any = None, *, threads: Any = None, keep_memory: bool = False) -> None:
            worker._settings, worker._in_call, worker._kept = (threads, keep_memory), False, False
            worker._patience_seconds = None
            idle = self._take(worker._settings)
            if idle is None:
                self._open(worker, log, tell, threads=threads, keep_memory=keep_memory)
                return
            log.parent.mkdir(parents=True, exist_ok=True)
            worker.log, worker.tell = log, tell
            worker._connection, worker._process = idle._connection, idle._process
            self._call(worker, begin_anew, os.getcwd(), _variables(), log.absolute())

        def called(worker: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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

        def closed(worker: Any) -> None:
            if not self._keep(worker):
                self._close(worker)

        def left(worker: Any, kind: Any, error: Any, trace: Any) -> None:
            if not self._keep(worker):
                self._exit(worker, kind, error, trace)

        with monkeypatch.context() as patch:
            for name, function in (("__init__", opened), ("call", called), ("close", closed), ("__exit__", left)):
                patch.setattr(Worker, name, function)
            yield

    def _take(self, settings: _Settings) -> Any:
        with self._lock:
            while idle := self._idle.get(settings):
                worker: Any = idle.pop()
                if worker._process.poll() is None:
                    return worker
        return None

    def _keep(self, worker: Any) -> bool:
        """Put a worker that lives and answers among the idle ones, once; say whether it is there."""
        if worker._kept:
            return True
        if worker._in_call or worker._process.poll() is not None or worker.memory_bytes() > _TOO_LARGE_BYTES:
            return False
        with self._lock:
            worker._kept = True
            self._idle.setdefault(worker._settings, []).append(worker)
        return True

    def end(self) -> None:
        """End all of them."""
        for worker in [one for idle in self._idle.values() for one in idle]:
            self._close(worker)
        self._idle.clear()


def begin_anew(folder: str, variables: dict[str, str], log: Path) -> None:
    """In a worker: work in a folder, with variables, and write what is printed to a log."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    # Those of the run before are gone, with what was made for the schemes of one conversion.
    tempfile.tempdir = None
    if "pipeline.backends.coreml.convert" in sys.modules:
        sys.modules["pipeline.backends.coreml.convert"]._float_model.cache_clear()
    redirect(log)


def _variables() -> dict[str, str]:
    """Return the environment of a new worker, as `Worker` makes it."""
    return dict(os.environ) | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
