"""Records of measurements: JSON files in `benchmarks/results/` that are committed, and that pages are made of.

A page says what its records say. So a table that takes hours may be made in pieces, on several machines and days, and
what one of them measured is kept when another checkout goes on.
"""

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.atomic import write_aside
from pipeline.errors import ArtifactError

RESULTS = Path(__file__).parent / "results"
State = Literal["there", "older", "stale", "not run"]
"""older: the same settings, made by older code. stale: other settings."""


class Strict(BaseModel):
    """A record, or a part of one: nothing may be changed, added or infinite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Kind = TypeVar("Kind", bound=Strict)


def read(kind: type[Kind], path: Path) -> Kind | None:
    """Return a record, or None where there is none.

    Raises:
        ArtifactError: it cannot be read.
    """
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}); delete it and run its row again."
        ) from error


def write(path: Path, record: Strict) -> None:
    """Write a record, whole or not at all."""
    with write_aside(path) as aside:
        aside.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
