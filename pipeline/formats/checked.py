"""Readers of files that may be damaged or not what their name says: errors of reading become `ArtifactError`."""

import functools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pipeline.errors import ArtifactError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    struct.error,
)  # fmt: skip
"""Errors that reading a damaged file raises. pydantic's and Unicode's errors are ValueErrors."""


def checked(read: Callable[Concatenate[Path, _P], _T]) -> Callable[Concatenate[Path, _P], _T]:
    """Decorate a reader of files, so that errors of reading become `ArtifactError`.

    Raises:
        ArtifactError: by the decorated reader, if the file cannot be read.
    """

    @functools.wraps(read)
    def reading(file: Path, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return read(file, *args, **kwargs)
        except _ERRORS as error:
            said = (str(error).strip().splitlines() or [""])[0]
            raise ArtifactError(
                f"{file} is damaged: {read.__name__} found {type(error).__name__}: {said}. "
                "Make the target again, or copy it again."
            ) from error

    return reading


def check_identifier(file: Path, identifier: bytes) -> None:
    """Refuse a flatbuffer of another format.

    Args:
        file: the file.
        identifier: the four bytes at byte 4 by which the format's files are known.

    Raises:
        ArtifactError: the file cannot be read, or has another identifier.
    """
    try:
        with file.open("rb") as handle:
            found = handle.read(8)[4:]
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}. Make the target again.") from error
    if found != identifier:
        raise ArtifactError(
            f"{file} is not a {file.suffix}: it has {found!r} at byte 4, not {identifier!r}. Make the target again."
        )
