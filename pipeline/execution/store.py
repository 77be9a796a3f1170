"""The store: each artifact is kept once, read-only, under its key; recipes' folders hold relative links to it (views).

A view that people hand on, such as a report's, is a copy: a copied link leads nowhere.

A recipe that changes and changes back finds its artifacts again, and two recipes that begin alike share them. Artifacts
that a view shows or a running process uses are never removed; of the others, the least recently used go first.
"""

import contextlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline import artifact, atomic
from pipeline.artifact import MANIFEST, Artifact, Manifest, Spec
from pipeline.atomic import remove
from pipeline.errors import ArtifactError
from pipeline.execution import cache, remote
from pipeline.execution.runs import Runs
from pipeline.trust import origin

FOLDER = "store"
LIMIT_VARIABLE = "POCKETBERT_STORE_GB"
DEFAULT_LIMIT_BYTES = 40_000_000_000
_RUNS, _LOCKS, _USED, _SCRATCH = ".runs", ".locks", ".used", ".scratch"
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
        self.runs = Runs(self.root / _RUNS)
        self.remote = remote.from_environment()
        """Where other machines' artifacts come from and this one's go to; None: nowhere."""
        self._pushed: set[str] = set()

    def place(self, key: str) -> Path:
        """Return the folder of a key, which is absent or a whole artifact unless somebody damaged it."""
        return self.root / key

    # --- what is there ----------------------------------------------------------------------------------------------

    def lookup(self, spec: Spec) -> Artifact | None:
        """Return the complete, undamaged artifact of a spec, or None if it has to be made.

        A damaged one counts as absent; `damage` describes the fault.
        """
        if not self.place(spec.key).is_dir():
            return None
        if self.runs.own is None:
            return whole(self.place(spec.key), spec)
        with self.making(spec.key) as alone:
            # While another process makes it, it is not complete.
            return self.lookup_and_hold(spec) if alone else None

    def lookup_and_hold(self, spec: Spec) -> Artifact | None:
        """Return the artifact of a spec whose key this process holds, or None; another run may have made it."""
        place = self.place(spec.key)
        found = whole(place, spec)
        if found is None and self.remote and self.remote.fetch(spec.key, place):
            found = whole(place, spec)
        if found:
            if place.stat().st_mode & 0o222:
                # The run that made it was killed before it protected it.
                with contextlib.suppress(PermissionError):
                    self._protect(spec.key)
            self._use(spec.key)
        return found

    def elsewhere(self, spec: Spec) -> Artifact | None:
        """Return the artifact of a spec that the remote store has, of which no file is here; None if it has none."""
        manifest = self.remote.manifest(spec.key) if self.remote else None
        return Artifact(self.place(spec.key), manifest) if manifest else None

    def hold(self, key: str) -> bool:
        """Fetch the artifact of a key that this process holds, unless it is here; return whether it is now."""
        place = self.place(key)
        if not is_whole(place, key) and not (self.remote and self.remote.fetch(key, place)):
            return False
        self._protect(key)
        self._use(key)
        return True

    def damage(self, spec: Spec) -> str | None:
        """Return a description of the fault of the artifact under a spec's key; None if it is sound or absent."""
        if not self.place(spec.key).exists():
            return None
        try:
            artifact.load(self.place(spec.key))
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

    @property
    def cache(self) -> Path:
        """The folder of what several nodes use, such as a teacher's outputs."""
        return self.root / cache.FOLDER

    def finished(self, key: str) -> None:
        """Make a new artifact read-only, remove its scratch folder, and record that this process uses it.

        Raises:
            ArtifactError: another machine made it, and the remote store does not have it.
        """
        if self.remote is None:
            self._protect(key)
            self._use(key)
        elif not self.hold(key):
            raise ArtifactError(f"the remote store {self.remote.name} lost {key[:12]}, which another machine made.")

    def _protect(self, key: str) -> None:
        protect(self.place(key))
        shutil.rmtree(self.scratch(key), ignore_errors=True)

    def abandon(self, key: str) -> None:
        """Remove the half-made folders of a key that this process holds."""
        for leftover in self.root.glob(f".{key}.*.new"):
            remove(leftover)

    def get(
        self, spec: Spec, view: Path, fill: Callable[[Path], Mapping[str, Any]], *, waiting: Callable[[], None]
    ) -> tuple[Artifact, bool]:
        """Return a single artifact, made in this process if it has to be, and link a view to it.

        Args:
            spec: what it is made from.
            view: the link.
            fill: fills the folder that it is handed, and returns the metrics.
            waiting: called once if another process makes it, which then is waited for.

        Returns:
            The artifact, and whether it was made now.

        Raises:
            ArtifactError: the store or the view cannot be written.
        """
        place = self.place(spec.key)
        with atomic.writing(self.build), self.running(), self.making(spec.key, waiting=waiting):
            found = self.lookup_and_hold(spec)
            made = found or Artifact(place, make(place, spec, fill, []))
            if found is None:
                self.finished(spec.key)
            self.link(view, spec.key)
        return made, found is None

    def link(self, view: Path, key: str) -> None:
        """Link a view to an artifact, by one atomic rename.

        Raises:
            ArtifactError: the place cannot be written.
        """
        target = os.path.relpath(self.root / key, view.parent)
        if view.is_symlink() and os.readlink(view) == target:
            return
        self.check_place(view)
        with atomic.writing(view.parent):
            view.parent.mkdir(parents=True, exist_ok=True)
            if view.is_dir() and not view.is_symlink():
                remove(view)
            aside = view.parent / f".{view.name}.{uuid.uuid4().hex[:8]}{_ASIDE}"
            aside.symlink_to(target, target_is_directory=True)
            aside.replace(view)

    def copy(self, view: Path, key: str) -> None:
        """Make a view that is a copy of an artifact, writable and without links, in the place of an older one.

        Raises:
            ArtifactError: the place cannot be written, or holds files of a user.
        """
        if not view.is_symlink() and is_whole(view, key):
            return
        self.check_place(view)
        older = view if view.is_dir() and not view.is_symlink() else None
        # Under the key's lock, `sweep` of another run leaves the half-made copy alone.
        with self.making(key, waiting=lambda: None), atomic.writing(view.parent):
            view.parent.mkdir(parents=True, exist_ok=True)
            aside = atomic.aside_of(self.place(key))
            try:
                _copy(self.place(key), aside)
                if older:
                    self.discard(older)
                view.unlink(missing_ok=True)
                aside.rename(view)
            except BaseException:
                remove(aside)
                raise

    def discard(self, folder: Path) -> None:
        """Remove a folder of a recipe's: a killed process leaves it whole, or in the store, where `sweep` finds it."""
        if self.root.is_dir() and self.root.stat().st_dev == folder.stat().st_dev:
            folder = folder.rename(self.root / f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
        remove(folder)

    def check_place(self, view: Path) -> None:
        """Refuse the place of a view if a user's file or folder lies there, or if relative links break there.

        Raises:
            ArtifactError: a file, or a folder that is no artifact or has a user's files, lies there; or a folder above
                it is a link.
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
        for added in _added(view):
            raise ArtifactError(
                f"{added} was not made by pocketbert, and a new {view.name} belongs there. Move it away."
            )

    # --- who holds what ---------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Register this process, so that others do not remove the artifacts it uses until it ends, however it ends.

        Raises:
            ArtifactError: the store cannot be written.
        """
        with atomic.writing(self.root, advice="Choose another folder with --build."):
            self.root.mkdir(parents=True, exist_ok=True)
            self.sweep()
        with self.runs.registered():
            yield

    def _use(self, key: str) -> None:
        """Record that this process uses an artifact, and the time of use; the remote store gets what it lacks."""
        if self.runs.own is None:
            return
        self.runs.use(key)
        used = self.root / _USED / key
        used.parent.mkdir(exist_ok=True)
        used.touch()
        if self.remote and key not in self._pushed:
            self.remote.push(self.place(key), artifact.read_manifest(self.place(key)))
            self._pushed.add(key)

    @contextmanager
    def making(self, key: str, *, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
        """Hold a key's lock while its artifact is made; the kernel releases it if the process ends.

        Args:
            key: of the artifact.
            waiting: called once if another process holds the lock, which then is waited for; None: do not wait.

        Yields:
            Whether the lock is held; with `waiting` it always is.
        """
        (self.root / _LOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / _LOCKS / key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is None:
                yield False
                return
            waiting()
            lock.acquire()
        try:
            yield True
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove the half-made folders of killed runs, whose key no process holds, and what the cache has unused."""
        for leftover in (*self.root.glob(".*.new"), *self.root.glob(".*.old")):
            with self.making(leftover.name.split(".")[1]) as alone:
                if alone:
                    remove(leftover)
        cache.sweep(self.root)

    def viewed(self, *, but_for: Collection[Path] = ()) -> set[str]:
        """Return the keys that views show, except for views in the recipes' folders `but_for`."""
        folders = [folder for folder in self._recipes() if folder not in but_for]
        return {key for folder in folders for view in views(folder) if (key := shown_by(view))}

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

        Unless only some keys are asked for, what the cache has unused goes first.

        Args:
            among: only these keys; None: all.
            but_for: recipes' folders that are about to be removed, whose views hold nothing.
            older_than_seconds: artifacts that were used more recently stay.
            limit_bytes: stop as soon as the store is no larger; None: remove all that may go.

        Returns:
            The keys of the removed artifacts.
        """
        kept = self.viewed(but_for=but_for) | self.runs.used()
        keys = [key for key in self.keys() if among is None or key in among]
        sizes = {key: _bytes(self.root / key) for key in keys} if limit_bytes is not None else {}
        total, removed, now = sum(sizes.values()), [], time.time()
        if limit_bytes is not None:
            total += cache.make_room(self.root, max(0, limit_bytes - total))
        elif among is None:
            cache.sweep(self.root, older_than_seconds=min(older_than_seconds, cache.WEEK))
        for key in sorted(set(keys) - kept, key=self._last_used):
            if limit_bytes is not None and total <= limit_bytes:
                break
            if now - self._last_used(key) < older_than_seconds:
                break
            with self.making(key) as alone:
                # Asked once more under the lock: whoever begins to use an artifact holds it for that moment, and a
                # run that ended meanwhile left a view.
                if alone and key not in self.runs.used() and key not in self.viewed(but_for=but_for):
                    remove(self.root / key)
                    if (self.root / key).exists():
                        continue
                    (self.root / _USED / key).unlink(missing_ok=True)
                    total -= sizes.get(key, 0)
                    removed.append(key)
        return removed

    def remove_if_empty(self) -> None:
        """Remove the store's folder if it holds no artifact and no process uses it."""
        if self.root.is_dir() and not self.keys() and not self.runs.alive():
            remove(self.root)

    def _last_used(self, key: str) -> float:
        used = self.root / _USED / key
        with contextlib.suppress(FileNotFoundError):
            return used.stat().st_mtime
        with contextlib.suppress(FileNotFoundError):
            return (self.root / key / MANIFEST).stat().st_mtime
        return 0.0


def whole(place: Path, spec: Spec) -> Artifact | None:
    """Return the artifact in a place if it is complete, undamaged and of this spec."""
    try:
        found = artifact.load(place)
    except ArtifactError:
        return None
    return found if found.manifest.key == spec.key else None


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


def make(place: Path, spec: Spec, function: Callable[..., Mapping[str, Any]], arguments: Sequence[Any]) -> Manifest:
    """Make an artifact in a hidden folder beside its place, and rename it into place when it is complete.

    Args:
        place: what is damaged there, or of another spec, is removed when the new one is complete.
        spec: what it is made from.
        function: fills the folder that is its last argument, and returns the metrics.
        arguments: its other arguments.

    Raises:
        ArtifactError: the place cannot be written.
    """
    with atomic.writing(place.parent, stage=spec.stage):
        found = whole(place, spec)
        if found:
            # An executor tries again when it loses the machine that finished it.
            return found.manifest
        with atomic.write_aside(place) as aside:
            aside.mkdir()
            metrics = function(*arguments, aside)
            atomic.open_modes(aside)
            manifest = artifact.seal(aside, spec, metrics)
            origin.mark(aside)
    return manifest


def protect(folder: Path) -> None:
    """Remove the write permission from an artifact's files and folders."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def views(folder: Path) -> Iterator[Path]:
    """Yield the views below a recipe's folder, links and copies; other runs may add or remove views meanwhile."""
    paths = []
    with contextlib.suppress(FileNotFoundError):
        paths = list(folder.iterdir())
    for path in paths:
        if path.is_symlink() or (path / MANIFEST).is_file():
            yield path
        elif path.is_dir():
            yield from views(path)


def shown_by(view: Path) -> str | None:
    """Return the key of the artifact that a view shows; None if the view is gone or still has its temporary name."""
    if view.name.endswith(_ASIDE):
        return None
    with contextlib.suppress(FileNotFoundError, ArtifactError):
        return Path(os.readlink(view)).name if view.is_symlink() else artifact.read_manifest(view).key
    return None


def _copy(source: Path, out: Path) -> None:
    """Copy an artifact's files, writable, without the mark of the machine that made it."""
    listed = [entry.path for entry in artifact.read_manifest(source).files]
    for name in (*listed, MANIFEST):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, out / name)


def _added(view: Path) -> list[Path]:
    """Return a user's files in a view that is a folder; those of a link's are in nobody's way."""
    try:
        return [] if view.is_symlink() or not view.is_dir() else artifact.added(view)
    except ArtifactError:
        return []


def is_whole(view: Path, key: str) -> bool:
    """Return whether a folder is a complete, undamaged artifact of a key."""
    try:
        return artifact.load(view).manifest.key == key
    except ArtifactError:
        return False


def _bytes(folder: Path) -> int:
    total = 0
    # Another process may be removing it.
    with contextlib.suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            total += path.stat().st_size if path.is_file() else 0
    return total
