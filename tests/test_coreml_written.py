"""Core ML packages that hold what no conversion writes are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import formats, mil
from pipeline.errors import EXIT_USAGE, ArtifactError
from pipeline.formats import coreml

MODEL = "Data/com.apple.CoreML/model.mlmodel"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture(scope="module")
def clean(converted: Callable[..., Path]) -> Path:
    """A clean package, as `make faults` has it."""
    return converted("coreml-int8_weight_only") / formats.get("coreml").FILE


@pytest.fixture
def package(clean: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    copy = Path(shutil.copytree(clean, tmp_path / "model.mlpackage"))
    for path in copy.rglob("*"):
        path.chmod(0o755)
    return copy


def edit(package: Path, change: Callable[[Any], object]) -> None:
    """Change the protobuf of a package."""
    spec = mil.read(package).spec
    change(spec)
    (package / MODEL).write_bytes(spec.SerializeToString())


def refused(package: Path, message: str) -> None:
    """Check that everything that reads a package refuses it alike."""
    for read in (coreml.inspect, coreml.claims, coreml.structure):
        with pytest.raises(ArtifactError, match=message) as raised:
            read(package)
        assert "\n" not in str(raised.value)
        assert raised.value.exit_code == EXIT_USAGE


# --- the folder -------------------------------------------------------------------------------------------------------


def manifest(package: Path, change: Callable[[Any], object]) -> None:
    path = package / "Manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=4, sort_keys=True) + "\n")


def _another_root(content: bytes | None) -> Callable[[Path], None]:
    def change(package: Path) -> None:
        other = (package / MODEL).with_name("old.mlmodel")
        other.write_bytes((package / MODEL).read_bytes() if content is None else content)
        item = {"author": "com.apple.CoreML", "description": "", "name": other.name}
        manifest(
            package,
            lambda rows: (
                rows["itemInfoEntries"].update({"9": {**item, "path": "com.apple.CoreML/old.mlmodel"}}),
                rows.update(rootModelIdentifier="9"),
            ),
        )

    return change


def _weights_listed_elsewhere(package: Path) -> None:
    place = "com.apple.CoreML/right/weights"
    shutil.copytree((package / WEIGHTS).parent, package / "Data" / place)
    manifest(package, lambda rows: [row for row in rows["itemInfoEntries"].values()][1].update(path=place))


def _blobs(spec: Any) -> list[Any]:
    operations = [row for function in spec.mlProgram.functions.values() for row in _block(function).operations]
    values = [value for row in operations for value in row.attributes.values()]
    return [value.blobFileValue for value in values if value.WhichOneof("value") == "blobFileValue"]


def _block(function: Any) -> Any:
    return function.block_specializations[function.opset]


def _renamed(blobs: list[Any], name: str) -> None:
    for one in blobs:
        one.fileName = name


def _other_place(name: str) -> Callable[[Path], None]:
    """Return what reads a part of the weights from another place, where the same file lies."""

    def change(package: Path) -> None:
        place = (package / MODEL).parent / name
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(package / WEIGHTS, place)
        edit(package, lambda spec: _renamed(_blobs(spec)[:3], f"@model_path/{name}"))

    return change


def _same_name_another_path(package: Path) -> None:
    edit(package, lambda spec: _renamed(_blobs(spec), "weights/weight.bin"))


def _longer(package: Path) -> None:
    with (package / WEIGHTS).open("ab") as file:
        file.write(np.random.default_rng(0).bytes(4096))


def _unread(package: Path) -> None:
    """Leave a constant in the program that nothing reads."""

    def change(spec: Any) -> None:
        for function in spec.mlProgram.functions.values():
            more = _block(function).operations.add()
            more.CopyFrom(next(row for row in _block(function).operations if row.type == "const"))
            more.outputs[0].name = "spare"

    edit(package, change)


def _blob_left_out(package: Path) -> None:
    """Let the vector of a norm be read from where another one lies: its own is read by nobody then."""

    def change(spec: Any) -> None:
        blobs = mil.read(package).blob("weights/weight.bin")
        offsets = sorted({one.offset for one in _blobs(spec)})
        sizes = {offset: blobs.record(offset) for offset in offsets}
        kept, lost = next(
            (one, other)
            for one in offsets
            for other in offsets
            if one != other and (sizes[one].dtype, sizes[one].bytes) == (sizes[other].dtype, sizes[other].bytes)
        )
        for one in _blobs(spec):
            one.offset = kept if one.offset == lost else one.offset

    edit(package, change)


def _padding(package: Path) -> None:
    content = bytearray((package / WEIGHTS).read_bytes())
    content[40] = 1
    (package / WEIGHTS).write_bytes(content)


def _unknown_fields(package: Path) -> None:
    with (package / MODEL).open("ab") as file:
        # Field 999, of four bytes.
        file.write(bytes([0xBA, 0x3E, 4]) + b"more")


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another root": (_another_root(None), "makes Data/com.apple.CoreML/old.mlmodel the model"),
    "another root of garbage": (_another_root(b"another model"), "old.mlmodel is no Core ML model"),
    "weights listed elsewhere": (_weights_listed_elsewhere, "lists .*right/weights; conversions list"),
    "an item more": (
        lambda p: manifest(p, lambda rows: rows["itemInfoEntries"].update({"9": {"path": "com.apple.CoreML/x"}})),
        "its manifest lists .*CoreML/x",
    ),
    "another identifier": (
        lambda p: (p / "Manifest.json").write_text((p / "Manifest.json").read_text().replace("000001", "000003")),
        "its manifest is not the one",
    ),
    "a file more": (lambda p: (p / WEIGHTS).with_name("old.bin").write_bytes(b"old"), "weights/old.bin, which no"),
    "names of other operations": (
        lambda p: (p / "executorch_debug_handle_mapping.json").write_text("{}"),
        "does not list the operations",
    ),
    "weights of another folder": (_other_place("stale/weight.bin"), "stale, which no conversion|from '@model_path/s"),
    "weights of another name": (_other_place("weights/old.bin"), "old.bin, which no conversion|from '@model_path/w"),
    "weights without their folder": (_same_name_another_path, "reads weights from 'weights/weight.bin'"),
    "a tail that nothing reads": (_longer, "nothing reads bytes .* of Data"),
    "a blob that nothing reads": (_blob_left_out, "nothing reads bytes .* of Data"),
    "a constant that nothing reads": (_unread, "has spare, which nothing reads"),
    "something in the header": (_padding, "where its format has nothing"),
    "fields that the schema lacks": (_unknown_fields, "7 bytes of its model are of fields"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_package_is_the_files_that_conversions_write(case: str, package: Path) -> None:
    change, message = FOLDERS[case]
    change(package)
    refused(package, message)


# --- the protobuf -----------------------------------------------------------------------------------------------------


def _functions(spec: Any) -> list[Any]:
    return list(spec.mlProgram.functions.values())


def _of_opset(opset: str) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        for function in _functions(spec):
            function.block_specializations[opset].CopyFrom(_block(function))
            del function.block_specializations[function.opset]
            function.opset = opset

    return change


def _older(spec: Any) -> None:
    """Rewrite a program to iOS 16 throughout, which knows no second function."""
    _of_opset("CoreML6")(spec)
    spec.specificationVersion = 7


def _extra_block(spec: Any) -> None:
    for function in _functions(spec):
        function.block_specializations["CoreML9"].CopyFrom(_block(function))


def _array(spec: Any, rows: str) -> Any:
    return getattr(spec.description.functions[0], rows)[0].type.multiArrayType


def _flexible(spec: Any) -> None:
    _array(spec, "input").shapeRange.sizeRanges.add().upperBound = 4096


SPECS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a newer specification": (lambda s: setattr(s, "specificationVersion", 99), "its specification is version 99"),
    "an older specification": (lambda s: setattr(s, "specificationVersion", 6), "version 6 goes with CoreML5"),
    "an unknown opset": (_of_opset("CoreML99"), "is of opset CoreML99"),
    "an older opset": (_of_opset("CoreML5"), "is of opset CoreML5, and specification version 9"),
    "functions before their time": (_older, "2 functions, which specification version 7 does not know"),
    "a block more": (_extra_block, "has blocks for CoreML8, CoreML9"),
    "program's version": (lambda s: setattr(s.mlProgram, "version", 7), "its program is version 7"),
    "updatable": (lambda s: setattr(s, "isUpdatable", True), "Model.isUpdatable is set"),
    "optional input": (
        lambda s: setattr(s.description.functions[0].input[0].type, "isOptional", True),
        "FeatureType.isOptional is set",
    ),
    "default of an input": (lambda s: setattr(_array(s, "input"), "intDefaultValue", 0), "intDefaultValue is set"),
    "flexible shape": (_flexible, "shapeRange is set"),
    "shape of an output": (lambda s: _array(s, "output").shape.append(9), r"as fp32 \[1, 64, 9\], and is fp32 \[1, 64"),
    "type of an output": (lambda s: setattr(_array(s, "output"), "dataType", 65552), "as type 65552"),
    "integers as an output": (lambda s: setattr(_array(s, "output"), "dataType", 131104), "described as int32"),
    "floats as an input": (lambda s: setattr(_array(s, "input"), "dataType", 65568), "described as fp32"),
    "description of a feature": (
        lambda s: setattr(s.description.functions[0].output[0], "shortDescription", "logits"),
        "FeatureDescription.shortDescription is set",
    ),
    "predicted feature": (
        lambda s: setattr(s.description.functions[0], "predictedFeatureName", "none"),
        "predictedFeatureName is set",
    ),
    "default function": (
        lambda s: setattr(s.description, "defaultFunctionName", "none"),
        "its default function is 'none'",
    ),
    "inputs of no function": (
        lambda s: s.description.input.add().CopyFrom(s.description.functions[0].input[0]),
        "inputs or outputs of no function",
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_model_has_the_fields_that_conversions_set(case: str, package: Path) -> None:
    change, message = SPECS[case]
    edit(package, change)
    refused(package, message)


# --- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "claimed"), [("9.0", False), ("9.0, checked by Apple", True)])
def test_what_coremltools_says_of_itself_is_no_claim_of_ours(value: str, claimed: bool, package: Path) -> None:
    """It stands in every package of a single length."""
    name = "com.github.apple.coremltools.version"
    edit(package, lambda spec: spec.description.metadata.userDefined.update({name: value}))
    assert (name in coreml.claims(package)) is claimed
