"""What the sections of a recipe share: a strict base, and the kinds of values."""

from typing import Annotated, Any

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
