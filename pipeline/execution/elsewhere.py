"""Nodes on machines that do not see the driver's build folder: inputs come from a remote store, artifacts go there."""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.artifact import Manifest
from pipeline.errors import ArtifactError
from pipeline.execution import store as stores
from pipeline.execution.executor import Job
from pipeline.execution.node import External
from pipeline.execution.remote import Remote, outside, outside_key
from pipeline.execution.store import KEY_LENGTH, Store

BUILD_VARIABLE = "POCKETBERT_WORKER_BUILD"
"""Environment variable of a worker: its own build folder."""
_OUTSIDE = ".outside"


@dataclass(frozen=True)
class Origin:
    """Where a job was laid out."""

    build: Path
    """The driver's build folder, absolute."""
    address: str
    """Of the remote store."""


def offer(job: Job, remote: Remote) -> None:
    """Write a node's inputs that no stage made into the remote store; the driver does it before it hands out a job."""
    for one in job.node.inputs.values():
        if isinstance(one, External):
            described, paths = outside(one.path, one.digest, one.names)
            remote.push(one.path, described, source=paths)


class Elsewhere:
    """The build folder of a worker, registered as used until its process ends."""

    def __init__(self, origin: Origin) -> None:
        """Open the folder that the environment names, or one of this user's temporary ones."""
        usual = Path(tempfile.gettempdir()) / f"pocketbert-{os.getuid()}"
        self._origin = origin
        self._store = Store(Path(os.environ.get(BUILD_VARIABLE) or usual))
        self._store.remote = Remote(origin.address)
        self._running = ExitStack()
        self._running.enter_context(self._store.running())
        self._store.evict(limit_bytes=stores.limit_bytes())

    def run(self, job: Job, run: Callable[[Job], Manifest]) -> Manifest:
        """Fetch a job's inputs, run it here, and write its artifact into the remote store.

        Raises:
            PipelineError: the node's own error, or the store's.
        """
        received = self._receive(job)
        # A job that was lost may still run in another process of this machine.
        with self._store.making(job.spec.key, waiting=lambda: None):
            manifest = run(received)
            self._store.finished(job.spec.key)
        return manifest

    def _receive(self, job: Job) -> Job:
        """Return a job with paths of this machine, and its inputs fetched.

        Raises:
            ArtifactError: an input is not in the remote store, or there is no room for it.
        """
        here = {str(one.path): self._outside(one) for one in job.node.inputs.values() if isinstance(one, External)}
        keys: set[str] = set()
        build = self._origin.build

        def moved(value: Any) -> Any:
            if type(value) in (tuple, list):
                return type(value)(moved(one) for one in value)
            if not isinstance(value, Path):
                return value
            if str(value) in here:
                return here[str(value)]
            if not value.is_relative_to(build):
                return value
            inside = value.relative_to(build)
            keys.update(
                name for name in inside.parts[1:2] if inside.parts[0] == stores.FOLDER and len(name) == KEY_LENGTH
            )
            return self._store.build.absolute() / inside

        arguments = moved(job.arguments)
        for key in keys:
            self._fetch(key, job)
        return replace(job, place=moved(job.place), log=moved(job.log), arguments=arguments)

    def _fetch(self, key: str, job: Job) -> None:
        with self._store.making(key, waiting=lambda: None):
            if not self._store.hold(key):
                raise ArtifactError(f"{job.name} needs {key[:12]}, which the remote store does not have.")

    def _outside(self, one: External) -> Path:
        """Return where the files of an input that no stage made are on this machine."""
        key, remote = outside_key(one.digest), self._store.remote
        assert remote
        folder = self._store.root / _OUTSIDE / key
        with self._store.making(key, waiting=lambda: None):
            if not stores.is_whole(folder, key) and not remote.fetch(key, folder):
                raise ArtifactError(f"{one.path} is not in the remote store.")
        return folder if one.names else folder / one.path.name
