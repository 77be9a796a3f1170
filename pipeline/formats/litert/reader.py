"""Reader of LiteRT files: signatures, constants and attributes, read from the flatbuffer without a runtime.

litert-torch writes a layer normalisation as its formula, so an epsilon is the constant that is added under a reciprocal
root. The converter may fold a normalisation's weight into the linears that read it; `verify.structure` matches both.
"""

import mmap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ToolchainError
from pipeline.formats.checked import check_identifier, checked
from pipeline.formats.litert.rounding import follow, scale_zero_point
from pipeline.formats.litert.scales import by_axis, by_blocks
from pipeline.formats.rounded import Rounded
from pipeline.formats.signature import Function, Tensor
from pipeline.formats.structure import Activation, Constant, Denied, Flow, Role, StaticScales, Structure, check_bias
from pipeline.schemes import Arithmetic, Stored

_IDENTIFIER = b"TFL3"
_FLOATS: dict[str, tuple[Stored, str]] = {"FLOAT32": ("float32", "<f4"), "FLOAT16": ("float16", "<f2")}
_INTEGERS = {"INT32": "<i4", "INT64": "<i8", "BOOL": "?"}
"""Types of constant shapes, axes and indices without scales, and of ids and masks at run time."""
_SCALED: dict[str, tuple[Stored, str]] = {"INT8": ("int8", "i1"), "INT32": ("float32", "<i4")}
"""Types of constants with scales. A bias in units of its linear's products is as precise as floats."""
_ACTIVATIONS: dict[str, Activation] = {"RELU": "relu", "TANH": "tanh", "LOGISTIC": "sigmoid"}
_FUSED = {
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "ADD": "AddOptions",
    "MUL": "MulOptions",
    "SUB": "SubOptions",
    "DIV": "DivOptions",
    "CONCATENATION": "ConcatenationOptions",
}
"""Operations that may carry a fused activation, with the class of their options: those that encoders have."""
_SETTINGS: dict[str, tuple[int, ...]] = {
    "CUMSUM": (1,), "MEAN": (1,), "PAD": (1,), "RESHAPE": (1,), "SLICE": (1, 2), "SUM": (1,), "TRANSPOSE": (1,),
}  # fmt: skip
"""Inputs of an operation that are settings, such as axes and shapes, by index; all others are data."""
_ROLES: dict[str, tuple[Role | None, ...]] = {
    "FULLY_CONNECTED": (None, "weight", "bias"),
    "MUL": ("weight", "weight"),
    "ADD": ("bias", "bias"),
}
"""Roles of the inputs of an operation, in order."""
_SAME_VALUES = ("RESHAPE", "DEQUANTIZE")
_ROOTS = ("RSQRT", "SQRT")
_DENIED: dict[str, Denied] = {
    **dict.fromkeys(("CALL", "CALL_ONCE", "IF", "STABLEHLO_CASE", "STABLEHLO_WHILE", "WHILE"), "control flow"),
    **dict.fromkeys(
        ("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "STABLEHLO_RNG_BIT_GENERATOR"), "randomness"
    ),
    **dict.fromkeys(("CUSTOM", "DELEGATE", "STABLEHLO_COMPOSITE", "STABLEHLO_CUSTOM_CALL"), "a custom operator"),
}


@checked
def inspect(file: Path) -> tuple[Function, ...]:
    """Read the signatures back from a file, shortest first."""
    reader = _Reader.open(file)
    functions = [_function(reader, row) for row in reader.signatures()]
    return tuple(sorted(functions, key=lambda function: function.max_length))


def claims(file: Path) -> dict[str, str]:
    """Return nothing: the format stores no metadata of ours."""
    return {}


@checked
def structure(file: Path, functions: Collection[str] | None = None) -> Structure:
    """Read back the constants and attributes that can be compared with the checkpoint without running the file.

    Args:
        file: the file.
        functions: names of signatures, to read their subgraphs alone; None for every subgraph.

    Raises:
        ToolchainError: the file has content that is not understood here, and so cannot be compared.
    """
    reader = _Reader.open(file)
    for graph in reader.graphs() if functions is None else reader.graphs_of(functions):
        reader.add(_Graph(graph, reader))
    return reader.structure()


def constant_dtypes(file: Path) -> set[str]:
    """Return the types of all constants in a file, by the format's names."""
    reader = _Reader.open(file)
    tensors = (graph.Tensors(number) for graph in reader.graphs() for number in range(graph.TensorsLength()))
    return {reader.types[tensor.Type()] for tensor in tensors if len(reader.content(tensor))}


def _function(reader: "_Reader", row: Any) -> Function:
    graph = reader.model.Subgraphs(row.SubgraphIndex())
    inputs = tuple(_signature_tensor(row.Inputs(number), graph, reader) for number in range(row.InputsLength()))
    outputs = tuple(_signature_tensor(row.Outputs(number), graph, reader) for number in range(row.OutputsLength()))
    length = int(inputs[0].shape[1] or 0)
    return Function(
        name=row.SignatureKey().decode(), min_length=length, max_length=length, inputs=inputs, outputs=outputs
    )


def _signature_tensor(entry: Any, graph: Any, reader: "_Reader") -> Tensor:
    tensor = graph.Tensors(entry.TensorIndex())
    dtype = reader.types[tensor.Type()].lower()
    return Tensor.model_validate({"name": entry.Name().decode(), "dtype": dtype, "shape": _shape(tensor)})


def _names(enum: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enum).items() if isinstance(value, int)}


@dataclass
class _Reader:
    """Collects the structure of a file; a constant that several subgraphs read in the same way is kept once."""

    model: Any
    data: memoryview
    schema: Any
    constants: dict[tuple[object, ...], Constant] = field(default_factory=dict)
    epsilons: list[float] = field(default_factory=list)
    activations: list[Activation] = field(default_factory=list)
    numbers: dict[object, float] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    static_scales: list[StaticScales] = field(default_factory=list)
    denied: list[tuple[str, Denied]] = field(default_factory=list)

    def structure(self) -> Structure:
        """Return the structure collected so far."""
        order: dict[object, int] = {key: number for number, key in enumerate(self.constants)}
        return Structure(
            constants=tuple(self.constants.values()),
            epsilons=tuple(self.epsilons),
            activations=tuple(self.activations),
            uses=tuple(flow.numbered(order) for flow in self.flows),
            numbers=tuple(self.numbers.values()),
            arithmetic=tuple(self.arithmetic),
            static_scales=tuple(self.static_scales),
            denied=tuple(self.denied),
        )

    @classmethod
    def open(cls, file: Path) -> Self:
        """Map a file as a flatbuffer, without a runtime."""
        from ai_edge_litert import schema_py_generated as schema

        check_identifier(file, _IDENTIFIER)
        # The map is closed by the collector: the generated accessors keep views of it.
        with file.open("rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(schema.Model.GetRootAs(data, 0), memoryview(data), schema)

    def __post_init__(self) -> None:
        self.types = _names(self.schema.TensorType)
        self.fused = _names(self.schema.ActivationFunctionType)
        operations = _names(self.schema.BuiltinOperator)
        codes = [self.model.OperatorCodes(number) for number in range(self.model.OperatorCodesLength())]
        # The older, narrower field holds the kind if the newer is at its default.
        self.kinds = [operations[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes]

    def graphs(self) -> Iterator[Any]:
        """Yield the subgraphs."""
        return (self.model.Subgraphs(number) for number in range(self.model.SubgraphsLength()))

    def signatures(self) -> Iterator[Any]:
        """Yield the signatures."""
        return (self.model.SignatureDefs(number) for number in range(self.model.SignatureDefsLength()))

    def graphs_of(self, functions: Collection[str]) -> Iterator[Any]:
        """Yield the subgraph of each of these signatures, in the order of the file."""
        numbers = {row.SubgraphIndex() for row in self.signatures() if row.SignatureKey().decode() in functions}
        return (self.model.Subgraphs(number) for number in sorted(numbers))

    def add(self, graph: "_Graph") -> None:
        """Add a subgraph: its constants, epsilons and activations, and the constants that each operation reads."""
        flow = Flow()
        self.flows.append(flow)
        self.denied += [(one.kind, _DENIED[one.kind]) for one in graph.operations if one.kind in _DENIED]
        data, scales = graph.data(), graph.scales_of_blocks()
        for number, tensor in enumerate(graph.tensors):
            # Scales are part of the constant that names them, unless an operation reads them as well.
            if len(self.content(tensor)) and (number in data or number not in scales.values()):
                by_block = graph.tensors[scales[number]] if number in scales else None
                flow.constant(number, self._constant(tensor, by_block, data=number in data))
        rounded, int8 = Rounded(), graph.int8()
        for operation in graph.operations:
            follow(rounded, operation.kind, operation.inputs, operation.outputs, int8)
            static_scales = list(graph.static_scales(operation))
            self.static_scales += static_scales
            flow.operation(
                (number for number in operation.inputs if number >= 0),
                operation.outputs,
                dict(zip(operation.inputs, _ROLES.get(operation.kind, ()), strict=False)),
                *static_scales,
            )
            self.arithmetic += graph.arithmetic(operation)
            self.epsilons += graph.epsilon(operation)
            self.activations += graph.activation(operation)

    def content(self, tensor: Any) -> memoryview:
        """Return a constant's bytes; empty for a tensor that is computed at run time."""
        buffer = self.model.Buffers(tensor.Buffer())
        if buffer.Offset() > 1:
            return self.data[buffer.Offset() : buffer.Offset() + buffer.Size()]
        return memoryview(buffer.DataAsNumpy()).cast("B") if buffer.DataLength() else memoryview(b"")

    def _constant(self, tensor: Any, by_block: Any, *, data: bool) -> object:
        """Add a constant that is a weight, a number or integer data, and return its key.

        Args:
            tensor: the constant.
            by_block: the tensor of its scales, if it has one scale per block of columns.
            data: whether an operation reads it as data, not as a setting.
        """
        content = self.content(tensor)
        shape = _shape(tensor)
        kind = self.types[tensor.Type()]
        if int(np.prod(shape)) < 2:
            if kind in _FLOATS:
                self.numbers[self._place(tensor)] = float(np.frombuffer(content, _FLOATS[kind][1])[0])
            return None
        table = tensor.Quantization()
        scales = table.ScaleAsNumpy() if table is not None and table.ScaleLength() else None
        if kind in _INTEGERS and scales is None and not data:
            return None
        name = f"{(tensor.Name() or b'?').decode()} {shape}"
        key: tuple[object, ...] = (self._place(tensor), kind, shape)
        if kind in _INTEGERS and scales is None:
            # No checkpoint has such constants: they change ids on their way to the tables.
            values = np.frombuffer(content, _INTEGERS[kind]).reshape(shape)
            self._add(key, f"{name} of {kind}", values, "float32")
        elif kind in _FLOATS:
            stored, code = _FLOATS[kind]
            self._add(key, name, np.frombuffer(content, code).reshape(shape), stored)
        elif kind == "INT4" and by_block is not None:
            key += (self._place(by_block),)
            if key not in self.constants:
                self._add(key, name, by_blocks(content, self.content(by_block), shape), "int4")
        elif kind not in _SCALED or (table is not None and table.DetailsType()):
            raise ToolchainError(f"the .tflite has a constant {name} of {kind} in a form that is not read here.")
        elif scales is None:
            self._add(key, f"{name} without scales", np.frombuffer(content, "i1").reshape(shape), "int8")
        else:
            zeros = table.ZeroPointAsNumpy() if table.ZeroPointLength() else np.zeros(1, np.int64)
            key += (scales.tobytes(), zeros.tobytes(), table.QuantizedDimension())
            if key not in self.constants:
                stored, code = _SCALED[kind]
                raw = np.frombuffer(content, code).reshape(shape)
                self._add(key, name, by_axis(raw, scales, zeros, table.QuantizedDimension()), stored)
        return key

    def _place(self, tensor: Any) -> object:
        buffer = self.model.Buffers(tensor.Buffer())
        return buffer.Offset() if buffer.Offset() > 1 else -tensor.Buffer()

    def _add(self, key: tuple[object, ...], name: str, values: NDArray[np.generic], stored: Stored) -> None:
        if key not in self.constants:
            self.constants[key] = Constant(name, values.astype(np.float32, copy=False), stored)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(tensor.Shape(number)) for number in range(tensor.ShapeLength()))


@dataclass(frozen=True)
class _Operation:
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    table: Any


class _Graph:
    """One subgraph, with the maker of each tensor."""

    def __init__(self, graph: Any, reader: _Reader) -> None:
        self._reader = reader
        self.tensors = [graph.Tensors(number) for number in range(graph.TensorsLength())]
        self.operations = list(self._operations(graph))
        self._makers = {output: operation for operation in self.operations for output in operation.outputs}
        self._constant = {number for number, tensor in enumerate(self.tensors) if len(reader.content(tensor))}
        """Tensors that depend on no input of the graph; operations are stored in the order in which they run."""
        for operation in self.operations:
            if {number for number in operation.inputs if number >= 0} <= self._constant:
                self._constant.update(operation.outputs)

    def _operations(self, graph: Any) -> Iterator[_Operation]:
        for number in range(graph.OperatorsLength()):
            table = graph.Operators(number)
            kind = self._reader.kinds[table.OpcodeIndex()]
            inputs = tuple(int(table.Inputs(at)) for at in range(table.InputsLength()))
            outputs = tuple(int(table.Outputs(at)) for at in range(table.OutputsLength()))
            yield _Operation(kind, inputs, outputs, table)

    def _type(self, tensor: int) -> str:
        return self._reader.types[self.tensors[tensor].Type()]

    def data(self) -> set[int]:
        """Return the tensors that an operation reads as data, not as axes or shapes."""
        return {
            number
            for operation in self.operations
            for at, number in enumerate(operation.inputs)
            if at not in _SETTINGS.get(operation.kind, ())
        }

    def int8(self) -> dict[int, Any]:
        """Return the tensors that are int8 at run time, by index."""
        every = enumerate(self.tensors)
        return {at: one for at, one in every if self._type(at) == "INT8" and at not in self._constant}

    def scales_of_blocks(self) -> dict[int, int]:
        """Return the tensors of blockwise scales, by the tensors that they scale."""
        blocks = self._reader.schema.BlockwiseQuantization()
        found = {}
        for number, tensor in enumerate(self.tensors):
            table = tensor.Quantization()
            details = table.Details() if table is not None else None
            if (
                details is not None
                and table.DetailsType() == self._reader.schema.QuantizationDetails.BlockwiseQuantization
            ):
                blocks.Init(details.Bytes, details.Pos)
                found[number] = int(blocks.Scales())
        return found

    def arithmetic(self, operation: _Operation) -> Iterator[Arithmetic]:
        """Yield the arithmetic of a linear: int8 if it reads an int8 or int4 matrix that nothing dequantises before.

        Products in attention are no linears, though those of a single head are written as such.
        """
        if operation.kind == "FULLY_CONNECTED" and operation.inputs[1] in self._constant:
            matrix = self.tensors[operation.inputs[1]]
            if self._reader.types[matrix.Type()] not in ("INT4", "INT8"):
                yield "float"
            else:
                yield "static_int8" if self._type(operation.inputs[0]) == "INT8" else "dynamic_int8"

    def static_scales(self, operation: _Operation) -> Iterator[StaticScales]:
        """Yield scale and zero point of a static int8 linear's input and of its output."""
        if "static_int8" in self.arithmetic(operation):
            read, made = (
                scale_zero_point(self.tensors[number]) for number in (operation.inputs[0], operation.outputs[0])
            )
            weight, *biases = operation.inputs[1:3]
            for bias in (one for one in biases if one >= 0 and self._type(one) == "INT32"):
                scales, own = (self.tensors[number].Quantization().ScaleAsNumpy() for number in (weight, bias))
                check_bias(own, scales, read[0])
            yield (*read, *made)

    def epsilon(self, operation: _Operation) -> Iterator[float]:
        """Yield the epsilon if an operation is the root in a normalisation: root(mean + epsilon).

        Any other root, such as that of the pooled vector's norm, has none; a root of a mean alone has lost its epsilon.
        """
        if operation.kind not in _ROOTS:
            return
        source = self._maker(operation.inputs[0])
        if source is None:
            return
        if source.kind == "MEAN":
            yield 0.0
        elif source.kind == "ADD":
            numbers = [number for number in map(self._number, source.inputs) if number is not None]
            if len(numbers) == 1:
                yield numbers[0]

    def activation(self, operation: _Operation) -> Iterator[Activation]:
        """Yield the activation that an operation computes, alone or fused."""
        if operation.kind == "GELU":
            yield "gelu_tanh" if self._options(operation, "GeluOptions").Approximate() else "gelu"
        elif operation.kind in _ACTIVATIONS:
            yield _ACTIVATIONS[operation.kind]
        elif operation.kind in _FUSED and operation.table.BuiltinOptions() is not None:
            fused = self._reader.fused[self._options(operation, _FUSED[operation.kind]).FusedActivationFunction()]
            if fused in _ACTIVATIONS:
                yield _ACTIVATIONS[fused]

    def _options(self, operation: _Operation, name: str) -> Any:
        options = getattr(self._reader.schema, name)()
        table = operation.table.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        return options

    def _maker(self, tensor: int) -> _Operation | None:
        """Return the operation that computes a tensor, reshapes and dequantisations skipped."""
        maker = self._makers.get(tensor)
        while maker is not None and maker.kind in _SAME_VALUES:
            maker = self._makers.get(maker.inputs[0])
        return maker

    def _number(self, tensor: int) -> float | None:
        """Return the value of a constant of one element; None if it is computed at run time or has scales."""
        maker = self._makers.get(tensor)
        found = self.tensors[maker.inputs[0] if maker is not None and maker.kind in _SAME_VALUES else tensor]
        content, kind = self._reader.content(found), self._reader.types[found.Type()]
        values = np.frombuffer(content if kind in _FLOATS else b"", _FLOATS.get(kind, (None, "<f4"))[1])
        return float(values[0]) if len(values) == 1 else None
