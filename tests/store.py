"""Folders that are made once and shared by all workers of a run, or kept for the next run."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.artifact import Artifact, Spec
from pipeline.atomic import remove
from pipeline.execution import store

REPOSITORY = Path(__file__).resolve().parents[1]
_TOOLS = ("torch", "transformers", "tokenizers", "executorch", "ai-edge-litert", "ai-edge-quantizer", "litert-torch")


class Store:
    """Folders by name; whoever asks first makes one, and others wait for it."""

    def __init__(self, root: Path) -> None:
        """Keep folders below a root."""
        self._root = root

    def has(self, name: str, key: str = "") -> bool:
        """Return whether a folder was filled for this key."""
        done = self._root / f"{name}.key"
        return done.exists() and done.read_text(encoding="utf-8") == key

    def get(self, name: str, make: Callable[[Path], object], key: str = "") -> Path:
        """Return a folder, filled now unless that was done for the same key."""
        folder, done = self._root / name, self._root / f"{name}.key"
        self._root.mkdir(parents=True, exist_ok=True)
        with FileLock(self._root / f"{name}.lock"):
            if not self.has(name, key):
                done.unlink(missing_ok=True)
                if folder.exists():
                    remove(folder)
                folder.mkdir()
                make(folder)
                done.write_text(key, encoding="utf-8")
        return folder


def kept(place: Path, spec: Spec, fill: Callable[[Path], Mapping[str, Any]]) -> Artifact:
    """Return the artifact in a place, made again if it is of another spec: campaigns keep one for each name."""
    for leftover in place.parent.glob(f".{place.name}.*.new"):
        remove(leftover)
    return Artifact(place, store.make(place, spec, fill, []))


@contextmanager
def only_run(folder: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a folder for one process; `waiting` is called once if another one holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@cache
def code_and_tools() -> str:
    """Return a digest of all that decides what the command makes: the package's files, and the tools' versions."""
    found = hashlib.sha256()
    for path in sorted((REPOSITORY / "pipeline").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(path.relative_to(REPOSITORY).as_posix().encode() + b"\0" + path.read_bytes())
    for name in ("conftest.py", "pieces.py"):
        found.update(Path(__file__).with_name(name).read_bytes())
    present = {one.name: one.version for one in metadata.distributions()}
    found.update(repr([(name, present.get(name)) for name in _TOOLS]).encode())
    return found.hexdigest()
