"""Faults of quantisation: in a calibrated checkpoint, in what a converter makes of one, and in the file.

`plant(checkpoint)` edits a copy of a quantised checkpoint. At level "quantised" verify is shown that copy, so that the
student alone can give it away; at level "rounding" the file is made of it and verify is shown the clean one, as if a
converter had done it. `plant(planting)` of level "file" edits the file, as in `file_faults`.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from faults import constants
from faults.calibrated import Checkpoint
from faults.fault import Cells, Fault
from faults.file_faults import Planting, file_of_another_student, half_written, table_scales_shifted
from faults.students import unusual
from pipeline.checkpoint import integers as stored_integers
from pipeline.checkpoint import ranges
from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.checkpoint.weights import CODES, GAINS, WEIGHTS
from pipeline.data import calibration
from pipeline.quantize import stage as quantize
from pipeline.recipe.schema import QuantizeSection

Edit = Callable[[Checkpoint], None]
_WEIGHT = "encoder.layer.1.intermediate.dense.weight"
_QUERY, _KEY = (f"encoder.layer.0.attention.self.{name}.weight" for name in ("query", "key"))
_OUTPUT = "encoder.layer.{}.attention.output.dense"
_TABLE = "embeddings.word_embeddings.weight"


# --- integers --------------------------------------------------------------------------------------------------------


def _weight(change: Callable[[Integers, Checkpoint], Integers | None], name: str = _WEIGHT) -> Edit:
    return lambda checkpoint: checkpoint.put(name, change(checkpoint.integers()[name], checkpoint))


def _codes(change: Callable[[Any], Any]) -> Callable[[Integers, Checkpoint], Integers]:
    return lambda one, _: replace(one, codes=np.ascontiguousarray(change(one.codes)))


def _scales(change: Callable[[Any], Any]) -> Callable[[Integers, Checkpoint], Integers]:
    return lambda one, _: replace(one, scales=np.ascontiguousarray(change(one.scales.copy())))


def _nibbles(codes: Any) -> Any:
    return codes.reshape(len(codes), -1, 2)[..., ::-1].reshape(codes.shape)


def _first_nibble(codes: Any) -> Any:
    found = codes.copy()
    row, column = next(zip(*np.nonzero(codes[:, ::2] != codes[:, 1::2]), strict=True))
    found[row, 2 * column], found[row, 2 * column + 1] = codes[row, 2 * column + 1], codes[row, 2 * column]
    return found


def _doubled(scales: Any) -> Any:
    scales[5, 0] *= 2
    return scales


def _rows_exchanged(scales: Any) -> Any:
    scales[[4, 9]] = scales[[9, 4]]
    return scales


def _one_row_on(scales: Any) -> Any:
    return np.roll(scales, 1, axis=0)


def _rounded(bits: int, block: int | None) -> Callable[[Integers, Checkpoint], Integers]:
    """Round the student's weight to the nearest on a grid of its largest numbers; `None` is a scale for each row."""

    def change(one: Integers, checkpoint: Checkpoint) -> Integers:
        import torch

        weight = checkpoint.of_student(_WEIGHT).numpy()
        blocks = weight.reshape(len(weight), -1, block or weight.shape[1])
        scales = torch.from_numpy(np.abs(blocks).max(2) / HIGHEST[bits]).bfloat16().float().numpy()
        codes = np.clip(np.rint(blocks / scales[..., None]), LOWEST[bits], HIGHEST[bits]).astype(np.int8)
        return Integers(codes.reshape(weight.shape), scales, bits)

    return change


def _left_in_float(one: Integers, checkpoint: Checkpoint) -> None:
    return None


def exchanged_integers(checkpoint: Checkpoint) -> None:
    held = checkpoint.integers()
    checkpoint.put(_QUERY, held[_KEY])
    checkpoint.put(_KEY, held[_QUERY])


def everything_in_eight_bits(checkpoint: Checkpoint) -> None:
    import torch

    from pipeline.quantize.integers import nearest_by_row

    for name, one in checkpoint.integers().items():
        if one.bits == 4:
            checkpoint.put(name, nearest_by_row(torch.as_tensor(checkpoint.of_student(name))))


def codes_of_before(checkpoint: Checkpoint) -> None:
    """Leave the codes of another run beside the weights of this one, as a half-written checkpoint has them."""
    shutil.copyfile(checkpoint.other / CODES, checkpoint.folder / CODES)


# --- static int8 -----------------------------------------------------------------------------------------------------


def _linear(path: str, change: Callable[[ranges.Linear, dict[str, ranges.Linear]], ranges.Linear]) -> Edit:
    def edit(linears: list[ranges.Linear]) -> list[ranges.Linear]:
        by_path = {one.path: one for one in linears}
        return [change(one, by_path) if one.path == path else one for one in linears]

    return lambda checkpoint: checkpoint.put_linears(edit)


_FIRST, _SECOND = (_OUTPUT.format(layer) for layer in (0, 1))


def _input_of(path: str) -> Callable[[ranges.Linear, dict[str, ranges.Linear]], ranges.Linear]:
    return lambda one, others: one.model_copy(update={"input": others[path].input})


def _ranges_exchanged(checkpoint: Checkpoint) -> None:
    """Give two linears each other's ranges, so that all of them are in the file."""

    def edit(linears: list[ranges.Linear]) -> list[ranges.Linear]:
        by_path = {one.path: one for one in linears}
        others = {_FIRST: by_path[_SECOND], _SECOND: by_path[_FIRST]}
        return [
            one.model_copy(update={"input": others[one.path].input, "output": others[one.path].output})
            if one.path in others
            else one
            for one in linears
        ]

    checkpoint.put_linears(edit)


def _shifted(one: ranges.Linear, _: dict[str, ranges.Linear]) -> ranges.Linear:
    """Move the range of what a linear reads by one step, so that its zero point is another."""
    assert one.input
    step, _zero = one.input.scale_and_zero_point()
    low, high = one.input.low, one.input.high
    return one.model_copy(update={"input": one.input.model_copy(update={"low": low + step, "high": high + step})})


def _without_ranges(one: ranges.Linear, _: dict[str, ranges.Linear]) -> ranges.Linear:
    return one.model_copy(update={"input": None, "output": None})


def _times(factor: float) -> Callable[[ranges.Linear, dict[str, ranges.Linear]], ranges.Linear]:
    def change(one: ranges.Linear, _: dict[str, ranges.Linear]) -> ranges.Linear:
        assert one.input
        other = {"low": one.input.low * factor, "high": one.input.high * factor}
        return one.model_copy(update={"input": one.input.model_copy(update=other)})

    return change


def no_ranges(checkpoint: Checkpoint) -> None:
    checkpoint.put_linears(lambda linears: [_without_ranges(one, {}) for one in linears])


def ranges_of_before(checkpoint: Checkpoint) -> None:
    """Give linears the ranges that they have without gains."""
    with TemporaryDirectory(dir=checkpoint.folder.parent) as scratch:
        section = QuantizeSection(calibration_texts=64, equalisation=False)
        texts = calibration.default_texts(64, seed=0)
        quantize.make(checkpoint.student, checkpoint.task, checkpoint.scheme, section, (), texts, Path(scratch))
        stale = {one.path: one for one in ranges.read(Path(scratch)).linears}
    checkpoint.put_linears(
        lambda linears: [
            one.model_copy(update={"input": stale[one.path].input, "output": stale[one.path].output}) for one in linears
        ]
    )


def _ones(gains: dict[str, Any]) -> None:
    name = next(iter(sorted(gains)))
    gains[name] = gains[name] * 0 + 1


def _gains_exchanged(gains: dict[str, Any]) -> None:
    names = sorted(gains)
    pairs = ((a, b) for a in names for b in names if a < b and gains[a].shape == gains[b].shape)
    one, other = next(pairs)
    gains[one], gains[other] = gains[other], gains[one]


def gains_left_out(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / GAINS).unlink()


def _bias(change: Callable[[Any], Any]) -> Edit:
    def edit(checkpoint: Checkpoint) -> None:
        tensors = checkpoint.tensors()
        name = f"{_SECOND}.bias"
        tensors[name] = change(tensors[name])
        checkpoint.put_tensors(tensors)

    return edit


def _on_another_grid(steps: int) -> Edit:
    """Round a weight to one scale for all of it, with so many steps to its largest number."""

    def edit(checkpoint: Checkpoint) -> None:
        tensors = checkpoint.tensors()
        name = f"{_SECOND}.weight"
        step = tensors[name].abs().max() / steps
        tensors[name] = (tensors[name] / step).round() * step
        checkpoint.put_tensors(tensors)

    return edit


# --- both ------------------------------------------------------------------------------------------------------------


def _config(**fields: Any) -> Edit:
    def edit(checkpoint: Checkpoint) -> None:
        file = checkpoint.folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(config | fields), encoding="utf-8")

    return edit


def of_another_student(checkpoint: Checkpoint) -> None:
    checkpoint.take(checkpoint.stranger)


def otherwise_trained(checkpoint: Checkpoint) -> None:
    checkpoint.take(checkpoint.other)


def training_not_told(checkpoint: Checkpoint) -> None:
    """Take the other checkpoint's numbers, and keep what this one says of its training."""
    kept = {file: (checkpoint.folder / file).read_text(encoding="utf-8") for file in _records(checkpoint)}
    checkpoint.take(checkpoint.other)
    for file, text in kept.items():
        (checkpoint.folder / file).write_text(text, encoding="utf-8")


def _records(checkpoint: Checkpoint) -> list[str]:
    return [name for name in (ranges.FILE, stored_integers.RECORD) if (checkpoint.folder / name).is_file()]


# --- files -----------------------------------------------------------------------------------------------------------


def bias_steps_doubled(planting: Planting) -> None:
    """Say that a bias is in steps twice as large, with half as many of them: a kernel takes the products' steps."""
    from safetensors.numpy import load_file

    assert planting.quantised
    path = "encoder.layer.0.attention.self.query"
    (row,) = (one for one in ranges.read(planting.quantised).linears if one.path == path)
    tensors = load_file(planting.quantised / WEIGHTS)
    assert row.input
    step, _ = row.input.scale_and_zero_point()
    steps = np.float32(step) * (np.abs(tensors[f"{path}.weight"]).max(1) / np.float32(127))
    codes = np.rint(tensors[f"{path}.bias"] / steps).astype("<i4")
    constants.overwrite(planting.file, codes, codes // 2)
    constants.overwrite(planting.file, steps.astype("<f4"), steps * 2)


def halves_of_bytes_swapped(planting: Planting) -> None:
    """Let the two codes of each byte of a weight change places, whatever a format makes of a code."""
    assert planting.quantised
    codes = stored_integers.read(planting.quantised)[_WEIGHT].codes.reshape(-1, 2)
    content = constants.bytes_file(planting.file).read_bytes()
    # With zero as the code of zero, or in the middle.
    for pairs in (codes & 0xF, codes + 8):
        packed = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
        if packed.tobytes() in content:
            constants.overwrite(planting.file, packed, packed << 4 | packed >> 4)
            return
    raise constants.NotFound(f"{planting.file.name} does not hold the codes of {_WEIGHT}")


def static_instead(planting: Planting) -> None:
    planting.take(planting.sibling("int8_static"))


# --- the catalogue ---------------------------------------------------------------------------------------------------

OUTLIERS, TRAINED = unusual("outliers"), unusual("outliers_trained")
INT4: Cells = {"litert": ("int4_dynamic",), "coreml": ("int4_weight_only",), "executorch": ("int4_dynamic",)}
STATIC: Cells = dict.fromkeys(INT4, ("int8_static",))
ONE_SCALE: Cells = {"litert": ("int8_static_per_tensor",)}
EVERY_STATIC: Cells = {**STATIC, "litert": (*STATIC["litert"], *ONE_SCALE["litert"])}
BOTH: Cells = {name: (*INT4[name], *STATIC[name]) for name in INT4}
_INTEGERS: tuple[tuple[str, str, Edit], ...] = (
    ("nibbles_swapped", "each two codes of a linear have changed places", _weight(_codes(_nibbles))),
    ("block_scale_doubled", "the scale of one block is twice too large", _weight(_scales(_doubled))),
    ("row_scales_exchanged", "two rows of a linear have each other's scales", _weight(_scales(_rows_exchanged))),
    ("int4_table_scales_shifted", "the table's scales are off by one row", _weight(_scales(_one_row_on), _TABLE)),
    ("integers_exchanged", "query and key have each other's codes and scales", exchanged_integers),
    ("linear_in_float", "one linear was left in floats", _weight(_left_in_float)),
    ("table_in_float", "the table was left in floats", _weight(_left_in_float, _TABLE)),
    ("linear_in_eight_bits", "one linear has eight bits", _weight(_rounded(8, None))),
    ("everything_in_eight_bits", "all linears have eight bits", everything_in_eight_bits),
    ("scale_by_row", "a linear of four bits has one scale a row", _weight(_rounded(4, None))),
)
_STATIC: tuple[tuple[str, str, Edit], ...] = (
    ("input_range_of_another", "a linear has the range of what another one reads", _linear(_SECOND, _input_of(_FIRST))),
    ("ranges_exchanged", "two linears have each other's ranges", _ranges_exchanged),
    ("range_too_narrow", "the range of what a linear reads is a quarter", _linear(_SECOND, _times(0.25))),
    ("range_too_wide", "the range of what a linear reads is eight times too wide", _linear(_SECOND, _times(8.0))),
    ("ranges_of_before_gains", "all ranges are those of the student without gains", ranges_of_before),
    ("linear_without_range", "one linear has no range, and stays in floats", _linear(_SECOND, _without_ranges)),
    ("no_ranges", "no linear has a range, and all stay in floats", no_ranges),
    ("gain_of_ones", "a gain is left out", lambda one: one.edit_gains(_ones)),
    ("gains_exchanged", "two linears have each other's gains", lambda one: one.edit_gains(_gains_exchanged)),
    ("gains_left_out", "the checkpoint's gains are lost", gains_left_out),
    ("static_bias_doubled", "a bias is twice as many steps", _bias(lambda bias: bias * 2)),
)
_ANY: tuple[tuple[str, str, Edit], ...] = (
    ("quantised_of_another", "it is the checkpoint of another student", of_another_student),
    ("quantised_epsilon", "the checkpoint's epsilon is another", _config(layer_norm_eps=1e-5)),
    ("quantised_heads", "the checkpoint has half as many heads", _config(num_attention_heads=2)),
    ("quantised_activation", "the checkpoint's activation is another", _config(hidden_act="gelu_pytorch_tanh")),
)
_BY_CONVERTER: tuple[tuple[str, str, Edit, Cells], ...] = (
    ("two_nibbles_swapped", "two codes of a linear have changed places", _weight(_codes(_first_nibble)), INT4),
    ("rounded_anew", "a converter rounds a linear to the nearest", _weight(_rounded(4, 32)), INT4),
    ("zero_point_off", "a linear reads with a zero point one too low", _linear(_SECOND, _shifted), EVERY_STATIC),
    ("scale_by_tensor", "a converter rounds a linear to one scale", _on_another_grid(127), STATIC),
    ("fewer_steps", "a converter rounds a linear to 85 steps instead of 127", _on_another_grid(85), ONE_SCALE),
)
"""What is as good a choice as another in the checkpoint itself."""
_INTEGER_BIAS: Cells = {name: STATIC[name] for name in ("litert", "executorch")}
_FILES: tuple[tuple[str, str, Callable[[Planting], None], Cells], ...] = (
    ("halves_of_bytes_swapped", "the two codes of each byte have changed places", halves_of_bytes_swapped, INT4),
    ("static_table_scales_shifted", "the table's scales are off by one row", table_scales_shifted, STATIC),
    ("static_under_int4_name", "the int4 file is the one of static int8", static_instead, INT4),
    ("rows_under_one_scale", "the file that has to have one scale has one a row", static_instead, ONE_SCALE),
    ("quantised_half_written", "the file ends after three fifths", half_written, BOTH),
    ("quantised_file_of_another", "a stale file lies under a new manifest", file_of_another_student, BOTH),
)


_ONE_GELU = {f"executorch-{scheme}": "XNNPACK has one gelu, whatever it is told" for scheme in BOTH["executorch"]}


def _without(cells: Cells) -> dict[str, str]:
    """Return why formats that cells leave out have no such file: only one scale a weight is not in all of them."""
    return {name: "it has no scheme of one scale" for name in INT4 if name not in cells}


def _faults() -> Iterator[Fault]:
    for rows, cells in ((_INTEGERS, INT4), (_STATIC, EVERY_STATIC), (_ANY, BOTH)):
        for name, what, plant in rows:
            # What does not fit together may be refused before anything is judged.
            stops = "StudentError|ToolchainError"
            yield Fault(name, what, "quantised", plant, OUTLIERS, cells, stops=stops)
            not_for = _ONE_GELU if name == "quantised_activation" else {}
            yield Fault(
                f"{name}_by_converter", f"{what}, in the file", "rounding", plant, OUTLIERS, cells, not_for, stops=stops
            )
    for name, what, plant, cells in _BY_CONVERTER:
        yield Fault(name, what, "rounding", plant, OUTLIERS, cells, _without(cells))
    for name, what, edit, cells in _FILES:
        refused = "." if edit is half_written else None
        yield Fault(name, what, "file", edit, OUTLIERS, cells, _without(cells), stops=refused)
    what, no_steps = "a bias has half as many steps, and says that they are larger", {"coreml": "its biases are floats"}
    yield Fault(
        "bias_steps_doubled", what, "file", bias_steps_doubled, OUTLIERS, _INTEGER_BIAS, no_steps, stops="another scale"
    )
    for student, what in ((TRAINED, "untrained"), (OUTLIERS, "trained")):
        said = f"the {what} checkpoint is in the place of the other one"
        yield Fault(f"{what}_instead", said, "quantised", otherwise_trained, student, BOTH)
        yield Fault(
            f"{what}_instead_by_converter", f"{said}, in the file", "rounding", otherwise_trained, student, BOTH
        )
        yield Fault(f"{what}_untold", f"{said}, and says that it is not", "quantised", training_not_told, student, BOTH)
    yield Fault(
        "codes_of_before", "the codes are another run's", "quantised", codes_of_before, OUTLIERS, INT4, stops="."
    )


FAULTS = tuple(_faults())
