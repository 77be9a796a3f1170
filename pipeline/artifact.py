"""Artifacts: directories with files and a manifest, made once, whole or not at all; `execution.store` makes them.

A `Spec` says what an artifact is made from. Its key is the sha256 of schema, stage, stage version, parameters, content
digests of the inputs and tool versions; no time stamp and no host path is part of it.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline import atomic, strict
from pipeline.errors import ArtifactError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
ORIGIN = ".origin"
"""File beside a manifest with the mark of who made the artifact, see `trust.origin`; no part of its content."""
_FINDER = ".DS_Store"
"""macOS leaves this file in folders that somebody looked at; artifacts pass over it."""
LARGEST_MANIFEST_BYTES = 1 << 24


def file_bytes(path: Path) -> int:
    """Return the size of a file, or of all files of a package."""
    if path.is_file():
        return path.stat().st_size
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file() and part.name != _FINDER)


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
class Spec:
    """What an artifact is made from: the stage, its parameters, inputs and tools."""

    stage: str
    stage_version: int
    params: Mapping[str, Any]
    inputs: Mapping[str, str]
    """Content digests by input name."""
    tools: Mapping[str, str]
    """Versions, by distribution, of what decides the content."""
    inexact_files: tuple[str, ...] = ()
    """Files whose last digits depend on the processor, see `Manifest.digest`."""

    @cached_property
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
    files: list[Path] = []
    for name, path, mode in files_below(folder):
        if not stat.S_ISREG(mode):
            kind = "link" if stat.S_ISLNK(mode) else "device, pipe or socket"
            raise ArtifactError(f"{path} is a {kind}; artifacts hold plain files only. Put the file there.")
        if not is_unlisted(name):
            files.append(path)
    return {path.relative_to(folder).as_posix(): path for path in sorted(files)}


def files_below(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield name, path and mode of everything below a folder but folders; links are not followed.

    `rglob` passes over folders that cannot be read, and goes no deeper than Python's stack.
    """
    waiting = [(folder, "")]
    while waiting:
        here, below = waiting.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    waiting.append((Path(entry.path), f"{below}{entry.name}/"))
                else:
                    yield f"{below}{entry.name}", Path(entry.path), mode


def added(folder: Path) -> list[Path]:
    """Return the files in an artifact that its manifest does not list: a user put them there."""
    listed = {entry.path for entry in read_manifest(folder).files}
    above = {parent.as_posix() for name in listed for parent in PurePosixPath(name).parents}
    inside = ((path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*")))
    return [path for path, name in inside if name not in listed | above and not is_unlisted(name)]


def is_unlisted(name: str) -> bool:
    """Return whether a file of an artifact's folder, by its name in a manifest, is never in the manifest."""
    return name in (MANIFEST, ORIGIN) or PurePosixPath(name).name == _FINDER


def check_size(path: Path, most_bytes: int = 1 << 28) -> None:
    """Refuse a text that would not fit into memory, before it is read.

    Args:
        path: the file.
        most_bytes: by default more than any config or tokenizer has, the largest of which have 30 MB.

    Raises:
        OSError: it is larger.
    """
    if path.stat().st_size > most_bytes:
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
        check_size(path, LARGEST_MANIFEST_BYTES)
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
    if len({entry.path for entry in manifest.files}) < len(manifest.files):
        return "the manifest lists a file twice"
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


def seal(folder: Path, spec: Spec, metrics: Mapping[str, Any]) -> Manifest:
    """Make a filled folder an artifact: write its manifest, which lists every file."""
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        stage=spec.stage,
        stage_version=spec.stage_version,
        key=spec.key,
        inputs=dict(spec.inputs),
        params=dict(spec.params),
        metrics=dict(metrics),
        tools=dict(spec.tools),
        files=list_files(folder),
        inexact_files=list(spec.inexact_files),
    )
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest onto the disk itself, after all other files: it is what makes an artifact finished."""
    path = folder / MANIFEST
    absent = None if manifest.inexact_files else {"inexact_files"}
    path.write_text(manifest.model_dump_json(indent=2, exclude=absent) + "\n", encoding="utf-8")
    atomic.sync(path)
