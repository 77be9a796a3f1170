"""The executor for this machine: worker processes that share its cores and stay warm between nodes of one kind."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import psutil

from pipeline.artifact import Manifest
from pipeline.devices import host
from pipeline.errors import WorkerDied
from pipeline.execution import store
from pipeline.execution.executor import Job
from pipeline.execution.node import Node
from pipeline.execution.worker import Worker, redirect

MOST_SLOTS = 8
_MEMORY_FRACTION = 0.8
_TOO_LARGE_BYTES = 4 << 30
"""Largest memory of a worker that is kept: toolchains leak with every conversion."""
_KEEPS_MEMORY = "torch"


def slots() -> int:
    """Return the number of nodes that run in parallel: one per core, two at least, since some wait for the disk."""
    return min(MOST_SLOTS, max(2, host.usable_cores()))


def share_of_cores(parallel: int | None = None) -> int:
    """Return the number of threads for each of `parallel` processes; without it, for one process per slot."""
    return max(1, host.usable_cores() // (parallel or slots()))


def room_bytes() -> float:
    """Return the memory that nodes may take together."""
    return float(psutil.virtual_memory().total * _MEMORY_FRACTION)


class Local:
    """An executor that runs nodes in child processes."""

    here = True

    def __init__(self, threads: int | None = None) -> None:
        """Prepare the executor without starting a process: a run that finds all artifacts finished needs none.

        Args:
            threads: threads of nodes that need the whole machine, if other runs share it; None: one per core.
        """
        self._whole = threads
        self._slots = slots()
        self._threads = ThreadPoolExecutor(self._slots)
        self._running: dict[Future[Manifest], Node] = {}
        self._idle: list[tuple[str, Worker]] = []
        """Kind and process of each idle worker, the least recently used first."""
        self._lock = threading.Lock()
        self._memory_bytes = room_bytes()

    def has_room(self, node: Node) -> bool:
        """Return whether a slot and the estimated memory are free; a node that needs the whole machine waits for it."""
        self._running = {future: one for future, one in self._running.items() if not future.done()}
        running = list(self._running.values())
        if not running:
            return True
        if node.needs != "core" or any(one.needs != "core" for one in running):
            return False
        memory = sum(one.estimate.memory_bytes for one in (*running, node))
        return len(running) < self._slots and memory <= self._memory_bytes

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        """Run a node in a worker of its kind."""
        if job.node.needs == "quiet":
            self._close_idle(0)
        future = self._threads.submit(self.run, job, tell)
        self._running[future] = job.node
        return future

    def run(self, job: Job, tell: Callable[[str, float], None]) -> Manifest:
        """Run a node to its end, in a warm worker of its kind or a new one.

        Raises:
            PipelineError: the node's own error.
            WorkerDied: the process died, and the node has no `when_it_dies`.
        """
        try:
            return self._in_worker(job, tell, job.function, job.arguments)
        except WorkerDied as error:
            if job.node.when_it_dies is None:
                raise
            return self._in_worker(job, tell, job.node.when_it_dies, [str(error), *job.arguments])

    def _in_worker(
        self, job: Job, tell: Callable[[str, float], None], function: Callable[..., object], arguments: list[object]
    ) -> Manifest:
        kind, worker = self._worker(job, tell)
        try:
            manifest = worker.call(store.make, job.place, job.spec, function, arguments)  # type: ignore[arg-type]  # stages differ
        except WorkerDied:
            worker.close()
            raise
        except BaseException:
            self._put_back(kind, worker)
            raise
        self._put_back(kind, worker)
        return manifest

    def _worker(self, job: Job, tell: Callable[[str, float], None]) -> tuple[str, Worker]:
        """Return an idle worker of the node's kind, or a new one."""
        node = job.node
        whole = node.needs != "core"
        threads = self._whole if whole else node.threads or share_of_cores()
        kind = f"{node.worker}/{threads}"
        with self._lock:
            found = next((one for one in reversed(self._idle) if one[0] == kind), None)
            if found:
                self._idle.remove(found)
        if found:
            worker = found[1]
            worker.tell = tell
            try:
                worker.call(redirect, job.log)
            except WorkerDied:
                # It died while it was idle, as of too little memory; the node has not begun.
                worker.close()
                return self._worker(job, tell)
            worker.log = job.log
            return kind, worker
        return kind, Worker(job.log, tell, threads=threads, keep_memory=node.worker == _KEEPS_MEMORY)

    def _put_back(self, kind: str, worker: Worker) -> None:
        if worker.memory_bytes() > _TOO_LARGE_BYTES:
            worker.close()
            return
        with self._lock:
            self._idle.append((kind, worker))
        self._close_idle(self._slots + 1)

    def _close_idle(self, most: int) -> None:
        with self._lock:
            closing = [self._idle.pop(0) for _ in range(len(self._idle) - most)]
        for _, worker in closing:
            worker.close()

    def stop(self) -> None:
        """Kill every child process: workers ignore Ctrl-C, and a conversion can take minutes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Again and again: a thread may be just about to start its worker.
        while running := [future for future in self._running if not future.done()]:
            kill_children()
            wait(running, timeout=0.2)

    def close(self) -> None:
        """End all workers, once the running nodes have finished."""
        self._threads.shutdown()
        self._close_idle(0)


def kill_children() -> None:
    """End every child process of this one."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
