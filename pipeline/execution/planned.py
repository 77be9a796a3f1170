"""Data files as a run was planned with them: a machine that has another one in the place, or none, refuses to go on.

Keys count the content of texts, labelled files and collections as the driver found them. A worker that shares no folder
with the driver reads files of its own, and would store what it makes of others under the driver's key.
"""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.artifact import sha256_file
from pipeline.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]
_counted: dict[str, str] = {}
"""In the driver: the sha256 of every data file that a key counts, by the name that it was read by."""
_expected: Mapping[str, str] | None = None
"""In a process of another machine: those of the driver."""


def digest(path: Path, name: str = "") -> str:
    """Return the sha256 of a data file, for a key.

    Args:
        path: the file.
        name: what it is called where machines have it at different paths; the path itself if empty.
    """
    found = sha256_file(path)
    _counted[name or str(path)] = found
    return found


def counted() -> dict[str, str]:
    """Return the sha256 of every data file that a key of this process counts, by name."""
    return dict(_counted)


def check(path: Path) -> None:
    """Refuse a data file that the run was not planned with; where the run was planned on this machine, do nothing.

    Raises:
        InputError: the file has another content than the driver's.
    """
    if _expected is None or not path.is_file() or path.resolve().is_relative_to(_PACKAGE):
        return
    if sha256_file(path) not in _expected.values():
        raise InputError(
            f"{path} on {platform.node()} is not the file that this run was planned with. Copy it from the machine "
            "where the command was started, to the same path."
        )


def check_absent(name: str, reason: str) -> None:
    """Refuse that a data file is absent which the run was planned with.

    Args:
        name: as `digest` was told.
        reason: why it is not there.

    Raises:
        InputError: the driver has the file.
    """
    if _expected is not None and name in _expected:
        raise InputError(
            f"this run was planned with {name}, and on {platform.node()} {reason}. Copy it from the machine where the "
            "command was started."
        )


def call(expected: Mapping[str, str], function: Callable[..., Mapping[str, Any]], *arguments: Any) -> Mapping[str, Any]:
    """Call a node's function where no data files but the driver's may be read."""
    global _expected
    _expected = expected
    try:
        return function(*arguments)
    finally:
        _expected = None
