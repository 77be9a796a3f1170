"""The executor for a Ray cluster: nodes run wherever a core is free, and exchange artifacts through a store.

The build folder lies on storage that every machine mounts at the same path; with a remote store each machine has a
folder of its own, see `elsewhere`. Latency is measured only on a machine that carries the resource of this machine's
kind, since a record is about one processor: `machine_resource` names it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from pipeline.artifact import Manifest, digest_of
from pipeline.devices import host
from pipeline.errors import ToolchainError
from pipeline.execution import elsewhere, planned, remote
from pipeline.execution.elsewhere import Elsewhere, Origin
from pipeline.execution.executor import Job
from pipeline.execution.local import Local
from pipeline.execution.node import Node

_RETRIES = 2
"""Retries of a node after its machine or process was lost; a node that raises an error is not retried."""
_PAUSE_SECONDS = 0.2
_local: Local | None = None
"""In a Ray process: the executor whose workers stay warm between nodes."""
_elsewhere: dict[Origin, Elsewhere] = {}
"""In a Ray process: its own build folder, for each driver's and remote store."""


def machine_resource() -> str:
    """Return the name of the Ray resource that marks machines of this kind, on which latency may be measured.

    `python -m pipeline.execution.ray` prints it, for `ray start --resources='{"NAME": 1}'`.
    """
    here = host.describe()
    return f"machine-{digest_of([here.model_id, here.cpu_features, here.os])[:12]}"


class Ray:
    """An executor that runs nodes as tasks of a Ray cluster."""

    here = False

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
            message = "Ray is not installed; `pip install -e '.[cluster]'` in PocketBERT's folder."
            raise ToolchainError(message) from error
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ToolchainError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from error
        from ray.util.queue import Queue

        self._ray = ray
        self._remote = remote.from_environment()
        self._perform = ray.remote(max_retries=_RETRIES)(perform)
        self._told = Queue()
        self._listeners: dict[str, Callable[[str, float], None]] = {}
        self._references: set[Any] = set()
        """Of the running nodes."""
        self._closed = threading.Event()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def cores(self) -> int:
        """Cores of all machines of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def has_room(self, node: Node) -> bool:
        """Return True: Ray itself queues nodes until a machine has room for them."""
        return True

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        """Hand a node to Ray.

        Raises:
            ToolchainError: no machine of the cluster can take it.
        """
        key = job.spec.key
        origin, data = None, dict[str, str]()
        if self._remote:
            elsewhere.offer(job, self._remote)
            origin, data = Origin(job.place.parent.parent, self._remote.address), planned.counted()
        reference = self._perform.options(**self._resources(job.node)).remote(job, self._told, origin, data)
        self._listeners[key] = tell
        self._references.add(reference)
        future: Future[Manifest] = Future()
        future.add_done_callback(lambda _: self._forget(key, reference))
        reference.future().add_done_callback(lambda done: _pass_on(done, future))
        return future

    def _forget(self, key: str, reference: Any) -> None:
        """Let go of a finished node, of which a long study has thousands."""
        self._references.discard(reference)
        self._listeners.pop(key, None)

    def _resources(self, node: Node) -> dict[str, Any]:
        """Return the Ray options with the CPUs, GPUs and resources that a node needs.

        Raises:
            ToolchainError: a timed node, and no machine carries the resource of this machine's kind.
        """
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
        """Pass the progress messages of running nodes to their listeners, until the executor is closed."""
        while not self._closed.is_set():
            with contextlib.suppress(Exception):  # the queue's actor goes with the cluster
                for key, what, fraction in self._told.get_nowait_batch(self._told.qsize()):
                    if listener := self._listeners.get(key):
                        listener(what, fraction)
            time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """Cancel all nodes and end their processes."""
        for reference in list(self._references):
            self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self._closed.set()
        self._listening.join(timeout=2)
        self._told.shutdown(force=True)
        self._ray.shutdown()


def perform(job: Job, told: Any, origin: Origin | None = None, data: Mapping[str, str] | None = None) -> Manifest:
    """Run a node inside a Ray process, in a child process that stays warm.

    Args:
        job: the node.
        told: the queue of progress messages.
        origin: where the job was laid out, if this machine does not see the folder.
        data: the data files that the driver counted then, see `planned`.
    """
    global _local
    _local = _local or Local()
    key = job.spec.key

    def tell(what: str, fraction: float) -> None:
        with contextlib.suppress(Exception):  # nobody listens any more
            told.put_nowait((key, what, fraction))

    if origin is None:
        return _local.run(job, tell)
    here = _elsewhere.get(origin) or _elsewhere.setdefault(origin, Elsewhere(origin))
    return here.run(job, data or {}, partial(_local.run, tell=tell))


def _pass_on(done: Future[Manifest], future: Future[Manifest]) -> None:
    """Copy a Ray future's result or error to our future; a wrapped error is replaced by the node's own."""
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
