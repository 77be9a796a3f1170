"""The files of a flat index: how much of each counts, and what is refused.

=================  ==================================================================================================
`index.json`       what the index is, see `about`; never changed
`vectors.bin`      row after row as `codes` stores them, little-endian
`passages.jsonl`   a line a row: `{"id": …, "text": …}`
`offsets.bin`      uint64 little-endian: where each row's line begins
`removed.bin`      uint32 little-endian: numbers of removed rows, in the order of removal
`state.json`       how much of each file counts; replaced after each batch, and that is the commit
`lock`             held by the one process that writes
=================  ==================================================================================================
"""

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipeline import atomic, strict
from pipeline.artifact import check_size
from pipeline.errors import ArtifactError, InputError
from pipeline.search import codes
from pipeline.search.about import About

VECTORS, PASSAGES, OFFSETS, REMOVED = "vectors.bin", "passages.jsonl", "offsets.bin", "removed.bin"
STATE = "state.json"
LOCK = "lock"
KEPT = "What is in the index so far is kept; make room and run the command again."
_LARGEST_STATE_BYTES = 1 << 12
_LONGEST_RENAME_S = 5.0
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}\.new(-journal)?")
"""Hidden files of `atomic.write_aside`, and SQLite's journal of one."""


class State(BaseModel):
    """`state.json`: how many rows, bytes of passages and removed rows count."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: int
    text_bytes: int
    removed: int


EMPTY = State(rows=0, text_bytes=0, removed=0)


def sizes(about: About, state: State) -> dict[str, int]:
    """Return how many bytes of each file count."""
    return {
        VECTORS: state.rows * codes.row_bytes(about),
        PASSAGES: state.text_bytes,
        OFFSETS: state.rows * 8,
        REMOVED: state.removed * 4,
    }


def read_state(folder: Path) -> State:
    """Read `state.json`. Without it, and without anything else, the index is empty: its maker was killed that early."""
    path = folder / STATE
    try:
        check_size(path, _LARGEST_STATE_BYTES)
        state = strict.read(State, path.read_bytes())
    except FileNotFoundError:
        if any((folder / name).exists() for name in (VECTORS, PASSAGES, OFFSETS, REMOVED)):
            raise ArtifactError(
                f"{folder} is damaged: it has no {STATE}. Delete the folder and index the texts again."
            ) from None
        return EMPTY
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(f"{path} cannot be read: {reason}. Delete the folder and index the texts again.") from error
    if not (0 <= state.removed <= state.rows < 1 << 32 and state.text_bytes >= state.rows):
        raise ArtifactError(f"{path} counts what cannot be: {state}. Delete the folder and index the texts again.")
    return state


def check_files(folder: Path, about: About, state: State) -> None:
    """Refuse an index with a file shorter than `state.json` says, or a removed row that it does not have.

    Raises:
        ArtifactError: it has, or a file cannot be read.
    """
    try:
        _check_files(folder, about, state)
    except OSError as error:
        raise ArtifactError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error


def _check_files(folder: Path, about: About, state: State) -> None:
    for name, size in sizes(about, state).items():
        path = folder / name
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise ArtifactError(
                f"{folder} is damaged: {name} has {found:,} bytes, and {STATE} counts {size:,}. Delete the folder and "
                "index the texts again."
            )
    removed = numbers(folder / REMOVED, "<u4", state.removed)
    if len(np.unique(removed)) < len(removed) or (removed >= state.rows).any():
        raise ArtifactError(
            f"{folder} is damaged: {REMOVED} names rows twice, or rows that do not exist. Delete the folder and index "
            "the texts again."
        )


def numbers(path: Path, dtype: str, count: int) -> NDArray[Any]:
    """Return the first numbers of a file; of none the file need not exist."""
    return np.fromfile(path, dtype, count) if count else np.empty(0, dtype)


def cut(path: Path, size: int) -> None:
    """Cut a file to a size, if it is longer."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > size:
            os.truncate(path, size)


def check_plain(folder: Path) -> None:
    """Refuse a folder with links, pipes or the like: writing through them changes what is no part of the index.

    Raises:
        ArtifactError: there is one.
    """
    if not os.path.isdir(folder):
        return
    try:
        found = os.scandir(folder)
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read: {error.strerror}.") from error
    with found as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise ArtifactError(
                    f"{entry.path} is no plain file, and an index holds nothing else. Remove it, or index the texts "
                    "again in another folder."
                )


def locked(folder: Path) -> FileLock:
    """Take the lock of the one writer of an index.

    Raises:
        InputError: another process has it.
    """
    lock = FileLock(folder / LOCK)
    with atomic.writing(folder, advice=KEPT):
        try:
            lock.acquire(timeout=0)
        # One of the system's errors as well.
        except Timeout as error:
            raise InputError(f"another process is writing {folder}; wait for it, or choose another --out.") from error
    return lock


def real(folder: Path) -> Path:
    """Return where a folder really lies; unlike `Path.resolve`, of a link to itself the link."""
    return Path(os.path.realpath(folder))


def beside(folder: Path, what: str) -> Path:
    """Return the hidden place beside an index, where the folder really lies, for its compaction."""
    folder = real(folder)
    return folder.parent / f".{folder.name}.{what}"


def recover(folder: Path) -> None:
    """Put an index back in its place whose compaction was killed between two renames.

    Between the renames of one that goes on, its writer still has the lock of the old folder, and is waited for.

    Raises:
        ArtifactError: the disk is read-only.
    """
    before, end = beside(folder, "before"), time.monotonic() + _LONGEST_RENAME_S
    while os.path.isdir(before) and not os.path.exists(folder) and time.monotonic() < end:
        lock = FileLock(before / LOCK)
        with atomic.writing(folder, advice=KEPT):
            try:
                lock.acquire(timeout=0)
            # One of the system's errors as well. The folder may be gone: its writer has ended.
            except (Timeout, FileNotFoundError):
                time.sleep(0.01)
                continue
            try:
                if not folder.exists():
                    before.rename(real(folder))
            finally:
                lock.release()


def sweep(folder: Path) -> None:
    """Remove what killed writers left in an index and beside it; whoever calls has its lock."""
    for what in ("before", "new"):
        atomic.remove(beside(folder, what))
    for path in folder.iterdir():
        if _HALF_WRITTEN.fullmatch(path.name):
            atomic.remove(path)


def identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one that was renamed to its place; None for none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
