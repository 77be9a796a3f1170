"""Put models into the folders of apps: all of them or none, and nothing of anybody else's is replaced.

A root holds `<recipe>/<target>/` for every model, and `models.json`, the index that an app reads first.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.errors import ArtifactError

SHIPPED = "shipped.json"
INDEX = "models.json"
_ASIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.new")
_OLD = re.compile(r"\.(?P<name>.+)\.old")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shipped(_Frozen):
    """What `shipped.json` says beside a shipped model: an app can check every file against it."""

    recipe: str
    target: str
    backend: str
    scheme: str
    task: str
    verdict: str
    reasons: list[str]
    evaluator: str | None
    """What ran the file for the verdict."""
    licence: str | None
    digest: str
    files: list[artifact.FileEntry]
    bytes: int


class Entry(_Frozen):
    """One model of an index."""

    folder: str
    """Relative to the index, `<recipe>/<target>`."""
    recipe: str
    backend: str
    scheme: str
    task: str
    digest: str
    bytes: int


class Index(_Frozen):
    """What `models.json` holds: every model that lies below it."""

    schema_version: Literal[1] = 1
    models: list[Entry]


def put(models: Sequence[tuple[Artifact, Shipped]], roots: Mapping[str, Sequence[Path]]) -> None:
    """Copy models into the roots of their backends; every copy is whole before the first one is in its place.

    Args:
        models: each with what is said beside it.
        roots: folders by backend.

    Raises:
        ArtifactError: a place holds something else, or cannot be written; nothing has changed then.
    """
    places = [
        (root / shipped.recipe / shipped.target, model, shipped)
        for model, shipped in models
        for root in roots[shipped.backend]
    ]
    for place, _, _ in places:
        _check_free(place)
    asides: dict[Path, Path] = {}
    used = sorted({root for _, shipped in models for root in roots[shipped.backend]})
    try:
        with contextlib.ExitStack() as held:
            for root in used:
                held.enter_context(_alone_in(root))
            for place, _, _ in places:
                _sweep(place.parent)
                _check_free(place)
            for place, model, shipped in places:
                asides[place] = artifact.aside_of(place)
                _copy(model, shipped, asides[place])
            _exchange(asides)
            for root in used:
                _write_index(root)
    except OSError as error:
        where = error.filename or places[0][0]
        raise ArtifactError(
            f"{where} cannot be written: {error.strerror or error}. What was in the apps is unchanged."
        ) from error
    finally:
        for aside in asides.values():
            shutil.rmtree(aside, ignore_errors=True)
            # Folders that were made for a copy that did not come.
            with contextlib.suppress(OSError):
                aside.parent.rmdir()
                aside.parent.parent.rmdir()


@contextlib.contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Wait until no other `ship` works below a root: it would take this one's copies for what a killed one left."""
    while True:
        root.mkdir(parents=True, exist_ok=True)
        # The kernel's lock on the folder itself leaves no file in the app, and ends with the process.
        handle = os.open(root, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if root.exists() and os.path.samestat(os.fstat(handle), root.stat()):
                yield
                return
        finally:
            os.close(handle)


def _check_free(place: Path) -> None:
    """Refuse a place that holds anything but a model that was shipped before."""
    for folder in (place, *place.parents):
        # A link would be replaced by a folder, and what it points to is somebody's.
        if folder.is_symlink() and folder.name in (place.name, place.parent.name):
            raise ArtifactError(f"{folder} is a link; models are shipped into plain folders. Remove it, or use --into.")
    if not place.exists():
        return
    if not place.is_dir():
        raise ArtifactError(f"{place} is a file, where a folder with the model should be. Move it away.")
    found = {path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir() or path.is_symlink()}
    if not found:
        return
    shipped = _read(place)
    others = sorted(found - {entry.path for entry in shipped.files} - {SHIPPED}) if shipped else sorted(found)
    if others:
        raise ArtifactError(
            f"{place} holds {others[0]}, which `pocketbert ship` did not put there; it would be lost. Move it away."
        )


def _read(place: Path) -> Shipped | None:
    """Return what is said beside a shipped model, or None where nothing of that kind is."""
    file = place / SHIPPED
    # A pipe would be waited for, and a device never ends.
    if file.is_symlink() or not file.is_file():
        return None
    try:
        artifact.check_size(file)
        return Shipped.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _copy(model: Artifact, shipped: Shipped, aside: Path) -> None:
    """Copy into a hidden folder, and check every byte."""
    for entry in model.manifest.files:
        (aside / entry.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path / entry.path, aside / entry.path)
        if artifact.sha256_file(aside / entry.path) != entry.sha256:
            raise ArtifactError(f"{model.path / entry.path} changed while it was copied; run `pocketbert run` again.")
    (aside / SHIPPED).write_text(shipped.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for path in aside.rglob("*"):
        if path.is_file():
            artifact.sync(path)


def _exchange(asides: Mapping[Path, Path]) -> None:
    """Rename every copy into its place; if one cannot be, bring back what was there."""
    taken: list[Path] = []
    given: list[Path] = []
    try:
        for place, aside in asides.items():
            if place.exists():
                place.rename(artifact.old_of(place))
                taken.append(place)
            aside.rename(place)
            given.append(place)
    except BaseException:
        for place in given:
            shutil.rmtree(place, ignore_errors=True)
        for place in taken:
            artifact.old_of(place).rename(place)
        raise
    for place in taken:
        shutil.rmtree(artifact.old_of(place), ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what a killed `ship` left, and bring back what it had taken away."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in list(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            continue
        old = _OLD.fullmatch(path.name)
        if old and _read(path) and not (folder / old["name"]).exists():
            path.rename(folder / old["name"])
        elif _ASIDE.fullmatch(path.name) or (old and _read(path)):
            shutil.rmtree(path, ignore_errors=True)


def _write_index(root: Path) -> None:
    """Write the index of all models below a root, those of other recipes too."""
    models = []
    for file in sorted(root.glob(f"*/*/{SHIPPED}")):
        shipped = _read(file.parent)
        if shipped and not file.parent.name.startswith("."):
            said = shipped.model_dump(include=set(Entry.model_fields))
            models.append(Entry(folder=file.parent.relative_to(root).as_posix(), **said))
    artifact.write_text(root / INDEX, Index(models=models).model_dump_json(indent=1) + "\n")
