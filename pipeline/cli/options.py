"""The arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.texts import shortened
from pipeline.errors import InputError, no_folder


def _folder(path: Path) -> Path:
    """Refuse a path that cannot be the build folder before anything is planned."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        # It is made, or refused, when something is written.
        return path
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"--build {shortened(str(path))} cannot be used: {why}. Choose another folder.") from error
    if not path.is_dir():
        raise InputError(f"--build {path} {no_folder(path)}. Choose another folder.")
    return path


RecipeName = Annotated[str, typer.Argument(help="Name of a recipe, ready or your own, or path to a .toml file.")]
Targets = Annotated[
    list[str] | None, typer.Option("--target", help="Only this format or format:scheme; may be repeated.")
]
BuildFolder = Annotated[Path, typer.Option("--build", callback=_folder, help="Folder for artifacts.")]
BUILD = Path("build")
DeviceName = Annotated[str, typer.Option("--device", help="Name of a device, as `pocketbert list` shows it.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be made and why; make nothing.")]
Stale = Annotated[
    bool, typer.Option("--stale", help="Take files and verdicts that are of other inputs than the recipe has now.")
]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Sign with this private key; the verdicts have to be of `verify --thorough`."),
]
