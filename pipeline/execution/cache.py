"""A store's cache: results that several nodes share, such as a teacher's outputs, in folders named by their key.

Whoever fills or uses a folder holds its lock meanwhile and touches it. A folder is removed a week after
its last use, or earlier where `clean` or the store's limit asks for room.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.atomic import remove

FOLDER = ".cache"
WEEK = 7 * 24 * 3600
_DAY = 24 * 3600
_NAME = re.compile(r"[a-z]+-[0-9a-f]{64}")


def _lock(folder: Path, timeout: float = -1) -> FileLock:
    """Return the lock of a folder, which lies beside it: a file in the folder would make the folder look used."""
    return FileLock(folder.with_name(f".{folder.name}.lock"), timeout=timeout)


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """Hold a folder of the cache, made if need be; another process that wants it waits."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        folder.mkdir(exist_ok=True)
        folder.touch()
        for leftover in folder.glob(".*.new"):
            remove(leftover)
        yield


def sweep(root: Path, *, older_than_seconds: float = WEEK) -> None:
    """Remove the folders that nothing used for so long."""
    for folder in _folders(root):
        _remove(folder, older_than_seconds)


def make_room(root: Path, limit_bytes: int) -> int:
    """Remove folders that nothing used for a day, the oldest first, until no more than a limit is left.

    Returns:
        The bytes that are left.
    """
    sizes = {folder: sum(file.stat().st_size for file in folder.iterdir()) for folder in _folders(root)}
    total = sum(sizes.values())
    for folder in sorted(sizes, key=lambda one: one.stat().st_mtime):
        if total > limit_bytes and _remove(folder, _DAY):
            total -= sizes[folder]
    return total


def _folders(root: Path) -> list[Path]:
    """Return the folders of a cache; of a link, which may lead to anything, none."""
    place = root / FOLDER
    if place.is_symlink() or not place.is_dir():
        return []
    return [one for one in place.iterdir() if _NAME.fullmatch(one.name) and one.is_dir() and not one.is_symlink()]


def _remove(folder: Path, older_than_seconds: float) -> bool:
    # Another process may remove it, or use it.
    with contextlib.suppress(FileNotFoundError, Timeout), _lock(folder, timeout=0):
        if time.time() - folder.stat().st_mtime >= older_than_seconds:
            remove(folder)
            return True
    return False
