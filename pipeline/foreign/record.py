"""What is found about a file of another tool: the judgement, as `--json` prints it and tables show it."""

from dataclasses import dataclass
from typing import Literal

from pipeline.formats.ports import Array

Verdict = Literal["same", "rounded", "another"]
"""The same model; the same model, rounded as a scheme is; another model."""


@dataclass(frozen=True)
class Worst:
    """The text on which a file is farthest from the reference."""

    text: str
    kind: str
    tokens: int
    length: int
    """Tokens of the row as it ran, padding included."""
    score: float


@dataclass(frozen=True)
class Cause:
    """The kind of error that a file looks like."""

    name: str
    """Short and stable, such as `mask_ignored`."""
    words: str
    rows: int
    """Rows on which a model with this error and the right one differ; 0 where outputs did not tell."""
    error_reference: float | None = None
    """Median relative error against the reference on those rows; None where outputs did not tell."""
    error_variant: float | None = None
    """The same against a reference that makes this error."""


@dataclass(frozen=True)
class Variant:
    """The outputs of a reference that makes an error."""

    name: str
    words: str
    """What is wrong."""
    outputs: list[Array]
    """`(items, width)` of each row."""


@dataclass(frozen=True)
class Storage:
    """How a file keeps its weights."""

    scheme: str | None
    """The scheme whose files keep and compute theirs like this; None if that is not known."""
    known_by: str
    """How that was found out, or why it was not."""
    bytes_per_parameter: float
    matched: int | None = None
    """Matrices of the checkpoint that were found in the file; None if its constants could not be read."""
    matrices: int | None = None
    """Matrices of the checkpoint."""
    findings: tuple[Cause, ...] = ()
    """What its constants give away: a weight that is scaled, a table in another order."""


@dataclass(frozen=True)
class Judgement:
    """A file's verdict with everything that it rests on."""

    file: str
    checkpoint: str
    task: str
    task_why: str
    verdict: Verdict
    said: str
    """The verdict in words."""
    scheme: str | None
    """The scheme whose bounds the file keeps; None if none."""
    score: Literal["cosine", "sqnr_db"]
    mean_score: float | None
    worst: Worst | None
    sqnr_db: float | None
    agreement: float | None
    """Fraction of the same decisions, of a head with labels or spans."""
    cause: Cause | None
    """The error that the file looks like; None if it is the same model, or if nothing fits."""
    others: tuple[Cause, ...]
    """What fits better than the reference beside the cause."""
    runtime: str
    stands_in: str | None
    inputs: dict[str, str]
    """Role of each input, by the file's own name for it."""
    outputs: tuple[str, ...]
    """Outputs that were read, by the file's own names."""
    lengths: str
    texts: int
    padded: int
    """How many rows ran with padding."""
    storage: Storage
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the file is the checkpoint's model."""
        return self.verdict != "another"
