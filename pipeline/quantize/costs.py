"""Rounding errors of each linear of a quantised checkpoint, in one form for all schemes, for command and report.

Records differ: int8 has scales around linears and ranges, the others have integers or palettes. An error is always the
squared error of a linear's outputs relative to the outputs, on calibration text.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline.checkpoint import ranges
from pipeline.quantize import checkpoint, stage
from pipeline.recipe.schema import QuantizeSection
from pipeline.schemes import SCHEMES

_QUANTISED, _TRAINED = "quantised-", "trained-"


class LinearCost(BaseModel):
    """The rounding error of one linear, or of several with a common input that are rounded together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: tuple[str, ...]
    """Paths in the Hugging Face model."""
    error_before: float | None
    """Error without scales around the linear, or with rounding to the nearest; None in records of earlier versions."""
    error: float
    """Error in the checkpoint, before training."""
    largest_channel: float | None = None
    """For int8 only; see `ranges.Linear.largest_channel`."""
    input: ranges.Activation | None = None
    """For static int8 only."""

    @property
    def label(self) -> str:
        """Return the first path, and the last parts of the others."""
        first, *others = self.paths
        return ", ".join((first, *(path.rpartition(".")[2] for path in others)))


def costs(found: checkpoint.Found) -> list[LinearCost]:
    """Return the linears of a record, largest error first; tables have no outputs to compare."""
    every = _of_ranges(found) if isinstance(found, ranges.Ranges) else _of_weights(found)
    return sorted(every, key=lambda cost: -cost.error)


def _of_ranges(found: ranges.Ranges) -> Iterator[LinearCost]:
    total = found.errors()
    alike: dict[tuple[float, float, float], list[ranges.Linear]] = {}
    for one in found.linears:
        # In dynamic int8, query, key and value have one error, that of their group.
        alike.setdefault((total[one.path], one.error_before, one.largest_channel), []).append(one)
    for (error, _, largest), group in alike.items():
        yield LinearCost(
            paths=tuple(one.path for one in group),
            error_before=_before(group[0]),
            error=error,
            largest_channel=largest,
            input=group[0].input,
        )


def _before(one: ranges.Linear) -> float | None:
    if one.output_error is None:
        return one.error_before
    return None if one.output_error_before is None else one.error_before + one.output_error_before


def _of_weights(found: ranges.QuantisedWeightsRecord) -> Iterator[LinearCost]:
    for one in found.weights:
        if one.error is not None:
            path = one.name.removesuffix(".weight")
            yield LinearCost(paths=(path,), error_before=one.error_nearest, error=one.error)


def checkpoints(folder: Path, section: QuantizeSection | None) -> dict[str, Path]:
    """Return the checkpoints from which a recipe's files are made, by scheme: trained ones where they exist.

    Args:
        folder: the recipe's folder in the build folder.
        section: the recipe's `[quantize]`, which says which checkpoints are trained after calibration.
    """
    made = {place.name.removeprefix(_QUANTISED): place for place in sorted(folder.glob(f"{_QUANTISED}*"))}
    trained = {name: folder / f"{_TRAINED}{name}" for name in made if name in SCHEMES and stage.trained(name, section)}
    return made | {name: place for name, place in trained.items() if place.exists()}
