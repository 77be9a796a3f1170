"""Reader of ExecuTorch files: methods, constants of the program, and the content of its delegates.

No runtime is imported; program and XNNPACK payload are flatbuffers whose schemas the executorch package contains.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ToolchainError
from pipeline.formats.checked import check_identifier, checked
from pipeline.formats.executorch import codes, schemas
from pipeline.formats.executorch.delegate import Graph
from pipeline.formats.executorch.facts import METHOD, OUTPUT_NAMES
from pipeline.formats.executorch.flows import LAYER_NORM, TABLES, PlanFlow
from pipeline.formats.flatbuffer import Schema, Table
from pipeline.formats.signature import Function, Tensor
from pipeline.formats.structure import Activation, Constant, Denied, Flow, StaticScales, Structure
from pipeline.schemes import Arithmetic, Stored

IDENTIFIER = b"ET12"
_XNNPACK = "XnnpackBackend"
_FLOATS: dict[int, tuple[Stored, str]] = {6: ("float32", "<f4"), 5: ("float16", "<f2")}
"""Storage of floats by number in executorch/exir/scalar_type.py."""
_BYTES = {0: "u1", 1: "i1"}
_SCALAR_TYPES = {3: "int32", 4: "int64", 6: "float32"}
"""Names of executorch/exir/scalar_type.py."""
_ALL_TYPES = {**_SCALAR_TYPES, 0: "uint8", 1: "int8", 2: "int16", 5: "float16", 7: "float64", 11: "bool"}
"""Those that other tools' files may take or give as well."""
Described = tuple[str, tuple[int, ...], bool]
"""Type of a tensor, its sizes, and whether some of them are only the largest."""
_KERNELS = ("aten", "dim_order_ops", "executorch_prim", "quantized_decomposed")
"""Namespaces of executorch's own kernels."""
_RANDOM = ("aten::native_dropout", "aten::rand", "aten::randn")
"""Kernels among them that draw random numbers."""
_JUMP = "JumpFalseCall"
_KERNEL_ACTIVATIONS: dict[str, Activation] = {"aten::relu": "relu", "aten::sigmoid": "sigmoid", "aten::tanh": "tanh"}


@checked
def inspect(file: Path) -> tuple[Function, ...]:
    """Read names, types, shapes and bounds back from a file, without loading or running it.

    Raises:
        ArtifactError: the file is not a `.pte`, or damaged.
    """
    plans = {str(plan["name"]): plan for plan in _opened(file).table["execution_plan"]}
    # Constant methods take nothing.
    return tuple(_method(name, plans) for name in dict.fromkeys((METHOD, *plans)) if len(plans[name]["inputs"]))


def _method(name: str, plans: Mapping[str, Table]) -> Function:
    plan, prefix = plans[name], name.removesuffix(METHOD)
    inputs = _tensors(plan, plan["inputs"], _constants(plans["get_input_names"]))
    outputs = _tensors(plan, plan["outputs"], _constants(plans[f"{prefix}{OUTPUT_NAMES}"]))
    bounds = [int(_constants(plans[f"get_{bound}_seq_len"])[0]) for bound in ("min", "max")]
    return Function(name=name, min_length=bounds[0], max_length=bounds[1], inputs=inputs, outputs=outputs)


@checked
def method_tensors(file: Path) -> dict[str, tuple[list[Described], list[Described]]]:
    """Return the inputs and outputs of each method of any `.pte`, whoever made it; those that are no tensors too."""
    found = {}
    for plan in _opened(file).table["execution_plan"]:
        inputs, outputs = ([_described(plan["values"][at]) for at in plan[kind]] for kind in ("inputs", "outputs"))
        found[str(plan["name"])] = (inputs, outputs)
    return found


def _described(value: Table) -> Described:
    if value.member("val") != "Tensor":
        return str(value.member("val")), (), False
    tensor = value["val"]
    dtype = _ALL_TYPES.get(tensor["scalar_type"], f"type {tensor['scalar_type']}")
    return dtype, tuple(int(size) for size in tensor["sizes"]), tensor["shape_dynamism"] != 0


def claims(file: Path) -> dict[str, str]:
    """Return nothing: the format stores no metadata of ours."""
    return {}


@checked
def structure(file: Path, functions: Collection[str] | None = None) -> Structure:
    """Read back the constants and attributes that can be compared with the checkpoint without running the file.

    Args:
        file: the file.
        functions: names of methods, to read them alone; None for every method.

    Raises:
        ToolchainError: the file has content that is not understood here, and so cannot be compared.
    """
    reader = _Reader(_opened(file))
    for plan in reader.program.table["execution_plan"]:
        if functions is None or plan["name"] in functions:
            reader.add_plan(plan)
    order: dict[object, int] = {key: number for number, key in enumerate(reader.constants)}
    return Structure(
        constants=tuple(reader.constants.values()),
        epsilons=tuple(reader.epsilons),
        activations=tuple(reader.activations),
        uses=tuple(flow.numbered(order) for flow in reader.flows if flow.uses),
        numbers=tuple(reader.numbers.values()),
        arithmetic=tuple(reader.arithmetic),
        static_scales=tuple(reader.static_scales),
        denied=tuple(reader.denied),
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
    """Return the numbers and strings that a constant method returns."""
    values = [plan["values"][index] for index in plan["outputs"]]
    return [value["val"]["string_val" if value.member("val") == "String" else "int_val"] for value in values]


@dataclass(frozen=True)
class _Program:
    """A `.pte` as bytes, tables and segments."""

    table: Table
    data: memoryview
    base: int
    """Offset of the first segment, in bytes."""
    segments: list[tuple[int, int]]
    """Offset from `base` and size, in bytes."""
    named: dict[str, int]
    """Index of the segment by key."""

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

    def named_data(self, key: str) -> memoryview:
        """Return the bytes that are stored under a name."""
        return self.segment(self.named[key])

    def constant(self, number: int) -> memoryview:
        """Return the bytes from a constant's start to the segment's end; its tensor's shape says how many it has."""
        row = self.table["constant_segment"]
        return self.segment(row["segment_index"])[int(row["offsets"][number]) :]


def _opened(file: Path) -> _Program:
    check_identifier(file, IDENTIFIER)
    return _Program.read(memoryview(file.read_bytes()))


@dataclass
class _Reader:
    """Collects the structure of a file; a constant is kept once for each way in which tensors read it."""

    program: _Program
    delegate_schema: Schema = field(default_factory=lambda: schemas.schema(schemas.XNNPACK))
    constants: dict[tuple[object, ...], Constant] = field(default_factory=dict)
    epsilons: list[float] = field(default_factory=list)
    activations: list[Activation] = field(default_factory=list)
    numbers: dict[object, float] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    static_scales: list[StaticScales] = field(default_factory=list)
    denied: list[tuple[str, Denied]] = field(default_factory=list)

    def add_plan(self, plan: Table) -> None:
        """Add one method: its instructions in order, then the constants that no kernel explained."""
        values = plan["values"]
        operators = [row["name"] for row in plan["operators"]]
        explained: set[int] = set()
        flow = PlanFlow(values, plan["inputs"])
        self.flows.append(flow)
        for chain in plan["chains"]:
            for instruction in chain["instructions"]:
                kind, call = instruction.member("instr_args"), instruction["instr_args"]
                if kind == "KernelCall":
                    kernel = operators[call["op_index"]]
                    explained |= self._kernel(kernel, [values[index] for index in call["args"]])
                    flow.kernel(kernel, list(call["args"]))
                elif kind == "DelegateCall":
                    self._delegate(plan["delegates"][call["delegate_index"]], list(call["args"]), flow)
                elif kind == _JUMP:
                    self.denied.append((_JUMP, "control flow"))
        for value in values:
            if value.member("val") == "Tensor":
                self._tensor(value["val"], explained)

    def _kernel(self, name: str, operands: list[Table]) -> set[int]:
        """Add a kernel's activation, epsilon or table; return the buffers that this explains."""
        if name in _RANDOM:
            self.denied.append((name, "randomness"))
        elif name.partition("::")[0] not in _KERNELS:
            self.denied.append((name, "a custom operator"))
        if name == LAYER_NORM:
            self.epsilons.append(operands[4]["val"]["double_val"])
        elif name == "aten::gelu":
            self.activations.append("gelu_tanh" if operands[1]["val"]["string_val"] == "tanh" else "gelu")
        elif name in _KERNEL_ACTIVATIONS:
            self.activations.append(_KERNEL_ACTIVATIONS[name])
        elif name in TABLES:
            table, scales, zeros = operands[:3]
            return self._embedding(
                TABLES[name], table["val"], scales["val"], zeros["val"] if zeros.member("val") == "Tensor" else None
            )
        return set()

    def _embedding(self, stored: Stored, table: Table, scales: Table, zeros: Table | None) -> set[int]:
        """Add a quantised table `(rows, width)`, in four bits half as wide, with scales `(rows, groups)`."""
        buffers = [part["data_buffer_idx"] for part in (table, scales, zeros) if part is not None]
        raw = codes.of_table(self._read(table, "u1").view(np.uint8)) if stored == "int4" else self._read(table, "i1")
        scale = self._read(scales, _FLOATS[scales["scalar_type"]][1]).reshape(len(raw), -1)
        zero = None if zeros is None else self._read(zeros, _scalar(zeros)).reshape(scale.shape)
        key = ("constant", *buffers)
        self._add(key, f"embedding {raw.shape}", lambda: codes.by_group(raw, scale, zero), stored)
        return set(buffers)

    def _tensor(self, tensor: Table, explained: set[int]) -> None:
        number = tensor["data_buffer_idx"]
        external = tensor["extra_tensor_info"] is not None and tensor["extra_tensor_info"]["location"]
        if external:
            raise ToolchainError("the .pte keeps weights in another file, which is not read here.")
        # Buffer 0 means that the tensor is computed at run time.
        if not number or number in explained:
            return
        kind = tensor["scalar_type"]
        if int(np.prod(tensor["sizes"])) < 2:
            if kind in _FLOATS:
                self.numbers["constant", number] = float(self._read(tensor, _FLOATS[kind][1]).ravel()[0])
            return
        if kind in _BYTES:
            raw = self._read(tensor, _BYTES[kind])
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

    def _delegate(self, delegate: Table, arguments: list[int], flow: "PlanFlow") -> None:
        """Add the content of a delegate."""
        if delegate["id"] != _XNNPACK or not delegate["processed"]["location"]:
            raise ToolchainError(f"the .pte has a delegate {delegate['id']}; only XNNPACK's in segments is read here.")
        payload = self.program.segment(delegate["processed"]["index"])
        graph = Graph(payload, self.delegate_schema, self.program.named_data)
        self.activations += graph.activations()
        self.arithmetic += graph.arithmetic()
        static_scales = graph.static_scales()
        self.static_scales += static_scales.values()
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
            one = node["xnode_union"]
            inner.operation(node.member("xnode_union"), one, static_scales.get(one.position))


def _scalar(tensor: Table) -> str:
    number = int(tensor["scalar_type"])
    return _BYTES.get(number) or _FLOATS[number][1]


def _widened(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return values.astype(np.float32, copy=False)
