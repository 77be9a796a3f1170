"""What an ExecuTorch file holds, read from its bytes: its methods, the program's constants, and every delegate's.

No runtime is imported; program and XNNPACK payload are flatbuffers whose schemas the executorch package carries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.backends.checked import checked
from pipeline.backends.executorch import bounds, kernels, schemas
from pipeline.backends.executorch.flows import EMBEDDING, LAYER_NORM, QUANTISED, PlanFlow, plain_value
from pipeline.backends.flatbuffer import Schema, Table
from pipeline.backends.signature import Function, Tensor
from pipeline.backends.structure import Activation, Constant, Flow, Limit, Steps, Structure
from pipeline.errors import ToolchainError
from pipeline.schemes import Arithmetic, Stored

_XNNPACK = "XnnpackBackend"
_NAMED = 2**64 - 1
"""The offset of a delegate's constant that lies in the program's named data."""
_FLOATS: dict[int, tuple[Stored, str]] = {6: ("float32", "<f4"), 5: ("float16", "<f2")}
"""By number in executorch/exir/scalar_type.py."""
_INT8 = 1
_SCALAR_TYPES = {3: "int32", 4: "int64", 6: "float32"}
"""executorch/exir/scalar_type.py."""
_DELEGATE_FLOATS: dict[str, tuple[Stored, str]] = {
    "xnn_datatype_fp32": ("float32", "<f4"),
    "xnn_datatype_fp16": ("float16", "<f2"),
}
_DELEGATE_SCALED: dict[str, tuple[Stored, str]] = {
    **dict.fromkeys(("xnn_datatype_qcint8", "xnn_datatype_qint8"), ("int8", "i1")),
    # A bias in steps of its linear's products is as fine as floats.
    **dict.fromkeys(("xnn_datatype_qcint32", "xnn_datatype_qint32"), ("float32", "<i4")),
}
_OPEN, _RELU = (-np.inf, np.inf), (0.0, np.inf)
_KERNEL_ACTIVATIONS: dict[str, Activation] = {"aten::relu": "relu", "aten::sigmoid": "sigmoid", "aten::tanh": "tanh"}
_DELEGATE_ACTIVATIONS: dict[str, Activation] = {"XNNGelu": "gelu", "XNNTanh": "tanh", "XNNSigmoid": "sigmoid"}


@checked(bounds.check)
def inspect(file: Path) -> tuple[Function, ...]:
    """Read names, types, shapes and bounds back from a file, without loading or running it.

    Raises:
        ArtifactError: the file is not a `.pte`, or damaged.
    """
    plans = {plan["name"]: plan for plan in _Program.read(memoryview(file.read_bytes())).table["execution_plan"]}
    forward = plans["forward"]
    inputs = _tensors(forward, forward["inputs"], _constants(plans["get_input_names"]))
    outputs = _tensors(forward, forward["outputs"], _constants(plans["get_output_names"]))
    bounds = [int(_constants(plans[f"get_{bound}_seq_len"])[0]) for bound in ("min", "max")]
    return (Function(name="forward", min_length=bounds[0], max_length=bounds[1], inputs=inputs, outputs=outputs),)


def claims(file: Path) -> dict[str, str]:
    """Return nothing: the format carries no metadata of ours."""
    return {}


@checked(bounds.check)
def structure(file: Path) -> Structure:
    """Read back what can be compared with the checkpoint without running the file.

    Raises:
        ToolchainError: the file holds something that is not understood here, which is therefore not vouched for.
    """
    data = memoryview(file.read_bytes())
    reader = _Reader(_Program.read(data))
    names = reader.input_names()
    for plan in reader.program.table["execution_plan"]:
        reader.add_plan(plan, names)
    order: dict[object, int] = {key: number for number, key in enumerate(reader.constants)}
    return Structure(
        constants=tuple(reader.constants.values()),
        epsilons=tuple(reader.epsilons),
        activations=tuple(reader.activations),
        uses=tuple(flow.numbered(order) for flow in reader.flows if flow.uses),
        numbers=tuple(reader.numbers.values()),
        arithmetic=tuple(reader.arithmetic),
        steps=tuple(reader.steps),
        operators=tuple(kinds for kinds in reader.operators if kinds),
        limits=tuple(reader.limits),
    )


def _tensors(plan: Table, indices: list[int], names: list[Any]) -> tuple[Tensor, ...]:
    tensors = []
    for index, name in zip(indices, names, strict=True):
        value = plan["values"][index]["val"]
        dynamic = value["shape_dynamism"] != 0
        shape = [None if dynamic and axis == 1 else int(size) for axis, size in enumerate(value["sizes"])]
        dtype = _SCALAR_TYPES[value["scalar_type"]]
        tensors.append(Tensor.model_validate({"name": name, "dtype": dtype, "shape": tuple(shape)}))
    return tuple(tensors)


def _constants(plan: Table) -> list[Any]:
    """Return the numbers and strings that a constant method gives."""
    values = [plan["values"][index] for index in plan["outputs"]]
    return [value["val"]["string_val" if value.member("val") == "String" else "int_val"] for value in values]


@dataclass(frozen=True)
class _Program:
    """A `.pte` as bytes and tables."""

    table: Table
    data: memoryview
    base: int
    """Where the segments begin, in bytes."""
    segments: list[tuple[int, int]]
    """Offset from `base` and size, in bytes."""
    named: dict[str, int]
    """Segment by key."""

    @classmethod
    def read(cls, data: memoryview) -> "_Program":
        table = schemas.schema(schemas.PROGRAM).root(data, "Program")
        segments = [(row["offset"], row["size"]) for row in table["segments"]]
        named = {row["key"]: row["segment_index"] for row in table["named_data"]}
        return cls(table, data, int.from_bytes(data[24:32], "little"), segments, named)

    def segment(self, number: int) -> memoryview:
        """Return a segment's bytes."""
        offset, size = self.segments[number]
        return self.data[self.base + offset : self.base + offset + size]

    def constant(self, number: int) -> memoryview:
        """Return what begins at a number of the constant segment; how long it is, the tensor says."""
        row = self.table["constant_segment"]
        return self.segment(row["segment_index"])[int(row["offsets"][number]) :]


@dataclass
class _Reader:
    """What a file holds, collected; a constant that several tensors read is kept once per way of reading it."""

    program: _Program
    delegate_schema: Schema = field(default_factory=lambda: schemas.schema(schemas.XNNPACK))
    constants: dict[tuple[object, ...], Constant] = field(default_factory=dict)
    epsilons: list[float] = field(default_factory=list)
    activations: list[Activation] = field(default_factory=list)
    numbers: dict[object, float] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    steps: list[Steps] = field(default_factory=list)
    operators: list[tuple[str, ...]] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)

    def input_names(self) -> list[str]:
        """Return the names of the inputs of `forward`, which a constant method gives."""
        [plan] = [plan for plan in self.program.table["execution_plan"] if plan["name"] == "get_input_names"]
        return [str(plan["values"][number]["val"]["string_val"]) for number in plan["outputs"]]

    def add_plan(self, plan: Table, names: list[str]) -> None:
        """Add one method: what its instructions say in their order, then the constants that no kernel explained.

        Args:
            plan: the method.
            names: what its inputs are called, as far as it has any.
        """
        values = plan["values"]
        operators = [row["name"] for row in plan["operators"]]
        explained: set[int] = set()
        flow = PlanFlow(values, plan["inputs"])
        self.flows.append(flow)
        integers = kernels.Integers(values, dict(zip(plan["inputs"], names, strict=False)), self.program.constant)
        kinds: list[str] = []
        for chain in plan["chains"]:
            for instruction in chain["instructions"]:
                call = instruction["instr_args"]
                if instruction.member("instr_args") == "KernelCall":
                    operands = [values[index] for index in call["args"]]
                    kernel = operators[call["op_index"]]
                    kinds.append(integers.kind(kernel, list(call["args"])))
                    self.limits += integers.limits(kernel, list(call["args"]))
                    explained |= self._kernel(kernel, operands)
                    flow.kernel(kernel, list(call["args"]))
                elif instruction.member("instr_args") == "DelegateCall":
                    kinds += integers.into_delegate(list(call["args"]))
                    kinds += self._delegate(plan["delegates"][call["delegate_index"]], list(call["args"]), flow)
                else:
                    kinds.append(str(instruction.member("instr_args")))
        self.operators.append(tuple(kinds))
        for value in values:
            if value.member("val") == "Tensor":
                self._tensor(value["val"], explained)

    def _kernel(self, name: str, operands: list[Table]) -> set[int]:
        """Add what a kernel says beyond its tensors; return the buffers that are explained by that."""
        if name == LAYER_NORM:
            self.epsilons.append(operands[4]["val"]["double_val"])
        elif name == "aten::gelu":
            self.activations.append("gelu_tanh" if operands[1]["val"]["string_val"] == "tanh" else "gelu")
        elif name in _KERNEL_ACTIVATIONS:
            self.activations.append(_KERNEL_ACTIVATIONS[name])
        elif name == EMBEDDING:
            table, scales, zeros = operands[:3]
            return self._embedding(
                table["val"], scales["val"], zeros["val"] if zeros.member("val") == "Tensor" else None
            )
        return set()

    def _embedding(self, table: Table, scales: Table, zeros: Table | None) -> set[int]:
        """Add a quantised table `(rows, width)` with scales `(rows, groups)`."""
        buffers = [part["data_buffer_idx"] for part in (table, scales, zeros) if part is not None]
        raw = self._read(table, "i1")
        scale = self._read(scales, _FLOATS[scales["scalar_type"]][1]).reshape(len(raw), -1)
        zero = np.zeros_like(scale) if zeros is None else self._read(zeros, _scalar(zeros)).reshape(scale.shape)
        self._add(("constant", *buffers), f"embedding {raw.shape}", lambda: _by_group(raw, scale, zero), "int8")
        return set(buffers)

    def _tensor(self, tensor: Table, explained: set[int]) -> None:
        number = tensor["data_buffer_idx"]
        external = tensor["extra_tensor_info"] is not None and tensor["extra_tensor_info"]["location"]
        if external:
            raise ToolchainError("the .pte keeps weights in another file, which is not read here.")
        # Buffer 0 means: made at run time.
        if not number or number in explained:
            return
        kind = tensor["scalar_type"]
        if int(np.prod(tensor["sizes"])) < 2:
            if kind in _FLOATS:
                self.numbers["constant", number] = float(self._read(tensor, _FLOATS[kind][1]).ravel()[0])
            return
        if kind == _INT8:
            raw = self._read(tensor, "i1")
            self._add(("constant", number), f"int8 {raw.shape} without scales", lambda: raw.astype(np.float32), "int8")
        elif kind in _FLOATS:
            stored, code = _FLOATS[kind]
            values = self._read(tensor, code)
            self._add(("constant", number), f"constant {number} {values.shape}", lambda: _widened(values), stored)

    def _read(self, tensor: Table, code: str) -> NDArray[np.generic]:
        sizes = [int(size) for size in tensor["sizes"]]
        if list(tensor["dim_order"]) != list(range(len(sizes))):
            raise ToolchainError(f"the .pte has a constant {sizes} whose axes lie in order {tensor['dim_order']}.")
        data = self.program.constant(tensor["data_buffer_idx"])
        return np.frombuffer(data, code, int(np.prod(sizes))).reshape(sizes)

    def _add(
        self, key: tuple[object, ...], name: str, values: Callable[[], NDArray[np.float32]], stored: Stored
    ) -> None:
        if key not in self.constants:
            self.constants[key] = Constant(name, values(), stored)

    def _delegate(self, delegate: Table, arguments: list[int], flow: "PlanFlow") -> list[str]:
        """Add what a delegate holds, and return the kinds of its nodes."""
        if delegate["id"] != _XNNPACK or not delegate["processed"]["location"]:
            raise ToolchainError(f"the .pte has a delegate {delegate['id']}; only XNNPACK's in segments is read here.")
        payload = self.program.segment(delegate["processed"]["index"])
        graph = _Graph(payload, self.delegate_schema, self.program)
        self.activations += graph.activations()
        self.arithmetic += graph.arithmetic()
        self.steps += graph.steps()
        self.limits += graph.limits()
        inner = flow.inside(arguments)
        for value in graph.table["xvalues"]:
            tensor = value["xvalue_union"]
            for key, name, values, stored in graph.constant(tensor):
                self._add(key, name, values, stored)
                inner.constant(key, tensor)
            for place, number in graph.number(tensor):
                self.numbers[place] = number
            inner.add(tensor)
        for node in graph.table["xnodes"]:
            inner.operation(node.member("xnode_union"), node["xnode_union"])
        return [str(node.member("xnode_union")) for node in graph.table["xnodes"]]


Found = tuple[tuple[object, ...], str, Callable[[], NDArray[np.float32]], Stored]


class _Graph:
    """One XNNPACK payload: a header, a graph, and constants that lie behind it or in the program's named data.

    Source: `XNNHeader` in executorch/backends/xnnpack/serialization/xnnpack_graph_serialize.py.
    """

    def __init__(self, payload: memoryview, schema: Schema, program: _Program) -> None:
        if bytes(payload[4:8]) != b"XH00":
            raise ToolchainError(f"an XNNPACK payload begins with {bytes(payload[4:8])!r}, not XH00.")
        places = ((10, 14), (14, 18), (18, 22), (22, 30))
        at, size, self._data_at, _ = (int.from_bytes(payload[low:high], "little") for low, high in places)
        self.table = schema.root(payload[at : at + size], "XNNGraph")
        self._payload, self._program, self._where = payload, program, (id(payload), at)
        self._kinds = {number: name for name, number in schema.enums["XNNDatatype"][1].items()}

    def activations(self) -> Iterator[Activation]:
        """Return the graph's activations; what is cut off below zero alone is a relu."""
        for node in self.table["xnodes"]:
            kind = node.member("xnode_union")
            if kind in _DELEGATE_ACTIVATIONS:
                yield _DELEGATE_ACTIVATIONS[kind]
            elif _limit(node) == _RELU:
                yield "relu"

    def limits(self) -> Iterator[Limit]:
        """Yield the bounds that nodes have, those of a relu left out; any kind of node may have them."""
        for node in self.table["xnodes"]:
            if _limit(node) not in (_RELU, _OPEN):
                yield _limit(node)

    def arithmetic(self) -> Iterator[Arithmetic]:
        """Yield what each linear multiplies: integers, where its input is quantised before, by row or as a whole."""
        kinds: dict[str | None, Arithmetic] = {"PerTokenDynamicQuant": "dynamic_int8", "PerTensorQuant": "static_int8"}
        quantised = self._quantised()
        for linear in self._linears():
            value = quantised.get(linear["input1_id"])
            yield kinds.get(value.member("quant_params"), "float") if value is not None else "float"

    def steps(self) -> Iterator[Steps]:
        """Yield the scales and zero points of what each linear of static int8 reads and gives."""
        known = {
            number: value["quant_params"]
            for number, value in self._quantised().items()
            if value.member("quant_params") == "PerTensorQuant"
        }
        for linear in self._linears():
            read, made = (known.get(linear[name]) for name in ("input1_id", "output_id"))
            if read is not None and made is None:
                raise ToolchainError("the .pte has a linear that reads int8 and gives none, which is not read here.")
            if read is not None and made is not None:
                yield (read["scale"], read["zero_point"], made["scale"], made["zero_point"])

    def _quantised(self) -> dict[int, Table]:
        """Return the values that have a scale, by their numbers."""
        values = [value["xvalue_union"] for value in self.table["xvalues"]]
        return {plain_value(value)["id_out"]: value for value in values if value.name == QUANTISED}

    def _linears(self) -> Iterator[Table]:
        return (
            node["xnode_union"] for node in self.table["xnodes"] if node.member("xnode_union") == "XNNFullyConnected"
        )

    def constant(self, value: Table) -> Iterator[Found]:
        """Yield what a value holds, if it is a constant."""
        tensor = plain_value(value)
        number = tensor["constant_buffer_idx"]
        sizes = tuple(int(size) for size in tensor["dims"])
        if not number or int(np.prod(sizes)) < 2:
            return
        key, data = self._data(number)
        kind = self._kinds[tensor["datatype"]]
        if kind in _DELEGATE_FLOATS:
            stored, code = _DELEGATE_FLOATS[kind]
            values = np.frombuffer(data, code, int(np.prod(sizes))).reshape(sizes)
            yield (*key, sizes), f"XNNPACK {sizes}", lambda: _widened(values), stored
        elif kind in _DELEGATE_SCALED:
            stored, code = _DELEGATE_SCALED[kind]
            raw = np.frombuffer(data, code, int(np.prod(sizes))).reshape(sizes)
            quantised, scale, axis, zero = self._scales(value)
            yield (*key, sizes, *quantised), f"XNNPACK {sizes}", lambda: _by_axis(raw, scale, axis, zero), stored
        elif kind != "xnn_datatype_int32":
            raise ToolchainError(f"the .pte has an XNNPACK constant of {kind}, which is not read here.")

    def number(self, value: Table) -> Iterator[tuple[object, float]]:
        """Yield the number that a value holds, if it is a constant of one element."""
        tensor = plain_value(value)
        number = tensor["constant_buffer_idx"]
        kind = self._kinds[tensor["datatype"]]
        if number and int(np.prod([int(size) for size in tensor["dims"]])) == 1 and kind in _DELEGATE_FLOATS:
            key, data = self._data(number)
            yield key, float(np.frombuffer(data, _DELEGATE_FLOATS[kind][1], 1)[0])

    def _scales(self, value: Table) -> tuple[tuple[object, ...], NDArray[np.float32], int, int]:
        """Return a key for the parameters, the scales, their axis, and the zero point."""
        row = value["quant_params"]
        kind = value.member("quant_params")
        if kind == "PerTensorQuant":
            scale = np.array([row["scale"]], np.float32)
            return (row["scale"], row["zero_point"]), scale, 0, row["zero_point"]
        if kind != "PerChannelQuant":
            raise ToolchainError(f"the .pte has an XNNPACK constant with {kind}, which is not read here.")
        key, data = self._data(row["scale_buffer_idx"])
        return key, np.frombuffer(data, "<f4", row["num_scales"]), row["channel_dim"], 0

    def _data(self, number: int) -> tuple[tuple[object, ...], memoryview]:
        """Return a constant's bytes and what tells it from others."""
        row = self.table["constant_data"][number]
        if row["offset"] == _NAMED:
            return (row["named_key"],), self._program.segment(self._program.named[row["named_key"]])
        start = self._data_at + row["offset"]
        return (*self._where, row["offset"]), self._payload[start : start + row["size"]]


def _limit(node: Table) -> Limit:
    bounds = node["output_min_max"]
    return _OPEN if bounds is None else (bounds["output_min"], bounds["output_max"])


def _scalar(tensor: Table) -> str:
    return "i1" if tensor["scalar_type"] == _INT8 else _FLOATS[tensor["scalar_type"]][1]


def _widened(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return values.astype(np.float32, copy=False)


def _by_group(raw: NDArray[np.generic], scales: NDArray[np.generic], zeros: NDArray[np.generic]) -> NDArray[np.float32]:
    """Multiply `(rows, width)` out with scales `(rows, groups)`."""
    groups = raw.astype(np.float32).reshape(*scales.shape, -1)
    values: NDArray[np.float32] = (groups - zeros.astype(np.float32)[..., None]) * scales.astype(np.float32)[..., None]
    return values.reshape(raw.shape)


def _by_axis(raw: NDArray[np.generic], scales: NDArray[np.float32], axis: int, zero: int) -> NDArray[np.float32]:
    shape = [1] * raw.ndim
    shape[axis] = -1
    return (raw.astype(np.float32) - np.float32(zero)) * scales.reshape(shape)
