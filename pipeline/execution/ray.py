"""The executor of a Ray cluster: nodes run wherever a core is free, and exchange artifacts through a shared folder.

The build folder lies on storage that every machine mounts at the same path. Times are taken only on a machine that
carries the resource of its kind, since a record is of one processor: `machine_resource` names it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pipeline.artifact import Manifest, digest_of
from pipeline.devices import host
from pipeline.errors import ToolchainError
from pipeline.execution.executor import Job
from pipeline.execution.local import Local
from pipeline.execution.node import Node

_RETRIES = 2
"""How often Ray begins a node again whose machine or process was lost; errors of a node itself are not tried again."""
_PAUSE_SECONDS = 0.2
_local: Local | None = None
"""In a process of Ray: the workers that stay warm between its nodes."""


def machine_resource() -> str:
    """Return the Ray resource that a machine of this kind is started with, so that times may be taken there.

    `python -m pipeline.execution.ray` prints it, for `ray start --resources='{"NAME": 1}'`.
    """
    here = host.describe()
    return f"machine-{digest_of([here.model_id, here.cpu_features, here.os])[:12]}"


class Ray:
    """Nodes as tasks of a Ray cluster."""

    def __init__(self, address: str) -> None:
        """Join a cluster.

        Args:
            address: `auto`, or `HOST:PORT` of the head.

        Raises:
            ToolchainError: Ray is not installed, or there is no cluster.
        """
        try:
            import ray
        except ImportError as error:
            raise ToolchainError("Ray is not installed; pip install 'pocketbert[cluster]'.") from error
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ToolchainError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from error
        from ray.util.queue import Queue

        self._ray = ray
        self._perform = ray.remote(max_retries=_RETRIES)(perform)
        self._told = Queue()
        self._listeners: dict[str, Callable[[str, float], None]] = {}
        self._references: list[Any] = []
        self._closed = threading.Event()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def has_room(self, node: Node) -> bool:
        """Return True: Ray holds back what it has no room for."""
        return True

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        """Hand a node to Ray.

        Raises:
            ToolchainError: no machine of the cluster can take it.
        """
        key = job.order.place.name
        self._listeners[key] = tell
        reference = self._perform.options(**self._resources(job.node)).remote(job, self._told)
        self._references.append(reference)
        future: Future[Manifest] = Future()
        reference.future().add_done_callback(lambda done: _pass_on(done, future))
        return future

    def _resources(self, node: Node) -> dict[str, Any]:
        """Return what a node asks of a machine, in Ray's words."""
        if node.needs == "core":
            return {"num_cpus": 1}
        wanted = {"machine": {}, "quiet": {machine_resource(): 1}}[node.needs]
        able = [
            one["Resources"]
            for one in self._ray.nodes()
            if one["Alive"] and all(one["Resources"].get(name, 0) >= count for name, count in wanted.items())
        ]
        if not able:
            raise ToolchainError(
                f"{node.name} is timed on a machine like this one, and none of the cluster carries its resource. Start "
                f"one with: ray start --resources='{{\"{machine_resource()}\": 1}}'."
            )
        # All cores of one machine: nothing runs beside it.
        largest = max(able, key=lambda resources: resources.get("CPU", 0))
        options: dict[str, Any] = {"num_cpus": largest.get("CPU", 1), "resources": wanted}
        if node.needs == "machine" and largest.get("GPU"):
            options["num_gpus"] = largest["GPU"]
        return options

    def _listen(self) -> None:
        """Pass on what nodes tell while they run."""
        while not self._closed.is_set():
            with contextlib.suppress(Exception):  # the queue's actor goes with the cluster
                for key, what, fraction in self._told.get_nowait_batch(self._told.qsize()):
                    if key in self._listeners:
                        self._listeners[key](what, fraction)
            time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """Cancel what runs, and end its processes."""
        for reference in self._references:
            self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self._closed.set()
        self._listening.join(timeout=2)
        self._told.shutdown(force=True)
        self._ray.shutdown()


def perform(job: Job, told: Any) -> Manifest:
    """Run one node in a process of Ray, in a child that stays warm."""
    global _local
    _local = _local or Local()
    key = job.order.place.name

    def tell(what: str, fraction: float) -> None:
        with contextlib.suppress(Exception):  # nobody listens any more
            told.put_nowait((key, what, fraction))

    return _local.run(job, tell)


def _pass_on(done: Future[Manifest], future: Future[Manifest]) -> None:
    """Give our future what Ray's has; an error is the node's own, not Ray's wrapping of it."""
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        cause = getattr(error, "cause", None)
        future.set_exception(cause if isinstance(cause, BaseException) else _lost(error))


def _lost(error: BaseException) -> BaseException:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ToolchainError(f"the cluster lost a node more than {_RETRIES} times: {type(error).__name__}: {lines[0]}")


if __name__ == "__main__":
    print(machine_resource())
