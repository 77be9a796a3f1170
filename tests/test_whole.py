"""LiteRT files that hold more than a conversion writes, or that compute with ids."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from conftest import TinyLine
from damage import Damaged
from test_bounds import refused
from test_operators import read

from pipeline.formats import litert, signature
from pipeline.formats.litert.container import kinds_of, read_model, write_model
from pipeline.verify import structure as judging

Model = Any
Contents = list[memoryview]
KINDS, OPTIONS = schema.BuiltinOperator, schema.BuiltinOptions
RANDOM = np.random.default_rng(5).bytes(300_000)


@pytest.fixture
def clean(tiny_line: TinyLine) -> Path:
    return tiny_line.folder / "litert-int8_dynamic" / "model" / "model.tflite"


def edited(source: Path, change: Callable[[Model, Contents], object], place: Path) -> Path:
    """Write a file anew with a change."""
    model, contents = read_model(source)
    change(model, contents)
    write_model(model, contents, place / "model.tflite")
    return place / "model.tflite"


def _constant(model: Model, contents: Contents, values: np.ndarray, graph: int = 0) -> int:
    """Add a constant, and return its number."""
    tensor = schema.TensorT()
    tensor.type = {"i": schema.TensorType.INT32, "f": schema.TensorType.FLOAT32}[values.dtype.kind]
    tensor.shape, tensor.name, tensor.buffer = np.array(values.shape, np.int32), b"more", len(contents)
    contents.append(memoryview(values.tobytes()))
    model.subgraphs[graph].tensors.append(tensor)
    return len(model.subgraphs[graph].tensors) - 1


# --- what no conversion writes ----------------------------------------------------------------------------------------


def _metadata(name: bytes, content: bytes) -> Callable[[Model, Contents], None]:
    def change(model: Model, contents: Contents) -> None:
        entry = schema.MetadataT()
        entry.name, entry.buffer = name, len(contents)
        contents.append(memoryview(content))
        model.metadata = [*(one for one in model.metadata if one.name != name), entry]

    return change


def _inputs_turned(model: Model, contents: Contents) -> None:
    for graph in model.subgraphs:
        graph.inputs = graph.inputs[::-1].copy()


def _signature_turned(model: Model, contents: Contents) -> None:
    for one in model.signatureDefs:
        one.inputs = one.inputs[::-1]


def _graphs_turned(model: Model, contents: Contents) -> None:
    model.subgraphs = model.subgraphs[::-1]
    for one in model.signatureDefs:
        one.subgraphIndex = len(model.subgraphs) - 1 - one.subgraphIndex


def _all_turned(model: Model, contents: Contents) -> None:
    _graphs_turned(model, contents)
    model.signatureDefs = model.signatureDefs[::-1]


def _tensor_names_exchanged(model: Model, contents: Contents) -> None:
    graph = model.subgraphs[0]
    ids, mask = (graph.tensors[number] for number in graph.inputs[:2])
    ids.name, mask.name = mask.name, ids.name


def _result_that_nothing_reads(model: Model, contents: Contents) -> None:
    graph = model.subgraphs[0]
    operation = next(one for one in graph.operators if kinds_of(model)[one.opcodeIndex] == KINDS.SOFTMAX)
    more = schema.TensorT()
    more.shape, more.name = graph.tensors[operation.outputs[0]].shape, b"more"
    graph.tensors.append(more)
    again = schema.OperatorT()
    again.opcodeIndex, again.inputs = operation.opcodeIndex, operation.inputs
    again.builtinOptions, again.builtinOptionsType = operation.builtinOptions, operation.builtinOptionsType
    again.outputs = np.array([len(graph.tensors) - 1], np.int32)
    graph.operators.append(again)


def _kind_that_nothing_has(model: Model, contents: Contents) -> None:
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = KINDS.NEG
    model.operatorCodes.append(code)


def _scales_of_floats(model: Model, contents: Contents) -> None:
    graph = model.subgraphs[0]
    tensor = next(one for one in graph.tensors if one.type == schema.TensorType.FLOAT32 and len(one.shape) > 1)
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = np.ones(tensor.shape[0], np.float32)
    tensor.quantization.quantizedDimension = 0


def _least_values(model: Model, contents: Contents) -> None:
    tensor = model.subgraphs[0].tensors[0]
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.min = np.frombuffer(RANDOM, np.float32)


def _shape_in_options(model: Model, contents: Contents) -> None:
    operation = next(one for one in model.subgraphs[0].operators if kinds_of(model)[one.opcodeIndex] == KINDS.RESHAPE)
    operation.builtinOptions, operation.builtinOptionsType = schema.ReshapeOptionsT(), OPTIONS.ReshapeOptions
    operation.builtinOptions.newShape = np.frombuffer(RANDOM, np.int32)


def _set(path: str, value: object) -> Callable[[Model, Contents], None]:
    def change(model: Model, contents: Contents) -> None:
        *way, name = path.split(".")
        place = model
        for step in way:
            place = place[int(step)] if step.isdigit() else getattr(place, step)
        setattr(place, name, value)

    return change


MORE: dict[str, tuple[Callable[[Model, Contents], object], str]] = {
    "description": (_set("description", b"a model of ACME"), "Model, number 0: it is not 'MLIR Converted.'"),
    "runtime": (_metadata(b"min_runtime_version", b"99.0.0".ljust(16, b"\0")), "its metadata min_runtime_version is"),
    "long metadata": (_metadata(b"min_runtime_version", b"2.9.0".ljust(300_000, b"\0")), "min_runtime_version is not"),
    "other metadata": (_metadata(b"training_data", RANDOM), "its metadata are not the converter's"),
    "no metadata": (_set("metadata", []), "its metadata are not the converter's"),
    "unread integers": (
        lambda model, contents: _constant(model, contents, np.frombuffer(RANDOM, np.int32)),
        "tensors, number .*: nothing reads it",
    ),
    "few unread floats": (
        lambda model, contents: _constant(model, contents, np.ones(15, np.float32)),
        "tensors, number .*: nothing reads it",
    ),
    "unread result": (_result_that_nothing_reads, "tensors, number .*: nothing reads it"),
    "unread kind": (_kind_that_nothing_has, "operator_codes, number .*: nothing reads it"),
    "scales of floats": (_scales_of_floats, "it has scales, and is no integer"),
    "least values": (_least_values, "it has a list min, which nothing reads"),
    "shape in options": (_shape_in_options, "it has new_shape, which no conversion writes"),
    "long name": (_set("subgraphs.0.tensors.0.name", b"x" * 161), "name has more than 160 bytes|is the tensor 'xxx"),
    "name of a graph": (_set("subgraphs.0.name", b"ours"), "its name is not its signature's"),
    "name of a signature": (_set("signatureDefs.0.signatureKey", b"ours"), "serving_default is not its first"),
    "inputs in another order": (_inputs_turned, "and in order they are .'input_ids', 'attention_mask'"),
    "signature in another order": (_signature_turned, "its inputs are not sorted"),
    "graphs in another order": (_graphs_turned, "its graph has another number"),
    "all in another order": (_all_turned, "serving_default is not its first signature"),
    "names of inputs": (_tensor_names_exchanged, "its attention_mask is the tensor '.*input_ids'"),
}


def test_a_file_that_is_only_written_anew_is_read(clean: Path, tmp_path: Path) -> None:
    again = edited(clean, lambda model, contents: None, tmp_path)
    assert litert.inspect(again) == litert.inspect(clean)
    assert litert.structure(again).uses == litert.structure(clean).uses


@pytest.mark.parametrize("case", MORE)
def test_what_no_conversion_writes_is_refused(case: str, clean: Path, tmp_path: Path) -> None:
    change, message = MORE[case]
    refused("litert", edited(clean, change, tmp_path), message)


def _after(content: bytes) -> bytes:
    return content + RANDOM


def _few_after(content: bytes) -> bytes:
    return content + b"\1"


@pytest.mark.parametrize("change", [_after, _few_after])
def test_bytes_that_nothing_reads_are_refused(change: Callable[[bytes], bytes], clean: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.tflite"
    file.write_bytes(change(clean.read_bytes()))
    refused("litert", file, "nothing reads the [0-9]+ bytes from byte")


def test_bytes_between_two_constants_are_refused(clean: Path, tmp_path: Path) -> None:
    content = bytearray(clean.read_bytes())
    buffers = schema.Model.GetRootAs(content, 0)
    spans = sorted(
        (one.Offset(), one.Offset() + one.Size()) for one in map(buffers.Buffers, range(buffers.BuffersLength()))
    )
    free = next(end for (start, end), (following, _) in pairwise(spans) if 1 < start < end < following)
    content[free] = 1
    file = tmp_path / "model.tflite"
    file.write_bytes(content)
    refused("litert", file, f"nothing reads the [0-9]+ bytes from byte {free}")


def test_bytes_between_flatbuffer_and_constants_are_refused(clean: Path, tmp_path: Path) -> None:
    """The constants are moved, so everything that reads them still finds them."""
    moved = Damaged.litert(clean)
    offsets = moved.root["buffers"].number("offset").tolist()
    for row, offset in enumerate(offsets):
        if offset > 1:
            moved.number(moved.root["buffers"], "offset", offset + 64, row=row)
    first = min(offset for offset in offsets if offset > 1)
    content = moved.data.tobytes()
    file = tmp_path / "model.tflite"
    file.write_bytes(content[:first] + RANDOM[:64] + content[first:])
    refused("litert", file, "nothing reads the [0-9]+ bytes from byte")


def test_a_field_that_nothing_leads_to_is_refused(clean: Path, tmp_path: Path) -> None:
    """A list of fields forgets one that may be absent; its bytes stay."""
    damaged = Damaged.litert(clean)
    codes = damaged.root["operator_codes"]
    slot = damaged.root.columns.schema.tables["OperatorCode"]["version"].slot
    row = int(np.flatnonzero(codes.number("version") > 1)[0])
    refused(
        "litert",
        damaged.bytes(int(codes._vtable[row]) + slot, b"\0\0").write(tmp_path / "model.tflite"),
        "nothing reads the [0-9]+ bytes from byte",
    )


# --- what computes with ids -------------------------------------------------------------------------------------------


class _Planted:
    """Operations that go in front of one function's own, and change its ids on their way to the tables."""

    def __init__(self, model: Model, contents: Contents, graph: int) -> None:
        self.model, self.contents, self.graph = model, contents, graph
        self.tensors = model.subgraphs[graph].tensors
        self.ids, self.mask = map(int, model.subgraphs[graph].inputs[:2])
        self.operations: list[Any] = []

    def constant(self, *values: Any) -> int:
        return _constant(self.model, self.contents, np.array(values, np.int32), self.graph)

    def add(self, kind: str, *inputs: int, shape: tuple[int, ...] | None = None, dtype: str = "INT32") -> int:
        made, operation = schema.TensorT(), schema.OperatorT()
        made.shape = self.tensors[self.ids].shape if shape is None else np.array(shape, np.int32)
        made.type, made.name = getattr(schema.TensorType, dtype), b"made"
        self.tensors.append(made)
        operation.opcodeIndex = self._code(getattr(KINDS, kind))
        operation.inputs, operation.outputs = np.array(inputs, np.int32), np.array([len(self.tensors) - 1], np.int32)
        self.operations.append(operation)
        return len(self.tensors) - 1

    def _code(self, kind: int) -> int:
        if kind not in kinds_of(self.model):
            code = schema.OperatorCodeT()
            code.builtinCode = code.deprecatedBuiltinCode = kind
            self.model.operatorCodes.append(code)
        return kinds_of(self.model).index(kind)

    def put(self, number: int) -> None:
        """Let the function's own operations read another tensor instead of the ids."""
        graph = self.model.subgraphs[self.graph]
        for one in graph.operators:
            one.inputs = np.array([number if tensor == self.ids else tensor for tensor in one.inputs], np.int32)
        graph.operators = [*self.operations, *graph.operators]


def planted(change: Callable[[_Planted], int]) -> Callable[[Model, Contents], None]:
    def in_each(model: Model, contents: Contents) -> None:
        for graph in range(len(model.subgraphs)):
            into = _Planted(model, contents, graph)
            into.put(change(into))

    return in_each


def _by_table(into: _Planted) -> int:
    length = int(into.tensors[into.ids].shape[1])
    table = into.constant(*([number] for number in range(600)))
    flat = into.add("RESHAPE", into.ids, into.constant(length), shape=(length,))
    found = into.add("EMBEDDING_LOOKUP", flat, table, shape=(length, 1))
    return into.add("RESHAPE", found, into.constant(1, length))


def test_a_table_of_ids_is_not_the_checkpoint_s(tiny_line: TinyLine, clean: Path, tmp_path: Path) -> None:
    expected = read(tiny_line, "litert-int8_dynamic").expected
    file = edited(clean, planted(_by_table), tmp_path)
    functions = len(litert.inspect(file))
    gates = judging.check(litert.structure(file), expected, "int8_dynamic", "litert", functions=functions).gates
    said = {gate.name: gate.detail for gate in gates if not gate.passed}
    assert "(600, 1) of INT32" in said["constants"]


# --- activations ------------------------------------------------------------------------------------------------------


def _fused(number: int) -> Callable[[Model, Contents], None]:
    def change(model: Model, contents: Contents) -> None:
        graph = model.subgraphs[0]
        operation = next(one for one in graph.operators if kinds_of(model)[one.opcodeIndex] == KINDS.DIV)
        operation.builtinOptions, operation.builtinOptionsType = schema.DivOptionsT(), OPTIONS.DivOptions
        operation.builtinOptions.fusedActivationFunction = number

    return change


def test_the_activation_of_a_division_is_read(clean: Path, tmp_path: Path) -> None:
    before = litert.structure(clean).activations
    relu = edited(clean, _fused(schema.ActivationFunctionType.RELU), tmp_path)
    assert sorted(litert.structure(relu).activations) == sorted((*before, "relu"))
    bounded = edited(clean, _fused(schema.ActivationFunctionType.RELU6), tmp_path)
    assert litert.structure(bounded).activations == before


def test_clean_files_have_none_of_this(tiny_line: TinyLine) -> None:
    for name in ("litert-fp32", "litert-int8_dynamic"):
        folder = tiny_line.folder / name / "model"
        assert litert.inspect(folder / "model.tflite") == signature.read(folder).functions
        assert not [one.name for one in read(tiny_line, name).stored.constants if " of INT" in one.name]
