"""What `compat.json` holds."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

RECORD = "compat.json"
Status = Literal["right", "wrong", "refused", "crashed", "not_tried"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Operator(_Frozen):
    """An operation and the version that a file declares for it."""

    name: str
    code: int
    version: int


class TooNew(Operator):
    """One that a runtime does not know."""

    known: int
    """The newest version that it knows; 0 for none."""

    def __str__(self) -> str:
        """Return it as a part of a sentence."""
        knows = f"knows up to {self.known}" if self.known else "does not know it at all"
        return f"{self.name} version {self.version}; it {knows}"


class Verdict(_Frozen):
    """What a runtime makes of a file."""

    status: Status
    reason: str = ""
    """Empty if it is right."""
    too_new: list[TooNew] = []
    """Operations that the runtime does not know, where it refused the file."""
    worst_cosine: float | None = None
    """Over the golden rows at every length; null where an output is zero or not finite, or nothing was run."""
    sqnr_db: float | None = None
    """Over all of them together; null likewise, or where the outputs are exactly the reference."""
    runs: int = 0
    """Golden rows times lengths."""
    p50_ms: float | None = None
    """Median wall time of one inference, one thread; shown, not judged."""
    timed_length: int | None = None
    """Length in tokens at which that was."""


class Row(_Frozen):
    """One file on one runtime."""

    target: str
    runtime: str
    verdict: Verdict


class File(_Frozen):
    """A `.tflite` that was tried."""

    target: str
    sha256: str
    bytes: int
    min_cosine: float | None
    min_sqnr_db: float | None
    operators: list[Operator]


class ExecuTorchFile(_Frozen):
    """A `.pte`: nothing is run; who made it, and what its makers promise."""

    target: str
    made_with: str
    """Version of ExecuTorch, from the model's manifest."""
    minimum_runtime: str
    """From its signature."""
    promised_on: list[str]
    """Releases on which it is promised to run."""
    promise: str
    policy: str
    """Where that is written."""


class Compat(_Frozen):
    """The whole document."""

    schema_version: Literal[1] = 1
    recipe: str
    minimum_runtime: str | None
    """What the recipe asks for, for its LiteRT files."""
    floor_kept: bool | None
    """Whether every file is right on it; null if none is asked for."""
    rows: list[Row]
    files: list[File]
    executorch: list[ExecuTorchFile]
    unfinished: list[str]
    """Targets that are not made yet, and so were left out."""

    @property
    def tried(self) -> bool:
        """Whether any file was tried on any runtime, or none is there that could be."""
        return not self.rows or any(row.verdict.status != "not_tried" for row in self.rows)

    @property
    def below_floor(self) -> list[Row]:
        """Files that are not right on the runtime that the recipe asks for."""
        return [row for row in self.rows if row.runtime == self.minimum_runtime and row.verdict.status != "right"]


def read_compat(place: Path) -> Compat:
    """Read the document of a finished artifact."""
    return Compat.model_validate_json((place / RECORD).read_bytes())
