"""What the sections of a recipe share: a strict base, and the kinds of values."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)


class Section(BaseModel):
    """Base of all sections: frozen, and strict about keys and types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def as_tuple(value: Any) -> Any:
    """TOML has lists; frozen models hold tuples."""
    return tuple(value) if isinstance(value, list) else value


def _ascending(value: tuple[int, ...]) -> tuple[int, ...]:
    if list(value) != sorted(set(value)):
        raise ValueError("must rise from shortest to longest, each length once")
    return value


Length = Annotated[int, Field(ge=2, le=8192, strict=True)]
Lengths = Annotated[
    tuple[Length, ...], BeforeValidator(as_tuple), AfterValidator(_ascending), Field(min_length=1, max_length=16)
]


def _each_once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) < len(value):
        raise ValueError("names something twice")
    return value


Place = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
"""A path or a name."""
Names = Annotated[tuple[Place, ...], BeforeValidator(as_tuple), AfterValidator(_each_once), Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=1)]
LayerNumber = Annotated[int, Field(ge=0, lt=1000)]
"""From 0, as in the checkpoint's `encoder.layer.0`."""
Layers = Annotated[tuple[LayerNumber, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=1000)]


_CAME_LATER = ("dropout", "sparse", "labels", "metric", "space", "neighbours", "held_out")


class Updates(Section):
    """How a model is trained, whatever the loss: what fine-tuning and distillation share."""

    epochs: Positive | None = None
    """Passes over the training rows; 3 unless `steps` is given."""
    steps: Natural | None = None
    """Number of updates, instead of `epochs`."""
    batch_size: Natural = 32
    """Rows of one update, all processes together."""
    gradient_accumulation: Natural = 1
    """Number of parts in which each process runs its rows of an update: less memory, the same result."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 5e-5
    """Learning rate at the end of the warm-up; from there it falls linearly to zero."""
    warmup_fraction: Fraction = 0.1
    """The share of the updates during which the learning rate rises."""
    weight_decay: Fraction = 0.01
    """Weight decay of AdamW; biases and norms have none."""
    dropout: Fraction | None = None
    """Dropout of hidden states and of attention during training; that of the student's config.json unless given."""
    max_length: Length = 128
    """Number of tokens to which rows are truncated."""
    max_rows: Natural | None = None
    """Number of training rows, sampled by `seed`; all unless given."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the order of rows, of dropout, and of new weights."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Precision of matrix products; weights and losses stay fp32. `bf16` is fast on most CPUs that have it, and a run
    says where it is not; `fp16` needs a GPU."""
    checkpoint_minutes: Positive = 5.0
    """Minutes between two checkpoints; a stopped run continues from the last one."""

    @property
    def passes(self) -> float | None:
        """Passes over the rows, or None where steps are given."""
        return None if self.steps is not None else (self.epochs or 3.0)

    @property
    def rows_learned(self) -> int | None:
        """Rows of all updates together, or None where that depends on the number of rows that there are."""
        return None if self.steps is None else self.steps * self.batch_size

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave what is not asked out, so that keys of runs that were made without it stay what they were."""
        found: dict[str, Any] = handler(self)
        return {key: value for key, value in found.items() if key not in _CAME_LATER or value is not None}


class Sparse(Section):
    """Single weights of the encoder's linears that become zero; tables, norms, biases and heads stay whole."""

    sparsity: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    """Fraction of the weights that become zero."""
    scope: Literal["global", "matrix"] = "global"
    """`global`: the fraction of all matrices together. `matrix`: the fraction of each."""


class GradualSparse(Sparse):
    """Single weights become zero during training, more and more of them, on a cubic schedule."""

    by: Literal["movement", "magnitude"] = "movement"
    """`movement`: weights that training moves towards zero are removed. `magnitude`: the smallest weights are."""
    warmup_fraction: Fraction = 0.1
    """The share of the updates before the first weights are set to zero."""
    cooldown_fraction: Fraction = 0.3
    """The share of the updates, at the end, during which the full `sparsity` holds."""

    @model_validator(mode="after")
    def _leaves_updates(self) -> Self:
        if self.warmup_fraction + self.cooldown_fraction >= 1:
            raise ValueError("warmup_fraction and cooldown_fraction leave no update in which weights go")
        return self


class SparseUpdates(Updates):
    """Updates during which weights may become zero."""

    sparse: GradualSparse | None = None
    """Single weights that become zero during training. Weights that are zero before stay zero in any case."""


class LabelledUpdates(SparseUpdates):
    """Training on labelled rows: those of a known dataset, or your own files."""

    dataset: str | None = None
    """A dataset with training rows that `pocketbert list` names; or give `train_file` and `dev_file`."""
    train_file: Place | None = None
    """`.csv`, `.tsv`, `.jsonl` or `.parquet` with named columns, `.conll` for tags, SQuAD's `.json` for questions. A
    path is relative to the recipe; `hub:owner/name@<40-digit commit>/file` is a file of a dataset on the Hub."""
    dev_file: Place | None = None
    """A file like `train_file`, on which the metric is measured."""
    held_out: Natural | None = None
    """Number of training rows that nothing learns from, always the same ones, so that a study can judge its trials by
    them. In `[distil]` beside `texts`, the texts of these rows are left out of those. None unless given."""
    text: str = "text"
    """Name of the column with the text."""
    pair: str | None = None
    """Name of the column with the second text of a pair; none unless given."""
    label: str = "label"
    """Name of the column with the class, with the number, or with several labels and `|` between them."""
    labels: Names | None = None
    """Instead of `label`, names of columns with numbers: 1 or 0 for each of several labels, or the numbers of task
    `multi_regression`. The outputs of a new head get these names."""

    metric: Literal["accuracy", "matthews", "micro_f1", "macro_f1"] | None = None
    """Metric of `dev_file`: `accuracy`, or `matthews` where one class has most of the rows; `micro_f1` over all labels
    of a text, or `macro_f1`, in which a rare label counts as much as a common one. Unless given, the first of each."""

    @property
    def own_columns(self) -> set[str]:
        """Names of the keys that name columns and are given."""
        return {"text", "pair", "label", "labels"} & self.model_fields_set
