"""Constants of Core ML packages: every compression decoded as coremltools decodes it, and damage that is noticed."""

import importlib.util
import json
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mil_programs import COMPRESSIONS, in_worker, weight_arrays, write_compressed, write_weights

from pipeline import mil
from pipeline.errors import ArtifactError, InputError, ToolchainError
from pipeline.mil import package as packages
from pipeline.mil.constants import constants, decode, weights
from pipeline.mil.constexpr import lut_to_sparse, sparse_to_dense
from pipeline.mil.package import Package
from pipeline.mil.values import unpack_bits

pytestmark = pytest.mark.toolchain

STORED = {
    "int8 per channel": "int8",
    "uint8 per channel": "uint8",
    "int8 per tensor": "int8",
    "palette of 1 bit": "lut1",
    "palette of 2 bits": "lut2",
    "palette of 4 bits": "lut4",
    "palette of 6 bits": "lut6",
    "palette of 8 bits": "lut8",
    "sparse": "sparse float16",
    "int8 per block": "int8",
    "int4 per block": "int4",
    "int4 per channel": "int4",
    "uint4 per block": "uint4",
    "palettes of groups, 3 bits": "lut3",
    "palette of vectors": "lut4",
    "palette with scales": "lut4",
    "sparse, iOS 18": "sparse float16",
    "sparse int8": "sparse int8",
    "sparse int4": "sparse int4",
    "sparse palette": "sparse lut4",
    "palette of int8": "lut4",
}
COARSE = ("palette of 1 bit", "palette of 2 bits", "palette of vectors")
IN_SINGLE_PRECISION = ("int8 per channel", "palette of 4 bits", "int4 per block", "sparse palette")


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Package, Any]]:
    """Packages and what coremltools decodes their weights to, by precision and compression."""
    place = tmp_path_factory.mktemp("compressed")
    decoded = {}
    for precision, names in (("fp16", tuple(COMPRESSIONS)), ("fp32", IN_SINGLE_PRECISION)):
        decoded[precision] = in_worker(write_compressed, place / precision, precision, names)
    return lambda precision, name: (mil.read(place / precision / f"{name}.mlpackage"), decoded[precision][name])


CASES = [("fp16", name) for name in COMPRESSIONS] + [("fp32", name) for name in IN_SINGLE_PRECISION]


@pytest.mark.parametrize(("precision", "name"), CASES)
def test_decoded_as_coremltools_does(precision: str, name: str, compressed: Any) -> None:
    """Bit by bit; chains of expressions coremltools cannot evaluate, those are close to the weights they stand for."""
    package, theirs = compressed(precision, name)
    sources = constants(package.program())
    assert any(value is not None for value in theirs.values())
    for variable, value in theirs.items():
        if value is not None:
            ours = np.asarray(decode(package, sources[variable], rounded=True))
            assert ours.shape == value.shape
            assert np.array_equal(ours, value), variable
    heavy = [weight for weight in weights(package) if weight.type and weight.type.size > 100]
    for weight, original in zip(heavy, weight_arrays(), strict=True):
        decoded = np.asarray(decode(package, weight.source, rounded=True), np.float64)
        correlation = np.corrcoef(decoded.ravel(), original.ravel())[0, 1]
        assert correlation > (0.7 if name in COARSE else 0.85)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_kind_of_storage_is_named_and_the_program_runs(name: str, compressed: Any) -> None:
    package, _ = compressed("fp16", name)
    assert {weight.stored for weight in weights(package) if weight.type and weight.type.size > 100} == {STORED[name]}
    (result,) = mil.Interpreter(package).run({"tokens": np.array([[0, 47, 3, 3]])}).values()
    assert result.shape == (1, 16, 1, 4)
    assert np.isfinite(result).all()


def test_without_rounding_the_product_stays_in_single_precision(compressed: Any) -> None:
    package, theirs = compressed("fp16", "int8 per channel")
    sources = constants(package.program())
    for variable, value in theirs.items():
        exact = np.asarray(decode(package, sources[variable], rounded=False))
        assert not np.array_equal(exact, value)
        assert np.array_equal(exact.astype(np.float16), value)


def test_palette_of_vectors_on_what_is_not_zero() -> None:
    """The example of MIL's documentation; coremltools itself cannot make such a weight."""
    mask = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]], np.uint8)
    indices = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], np.uint8)
    lut = np.array([[[[2.0, 2.5], [3.0, 3.5]]]], np.float32)
    wider, values = lut_to_sparse(mask, indices, lut, np.array(0, np.int32))
    assert np.array_equal(wider, np.repeat(mask, 2, 0))
    dense = sparse_to_dense(values, wider)
    expected: list[list[float]] = [
        [2, 3, 0, 0, 0, 0],
        [2.5, 3.5, 0, 0, 0, 0],
        [3, 2, 0, 0, 0, 3],
        [3.5, 2.5, 0, 0, 0, 3.5],
    ]
    expected += [[0, 3, 2, 0, 2, 0], [0, 3.5, 2.5, 0, 2.5, 0], [0, 0, 0, 3, 0, 0], [0, 0, 0, 3.5, 0, 0]]
    assert np.array_equal(dense, expected)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("signed", [False, True])
def test_unpacked_bits(bits: int, signed: bool) -> None:
    """Against arithmetic on one whole number."""
    packed = np.random.default_rng(bits).integers(0, 256, 24, dtype=np.uint8).tobytes()
    number = int.from_bytes(packed, "little")
    expected = [number >> (bits * i) & (2**bits - 1) for i in range(29)]
    if signed:
        expected = [value - 2**bits if value >= 2 ** (bits - 1) else value for value in expected]
    assert unpack_bits(packed, bits, 29, signed=signed).tolist() == expected


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sound") / "sound.mlpackage"
    in_worker(write_weights, place, "fp16", 16)
    return place


def weight_file(package: Path) -> Path:
    (found,) = package.rglob("weight.bin")
    return found


def model_file(package: Path) -> Path:
    (found,) = package.rglob("model.mlmodel")
    return found


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as handle:
        handle.seek(offset)
        handle.write(data)


def edit(package: Path, change: Callable[[Any], None]) -> None:
    """Change a package's protobuf."""
    model = packages.parse(model_file(package))
    change(model)
    model_file(package).write_bytes(model.SerializeToString())


def block(model: Any) -> Any:
    function = model.mlProgram.functions["main"]
    return function.block_specializations[function.opset]


def first_blob(model: Any) -> Any:
    ops = (op for op in block(model).operations if op.attributes["val"].WhichOneof("value") == "blobFileValue")
    return next(ops).attributes["val"]


def grow_first_blob(model: Any) -> None:
    first_blob(model).type.tensorType.dimensions[0].constant.size += 1


def retype_first_blob(model: Any) -> None:
    first_blob(model).type.tensorType.dataType = 11


def move_first_blob(model: Any) -> None:
    first_blob(model).blobFileValue.offset = 10**9


def misplace_first_blob(model: Any) -> None:
    first_blob(model).blobFileValue.offset += 8


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weight file": (lambda p: weight_file(p).unlink(), "weight.bin cannot be read"),
    "an empty weight file": (lambda p: weight_file(p).write_bytes(b""), "weight.bin cannot be read"),
    "a short weight file": (lambda p: weight_file(p).write_bytes(b"\1" * 20), "is damaged"),
    "half a weight file": (
        lambda p: weight_file(p).write_bytes(weight_file(p).read_bytes()[:1000]),
        r"of 1000 bytes",
    ),
    "another version": (lambda p: overwrite(weight_file(p), 4, struct.pack("<I", 1)), "version 1, not 2"),
    "no sentinel": (lambda p: overwrite(weight_file(p), 64, b"\0\0\0\0"), "no blob at offset 64"),
    "an unknown type": (lambda p: overwrite(weight_file(p), 68, struct.pack("<I", 99)), "element type 99"),
    "a blob beyond the end": (lambda p: overwrite(weight_file(p), 72, struct.pack("<Q", 2**40)), "ends at"),
    "an offset beyond the end": (lambda p: edit(p, move_first_blob), "offset 1000000000"),
    "an offset between blobs": (lambda p: edit(p, misplace_first_blob), "no blob at offset"),
    "another shape": (lambda p: edit(p, grow_first_blob), "its shape needs"),
    "another type": (lambda p: edit(p, retype_first_blob), "is fp16, and the program says fp32"),
    "half a model": (
        lambda p: model_file(p).write_bytes(model_file(p).read_bytes()[:2000]),
        "model.mlmodel is no Core ML model, or is damaged",
    ),
    "no model": (lambda p: model_file(p).unlink(), "model.mlmodel cannot be read"),
    "a manifest of nothing": (lambda p: (p / "Manifest.json").write_text("[]"), "is no package manifest"),
    "a manifest cut off": (lambda p: (p / "Manifest.json").write_text('{"item'), "is no package manifest"),
    "a manifest that leads out": (
        lambda p: (p / "Manifest.json").write_text(json.dumps({"itemInfoEntries": {"a": {"path": "../../etc"}}})),
        "outside of the package",
    ),
    "no function": (lambda p: edit(p, lambda model: model.mlProgram.functions.clear()), "has no function"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_an_artifact_error_in_one_sentence(what: str, sound: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(sound, tmp_path / "m.mlpackage"))
    spoil, message = DAMAGE[what]
    spoil(package)
    with pytest.raises(ArtifactError, match=message):
        mil.Interpreter(package)


def test_other_things_than_packages_are_input_errors(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "file.mlpackage").write_bytes(b"no folder")
    (tmp_path / "folder.mlpackage").mkdir()
    for name in ("absent", "file", "folder"):
        with pytest.raises(InputError, match=f"{name}.mlpackage is no .mlpackage"):
            mil.read(tmp_path / f"{name}.mlpackage")
    package = Path(shutil.copytree(sound, tmp_path / "network.mlpackage"))
    edit(package, lambda model: model.neuralNetwork.SetInParent())
    with pytest.raises(InputError, match="holds neuralNetwork, no ML Program"):
        mil.read(package)


def test_without_coremltools_the_schema_is_missed_by_name(monkeypatch: pytest.MonkeyPatch, sound: Path) -> None:
    packages.model_class.cache_clear()
    monkeypatch.delitem(sys.modules, "coremltools.proto.Model_pb2", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="coremltools is not installed"):
        mil.read(sound)
    monkeypatch.undo()
    packages.model_class.cache_clear()
    assert mil.read(sound).functions == ("main",)
