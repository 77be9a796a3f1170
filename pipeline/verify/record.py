"""Records of the verify stage: the content of `parity.json`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError
from pipeline.quantize.stage import QuantiseRequest
from pipeline.schemes import Gates, OutputKind

PARITY = "parity.json"
Verdict = Literal["passed", "failed", "not_run"]
EXEMPT = "weights are declared random: no dataset has to be above chance, nor to show a loss to be small"
"""Among a verdict's reasons what is no reason for it, but belongs to it; it stands last."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class VerifyRequest:
    """The recipe's request for one file: its target, its gates, and how thoroughly to test it."""

    target: Target
    gates: Gates
    random_weights: bool = False
    """Whether the recipe declares that the weights were never trained."""
    thorough: bool = False
    """Whether every length and every id is tried, however long it takes."""
    checkpoint: QuantiseRequest = field(default_factory=QuantiseRequest)
    """What is asked of the checkpoint that was quantised for the target, where there is one."""


class Input(_Frozen):
    """One input and the file's score on it."""

    id: str
    kind: str
    text: str
    second: str | None
    tokens: int
    length: int
    """The length at which the file ran."""
    score: float | None
    """Cosine (embeddings) or SQNR in dB (all else) to the reference; None if not finite."""

    def short(self) -> str:
        """Return one line that names the input."""
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"{self.id} ({self.kind}, {self.tokens} tokens at {self.length}) {text!r}"


class GateResult(_Frozen):
    """The result of one gate: its bound, the value found, and a detail that names the worst input."""

    name: str
    bound: float | None
    found: float | None
    passed: bool
    detail: str


_LISTED = 3


def listed(items: Sequence[str]) -> str:
    """Join the first few messages, and count the rest."""
    more = f"; and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return "; ".join(items[:_LISTED]) + more


class Group(_Frozen):
    """The measures over inputs of one kind."""

    rows: int
    mean_score: float
    worst_score: float


class TaskScore(_Frozen):
    """A task metric on the reference and on the file, over one labelled dataset."""

    dataset: str
    metric: str
    rows: int
    chance: float
    reference: float
    found: float
    drop: float
    """`reference - found`, a fraction of 1."""
    drop_low: float
    drop_high: float
    """Paired bootstrap interval of the drop, 95 %."""
    undecided: float = 0.0
    """A drop so small tells nothing, see `pipeline.metrics.scoring.undecided`."""
    mean_score: float
    """Mean cosine or SQNR over the dataset's own texts."""
    worst_score: float


class Measures(_Frozen):
    """The file compared with the reference, over the verification texts."""

    rows: int
    padded_rows: int
    all_pad_rows: int
    repeated_rows: int
    """Run again in fresh sessions, with one thread and with two."""
    unit: float
    """What absolute differences are divided by: 1 for embeddings, else the reference's root mean square."""
    mean_score: float
    worst_score: float
    sqnr_db: float
    """999 if every number is equal."""
    max_abs_error: float
    mean_shift: float | None
    """Mean difference in standard deviations of the reference; None for all but single numbers."""
    max_all_pad_error: float | None
    """None for all but embeddings: elsewhere a row of padding has no defined answer beyond being finite."""
    max_pad_difference: float
    usual_pad_difference: float
    """Largest difference by padding over all padded rows but the 2 % that differ most."""
    deterministic: bool
    """Whether the fresh session gave the same bytes."""
    max_thread_difference: float | None
    """None where the evaluator does not heed the number of threads."""
    agreement: float | None
    """Share of rows, tokens or spans with the same decision; None for embeddings and single numbers, as is `kl`."""
    kl: float | None
    """Mean over rows or tokens, in nats; of spans over starts and ends."""


class Control(_Frozen):
    """The file's own graph in single precision against the checkpoint with the file's weights, see `verify.control`."""

    rows: int
    lengths: int
    """How many numbers of tokens and lengths were tried."""
    ids: int
    """How many ids were tried."""
    vocabulary: int
    """Number of ids in the vocabulary."""
    sqnr_db: float
    """Over all rows; 999 if every number is equal."""
    worst_row_db: float
    """The unit of all rows against the root mean square error of a row, or of its worst token."""
    worst_row: str
    masked_difference: float
    """Largest change of a number by what lies under the mask, of the outputs' root mean square; at most 999."""
    masked_row: str
    file_sqnr_db: float
    """The file as it runs, over the rows of every length, against the same."""
    file_worst_row_db: float
    file_worst_row: str


class Evaluation(_Frozen):
    """The errors of another evaluator on some rows, beside the evaluator that gives the verdict."""

    evaluator: str
    rows: int
    sqnr_db: float
    """Signal to quantisation noise ratio to the reference."""
    max_difference: float
    """Largest absolute difference to the evaluator of the verdict."""


class Parity(_Frozen):
    """The verdict on one converted file and everything behind it."""

    schema_version: Literal[3] = 3
    backend: str
    scheme: str
    task: str
    output_kind: OutputKind
    score: Literal["cosine", "sqnr_db"]
    """What `mean_score` and `worst_score` are."""
    evaluator: str | None
    """Runtime and version that ran the file, or what stood in for it; None if nothing ran it."""
    evaluator_stands_in: str | None
    """What the verdict does not cover, where the evaluator is not the runtime that phones have."""
    other_evaluators: list[Evaluation]
    """On macOS, Core ML itself on every compute unit."""
    verdict: Verdict
    reasons: list[str]
    file_bytes: int
    parameters: int
    ops_delegated: int | None
    ops_total: int | None
    random_weights: bool
    thorough: bool
    """Whether every length and every id was tried, see `Control`."""
    measures: Measures | None
    control: Control | None
    """None where what the file holds is not the checkpoint's, or nothing ran."""
    gates: list[GateResult]
    groups: dict[str, Group]
    """By kind of text."""
    datasets: list[TaskScore]
    datasets_skipped: dict[str, str]
    worst: list[Input]

    def headline(self) -> dict[str, float | None]:
        """Return the figures for a one-line summary."""
        if self.measures is None:
            return {}
        figures: dict[str, float | None] = {
            "mean_score": self.measures.mean_score,
            "worst_score": self.measures.worst_score,
        }
        return figures | {f"{row.dataset}_drop": row.drop for row in self.datasets}


def read(folder: Path) -> Parity:
    """Read a parity artifact.

    Raises:
        ArtifactError: it is absent or cannot be read.
    """
    try:
        return Parity.model_validate_json((folder / PARITY).read_bytes())
    except (OSError, ValidationError) as error:
        raise ArtifactError(f"{folder / PARITY} cannot be read; make it again with `pocketbert verify`.") from error
