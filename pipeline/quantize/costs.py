"""What rounding each linear of a checkpoint costs, in the same words for every scheme, for the command and the report.

Records differ, since int8 has gains and ranges, and codes and palettes are chosen. An error is always the squared
difference of a linear's outputs over the outputs' squares, on calibration text.
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
    """One linear, or several that read the same and are rounded together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: tuple[str, ...]
    """In the Hugging Face model."""
    error_before: float | None
    """Without gains, or with each number rounded to the nearest; None in records of earlier versions."""
    error: float
    """As it is in the checkpoint, before it is trained."""
    largest_channel: float | None = None
    """Known of int8 alone: see `ranges.Linear.largest_channel`."""
    input: ranges.Activation | None = None
    """Static int8 alone."""

    @property
    def label(self) -> str:
        """Return the first path, and of the others what is not the same."""
        first, *others = self.paths
        return ", ".join((first, *(path.rpartition(".")[2] for path in others)))


def costs(found: checkpoint.Found) -> list[LinearCost]:
    """Return the linears of a record, those that lose most first; tables have no outputs to compare."""
    every = _of_ranges(found) if isinstance(found, ranges.Ranges) else _of_weights(found)
    return sorted(every, key=lambda cost: -cost.error)


def _of_ranges(found: ranges.Ranges) -> Iterator[LinearCost]:
    total = found.errors()
    alike: dict[tuple[float, float, float], list[ranges.Linear]] = {}
    for one in found.linears:
        # Query, key and value have one error in dynamic int8: that of their group.
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


def _of_weights(found: ranges.ChosenWeights) -> Iterator[LinearCost]:
    for one in found.weights:
        if one.error is not None:
            path = one.name.removesuffix(".weight")
            yield LinearCost(paths=(path,), error_before=one.error_nearest, error=one.error)


def checkpoints(folder: Path, section: QuantizeSection | None) -> dict[str, Path]:
    """Return the checkpoints from which the files of a recipe are made, by scheme.

    Args:
        folder: the recipe's, in the build folder.
        section: the recipe's `[quantize]`; it says which checkpoint is trained behind its calibration.
    """
    made = {place.name.removeprefix(_QUANTISED): place for place in sorted(folder.glob(f"{_QUANTISED}*"))}
    trained = {name: folder / f"{_TRAINED}{name}" for name in made if name in SCHEMES and stage.trained(name, section)}
    return made | {name: place for name, place in trained.items() if place.exists()}
