"""Put models into the folders of apps: all of them or none, and nothing of anybody else's is replaced.

A root holds `<recipe>/<target>/` for every model, and `models.json`, the index that an app reads first.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import artifact, atomic
from pipeline.artifact import Artifact
from pipeline.errors import ArtifactError
from pipeline.schemes import BACKENDS, SCHEMES
from pipeline.trust import signing

SHIPPED = "shipped.json"
INDEX = "models.json"
_TARGET = f"(?P<name>(?:{'|'.join(BACKENDS)})-(?:{'|'.join(map(re.escape, SCHEMES))}))"
_ASIDE = re.compile(rf"\.{_TARGET}\.[0-9a-f]{{8}}\.new")
_OLD = re.compile(rf"\.{_TARGET}\.old")
_INDEX_ASIDE = re.compile(rf"\.{re.escape(INDEX)}\.([0-9a-f]{{8}}\.new|old)")
_SHIPPED_BEGINS, _INDEX_BEGINS = b'{\n "schema_version": 1,\n "recipe": "', b'{\n "schema_version": 1,\n "models": ['
"""First bytes of our JSON files, by which a half-written file of a killed process is recognised."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShippedModel(_Frozen):
    """What `shipped.json` says beside a shipped model: an app can check every file against it."""

    schema_version: Literal[1] = 1
    recipe: str
    target: str
    backend: str
    scheme: str
    task: str
    verdict: str
    reasons: list[str]
    evaluator: str | None
    """What ran the file for the verdict."""
    random_weights: bool = False
    """Whether nobody trained the weights: an app shows the latency, and not the answers."""
    licence: str | None
    digest: str
    files: list[artifact.FileEntry]
    bytes: int
    compute_units: list[str] = ["CPU"]
    """The compute units that an app may offer, as the runtime names them; the first is the default."""
    untried_units: dict[str, str] = {}
    """Further units on which no such file has passed yet, each with a sentence that says why not. An app's self-test
    may try them, and the app offers one that passed there; a unit that is in neither list is refused."""


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


def put(
    models: Sequence[tuple[Artifact, ShippedModel]],
    roots: Mapping[str, Sequence[Path]],
    key: signing.PrivateKey | None = None,
) -> None:
    """Copy models into the roots of their formats; all copies are complete before the first is renamed into place.

    Args:
        models: the models, each with its `shipped.json`.
        roots: folders by backend.
        key: signs every copy; None signs nothing.

    Raises:
        ArtifactError: a place holds something else, or cannot be written; nothing has changed then.
    """
    places = [
        (root / shipped.recipe / shipped.target, model, shipped)
        for model, shipped in models
        for root in roots[shipped.backend]
    ]
    used = sorted({root for _, shipped in models for root in roots[shipped.backend]})
    asides: dict[Path, Path] = {}
    absent: set[Path] = set()
    try:
        absent = {folder for place, _, _ in places for folder in place.parents[:2] if not folder.exists()}
        for place, _, _ in places:
            _check_free(place)
        for root in used:
            _check_index(root / INDEX)
        _check_room([(place, shipped.bytes) for place, _, shipped in places])
        with contextlib.ExitStack() as locks:
            for root in used:
                locks.enter_context(_alone_in(root))
                _sweep_index(root)
                _check_index(root / INDEX)
                _check_aside(root / INDEX)
            for place, _, _ in places:
                _sweep(place.parent)
                _check_free(place)
                _check_unchanged(place)
                _check_aside(place)
            for place, model, shipped in places:
                asides[place] = atomic.aside_of(place)
                _copy(model, shipped, asides[place], key)
            # Part of the exchange: an app never has the models and not their index because a disk was full.
            for root in used:
                asides[root / INDEX] = atomic.aside_of(root / INDEX)
                _write_index(root, asides[root / INDEX], {place: one for place, _, one in places})
            _exchange(asides)
    except OSError as error:
        # A copy names what it reads first and what it writes second.
        where = error.filename2 or error.filename or places[0][0]
        full = f"no space left on {places[0][0].parents[1]}: " if error.errno in atomic.FULL else ""
        raise ArtifactError(
            f"{full}{where} cannot be written: {error.strerror or error}. The models in the apps are unchanged."
        ) from error
    finally:
        for aside in asides.values():
            _discard(aside)
        # Folders that were made for a copy that did not come.
        for folder in sorted(absent, reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Wait until no other `ship` works below a root, which would mistake this one's copies for leftovers."""
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


# --- what may be replaced ------------------------------------------------------------------------------------------


def _check_free(place: Path) -> None:
    """Refuse a place that holds anything but a model that was shipped before."""
    for folder in (place, place.parent):
        # A link would be replaced by a folder, and what it points to is somebody's. Links above do no harm.
        if folder.is_symlink():
            raise ArtifactError(f"{folder} is a link; models are shipped into plain folders. Remove it, or use --into.")
    if not place.exists():
        return
    if not place.is_dir():
        raise ArtifactError(f"{place} is a file, where a folder with the model should be. Move it away.")
    shipped = _read(place)
    others = _others(place, shipped)
    if others:
        raise ArtifactError(
            f"{place} holds {others[0]}, which `pocketbert ship` did not put there; it would be lost. Move it away."
        )
    for folder in (place, *(path for path in place.rglob("*") if path.is_dir())):
        # What it holds could not be removed after the exchange, and would stay in the app.
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise ArtifactError(
                f"{folder} cannot be replaced: it may not be written. The models in the apps are unchanged. Give "
                "yourself the permission (chmod u+rwx), or use --into."
            )


def _others(place: Path, shipped: ShippedModel | None) -> list[str]:
    """Return files and folders that do not belong to a shipped model.

    Raises:
        OSError: a folder cannot be listed, so nobody knows what it holds.
    """
    listed = {entry.path for entry in shipped.files} | {SHIPPED, signing.SIGNATURE} if shipped else set()
    above = {parent.as_posix() for name in listed for parent in Path(name).parents}
    found: set[str] = set()
    for folder, names, files in os.walk(place, onerror=_raise):
        below = Path(folder).relative_to(place)
        links = {name for name in names if (Path(folder) / name).is_symlink()}
        found |= {(below / name).as_posix() for name in (*files, *links)} - listed
        found |= {(below / name).as_posix() for name in names if name not in links} - above
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _check_unchanged(place: Path) -> None:
    """Refuse to replace files that somebody edited after they were shipped."""
    shipped = _read(place)
    if shipped is None:
        return
    edited = [SHIPPED] if (place / SHIPPED).read_bytes() != _text(shipped).encode() else []
    for entry in shipped.files:
        path = place / entry.path
        if path.is_file() and (path.stat().st_size != entry.bytes or artifact.sha256_file(path) != entry.sha256):
            edited.append(entry.path)
    if edited:
        raise ArtifactError(
            f"{place / edited[0]} was changed after it was shipped; the change would be lost. Keep a copy if you need "
            f"it, remove {place} and ship again. The models in the apps are unchanged."
        )


def _check_index(index: Path) -> None:
    """Refuse an index that another program wrote, or something else in its place."""
    if not os.path.lexists(index):
        return
    if index.is_symlink() or not index.is_file() or read_index(index) is None:
        raise ArtifactError(
            f"{index} is no index that `pocketbert ship` wrote; it would be lost. Move it away, or use --into. What "
            "was in the apps is unchanged."
        )


def _check_aside(place: Path) -> None:
    """Refuse a foreign file at the temporary name of a replaced model, where it would be lost."""
    if os.path.lexists(old := old_of(place)):
        raise ArtifactError(
            f"{old} is not of `pocketbert ship`, which needs that name for a moment. Move it away. What was in the "
            "apps is unchanged."
        )


def read_index(file: Path) -> Index | None:
    """Return an index, or None if the file was not written by `ship`."""
    artifact.check_size(file)
    try:
        return Index.model_validate_json(file.read_bytes())
    except ValidationError:
        return None


def _check_room(needed_bytes: Sequence[tuple[Path, int]]) -> None:
    """Refuse to begin if a disk is too small for the copies, which briefly lie beside the models that they replace."""
    disks: dict[int, list[tuple[Path, int]]] = {}
    for place, needed in needed_bytes:
        there = next(folder for folder in place.absolute().parents if folder.exists())
        disks.setdefault(there.stat().st_dev, []).append((place, needed))
    for copies in disks.values():
        root = copies[0][0].parents[1]
        there = next(folder for folder in root.absolute().joinpath("x").parents if folder.exists())
        needed, free = sum(size for _, size in copies), shutil.disk_usage(there).free
        if needed > free:
            raise ArtifactError(
                f"no space left on {root}: the models need {needed / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free. "
                f"Free about {(needed - free) / 1e6:.1f} MB, or use --into. The models in the apps are unchanged."
            )


def _read(place: Path) -> ShippedModel | None:
    """Return the `shipped.json` of a shipped model; None if there is none or it is invalid."""
    file = place / SHIPPED
    # A pipe would be waited for, and a device never ends.
    if file.is_symlink() or not file.is_file():
        return None
    try:
        artifact.check_size(file)
        return ShippedModel.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


# --- the exchange --------------------------------------------------------------------------------------------------


def old_of(place: Path) -> Path:
    """Return the hidden path to which what is in a place goes while something else is put there."""
    return place.parent / f".{place.name}.old"


def _text(said: ShippedModel | Index) -> str:
    return said.model_dump_json(indent=1) + "\n"


def _copy(model: Artifact, shipped: ShippedModel, aside: Path, key: signing.PrivateKey | None) -> None:
    """Copy a model into a hidden folder, check every file's digest, and sign the folder if there is a key."""
    aside.mkdir(parents=True)
    # First: by it the next `ship` knows whose the folder is, if this one is killed.
    (aside / SHIPPED).write_text(_text(shipped), encoding="utf-8")
    for entry in model.manifest.files:
        (aside / entry.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path / entry.path, aside / entry.path)
        if artifact.sha256_file(aside / entry.path) != entry.sha256:
            raise ArtifactError(f"{model.path / entry.path} changed while it was copied; run `pocketbert run` again.")
    if key is not None:
        signing.sign(aside, f"{shipped.recipe}/{shipped.target}", key)
    for path in aside.rglob("*"):
        if path.is_file():
            atomic.sync(path)


def _exchange(asides: Mapping[Path, Path]) -> None:
    """Rename every copy into its place; if one fails, restore the previous models."""
    taken: list[Path] = []
    given: list[Path] = []
    try:
        for place in asides:
            if place.is_file():
                # A copy, so that an app that is built meanwhile finds one index or the other.
                taken.append(place)
                shutil.copyfile(place, old_of(place))
        for place, aside in asides.items():
            if place.is_dir():
                taken.append(place)
                place.rename(old_of(place))
            given.append(place)
            (aside.replace if aside.is_file() else aside.rename)(place)
    except BaseException as error:
        stuck = [name for place in given if not asides[place].exists() and (name := _back(place, asides[place]))]
        stuck += [name for place in taken if not place.exists() and (name := _back(old_of(place), place))]
        for place in taken:
            if place.exists():
                _discard(old_of(place))
        if stuck:
            raise ArtifactError(
                f"the exchange failed ({error}) and could not be taken back: {', '.join(stuck)} lies where it was "
                "moved. Run `pocketbert ship` again once the apps can be written."
            ) from error
        raise
    for place in taken:
        _discard(old_of(place))


def _back(here: Path, there: Path) -> str | None:
    """Rename something back; return its path if that fails, so that the rest is brought back all the same."""
    try:
        here.rename(there)
    except OSError:
        return str(here)
    return None


def _discard(path: Path) -> None:
    """Remove a file or a folder of ours as far as possible; `shipped.json`, which marks it as ours, goes last."""
    with contextlib.suppress(OSError):
        if not path.is_dir():
            path.unlink()
            return
        for inside in list(path.iterdir()):
            if inside.is_dir():
                shutil.rmtree(inside, ignore_errors=True)
            elif inside.name != SHIPPED:
                inside.unlink()
        (path / SHIPPED).unlink(missing_ok=True)
        path.rmdir()


def _sweep(folder: Path) -> None:
    """Remove the temporary folders of a killed `ship`, and restore models that it had moved aside.

    A folder counts as a leftover by its content, not by its name alone.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in list(folder.iterdir()):
        aside, old = _ASIDE.fullmatch(path.name), _OLD.fullmatch(path.name)
        match = aside or old
        if match is None or path.is_symlink() or not path.is_dir() or not _is_left(path, match["name"]):
            continue
        if old and _read(path) and not (folder / old["name"]).exists():
            path.rename(folder / old["name"])
        else:
            _discard(path)


def _is_left(path: Path, target: str) -> bool:
    """Return whether a hidden folder holds a model for a target, or the beginning of one, and nothing else."""
    shipped = _read(path)
    if shipped is not None:
        return shipped.target == target and not _others(path, shipped)
    names = [one.name for one in path.iterdir()]
    return not names or (names == [SHIPPED] and _is_begun(path / SHIPPED, _SHIPPED_BEGINS))


def _is_begun(file: Path, beginning: bytes) -> bool:
    """Return whether a file begins like ours, as far as it was written."""
    if not stat.S_ISREG(file.lstat().st_mode):
        return False
    with file.open("rb") as handle:
        found = handle.read(len(beginning))
    return found == beginning[: len(found)]


def _sweep_index(root: Path) -> None:
    """Remove indexes that a killed `ship` left aside."""
    for path in list(root.iterdir()):
        if _INDEX_ASIDE.fullmatch(path.name) and _is_begun(path, _INDEX_BEGINS):
            path.unlink()


def _write_index(root: Path, aside: Path, new: Mapping[Path, ShippedModel]) -> None:
    """Write the index of all models below a root, including other recipes', to a temporary file."""
    found = {file.parent: _read(file.parent) for file in root.glob(f"*/*/{SHIPPED}")}
    found |= {place: one for place, one in new.items() if place.parents[1] == root}
    models = [
        Entry(folder=place.relative_to(root).as_posix(), **one.model_dump(include=set(Entry.model_fields)))
        for place, one in sorted(found.items())
        if one and not place.name.startswith(".")
    ]
    aside.write_text(_text(Index(models=models)), encoding="utf-8")
    atomic.sync(aside)
