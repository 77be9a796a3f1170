"""Static int8 in Core ML: what linears read is rounded over the ranges that calibration found, in half precision."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome, recipe_file, run_command_here
from damage import edit_coreml
from faults import students
from faults.students import few
from quantised_coreml import operations
from store import Store

from pipeline import formats, mil
from pipeline.checkpoint import ranges
from pipeline.errors import ToolchainError
from pipeline.formats.structure import Structure
from pipeline.schemes import SCHEMES
from pipeline.verify import quantised_checkpoint, structure
from pipeline.verify import record as verify

SCHEME = "int8_static"
TARGET = f"coreml-{SCHEME}"
FREE: Mapping[str, dict[str, Any]] = {
    "embedding": {"min_mean_cosine": 0.5, "min_worst_cosine": 0.0, "min_sqnr_db": 0.0},
    "classification": {"min_sqnr_db": 0.0, "min_agreement": 0.0, "max_kl": 9.0},
}
"""By task. Students of random weights have outliers in each activation, and no text is like another."""


def line(folder: Path, source: Path, task: str, ios: int, lengths: list[int]) -> None:
    """Quantise, convert and verify a student by the command."""
    recipe = recipe_file(
        folder,
        task=task,
        student={"source": str(source), "random_weights": True},
        quantize={"calibration_texts": 64},
        convert={"sequence_lengths": lengths},
        targets={"coreml": {"schemes": [SCHEME], "minimum_ios": ios}},
        verify={"gates": {SCHEME: FREE[task]}},
    )
    outcome = run_command_here("verify", recipe, "--build", folder / "build", "--json", cwd=folder)
    assert outcome.rc == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]


@pytest.fixture(scope="module")
def made(run_store: Store, randomised: Callable[..., Path]) -> Path:
    """A classifier."""
    source = randomised("bert", "classification")
    folder = run_store.get("static-coreml", lambda folder: line(folder, source, "classification", 18, [16]))
    return folder / "build" / "tiny"


@pytest.fixture(scope="module")
def older(run_store: Store) -> Path:
    """One length for iOS 17, of a student whose second linear of a layer reads nothing below zero."""

    def make(folder: Path) -> None:
        source = students.source(few(setting="relu"), folder)
        line(folder, source, "embedding", 17, [16])

    return run_store.get("static-coreml-17", make) / "build" / "tiny"


def file_of(made: Path) -> Path:
    return made / TARGET / "model" / formats.get("coreml").FILE


def structure_of(made: Path) -> Structure:
    return formats.get("coreml").structure(file_of(made))


def found_by_calibration(made: Path) -> list[ranges.Linear]:
    return [row for row in ranges.read(made / f"quantised-{SCHEME}").linears if row.input is not None]


def test_steps_are_numbers_of_half_precision(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for low, high in np.exp(generator.uniform(-12, 6, (200, 2))) * (-1, 1):
        step, zero = ranges.scale_and_zero_point((low, high), half=True)
        assert step == float(np.float16(step)) >= 2.0**-14
        exact, _ = ranges.scale_and_zero_point((low, high))
        assert step == pytest.approx(max(exact, 2.0**-14), rel=2.0**-11)
        assert -128 <= zero <= 127
        # Zero is a step, and what lies beyond the ends is at most what rounding the step makes of them.
        assert (-128 - zero) * step <= low + step
        assert (127 - zero) * step >= high - step


@pytest.mark.parametrize("which", ["made", pytest.param("older", marks=pytest.mark.full)])
def test_linears_read_the_ranges_that_were_found(which: str, request: pytest.FixtureRequest) -> None:
    """Every gate of an ordinary verdict holds, the control among them; what follows is read from the file again."""
    folder = request.getfixturevalue(which)
    assert verify.read_parity(folder / TARGET / "parity").verdict == "passed"
    stored, rows = structure_of(folder), found_by_calibration(folder)
    due = [row.input.scale_and_zero_point(half=True) for row in rows if row.input]
    assert sorted(stored.static_scales) == sorted(due * len(stored.uses))
    assert Counter(stored.arithmetic)["static_int8"] == len(due) * len(stored.uses)
    # Query, key and value read one tensor, rounded once.
    rounded = operations(mil.read(file_of(folder)).spec, "quantize")
    assert len(rounded) == len(stored.uses) * (len(rows) - 2 * sum("query" in row.path for row in rows))
    weights = [one for one in stored.constants if one.values.ndim == 2 and one.values.size >= 2048]
    assert {one.stored for one in weights} <= {"int8", "float16"}
    assert sum(one.stored == "int8" for one in weights) > len(rows)


def test_a_head_multiplies_floats(made: Path) -> None:
    assert not any("classifier" in row.path for row in found_by_calibration(made))
    assert set(structure_of(made).arithmetic) == {"static_int8", "float"}


@pytest.mark.full
def test_what_is_never_below_zero_has_unsigned_codes(older: Path) -> None:
    """coremltools turns int8 whose zero is its lowest code into uint8; the range is the same."""
    package = mil.read(file_of(older))
    operations = package.program(package.functions[0]).operations
    assert "uint8" in {one.outputs[0].type.dtype.name for one in operations if one.kind == "quantize"}  # type: ignore[union-attr]
    assert -128 in [zero for _, zero, *_ in structure_of(older).static_scales]


def test_another_range_fails(made: Path) -> None:
    """By one gate alone: the control is in single precision, and the outputs hardly move."""
    stored = structure_of(made)
    expected = quantised_checkpoint.read_weights(made / f"quantised-{SCHEME}", half=True)
    functions = len(stored.uses)
    clean = structure.check(stored, expected, SCHEME, "coreml", functions=functions).gates
    assert all(gate.passed for gate in clean), [gate.detail for gate in clean if not gate.passed]
    scale, zero, *_ = stored.static_scales[3]
    for other in ((scale * (1 + 2.0**-10), zero), (scale, zero + 1), (scale, zero, scale, zero)):
        changed = replace(stored, static_scales=(*stored.static_scales[:3], other, *stored.static_scales[4:]))
        gates = structure.check(changed, expected, SCHEME, "coreml", functions=functions).gates
        failed = [gate for gate in gates if not gate.passed]
        assert [gate.name for gate in failed] == ["ranges"]
        assert "differ from what calibration found" in failed[0].detail
    gates = structure.check(stored, expected, "int8_weight_only", "coreml", functions=functions).gates
    assert "arithmetic" in [gate.name for gate in gates if not gate.passed]


def test_a_weight_or_a_bias_that_is_off_fails(made: Path) -> None:
    stored = structure_of(made)
    expected = quantised_checkpoint.read_weights(made / f"quantised-{SCHEME}", half=True)
    for pattern in (r"layer\.1\.output\.dense.*bias$", r"layer\.1\.output\.dense.*weight$"):
        (due,) = (one for name, one in expected.tensors.items() if re.search(pattern, name) and "gain" not in name)
        number = min(
            (n for n, one in enumerate(stored.constants) if one.values.squeeze().shape == due.shape),
            key=lambda n: float(np.abs(stored.constants[n].values.squeeze() - due).sum()),
        )
        values = stored.constants[number].values.copy()
        values.reshape(-1)[5] += 0.01
        constants = list(stored.constants)
        constants[number] = replace(constants[number], values=values)
        changed = replace(stored, constants=tuple(constants))
        gates = structure.check(changed, expected, SCHEME, "coreml", functions=len(stored.uses)).gates
        assert [gate.name for gate in gates if not gate.passed] == ["weights"]


# --- files that round otherwise ---------------------------------------------------------------------------------------


def scale_otherwise(spec: Any) -> None:
    """Multiply out by a scale that is off by its last bit."""
    name = operations(spec, "dequantize")[0].inputs["scale"].arguments[0].name
    (scale, *_) = (one for one in operations(spec, "const") if one.outputs[0].name == name)
    stored = scale.attributes["val"].immediateValue.tensor.bytes
    stored.values = bytes([stored.values[0] ^ 1]) + stored.values[1:]


def add_what_was_rounded(spec: Any) -> None:
    """Let the first sum of a residual read what the linear reads."""
    norms = {one.outputs[0].name for one in operations(spec, "layer_norm")}
    given = (row for one in operations(spec, "add") for value in one.inputs.values() for row in value.arguments)
    next(row for row in given if row.name in norms).name = operations(spec, "dequantize")[0].outputs[0].name


def read_codes(spec: Any) -> None:
    linear, quantize = operations(spec, "linear")[0], operations(spec, "quantize")[0]
    linear.inputs["x"].arguments[0].name = quantize.outputs[0].name


def declare_otherwise(spec: Any) -> None:
    """Declare codes as unsigned, which `output_dtype` does not say."""
    operations(spec, "quantize")[0].outputs[0].type.tensorType.dataType = 31


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (scale_otherwise, "dequantises with another scale or zero point than"),
        (add_what_was_rounded, "add .* reads what was rounded, and is no linear"),
        (read_codes, "linear .* reads what was rounded"),
        (declare_otherwise, "multiplies out what is not rounded as it declares"),
    ],
)
def test_rounding_that_no_conversion_has_is_refused(
    change: Callable[[Any], None], message: str, made: Path, tmp_path: Path
) -> None:
    file = made / TARGET / "model" / formats.get("coreml").FILE
    copy = Path(shutil.copytree(file, tmp_path / file.name))
    edit_coreml(copy, change)
    with pytest.raises(ToolchainError, match=message):
        formats.get("coreml").structure(copy)


def test_without_its_rounding_a_program_is_nearer(made: Path) -> None:
    """The control's program: constants as they are, and nothing between rounded, neither to halves nor to int8."""
    package = mil.read(made / TARGET / "model" / formats.get("coreml").FILE)
    ids = np.array([[101, 223, 203, 137, 331, 102, *[0] * 10]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int32), "token_type_ids": ids * 0}
    seen: dict[str, dict[str, np.ndarray]] = {}
    for precision in ("fp16", "mixed"):
        values: dict[str, np.ndarray] = {}

        def keep(kind: str, name: str, value: np.ndarray, values: dict[str, np.ndarray] = values) -> None:
            if kind in ("quantize", "dequantize"):
                values[name] = value.copy()

        interpreter = mil.Interpreter(package, precision=precision)
        interpreter.run(inputs, watch=keep)
        seen[precision] = values
    assert {value.dtype for value in seen["fp16"].values()} == {np.dtype(np.int8), np.dtype(np.float32)}
    assert {value.dtype for value in seen["mixed"].values()} == {np.dtype(np.float32)}
    few, many = (len(np.unique(next(iter(values.values())))) for values in seen.values())
    assert few <= 256 < many


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_integer_products_need_ios_17(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    targets = {"coreml": {"schemes": [SCHEME], "minimum_ios": 16}}
    outcome = command_here("plan", recipe_file(tmp_path, targets=targets))
    assert "ML Programs multiply int8 activations from iOS 17 on, and minimum_ios is 16" in outcome.stderr
    assert SCHEMES[SCHEME].refusal("coreml", minimum_ios=17) is None


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["albert", "distilbert", "mobilebert", "roberta", "electra"])
def test_static_int8_of_every_architecture(
    architecture: str, randomised: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    path = recipe_file(
        tmp_path,
        student={"source": str(randomised(architecture)), "random_weights": True},
        convert={"sequence_lengths": [16, 32]},
        targets={"coreml": {"schemes": [SCHEME]}},
        quantize={"calibration_texts": 64},
        verify={"gates": {SCHEME: FREE["embedding"]}},
    )
    outcome = command_here("verify", path, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
