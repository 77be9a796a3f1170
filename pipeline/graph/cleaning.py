"""Remove artifacts, and nothing that is not one."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pipeline import artifact
from pipeline.errors import ArtifactError, InputError
from pipeline.graph.store import FOLDER, Store, remove, shown_by, views, writing

_LEFTOVER = re.compile(r"\..+\.([0-9a-f]{8}\.)?(new|old|link)")
"""What a killed run leaves beside what it was about to write."""
_LOCK = ".lock"
_LOGS = "logs"
_AGE = re.compile(r"([0-9]+)([hdw])")
_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}


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
class Removed:
    """What was removed."""

    folders: list[Path]
    """Recipes' folders that were removed, or emptied of what is ours."""
    kept: list[Path]
    """Files and folders in them that are somebody else's, and stay."""
    artifacts: list[str]
    """By key."""


def clean(build: Path, recipe: str | None = None) -> Removed:
    """Remove the folders of one recipe or of all, and the artifacts that nothing else shows or uses.

    Raises:
        InputError: the recipe has no folder there, or the folder is not one of ours.
        ArtifactError: something cannot be removed.
    """
    if recipe is not None and not (build / recipe).is_dir():
        raise InputError(
            f"{build / recipe} does not exist; there are: {', '.join(path.name for path in _ours(build)) or 'none'}."
        )
    folders = [build / recipe] if recipe is not None else _ours(build)
    store = Store(build)
    shown: set[str] = set()
    kept: list[Path] = []
    with writing(build):
        for folder in folders:
            if folder not in _ours(build) and not (recipe is not None and _is_emptied(folder)):
                raise InputError(
                    f"{folder} was not made by pocketbert (it holds no artifact); remove it by hand if you mean it."
                )
            shown |= {target.name for link in views(folder) if (target := shown_by(link))}
        # Artifacts first: a view without one still says what a killed `clean` has to remove, and the reverse does not.
        removed = store.evict(among=shown if recipe is not None else None, but_for=folders)
        for folder in folders:
            foreign = _remove_ours(folder, build)
            kept += foreign
            if folder.exists() and not foreign:
                raise ArtifactError(f"{folder} could not be removed: the disk is read-only, or a run writes there.")
        store.remove_if_empty()
    return Removed(folders, kept, removed)


def clean_older(build: Path, age: str) -> Removed:
    """Remove artifacts that no recipe's folder shows, no process uses, and nobody used for so long."""
    with writing(build):
        return Removed([], [], Store(build).evict(older_than_seconds=seconds(age)))


def _ours(build: Path) -> list[Path]:
    """Return the folders of recipes: they hold views, or what versions without a store left."""
    folders = sorted(path for path in build.glob("*") if path.is_dir() and not path.is_symlink())
    return [path for path in folders if path.name != FOLDER and _is_ours(path)]


def _is_ours(folder: Path) -> bool:
    """Return whether a folder holds an artifact: a view into this store, or what versions without a store left."""
    return any(_is_view(link, folder.parent) for link in views(folder)) or _is_artifact(folder / "student")


def _is_emptied(folder: Path) -> bool:
    """Return whether a folder beside a store is empty, but for logs: a `clean` that was killed at its end leaves it."""
    inside = list(folder.iterdir())
    logs = [path.name for path in inside] == [_LOGS] and inside[0].is_dir() and not any(inside[0].iterdir())
    return (folder.parent / FOLDER).is_dir() and (logs or not inside)


def _is_view(link: Path, build: Path) -> bool:
    target = shown_by(Path(os.path.abspath(link)))
    return target is not None and target.parent == Path(os.path.abspath(build / FOLDER))


def _is_artifact(folder: Path) -> bool:
    """Return whether a folder has a manifest of ours, which a file of that name alone does not show."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        artifact.read_manifest(folder)
    except ArtifactError:
        return False
    return True


def _remove_ours(folder: Path, build: Path) -> list[Path]:
    """Remove views, artifacts, logs and leftovers below a folder, and then the folder; return what is not ours."""
    kept = []
    # Views last: they are by what the folder of a killed `clean` is known as ours.
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), path.name)):
        logs = path.name == _LOGS and path.is_dir() and not path.is_symlink()
        if path.is_symlink():
            ours = _is_view(path, build) or _LEFTOVER.fullmatch(path.name) is not None
        else:
            ours = path.name == _LOCK or _LEFTOVER.fullmatch(path.name) is not None or _is_artifact(path)
        if ours:
            remove(path)
        elif logs:
            for log in path.glob("*.log"):
                remove(log)
            kept += sorted(path.iterdir())
        elif path.is_dir() and not path.is_symlink():
            kept += _remove_ours(path, build)
        else:
            kept.append(path)
    if not kept:
        remove(folder)
    elif (folder / _LOGS).is_dir() and not any((folder / _LOGS).iterdir()):
        remove(folder / _LOGS)
    return kept
