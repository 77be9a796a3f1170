"""Records of the verify stage: the content of `parity.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError
from pipeline.kinds import OutputKind
from pipeline.quantize.stage import QuantiseRequest
from pipeline.schemes import Gates

PARITY = "parity.json"
Verdict = Literal["passed", "failed", "not_run"]
EXEMPT = "weights are declared random: no dataset has to be above chance, nor to show a loss to be small"
"""A note that stands last among the reasons of a verdict; it explains the verdict and fails no file."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class VerifyRequest:
    """The recipe's request for one file: its target, its gates, and how thoroughly to test it."""

    target: Target
    """The format and scheme that the file must have."""
    gates: Gates
    """The bounds of the scheme, with the recipe's own in their place where it has some."""
    random_weights: bool = False
    """Whether the recipe declares that the student's weights are random, so that no dataset can be above chance."""
    thorough: bool = False
    """Whether verification runs every sequence length and every token id, however long it takes."""
    checkpoint: QuantiseRequest = field(default_factory=QuantiseRequest)
    """The expected properties of the quantised checkpoint that the file was converted from, if there is one."""


@dataclass(frozen=True)
class HeadToVerify:
    """Another head that a file has to have."""

    name: str
    student: Path
    """Its checkpoint, see `pipeline.student.other_head`."""
    reference: Path
    """The outputs of that checkpoint in fp32 PyTorch."""
    request: VerifyRequest


class Input(_Frozen):
    """One input and the file's score on it."""

    id: str
    """The input's name in its dataset or in the verification texts."""
    kind: str
    """The kind of text, such as `short` or `code`; see `pipeline/text/texts`."""
    text: str
    """The first 300 characters of the text."""
    second: str | None
    """The second text of a pair, cut likewise; None for a single text."""
    tokens: int
    """Number of tokens without padding."""
    length: int
    """The sequence length at which the file ran the input."""
    score: float | None
    """Cosine to the reference for embeddings, SQNR in dB for all other outputs; None if the output is not finite."""

    def short(self) -> str:
        """Return one line that names the input."""
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"{self.id} ({self.kind}, {self.tokens} tokens at {self.length}) {text!r}"


class GateResult(_Frozen):
    """The result of one gate: its bound, the value found, and a detail that names the worst input."""

    name: str
    """The gate's name; a bound has the name of its key in the recipe's `[verify.gates]`."""
    bound: float | None
    """The value that the gate allows at most or at least; None for a gate without a number."""
    found: float | None
    """The value of the file; None if it is not finite, or for a gate without a number."""
    passed: bool
    """Whether the file keeps the bound."""
    detail: str
    """The worst input, tensor or operation, in words."""


_LISTED = 3


def listed(items: Sequence[str]) -> str:
    """Join the first few messages, and count the rest."""
    more = f"; and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return "; ".join(items[:_LISTED]) + more


class Group(_Frozen):
    """The measures over inputs of one kind."""

    rows: int
    """Number of inputs of the kind, padded runs included."""
    mean_score: float
    """Mean of the inputs' scores; see `Input.score`."""
    worst_score: float
    """Lowest of the inputs' scores."""


class TaskScore(_Frozen):
    """A task metric on the reference and on the file, over one labelled dataset."""

    dataset: str
    """The dataset's row in `pipeline.data.datasets`."""
    metric: str
    """The task metric's row in `pipeline.metrics.scoring`."""
    rows: int
    """Number of labelled rows."""
    chance: float
    """The metric that guessing reaches, as a fraction of 1."""
    reference: float
    """The metric of the student in fp32 PyTorch, as a fraction of 1."""
    found: float
    """The metric of the file, as a fraction of 1."""
    drop: float
    """`reference - found`; negative if the file is better."""
    drop_low: float
    """Lower end of the 95 % interval of the drop, by paired bootstrap."""
    drop_high: float
    """Upper end of that interval."""
    undecided: float = 0.0
    """The largest drop that may be luck; see `pipeline.metrics.scoring.undecided`."""
    mean_score: float
    """Mean cosine or SQNR over the dataset's own texts."""
    worst_score: float
    """Lowest cosine or SQNR over the dataset's own texts."""


class Ranked(_Frozen):
    """One retrieval metric on the reference and on an index of the file's vectors."""

    reference: float
    """The metric of the student in fp32 PyTorch, with vectors in single precision at their whole width."""
    found: float
    """The metric of the index."""
    low: float
    """Lower end of the 95 % interval of `found - reference`, by a paired bootstrap over queries."""
    high: float
    """Upper end of that interval."""


class Retrieval(_Frozen):
    """How search keeps its quality in an index of the file's vectors, in one form of storage, over one collection."""

    collection: str
    """Name of the collection, or `all` for the queries of all together."""
    queries: int
    documents: int
    storage: str
    """A row of `pipeline.vectors.storage`."""
    width: int
    """How many leading numbers of a vector are stored."""
    bytes_per_vector: int
    metrics: dict[str, Ranked]
    """By the metric's name in `pipeline.metrics.ranking`."""

    @property
    def recall_kept(self) -> float:
        """The share of the reference's recall@10 that is left."""
        found = self.metrics["recall_at_10"]
        return found.found / found.reference if found.reference else 0.0


class Measures(_Frozen):
    """The file compared with the reference, over the verification texts."""

    rows: int
    """Number of verification texts, each run at the length that its token count selects."""
    padded_rows: int
    """Number of runs in which a text was padded to a longer length."""
    all_pad_rows: int
    """Number of runs with padding alone, one per tested length."""
    repeated_rows: int
    """Number of runs that were repeated in fresh sessions, with one thread and with two."""
    unit: float
    """Divisor of absolute differences: 1 for embeddings, else the root mean square of the reference's outputs."""
    mean_score: float
    """Mean cosine (embeddings) or SQNR in dB (all other outputs) over all runs."""
    worst_score: float
    """Lowest cosine or SQNR of any run."""
    sqnr_db: float
    """SQNR over the outputs of all runs together, in dB; 999 if all are equal to the reference."""
    max_abs_error: float
    """Largest absolute difference of one output from the reference, in units of `unit`."""
    mean_shift: float | None
    """Mean difference in standard deviations of the reference's outputs, the largest of all outputs; None for all but
    the numbers of a regression."""
    max_all_pad_error: float | None
    """Largest absolute output of a row that is all padding; None for all outputs but embeddings, since no other output
    has a defined value there."""
    max_pad_difference: float
    """Largest change of an output by padding its text to a longer length, in units of `unit`."""
    usual_pad_difference: float
    """The same over the 98 % of padded runs that differ least."""
    deterministic: bool
    """Whether the repeated runs gave the same bytes with one thread."""
    max_thread_difference: float | None
    """Largest change of an output by running with two threads, in units of `unit`; None if the evaluator has no threads
    to choose."""
    agreement: float | None
    """Fraction of rows, tokens or spans with the same decision as the reference; None for embeddings and single
    values."""
    value_range: float | None = None
    """Largest minus smallest output of the reference, of the output that has least; None for all but numbers."""
    kendall_tau: float | None = None
    """Kendall's τ between the texts' order by the reference and by the file, lowest of all outputs; None likewise."""
    kl: float | None
    """Mean Kullback-Leibler divergence from the reference in nats, per row or token, or per start and end of a span;
    None for embeddings and single values."""


class Control(_Frozen):
    """The file's graph in single precision against the checkpoint with the file's weights; see `verify.control`."""

    rows: int
    """Number of runs of the graph, each of one row at one sequence length."""
    lengths: int
    """Number of different pairs of token count and sequence length among the rows."""
    ids: int
    """Number of different token ids among the rows."""
    vocabulary: int
    """Number of token ids in the vocabulary."""
    sqnr_db: float
    """SQNR over the outputs of all rows, in dB; 999 if all are equal."""
    worst_row_db: float
    """Root mean square of all outputs over the root mean square error of the worst row or its worst token, in dB."""
    worst_row: str
    """The row of `worst_row_db`, in words."""
    masked_difference: float
    """Largest change of an output by other tokens under the mask, over the outputs' root mean square; at most 999."""
    masked_row: str
    """The row of `masked_difference`, in words."""
    file_sqnr_db: float
    """SQNR of the file as it runs, with its own arithmetic, against the same outputs, over rows of every length."""
    file_worst_row_db: float
    """The counterpart of `worst_row_db` for the file as it runs."""
    file_worst_row: str
    """The row of `file_worst_row_db`, in words."""


class Evaluation(_Frozen):
    """The errors of another evaluator on some rows, beside the evaluator that gives the verdict."""

    evaluator: str
    """Name and version of the runtime that ran the file."""
    rows: int
    """Number of runs, those of `Measures.repeated_rows`."""
    sqnr_db: float
    """SQNR to the reference over all runs, in dB."""
    max_difference: float
    """Largest absolute difference from the outputs of the evaluator that gives the verdict."""


class Parity(_Frozen):
    """The verdict on one converted file, with every measurement behind it."""

    schema_version: Literal[3] = 3
    backend: str
    """The file's format: a name in `pipeline.formats`."""
    scheme: str
    """The file's scheme: a row of `pipeline.schemes`."""
    task: str
    """The student's task: a row of `pipeline.tasks`."""
    output_kind: OutputKind
    """The kind of the task's outputs, which decides the measures that exist."""
    score: Literal["cosine", "sqnr_db"]
    """The measure in all fields named `mean_score` and `worst_score`."""
    evaluator: str | None
    """Name and version of the runtime that ran the file, or of its stand-in; None if nothing ran it."""
    evaluator_stands_in: str | None
    """The limits of the verdict if a stand-in ran the file instead of the runtime on phones; None otherwise."""
    other_evaluators: list[Evaluation]
    """Further runtimes on some of the rows: on macOS, Core ML itself on every compute unit."""
    verdict: Verdict
    reasons: list[str]
    """One sentence per failed gate, or the reason why nothing ran; empty for most files that passed."""
    file_bytes: int
    """Size of the model file or package."""
    parameters: int
    """Number of the student's parameters; of a file with several heads, of all of them, shared ones once."""
    ops_delegated: int | None
    """Number of operations that the delegate runs; None if the format does not tell."""
    ops_total: int | None
    """Number of all operations; None likewise."""
    random_weights: bool
    """Whether the recipe declares that the weights are random; see `VerifyRequest`."""
    thorough: bool
    """Whether the control ran every sequence length and every token id; see `Control`."""
    measures: Measures | None
    """None if nothing ran the file, or its outputs are not finite."""
    control: Control | None
    """None if nothing ran the file, or a gate on its stored weights or structure failed."""
    gates: list[GateResult]
    """All gates, passed and failed."""
    groups: dict[str, Group]
    """Scores by the kind of text."""
    datasets: list[TaskScore]
    """Task metrics by dataset, in the order of the task's row."""
    datasets_skipped: dict[str, str]
    """Datasets without a metric, with the reason."""
    retrieval: list[Retrieval] = []
    """Search by the file's vectors, for each collection, form of storage and width; empty unless asked for."""
    worst: list[Input]
    """The inputs with the lowest scores, worst first."""
    heads: dict[str, "Parity"] = {}
    """The verdicts on the other heads of the file, by name; the file's own verdict counts them."""

    def with_heads(self, heads: Mapping[str, "Parity"]) -> "Parity":
        """Return the verdict on a file with other heads: as bad as that of its worst head."""
        if not heads:
            return self
        verdicts = {self.verdict, *(one.verdict for one in heads.values())}
        verdict: Verdict = next(one for one in ("failed", "not_run", "passed") if one in verdicts)
        own = [reason for reason in self.reasons if reason != EXEMPT]
        own += [f"head {name}: {why}" for name, one in heads.items() for why in one.reasons if why != EXEMPT]
        own += [EXEMPT] if EXEMPT in self.reasons else []
        return self.model_copy(update={"verdict": verdict, "reasons": own, "heads": dict(heads)})

    def written(self) -> str:
        """Return the content of `parity.json`."""
        absent = {name for name in ("heads", "retrieval") if not getattr(self, name)}
        return self.model_dump_json(indent=1, exclude=absent) + "\n"

    def headline(self) -> dict[str, float | None]:
        """Return the figures for a one-line summary."""
        if self.measures is None:
            return {}
        figures: dict[str, float | None] = {
            "mean_score": self.measures.mean_score,
            "worst_score": self.measures.worst_score,
        }
        return figures | {f"{row.dataset}_drop": row.drop for row in self.datasets}


def read_parity(folder: Path) -> Parity:
    """Read a parity artifact.

    Raises:
        ArtifactError: it is absent or cannot be read.
    """
    try:
        return Parity.model_validate_json((folder / PARITY).read_bytes())
    except (OSError, ValidationError) as error:
        raise ArtifactError(f"{folder / PARITY} cannot be read; make it again with `pocketbert verify`.") from error


def verdict_on(model: Artifact, folder: Path, target: Target) -> Parity:
    """Return the verdict on exactly this model.

    Args:
        model: the target's model artifact.
        folder: the recipe's folder in the build folder.
        target: the format and scheme.

    Raises:
        ArtifactError: it was not verified, it is another file than the verified one, or the record cannot be read.
    """
    place = folder / str(target) / "parity"
    if not place.exists():
        raise ArtifactError(f"{target} was not verified: {place} does not exist. Run `pocketbert verify` first.")
    judged = artifact.load(place)
    if judged.manifest.inputs.get("model") != model.digest:
        raise ArtifactError(f"{target} changed after it was verified; run `pocketbert verify` again.")
    return read_parity(place)
