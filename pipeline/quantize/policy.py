"""Policies: the linears of a student with 8 bits where a scheme gives 4. `pocketbert sensitivity` writes them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import InputError
from pipeline.execution import planned


class Policy(BaseModel):
    """One policy, read from a TOML file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    eight_bits: tuple[str, ...]
    """Paths of linears in the Hugging Face model, such as `encoder.layer.4.output.dense`."""


def read(path: Path) -> Policy:
    """Read a policy.

    Raises:
        InputError: the file is absent or is no policy.
    """
    planned.check_regular(path)
    try:
        return Policy.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(
            f"quantize.policy: {path} cannot be read: {error.strerror}. `pocketbert sensitivity` writes such a file."
        ) from error
    except (ValueError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"quantize.policy: {path} is no policy: {why}. It has one key, eight_bits = [paths of linears]."
        ) from error


def check(eight: Sequence[str], paths: frozenset[str]) -> None:
    """Refuse a policy for another student.

    Args:
        eight: paths of linears that get 8 bits.
        paths: paths of the student's linears.

    Raises:
        InputError: it names linears that the student lacks.
    """
    unknown = sorted(set(eight) - paths)
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if unknown[1:] else ""
        raise InputError(
            f"quantize.policy gives 8 bits to {unknown[0]}{more}, which is no linear of this student; its linears are "
            f"{', '.join(sorted(paths)[:3])} and {max(0, len(paths) - 3)} more."
        )
