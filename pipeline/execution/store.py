"""The store: each artifact is kept once, read-only, under its key; recipes' folders hold relative links to it (views).

A recipe that changes and changes back finds its artifacts again, and two recipes that begin alike share them. Artifacts
that a view shows or a running process uses are never removed; of the others, the least recently used go first.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from pipeline import artifact
from pipeline.artifact import MANIFEST, Artifact, Manifest, Order
from pipeline.errors import ArtifactError
from pipeline.trust import origin

FOLDER = "store"
LIMIT_VARIABLE = "POCKETBERT_STORE_GB"
DEFAULT_LIMIT_BYTES = 40_000_000_000
_RUNS, _LOCKS, _USED, _SCRATCH = ".runs", ".locks", ".used", ".scratch"
_TEMPORARY = ".tmp"
KEY_LENGTH = 64
_ASIDE = ".link"
"""Suffix of a view's temporary name before it is renamed into place; a killed run may leave one."""


class Store:
    """The store of one build folder."""

    def __init__(self, build: Path) -> None:
        """Set the paths; folders are made with the first write."""
        self.build = build
        # Processes on other machines read it by this path.
        self.root = Path(os.path.abspath(build)) / FOLDER
        self._run: Path | None = None

    # --- what is there ----------------------------------------------------------------------------------------------

    def lookup(self, order: Order) -> Artifact | None:
        """Return the complete, undamaged artifact of an order, or None if it has to be made.

        A damaged one counts as absent; `damage` describes the fault.
        """
        if not order.place.is_dir():
            return None
        if self._run is None:
            return _whole(order)
        key = order.place.name
        with self.making(key, wait=False) as alone:
            # While another process makes it, it is not complete.
            found = _whole(order) if alone else None
            if found:
                self._take(order)
        return found

    def lookup_and_hold(self, order: Order) -> Artifact | None:
        """Return the artifact of an order whose key this process holds, or None; another run may have made it."""
        found = _whole(order)
        if found:
            self._take(order)
        return found

    def _take(self, order: Order) -> None:
        """Mark an artifact as used; protect it first if the run that made it was killed before that."""
        if order.place.stat().st_mode & 0o222:
            with contextlib.suppress(PermissionError):
                self.finished(order.place.name)
        self.use(order.place.name)

    def damage(self, order: Order) -> str | None:
        """Return a description of the fault of the artifact under an order's key; None if it is sound or absent."""
        if not order.place.exists():
            return None
        try:
            artifact.load(order.place)
        except ArtifactError as error:
            return str(error).split(". Make it again")[0]
        return None

    def in_view(self, view: Path) -> Manifest | None:
        """Return the manifest of the artifact that a view shows, or None if there is none."""
        try:
            return artifact.read_manifest(view) if view.is_dir() else None
        except ArtifactError:
            return None

    def keys(self) -> list[str]:
        """Return the keys of all artifacts in the store."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.is_dir() and len(path.name) == KEY_LENGTH)

    # --- making -----------------------------------------------------------------------------------------------------

    def scratch(self, key: str) -> Path:
        """Return the scratch folder of a node, from which a stopped run resumes."""
        return self.root / _SCRATCH / key

    def finished(self, key: str) -> None:
        """Make a new artifact read-only, and remove its scratch folder."""
        protect(self.root / key)
        shutil.rmtree(self.scratch(key), ignore_errors=True)

    def abandon(self, key: str) -> None:
        """Remove the half-made folders of a key that this process holds."""
        for leftover in self.root.glob(f".{key}.*.new"):
            remove(leftover)

    def link(self, view: Path, key: str) -> None:
        """Link a view to an artifact, by one atomic rename.

        Raises:
            ArtifactError: the place cannot be written.
        """
        target = os.path.relpath(self.root / key, view.parent)
        if view.is_symlink() and os.readlink(view) == target:
            return
        self.check_place(view)
        try:
            view.parent.mkdir(parents=True, exist_ok=True)
            if view.is_dir() and not view.is_symlink():
                remove(view)
            aside = view.parent / f".{view.name}.{uuid.uuid4().hex[:8]}{_ASIDE}"
            aside.symlink_to(target, target_is_directory=True)
            aside.replace(view)
        except OSError as error:
            reason = error.strerror or error
            raise ArtifactError(f"{view} cannot be written: {reason}. Finished artifacts are untouched.") from error

    def check_place(self, view: Path) -> None:
        """Refuse the place of a view if a user's file or folder lies there, or if relative links break there.

        Raises:
            ArtifactError: a file, or a folder that is no artifact, lies there; or a folder above it is a link.
        """
        for folder in view.relative_to(self.build).parents[:-1]:
            if (self.build / folder).is_symlink():
                raise ArtifactError(
                    f"{self.build / folder} is a link; views are relative to where they lie. Remove the link, or link "
                    f"{self.build} as a whole."
                )
        if view.exists() and not view.is_symlink() and not (view / MANIFEST).is_file():
            what = "folder without a manifest" if view.is_dir() else "file"
            raise ArtifactError(
                f"{view} is a {what}, which pocketbert did not make, and a view belongs there. Move it away."
            )

    # --- who holds what ---------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Register this process, so that others do not remove the artifacts it uses until it ends, however it ends.

        Raises:
            ArtifactError: the store cannot be written.
        """
        try:
            folder = self.root / _RUNS
            folder.mkdir(parents=True, exist_ok=True)
            self.sweep()
            self._run, handle = _register(folder)
            (temporary := _temporary_of(self._run)).mkdir()
        except OSError as error:
            reason = error.strerror or error
            raise ArtifactError(
                f"{self.root} cannot be written: {reason}. Choose another folder with --build."
            ) from error
        with handle:
            try:
                with _temporary_files_in(temporary):
                    yield
            finally:
                self._run.unlink(missing_ok=True)
                self._run = None

    def use(self, key: str) -> None:
        """Record that this process uses an artifact, and the time of use."""
        if self._run is None:
            return
        with self._run.open("a") as handle:
            handle.write(f"{key}\n")
        used = self.root / _USED / key
        used.parent.mkdir(exist_ok=True)
        used.touch()

    @contextmanager
    def making(self, key: str, *, wait: bool) -> Iterator[bool]:
        """Hold a key's lock while its artifact is made; the kernel releases it if the process ends.

        Yields:
            Whether the lock is held; with `wait` it always is.
        """
        (self.root / _LOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / _LOCKS / key)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def held(self) -> set[str]:
        """Return the keys that running processes use, this one's included."""
        keys: set[str] = set()
        for run in self._runs():
            with contextlib.suppress(FileNotFoundError):
                keys |= set(run.read_text().split())
        return keys

    def _runs(self) -> Iterator[Path]:
        """Yield the registration files of running processes, and remove the files of processes that died."""
        folder = self.root / _RUNS
        found = list(folder.iterdir()) if folder.is_dir() else []
        for temporary in (path for path in found if path.suffix == _TEMPORARY):
            # A process registers before it makes the folder, and removes the folder first.
            if not any(run.suffix != _TEMPORARY for run in folder.glob(f"{temporary.stem}*")):
                remove(temporary)
        for run in (path for path in found if path.suffix != _TEMPORARY):
            with contextlib.suppress(FileNotFoundError), run.open() as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    yield run
                else:
                    remove(_temporary_of(run))
                    run.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the half-made folders of killed runs: those whose key no process holds."""
        for leftover in (*self.root.glob(".*.new"), *self.root.glob(".*.old")):
            with self.making(leftover.name.split(".")[1], wait=False) as alone:
                if alone:
                    remove(leftover)

    def viewed(self, *, but_for: Collection[Path] = ()) -> set[str]:
        """Return the keys that views show, except for views in the recipes' folders `but_for`."""
        folders = [folder for folder in self._recipes() if folder not in but_for]
        return {target.name for folder in folders for link in views(folder) if (target := shown_by(link))}

    def _recipes(self) -> list[Path]:
        if not self.build.is_dir():
            return []
        return [
            path for path in self.build.iterdir() if path.is_dir() and path.name != FOLDER and not path.is_symlink()
        ]

    # --- making room ------------------------------------------------------------------------------------------------

    def evict(
        self,
        *,
        among: set[str] | None = None,
        but_for: Collection[Path] = (),
        older_than_seconds: float = 0.0,
        limit_bytes: int | None = None,
    ) -> list[str]:
        """Remove artifacts that no view shows and no running process uses, the least recently used first.

        Args:
            among: only these keys; None: all.
            but_for: recipes' folders that are about to be removed, whose views hold nothing.
            older_than_seconds: artifacts that were used more recently stay.
            limit_bytes: stop as soon as the store is no larger; None: remove all that may go.

        Returns:
            The keys of the removed artifacts.
        """
        kept = self.viewed(but_for=but_for) | self.held()
        keys = [key for key in self.keys() if among is None or key in among]
        sizes = {key: _bytes(self.root / key) for key in keys} if limit_bytes is not None else {}
        total, removed, now = sum(sizes.values()), [], time.time()
        for key in sorted(set(keys) - kept, key=self._last_used):
            if limit_bytes is not None and total <= limit_bytes:
                break
            if now - self._last_used(key) < older_than_seconds:
                break
            with self.making(key, wait=False) as alone:
                # Asked once more under the lock: whoever begins to use an artifact holds it for that moment, and a
                # run that ended meanwhile left a view.
                if alone and key not in self.held() and key not in self.viewed(but_for=but_for):
                    remove(self.root / key)
                    if (self.root / key).exists():
                        continue
                    (self.root / _USED / key).unlink(missing_ok=True)
                    total -= sizes.get(key, 0)
                    removed.append(key)
        return removed

    def remove_if_empty(self) -> None:
        """Remove the store's folder if it holds no artifact and no process uses it."""
        if self.root.is_dir() and not self.keys() and next(self._runs(), None) is None:
            remove(self.root)

    def _last_used(self, key: str) -> float:
        used = self.root / _USED / key
        with contextlib.suppress(FileNotFoundError):
            return used.stat().st_mtime
        with contextlib.suppress(FileNotFoundError):
            return (self.root / key / MANIFEST).stat().st_mtime
        return 0.0


@contextmanager
def writing(build: Path) -> Iterator[None]:
    """Turn an `OSError` of a full, read-only or missing disk into an `ArtifactError` that names the path.

    Raises:
        ArtifactError: a file could not be read or written.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        where, reason = error.filename2 or error.filename or build, error.strerror or error
        raise ArtifactError(f"{where} cannot be written: {reason}. Finished artifacts are untouched.") from error


def _whole(order: Order) -> Artifact | None:
    try:
        found = artifact.load(order.place)
    except ArtifactError:
        return None
    return found if found.manifest.key == order.key else None


def limit_bytes() -> int:
    """Return the size in bytes beyond which a run removes unused artifacts from the store.

    Raises:
        ArtifactError: the variable holds no number.
    """
    value = os.environ.get(LIMIT_VARIABLE)
    if value is None:
        return DEFAULT_LIMIT_BYTES
    try:
        gigabytes = float(value)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < float("inf"):
        raise ArtifactError(f"{LIMIT_VARIABLE} is {value!r}; give the store's limit in gigabytes, such as 40.")
    return int(gigabytes * 1e9)


def make(order: Order, function: Callable[..., Mapping[str, Any]], arguments: list[Any]) -> Manifest:
    """Make an artifact in a temporary folder beside its place, and rename it into place when it is complete.

    Args:
        order: the order, whose place is the store's folder of its key.
        function: fills the directory that is its last argument.
        arguments: its other arguments.
    """
    made, now = artifact.build(order, lambda out: function(*arguments, out))
    # A folder that was there already may have come from elsewhere.
    if now:
        origin.mark(made.path)
    return made.manifest


def protect(folder: Path) -> None:
    """Remove the write permission from an artifact's files and folders."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, read-only or not."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    for folder in (path, *(one for one in path.rglob("*") if one.is_dir() and not one.is_symlink())):
        with contextlib.suppress(OSError):
            folder.chmod(0o755)
    shutil.rmtree(path, ignore_errors=True)


def views(folder: Path) -> Iterator[Path]:
    """Yield the views below a recipe's folder; other runs may add or remove views meanwhile."""
    paths = []
    with contextlib.suppress(FileNotFoundError):
        paths = list(folder.iterdir())
    for path in paths:
        if path.is_symlink():
            yield path
        elif path.is_dir():
            yield from views(path)


def shown_by(view: Path) -> Path | None:
    """Return the artifact's path that a view links to; None if the view is gone or still has its temporary name."""
    if view.name.endswith(_ASIDE):
        return None
    with contextlib.suppress(FileNotFoundError):
        return Path(os.path.normpath(view.parent / os.readlink(view)))
    return None


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
        remove(folder)


def _bytes(folder: Path) -> int:
    total = 0
    # Another process may be removing it.
    with contextlib.suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            total += path.stat().st_size if path.is_file() else 0
    return total
