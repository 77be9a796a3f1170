"""What `report.json` holds: everything that the page shows, typed. Absent is null, and the page says why."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline.benchmark.record import Percentiles, Sustained
from pipeline.benchmark.sustained import Energy
from pipeline.checkpoint.ranges import Training
from pipeline.devices.host import Machine
from pipeline.fronts.front import Front
from pipeline.quantize.costs import LinearCost
from pipeline.verify.emulated import EmulatedRuns
from pipeline.verify.record import Parity, TaskScore, Verdict

SCHEMA_VERSION: Literal[2] = 2
VERIFICATION = "verification"
"""Name of the bundled verification texts among `Report.texts`."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StudentInfo(_Frozen):
    """The model that everything else is compared with."""

    name: str
    """The recipe's source."""
    origin: str
    licence: str | None
    digest: str
    """Content digest of the student artifact."""
    task: str
    model_type: str
    parameters: int
    layers: int
    hidden_size: int
    random_weights: bool


class Conversion(BaseModel):
    """What the convert stage noted about one file; keys that only a toolchain's module needs are left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    file_bytes: int
    ops_delegated: int | None = None
    ops_total: int | None = None
    convert_seconds: float | None = None
    peak_rss_bytes: int | None = None
    lengths_left_out: list[int] = []
    lengths_left_out_reason: str | None = None


class TargetReport(_Frozen):
    """One target: how its file was made and what became of it."""

    name: str
    file: str = ""
    """Name of the file or package in the model artifact; empty in earlier reports."""
    runtime: str
    """What runs such files, as people call it."""
    scheme: str
    scheme_summary: str
    digest: str
    """Content digest of the model artifact."""
    bytes_per_parameter: float
    lengths: list[tuple[int, int]]
    """Shortest and longest row of each function; equal where the length is fixed."""
    minimum_runtime: str
    """Oldest runtime that computes the file rightly."""
    conversion: Conversion
    parity: Parity
    tools: dict[str, str]
    """Versions that decided the file's content."""
    emulated: EmulatedRuns | None = None
    """What emulated ARM64 processors computed and counted; None where `pocketbert arm64` was not run on this file."""

    @property
    def instructions(self) -> EmulatedRuns | None:
        """Return the record if it has counts: instructions of an inference, which are no latency."""
        return self.emulated if self.emulated and self.emulated.counts else None


class LengthSummary(_Frozen):
    """Times at one fixed length, in ms."""

    seq_len: int
    ran_at: int
    wall: Percentiles
    cpu: Percentiles
    speedup: float | None
    """The reference's median wall clock over this one; None without a reference in the same run."""
    quantiles: list[float] = []
    """Wall clock at every twentieth of the runs, from the least to the most, for who draws the distribution."""


class TextSummary(_Frozen):
    """Times over real texts as they come, in ms."""

    texts: int
    passes: int
    mean_tokens: float
    mean_ran_at: float
    """Mean length at which the texts ran, padding included."""
    mean_ms: float
    """Mean over texts of each text's median pass, tokenisation excluded."""
    mean_cpu_ms: float | None
    mean_with_tokenisation_ms: float
    wall: Percentiles
    wall_with_tokenisation: Percentiles
    speedup: float | None
    """The reference's `mean_ms` over this one."""
    quantiles: list[float] = []
    """As of a length."""


class VariantReport(_Frozen):
    """One record of the benchmark: a variant at a thread count."""

    id: str
    digest: str | None
    """Content digest of what ran."""
    target: str | None
    """The target whose file ran, found by content digest; None for what is no target of the recipe."""
    student: str | None
    """The recipe of the student beside this one that the file is of; None for the report's own."""
    reference: bool
    """Whether this is the student itself, which the others are set against."""
    verdict: Verdict | None
    runtime: str
    scheme: str
    delegate: str | None
    threads: int
    file_bytes: int | None
    load_ms: float
    first_inference_ms: float
    baseline_bytes: int | None
    model_bytes: int | None
    lengths: list[LengthSummary]
    texts: TextSummary
    errors: list[str]
    source: str
    run_id: str
    started_utc: str
    clock: str
    warmup_runs: int
    busy_before_fraction: float | None
    load_average_before: float | None
    load_average_after: float | None
    compute_units: str | None = None
    ops_delegated: int | None = None
    ops_total: int | None = None
    ops_by_unit: dict[str, int] | None = None
    memory_kind: str = "rss"
    turns: int = 1
    thermal_after: str | None = None
    temperature_before_c: float | None = None
    temperature_after_c: float | None = None
    throttled: bool = False
    """Whether the phone was hot enough to slow down."""
    sustained: Sustained | None = None
    energy: Energy | None = None
    energy_absent: str | None = None
    """Why it was not measured."""

    @property
    def label(self) -> str:
        """Return what tables and plots call the variant."""
        own = f"{self.runtime} {self.scheme}"
        return f"{own}, {self.student}" if self.student else own

    @property
    def longest(self) -> LengthSummary | None:
        """Return the times at the longest length."""
        return max(self.lengths, key=lambda row: row.seq_len, default=None)


Clock = Literal["wall", "cpu"]
"""What times are by: wall clock, or processor time where something else took the processor meanwhile."""


class HeadlineFile(_Frozen):
    """The file that the headline is about, beside the student in PyTorch."""

    target: str
    label: str
    threads: int
    clock: Clock = "wall"
    """What all times of this record are by."""
    file_bytes: int
    reference_bytes: int | None
    seq_len: int | None
    p50_ms: float | None
    reference_p50_ms: float | None
    speedup_longest: float | None
    mean_ms: float
    reference_mean_ms: float | None
    speedup_texts: float | None
    mean_score: float | None
    worst_score: float | None
    datasets: list[TaskScore]


class Recommendation(_Frozen):
    """The file to ship on one system."""

    system: str
    """The system's name, as people write it."""
    target: str | None
    """The target; None if no file of the system passed."""
    file: str | None
    """Path of the file in the build folder."""
    reason: str
    """Why this file, or why none; a file that was not timed is named as such."""
    command: str | None
    """The command that copies the file into the demo app."""


class StudentMetric(_Frozen):
    """One dataset's metric, of a student beside this one."""

    dataset: str
    metric: str
    unpruned: float
    """The task score of the report's own student in PyTorch fp32."""
    student: float
    """The task score of the student beside it in PyTorch fp32."""
    found: float
    """The task score of its file."""


class FileBeside(_Frozen):
    """One file of a student beside this one, set against the same target of the report's own student."""

    target: TargetReport
    own_bytes: int | None
    """Size of the own student's file for the same target; None if the recipe has none."""
    threads: int | None
    mean_ms: float | None
    """Over real texts, at the lowest thread count; None if it was not timed."""
    own_mean_ms: float | None
    """Mean latency of the own student's file for the same target, in the same run."""
    metrics: list[StudentMetric]


class StudentBeside(_Frozen):
    """Another recipe's student, made of the same kind of checkpoint and timed in the same run."""

    recipe: str
    student: StudentInfo
    files: list[FileBeside]


class PhoneReport(_Frozen):
    """What was measured on one phone."""

    device: str
    """As its row or its folder is called."""
    machines: list[Machine]
    """One, unless records of several phones were put into one folder."""
    variants: list[VariantReport]

    @property
    def seq_lens(self) -> list[int]:
        """Return the fixed lengths that were measured, ascending."""
        return sorted({row.seq_len for variant in self.variants for row in variant.lengths})


class QuantisedReport(_Frozen):
    """What quantising the student for a scheme found."""

    scheme: str
    texts: int
    """Number of texts in the calibration set."""
    linears: int
    """How many there are."""
    worst: list[LinearCost]
    """Those that lose most, the worst first."""
    training: Training | None
    """None where it was not trained behind that."""


class Report(_Frozen):
    """One run of a recipe, as shown."""

    schema_version: Literal[2] = SCHEMA_VERSION
    recipe: dict[str, Any]
    student: StudentInfo
    score: Literal["cosine", "sqnr_db"]
    counts: dict[Verdict, int]
    best: HeadlineFile | None
    best_absent: str | None
    """Why there is no best file; None where there is one."""
    recommendations: list[Recommendation] = []
    """One for each system that has a demo app; empty in earlier reports."""
    targets: list[TargetReport]
    beside: list[StudentBeside]
    variants: list[VariantReport]
    disturbances: list[str]
    """Signs that something else took the processor while times were taken."""
    machines: list[Machine]
    phones: list[PhoneReport] = []
    left_out: list[str] = []
    """Records beside the run that are not shown, each with the reason."""
    fronts: list[Front] = []
    """Of studies that began with this student; empty in earlier reports."""
    quantised: list[QuantisedReport] = []
    """One for each checkpoint that files of the report's own student are made of; empty in earlier reports."""
    versions: dict[str, list[str]]
    """By distribution; more than one where artifacts were made with different ones."""
    texts: dict[str, str] = {}
    """Digests of the `verification` texts and of each labelled dataset, by name; empty in earlier reports."""

    @property
    def threads(self) -> list[int]:
        """Return the thread counts that were measured, ascending."""
        return sorted({variant.threads for variant in self.variants})

    @property
    def seq_lens(self) -> list[int]:
        """Return the fixed lengths that were measured, ascending."""
        return sorted({row.seq_len for variant in self.variants for row in variant.lengths})

    @property
    def own(self) -> list[VariantReport]:
        """Return the variants of the report's own student."""
        return [variant for variant in self.variants if variant.student is None]

    @property
    def files(self) -> list[tuple[str | None, TargetReport]]:
        """Return every file with the recipe of its student, None for the report's own, in the order of the tables."""
        own: list[tuple[str | None, TargetReport]] = [(None, target) for target in self.targets]
        return own + [(near.recipe, file.target) for near in self.beside for file in near.files]

    def with_threads(self, threads: int) -> list[VariantReport]:
        """Return the variants that ran with so many threads, in the order of the records."""
        return [variant for variant in self.variants if variant.threads == threads]
