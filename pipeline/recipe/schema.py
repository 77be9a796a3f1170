"""What a recipe can say. Settings alone: what fits together is checked beside the stages."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from pipeline import tasks
from pipeline.kinds import PoolingMode
from pipeline.recipe.compression import (
    AdapterSection,
    FactoriseSection,
    PruneSection,
    RotateSection,
    ShareSection,
    StartSection,
    StaticSection,
    VocabularySection,
)
from pipeline.recipe.distillation import DistilSection, HeadSection
from pipeline.recipe.fields import Fraction, LabelledUpdates, Lengths, Names, Natural, Place, Section, Updates
from pipeline.schemes import SCHEMES, Gates

RENAMED: Mapping[str, str] = {
    "convert.minimum_ios": "targets.coreml.minimum_ios",
    "distil.layers": "distil.teacher_layers, and counts from 0 now",
    "prune.costs = 'flops'": "'macs'",
    "prune.even": "prune.uniform",
    "prune.feed_forward": "prune.intermediate_size",
    "prune.heads": "prune.attention_heads",
    "prune.hidden": "prune.hidden_size",
    "prune.importance = 'surgeon'": "'optimal_brain_surgeon'",
    "prune.row_multiple": "prune.intermediate_multiple",
    "start.layers": "start.teacher_layers, and counts from 0 now",
}
"""What keys, or their values, are called now: a recipe that has the old name is refused, and told the new one."""
_PLAIN_NAME = r"^[a-z0-9][a-z0-9._-]*$"
HeadName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=32)]
"""It begins the names of functions in a file."""


class StudentSection(Section):
    """Where the student comes from."""

    source: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
    """`bundled:all-MiniLM-L6-v2`, a folder in Hugging Face layout, `hub:owner/name@<40-digit commit>`, or
    `recipe:NAME`: the checkpoint that another recipe trains or makes smaller, which is made first."""
    twin: str | None = None
    """Fallback: a ready recipe that does the same with the bundled student, for when this checkpoint is unavailable."""
    random_weights: bool = False
    """Declares that the weights were never trained: the above-chance gate is left out, and the report says so."""
    pooling: PoolingMode | None = None
    """How token vectors become one, for an encoder without `modules.json`; the result is scaled to unit length."""
    prompts: dict[str, str] | None = None
    """Prompts by name, such as `query = "query: "`, that are put before a text. They replace those of the checkpoint's
    folder."""
    default_prompt: str | None = None
    """Name of the prompt that is used if none is asked for; an empty name means none."""
    width: Natural | None = None
    """Number of leading dimensions of the embedding that are kept, scaled to unit length if the whole embedding is. For
    models that were trained for this (Matryoshka)."""
    max_seq_length: Natural | None = None
    """Number of tokens at which texts are truncated, instead of the checkpoint's own `max_seq_length`."""


class TrainSection(LabelledUpdates):
    """How the student is fine-tuned before it is converted."""

    new_head: bool = False
    """Replace the checkpoint's head for the task by a new one with the data's labels."""


class ThresholdsSection(Section):
    """Probability from which each label is given, calibrated on labelled texts; without this section it is 0.5.

    The fp32 student runs over the texts, and each label gets the threshold with the best F1. Files carry the thresholds
    in `signature.json`. Take texts that neither train nor judge: on the calibration texts themselves F1 is too high.
    """

    file: Place | None = None
    """A file like `train.dev_file`; that one, or `distil.dev_file`, unless given."""
    text: str = "text"
    """Name of the column with the text."""
    pair: str | None = None
    """Name of the column with the second text of a pair; none unless given."""
    label: str = "label"
    """Name of the column with the labels of a text, with `|` between two."""
    labels: Names | None = None
    """Instead of `label`, names of columns with 1 for a text that has the label and 0 for one that has not."""
    max_rows: Natural = 10_000
    """Largest number of texts; if there are more, a fixed sample is taken."""


class ConvertSection(Section):
    """Settings for every target."""

    sequence_lengths: Lengths = (16, 32, 64, 128)
    """Lengths in tokens that the files take; a text is padded to the next of them."""


class TargetSection(Section):
    """The targets of one format."""

    schemes: Names
    """Schemes (precisions), one file each; `pocketbert list` shows which ones each format supports."""
    sequence_lengths: Lengths | None = None
    """Overrides `convert.sequence_lengths` for this format."""
    minimum_runtime: str | None = None
    """Oldest runtime on which the files have to be right, such as `litert-1.2.0`; `pocketbert compat` tries it."""


class CoreMLSection(TargetSection):
    """The targets of Core ML."""

    minimum_ios: Literal[15, 16, 17, 18] = 18
    """Oldest iOS release that reads the packages; below 18 a package holds the longest length alone."""


TARGET_SECTIONS: Mapping[str, type[TargetSection]] = {"coreml": CoreMLSection}
"""Backends whose section has keys of its own."""


def _by_backend(value: Any) -> Any:
    """Read the sections that have keys of their own; pydantic reads the others as `TargetSection`."""
    if not isinstance(value, dict):
        return value
    sections = dict(value)
    for name, model in TARGET_SECTIONS.items():
        if name in sections and not isinstance(sections[name], model):
            try:
                sections[name] = model.model_validate(sections[name])
            except ValidationError as error:
                raise _located(error, name) from error
    return sections


def _located(error: ValidationError, name: str) -> ValidationError:
    """Return an error of a section as one of the table that holds it."""
    lines = [
        InitErrorDetails(type=one["type"], loc=(name, *one["loc"]), input=one["input"], ctx=one.get("ctx", {}))
        for one in error.errors()
    ]
    return ValidationError.from_exception_data(error.title, lines)


class QuantizeTraining(Updates):
    """Quantisation-aware training for static int8 and int4, after calibration.

    The student in fp32 is the teacher, so texts need no labels.
    """

    texts: Names | None = None
    """Training texts, named like calibration texts. Unless given: all texts of the calibration set's sources."""
    steps: Natural | None = 1500
    """Number of updates."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 5e-5
    """Learning rate at the end of the warm-up; from there it falls linearly to zero."""
    weight_decay: Fraction = 0.0
    """Weight decay of AdamW."""
    dropout: Fraction | None = 0.0
    """Dropout during training."""
    max_rows: Natural | None = 20_000
    """Largest number of texts; if there are more, `seed` determines a sample."""

    @model_validator(mode="before")
    @classmethod
    def _epochs_or_steps(cls, given: Any) -> Any:
        """Let epochs replace the default number of updates."""
        if isinstance(given, dict) and given.get("epochs") is not None:
            if given.get("steps") is not None:
                raise ValueError("has epochs and steps; give one of them")
            return {**given, "steps": None}
        return given


class QuantizeSection(Section):
    """Calibration for schemes with int8 activations, int4 weights or palettes.

    The inputs of the student's linears are measured on the calibration set. For int8, SmoothQuant scales shrink
    outliers and leave the fp32 outputs unchanged; without this section there are none. For int4 and palettes, GPTQ
    chooses the quantised weights that change the outputs least; without this section it uses the defaults.
    """

    calibration: Names | None = None
    """The calibration set: `.txt` files, one text a line, relative to the recipe; `wikitext2` or `war-and-peace` of the
    data folder, or a dataset's texts. Unless given: the package's calibration texts, and STS-B's train sentences, or,
    if those are absent, the package's everyday English."""
    calibration_texts: Annotated[int, Field(ge=8, le=10_000)] = 1024
    """Largest number of texts in the calibration set; if there are more, `seed` determines a sample."""
    observer: Literal["min_max", "percentile", "mse", "entropy"] = "mse"
    """How static int8 chooses the range of an activation: all values, 99.99 % of them, the least squared error, or the
    least Kullback-Leibler divergence."""
    equalisation: bool = True
    """Whether SmoothQuant scales shrink outliers; if not, `int8_static` has the weights of a converter's default."""
    table_bits: Literal[4, 8] = 8
    """Bits of the embedding tables in schemes with int4 linears."""
    policy: Place | None = None
    """Linears that get 8 bits in an int4 scheme: a file that `pocketbert sensitivity` wrote, relative to the recipe."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the samples of texts and tokens."""
    training: QuantizeTraining | None = None
    """Quantisation-aware training after calibration; none without this section."""


class VerifySection(Section):
    """How files are judged."""

    datasets: Names | None = None
    """Labelled data for the task metric: names that `pocketbert list` shows, or `none`; the report says so."""
    retrieval: Names | None = None
    """Collections by which embeddings are judged in search: `xquad_passages`, `rte_premises` and `stsb_partners` of the
    data folder, or folders laid out like BEIR's. An index of each file's vectors is judged in every form of storage."""
    gates: dict[str, Gates] = Field(default_factory=dict)
    """Bounds by scheme; each replaces the scheme's default."""


OF_A_CHECKPOINT = ("pooling", "prompts", "default_prompt", "width", "max_seq_length")
"""Keys that say of a checkpoint's head what its folder does not: of the student, and of each other head."""


class OtherHeadSection(Section):
    """Another head on the student's encoder, in the same files.

    It is a checkpoint of its own with the student's encoder. A file holds the encoder once, and a function for each
    head, or one per length if the format has that.
    """

    checkpoint: Place
    """Named like `student.source`; every tensor of its encoder, and its tokenizer, have to be the student's."""
    task: str
    """What the head does; labels are the checkpoint's own."""
    pooling: PoolingMode | None = None
    """Like `student.pooling`, for an embedding of a checkpoint without `modules.json`."""
    prompts: dict[str, str] | None = None
    """Like `student.prompts`."""
    default_prompt: str | None = None
    """Like `student.default_prompt`."""
    width: Natural | None = None
    """Like `student.width`."""
    max_seq_length: Natural | None = None
    """Like `student.max_seq_length`."""
    datasets: Names | None = None
    """Like `verify.datasets`, for this head."""
    gates: dict[str, Gates] = Field(default_factory=dict)
    """Like `verify.gates`, for this head's outputs."""


Count = Annotated[int, Field(ge=1, le=5000)]


class BenchmarkSection(Section):
    """How latency is measured."""

    lengths: Lengths = (16, 32, 64, 128)
    """Lengths in tokens at which full rows are timed; those beyond the files' longest length are left out."""
    rounds: Count = 10
    """Number of rounds; in each, the variants take turns with one block of runs."""
    block_ms: Annotated[float, Field(ge=0, le=60_000)] = 60.0
    """Approximate duration of a block in milliseconds; it has at least `runs_per_block` runs."""
    runs_per_block: Count = 2
    """Least number of runs of a block."""
    texts: Count = 60
    """Number of real texts of a pass, each at its own length."""
    text_passes: Count = 4
    """Number of passes over the real texts."""


Growth = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RegressionSection(Section):
    """How much worse than a stored report `pocketbert gate` lets a target become."""

    max_metric_drop: Fraction = 0.01
    """Largest loss of a task metric, in its own unit (Spearman, accuracy, F1: fractions of 1). A file that is made
    again from the same checkpoint keeps its metric; a checkpoint that is trained again does not."""
    max_cosine_drop: Fraction = 0.005
    """Largest loss of the mean and of the worst cosine to PyTorch, for embeddings. Another processor's int8 kernels
    move MiniLM's worst one by .001."""
    max_sqnr_drop_db: Growth = 2.0
    """Largest loss of SQNR to PyTorch, in dB, of the mean and of the worst row; 2 dB is 58 % more
    noise power. Above 90 dB only single precision's own rounding is left, so more counts as 90."""
    max_size_growth: Growth = 0.02
    """Largest growth of the file, as a fraction of its size in the report."""
    max_instruction_growth: Growth = 0.02
    """Largest growth of the instructions of an inference on an emulated processor, as a fraction; two counts of one
    file differ by .001."""
    max_latency_growth: Growth = 0.1
    """Largest growth of the latency of a full row, as a fraction; judged only if both files are timed in turns."""


class BesideSection(Section):
    """Another recipe, whose student is timed in the same run and shown in the same report."""

    targets: Names | None = None
    """`format:scheme`, or a format alone for all of it; the recipe's own unless given."""


class Recipe(Section):
    """Everything that `pocketbert run` needs to know."""

    name: str = Field(pattern=_PLAIN_NAME, max_length=64)
    """Name of the folder in build/: small letters, digits, dot, dash and underscore."""
    task: str
    """What the student does; `pocketbert list` names the tasks."""
    student: StudentSection
    train: TrainSection | None = None
    head: HeadSection | None = None
    start: StartSection | None = None
    vocabulary: VocabularySection | None = None
    prune: PruneSection | None = None
    factorise: FactoriseSection | None = None
    share: ShareSection | None = None
    adapter: AdapterSection | None = None
    distil: DistilSection | None = None
    static: StaticSection | None = None
    rotate: RotateSection | None = None
    quantize: QuantizeSection | None = None
    thresholds: ThresholdsSection | None = None
    heads: dict[HeadName, OtherHeadSection] = Field(default_factory=dict)
    """Other heads on the same encoder, by name, that every file has beside the student's own."""
    convert: ConvertSection = ConvertSection()
    targets: Annotated[dict[str, SerializeAsAny[TargetSection]], BeforeValidator(_by_backend), Field(min_length=1)]
    """Targets by format, in the order in which files are listed."""
    verify: VerifySection = VerifySection()
    benchmark: BenchmarkSection = BenchmarkSection()
    regression: RegressionSection = RegressionSection()
    beside: dict[str, BesideSection] = Field(default_factory=dict)
    """Other recipes, by name or by a file beside this one, that are timed and reported together with it."""

    def of_head(self, name: str) -> "Recipe":
        """Return another head's checkpoint, task and gates as a recipe: what is checked of a student, is of them."""
        head = self.heads[name]
        said = head.model_dump(include=set(OF_A_CHECKPOINT))
        source = StudentSection(source=head.checkpoint, random_weights=self.student.random_weights, **said)
        verify = VerifySection(datasets=head.datasets, gates=head.gates)
        changed = {"task": head.task, "student": source, "verify": verify, "heads": {}, "beside": {}}
        # Of the student alone, like its calibration and its thresholds.
        own = dict.fromkeys(("quantize", "thresholds", "adapter", "static", "rotate"))
        return self.model_copy(update=changed | own)

    def lengths(self, backend: str) -> tuple[int, ...]:
        """Return the sequence lengths of a format's files, ascending."""
        return self.targets[backend].sequence_lengths or self.convert.sequence_lengths

    def minimum_ios(self, backend: str) -> int | None:
        """Return the oldest iOS release that has to read a format's files, or None where the format has no such."""
        section = self.targets[backend]
        return section.minimum_ios if isinstance(section, CoreMLSection) else None

    def gates(self, scheme: str) -> Gates:
        """Return a scheme's gates: its defaults for the task's kind of output, with this recipe's bounds over them."""
        default = SCHEMES[scheme].gates[tasks.get(self.task).output_kind]
        override = self.verify.gates.get(scheme, Gates()).model_dump(exclude_unset=True)
        return default.model_copy(update=override)
