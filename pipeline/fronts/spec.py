"""What a study can say: the recipe that every trial begins with, the keys to vary, objectives, and budgets."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from pipeline.recipe.fields import Fraction, Length, Names, Place, Positive, Section, as_tuple
from pipeline.recipe.loading import read_values, validated

TARGET = "target"
"""The key of a space whose values are `format:scheme` instead of a recipe's values."""
LEFT_OUT = "none"
"""The value of a space with which a key is not in the recipe at all; a section without keys is left out as well."""
_PLAIN_NAME = r"^[a-z0-9][a-z0-9._-]*$"

Measure = Literal["metric", "recall_at_10", "size_mb", "latency_ms", "memory_mb", "macs_m"]
LARGER_IS_BETTER: Mapping[Measure, bool] = {
    "metric": True,
    "recall_at_10": True,
    "size_mb": False,
    "latency_ms": False,
    "memory_mb": False,
    "macs_m": False,
}
"""The measures of a trial, and whether more of each is better."""


class Range(Section):
    """Numbers between two ends, both included."""

    # A record holds the spec, and is read again.
    model_config = ConfigDict(serialize_by_alias=True)

    low: Annotated[float | int, Field(alias="from", allow_inf_nan=False)]
    high: Annotated[float | int, Field(alias="to", allow_inf_nan=False)]
    step: Annotated[float | int | None, Field(gt=0, allow_inf_nan=False)] = None
    """Distance of two numbers; unless given, any number is tried."""
    log: bool = False
    """Whether small numbers are told apart as finely as large ones."""

    @property
    def whole(self) -> bool:
        """Whether all numbers are whole."""
        return all(isinstance(one, int) for one in (self.low, self.high, self.step or 0))

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.low >= self.high:
            raise ValueError("from has to be smaller than to")
        if self.step is not None and self.step > self.high - self.low:
            raise ValueError("step is larger than the whole range")
        if self.step is not None and self.log:
            raise ValueError("step and log exclude each other")
        if self.log and self.low <= 0:
            raise ValueError("log needs numbers above 0")
        return self


def _values(value: Any) -> Any:
    """Read a list as the values of a key, and a table with `from` and `to` as a range."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping) and {"from", "to"} & {*value}:
        return Range.model_validate(value)
    dots = '; a key with dots stands in quotes, such as "prune.compute" = [0.5]' if isinstance(value, Mapping) else ""
    raise ValueError(f"takes a list of values, or a range such as {{from = 0.3, to = 0.9, step = 0.1}}{dots}")


Values = Annotated[tuple[Any, ...] | Range, BeforeValidator(_values)]


class Budget(Section):
    """Bounds of what counts as an answer; a trial beyond them only shows what they cost."""

    size_mb: Positive | None = None
    """Largest file, in MB (10⁶ bytes)."""
    latency_ms: Positive | None = None
    """Longest time of a full row at `judge.length`, in ms on one thread of this machine."""
    memory_mb: Positive | None = None
    """Highest peak of memory of a process that opens the file and runs it, in MB (10⁶ bytes)."""
    macs_m: Positive | None = None
    """Most multiply-adds of the encoder at `judge.length`, in millions."""
    metric: Fraction | None = None
    """Smallest metric of the task."""
    metric_drop: Fraction | None = None
    """Largest loss of the metric against the recipe as it is."""
    recall_at_10: Fraction | None = None
    """Smallest recall@10 on `judge.retrieval`."""


class Judge(Section):
    """What trials are compared on. It is never the data on which the result is reported."""

    dataset: str | None = None
    """A dataset that `pocketbert list` names, whose *training* rows are taken; the task's first one unless given."""
    file: Place | None = None
    """A labelled file instead, relative to the study's: `.csv`, `.tsv`, `.jsonl`, `.parquet`, `.conll`, `.json`."""
    text: str = "text"
    """Name of the column with the text."""
    pair: str | None = None
    """Name of the column with the second text of a pair."""
    label: str = "label"
    """Name of the column with the label."""
    rows: Annotated[int, Field(ge=50, le=20_000)] = 1000
    """Largest number of rows; if there are more, a fixed sample is taken."""
    retrieval: Names | None = None
    """Collections for `recall_at_10`, named like `verify.retrieval`; other ones than the recipe reports on."""
    length: Length = 128
    """Tokens of the row at which latency and multiply-adds count."""


class Trials(Section):
    """How many trials reach each step; a step that the recipe does not need is left out."""

    compressed: Annotated[int, Field(ge=2, le=100_000)] = 60
    """Trials whose student is compressed without training, and judged in PyTorch."""
    trained: Annotated[int, Field(ge=0, le=1000)] = 8
    """The best of them that go on to the recipe's own training, such as `[distil]`; judged in PyTorch again."""
    files: Annotated[int, Field(ge=0, le=200)] = 6
    """The best of those that become verified files, timed in turns with the recipe's own. With 0 the answer stays an
    estimate."""
    checked_every: Annotated[int, Field(ge=2)] = 10
    """Of so many trials one becomes a file at once, to tell how far estimates of size and latency are off."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of what is proposed."""


class Published(Section):
    """A student of others, as they describe it. Nothing is compared with it: data, split and machine are theirs."""

    name: str
    source: str
    """Where it is published."""
    size_mb: Positive | None = None
    metric: str
    """What is published of its quality, with dataset and split, in words."""
    latency: str | None = None
    """What is published of its latency, with the machine, in words."""


class Study(Section):
    """One study."""

    name: str = Field(pattern=_PLAIN_NAME, max_length=48)
    """Name of its folder in `build/studies/`."""
    recipe: Place
    """The recipe that every trial begins with: a ready one, or a file relative to the study's."""
    objectives: Annotated[tuple[Measure, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=3)] = (
        "metric",
        "size_mb",
        "latency_ms",
    )
    """What is traded off. The task's own metric is among them or in the budget."""
    hours: Positive = 2.0
    """Time to spend, over all runs of the study together. Whatever is best by then is the answer."""
    space: Annotated[dict[str, Values], Field(min_length=1)]
    """Keys of the recipe, such as `"prune.compute"`, and the values that each may have. `"none"` leaves the key out.
    `target` has the formats and schemes."""
    budget: Budget = Budget()
    judge: Judge = Judge()
    trials: Trials = Trials()
    beside: Names | None = None
    """Recipes whose files are judged and timed like those of trials, and shown beside them: ready ones, or files
    relative to the study's."""
    published: Annotated[tuple[Published, ...], BeforeValidator(as_tuple)] = ()
    """Students of others, shown in a table of their own."""
    notes: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """Sentences for who reads the front, such as what a recipe beside the trials has learnt from."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError("objectives names something twice")
        if not {"metric", "recall_at_10"} & {*self.measures}:
            raise ValueError("has no measure of quality: the smallest student would win; add metric to objectives")
        if "recall_at_10" in self.measures and self.judge.retrieval is None:
            raise ValueError("recall_at_10 needs judge.retrieval, the collections that it is measured on")
        for key, values in self.space.items():
            if isinstance(values, tuple) and len(values) < 1:
                raise ValueError(f"space.{key} has no values")
        return self

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that a trial needs: objectives first, then those that only a budget names."""
        budgets = self.budget.model_dump(exclude_none=True)
        if "metric_drop" in budgets:
            # A bound on the loss of a measure that no trial had would count as kept.
            budgets["metric"] = None
        return tuple(name for name in LARGER_IS_BETTER if name in self.objectives or name in budgets)


def read(path: Path) -> Study:
    """Read a study.

    Raises:
        RecipeError: the file is missing, is not TOML, or has a key or a value that cannot be.
    """
    return validated(read_values(path), path, Study)


def label(value: Any) -> str:
    """Return the name of a value of a space: a string as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
