"""A remote store: finished artifacts behind an address of fsspec, such as a bucket, for machines that share no disk.

A file lies under its sha256, once for all artifacts that have it, and an artifact's manifest under its key. Manifests
are written last, and whoever fetches checks every byte: a writer that was killed leaves what counts as absent.
"""

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pipeline import artifact, atomic, strict
from pipeline.artifact import SCHEMA_VERSION, FileEntry, Manifest, digest_of, sha256_file
from pipeline.errors import ArtifactError, InputError

VARIABLE = "POCKETBERT_STORE"
_HASH_LENGTH = 64
_NAME_BYTES, _PART_BYTES = 1000, 255
"""Longest name of an artifact's file, and of one of its parts, that every file system takes."""
_PASSWORD = re.compile(r"://([^:/@]*):(.+)@")
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//|:)")
_Found = TypeVar("_Found")
_OUTSIDE = "outside"
"""Stage of files that no stage made, such as a checkpoint that a recipe names."""


def from_environment() -> "Remote | None":
    """Return the remote store that the environment names, or None. Nothing is connected to yet."""
    address = os.environ.get(VARIABLE, "").strip()
    return Remote(address) if address else None


class Remote:
    """The artifacts behind one address."""

    def __init__(self, address: str) -> None:
        """Remember the address; the first question connects.

        Args:
            address: of a folder, as fsspec has it: `s3://bucket/folder`, `gs://…`, `sftp://host/folder`, a path.
        """
        # A worker stands in another folder.
        local = "://" not in address and "::" not in address and not _ONE_SLASH.match(address)
        self.address = os.path.abspath(os.path.expanduser(address)) if local else address
        self.name = _PASSWORD.sub(r"://\1:…@", self.address)
        """The address without a password, for messages."""
        self._alone = threading.Lock()
        self._connected: tuple[Any, str] | None = None

    def _told(self, error: Exception) -> str:
        """Return an error's first line without the password."""
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        password = _PASSWORD.search(self.address)
        return said.replace(password[2], "…") if password else said

    def _connect(self) -> tuple[Any, str]:
        """Return the file system, and the store's folder in it.

        Raises:
            InputError: the address is of no protocol that is known here.
        """
        import fsspec

        if _ONE_SLASH.match(self.address):
            raise InputError(
                f"{VARIABLE} is {self.name!r}: // is missing after the protocol, as in s3://bucket/folder."
            )
        try:
            # Another machine may write meanwhile: what a folder held a moment ago says nothing.
            options = {"use_listings_cache": False, "skip_instance_cache": True}
            files, root = fsspec.core.url_to_fs(self.address, **options)
        except (ImportError, ValueError) as error:
            said = self._told(error)
            if isinstance(error, ValueError) and _PASSWORD.search(self.address):
                # The error may quote a part of the password.
                said = "what is before the last @ is no user and password; write / # ? @ in them as %2F %23 %3F %40"
            raise InputError(
                f"{VARIABLE} is {self.name!r}: {said}. Give an address that fsspec knows, and install the package of "
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
                        raise ArtifactError(
                            f"the remote store {self.name} failed: {self._told(error)}. What is finished stays in "
                            f"the build folder; run again, or without {VARIABLE}."
                        ) from error
        raise AssertionError

    def manifest(self, key: str) -> Manifest | None:
        """Return the manifest of an artifact, or None if there is none that is whole."""

        def read(files: Any, root: str) -> bytes | None:
            place = _described(root, key)
            size = _size(files, place)
            return files.cat_file(place) if size is not None and size <= artifact.LARGEST_MANIFEST_BYTES else None

        content = self._ask(read)
        if content is None:
            return None
        try:
            found = strict.read(Manifest, content)
        except ValueError:
            # A writer was killed.
            return None
        return found if found.key == key and _is_plain(found.files) else None

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
            content = manifest.model_dump_json().encode()
            _write(files, _described(root, manifest.key), lambda place: files.pipe_file(place, content))

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
                        self._ask(lambda files, root: _remove(files, _described(root, key)))
                        return False
                artifact.write_manifest(aside, manifest)
                atomic.put(aside, place)
        finally:
            atomic.remove(aside)
        return True


def _size(files: Any, place: str) -> int | None:
    """Return the size of a file in bytes, or None if there is none.

    `exists` also says no where the connection was lost, and what took hours would be made again, or removed.
    """
    try:
        return int(files.info(place)["size"])
    except FileNotFoundError:
        return None


def _write(files: Any, place: str, write: Callable[[str], None]) -> None:
    """Write a file; in a folder of this machine whole or not at all, and not through a link that somebody put there."""
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(files, LocalFileSystem):
        with atomic.write_aside(Path(place)) as aside:
            write(str(aside))
    else:
        files.makedirs(place.rpartition("/")[0], exist_ok=True)
        write(place)


def _remove(files: Any, place: str) -> None:
    """Remove a file; another machine may have done so."""
    if _size(files, place) is not None:
        with contextlib.suppress(FileNotFoundError):
            files.rm_file(place)


def _put(entry: FileEntry, path: Path, files: Any, root: str) -> None:
    """Write a file, unless it is there."""
    place = _place(root, entry)
    if _size(files, place) != entry.bytes:
        _write(files, place, partial(files.put_file, str(path)))


def _get(entry: FileEntry, path: Path, files: Any, root: str) -> bool:
    """Read a file; return whether it is as its entry says. One that is not is removed from the store."""
    place = _place(root, entry)
    # Before anything is written here: what somebody else put there may have any size. Another machine may just be
    # writing it, and whoever writes it next replaces it.
    if _size(files, place) != entry.bytes:
        return False
    with contextlib.suppress(FileNotFoundError):
        files.get_file(place, str(path))
        if sha256_file(path) == entry.sha256:
            return True
    _remove(files, place)
    return False


# Of a flat folder, some protocols list every file to find one.


def _described(root: str, key: str) -> str:
    return f"{root}/artifacts/{key[:2]}/{key}.json"


def _place(root: str, entry: FileEntry) -> str:
    return f"{root}/files/{entry.sha256[:2]}/{entry.sha256}"


def _is_plain(entries: Sequence[FileEntry]) -> bool:
    """Return whether the files of somebody's manifest can lie in one folder of any machine, and stay inside it."""
    names = [entry.path for entry in entries]
    folders = {str(folder).casefold() for name in names for folder in PurePosixPath(name).parents}
    distinct = {name.casefold() for name in names}
    return len(distinct) == len(names) and not distinct & folders and all(map(_is_plain_entry, entries))


def _is_plain_entry(entry: FileEntry) -> bool:
    name, parts = entry.path, PurePosixPath(entry.path).parts
    inside = "/".join(parts) == name != "" and ".." not in parts and "\\" not in name
    written = name.isprintable() and all(len(part.encode()) <= _PART_BYTES for part in parts)
    hashed = len(entry.sha256) == _HASH_LENGTH and set(entry.sha256) <= set("0123456789abcdef")
    fits = inside and written and len(name.encode()) <= _NAME_BYTES and not artifact.is_unlisted(name)
    return fits and hashed and entry.bytes >= 0


def outside(path: Path, digest: str, names: Sequence[str]) -> tuple[Manifest, Callable[[str], Path]]:
    """Describe files that no stage made as an artifact; returns its manifest, and the path of each file.

    Args:
        path: a file, or a folder.
        digest: of the content.
        names: the files of the folder that count.

    Raises:
        ArtifactError: the content has another digest by now: under this one, it would be every machine's.
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
    if content_digest(described, folder=path.is_dir()) != digest:
        raise ArtifactError(f"{path} was changed since the run began. Run again.")
    return described, paths.__getitem__


def content_digest(manifest: Manifest, *, folder: bool) -> str:
    """Return the digest by which an input that no stage made is known: a file's own, or one over a folder's files."""
    if folder:
        return digest_of(sorted((entry.path, entry.sha256) for entry in manifest.files))
    return manifest.files[0].sha256 if manifest.files else ""


def outside_key(digest: str) -> str:
    """Return the key of files that no stage made, by the digest of their content."""
    return digest_of([_OUTSIDE, digest])
