"""An executor that outlives a graph, for who carries out one after the other."""

from collections.abc import Callable
from concurrent.futures import Future

from pipeline.artifact import Manifest
from pipeline.execution.executor import Executor, Job
from pipeline.execution.node import Node


class Kept:
    """An executor for one graph after the other: its processes stay, and with them the libraries that they imported."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        """Keep how the executor is made, for the first graph.

        Args:
            make: makes it; called again after `end`.
        """
        self._make = make
        self._made: Executor | None = None

    @property
    def here(self) -> bool:
        """Whether nodes run on this machine."""
        return self._inner.here

    @property
    def _inner(self) -> Executor:
        self._made = self._made or self._make()
        return self._made

    def has_room(self, node: Node) -> bool:
        """Return whether the node may begin now."""
        return self._inner.has_room(node)

    def submit(self, job: Job, tell: Callable[[str, float], None]) -> Future[Manifest]:
        """Begin a node."""
        return self._inner.submit(job, tell)

    def stop(self) -> None:
        """End all running nodes at once."""
        if self._made is not None:
            self._made.stop()

    def close(self) -> None:
        """Keep the processes for the next graph."""

    def end(self) -> None:
        """Release the processes; called when no node runs any more."""
        made, self._made = self._made, None
        if made is not None:
            made.close()
