"""Damaged files are refused before a runtime sees them: one file for each rule, refused by its name in one line."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litert_schema
import numpy as np
import pytest
from conftest import TinyLine, seed_of
from damage import Damaged, first

from pipeline import formats, mil
from pipeline.errors import EXIT_USAGE, ArtifactError, PipelineError
from pipeline.formats.litert import bounds as litert

TARGETS = {"litert": "int8_dynamic", "executorch": "int8_dynamic", "coreml": "int8_weight_only"}


@pytest.fixture(scope="module")
def files(converted: Callable[..., Path]) -> dict[str, Path]:
    """A clean file of each format, as `make faults` has them."""
    return {name: converted(f"{name}-{scheme}") / formats.get(name).FILE for name, scheme in TARGETS.items()}


@pytest.mark.parametrize("name", formats.NAMES)
def test_a_clean_file_is_read(name: str, files: dict[str, Path]) -> None:
    backend = formats.get(name)
    assert len(backend.inspect(files[name])) in (1, 2)
    assert backend.structure(files[name]).constants


def test_every_file_of_the_tiny_line_is_read(tiny_line: TinyLine) -> None:
    for target in ("litert-fp32", "litert-int8_dynamic", "executorch-fp32"):
        name = target.partition("-")[0]
        assert formats.get(name).structure(tiny_line.folder / target / "model" / formats.get(name).FILE).constants


def refused(name: str, file: Path, message: str) -> None:
    """Check that everything that reads a file refuses it alike."""
    for read in (formats.get(name).inspect, formats.get(name).structure):
        with pytest.raises(ArtifactError, match=message) as raised:
            read(file)
        assert "\n" not in str(raised.value)
        assert raised.value.exit_code == EXIT_USAGE


# --- flatbuffers: LiteRT ----------------------------------------------------------------------------------------------


@pytest.mark.toolchain
def test_the_schema_is_the_installed_runtime_s() -> None:
    assert litert_schema.schema() == (Path(litert.__file__).parent / "schema.fbs").read_text()


def _graph(file: Damaged) -> Any:
    return file.root["subgraphs"]


def _kind(file: Damaged, builtin: int) -> int:
    """Return the first operation of a kind."""
    codes = file.root["operator_codes"].number("builtin_code").tolist()
    return first(_graph(file)["operators"], "opcode_index", codes.index(builtin))


def _input(file: Damaged, builtin: int, place: int) -> int:
    """Return the tensor that the first operation of a kind reads at a place."""
    operators = _graph(file)["operators"]
    number = _kind(file, builtin)
    return int(operators.vector("inputs").at(number)[place])


def _buffer(file: Damaged, tensor: int) -> int:
    return int(_graph(file)["tensors"].number("buffer")[tensor])


def _no_opcode(f: Damaged) -> None:
    f.number(_graph(f)["operators"], "opcode_index", 999, row=_kind(f, 22))


LINEAR, RESHAPE, TRANSPOSE, MEAN, ADD, LOOKUP = 9, 22, 39, 40, 0, 7
LITERT: dict[str, tuple[Callable[[Damaged], object], str]] = {
    "no magic": (lambda f: f.bytes(4, b"TFL9"), "is not a .tflite: it has b'TFL9' at byte 4"),
    "root": (lambda f: f.bytes(0, b"\xff\xff\xff\x7f"), "Model, number 0: the table lies outside"),
    "root askew": (lambda f: f.bytes(0, (int(f.root.at[0]) + 2).to_bytes(4, "little")), "lies askew"),
    "list of fields": (lambda f: f.bytes(int(f.root.at[0]), b"\xff\xff\xff\x7f"), "the table lies outside"),
    "short list of fields": (lambda f: f.bytes(int(f.root._vtable[0]), b"\x02\x00"), "list of fields is too short"),
    "size of a table": (lambda f: f.bytes(int(f.root._vtable[0]) + 2, b"\x04\x00"), "lies outside of its table"),
    "offset": (lambda f: f.offset(f.root, "subgraphs", 2**31), "Model.subgraphs, number 0: the vector lies outside"),
    "length": (lambda f: f.length(_graph(f)["tensors"], "shape", 2**30), "shape, number 0: the vector ends outside"),
    "text": (
        lambda f: f.length(_graph(f)["tensors"], "name", 2**30),
        "tensors.name, number 0: the vector ends outside",
    ),
    "no text": (lambda f: f.element(_graph(f)["tensors"], "name", 0xFF), "tensors.name at byte .* is no text"),
    "end of a text": (lambda f: f.length(f.root, "description", 1), "description has no end"),
    "kind of options": (
        lambda f: f.number(_graph(f)["operators"], "builtin_options_type", 200, row=_kind(f, LINEAR)),
        "builtin_options is of kind 200, which the schema lacks",
    ),
    "version": (lambda f: f.number(f.root, "version", 9), "its schema is not version 3"),
    "buffer's place": (lambda f: f.number(f.root["buffers"], "offset", 2**40, row=1), "it ends outside of"),
    "buffer's size": (
        lambda f: f.number(f.root["buffers"], "size", 64, row=_buffer(f, _input(f, LINEAR, 1))),
        "its buffer has 64 bytes, and its shape .* needs",
    ),
    "type": (lambda f: f.number(_graph(f)["tensors"], "type", 5, row=_input(f, LOOKUP, 1)), "its type is unknown"),
    "number of a buffer": (
        lambda f: f.number(_graph(f)["tensors"], "buffer", 9999, row=_input(f, LOOKUP, 1)),
        "it names a buffer that is not there",
    ),
    "negative size": (lambda f: f.element(_graph(f)["tensors"], "shape", -4), "its shape has a size below 1"),
    "absurd size": (lambda f: f.element(_graph(f)["tensors"], "shape", 2**31 - 1), "more than 4294967296 bytes|needs"),
    "axis of scales": (
        lambda f: f.bytes(
            int(f.root["subgraphs"]["tensors"]["quantization"].vector("scale").start.max()) - 4, b"\x03\x00\x00\x00"
        ),
        "its scales are not as many as the rows of its axis|not a zero point for each scale",
    ),
    "scale": (
        lambda f: f.bytes(int(_graph(f)["tensors"]["quantization"].vector("scale").start.max()), b"\xff\xff\xff\xff"),
        "a scale is negative or no number",
    ),
    "zero point": (
        lambda f: f.bytes(int(_graph(f)["tensors"]["quantization"].vector("zero_point").start.max()), b"\xff\x7f"),
        "a zero point is beyond its type",
    ),
    "graph's input": (lambda f: f.element(_graph(f), "inputs", 9999), "inputs, number 0: it names tensor 9999 of"),
    "graph's output": (lambda f: f.element(_graph(f), "outputs", -2), "outputs, number 0: it names tensor -2 of"),
    "signature's graph": (
        lambda f: f.number(f.root["signature_defs"], "subgraph_index", 7, row=1),
        "it names a graph that is not there",
    ),
    "signature's tensor": (
        lambda f: f.number(f.root["signature_defs"]["inputs"], "tensor_index", 77),
        "it names a tensor that is none of the graph's inputs",
    ),
    "metadata": (lambda f: f.number(f.root["metadata"], "buffer", 9999), "it names a buffer that is not there"),
    "kind of operation": (_no_opcode, "it names a kind that is not there"),
    "unknown operation": (
        lambda f: f.number(f.root["operator_codes"], "builtin_code", 118, row=1),
        "it is a kind of operation that no encoder known here has",
    ),
    "operation's input": (
        lambda f: f.element(_graph(f)["operators"], "inputs", 2**30, row=_kind(f, ADD)),
        "operators.inputs, number .*: it names tensor 1073741824 of",
    ),
    "input left out": (
        lambda f: f.element(_graph(f)["operators"], "inputs", -1, row=_kind(f, LINEAR)),
        "builtin 9: an input is left out",
    ),
    "number of inputs": (
        lambda f: f.bytes(int(_graph(f)["operators"].vector("inputs").start[_kind(f, ADD)]) - 4, b"\x01\x00\x00\x00"),
        "builtin 0: it has 1 inputs",
    ),
    "other options": (
        lambda f: f.number(_graph(f)["operators"], "builtin_options_type", 9, row=_kind(f, LINEAR)),
        "builtin 9: it has SoftmaxOptions",
    ),
    "read before it is made": (
        lambda f: f.element(
            _graph(f)["operators"], "inputs", int(_graph(f).vector("outputs").at(0)[0]), row=_kind(f, LINEAR)
        ),
        "builtin 9: it reads what nothing has made",
    ),
    "made twice": (
        lambda f: f.element(_graph(f)["operators"], "outputs", _input(f, ADD, 0), row=_kind(f, ADD)),
        "builtin 0: it writes what is made already",
    ),
    "types": (
        lambda f: f.number(_graph(f)["tensors"], "type", 0, row=_input(f, TRANSPOSE, 1)),
        "builtin .*: an input is of type 0",
    ),
    "order of axes": (
        lambda f: f.bytes(
            int(f.root["buffers"].number("offset")[_buffer(f, _input(f, TRANSPOSE, 1))]), b"\x09\x00\x00\x00"
        ),
        "builtin 39: the order of axes is none",
    ),
    "axis": (
        lambda f: f.bytes(int(f.root["buffers"].number("offset")[_buffer(f, _input(f, MEAN, 1))]), b"\x09\x00\x00\x00"),
        "builtin 40: it has no such axis",
    ),
    "shape that is asked for": (
        lambda f: f.bytes(
            int(f.root["buffers"].number("offset")[_buffer(f, _input(f, RESHAPE, 1))]), b"\x09\x00\x00\x00"
        ),
        "builtin 22: it is not what it was asked for",
    ),
}


@pytest.mark.parametrize("case", LITERT)
def test_a_damaged_litert_file_is_refused_by_name(case: str, files: dict[str, Path], tmp_path: Path) -> None:
    change, message = LITERT[case]
    damaged = Damaged.litert(files["litert"])
    change(damaged)
    refused("litert", damaged.write(tmp_path / "model.tflite"), message)


# --- flatbuffers: ExecuTorch ------------------------------------------------------------------------------------------


def _values(f: Damaged, kind: str) -> Any:
    return f.root["execution_plan"]["values"].members("val")[kind]


def _calls(f: Damaged, kind: str = "KernelCall") -> Any:
    return f.root["execution_plan"]["chains"]["instructions"].members("instr_args")[kind]


def _inner(f: Damaged, kind: str) -> Any:
    return f.payload()["xvalues"].members("xvalue_union")[kind]


def _constant(f: Damaged) -> int:
    """Return the first tensor that is constant."""
    return int(np.flatnonzero(_values(f, "Tensor").number("data_buffer_idx"))[0])


def _header(f: Damaged, at: int) -> int:
    """Return where a byte of the first delegate's header lies."""
    places = f.root["execution_plan"]["delegates"]["processed"]
    segment = f.root["segments"].number("offset")[int(places.number("index")[0])]
    return int.from_bytes(f.data[24:32].tobytes(), "little") + int(segment) + at


EXECUTORCH: dict[str, tuple[Callable[[Damaged], object], str]] = {
    "no magic": (lambda f: f.bytes(4, b"ET99"), "is not a .pte with segments: it has b'ET99eh00' at byte 4"),
    "size of the program": (lambda f: f.bytes(16, b"\xff" * 8), "its header tells of 18446744073709551615 bytes"),
    "place of segments": (lambda f: f.bytes(24, b"\xff" * 8), "and of segments from 18446744073709551615 on"),
    "root": (lambda f: f.bytes(0, b"\xff\xff\xff\x7f"), "Program, number 0: the table lies outside"),
    "segment": (
        lambda f: f.number(f.root["segments"], "size", 2**40),
        "Program.segments, number 0: it ends outside of",
    ),
    "constant's offset": (
        lambda f: f.element(f.root["constant_segment"], "offsets", 2**40, at=2),
        "an offset leads out of its segment",
    ),
    "named data": (
        lambda f: f.number(f.root["named_data"], "segment_index", 9999),
        "named_data, number 0: there is no",
    ),
    "type": (lambda f: f.number(_values(f, "Tensor"), "scalar_type", 77), "its type is unknown"),
    "negative size": (lambda f: f.element(_values(f, "Tensor"), "sizes", -4), "its shape has a negative size"),
    "absurd size": (lambda f: f.element(_values(f, "Tensor"), "sizes", 2**31 - 1), "more than 4294967296 bytes|needs"),
    "order of axes": (lambda f: f.element(_values(f, "Tensor"), "dim_order", 9), "its order of axes is none"),
    "dynamism": (
        lambda f: f.number(
            _values(f, "Tensor"), "shape_dynamism", 9, row=first(_values(f, "Tensor"), "shape_dynamism", 1)
        ),
        "its dynamism is unknown",
    ),
    "number of a constant": (
        lambda f: f.number(_values(f, "Tensor"), "data_buffer_idx", 9999, row=_constant(f)),
        "it names a constant that is not there",
    ),
    "room of a constant": (
        lambda f: f.element(_values(f, "Tensor"), "sizes", 40_000, row=_constant(f)),
        "its shape needs more bytes than its constant has",
    ),
    "memory": (
        lambda f: f.number(_values(f, "Tensor")["allocation_info"], "memory_id", 9),
        "it lies in a memory that is not there",
    ),
    "end of memory": (
        lambda f: f.element(f.root["execution_plan"], "non_const_buffer_sizes", 64, at=1),
        "it ends outside of its memory",
    ),
    "size of memory": (
        lambda f: f.element(f.root["execution_plan"], "non_const_buffer_sizes", -1, at=1),
        "an absurd size of memory",
    ),
    "item of a list": (lambda f: f.element(_values(f, "IntList"), "items", 9999), "it names value 9999 of"),
    "kind of an item": (lambda f: f.element(_values(f, "IntList"), "items", 0), "an item is no Int"),
    "method's input": (lambda f: f.element(f.root["execution_plan"], "inputs", 9999), "it names value 9999 of"),
    "name of a method": (
        lambda f: f.element(f.root["execution_plan"], "name", ord("g")),
        "its methods are \\['gorward'",
    ),
    "kernel": (lambda f: f.number(_calls(f), "op_index", 99), "its op_index is 99"),
    "argument": (lambda f: f.element(_calls(f), "args", 9999), "KernelCall.*|args, number 0: it names value 9999"),
    "kind of an argument": (
        lambda f: f.element(_calls(f), "args", int(_calls(f).vector("args").at(0)[1])),
        "_to_dim_order_copy.out is given Bool, Bool, IntList",
    ),
    "delegate": (lambda f: f.number(_calls(f, "DelegateCall"), "delegate_index", 999, row=1), "delegate_index is 999"),
    "number of arguments": (
        lambda f: f.bytes(int(_calls(f, "DelegateCall").vector("args").start[0]) - 4, b"\x01\x00\x00\x00"),
        "values outside, and is called with 1",
    ),
    "name of a delegate": (
        lambda f: f.element(f.root["execution_plan"]["delegates"], "id", ord("Y")),
        "it is none of XnnpackBackend",
    ),
    "payload": (
        lambda f: f.number(f.root["execution_plan"]["delegates"]["processed"], "index", 9999, row=1),
        "it names a segment that is not there",
    ),
    "vocabulary": (
        lambda f: f.number(_values(f, "Int"), "int_val", 77, row=len(_values(f, "Int")) - 1),
        "its vocabulary's size is 77, and its tables have",
    ),
    "payload's magic": (lambda f: f.bytes(_header(f, 4), b"XH99"), "payload does not begin with b'XH00'"),
    "payload's graph": (lambda f: f.bytes(_header(f, 10), b"\xff" * 4), "its payload's graph lies outside"),
    "payload's constants": (lambda f: f.bytes(_header(f, 22), b"\xff" * 8), "its payload's constants lie outside"),
    "payload's root": (
        lambda f: f.bytes(int(f.payload().low[0]), b"\xff\xff\xff\x7f"),
        "XNNGraph, number 0: the table lies outside",
    ),
    "value's type": (lambda f: f.number(_inner(f, "XNNTensorValue"), "datatype", 99), "its type is unknown"),
    "value's axes": (lambda f: f.number(_inner(f, "XNNTensorValue"), "num_dims", 9), "another number of axes"),
    "value's argument": (
        lambda f: f.number(_inner(f, "XNNTensorValue"), "external_id", 99),
        "it stands for an argument that is not there",
    ),
    "value's id": (lambda f: f.number(_inner(f, "XNNTensorValue"), "id_out", 3), "two values have one id|made"),
    "graph's inputs": (lambda f: f.element(f.payload(), "input_ids", 99), "one of its input_ids is no value"),
    "node's value": (
        lambda f: f.number(next(iter(f.payload()["xnodes"].members("xnode_union").values())), "output_id", 99),
        "it writes value 99, which is made already, or none",
    ),
}


@pytest.mark.parametrize("case", EXECUTORCH)
def test_a_damaged_executorch_file_is_refused_by_name(case: str, files: dict[str, Path], tmp_path: Path) -> None:
    change, message = EXECUTORCH[case]
    damaged = Damaged.executorch(files["executorch"])
    change(damaged)
    refused("executorch", damaged.write(tmp_path / "model.pte"), message)


# --- Core ML ----------------------------------------------------------------------------------------------------------


def _block(spec: Any) -> Any:
    function = spec.mlProgram.functions["seq_16"]
    return function.block_specializations[function.opset]


def _operation(spec: Any, kind: str) -> Any:
    return next(row for row in _block(spec).operations if row.type == kind)


def _weight(spec: Any) -> Any:
    """Return the first literal that lies in a weight file."""
    constant = next(
        row
        for row in _block(spec).operations
        for value in row.attributes.values()
        if value.WhichOneof("value") == "blobFileValue"
    )
    return next(value for value in constant.attributes.values() if value.WhichOneof("value") == "blobFileValue")


def _dimension(value: Any) -> Any:
    return value.type.tensorType.dimensions[0].constant


def _nothing(spec: Any) -> None:
    del _operation(spec, "const").outputs[:]


COREML: dict[str, tuple[Callable[[Any], object], str]] = {
    "read before it is made": (
        lambda spec: setattr(_operation(spec, "linear").inputs["x"].arguments[0], "name", "nowhere"),
        "linear .* reads nowhere, which nothing before it computes",
    ),
    "made twice": (
        lambda spec: setattr(_block(spec).operations[1].outputs[0], "name", _block(spec).operations[0].outputs[0].name),
        "which is there already|otherwise",
    ),
    "output": (lambda spec: _block(spec).outputs.__setitem__(0, "nowhere"), "gives nowhere, which nothing computes"),
    "no argument": (lambda spec: _operation(spec, "linear").inputs["x"].arguments.pop(), "is given 0 of x"),
    "no value": (lambda spec: _operation(spec, "const").attributes.pop("val"), "has no value"),
    "no output": (_nothing, "gives nothing|not one literal"),
    "blob's offset": (lambda spec: setattr(_weight(spec).blobFileValue, "offset", 2**40), "a blob at offset 10995"),
    "blob's file": (
        lambda spec: setattr(_weight(spec).blobFileValue, "fileName", "x/.."),
        "weight file without a name",
    ),
    "blob's size": (lambda spec: setattr(_dimension(_weight(spec)), "size", 3), "needs .* bytes, and its weights at"),
    "absurd size": (lambda spec: setattr(_dimension(_weight(spec)), "size", 2**40), "has the shape"),
    "type": (
        lambda spec: setattr(_weight(spec).type.tensorType, "dataType", 99),
        "element type 99 of MIL is not known",
    ),
    "opset": (lambda spec: setattr(spec.mlProgram.functions["seq_16"], "opset", "CoreML9"), "no block for its opset"),
    "function": (
        lambda spec: setattr(spec.description.functions[0], "name", "seq_99"),
        "describes the functions seq_99",
    ),
    "described input": (
        lambda spec: setattr(spec.description.functions[0].input[0], "name", "ids"),
        "is described with the inputs ids",
    ),
    "described shape": (
        lambda spec: spec.description.functions[0].input[0].type.multiArrayType.shape.__setitem__(1, 17),
        "is described as .1, 17., and declared",
    ),
}


@pytest.fixture
def package(files: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the clean package that the test may change."""
    copy = Path(shutil.copytree(files["coreml"], tmp_path / "model.mlpackage"))
    for path in copy.rglob("*"):
        path.chmod(0o755)
    return copy


@pytest.mark.parametrize("case", COREML)
def test_a_damaged_core_ml_package_is_refused_by_name(case: str, package: Path) -> None:
    change, message = COREML[case]
    spec = mil.read(package).spec
    change(spec)
    next(package.rglob("*.mlmodel")).write_bytes(spec.SerializeToString())
    refused("coreml", package, message)


def test_a_literal_that_does_not_fill_its_shape_is_refused(package: Path) -> None:
    spec = mil.read(package).spec
    value = next(
        row.attributes["val"]
        for row in _block(spec).operations
        if row.type == "const" and row.attributes["val"].immediateValue.tensor.ints.values
    )
    value.immediateValue.tensor.ints.values.append(3)
    next(package.rglob("*.mlmodel")).write_bytes(spec.SerializeToString())
    refused("coreml", package, "numbers for the shape")


# --- any damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", formats.NAMES)
def test_no_damage_ends_in_an_error_of_python_s_own(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    random = np.random.default_rng(seed_of(name))
    place = tmp_path / files[name].name
    shutil.copytree(files[name], place) if files[name].is_dir() else shutil.copyfile(files[name], place)
    parts = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    for number in range(30):
        part = parts[number % len(parts)]
        part.chmod(0o644)
        clean = part.read_bytes()
        content = bytearray(clean)
        # What is no weight lies at either end.
        start = int(random.integers(0, min(len(content), 20_000)))
        for at in range(start, min(start + int(random.integers(1, 9)), len(content))):
            content[at] = int(random.integers(0, 256))
        part.write_bytes(content[: int(random.integers(1, len(content)))] if number % 5 == 0 else content)
        for read in (formats.get(name).inspect, formats.get(name).structure):
            with contextlib.suppress(PipelineError):
                read(place)
        part.write_bytes(clean)
