"""Remove artifacts, and nothing that is not one."""

import shutil
from pathlib import Path

from pipeline.artifact import MANIFEST
from pipeline.errors import InputError


def clean(build: Path, recipe: str | None) -> list[Path]:
    """Remove the folders of one recipe, or of all, from a build folder.

    A folder counts as a recipe's only if it holds a student artifact or our lock: `--build` may point anywhere.

    Raises:
        InputError: the recipe has no folder there, or the folder is not one of ours.
    """
    if recipe is not None and not (build / recipe).is_dir():
        raise InputError(
            f"{build / recipe} does not exist; there are: {', '.join(path.name for path in _ours(build)) or 'none'}."
        )
    wanted = [build / recipe] if recipe is not None else _ours(build)
    for folder in wanted:
        if folder not in _ours(build):
            raise InputError(
                f"{folder} was not made by pocketbert (no lock, no student); remove it by hand if you mean it."
            )
        shutil.rmtree(folder)
    return wanted


def _ours(build: Path) -> list[Path]:
    folders = sorted(path for path in build.glob("*") if path.is_dir() and not path.is_symlink())
    return [path for path in folders if (path / ".lock").exists() or (path / "student" / MANIFEST).exists()]
