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


def _tuple(value: Any) -> Any:
    """TOML has lists; frozen models hold tuples."""
    return tuple(value) if isinstance(value, list) else value


def _ascending(value: tuple[int, ...]) -> tuple[int, ...]:
    if list(value) != sorted(set(value)):
        raise ValueError("must rise from shortest to longest, each length once")
    return value


Length = Annotated[int, Field(ge=2, le=8192, strict=True)]
Lengths = Annotated[
    tuple[Length, ...], BeforeValidator(_tuple), AfterValidator(_ascending), Field(min_length=1, max_length=16)
]


def _each_once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) < len(value):
        raise ValueError("names something twice")
    return value


Place = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")]
"""A path or a name."""
Names = Annotated[tuple[Place, ...], BeforeValidator(_tuple), AfterValidator(_each_once), Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=1)]


_CAME_LATER = ("dropout", "sparse")


class Updates(Section):
    """How a model is trained, whatever the loss: what fine-tuning and distillation share."""

    epochs: Positive | None = None
    """Passes over the rows, 3 unless `steps` is given."""
    steps: Natural | None = None
    """Updates."""
    batch_size: Natural = 32
    """Rows of an update, over all processes."""
    gradient_accumulation: Natural = 1
    """Each process runs its rows of an update in so many parts, one after the other: less memory, the same result."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 5e-5
    """At the end of the warm-up; it falls to zero in a line."""
    warmup_fraction: Fraction = 0.1
    """Of the updates."""
    weight_decay: Fraction = 0.01
    dropout: Fraction | None = None
    """The student's while it learns, of states and of attention; its configuration's unless given."""
    max_length: Length = 128
    """Rows are cut to so many tokens."""
    max_rows: Natural | None = None
    """Train on a sample of so many rows, the same one for a seed."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the order of rows, of dropout, and of what is new."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Of matrix products; weights and losses stay fp32. `bf16` is fast on a CPU that has it, `fp16` needs a GPU."""
    checkpoint_minutes: Positive = 5.0
    """Between two checkpoints, from which a run that was stopped goes on."""

    @property
    def passes(self) -> float | None:
        """Passes over the rows, or None where steps are given."""
        return None if self.steps is not None else (self.epochs or 3.0)

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave what is not asked out, so that keys of runs that were made without it stay what they were."""
        found: dict[str, Any] = handler(self)
        return {key: value for key, value in found.items() if key not in _CAME_LATER or value is not None}


class Sparse(Section):
    """Single weights of the encoder's linears that become zero; tables, norms, biases and heads stay whole."""

    sparsity: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    """Fraction of zeros."""
    scope: Literal["global", "matrix"] = "global"
    """Whether it is the fraction of all matrices together, or of each."""


class GradualSparse(Sparse):
    """Weights that become zero while a model is trained, more and more of them, on a cubic schedule."""

    by: Literal["movement", "magnitude"] = "movement"
    """What goes: weights that training moves towards zero, or those that are near it."""
    warmup_fraction: Fraction = 0.1
    """Of the updates, before the first weights go."""
    cooldown_fraction: Fraction = 0.3
    """Of the updates, at the end, with all of `sparsity`."""

    @model_validator(mode="after")
    def _leaves_updates(self) -> Self:
        if self.warmup_fraction + self.cooldown_fraction >= 1:
            raise ValueError("warmup_fraction and cooldown_fraction leave no update in which weights go")
        return self


class SparseUpdates(Updates):
    """Updates during which weights may become zero."""

    sparse: GradualSparse | None = None
    """Zeros that a student has already stay zeros, with it or without."""


class LabelledUpdates(SparseUpdates):
    """Training on labelled rows: those of a known data set, or files of one's own."""

    dataset: str | None = None
    """A known data set with rows to train on (`pocketbert list` tells them); or files of one's own:"""
    train_file: Place | None = None
    """`.csv`, `.tsv`, `.jsonl` or `.parquet` with named columns, `.conll` for tags, SQuAD's `.json` for questions; a
    relative one is meant from the recipe, and `hub:owner/name@<40-digit commit>/file` is a file of a hub data set."""
    dev_file: Place | None = None
    """Likewise, to be judged by."""
    text: str = "text"
    """Column of the text."""
    pair: str | None = None
    """Column of the second text, where there is one."""
    label: str = "label"
    """Column of the class's name, or of the number."""
