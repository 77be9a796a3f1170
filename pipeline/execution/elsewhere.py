"""Nodes on machines that do not see the driver's build folder: inputs come from a remote store, artifacts go there."""

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import atomic
from pipeline.artifact import Manifest, read_manifest
from pipeline.errors import ArtifactError
from pipeline.execution import planned
from pipeline.execution import store as stores
from pipeline.execution.executor import Job, counted
from pipeline.execution.node import External
from pipeline.execution.remote import Remote, content_digest, outside, outside_key
from pipeline.execution.store import KEY_LENGTH, Store

BUILD_VARIABLE = "POCKETBERT_WORKER_BUILD"
"""Environment variable of a worker: its own build folder."""


@dataclass(frozen=True)
class Origin:
    """Where a job was laid out."""

    build: Path
    """The driver's build folder, absolute."""
    address: str
    """Address of the remote store."""


def offer(job: Job, remote: Remote) -> None:
    """Write a node's inputs that no stage made into the remote store; the driver does it before it hands out a job."""
    for one in job.node.inputs.values():
        # To hash a checkpoint for every node that begins with it takes longer than the question.
        if isinstance(one, External) and remote.manifest(outside_key(one.digest)) is None:
            described, paths = outside(one.path, one.digest, one.names)
            remote.push(one.path, described, source=paths)


class Elsewhere:
    """The build folder of a worker, registered as used until its process ends."""

    def __init__(self, origin: Origin) -> None:
        """Open the folder that the environment names, or one of this user's temporary ones.

        Raises:
            ArtifactError: the folder cannot be written, or somebody else may write there.
        """
        self._origin = origin
        self._store = Store(Path(os.environ.get(BUILD_VARIABLE) or _temporary()))
        self._store.remote = Remote(origin.address)
        self._running = ExitStack()
        self._running.enter_context(self._store.running())
        self._store.evict(limit_bytes=stores.limit_bytes())

    def run(self, job: Job, data: Mapping[str, str], run: Callable[[Job], Manifest]) -> Manifest:
        """Fetch a job's inputs, run it here, and write its artifact into the remote store.

        Args:
            job: the node.
            data: the data files that the driver counted, see `planned`; the node may read no others.
            run: runs a job on this machine.

        Raises:
            PipelineError: the node's own error, or the store's.
        """
        received = _reading_only(data, self._receive(job))
        # A job that was lost may still run in another process of this machine.
        with self._store.making(job.spec.key, waiting=lambda: None):
            # The machine that was lost may have finished it; a second one would have other last digits.
            found = self._store.lookup_and_hold(job.spec)
            if found:
                return found.manifest
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
            place, remote = self._store.place(key), self._store.remote
            if _is_read(job, place):
                return
            # What lies here may be of an earlier run.
            if not (remote and remote.fetch(key, place) and _is_read(job, place)):
                raise ArtifactError(
                    f"{job.name} reads {key[:12]}, of which the remote store has another machine's, with other digits. "
                    f"Rename {self._origin.build / stores.FOLDER / key}, so that the store's is taken; run again."
                )
            self._store.finished(key)

    def _outside(self, one: External) -> Path:
        """Return where the files of an input that no stage made are on this machine."""
        key = outside_key(one.digest)
        place = self._store.place(key)
        with self._store.making(key, waiting=lambda: None):
            if not self._store.hold(key):
                raise ArtifactError(f"{one.path} is not in the remote store.")
            if content_digest(read_manifest(place), folder=bool(one.names)) != one.digest:
                raise ArtifactError(
                    f"what the remote store has as {one.path} is something else; remove {key}.json there."
                )
        return place if one.names else place / one.path.name


def _reading_only(data: Mapping[str, str], job: Job) -> Job:
    """Return a job whose functions may read no data files but some."""
    again = job.node.when_it_dies
    node = replace(job.node, when_it_dies=again and partial(planned.call, data, again))
    return replace(job, function=partial(planned.call, data, job.function), node=node)


def _temporary() -> Path:
    """Return this user's build folder among the temporary files, whose name others can foresee."""
    folder = Path(tempfile.gettempdir()) / f"pocketbert-{os.getuid()}"
    with atomic.writing(folder.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ArtifactError(f"{folder} is not this user's alone. Name a folder of your own in {BUILD_VARIABLE}.")
    return folder


def _is_read(job: Job, place: Path) -> bool:
    """Return whether an artifact's content is one that a job's key counts."""
    return counted(job.node, read_manifest(place)) in job.spec.inputs.values()
