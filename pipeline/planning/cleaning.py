"""Remove artifacts and views from a build folder: the list is told first, and foreign files are never removed."""

import contextlib
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import artifact, atomic
from pipeline.atomic import remove
from pipeline.errors import ArtifactError, InputError
from pipeline.execution.store import FOLDER, KEY_LENGTH, Store, shown_by, views
from pipeline.formats.signature import HEADS
from pipeline.planning.places import LINK
from pipeline.schemes import BACKENDS, SCHEMES

_LOGS = "logs"
_SCHEME = f"(?:{'|'.join(map(re.escape, SCHEMES))})"
_TARGET = f"(?:{'|'.join(BACKENDS)})-{_SCHEME}"
_STAGES = (
    "student|assemble|train|vocabulary|factorise|share|adapter|static|rotate|start|prune|head|distil|benchmark|report|"
    "compat"
)
_LOG = re.compile(
    rf"(convert-{_TARGET}(-again)?|verify-{_TARGET}|(quantize|train)-{_SCHEME}|"
    rf"(reference-[0-9]+|student|assemble)(-of-[a-z][a-z0-9_]*)?|{_STAGES})\.log"
)
"""Logs of all nodes, as the executor names them; a node that failed has one and no view."""
_TRIALS = re.compile(rf"sensitivity-{_TARGET}")
"""Folders of `pocketbert sensitivity`: its record and, after a kill, the files of the last trial."""
_TRIED = {"sensitivity.json", "files"}
_KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_AGE = re.compile(r"([0-9]+)([hdw])")
_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}
_AGAIN = "A part of what was to be removed may be gone. Run `pocketbert clean` again once it can be written."
_NAMED = 5
"""Most names that one line of the announcement lists."""


def seconds(age: str) -> int:
    """Return the seconds of an age such as `36h`, `30d` or `2w`.

    Raises:
        InputError: it is none.
    """
    match = _AGE.fullmatch(age)
    if match is None:
        raise InputError(f"--older-than {age!r} is no age; give hours, days or weeks, such as 36h, 30d or 2w.")
    return int(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True)
class RemovedFiles:
    """The result of `clean`: removed folders and artifacts, and the files that stay."""

    folders: list[Path]
    """Recipes' folders that were removed; a folder with foreign files stays with those."""
    kept: list[Path]
    """Files and folders in them that pocketbert did not make; they stay."""
    artifacts: list[str]
    """Keys of the removed artifacts."""
    in_use: list[Path] = field(default_factory=list)
    """Views of artifacts that a running process uses; they stay."""


@dataclass
class _FolderContents:
    """The contents of a recipe's folder, sorted by whether they may be removed."""

    ours: list[Path] = field(default_factory=list)
    """Removable paths in order: views last, since they still mark the folder as a recipe's if `clean` is killed."""
    folders: list[Path] = field(default_factory=list)
    """Folders that pocketbert made, the inner ones first; each is removed if it is empty by then."""
    kept: list[Path] = field(default_factory=list)
    in_use: list[Path] = field(default_factory=list)


def clean(build: Path, recipe: str | None = None, tell: Callable[[str], None] = lambda text: None) -> RemovedFiles:
    """Remove the folders of one recipe or of all, and the artifacts that no other view shows and no process uses.

    An empty folder counts as a user's, and stays.

    Args:
        build: the build folder.
        recipe: name of the one recipe.
        tell: called with a line for each folder, saying what will be removed and what stays, before any removal.

    Raises:
        InputError: the recipe has no folder there, or the folder is not one of ours.
        ArtifactError: something cannot be removed.
    """
    store = Store(build)
    with atomic.writing(build, advice=_AGAIN):
        if store.root.is_dir():
            store.sweep()
        ours = _ours(build)
        if recipe is not None and not (build / recipe).is_dir():
            there = ", ".join(path.name for path in ours) or "none"
            raise InputError(f"{build / recipe} does not exist; there are: {there}.")
        folders = [build / recipe] if recipe is not None else ours
        if recipe is not None and folders[0] not in ours:
            if not any(folders[0].iterdir()):
                return RemovedFiles([], folders, [])
            raise InputError(
                f"{folders[0]} was not made by pocketbert (it holds no artifact); remove it by hand if you mean it."
            )
        found = {folder: _look(folder, build, store.runs.used()) for folder in folders}
        shown = {key for folder in folders for view in views(folder) if (key := shown_by(view))}
        among = shown if recipe is not None else None
        for one in found.values():
            _check_writable(one)
        busy = store.viewed(but_for=folders) | store.runs.used()
        going = set(store.keys()) - busy if among is None else among & set(store.keys()) - busy
        _tell(build, found, going, tell)
        # Artifacts first: a view without one still says what a killed `clean` has to remove, and the reverse does not.
        removed = store.evict(among=among, but_for=folders)
        for folder, one in found.items():
            _remove(folder, one, store)
            if folder.is_dir() and not one.kept and not one.in_use:
                # Another command ended there meanwhile.
                _remove(folder, _look(folder, build, store.runs.used()), store)
            if folder.is_dir() and not one.kept and not one.in_use:
                raise ArtifactError(f"{folder} could not be removed: the disk is read-only, or a run writes there.")
        store.remove_if_empty()
    kept = [path for one in found.values() for path in one.kept]
    return RemovedFiles(folders, kept, removed, [path for one in found.values() for path in one.in_use])


def clean_older(build: Path, age: str) -> RemovedFiles:
    """Remove artifacts that no view shows, no process uses, and no run has used for the given age."""
    with atomic.writing(build):
        return RemovedFiles([], [], Store(build).evict(older_than_seconds=seconds(age)))


def _check_writable(found: _FolderContents) -> None:
    """Refuse to begin if the user may not delete files in one of the folders."""
    for folder in dict.fromkeys(path.parent for path in found.ours):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ArtifactError(
                f"{folder} cannot be written: you have no permission, so nothing was removed. Give it with "
                f"`chmod u+wx {folder}`, or remove the folder by hand."
            )


def _tell(build: Path, found: dict[Path, _FolderContents], keys: set[str], tell: Callable[[str], None]) -> None:
    """Announce the paths that will be removed and those that stay, one line for each folder."""
    for folder, one in found.items():
        said = [f"will remove of {folder}: {_names(one.ours, folder)}"] if one.ours else []
        said += [f"keeps what pocketbert did not make: {_names(one.kept, folder)}"] if one.kept else []
        said += [f"keeps what a running process uses: {_names(one.in_use, folder)}"] if one.in_use else []
        if said:
            tell("; ".join(said))
    if keys:
        tell(f"will remove {len(keys)} artifacts of {build / FOLDER}")


def _names(paths: list[Path], folder: Path) -> str:
    names = [path.relative_to(folder).as_posix() for path in paths]
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


# --- what is ours --------------------------------------------------------------------------------------------------


def _ours(build: Path) -> list[Path]:
    """Return the recipes' folders in a build folder: each holds views, or artifacts of a version without a store."""
    folders = sorted(path for path in build.glob("*") if path.is_dir() and not path.is_symlink())
    return [path for path in folders if path.name != FOLDER and _is_ours(path)]


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is a recipe's: it holds a view into this store, or an artifact itself."""
    places = [folder, *(path for path in (*folder.iterdir(), *folder.glob(f"{HEADS}/*")) if _is_folder(path))]
    links = (link for place in places if os.access(place, os.R_OK | os.X_OK) for link in place.iterdir())
    return any(_is_view(link, folder.parent) for link in links) or _is_artifact(folder / "student")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_view(link: Path, build: Path) -> bool:
    """Return whether a path is a relative link onto a key's folder in this store, be it a view or a temporary one."""
    if not link.is_symlink():
        return False
    target = Path(os.readlink(link))
    shown = Path(os.path.normpath(os.path.abspath(link.parent) / target))
    inside = shown.parent == Path(os.path.abspath(build / FOLDER))
    return not target.is_absolute() and inside and _KEY.fullmatch(shown.name) is not None


def _is_artifact(folder: Path) -> bool:
    """Return whether a folder is an artifact: its manifest can be read, not only found by name."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        artifact.read_manifest(folder)
    except (ArtifactError, OSError):
        return False
    return True


def _look(folder: Path, build: Path, held: set[str], *, top: bool = True) -> _FolderContents:
    """Sort the contents of a recipe's folder, or of one target's folder, into removable and kept paths.

    Args:
        folder: the folder.
        build: the build folder.
        held: keys that running processes use.
        top: whether it is the recipe's own folder, which has logs and folders of targets and of other heads.
    """
    found, links = _FolderContents(), []
    inside = sorted(folder.iterdir())
    named = {path.name for path in inside if _is_view(path, build) or _is_artifact(path)}
    for path in inside:
        to_recipe = top and path.name == LINK and path.is_symlink()
        if path.is_symlink() and not to_recipe:
            if not _is_view(path, build):
                found.kept.append(path)
            elif Path(os.readlink(path)).name in held:
                found.in_use.append(path)
            else:
                links.append(path)
        elif top and path.name == _LOGS and path.is_dir():
            _look_at_logs(path, named, found)
        elif _is_artifact(path) and not path.name.startswith("."):
            _look_at_artifact(path, held, found)
        elif to_recipe or (top and _is_of_trials(path)):
            found.ours.append(path)
        elif top and (below := _folders_below(path, build)) is not None:
            for inner in below:
                _look_below(inner, build, held, found, links)
            if path not in below:
                found.kept += sorted(set(path.iterdir()) - set(below))
                found.folders.append(path)
        else:
            found.kept.append(path)
    found.ours += links
    found.folders.append(folder)
    return found


def _folders_below(path: Path, build: Path) -> list[Path] | None:
    """Return the folders with views that a folder in a recipe's is or has: a target's, or those of heads; or None."""
    if not _is_folder(path):
        return None
    if path.name == HEADS:
        return [inner for inner in sorted(path.iterdir()) if _is_folder(inner)]
    return [path] if _is_of_target(path, build) else None


def _look_below(folder: Path, build: Path, held: set[str], found: _FolderContents, links: list[Path]) -> None:
    """Sort the contents of a target's folder, or of another head's, into those of the recipe's folder."""
    below = _look(folder, build, held, top=False)
    found.ours += [one for one in below.ours if not one.is_symlink()]
    links += [one for one in below.ours if one.is_symlink()]
    found.kept += below.kept
    found.in_use += below.in_use
    found.folders += below.folders


def _look_at_artifact(folder: Path, held: set[str], found: _FolderContents) -> None:
    """Sort a folder that is an artifact itself: a view that is a copy, or one of a version without a store."""
    if shown_by(folder) in held:
        found.in_use.append(folder)
    elif added := artifact.added(folder):
        found.kept.extend(added)
    else:
        found.ours.append(folder)


def _look_at_logs(logs: Path, named: set[str], found: _FolderContents) -> None:
    for path in sorted(logs.iterdir()):
        plain = path.is_file() and not path.is_symlink()
        ours = plain and (_LOG.fullmatch(path.name) is not None or (path.suffix == ".log" and path.stem in named))
        (found.ours if ours else found.kept).append(path)
    found.folders.append(logs)


def _is_of_trials(folder: Path) -> bool:
    """Return whether a folder is one of `pocketbert sensitivity`, without foreign files in it."""
    named = _TRIALS.fullmatch(folder.name) is not None and folder.is_dir()
    return named and {path.name for path in folder.iterdir()} <= _TRIED


def _is_of_target(folder: Path, build: Path) -> bool:
    """Return whether a folder is a target's: it has a target's name, and is empty or holds an artifact or a view."""
    if re.fullmatch(_TARGET, folder.name) is None:
        return False
    inside = list(folder.iterdir())
    return not inside or any(_is_view(path, build) or _is_artifact(path) for path in inside)


# --- removing ------------------------------------------------------------------------------------------------------


def _remove(folder: Path, found: _FolderContents, store: Store) -> None:
    """Remove the removable paths of a folder, and the folders that are empty afterwards."""
    for number, path in enumerate(found.ours, start=1):
        if number == len(found.ours) and _is_last(folder, found, path, store):
            # In one rename: a killed `clean` leaves no empty folder, which could be anybody's. The next one sweeps.
            aside = store.root / f".{folder.name}.{uuid.uuid4().hex[:8]}.old"
            folder.rename(aside)
            remove(aside)
        elif path.is_symlink() and Path(os.readlink(path)).name in store.runs.used():
            # A run began to use it meanwhile.
            found.in_use.append(path)
        elif _is_folder(path):
            store.discard(path)
        else:
            remove(path)
    for inner in found.folders:
        with contextlib.suppress(OSError):
            inner.rmdir()


def _is_last(folder: Path, found: _FolderContents, view: Path, store: Store) -> bool:
    """Return whether a view that no process uses is the only thing left in a folder, apart from folders we made."""
    inside = {path for path in folder.rglob("*") if path not in found.folders}
    if inside != {view} or not view.is_symlink() or Path(os.readlink(view)).name in store.runs.used():
        return False
    return store.root.is_dir() and store.root.stat().st_dev == folder.stat().st_dev
