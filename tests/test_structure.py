"""The structural check: on structures made here, where every gate fires, and on converted files with a byte changed."""

import itertools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pieces
import pytest
from faults.students import few
from test_backends import supported

from pipeline import formats, tasks
from pipeline.artifact import Artifact, load
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.parameters import model_structure
from pipeline.convert.stage import Target
from pipeline.errors import ArtifactError, StudentError
from pipeline.formats import executorch, litert
from pipeline.formats.executorch import reader
from pipeline.formats.structure import Constant, Structure
from pipeline.verify import structure as judging
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Expected

WORDS = "embeddings.word_embeddings.weight"


def check(found: Structure, expected: Expected, scheme: str, backend: str, functions: int = 2) -> list[GateResult]:
    return judging.check(found, expected, scheme, backend, functions=functions).gates


def failed(results: list[GateResult]) -> dict[str, str]:
    names = ["weights", "constants", "wiring", "arithmetic", "epsilon", "activation", "operators"]
    assert [gate.name for gate in results] == names
    return {gate.name: gate.detail for gate in results if not gate.passed}


# --- structures made here --------------------------------------------------------------------------------------


@cache
def checkpoint() -> Expected:
    """A layer norm before a linear, two tables, and a bias of zeros."""
    generator = np.random.default_rng(5)
    shapes = {"words": (50, 12), "positions": (16, 12), "linear.weight": (20, 12), "linear.bias": (20,)}
    shapes |= {"head.weight": (12, 20), "norm.weight": (12,), "norm.bias": (12,)}
    tensors = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    tensors["head.bias"] = np.zeros(12, np.float32)
    feeds = {"linear": ("norm",), "head": ()}
    return Expected(tensors, frozenset({"positions"}), feeds, (1e-12, 1e-12), ("gelu", "tanh"), ())


def rounded(values: np.ndarray, scheme: str) -> np.ndarray:
    if scheme == "fp32" or values.ndim == 1:
        return values.copy()
    if scheme == "fp16":
        return values.astype(np.float16).astype(np.float32)
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    return np.rint(values / scale) * scale


def clean(scheme: str) -> Structure:
    """A file of two functions of 8 and 16 positions, as a converter writes it."""
    kinds = {"fp32": "float32", "fp16": "float16"}
    constants = []
    for name, values in checkpoint().tensors.items():
        stored: Any = "float32" if values.ndim == 1 else kinds.get(scheme, "int8")
        for part in (values, values[None, :8]) if name == "positions" else (values,):
            constants.append(Constant(name, rounded(part.squeeze(), scheme).reshape(part.shape), stored))
    return Structure(tuple(constants), (1e-12,) * 4, ("gelu", "tanh") * 2, ((), ()), (), (), (), ())


def changed(found: Structure, name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Structure:
    """Change the first constant of a name; None leaves it out."""
    constants = list(found.constants)
    place = next(number for number, one in enumerate(constants) if one.name == name)
    values = change(constants[place].values.copy())
    constants[place : place + 1] = [] if values is None else [replace(constants[place], values=values)]
    return replace(found, constants=tuple(constants))


def put(*place: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values[place] = value
        return values

    return change


def scaled(row: int, *, by: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values[row] *= by
        return values

    return change


@pytest.mark.parametrize("scheme", ["fp32", "fp16", "int8_dynamic"])
def test_clean_passes(scheme: str) -> None:
    results = check(clean(scheme), checkpoint(), scheme, "litert")
    assert not failed(results)
    assert results[0].found is not None
    assert (0.8 if scheme != "fp32" else -1) < results[0].found <= 1


def test_better_precision_than_promised_passes_and_worse_does_not() -> None:
    assert not failed(check(clean("fp32"), checkpoint(), "int8_dynamic", "litert"))
    assert not failed(check(clean("fp16"), checkpoint(), "int8_dynamic", "litert"))
    assert set(failed(check(clean("int8_dynamic"), checkpoint(), "fp16", "litert"))) & {"weights"}
    assert set(failed(check(clean("fp16"), checkpoint(), "fp32", "litert"))) & {"weights"}


def test_layouts_of_converters_pass() -> None:
    """Transposed, with axes of one, with a norm multiplied in, and without a bias of zeros."""
    tensors = checkpoint().tensors
    weight, norm = tensors["linear.weight"], tensors["norm.weight"]
    found = changed(clean("fp32"), "head.weight", lambda values: values.T)
    found = changed(found, "norm.bias", lambda values: values[None, None])
    found = changed(found, "linear.weight", lambda _: weight * norm)
    shift = (tensors["linear.bias"] + weight.astype(np.float64) @ tensors["norm.bias"]).astype(np.float32)
    found = changed(found, "linear.bias", lambda _: shift)
    found = changed(found, "head.bias", lambda _: None)
    assert not failed(check(found, checkpoint(), "fp32", "litert"))
    nudged = changed(found, "linear.bias", put(3, value=float(shift[3]) + 1e-4))
    assert (
        "linear.bias plus its weight times norm.bias: 1 of 20"
        in failed(check(nudged, checkpoint(), "fp32", "litert"))["weights"]
    )


@pytest.mark.parametrize(("name", "size"), [("norm.weight", 12), ("head.bias", 1)])
def test_equal_elements_may_be_one_number_and_it_has_to_be_the_right_one(name: str, size: int) -> None:
    """LiteRT writes gains that are all 3.0 as one 3.0; a regressor's bias has one element to begin with."""
    truth = replace(checkpoint(), tensors={**checkpoint().tensors, name: np.full(size, 3.0, np.float32)})
    without = changed(clean("fp32"), name, lambda _: None)
    assert not failed(check(replace(without, numbers=(1.0, 3.0)), truth, "fp32", "litert"))
    for numbers in ((), (1.0,), (3.25,)):
        found = failed(check(replace(without, numbers=numbers), truth, "fp32", "litert"))
        assert f"{name} [{size}] is not in the file" in found["weights"]


@pytest.mark.parametrize("scheme", ["fp32", "fp16", "int8_dynamic"])
@pytest.mark.parametrize(
    ("name", "change", "detail"),
    [
        ("words", put(41, 7, value=3.5), r"words: 1 of 600 .* row 41, column 7: 3.5 instead of"),
        ("words", scaled(13, by=1.02), r"words: \d+ of 600 .* row 13, "),
        ("words", scaled(13, by=-1), r"words: 12 of 600 .* row 13, "),
        ("words", lambda values: values[[*range(40), *range(41, 50), 40]], r"words: 1\d\d of 600 "),
        ("words", put(0, 0, value=float("nan")), r"words: 1 of 600 .* row 0, column 0: nan"),
        ("positions", put(9, 1, value=9), r"positions: 1 of 192 .* row 9, "),
        ("linear.weight", lambda values: None, r"linear.weight \[20, 12\] is not in the file"),
        ("norm.weight", put(2, value=1.5), r"norm.weight: 1 of 12 .* row 2: 1.5 instead"),
        ("norm.weight", lambda values: None, r"norm.weight \[12\] is not in the file"),
        ("linear.bias", lambda values: np.zeros_like(values), r"linear.bias \[20\] is not in the file"),
        ("head.bias", put(4, value=1e-3), r"head.bias: 1 of 12 .* row 4: 0.001 instead of 0"),
    ],
)
def test_damaged_weights_fail(scheme: str, name: str, change: Any, detail: str) -> None:
    found = failed(check(changed(clean(scheme), name, change), checkpoint(), scheme, "litert"))
    assert re.search(detail, found["weights"]), found
    assert found.keys() <= {"weights", "constants"}


@pytest.mark.parametrize("scheme", ["fp32", "fp16"])
def test_a_nudge_just_beyond_the_rounding_fails(scheme: str) -> None:
    step = {"fp32": 2.0**-23, "fp16": 2.0**-10}[scheme]
    found = changed(clean(scheme), "words", lambda values: np.where(np.arange(12) == 3, values * (1 + step), values))
    assert "words: " in failed(check(found, checkpoint(), scheme, "litert"))["weights"]


@pytest.mark.parametrize("by", [1 + 2.0**-22, 1 + 2.0**-16])
def test_a_scale_of_int8_is_right_to_the_last_bits(by: float) -> None:
    """Half a step hides this: no element is farther off than the rounding allows."""
    found = changed(clean("int8_dynamic"), "words", scaled(3, by=by))
    assert "words" in failed(check(found, checkpoint(), "int8_dynamic", "litert"))["weights"]


def test_an_element_near_the_middle_between_two_steps_is_the_toolchain_s_own() -> None:
    found = clean("int8_dynamic")
    words = checkpoint().tensors["words"]
    step = np.abs(words).max(axis=1, keepdims=True) / np.float32(127)
    quotients = words / step
    row, column = np.unravel_index(int(np.abs(np.abs(quotients - np.rint(quotients)) - 0.5).argmin()), words.shape)
    other = np.rint(quotients[row, column]) + np.sign(quotients[row, column] - np.rint(quotients[row, column]))
    moved = changed(found, "words", put(int(row), int(column), value=float(other * step[row, 0])))
    assert "words" in failed(check(moved, checkpoint(), "int8_dynamic", "litert"))["weights"]


@pytest.mark.parametrize("backend", formats.NAMES)
def test_a_row_of_zeros_stays_one(backend: str) -> None:
    values = np.zeros((2, 4), np.float32)
    assert not formats.get(backend).ROUNDING.of(values, np.abs(values).max(axis=1, keepdims=True)).any()


def test_a_second_copy_has_to_be_right_too() -> None:
    """A scale that is wrong in one signature alone: the other's constant is as it should be."""
    good = clean("int8_dynamic")
    bad = changed(good, "words", scaled(6, by=1.05)).constants[0]
    found = replace(good, constants=(*good.constants, bad))
    assert "row 6" in failed(check(found, checkpoint(), "int8_dynamic", "litert"))["weights"]


@pytest.mark.parametrize("scheme", ["fp32", "int8_dynamic"])
def test_a_matrix_is_there_once(scheme: str) -> None:
    """A shared layer that came apart: both copies are right as far as the scheme's rounding can tell."""
    good = clean(scheme)
    words = next(constant for constant in good.constants if constant.name == "words")
    found = replace(good, constants=(*good.constants, replace(words, name="again")))
    assert failed(check(found, checkpoint(), scheme, "litert")).keys() == {"constants"}
    assert (
        "again [50, 12], once more what words is" in failed(check(found, checkpoint(), scheme, "litert"))["constants"]
    )
    # Of a table that is cut to a length, each length has its own.
    cut = replace(words, name="cut", values=words.values[:11])
    assert "once more" not in str(
        failed(check(replace(good, constants=(*good.constants, cut)), checkpoint(), scheme, "litert"))
    )


def test_a_small_tensor_stays_in_float() -> None:
    tensors = checkpoint().tensors
    coarse = rounded(tensors["norm.weight"][None], "int8_dynamic")[0]
    found = changed(clean("int8_dynamic"), "norm.weight", lambda _: coarse)
    found = replace(found, constants=tuple(replace(c, stored="int8") for c in found.constants))
    assert "norm.weight" in failed(check(found, checkpoint(), "int8_dynamic", "litert"))["weights"]


@pytest.mark.parametrize("shape", [(20, 12), (7, 7), (16,)])
def test_a_constant_of_nobody_fails(shape: tuple[int, ...], seed: int) -> None:
    stale = Constant("stale", np.random.default_rng(seed).standard_normal(shape).astype(np.float32), "float32")
    found = replace(clean("fp32"), constants=(*clean("fp32").constants, stale))
    assert set(failed(check(found, checkpoint(), "fp32", "litert"))) == {"constants"}


@pytest.mark.parametrize(
    ("epsilons", "detail"),
    [
        ((1e-12, 1e-12, 1e-12, 1e-5), "1 of 4 layer norms have another epsilon: 1e-05 instead of 1e-12"),
        ((1e-12,) * 3, "the file has 3 layer norms"),
        ((), "the file has 0 layer norms"),
        ((1e-12, 1e-12, 1e-12, 0.0), "another epsilon: 0 instead"),
    ],
)
def test_another_epsilon_fails(epsilons: tuple[float, ...], detail: str) -> None:
    found = failed(check(replace(clean("fp32"), epsilons=epsilons), checkpoint(), "fp32", "litert"))
    assert detail in found["epsilon"]


def test_core_ml_may_raise_an_epsilon_to_the_smallest_half_and_no_further() -> None:
    raised = replace(clean("fp16"), epsilons=(2.0**-24,) * 4)
    assert not failed(check(raised, checkpoint(), "fp16", "coreml"))
    assert set(failed(check(raised, checkpoint(), "fp16", "litert"))) == {"epsilon"}
    assert set(failed(check(replace(raised, epsilons=(1e-7,) * 4), checkpoint(), "fp16", "coreml"))) == {"epsilon"}
    whole = replace(clean("fp32"), epsilons=(2.0**-24,) * 4)
    assert set(failed(check(whole, checkpoint(), "fp32", "coreml"))) == {"epsilon"}


@pytest.mark.parametrize("activations", [("gelu_tanh", "tanh") * 2, ("gelu", "relu") * 2, ("gelu", "gelu", "tanh") * 2])
def test_another_activation_fails(activations: Any) -> None:
    found = replace(clean("fp32"), activations=activations)
    assert set(failed(check(found, checkpoint(), "fp32", "litert"))) == {"activation"}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (("MishActivation", "tanh"), ("tanh",) * 2),
        (("MishActivation", "tanh"), ("sigmoid", "tanh", "tanh") * 2),
        (("gelu", "tanh"), ("tanh",) * 2),
        (("gelu_tanh", "tanh"), ("tanh", "tanh") * 2),
    ],
)
def test_a_formula_may_stand_for_an_activation(wanted: tuple[str, ...], found: Any) -> None:
    """Its numbers are compared by the control."""
    results = check(
        replace(clean("fp32"), activations=found), replace(checkpoint(), activations=wanted), "fp32", "litert"
    )
    assert not failed(results)
    assert f"{wanted[0]} as " in results[5].detail


def test_what_a_runtime_computes_by_design_is_declared() -> None:
    wanted = replace(checkpoint(), activations=("gelu_tanh", "tanh"))
    results = check(clean("fp32"), wanted, "fp32", "executorch")
    assert not failed(results)
    assert "by design: gelu_tanh as gelu" in results[5].detail
    assert set(failed(check(clean("fp32"), wanted, "fp32", "litert"))) == {"activation"}


# --- real files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(converted: Callable[..., Path]) -> Callable[..., tuple[Artifact, Path]]:
    """A factory of students without two equal tensors, each with its file; tests copy a file before they damage it."""

    def make(architecture: str, task: str, target: Target) -> tuple[Artifact, Path]:
        folder = converted(str(target), few(architecture, task))
        return load(folder.parent / "student"), folder / formats.get(target.backend).FILE

    return make


@cache
def expected_of(student: Path, task: str) -> Expected:
    return Expected.read(student, model_structure(load_checkpoint(student, tasks.get(task))))


def judged(student: Artifact, target: Target, file: Path) -> dict[str, str]:
    wanted = expected_of(student.path, student.manifest.params["task"])
    backend = formats.get(target.backend)
    functions = len(backend.inspect(file))
    return failed(check(backend.structure(file), wanted, target.scheme, target.backend, functions))


SAMPLE = [
    *(("albert", "embedding", target) for target in supported("litert")),
    ("albert", "embedding", Target("coreml", "fp16")),
    ("albert", "embedding", Target("coreml", "int8_weight_only")),
]
EVERY = [
    (architecture, task, target)
    for architecture in ("bert", "distilbert", "albert")
    for task in ("embedding", "classification")
    for target in supported("litert", "executorch", "coreml")
]
CASES = [pytest.param(*case) for case in SAMPLE]
CASES += [pytest.param(*case, marks=pytest.mark.full) for case in EVERY if case not in SAMPLE]


@pytest.mark.parametrize(("architecture", "task", "target"), CASES, ids=str)
def test_converted_files_pass(
    architecture: str, task: str, target: Target, made: Callable[..., tuple[Artifact, Path]]
) -> None:
    student, file = made(architecture, task, target)
    assert not judged(student, target, file)


def tflite(data: bytearray) -> tuple[Any, Any]:
    """Return the schema's model, whose arrays are views of the bytes, and the first graph's vocabulary."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    tensors = [graph.Tensors(number) for number in range(graph.TensorsLength())]
    return model, next(tensor for tensor in tensors if tensor.ShapeLength() and tensor.Shape(0) == pieces.SIZE)


def damage_litert_element(data: bytearray) -> None:
    model, words = tflite(data)
    at = model.Buffers(words.Buffer()).Offset() + 700 * words.Shape(1) + 5
    data[at] = (data[at] + 64) % 256


def damage_litert_scale(data: bytearray) -> None:
    tflite(data)[1].Quantization().ScaleAsNumpy()[700] *= 1.05


def replace_number(data: bytearray, old: np.generic, new: np.generic) -> None:
    assert data.count(old.tobytes()) >= 1
    data[:] = data.replace(old.tobytes(), new.tobytes())


def damage_litert_gelu(data: bytearray) -> None:
    """Take the flag for the tanh form away from the first gelu."""
    from ai_edge_litert import schema_py_generated as schema

    model, _ = tflite(data)
    graph = model.Subgraphs(0)
    operators = [graph.Operators(number) for number in range(graph.OperatorsLength())]
    gelu = next(one for one in operators if one.BuiltinOptionsType() == schema.BuiltinOptions.GeluOptions)
    table = gelu.BuiltinOptions()
    data[table.Pos + table.Offset(4)] = 0


def pte_constant(data: bytearray, *, scalar_type: int) -> int:
    """Return where the vocabulary, or its scales, begin."""
    program = reader._Program.read(memoryview(bytes(data)))
    (plan,) = [plan for plan in program.table["execution_plan"] if plan["name"] == "forward"]
    tensors = [value["val"] for value in plan["values"] if value.member("val") == "Tensor"]
    found = next(t for t in tensors if list(t["sizes"])[:1] == [pieces.SIZE] and t["scalar_type"] == scalar_type)
    constants = program.table["constant_segment"]
    return (
        program.base
        + program.segments[constants["segment_index"]][0]
        + int(constants["offsets"][found["data_buffer_idx"]])
    )


def damage_pte_element(data: bytearray) -> None:
    at = pte_constant(data, scalar_type=1) + 700 * 32 + 5
    data[at] = (data[at] + 64) % 256


def damage_pte_scale(data: bytearray) -> None:
    np.frombuffer(data, "<f4", pieces.SIZE, pte_constant(data, scalar_type=6))[700] *= 1.05


def damage_pte_delegate_scale(data: bytearray) -> None:
    program = reader._Program.read(memoryview(bytes(data)))
    segment = next(number for key, number in program.named.items() if key.startswith("scale_"))
    np.frombuffer(data, "<f4", 4, program.base + program.segments[segment][0])[3] *= 1.05


def litert_epsilon(data: bytearray) -> None:
    replace_number(data, np.float32(1e-12), np.float32(1e-5))


def pte_epsilon(data: bytearray) -> None:
    replace_number(data, np.float64(1e-12), np.float64(1e-5))


LITERT = Target("litert", "int8_dynamic")
PTE = Target("executorch", "int8_weight_only")


@pytest.mark.parametrize(
    ("target", "damage", "gate", "detail"),
    [
        (LITERT, damage_litert_element, "weights", rf"{WORDS}: 1 of .* row 700, column 5: "),
        (LITERT, damage_litert_scale, "weights", rf"{WORDS}: \d+ of .* row 700, "),
        (LITERT, litert_epsilon, "epsilon", "1e-05 instead of 1e-12"),
        (LITERT, damage_litert_gelu, "activation", "1 gelu"),
        (PTE, damage_pte_element, "weights", rf"{WORDS}: 1 of .* row 700, column 5: "),
        (PTE, damage_pte_scale, "weights", rf"{WORDS}: \d+ of .* row 700, "),
        (PTE, damage_pte_delegate_scale, "weights", r"\.weight: \d+ of .* row 3, "),
        (PTE, pte_epsilon, "epsilon", "1e-05 instead of 1e-12"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_damaged_files_fail(
    target: Target,
    damage: Callable[[bytearray], None],
    gate: str,
    detail: str,
    made: Callable[..., tuple[Artifact, Path]],
    tmp_path: Path,
) -> None:
    student, file = made("albert", "embedding", target)
    data = bytearray(file.read_bytes())
    damage(data)
    (tmp_path / "model").write_bytes(data)
    found = judged(student, target, tmp_path / "model")
    assert found.keys() == {gate}
    assert re.search(detail, found[gate]), found


@pytest.mark.parametrize("target", [LITERT, PTE], ids=str)
def test_a_file_of_the_other_int8_scheme_is_told(target: Target, made: Callable[..., tuple[Artifact, Path]]) -> None:
    (claimed,) = {"int8_dynamic", "int8_weight_only"} - {target.scheme}
    student, file = made("albert", "embedding", target)
    found = judged(student, Target(target.backend, claimed), file)
    assert found.keys() == {"arithmetic"}
    assert f"{claimed} means" in found["arithmetic"]


@pytest.mark.parametrize("target", [LITERT, PTE, Target("coreml", "int8_weight_only")], ids=str)
def test_every_exchange_of_two_tensors_is_seen(target: Target, made: Callable[..., tuple[Artifact, Path]]) -> None:
    """What all other gates let pass: each tensor is in the file, whole, but two operations read each other's."""
    student, file = made("albert", "embedding", target)
    found = formats.get(target.backend).structure(file)
    expected = expected_of(student.path, "embedding")
    functions = len(found.uses)
    precision = judging.precision_of(target.scheme, target.backend)
    forms = judging._sort_out(found, expected, precision).forms
    named = {number: one[0].tensor for number, one in enumerate(forms) if one}
    shapes = {number: found.constants[number].values.squeeze().shape for number in named}
    every = itertools.combinations(named, 2)
    pairs = [(a, b) for a, b in every if named[a] != named[b] and shapes[a] == shapes[b]]
    assert len(pairs) > 30
    for a, b in pairs:
        constants = list(found.constants)
        constants[a], constants[b] = constants[b], constants[a]
        exchanged = replace(found, constants=tuple(constants))
        (wiring,) = [
            g for g in check(exchanged, expected, target.scheme, target.backend, functions) if g.name == "wiring"
        ]
        assert not wiring.passed, (named[a], named[b])


def test_damaged_core_ml_package_fails(made: Callable[..., tuple[Artifact, Path]], tmp_path: Path) -> None:
    target = Target("coreml", "int8_weight_only")
    student, clean_package = made("albert", "embedding", target)
    package = shutil.copytree(clean_package, tmp_path / "model.mlpackage")
    (weights,) = package.rglob("weight.bin")
    weights.chmod(0o644)
    data = bytearray(weights.read_bytes())
    # Half of all is inside a matrix.
    data[len(data) // 2] = (data[len(data) // 2] + 64) % 256
    weights.write_bytes(data)
    found = judged(student, target, package)
    assert found.keys() == {"weights"}
    assert re.search(r"\.weight: 1 of \d+ elements are not the checkpoint's", found["weights"])


def test_the_structure_of_another_checkpoint_is_refused(randomised: Callable[..., Path]) -> None:
    structure = model_structure(load_checkpoint(randomised("bert", "classification"), tasks.get("classification")))
    with pytest.raises(StudentError, match="no tensor with the content of"):
        Expected.read(randomised("albert", "embedding"), structure)


def test_half_precision_checkpoints_are_read_as_torch_reads_them(
    tiny_student: Callable[..., Path], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    for dtype in (torch.bfloat16, torch.float16):
        folder = shutil.copytree(tiny_student("bert", "embedding"), tmp_path / str(dtype))
        file = folder / "model.safetensors"
        save_torch({k: v.to(dtype) for k, v in load_torch(file).items()}, file, metadata={"format": "pt"})
        model = load_checkpoint(folder, tasks.get("embedding"))
        wanted = Expected.read(folder, model_structure(model))
        assert np.array_equal(wanted.tensors[WORDS], model.get_parameter(WORDS).detach().numpy())


def test_a_structure_follows_the_forward_pass(tiny_student: Callable[..., Path]) -> None:
    model = load_checkpoint(tiny_student("distilbert", "classification"), tasks.get("classification"))
    structure = model_structure(model)
    # The relu is made inside forward; no module of the model is one.
    assert structure["activations"] == ["gelu", "gelu", "relu"]
    assert structure["epsilons"] == [1e-12] * 5
    assert structure["positions"] == ["distilbert.embeddings.position_embeddings.weight"]
    assert structure["feeds"]["distilbert.transformer.layer.0.attention.q_lin"] == ["distilbert.embeddings.LayerNorm"]
    assert structure["feeds"]["classifier"] == []
    calls = [(name.removeprefix("distilbert."), needs) for name, needs in structure["calls"]]
    assert calls[:7] == [
        ("embeddings.word_embeddings", []),
        ("embeddings.position_embeddings", []),
        ("embeddings.LayerNorm", [0, 1]),
        ("transformer.layer.0.attention.q_lin", [2]),
        ("transformer.layer.0.attention.k_lin", [2]),
        ("transformer.layer.0.attention.v_lin", [2]),
        ("transformer.layer.0.attention.out_lin", [3, 4, 5]),
    ]
    # The residual is an edge like any other.
    assert calls[7] == ("transformer.layer.0.sa_layer_norm", [2, 6])
    assert [name for name, _ in calls[-2:]] == ["pre_classifier", "classifier"]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / executorch.FILE).write_bytes(b"\0" * 64)
    with pytest.raises(ArtifactError, match=r"not a \.pte"):
        executorch.structure(tmp_path / executorch.FILE)
    (tmp_path / litert.FILE).write_bytes(b"\0" * 64)
    with pytest.raises(ArtifactError, match=r"not a \.tflite"):
        litert.structure(tmp_path / litert.FILE)
