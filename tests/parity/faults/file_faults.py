"""Faults in the converted file itself, which has to be caught in that very file.

`plant(planting)` edits a copy of a clean file in place.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faults import constants
from faults.constants import Quantised
from faults.fault import FLOAT, INT8, Cells, Fault
from faults.students import BUNDLED, Student


@dataclass(frozen=True)
class Planting:
    """What a file fault has at hand."""

    file: Path
    """The copy that it edits."""
    tensors: dict[str, Any]
    """The clean checkpoint's, by name."""
    sibling: Callable[[str], Path]
    """The clean file of another scheme of the same student and format."""
    stranger: Path
    """The clean file of another student, same format and scheme."""
    quantised: Path | None = None
    """The clean checkpoint of which the file is made, where it is not the student."""

    def tensor(self, ending: str) -> Any:
        """Return the one tensor whose name ends so."""
        (name,) = (name for name in self.tensors if name.endswith(ending))
        return self.tensors[name]

    def take(self, other: Path) -> None:
        """Put another file in the place of this one."""
        shutil.rmtree(self.file) if self.file.is_dir() else self.file.unlink()
        (shutil.copytree if other.is_dir() else shutil.copyfile)(other, self.file)


_WEIGHT = "encoder.layer.1.attention.output.dense.weight"
"""It reads no LayerNorm's output: LiteRT's converter would have multiplied that one's gain into it."""
_TABLE = "embeddings.word_embeddings.weight"
_RARE_ROW = -100


def _requantise(planting: Planting, ending: str, edit: Callable[[Any, Quantised], Quantised]) -> None:
    """Replace an int8 tensor by another form of the same tensor, `edit(weights, found) -> new`."""
    weights = planting.tensor(ending)
    found = constants.quantised(planting.file, weights)
    new = edit(weights, found)
    if not np.array_equal(new.values, found.values):
        constants.overwrite(planting.file, found.values, new.values)
    if not np.array_equal(new.scales, found.scales):
        constants.overwrite(planting.file, found.scales, new.scales)


def channel_scale_doubled(planting: Planting) -> None:
    def edit(weights: Any, found: Quantised) -> Quantised:
        scales = found.scales.copy()
        scales[5] *= 2
        return Quantised(found.values, scales)

    _requantise(planting, _WEIGHT, edit)


def table_scales_shifted(planting: Planting) -> None:
    _requantise(planting, _TABLE, lambda weights, found: Quantised(found.values, np.roll(found.scales, 1)))


def zero_point_lost(planting: Planting) -> None:
    def edit(weights: Any, found: Quantised) -> Quantised:
        low, high = weights.min(axis=1), weights.max(axis=1)
        scales = (high - low) / 255
        zero_points = np.round(-128 - low / scales)
        values = np.clip(np.round(weights / scales[:, None]) + zero_points[:, None], -128, 127)
        return Quantised(values.astype(np.int8), scales)

    _requantise(planting, _WEIGHT, edit)


def one_scale_per_tensor(planting: Planting) -> None:
    def edit(weights: Any, found: Quantised) -> Quantised:
        scale = found.scales.max()
        values = np.clip(np.round(weights / float(scale)), -127, 127).astype(np.int8)
        return Quantised(values, np.full_like(found.scales, scale))

    _requantise(planting, _WEIGHT, edit)


def rare_int8_row_corrupted(planting: Planting) -> None:
    def edit(weights: Any, found: Quantised) -> Quantised:
        values = found.values.copy()
        values[_RARE_ROW] = np.roll(values[_RARE_ROW], 1)
        return Quantised(values, found.scales)

    _requantise(planting, _TABLE, edit)


def rare_float_row_corrupted(planting: Planting) -> None:
    row = planting.tensor(_TABLE)[_RARE_ROW]
    constants.overwrite(planting.file, row, np.roll(row, 1))


def bias_of_another_layer(planting: Planting) -> None:
    bias = planting.tensor("encoder.layer.0.output.dense.bias")
    constants.overwrite(planting.file, bias, planting.tensor("encoder.layer.1.output.dense.bias"))


def _exchange(one: str, other: str) -> Callable[[Planting], None]:
    """Let two tensors of one shape change places: each is in the file, whole, and read by the other's operation."""
    return lambda planting: constants.exchange(planting.file, planting.tensor(one), planting.tensor(other))


def half_written(planting: Planting) -> None:
    file = constants.bytes_file(planting.file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 3 // 5])


def file_of_another_student(planting: Planting) -> None:
    planting.take(planting.stranger)


def scheme_not_applied(planting: Planting) -> None:
    planting.take(planting.sibling("fp32"))


def the_other_int8_scheme(planting: Planting) -> None:
    planting.take(planting.sibling("int8_weight_only"))


def half_under_fp32_name(planting: Planting) -> None:
    planting.take(planting.sibling("fp16"))


def _fault(name: str, what: str, plant: Any, cells: Cells, **more: Any) -> Fault:
    return Fault(name, what, "file", plant, cells=cells, **more)


_EXCHANGED = {
    "output_gains": ("two layers' output norms read each other's gain", "{}.output.LayerNorm.weight"),
    "norm_shifts": ("two layers' attention norms read each other's shift", "{}.attention.output.LayerNorm.bias"),
    "output_biases": ("two layers' output projections read each other's bias", "{}.output.dense.bias"),
    "attention_biases": ("two layers' attention outputs read each other's bias", "{}.attention.output.dense.bias"),
}
"""By name: what went wrong, and the tensor of a layer that changes places with the next layer's."""


def _of_wiring() -> Iterator[Fault]:
    """Yield what goes wrong in what people ship, int8, in a random student and in the trained one."""
    norm = "encoder.layer.1.output.LayerNorm"
    gain_for_shift = _exchange(f"{norm}.weight", f"{norm}.bias")
    for student, ending in ((Student(), ""), (BUNDLED, "_trained")):
        for name, (what, tensor) in _EXCHANGED.items():
            plant = _exchange(*(tensor.format(f"encoder.layer.{layer}") for layer in (0, 1)))
            yield _fault(f"{name}_exchanged{ending}", what, plant, INT8, student=student)
        what = "a norm's gain and shift have changed places"
        yield _fault(f"gain_and_shift_exchanged{ending}", what, gain_for_shift, INT8, student=student)
        yield _fault(
            f"weight_only_under_dynamic_name{ending}",
            "the int8_dynamic file is the int8_weight_only one",
            the_other_int8_scheme,
            {name: INT8[name] for name in ("litert", "executorch")},
            not_for={"coreml": "it has no int8_dynamic"},
            student=student,
        )


_NO_FP16 = {"executorch": "its backend has no fp16"}
_ALL: Cells = {name: (*FLOAT[name], *INT8[name]) for name in FLOAT}
FAULTS = (
    _fault("channel_scale_doubled", "the int8 scale of one channel is twice too large", channel_scale_doubled, INT8),
    _fault("table_scales_shifted", "the embedding table's scales are off by one row", table_scales_shifted, INT8),
    _fault("zero_point_lost", "an asymmetric int8 weight is read without its zero points", zero_point_lost, INT8),
    _fault("one_scale_per_tensor", "an int8 weight has one scale, not one a row", one_scale_per_tensor, INT8),
    _fault("rare_int8_row_corrupted", "one int8 row that no text uses is shifted", rare_int8_row_corrupted, INT8),
    _fault("rare_float_row_corrupted", "one float row that no text uses is shifted", rare_float_row_corrupted, FLOAT),
    _fault("bias_of_another_layer", "a layer reads another layer's bias", bias_of_another_layer, FLOAT),
    _fault("half_written", "the file ends after three fifths", half_written, _ALL, stops="."),
    _fault("file_of_another_student", "a stale file lies under a new manifest", file_of_another_student, _ALL),
    _fault("scheme_not_applied", "the int8 file is the fp32 one", scheme_not_applied, INT8),
    _fault(
        "half_under_fp32_name",
        "the fp32 file is the fp16 one",
        half_under_fp32_name,
        {name: FLOAT[name] for name in ("litert", "coreml")},
        not_for=_NO_FP16,
    ),
)
OF_WIRING = tuple(_of_wiring())
"""Right values in wrong places, and a file under another scheme's name."""
