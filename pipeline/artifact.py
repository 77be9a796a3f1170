"""Artifacts: directories with files and a manifest, made once, whole or not at all.

A stage is a plain function that fills a directory. `build` decides whether it has to run:

1. the key is the sha256 of schema, stage, stage version, parameters, content digests of the inputs and tool versions;
   no time stamp and no host path is part of it;
2. an artifact in place with the same key and untouched files is kept;
3. otherwise the stage writes into a hidden directory beside the place, which is renamed into it at the end.
   Killed at any moment, a run leaves the old artifact, or none, and a hidden directory that the next run sweeps away.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from pipeline import strict
from pipeline.errors import ArtifactError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
ORIGIN = ".origin"
"""File beside a manifest with the mark of who made the artifact, see `trust.origin`; no part of its content."""
UNLISTED = frozenset({MANIFEST, ORIGIN, ".DS_Store"})
"""Files of an artifact's folder that its manifest does not list."""
_LARGEST_TEXT_BYTES = 1 << 28
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that has no bytes or inodes left, or of a user whose share is used up."""


def file_bytes(path: Path) -> int:
    """Return the size of a file, or of all files of a package."""
    if path.is_file():
        return path.stat().st_size
    # macOS leaves its own file in folders that somebody looked at; artifacts pass over it too.
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file() and part.name != ".DS_Store")


class FileEntry(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str
    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What `manifest.json` holds; the only thing that stages exchange besides the files it lists."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: int
    stage: str
    stage_version: int
    key: str
    inputs: dict[str, str]
    params: dict[str, Any]
    metrics: dict[str, Any]
    tools: dict[str, str]
    files: list[FileEntry]
    inexact_files: list[str] = []
    """Files whose last digits depend on the processor that computed them, see `digest`."""

    @property
    def digest(self) -> str:
        """Content digest: sha256 over the paths and hashes of all files.

        Two processors compute the same reference to the last digits but one, and neither is the better reference. So
        an inexact file counts by what it is computed from, and what another processor made from it still fits.
        """
        exact = [[entry.path, entry.sha256] for entry in self.files if entry.path not in self.inexact_files]
        if not self.inexact_files:
            return digest_of(exact)
        # Without the parameters: what of them decides numbers shows in the exact files.
        return digest_of([exact, self.inexact_files, self.stage, self.stage_version, self.inputs, self.tools])


@dataclass(frozen=True)
class Artifact:
    """A finished directory and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Content digest, see `Manifest.digest`."""
        return self.manifest.digest


@dataclass(frozen=True)
class Order:
    """What is wanted: where, by which stage, from what. Its key says whether it is there already."""

    place: Path
    stage: str
    stage_version: int
    params: Mapping[str, Any]
    inputs: Mapping[str, str]
    """Content digests by input name."""
    tools: Mapping[str, str]
    """Versions, by distribution, of what decides the content."""
    inexact_files: tuple[str, ...] = ()
    """Files whose last digits depend on the processor, see `Manifest.digest`."""

    @property
    def key(self) -> str:
        """Sha256 over everything that decides the content."""
        described = [SCHEMA_VERSION, self.stage, self.stage_version, self.params, self.inputs, self.tools]
        return digest_of(described)


def digest_of(value: Any) -> str:
    """Return the sha256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def list_files(folder: Path) -> list[FileEntry]:
    """Return every file below a folder, hashed, in a fixed order; links are refused."""
    return [
        FileEntry(path=name, sha256=sha256_file(path), bytes=path.stat().st_size)
        for name, path in _plain_files(folder).items()
    ]


def _plain_files(folder: Path) -> dict[str, Path]:
    """Return every file below a folder by its name in a manifest, in a fixed order; links are refused."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ArtifactError(f"{path} is a link; artifacts hold plain files only. Replace it by the file itself.")
        if not path.is_file() and not path.is_dir():
            raise ArtifactError(f"{path} is neither a file nor a folder, but a device, a pipe or a socket. Remove it.")
        if path.is_file() and path.name not in UNLISTED:
            files[path.relative_to(folder).as_posix()] = path
    return files


def check_size(path: Path) -> None:
    """Refuse a text that would not fit into memory, before it is read.

    Raises:
        OSError: it is larger than any manifest, config or tokenizer, the largest of which have 30 MB.
    """
    if path.stat().st_size > _LARGEST_TEXT_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest without looking at the files.

    Raises:
        ArtifactError: there is none, or it cannot be read.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(
            f"{folder} is not a finished artifact: it has no {MANIFEST}. Make it with `pocketbert run`."
        )
    try:
        check_size(path)
        return strict.read(Manifest, path.read_bytes())
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArtifactError(f"{path} cannot be read ({reason}); delete the folder and make it again.") from error


def load(folder: Path) -> Artifact:
    """Open a finished artifact after checking every byte of it.

    Raises:
        ArtifactError: no manifest, or a file that is missing, was changed or was added.
    """
    manifest = read_manifest(folder)
    try:
        problem = _difference(manifest, folder)
    except OSError as error:
        problem = f"{error.filename} cannot be read ({error.strerror})"
    if problem:
        raise ArtifactError(f"{folder} was changed after it was made: {problem}. Make it again with `pocketbert run`.")
    return Artifact(folder, manifest)


def _difference(manifest: Manifest, folder: Path) -> str | None:
    """Say how the files differ from the manifest, or return None."""
    found = _plain_files(folder)
    for entry in manifest.files:
        if entry.path not in found:
            return f"{entry.path} is missing"
        # Before anything is hashed: a file of another size may have any.
        size = found[entry.path].stat().st_size
        if size != entry.bytes:
            return f"{entry.path} has {size} bytes, the manifest says {entry.bytes}"
    added = sorted(found.keys() - {entry.path for entry in manifest.files})
    if added:
        return f"{added[0]} is not in the manifest"
    for entry in manifest.files:
        sha256 = sha256_file(found[entry.path])
        if sha256 != entry.sha256:
            return f"{entry.path} has sha256 {sha256[:12]}, the manifest says {entry.sha256[:12]}"
    return None


def lookup(order: Order) -> tuple[Artifact | None, str]:
    """Return the artifact if it is in place and fits the order, and else why it has to be made.

    Returns:
        `(artifact, "")`, or `(None, reason)`: "new", "changed inputs or settings", or what was found damaged.
    """
    if not order.place.exists():
        return None, "new"
    try:
        artifact = load(order.place)
    except ArtifactError as error:
        return None, str(error).split(". Make it again")[0]
    if artifact.manifest.key != order.key:
        return None, "changed inputs or settings"
    return artifact, ""


def build(order: Order, make: Callable[[Path], Mapping[str, Any]]) -> tuple[Artifact, bool]:
    """Return the artifact of an order, made now if it has to be.

    Args:
        order: what is wanted.
        make: fills the directory that it is handed and returns a metrics record.

    Returns:
        The artifact, and whether it was made now.

    Raises:
        ArtifactError: the place cannot be written.
    """
    place = order.place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _recover(place)
        artifact, _ = lookup(order)
        if artifact is not None:
            return artifact, False
        _sweep(place)
        return _make(order, make), True
    except OSError as error:
        # A copy names what it reads first and what it writes second.
        where = error.filename2 or error.filename or place
        reason = error.strerror or error
        full = f"no space left on {place.parent}: " if error.errno in FULL else ""
        raise ArtifactError(
            f"{full}{order.stage} cannot write {where}: {reason}. Finished artifacts are untouched."
        ) from error


@contextmanager
def only_run(folder: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a build folder for one run: stages read what earlier stages wrote, so runs take turns.

    The lock is the kernel's, so it ends with the process however that ends.

    Args:
        folder: the recipe's build folder.
        waiting: called once if another run holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting()
            lock.acquire()
    except OSError as error:
        reason = error.strerror or error
        raise ArtifactError(f"{folder} cannot be written: {reason}. Choose another folder with --build.") from error
    try:
        yield
    finally:
        lock.release()


def _make(order: Order, make: Callable[[Path], Mapping[str, Any]]) -> Artifact:
    """Run the stage in a hidden directory and rename that into place."""
    with write_aside(order.place) as aside:
        aside.mkdir()
        metrics = make(aside)
        open_modes(aside)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            stage=order.stage,
            stage_version=order.stage_version,
            key=order.key,
            inputs=dict(order.inputs),
            params=dict(order.params),
            metrics=dict(metrics),
            tools=dict(order.tools),
            files=list_files(aside),
            inexact_files=list(order.inexact_files),
        )
        # Last, and onto the disk itself: the manifest is what makes an artifact finished.
        path = aside / MANIFEST
        absent = None if manifest.inexact_files else {"inexact_files"}
        path.write_text(manifest.model_dump_json(indent=2, exclude=absent) + "\n", encoding="utf-8")
        sync(path)
    return Artifact(order.place, manifest)


@contextmanager
def write_aside(place: Path) -> Iterator[Path]:
    """Write a file or a directory whole or not at all.

    The block writes to the hidden path that it is handed, which does not exist yet. At the end of the block that path
    is renamed to `place`, in the place of what is there; if the block fails, it is removed.

    Args:
        place: the file or directory to write. Its folder is made if necessary.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(place)
    try:
        yield aside
        if aside.is_file():
            # Without it, a machine that loses its power may keep the new name and lose the bytes.
            sync(aside)
        replace(aside, place)
    except BaseException:
        _remove(aside)
        raise


def write_text(place: Path, text: str) -> None:
    """Write a small file whole or not at all, and remove what killed processes left beside it.

    Whoever writes holds the kernel's lock on its hidden file, so one that nobody holds is of a process that has ended.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    _sweep_files(place)
    while True:
        aside = aside_of(place)
        try:
            with aside.open("x", encoding="utf-8") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX)
                # Between the two calls another process took it for one whose process had ended.
                if not aside.exists():
                    continue
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
                aside.replace(place)
                return
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def _sweep_files(place: Path) -> None:
    """Remove hidden files beside a place that nobody writes."""
    hidden = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{8}}\.new")
    for path in place.parent.iterdir():
        if hidden.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError), path.open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def aside_of(place: Path) -> Path:
    """Return a hidden path beside a place, where it is written before it is renamed."""
    return place.parent / f".{place.name}.{uuid.uuid4().hex[:8]}.new"


def old_of(place: Path) -> Path:
    """Return the hidden path to which what is in a place goes while something else is put there."""
    return place.parent / f".{place.name}.old"


def sync(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def open_modes(folder: Path) -> None:
    """Give files that only their owner may read the mode that the folder got from the umask.

    safetensors 0.8 writes beside its target, into a temporary file of mode 0600, and renames that.
    """
    wanted = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600:
            path.chmod(wanted)


def replace(aside: Path, place: Path) -> None:
    """Put `aside` where `place` is. `_recover` repairs what a kill between the two renames of a directory leaves."""
    if aside.is_file():
        aside.replace(place)
        return
    old = old_of(place)
    if place.exists():
        _remove(old)
        place.rename(old)
    aside.rename(place)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a directory or a file, if there is one."""
    if path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _recover(place: Path) -> None:
    """Bring back the previous artifact if a run was killed between its two renames."""
    old = old_of(place)
    if old.is_dir() and not place.exists():
        old.rename(place)


def _sweep(place: Path) -> None:
    """Remove what killed runs left beside the place; `only_run` is held, so nobody writes there."""
    for leftover in place.parent.glob(f".{place.name}.*.new"):
        shutil.rmtree(leftover, ignore_errors=True)
