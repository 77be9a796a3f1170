"""Data files as a run was planned with them: a machine that has another one in the place, or none, refuses to go on.

Keys count the content of texts, labelled files and collections as the driver found them. A worker that shares no folder
with the driver reads files of its own, and would store what it makes of others under the driver's key.
"""

import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifact import sha256_file
from pipeline.errors import InputError, no_file

DATA_VARIABLE = "POCKETBERT_DATA"
"""Environment variable with the folder of the public datasets."""
_PACKAGE = Path(__file__).resolve().parents[1]
_counted: dict[str, str] = {}
"""In the driver: the sha256 of every data file that a key counts, by its name."""
_expected: Mapping[str, str] | None = None
"""In a process of another machine: those of the driver."""


def name_of(path: Path) -> str:
    """Return a data file's name on every machine: its path, in the folder of the datasets if it lies there."""
    root, absolute = os.environ.get(DATA_VARIABLE), Path(os.path.abspath(path))
    if root and absolute.is_relative_to(os.path.abspath(root)):
        return absolute.relative_to(os.path.abspath(root)).as_posix()
    return str(absolute)


def digest(path: Path) -> str:
    """Return the sha256 of a data file, for a key.

    Raises:
        InputError: it is a pipe or a device, which may never end.
    """
    check_regular(path)
    found = sha256_file(path)
    _counted[name_of(path)] = found
    return found


def counted() -> dict[str, str]:
    """Return the sha256 of every data file that a key of this process counts, by name."""
    return dict(_counted)


def check_regular(path: Path) -> None:
    """Refuse a pipe or a device in the place of a file.

    Raises:
        InputError: it is one.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} {no_file(path)}.")


def check(path: Path) -> None:
    """Refuse a data file that the run was not planned with; where the run was planned on this machine, do nothing.

    Raises:
        InputError: the file has another content than the driver's.
    """
    if _expected is None or not path.is_file() or path.resolve().is_relative_to(_PACKAGE):
        return
    found, known = sha256_file(path), _expected.get(name_of(path))
    if found != known if known else found not in _expected.values():
        raise InputError(
            f"{path} on {platform.node()} is not the file that this run was planned with. Copy it from the machine "
            "where the command was started, to the same path."
        )


def absent(name: str, reason: str | None) -> str | None:
    """Return why a data file cannot be used; it is absent too if the driver planned without it.

    Args:
        name: see `name_of`.
        reason: why it is not there; None if it is.

    Raises:
        InputError: the driver has the file, and this machine has not.
    """
    if _expected is None:
        return reason
    if reason is None:
        return None if name in _expected else "the machine where the command was started does not have it"
    if name in _expected:
        raise InputError(
            f"this run was planned with {name}, and on {platform.node()} {reason}. Copy it from the machine where the "
            "command was started."
        )
    return reason


def call(expected: Mapping[str, str], function: Callable[..., Mapping[str, Any]], *arguments: Any) -> Mapping[str, Any]:
    """Call a node's function where no data files but the driver's may be read."""
    global _expected
    _expected = expected
    try:
        return function(*arguments)
    finally:
        _expected = None
