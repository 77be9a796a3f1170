"""Quantisation that looks at activations: ranges, gains that keep the student in fp32, and the files made of them."""

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import REPOSITORY, Outcome, recipe_file, run_command_here
from damage import Contents, edited_bytes, edited_litert
from safetensors.torch import load_file, save_file
from store import Store
from torch import nn

from pipeline import formats, tasks
from pipeline.checkpoint import ranges, smoothquant
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.checkpoint.ranges import Range, scale_and_zero_point
from pipeline.checkpoint.weights import GAINS, WEIGHTS
from pipeline.convert.targets import choose_targets
from pipeline.errors import StudentError, ToolchainError
from pipeline.formats.litert.container import kinds_of, read_model, tensors_of
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.quantize import checkpoint as quantised_record
from pipeline.quantize import observers
from pipeline.quantize import stage as quantize
from pipeline.quantize.activations import LinearGroup
from pipeline.quantize.equalisation import apply, equalise, smoothing_scales
from pipeline.quantize.observers import OBSERVERS, Histogram
from pipeline.quantize.rounding import by_tensor, by_token, weight_by_row
from pipeline.recipe import loading as recipes
from pipeline.schemes import SCHEMES
from pipeline.verify import quantised_checkpoint, structure
from pipeline.verify import stage as verify
from pipeline.verify.quantised_weights import differing
from pipeline.verify.weights import Expected

OUTLIER = 15.0
"""By how much a channel of a LayerNorm is larger than the others."""


def spiked(outliers: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a million ordinary values with some far outside."""
    drawn = np.random.default_rng(seed).standard_normal(1_000_000).astype(np.float32)
    drawn[:outliers] = 20.0
    return drawn


# --- observers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBSERVERS)
def test_a_range_holds_zero_and_lies_within_what_occurred(name: str, seed: int) -> None:
    for values in (spiked(3, seed), np.abs(spiked(0, seed)) + 2, -np.abs(spiked(0, seed)), np.zeros(9, np.float32)):
        low, high = OBSERVERS[name](Histogram.of(values))
        assert min(values.min(), 0) <= low + 1e-6
        assert high <= max(values.max(), 0) + 1e-6
        assert low <= 0 <= high
        step, zero = scale_and_zero_point((low, high))
        assert step > 0
        assert -128 <= zero <= 127


@pytest.mark.parametrize(
    ("name", "clips"), [("min_max", False), ("percentile", True), ("mse", True), ("entropy", True)]
)
def test_all_but_min_max_clip_a_rare_outlier(name: str, clips: bool, seed: int) -> None:
    _, high = OBSERVERS[name](Histogram.of(spiked(1, seed)))
    assert (high < 15) == clips


def test_the_least_squared_error_is_the_least_of_all(seed: int) -> None:
    """The observer judges by a histogram; here every range that it tries is judged by the values themselves."""
    values = spiked(1, seed)
    histogram = Histogram.of(values)

    def error(kept: Range) -> float:
        return float((by_tensor(torch.from_numpy(values), kept) - torch.from_numpy(values)).square().mean())

    found = error(observers.mse(histogram))
    assert found <= 1.02 * min(error(kept) for kept in observers._ranges(histogram)[::9])
    assert found < 0.7 * error(observers.min_max(histogram))


def test_codes_of_a_tensor_are_those_of_its_scale_and_zero_point() -> None:
    step, zero = scale_and_zero_point((-1.0, 3.0))
    values = torch.tensor([-1.0, 0.0, 3.0, 9.0, step * 1.4])
    codes = (by_tensor(values, (-1.0, 3.0)) / step).round() + zero
    assert codes.tolist() == [-128, zero, 127, 127, zero + 1]


def test_a_token_has_a_range_of_its_own(seed: int) -> None:
    values = torch.randn(2, 64, generator=torch.Generator().manual_seed(seed)) * torch.tensor([[1.0], [100.0]])
    error = (by_token(values) - values).abs().amax(-1)
    assert error[0] < 0.03
    assert error[1] == pytest.approx(100 * float(error[0]), rel=0.5)


# --- equalisation ----------------------------------------------------------------------------------------------------


def group(seed: int, *, outlier: float) -> LinearGroup:
    generator = torch.Generator().manual_seed(seed)
    linears = tuple(nn.Linear(48, rows) for rows in (32, 16))
    for linear in linears:
        linear.weight.data = torch.randn(linear.weight.shape, generator=generator) / 7
        linear.bias.data = torch.randn(linear.bias.shape, generator=generator)
    inputs = torch.randn(600, 48, generator=generator)
    inputs[:, 5] *= outlier
    return LinearGroup(("first", "second"), linears, inputs)


@pytest.mark.numeric
@pytest.mark.parametrize("static", [False, True])
def test_a_gain_takes_an_outlier_away_and_nothing_else(static: bool, seed: int) -> None:
    one = group(seed, outlier=OUTLIER)
    before = [one.outputs(number).detach() for number in range(2)]
    found = equalise(one, static=static, observer="min_max")
    assert found.input_gain is not None
    # Over eight seeds .39 to .53 where rows are rounded as they come, .05 to .07 with one range; 1 without a gain.
    assert found.error < 0.7 * found.error_before
    assert int(found.input_gain.argmin()) == 5
    apply(one.linears, found)
    for number, (linear, due) in enumerate(zip(one.linears, before, strict=True)):
        got = linear(one.inputs * found.input_gain).detach()
        gain = found.output_gains[number]
        got = got if gain is None else got * gain
        # Single precision gives 6.4e-7, on another processor 5.6e-7.
        assert float((got - due).abs().max() / due.abs().max()) < 2e-6


@pytest.mark.numeric
def test_one_scale_is_taken_of_rows_that_the_gain_of_outputs_made_even(seed: int) -> None:
    """Without the output scales, a row of large weights would leave the other rows only a few int8 levels."""
    one = group(seed, outlier=OUTLIER)
    for linear in one.linears:
        linear.weight.data[3] *= 50
        linear.bias.data[3] *= 50
    by_row, of_all = (
        equalise(one, static=True, observer="min_max", one_scale=one_scale) for one_scale in (False, True)
    )
    assert all(gain is not None for gain in of_all.output_gains)
    assert of_all.error < 4 * by_row.error


def test_what_is_even_already_gets_no_gain(seed: int) -> None:
    found = equalise(group(seed, outlier=1.0), static=False, observer="min_max")
    assert found.input_gain is None
    assert found.error == found.error_before


def test_the_error_that_is_told_is_that_of_the_rounded_linears(seed: int) -> None:
    one = group(seed, outlier=OUTLIER)
    found = equalise(one, static=False, observer="min_max")
    assert found.alpha is not None
    scales = smoothing_scales(one.inputs, [linear.weight.detach() for linear in one.linears], found.alpha)
    errors = []
    for linear in one.linears:
        weight = linear.weight.detach()
        true = one.inputs @ weight.T
        got = by_token(one.inputs / scales) @ weight_by_row(weight * scales).T
        errors.append(((got - true).square().sum(1) / true.square().sum(1)).mean())
    assert found.error == pytest.approx(float(torch.stack(errors).mean()), rel=1e-4)


# --- checkpoints with gains ------------------------------------------------------------------------------------------


@pytest.fixture
def student(tiny_student: Callable[..., Path], tmp_path: Path) -> Callable[[str], Path]:
    """A factory of tiny students of which one channel behind each LayerNorm is an outlier."""

    def make(architecture: str) -> Path:
        folder = Path(shutil.copytree(tiny_student(architecture, "embedding"), tmp_path / "source"))
        tensors = load_file(folder / WEIGHTS)
        last = max(number for name in tensors for number in name.split(".") if number.isdigit())
        for name, tensor in tensors.items():
            if "norm" in name.lower() and name.endswith("weight") and f".{last}." not in name:
                tensor[3] *= OUTLIER
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        return folder

    return make


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("architecture", "formats"),
    [
        ("bert", ("litert",)),
        *(
            pytest.param(name, ("litert", "executorch"), marks=pytest.mark.full)
            for name in ("distilbert", "mobilebert", "roberta")
        ),
    ],
)
def test_files_of_a_student_with_outliers_pass(
    architecture: str,
    formats: tuple[str, ...],
    student: Callable[[str], Path],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    """Every gate holds for the rewritten checkpoint."""
    targets = {name: {"schemes": ["int8_dynamic"]} for name in formats}
    source = {"source": str(student(architecture)), "random_weights": True}
    free = {
        "datasets": ["none"],
        "gates": {"int8_dynamic": {"min_mean_cosine": 0.5, "min_worst_cosine": -1.0, "min_sqnr_db": 0.0}},
    }
    given = {"targets": targets, "verify": free, "convert": {"sequence_lengths": [16]}}
    recipe = recipe_file(tmp_path, student=source, quantize={"calibration_texts": 64}, **given)
    outcome = command_here("verify", recipe, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout
    made = {step["name"] for step in outcome.document["steps"]}
    assert "quantize int8_dynamic" in made
    folder = tmp_path / "build" / "tiny"
    record = ranges.read(folder / "quantised-int8_dynamic")
    assert record.identity_error < quantize.IDENTITY
    taken = [linear for linear in record.linears if linear.alpha is not None]
    assert taken
    assert all(linear.error < 0.7 * linear.error_before for linear in taken)
    assert all("quantised_weights" in gates_of(folder, target) for target in outcome.document["verdicts"])


def gates_of(folder: Path, target: str) -> list[str]:
    document = json.loads((folder / target / "parity" / "parity.json").read_text(encoding="utf-8"))
    return [gate["name"] for gate in document["gates"]]


# --- static int8 -----------------------------------------------------------------------------------------------------


PER_TENSOR = "int8_static_per_tensor"
STATIC_FILES = ("litert-int8_static", f"litert-{PER_TENSOR}", "executorch-int8_static")
STATIC = {
    "targets": {name: {"schemes": ["int8_static"]} for name in ("litert", "executorch")},
    "verify": {"gates": {"int8_static": {"min_mean_cosine": 0.5, "min_worst_cosine": 0.0, "min_sqnr_db": 0.0}}},
}


@pytest.fixture(scope="session")
def static_line(randomised: Callable[..., Path], run_store: Store) -> Path:
    """A line of a tiny student in static int8, made by the command once a run."""

    def make(folder: Path) -> None:
        source = {"source": str(randomised("bert", "classification")), "random_weights": True}
        bounds = {"min_sqnr_db": 0.0, "min_agreement": 0.0, "max_kl": 9.0}
        free = {"gates": {"int8_static": bounds, PER_TENSOR: bounds}}
        short = {"sequence_lengths": [16]}
        targets = {"litert": {"schemes": ["int8_static", PER_TENSOR]}, "executorch": {"schemes": ["int8_static"]}}
        given = {"student": source, "targets": targets, "convert": short, "verify": free}
        recipe = recipe_file(folder, task="classification", quantize={"calibration_texts": 64}, **given)
        outcome = run_command_here("verify", recipe, "--build", folder / "build", "--json", cwd=folder)
        assert outcome.rc == 0, outcome.stdout[-3000:] + outcome.stderr[-3000:]

    return run_store.get("static-line", make) / "build" / "tiny"


@pytest.mark.parametrize("target", STATIC_FILES)
def test_static_linears_have_the_ranges_that_were_found_and_a_head_is_floats(target: str, static_line: Path) -> None:
    """Every gate of an ordinary verdict holds; what follows is read from the file again."""
    assert verify.read_parity(static_line / target / "parity").verdict == "passed"
    backend, scheme = target.split("-")
    stored = formats.get(backend)
    structure_read = stored.structure(static_line / target / "model" / stored.FILE)
    functions = len(structure_read.uses)
    rows = [row for row in ranges.read(static_line / f"quantised-{scheme}").linears if row.input is not None]
    assert not any("classifier" in row.path for row in rows)
    due = [(*row.input.scale_and_zero_point(), *row.output.scale_and_zero_point()) for row in rows]  # type: ignore[union-attr]
    assert sorted(structure_read.static_scales) == sorted(due * functions)
    assert structure_read.arithmetic.count("static_int8") == len(rows) * functions
    assert set(structure_read.arithmetic) == {"static_int8", "float"}


@pytest.mark.parametrize("target", STATIC_FILES)
def test_a_file_that_rounds_over_another_range_fails(target: str, static_line: Path) -> None:
    """By one gate alone: the control is in single precision, and the outputs hardly move."""
    backend, scheme = target.split("-")
    structure_read = formats.get(backend).structure(static_line / target / "model" / formats.get(backend).FILE)
    expected = quantised_checkpoint.read_weights(static_line / f"quantised-{scheme}")
    functions = len(structure_read.uses)
    clean = structure.check(structure_read, expected, scheme, backend, functions=functions).gates
    assert all(gate.passed for gate in clean), [gate.detail for gate in clean if not gate.passed]
    (steps,) = [one for one in structure_read.static_scales[3:4] if len(one) == 4]
    scale, zero, made, made_zero = steps
    for other in ((scale * (1 + 1e-6), zero, made, made_zero), (scale, zero + 1, made, made_zero)):
        changed = replace(
            structure_read, static_scales=(*structure_read.static_scales[:3], other, *structure_read.static_scales[4:])
        )
        failed = [
            gate
            for gate in structure.check(changed, expected, scheme, backend, functions=functions).gates
            if not gate.passed
        ]
        assert [gate.name for gate in failed] == ["ranges"]
        assert "differ from what calibration found" in failed[0].detail


@pytest.mark.parametrize("target", STATIC_FILES)
def test_a_bias_that_is_a_step_off_fails(target: str, static_line: Path) -> None:
    """Half a step of the products is what rounding explains."""
    backend, scheme = target.split("-")
    structure_read = formats.get(backend).structure(static_line / target / "model" / formats.get(backend).FILE)
    expected = quantised_checkpoint.read_weights(static_line / f"quantised-{scheme}")
    (bias,) = (one for name, one in expected.tensors.items() if re.search(r"layer\.1\.output\.dense.*bias$", name))
    number = min(
        (n for n, one in enumerate(structure_read.constants) if one.values.squeeze().shape == bias.shape),
        key=lambda n: float(np.abs(structure_read.constants[n].values.squeeze() - bias).sum()),
    )
    values = structure_read.constants[number].values.copy()
    values.reshape(-1)[5] += 0.01
    constants = list(structure_read.constants)
    constants[number] = replace(constants[number], values=values)
    gates = structure.check(
        replace(structure_read, constants=tuple(constants)),
        expected,
        scheme,
        backend,
        functions=len(structure_read.uses),
    ).gates
    assert "weights" in [gate.name for gate in gates if not gate.passed]


def test_old_runtimes_read_one_scale_a_weight(static_line: Path) -> None:
    """tflite-runtime 2.14 refuses a linear later than version 10; `pocketbert compat` has run such files there."""
    read = {scheme: litert_model(static_line, scheme) for scheme in ("int8_static", PER_TENSOR)}
    versions = {scheme: versions_of_linears(model) for scheme, model in read.items()}
    assert max(versions["int8_static"]) > 10 >= max(versions[PER_TENSOR])
    tables = [tensor.quantization for tensor in tensors_of(read[PER_TENSOR])]
    scales = [len(table.scale) for table in tables if table is not None and table.scale is not None]
    assert len(scales) > 12
    assert set(scales) == {1}


def litert_model(line: Path, scheme: str) -> Any:
    model, _ = read_model(line / f"litert-{scheme}" / "model" / formats.get("litert").FILE)
    return model


def versions_of_linears(model: Any) -> list[int]:
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    linear = BuiltinOperator.FULLY_CONNECTED
    return [code.version for code, kind in zip(model.operatorCodes, kinds_of(model), strict=True) if kind == linear]


def test_int8_of_a_delegate_that_declares_other_steps_is_refused(static_line: Path, tmp_path: Path) -> None:
    """XNNPACK takes what comes from outside to be in the steps that the reader declares."""
    model = formats.get("executorch")
    clean = static_line / "executorch-int8_static" / "model" / model.FILE
    (scale, *_), *_ = model.structure(clean).static_scales
    old, new = (struct.pack("<f", factor * scale) for factor in (1, 1.5))
    with pytest.raises(ToolchainError, match="has another scale than"):
        model.structure(edited_bytes(clean, old, new, tmp_path / model.FILE))


RESHAPE, TRANSPOSE = 22, 39
"""Numbers of `BuiltinOperator`."""


@pytest.mark.parametrize(
    ("tensor_type", "said"),
    [(2, "bias has another scale than its products"), (9, "with another scale or zero point than it")],
)
def test_scales_that_do_not_belong_together_are_refused(
    tensor_type: int, said: str, static_line: Path, tmp_path: Path
) -> None:
    """A bias, which is int32, and int8 that is laid out anew on its way."""
    model = formats.get("litert")

    def rescaled(model: Any, contents: Contents) -> None:
        graph = model.subgraphs[0]
        biases = (one for one in graph.tensors if one.type == 2 and one.quantization.scale is not None)
        kinds = kinds_of(model)
        moved = (
            graph.tensors[one.outputs[0]] for one in graph.operators if kinds[one.opcodeIndex] in (RESHAPE, TRANSPOSE)
        )
        tensor = next(biases) if tensor_type == 2 else next(one for one in moved if one.type == 9)
        tensor.quantization.scale = np.full_like(tensor.quantization.scale, 0.321)

    clean = static_line / "litert-int8_static" / "model" / model.FILE
    with pytest.raises(ToolchainError, match=said):
        model.structure(edited_litert(clean, rescaled, tmp_path / model.FILE))


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["albert", "distilbert", "mobilebert", "roberta", "electra"])
def test_static_int8_of_every_architecture(
    architecture: str, randomised: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    source = {"source": str(randomised(architecture, "embedding")), "random_weights": True}
    outcome = command_here("verify", recipe_file(tmp_path, student=source, **STATIC), "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout


@pytest.mark.full
def test_the_real_student_is_nearer_in_its_worst_text(command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    """Without gains the worst text is at .983 in LiteRT and .990 in ExecuTorch."""
    recipe = recipe_file(
        tmp_path,
        student={"source": "bundled:all-MiniLM-L6-v2"},
        convert={"sequence_lengths": [16, 128]},
        targets={name: {"schemes": ["int8_dynamic", "int8_static"]} for name in ("litert", "executorch")},
        verify={
            "gates": {
                "int8_dynamic": {"min_worst_cosine": 0.992, "min_mean_cosine": 0.999},
                "int8_static": {"min_mean_cosine": 0.995},
            }
        },
        quantize={},
    )
    outcome = command_here("verify", recipe, "--json")
    assert set(outcome.document["verdicts"].values()) == {"passed"}, outcome.stdout


@pytest.fixture
def quantised(student: Callable[[str], Path], tmp_path: Path) -> tuple[Path, Path]:
    """A tiny student's folder, and the checkpoint that was made of it."""
    from pipeline.data.calibration import default_texts
    from pipeline.recipe.schema import QuantizeSection

    source, out = student("bert"), tmp_path / "quantised"
    out.mkdir()
    quantize.make(source, "embedding", "int8_dynamic", QuantizeSection(), (), default_texts(32, seed=0), out)
    return source, out


def wrong_in(source: Path, rewritten: Path) -> list[str]:
    student = load_checkpoint(source, tasks.get("embedding"))
    return differing(
        Expected.read(source, model_structure(student)),
        Expected.read(rewritten, quantised_record.structure(rewritten)),
        None,
        SCHEMES["int8_dynamic"],
    )


@pytest.mark.numeric
def test_a_rewritten_checkpoint_is_the_student(quantised: tuple[Path, Path]) -> None:
    source, out = quantised
    assert not wrong_in(source, out)
    assert load_file(out / GAINS)
    ids = torch.randint(5, 999, (3, 12), generator=torch.Generator().manual_seed(0))
    task = tasks.get("embedding")
    with torch.no_grad():
        one, other = (load_checkpoint(place, task)(input_ids=ids).last_hidden_state for place in quantised)
    assert float((one - other).abs().max() / one.abs().max()) < quantize.IDENTITY


def test_equal_gains_are_equal_files(tmp_path: Path) -> None:
    """In processes of their own, since what orders the entries of a file is drawn in each."""
    code = (
        "import sys, torch; from pathlib import Path; from pipeline.checkpoint import smoothquant;"
        "names = [f'layer.{number}' for number in range(20)];"
        "smoothquant.write({'first.input_gain': torch.ones(4)}, dict.fromkeys(names, 'first'), Path(sys.argv[1]))"
    )
    written = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", code, tmp_path / name], check=True, cwd=REPOSITORY)
        written.append((tmp_path / name / GAINS).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("file", [WEIGHTS, GAINS])
def test_a_number_that_was_changed_is_found(file: str, quantised: tuple[Path, Path]) -> None:
    """In a weight and in a gain: the structure is taken anew, as by one who hides it."""
    source, out = quantised
    tensors = load_file(out / file)
    groups = (smoothquant.read(out) or ({}, {}))[1]
    name = next(one for one in tensors if "query.weight" in one or one.endswith("input_gain"))
    tensors[name].view(-1)[7] *= 1.01
    if file == GAINS:
        smoothquant.write(tensors, groups, out)
    else:
        save_file(tensors, out / file, metadata={"format": "pt"})
    found = model_structure(load_checkpoint(out, tasks.get("embedding")))
    (out / quantised_record.STRUCTURE).write_text(json.dumps(found), encoding="utf-8")
    assert any("with its scales undone, differs" in one for one in wrong_in(source, out))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"encoder.layer.9.output.dense.input_gain": torch.ones(4)},
            "encoder.layer.9.output.dense, which is no linear",
        ),
        ({"embeddings.LayerNorm.input_gain": torch.ones(4)}, "embeddings.LayerNorm, which is no linear"),
        ({"encoder.layer.0.output.dense.output_gain": torch.ones(4)}, "has shape (4,), and the linear needs (64,)"),
    ],
    ids=["a layer that is not there", "no linear", "another width"],
)
def test_gains_that_do_not_fit_are_refused(
    change: dict[str, torch.Tensor], said: str, tiny_student: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_student("bert", "embedding"), tmp_path / "changed"))
    smoothquant.write(change, {}, folder)
    with pytest.raises(StudentError, match=r".*") as caught:
        load_checkpoint(folder, tasks.get("embedding"))
    assert said in str(caught.value)


def test_calibration_text_that_is_not_there_is_told_before_any_work(
    tiny_student: Callable[..., Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    source = {"source": str(tiny_student("bert", "embedding")), "random_weights": True}
    recipe = recipe_file(tmp_path, student=source, quantize={"calibration": ["absent.txt"]})
    outcome = command_here("plan", recipe)
    assert outcome.rc == 2
    assert "quantize.calibration" in outcome.stderr
    assert "absent.txt does not exist" in outcome.stderr
    assert not (tmp_path / "build" / "tiny").exists()


def test_other_texts_are_another_checkpoint(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    source = {"source": str(tiny_student("bert", "embedding")), "random_weights": True}
    targets = {"executorch": {"schemes": ["int8_dynamic"]}}
    found = []
    for word in ("river", "house"):
        (tmp_path / "own.txt").write_text("\n".join(f"the old {word} number {one}" for one in range(20)))
        file = recipe_file(tmp_path, student=source, targets=targets, quantize={"calibration": ["own.txt"]})
        parsed, _ = recipes.read_recipe(str(file))
        graph = build(Request(parsed, file, "report", choose_targets(parsed, [])))
        found.append({node.name: node.identity for node in graph.nodes.values()})
        nodes = {node.name: node for node in graph.nodes.values()}
        assert nodes["report"].inputs["quantised int8_dynamic"] is nodes["quantize int8_dynamic"]
    changed = {name for name in found[0] if found[0][name] != found[1][name]}
    behind = {f"{name} executorch-int8_dynamic" for name in ("convert", "verify")}
    assert changed == {"quantize int8_dynamic", "benchmark", "report"} | behind
