"""Writing whole or not at all: what is written has a hidden name beside its place, and is renamed when it is complete.

Killed at any moment, a process leaves what was there before, or the new thing, and perhaps a hidden file or folder.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ArtifactError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that has no bytes or inodes left, or of a user whose share is used up."""
UNTOUCHED = "Finished artifacts are untouched."


@contextmanager
def writing(folder: Path, *, stage: str = "", advice: str = UNTOUCHED) -> Iterator[None]:
    """Turn an `OSError` of a full, read-only or missing disk into an `ArtifactError` that names the path.

    Args:
        folder: named if the error names no path.
        stage: the stage that writes.
        advice: the last sentence of the message.

    Raises:
        ArtifactError: a file could not be read or written.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        # A copy names what it reads first and what it writes second.
        where, reason = error.filename2 or error.filename or folder, error.strerror or error
        full = f"no space left on {folder}: " if error.errno in FULL else ""
        prefix = f"{full}{stage and f'{stage}: '}"
        raise ArtifactError(f"{prefix}{where} cannot be written: {reason}. {advice}") from error


@contextmanager
def write_aside(place: Path) -> Iterator[Path]:
    """Write a file or a folder whole or not at all.

    The block writes to the hidden path that it is handed, which does not exist yet. At the end of the block that path
    is renamed to `place`, in the place of what is there; if the block fails, it is removed.

    Args:
        place: the file or folder to write. The folder above it is made if necessary.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(place)
    try:
        yield aside
        if aside.is_file():
            # Without it, a machine that loses its power may keep the new name and lose the bytes.
            sync(aside)
        put(aside, place)
    except BaseException:
        remove(aside)
        raise


def write_text(place: Path, text: str) -> None:
    """Write a small file of text; see `write_bytes`."""
    write_bytes(place, text.encode())


def write_bytes(place: Path, content: bytes) -> None:
    """Write a small file whole or not at all, and remove what killed processes left beside it.

    Whoever writes holds the kernel's lock on its hidden file, so one that nobody holds is of a process that has ended.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    _sweep_files(place)
    while True:
        aside = aside_of(place)
        try:
            with aside.open("xb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX)
                # Between the two calls another process took it for one whose process had ended.
                if not aside.exists():
                    continue
                handle.write(content)
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


def put(aside: Path, place: Path) -> None:
    """Rename a complete file or folder to its place. What is there is replaced by a file, and removed for a folder."""
    if aside.is_dir():
        remove(place)
    aside.replace(place)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, read-only or not, if it is there."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    for folder in (path, *(one for one in path.rglob("*") if one.is_dir() and not one.is_symlink())):
        with contextlib.suppress(OSError):
            folder.chmod(0o755)
    shutil.rmtree(path, ignore_errors=True)


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
