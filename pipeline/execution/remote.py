"""A remote store: finished artifacts behind an address of fsspec, such as a bucket, for machines that share no disk.

A file lies under its sha256, once for all artifacts that have it, and an artifact's manifest under its key. Manifests
are written last, and whoever fetches checks every byte: a writer that was killed leaves what counts as absent.
"""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pipeline import artifact, atomic, strict
from pipeline.artifact import MANIFEST, SCHEMA_VERSION, FileEntry, Manifest, digest_of, sha256_file
from pipeline.errors import ArtifactError, InputError

VARIABLE = "POCKETBERT_STORE"
_HASH_LENGTH = 64
_Found = TypeVar("_Found")
_OUTSIDE = "outside"
"""Stage of files that no stage made, such as a checkpoint that a recipe names."""


def from_environment() -> "Remote | None":
    """Return the remote store that the environment names, or None. Nothing is connected to yet."""
    address = os.environ.get(VARIABLE)
    return Remote(address) if address else None


class Remote:
    """The artifacts behind one address."""

    def __init__(self, address: str) -> None:
        """Remember the address; the first question connects.

        Args:
            address: of a folder, as fsspec has it: `s3://bucket/folder`, `gs://…`, `sftp://host/folder`, a path.
        """
        self.address = address
        self._alone = threading.Lock()
        self._connected: tuple[Any, str] | None = None

    @cached_property
    def name(self) -> str:
        """The address without a password, for messages."""
        split = urlsplit(self.address)
        return self.address.replace(f":{split.password}@", ":…@") if split.password else self.address

    def _connect(self) -> tuple[Any, str]:
        """Return the file system, and the store's folder in it.

        Raises:
            InputError: the address is of no protocol that is known here.
        """
        import fsspec

        try:
            # Another machine may write meanwhile: what a folder held a moment ago says nothing.
            options = {"use_listings_cache": False, "skip_instance_cache": True}
            files, root = fsspec.core.url_to_fs(self.address, **options)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"{VARIABLE} is {self.name!r}: {error}. Give an address that fsspec knows, and install the package of "
                "its protocol, such as s3fs for s3://."
            ) from error
        return files, root.rstrip("/")

    def _ask(self, work: Callable[[Any, str], _Found]) -> _Found:
        """Do something with the connection, which one thread at a time may use; once more if it was lost.

        Raises:
            InputError: the address is of no protocol that is known here.
            ArtifactError: the store cannot be reached, read or written.
        """
        with self._alone:
            for last in (False, True):
                try:
                    self._connected = self._connected or self._connect()
                    return work(*self._connected)
                except InputError:
                    raise
                # Each protocol has errors of its own, and servers close a connection that a long step left idle.
                except Exception as error:
                    self._connected = None
                    if last:
                        said = str(error).splitlines()[0] if str(error) else type(error).__name__
                        raise ArtifactError(
                            f"the remote store {self.name} failed: {said}. What is finished stays in the build folder; "
                            f"run again, or without {VARIABLE}."
                        ) from error
        raise AssertionError

    def manifest(self, key: str) -> Manifest | None:
        """Return the manifest of an artifact, or None if there is none that is whole."""

        def read(files: Any, root: str) -> bytes | None:
            place = f"{root}/artifacts/{key}.json"
            return files.cat_file(place) if files.exists(place) else None

        content = self._ask(read)
        if content is None:
            return None
        try:
            found = strict.read(Manifest, content)
        except ValueError:
            # A writer was killed.
            return None
        return found if found.key == key and all(_is_plain(entry) for entry in found.files) else None

    def push(self, folder: Path, manifest: Manifest, *, source: Callable[[str], Path] | None = None) -> None:
        """Write an artifact, unless it is there.

        Args:
            folder: of the artifact.
            manifest: of the artifact.
            source: the path of a file by its name in the manifest, where that is not in the folder.
        """
        if self.manifest(manifest.key) is not None:
            return
        for entry in manifest.files:
            self._ask(partial(_put, entry, source(entry.path) if source else folder / entry.path))

        def finish(files: Any, root: str) -> None:
            files.makedirs(f"{root}/artifacts", exist_ok=True)
            files.pipe_file(f"{root}/artifacts/{manifest.key}.json", manifest.model_dump_json().encode())

        self._ask(finish)

    def fetch(self, key: str, place: Path) -> bool:
        """Write an artifact into a place, whole or not at all; return whether there was a sound one.

        Raises:
            ArtifactError: the store cannot be reached, or the place cannot be written.
        """
        manifest = self.manifest(key)
        if manifest is None:
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        needed, free = sum(entry.bytes for entry in manifest.files), shutil.disk_usage(place.parent).free
        if needed > free:
            raise ArtifactError(
                f"no space left on {place.parent}: an artifact of {manifest.stage} has {needed / 1e6:.0f} MB, and "
                f"{free / 1e6:.0f} MB are free."
            )
        aside = atomic.aside_of(place)
        try:
            with atomic.writing(place.parent):
                aside.mkdir()
                for entry in manifest.files:
                    (aside / entry.path).parent.mkdir(parents=True, exist_ok=True)
                    if not self._ask(partial(_get, entry, aside / entry.path)):
                        # Whoever makes the artifact again writes it again.
                        self._ask(lambda files, root: files.rm_file(f"{root}/artifacts/{key}.json"))
                        return False
                artifact.write_manifest(aside, manifest)
                atomic.put(aside, place)
        finally:
            atomic.remove(aside)
        return True


def _put(entry: FileEntry, path: Path, files: Any, root: str) -> None:
    """Write a file, unless it is there."""
    place = _place(root, entry)
    if not files.exists(place) or files.info(place)["size"] != entry.bytes:
        files.makedirs(place.rpartition("/")[0], exist_ok=True)
        files.put_file(str(path), place)


def _get(entry: FileEntry, path: Path, files: Any, root: str) -> bool:
    """Read a file; return whether it is as its entry says. One that is not is removed from the store."""
    place = _place(root, entry)
    if not files.exists(place):
        return False
    # Before anything is written here: what somebody else put there may have any size.
    if files.info(place)["size"] == entry.bytes:
        files.get_file(place, str(path))
        if sha256_file(path) == entry.sha256:
            return True
    files.rm_file(place)
    return False


def _place(root: str, entry: FileEntry) -> str:
    # Of a flat folder, some protocols list every file to find one.
    return f"{root}/files/{entry.sha256[:2]}/{entry.sha256}"


def _is_plain(entry: FileEntry) -> bool:
    """Return whether a file of somebody's manifest stays inside its artifact's folder, and its hash is one."""
    parts = PurePosixPath(entry.path).parts
    inside = bool(parts) and not entry.path.startswith("/") and ".." not in parts and "\\" not in entry.path
    hashed = len(entry.sha256) == _HASH_LENGTH and set(entry.sha256) <= set("0123456789abcdef")
    return inside and hashed and entry.path != MANIFEST and entry.bytes >= 0


def outside(path: Path, digest: str, names: Sequence[str]) -> tuple[Manifest, Callable[[str], Path]]:
    """Describe files that no stage made as an artifact; returns its manifest, and the path of each file.

    Args:
        path: a file, or a folder.
        digest: of the content.
        names: the files of the folder that count.
    """
    paths = {name: path / name for name in names} if path.is_dir() else {path.name: path}
    entries = [
        # Files of a cached checkpoint are links.
        FileEntry(path=name, sha256=sha256_file(one), bytes=one.stat().st_size)
        for name, one in sorted(paths.items())
    ]
    described = Manifest(
        schema_version=SCHEMA_VERSION,
        stage=_OUTSIDE,
        stage_version=1,
        key=outside_key(digest),
        inputs={},
        params={},
        metrics={},
        tools={},
        files=entries,
    )
    return described, paths.__getitem__


def outside_key(digest: str) -> str:
    """Return the key of files that no stage made, by the digest of their content."""
    return digest_of([_OUTSIDE, digest])
