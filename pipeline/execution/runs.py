"""Running processes: what they use is never removed, and what a killed one left goes when the next one begins."""

import contextlib
import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline import atomic

_TEMPORARY = ".tmp"


class Runs:
    """The registered processes of a store: one file for each, with the keys that it uses."""

    def __init__(self, folder: Path) -> None:
        """Set the folder of their files, which is made with the first registration."""
        self._folder = folder
        self.own: Path | None = None
        """This process's file while it is registered."""

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Register this process until the block ends, or the process however it ends; a run's temporary files are its.

        Inside another run of the store they stay that one's, since processes may serve several runs inside it.

        Raises:
            ArtifactError: the folder cannot be written.
        """
        with atomic.writing(self._folder.parent, advice="Choose another folder with --build."):
            self._folder.mkdir(parents=True, exist_ok=True)
            self.alive()
            self.own, handle = _register(self._folder)
            (temporary := _temporary_of(self.own)).mkdir()
        with handle:
            try:
                with contextlib.nullcontext() if self._is_inside() else _temporary_files_in(temporary):
                    yield
            finally:
                self.own.unlink(missing_ok=True)
                self.own = None

    def _is_inside(self) -> bool:
        """Return whether temporary files go to the folder of another run of this store."""
        current = Path(os.environ.get("TMPDIR", os.devnull))
        return current.parent == self._folder.resolve() and current.is_dir()

    def use(self, key: str) -> None:
        """Record that this process uses an artifact."""
        if self.own:
            with self.own.open("a") as handle:
                handle.write(f"{key}\n")

    def used(self) -> set[str]:
        """Return the keys that running processes use, this one's included."""
        keys: set[str] = set()
        for run in self.alive():
            with contextlib.suppress(FileNotFoundError):
                keys |= set(run.read_text().split())
        return keys

    def alive(self) -> list[Path]:
        """Return the files of running processes, and remove what processes that died left."""
        alive = []
        found = list(self._folder.iterdir()) if self._folder.is_dir() else []
        for temporary in (path for path in found if path.suffix == _TEMPORARY):
            # A process registers before it makes the folder, and removes the folder first.
            if not any(run.suffix != _TEMPORARY for run in self._folder.glob(f"{temporary.stem}*")):
                atomic.remove(temporary)
        for run in (path for path in found if path.suffix != _TEMPORARY):
            with contextlib.suppress(FileNotFoundError), run.open() as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    alive.append(run)
                else:
                    atomic.remove(_temporary_of(run))
                    run.unlink(missing_ok=True)
        return alive


def _register(folder: Path) -> tuple[Path, TextIO]:
    """Create a registration file for this process; return it with its handle, which holds the kernel's lock."""
    while True:
        run = folder / uuid.uuid4().hex
        handle = run.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX)
        if run.exists():
            return run, handle
        # Between the two calls another process mistook it for a dead process's file and removed it.
        handle.close()


def _temporary_of(run: Path) -> Path:
    """Return the folder of a run's temporary files; a short name, since sockets may lie there."""
    return run.with_name(run.name[:8] + _TEMPORARY)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Redirect temporary files to a folder, which the next run removes if this one is killed."""
    before, tempfile.tempdir = os.environ.get("TMPDIR"), None
    os.environ["TMPDIR"] = str(folder.resolve())
    try:
        yield
    finally:
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        atomic.remove(folder)
