"""What the sections of a recipe share: a strict base, and the kinds of values."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """Base of all sections: frozen, and strict about keys and types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


Names = Annotated[tuple[str, ...], BeforeValidator(_tuple), AfterValidator(_each_once), Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=1)]


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
    max_length: Length = 128
    """Rows are cut to so many tokens."""
    max_rows: Natural | None = None
    """Train on a sample of so many rows, the same one for a seed."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    precision: Literal["no", "bf16", "fp16"] = "no"
    checkpoint_minutes: Positive = 5.0
    """Between two checkpoints, from which a run that was stopped goes on."""

    @property
    def passes(self) -> float | None:
        """Passes over the rows, or None where steps are given."""
        return None if self.steps is not None else (self.epochs or 3.0)
