"""Follow constants and values through the operations of an ExecuTorch file, inside its delegates and outside."""

from collections.abc import Iterator

from pipeline.formats.flatbuffer import Table
from pipeline.formats.rounded import Rounded, ScaleZeroPoint, What
from pipeline.formats.structure import Flow, Role, StaticScales
from pipeline.schemes import Stored

_INTERNAL = 2**32 - 1
"""Id of an absent value, and external id of a value that is used inside its delegate only."""
QUANTISED = "XNNQuantizedTensorValue"
TABLES: dict[str, Stored] = {
    "quantized_decomposed::embedding_byte": "int8",
    "quantized_decomposed::embedding_4bit": "int4",
}
"""Storage of the table that a kernel looks rows up in. Table, scales and zero points are the first arguments."""
LAYER_NORM = "aten::native_layer_norm"
_KERNEL_ROLES: dict[str, tuple[Role | None, ...]] = {
    LAYER_NORM: (None, None, "weight", "bias"),
    "aten::mul": ("weight", "weight"),
    "aten::add": ("bias", "bias"),
}
"""Roles of a kernel's arguments, in order."""
_NODE_ROLES: dict[str | None, dict[str, Role]] = {
    "XNNFullyConnected": {"filter_id": "weight", "bias_id": "bias"},
    "XNNMultiply": {"input1_id": "weight", "input2_id": "weight"},
    "XNNAdd": {"input1_id": "bias", "input2_id": "bias"},
}


_ROUNDING: dict[str | None, What] = {
    "XNNFullyConnected": "linear",
    "XNNConvert": "multiplies out",
    **dict.fromkeys(("XNNCopy", "XNNStaticReshape", "XNNStaticTranspose", "XNNStaticSlice"), "moves"),
    **dict.fromkeys(("XNNStaticConstantPad", "XNNConcatenate2", "XNNConcatenate3"), "moves"),
}
"""Effects of nodes on int8."""
_VIEW = "executorch_prim::et_view"


class PlanFlow(Flow):
    """The flow of one method. Keys of values are their indices; a kernel's results are among its arguments."""

    def __init__(self, values: list[Table], inputs: list[int]) -> None:
        super().__init__()
        self._values = values
        self.rounded = Rounded()
        self._known = {int(number) for number in inputs}
        self._delegates = 0
        for number, value in enumerate(values):
            buffer = value["val"]["data_buffer_idx"] if value.member("val") == "Tensor" else 0
            if buffer:
                self.constant(number, ("constant", buffer))
                self._known.add(number)

    def kernel(self, name: str, arguments: list[int]) -> None:
        """Add a kernel; its results are the tensor arguments that nothing made before."""
        tensors = [number for number in self._flat(arguments) if self._values[number].member("val") == "Tensor"]
        if name in TABLES:
            buffers = [self._values[number]["val"]["data_buffer_idx"] for number in tensors[:3]]
            self.constant(tensors[0], ("constant", *(buffer for buffer in buffers if buffer)))
        made = [number for number in tensors if number not in self._known]
        self._known.update(made)
        # An int8 value between two delegates.
        if read := {number: self.rounded.scale_zero_point(number) for number in tensors if number in self.rounded}:
            what: What = "moves" if name == _VIEW else "other"
            self.rounded.operation(name, what, read, dict.fromkeys(made, next(iter(read.values()))))
        roles: dict[object, Role | None] = dict(zip(map(int, arguments), _KERNEL_ROLES.get(name, ()), strict=False))
        self.operation([number for number in tensors if number not in made], made, roles)

    def _flat(self, arguments: list[int]) -> Iterator[int]:
        for number in map(int, arguments):
            if self._values[number].member("val") == "TensorList":
                yield from (int(item) for item in self._values[number]["val"]["items"])
            else:
                yield number

    def inside(self, arguments: list[int]) -> "DelegateFlow":
        """Return the flow inside of a delegate, which refers to the method's values by argument index."""
        self._delegates += 1
        self._known.update(map(int, arguments))
        return DelegateFlow(self, self._delegates, list(map(int, arguments)))


class DelegateFlow:
    """The flow inside of one delegate. Keys of inner values are their ids; outer values have the keys of the method."""

    def __init__(self, flow: PlanFlow, number: int, arguments: list[int]) -> None:
        self._flow, self._number, self._arguments = flow, number, arguments
        self._outside: dict[int, int] = {}
        self._grids: dict[int, ScaleZeroPoint] = {}
        """Scale and zero point of each value that is int8 over a fixed range at run time, by id."""

    def add(self, tensor: Table) -> None:
        """Add a value, which may be an argument of the delegate."""
        plain = plain_value(tensor)
        if plain["external_id"] != _INTERNAL:
            self._outside[plain["id_out"]] = self._arguments[plain["external_id"]]
        fixed = tensor.name == QUANTISED and tensor.member("quant_params") == "PerTensorQuant"
        if fixed and not plain["constant_buffer_idx"]:
            row = tensor["quant_params"]
            self._grids[plain["id_out"]] = (row["scale"], row["zero_point"])

    def constant(self, key: object, tensor: Table) -> None:
        """Add a constant with the reader's key for it."""
        plain = plain_value(tensor)
        self._flow.constant((self._number, plain["id_out"]), key)

    def operation(self, kind: str | None, node: Table, static_scales: StaticScales | None) -> None:
        """Add a node, whose fields name its inputs and outputs, with scales and zero points if it is static int8."""
        ids = [name for name in node.schema.tables[node.name] if name.endswith("_id") and node[name] != _INTERNAL]
        made = [name for name in ids if name.startswith("output")]
        read = {name: self._value(node[name]) for name in ids if name not in made}
        role = _NODE_ROLES.get(kind, {})
        int8 = [
            {self._value(node[name]): self._grids[node[name]] for name in names if node[name] in self._grids}
            for names in (read, made)
        ]
        what = "rounds" if kind == "XNNConvert" and int8[1] else _ROUNDING.get(kind, "other")
        self._flow.rounded.operation(str(kind), what, *int8)
        self._flow.operation(
            read.values(),
            [self._value(node[name]) for name in made],
            {read[name]: role.get(name) for name in read},
            static_scales,
        )

    def _value(self, number: int) -> object:
        return self._outside.get(number, (self._number, number))


def plain_value(value: Table) -> Table:
    """Return a delegate's tensor without its quantisation."""
    plain: Table = value["tensor_value"] if value.name == QUANTISED else value
    return plain
