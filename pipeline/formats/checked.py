"""Readers of files that may be damaged: bounds are checked first, and errors become `ArtifactError`."""

import functools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pipeline.formats.columns import damage

_T = TypeVar("_T")
_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
    struct.error,
)  # fmt: skip
"""Errors that reading a damaged file raises. pydantic's and Unicode's errors are ValueErrors."""


def checked(check: Callable[[Path], object] | None = None) -> Callable[[Callable[[Path], _T]], Callable[[Path], _T]]:
    """Return a decorator that checks a file before it is read, and turns errors of reading into `ArtifactError`.

    Args:
        check: called with the file first; None if the reader checks the file itself.

    Raises:
        ArtifactError: by the decorated reader, if the file cannot be read.
    """

    def decorate(read: Callable[[Path], _T]) -> Callable[[Path], _T]:
        @functools.wraps(read)
        def reading(file: Path) -> _T:
            if check is not None:
                check(file)
            try:
                return read(file)
            except _ERRORS as error:
                said = (str(error).strip().splitlines() or [""])[0]
                raise damage(file)(f"{read.__name__} found {type(error).__name__}: {said}") from error

        return reading

    return decorate
