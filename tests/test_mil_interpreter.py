"""The Core ML interpreter on whole students: the same model as in PyTorch, and clear words where it cannot be."""

import dataclasses
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, environment, seed_of
from mil_programs import (
    in_worker,
    schema_orders,
    write_classifier,
    write_flexible,
    write_masked,
    write_small,
)
from test_mil_constants import block, edit

from pipeline import architectures, mil, tasks
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.cli import app as cli
from pipeline.errors import ArtifactError, InputError, ToolchainError
from pipeline.formats import ConvertRequest, coreml
from pipeline.mil import listing, trial
from pipeline.student.outputs import reference_outputs
from pipeline.text.encoding import Row

REQUEST = ConvertRequest(
    student=Path(),
    task="embedding",
    scheme="fp32",
    lengths=(16,),
    minimum_ios=18,
    base=None,
    metadata={},
    labels=None,
)
STUDENTS = [
    ("bert", "embedding", 18),
    ("bert", "classification", 15),
    ("distilbert", "embedding", 16),
    ("distilbert", "classification", 17),
    ("albert", "embedding", 17),
    ("albert", "classification", 18),
]


Convert = Callable[..., Path]


@pytest.fixture(scope="module")
def convert(tiny_student: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """Converted tiny students; each is made once."""
    place = tmp_path_factory.mktemp("packages")

    def make(architecture: str, task: str, **options: Any) -> Path:
        folder = place / "-".join([architecture, task, *map(str, options.values())]).replace(" ", "")
        if not folder.exists():
            folder.mkdir()
            given = {"student": tiny_student(architecture, task), "task": task, **options}
            in_worker(coreml.convert, dataclasses.replace(REQUEST, **given), folder)
        return folder / coreml.FILE

    return make


def rows(name: str, *, longest: int = 16) -> list[Row]:
    """Rows of random ids, short, full, of two segments, and of padding alone."""
    generator = np.random.default_rng(seed_of(name))
    lengths = (longest, 3, longest - 5)
    ids = [tuple(int(value) for value in generator.integers(104, 1000, length)) for length in lengths]
    types = [(0,) * len(row) for row in ids]
    types[2] = tuple(int(position > 4) for position in range(lengths[2]))
    return [*(Row(*pair) for pair in zip(ids, types, strict=True)), Row((), ())]


def reference(student: Path, task: str, due: list[Row]) -> np.ndarray:
    return reference_outputs(load_checkpoint(student, tasks.get(task)), tasks.get(task), due).values


def run(interpreter: mil.Interpreter, row: Row, length: int = 16) -> np.ndarray:
    names = tuple(port.name for port in interpreter.inputs)
    (result,) = interpreter.run(row.padded(names, length, pad_token_id=0)).values()
    return np.asarray(result[0])


# A worker of the other tests has loaded both, in either order, and both work in it.
@pytest.mark.full
def test_schema_is_coremltools_own_whichever_is_loaded_first() -> None:
    assert schema_orders() == {"before": True, "after": True, "alone": True}


# --- the same model ----------------------------------------------------------------------------------------------


@pytest.mark.numeric
@pytest.mark.parametrize(("architecture", "task", "ios"), STUDENTS)
def test_single_precision_is_the_checkpoint(
    architecture: str, task: str, ios: int, convert: Convert, tiny_student: Callable[..., Path]
) -> None:
    interpreter = mil.Interpreter(convert(architecture, task, minimum_ios=ios), precision="fp32")
    due = rows(f"{architecture}-{task}")[: 3 if task == "classification" else 4]
    expected = reference(tiny_student(architecture, task), task, due[:3])
    found = np.stack([run(interpreter, row) for row in due])
    assert np.abs(found[:3] - expected).max() <= 1e-5
    # Random heads say little, but far more than the tolerance.
    assert np.abs(expected).max() > 0.01
    if task == "embedding":
        assert np.abs(found[3]).max() == 0.0


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("architecture", "task", "ios"), [("distilbert", "classification", 17), ("albert", "embedding", 16)]
)
def test_half_precision_is_near_and_not_equal(
    architecture: str, task: str, ios: int, convert: Convert, tiny_student: Callable[..., Path]
) -> None:
    package = mil.read(convert(architecture, task, scheme="fp16", minimum_ios=ios))
    half, single = (mil.Interpreter(package, precision=precision) for precision in ("fp16", "fp32"))
    due = rows(architecture)[:3]
    expected = reference(tiny_student(architecture, task), task, due)
    errors = [np.abs(np.stack([run(one, row) for row in due]) - expected).max() for one in (half, single)]
    assert 1e-5 < errors[0] < 1e-2
    # What is left without rounding is the rounding of the weights.
    assert errors[1] < errors[0]


def test_half_precision_values_are_halves(convert: Convert) -> None:
    interpreter = mil.Interpreter(convert("albert", "embedding", scheme="fp16", minimum_ios=16), precision="fp16")
    declared = {
        output.name: output.type.dtype.name
        for op in interpreter._program.operations
        for output in op.outputs
        if output.type
    }
    seen = []

    def watch(kind: str, name: str, value: np.ndarray) -> None:
        if declared[name] == "fp16":
            seen.append(kind)
            assert np.array_equal(value, value.astype(np.float16).astype(np.float32)), name

    row = rows("halves")[0]
    names = tuple(port.name for port in interpreter.inputs)
    interpreter.run(row.padded(names, 16, pad_token_id=0), watch=watch)
    assert {"linear", "gelu", "softmax", "layer_norm", "reshape"} <= set(seen)


@pytest.mark.numeric
def test_functions_share_their_constants_in_memory(convert: Convert, tiny_student: Callable[..., Path]) -> None:
    package = mil.read(convert("bert", "embedding", scheme="int8_weight_only", lengths=(8, 16)))
    assert package.functions == ("seq_8", "seq_16")

    def held() -> int:
        return sum(value.nbytes for value in package.decoded.values() if isinstance(value, np.ndarray))

    short = mil.Interpreter(package, "seq_8")
    alone = held()
    longer = mil.Interpreter(package)
    assert longer.function == "seq_16"
    # The positions of the longer function, and a few sizes.
    assert alone < held() < alone + 16 * 64 * 4 + 2000
    due = rows("short", longest=8)[:3]
    found = np.stack([run(short, row, 8) for row in due])
    assert np.abs(found - np.stack([run(longer, row) for row in due])).max() < 1e-3
    assert np.abs(found - reference(tiny_student("bert", "embedding"), "embedding", due)).max() < 2e-2


def test_a_value_is_freed_after_its_last_use(convert: Convert) -> None:
    interpreter = mil.Interpreter(convert("bert", "embedding", minimum_ios=18), precision="fp32")
    seen: list[weakref.ref[np.ndarray]] = []
    alive = []

    def watch(kind: str, name: str, value: np.ndarray) -> None:
        seen.append(weakref.ref(value))
        alive.append(sum(one() is not None for one in seen))

    run_names = tuple(port.name for port in interpreter.inputs)
    interpreter.run(rows("freed")[0].padded(run_names, 16, pad_token_id=0), watch=watch)
    assert len(seen) > 50
    assert max(alive) < 12


def test_enumerated_lengths(tiny_student: Callable[..., Path], tmp_path: Path) -> None:
    in_worker(write_flexible, tiny_student("bert", "embedding"), tmp_path / "m.mlpackage")
    interpreter = mil.Interpreter(tmp_path / "m.mlpackage")
    assert interpreter.inputs[0].shape == (1, None)
    assert interpreter.inputs[0].shapes == ((1, 8), (1, 16), (1, 24))
    row = rows("flexible", longest=8)[0]
    (expected,) = reference(tiny_student("bert", "embedding"), "embedding", [row])
    for length in (8, 16, 24):
        assert np.abs(run(interpreter, row, length) - expected).max() <= 1e-5
    with pytest.raises(InputError, match=r"input_ids of shape \(1, 12\).*\(1, 8\) or \(1, 16\) or \(1, 24\)"):
        run(interpreter, row, 12)


def test_classifier(tmp_path: Path) -> None:
    in_worker(write_classifier, tmp_path / "m.mlpackage")
    interpreter = mil.Interpreter(tmp_path / "m.mlpackage")
    outputs = interpreter.run({"logits": np.log(np.array([[0.2, 0.3, 0.5]], np.float32))})
    (label,) = (value for value in outputs.values() if not isinstance(value, dict))
    (shares,) = (value for value in outputs.values() if isinstance(value, dict))
    assert label == "yes"
    assert shares == pytest.approx({"no": 0.2, "so so": 0.3, "yes": 0.5}, abs=1e-3)
    assert {port.dtype for port in interpreter.outputs} == {"string", "dictionary"}


# --- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("masked") / "m.mlpackage"
    in_worker(write_masked, place)
    return place


MASKED: dict[str, Any] = {"scores": np.ones((1, 4), np.float32), "mask": np.array([[1, 1, 0, 0]], np.float32)}


def test_a_mask_beyond_half_precision_shows_as_nan_and_is_named(masked: Path) -> None:
    found = trial.run(mil.Interpreter(masked), MASKED, precision="fp16")
    assert found.rows[0].non_finite == 4
    assert found.rows[0].mean is None
    assert found.not_finite is not None
    assert (found.not_finite.kind, found.not_finite.infinite, found.not_finite.nan) == ("mul", 2, 2)
    assert "hidden" in found.not_finite.name


def test_overflow_of_half_precision_is_infinite(masked: Path) -> None:
    large = {"scores": np.full((1, 4), 4e4, np.float32), "mask": np.ones((1, 4), np.float32)}
    seen: dict[tuple[str, str], Any] = {}
    mil.Interpreter(masked).run(large, watch=lambda kind, name, value: seen.setdefault((kind, name), value))
    assert any(kind == "mul" and np.isposinf(value).all() for (kind, _), value in seen.items())


@pytest.fixture
def package(convert: Convert, tmp_path: Path) -> Path:
    return Path(shutil.copytree(convert("bert", "embedding", minimum_ios=18), tmp_path / "m.mlpackage"))


def test_an_unknown_op_is_refused_before_anything_runs(package: Path) -> None:
    def rename(model: Any) -> None:
        for op in block(model).operations:
            op.type = {"gelu": "warp", "layer_norm": "fold"}.get(op.type, op.type)

    edit(package, rename)
    with pytest.raises(mil.UnknownOp, match=r"function main .* fold, warp"):
        mil.Interpreter(package)


def test_a_loop_is_refused(package: Path) -> None:
    def nest(model: Any) -> None:
        next(op for op in block(model).operations if op.type == "gelu").blocks.add()

    edit(package, nest)
    with pytest.raises(mil.UnknownOp, match="gelu"):
        mil.Interpreter(package)


def test_another_shape_than_declared_is_an_error(package: Path) -> None:
    def widen(model: Any) -> None:
        op = next(op for op in block(model).operations if op.type == "gelu")
        op.outputs[0].type.tensorType.dimensions[2].constant.size = 7

    edit(package, widen)
    with pytest.raises(ToolchainError, match=r"is declared \(1, 16, 7\), and \(1, 16, 128\) was computed"):
        run(mil.Interpreter(package), rows("wide")[0])


def test_a_value_that_nothing_computes_is_an_error(package: Path) -> None:
    def lose(model: Any) -> None:
        operations = block(model).operations
        del operations[next(index for index, op in enumerate(operations) if op.type == "gelu")]

    edit(package, lose)
    with pytest.raises(ArtifactError, match="which nothing computes"):
        mil.Interpreter(package)


GOOD: dict[str, Any] = {name: np.zeros((1, 16), np.int32) for name in architectures.get("bert").inputs}
BAD_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"input_ids": GOOD["input_ids"]}, "was not given attention_mask, token_type_ids; it takes input_ids"),
    "unknown": (GOOD | {"pixels": np.zeros(3)}, "has no input pixels; it takes input_ids int32"),
    "shape": (GOOD | {"input_ids": np.zeros((1, 4), np.int32)}, r"input_ids of shape \(1, 4\); .* \(1, 16\)"),
    "rank": (GOOD | {"input_ids": np.zeros(16, np.int32)}, r"input_ids of shape \(16\)"),
    "floats": (GOOD | {"input_ids": np.zeros((1, 16), np.float32)}, "input_ids as float32; it takes input_ids int32"),
    "wide": (GOOD | {"input_ids": np.full((1, 16), 2**40)}, "beyond int32"),
    "id": (GOOD | {"input_ids": np.full((1, 16), 99_999)}, "gather .* out of bounds"),
}


@pytest.mark.parametrize("what", BAD_INPUTS)
def test_bad_inputs(what: str, convert: Convert) -> None:
    inputs, message = BAD_INPUTS[what]
    with pytest.raises(InputError, match=message):
        mil.Interpreter(convert("bert", "embedding", minimum_ios=18)).run(inputs)


def test_wider_integers_are_taken(convert: Convert) -> None:
    interpreter = mil.Interpreter(convert("bert", "embedding", minimum_ios=18))
    wide = {name: array.astype(np.int64) for name, array in GOOD.items()}
    (one,), (other,) = interpreter.run(GOOD).values(), interpreter.run(wide).values()
    assert np.array_equal(one, other)


def test_no_such_function(convert: Convert) -> None:
    with pytest.raises(InputError, match="no function seq_9; it has main"):
        mil.Interpreter(convert("bert", "embedding", minimum_ios=18), "seq_9")


def test_reading_imports_no_toolchain(convert: Convert) -> None:
    package = convert("bert", "embedding", minimum_ios=18)
    code = f"""
import sys, pathlib
from pipeline import mil
mil.Interpreter(pathlib.Path({str(package)!r}))
print(sorted({{"coremltools", "torch", "scipy"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, env=environment()
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- listing -----------------------------------------------------------------------------------------------------


def test_listing_counts_shared_weights_once(convert: Convert) -> None:
    package = convert("bert", "embedding", scheme="int8_weight_only", lengths=(8, 16))
    found = listing.take(mil.read(package))
    assert [function.name for function in found.functions] == ["seq_8", "seq_16"]
    (linear,) = (row for row in found.functions[0].operations if row.kind == "linear")
    assert (linear.dtypes, linear.count) == ("fp16", 12)
    (table,) = (row for row in found.weights if row.shape == (1000, 64))
    assert (table.stored, table.dtype, table.readers, table.functions) == ("int8", "fp16", 2, 2)
    assert table.bytes == 1000 * 64 + 1000 * 2
    on_disk = sum(file.stat().st_size for file in package.rglob("weight.bin"))
    assert 0.95 * on_disk < found.weight_bytes <= on_disk


def test_listing_finds_what_is_stored_twice(package: Path) -> None:
    """One blob is copied to the end of the file, and one of its two readers sent there."""
    (weights,) = package.rglob("weight.bin")
    before = listing.take(mil.read(package))
    content = weights.read_bytes()

    def double(model: Any) -> None:
        ops = [op for op in block(model).operations if op.type == "const"]
        tensors = [op.attributes["val"] for op in ops if op.attributes["val"].WhichOneof("value") == "blobFileValue"]
        first = next(one for one in tensors if [d.constant.size for d in one.type.tensorType.dimensions] == [64, 64])
        other = [one for one in tensors if one.type == first.type][1]
        record = bytearray(content[first.blobFileValue.offset :][:64])
        start = int.from_bytes(record[16:24], "little")
        data = content[start : start + 64 * 64 * 4]
        record[16:24] = (len(content) + 64).to_bytes(8, "little")
        weights.write_bytes(content + bytes(record) + data)
        other.blobFileValue.offset = len(content)

    edit(package, double)
    after = listing.take(mil.read(package))
    assert after.duplicate_bytes == before.duplicate_bytes + 64 * 64 * 4
    assert any(row.copies == 2 and len(row.names) == 2 and row.bytes == 64 * 64 * 4 for row in after.duplicates)


# --- sessions of the backend -------------------------------------------------------------------------------------


def test_a_compute_unit_needs_macos(convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    unread: Any = None
    with pytest.raises(ToolchainError, match="cannot be run on CPU_ONLY here: Core ML runs on macOS only"):
        coreml.load_compute_unit(convert("bert", "embedding", minimum_ios=18), unread, "CPU_ONLY")


@pytest.mark.numeric
def test_structure_is_what_the_checkpoint_holds(convert: Convert, tiny_student: Callable[..., Path]) -> None:
    student = tiny_student("bert", "embedding")
    state = {
        name: value.numpy() for name, value in load_checkpoint(student, tasks.get("embedding")).state_dict().items()
    }
    single = coreml.structure(convert("bert", "embedding", minimum_ios=18))
    quantised = coreml.structure(convert("bert", "embedding", scheme="int8_weight_only", lengths=(8, 16)))
    (table,) = (value for value in state.values() if value.shape == (1000, 64))
    for found, stored, bound in ((single, "float32", 0.0), (quantised, "int8", 1e-3)):
        (constant,) = (one for one in found.constants if one.values.shape == (1000, 64))
        assert constant.stored == stored
        assert constant.values.dtype == np.float32
        assert np.abs(constant.values - table).max() <= bound
    assert set(single.activations) == {"gelu"}
    assert single.epsilons == pytest.approx([1e-12] * 5)
    assert quantised.epsilons == pytest.approx([5.96e-8] * 10, rel=1e-3)
    assert len(quantised.activations) == 4


# --- commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`pocketbert` in this process: exit code, output and errors."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["pocketbert", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(str(ended.value.code)), captured.out, captured.err

    return call


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.savez(tmp_path / "x.npz", **GOOD)
    return tmp_path / "x.npz"


def test_mil_run(pocketbert: Any, convert: Convert, inputs: Path, tmp_path: Path) -> None:
    folder = convert("bert", "embedding", minimum_ios=18).parent
    outcome = pocketbert("mil", "run", folder, "--inputs", inputs, "--outputs", tmp_path / "y.npz", "--json")
    (row,) = outcome.document["outputs"]
    assert (outcome.rc, outcome.document["exit"], outcome.document["not_finite"]) == (0, 0, None)
    assert (row["name"], row["shape"], row["non_finite"]) == ("sentence_embedding", [1, 64], 0)
    with np.load(tmp_path / "y.npz") as saved:
        assert saved["sentence_embedding"].max() == pytest.approx(row["max"])


def test_mil_run_names_the_first_op_that_is_not_finite(command: Any, masked: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **MASKED)
    rc, out, err = command("mil", "run", masked, "--inputs", tmp_path / "m.npz")
    assert (rc, err) == (0, "")
    assert "first not finite: mul hidden" in out
    assert "shares" in out
    rc, out, _ = command("mil", "run", masked, "--inputs", tmp_path / "m.npz", "--precision", "fp32")
    assert rc == 0


def test_mil_run_flushes_subnormal_numbers(command: Any, tmp_path: Path) -> None:
    """Numbers of half precision below 2^-14 that operations read or give, and constants, become zero."""
    in_worker(write_small, tmp_path / "s.mlpackage")
    np.savez(tmp_path / "s.npz", x=np.array([[2.0**-14, 2.0**-15, -(2.0**-15), 1.0]], np.float32))
    given = ["mil", "run", tmp_path / "s.mlpackage", "--inputs", tmp_path / "s.npz", "--outputs", tmp_path / "o.npz"]
    found = []
    for flags in ([], ["--flush-subnormals"]):
        rc, _, err = command(*given, *flags)
        assert (rc, err) == (0, "")
        with np.load(tmp_path / "o.npz") as saved:
            found.append(saved["result"][0])
    assert found[0].tolist() == [2.0**-14 + 2.0**-20, 2.0**-15 + 2.0**-20, -(2.0**-15) + 2.0**-20, 1.0]
    assert found[1].tolist() == [2.0**-14, 0.0, 0.0, 1.0]


def test_mil_ops(command: Any, convert: Convert) -> None:
    package = convert("bert", "embedding", scheme="int8_weight_only", lengths=(8, 16))
    rc, out, err = command("mil", "ops", package)
    assert (rc, err) == (0, "")
    assert "seq_8 (CoreML8)" in out
    assert "(1000, 64)" in out
    rc, out, _ = command("mil", "ops", package, "--json")
    assert '"duplicate_bytes": ' in out


def bad_commands(package: Path, inputs: Path, folder: Path) -> dict[str, tuple[list[str | Path], str]]:
    (folder / "empty").mkdir()
    (folder / "text.npz").write_text("no archive")
    np.save(folder / "one.npy", np.zeros(3))
    return {
        "no package": (["mil", "ops", folder / "absent"], "does not exist"),
        "a folder without": (["mil", "ops", folder / "empty"], "no folder that holds one"),
        "no arrays": (["mil", "run", package, "--inputs", folder / "absent.npz"], "absent.npz cannot be read"),
        "text": (["mil", "run", package, "--inputs", folder / "text.npz"], "text.npz is no .npz"),
        "one array": (["mil", "run", package, "--inputs", folder / "one.npy"], "one.npy is no .npz"),
        "a function": (["mil", "run", package, "--inputs", inputs, "--function", "f"], "has no function f"),
        "a precision": (["mil", "run", package, "--inputs", inputs, "--precision", "int8"], "fp16 and fp32"),
        "flushed single precision": (
            ["mil", "run", package, "--inputs", inputs, "--precision", "fp32", "--flush-subnormals"],
            "flushed in precision fp16, and fp32 was asked for",
        ),
        "an output": (
            ["mil", "run", package, "--inputs", inputs, "--outputs", folder / "no" / "y.npz"],
            "cannot be written",
        ),
    }


def test_bad_commands_end_in_one_line(command: Any, convert: Convert, inputs: Path, tmp_path: Path) -> None:
    for arguments, message in bad_commands(convert("bert", "embedding", minimum_ios=18), inputs, tmp_path).values():
        rc, out, err = command(*arguments)
        assert (rc, out) == (2, ""), arguments
        assert err.startswith("error: ")
        assert message in err
        assert err.count("\n") == 1
