"""Reader of one XNNPACK delegate of an ExecuTorch file: its nodes, and its constants with their scales."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ToolchainError
from pipeline.formats.executorch import codes
from pipeline.formats.executorch.flows import QUANTISED, plain_value
from pipeline.formats.flatbuffer import Schema, Table
from pipeline.formats.structure import Activation, StaticScales, check_bias
from pipeline.schemes import Arithmetic, Stored

_NAMED = 2**64 - 1
"""Offset of a constant that is stored in the program's named data."""
_FLOATS: dict[str, tuple[Stored, str]] = {
    "xnn_datatype_fp32": ("float32", "<f4"),
    "xnn_datatype_fp16": ("float16", "<f2"),
}
_SCALED: dict[str, tuple[Stored, str]] = {
    **dict.fromkeys(("xnn_datatype_qcint8", "xnn_datatype_qint8"), ("int8", "i1")),
    # A bias in units of its linear's products is as precise as floats.
    **dict.fromkeys(("xnn_datatype_qcint32", "xnn_datatype_qint32"), ("float32", "<i4")),
}
_BLOCKS = "xnn_datatype_qbint4"
_RELU = (0.0, np.inf)
"""Output bounds of a relu node."""
_ACTIVATIONS: dict[str, Activation] = {"XNNGelu": "gelu", "XNNTanh": "tanh", "XNNSigmoid": "sigmoid"}

Found = tuple[tuple[object, ...], str, Callable[[], NDArray[np.float32]], Stored]


class Graph:
    """One XNNPACK payload: a header, a graph, and constants that lie behind it or in the program's named data.

    Source: `XNNHeader` in executorch/backends/xnnpack/serialization/xnnpack_graph_serialize.py.
    """

    def __init__(self, payload: memoryview, schema: Schema, named: Callable[[str], memoryview]) -> None:
        """Read a payload; `named` returns the bytes of a key in the program's named data."""
        if bytes(payload[4:8]) != b"XH00":
            raise ToolchainError(f"an XNNPACK payload begins with {bytes(payload[4:8])!r}, not XH00.")
        places = ((10, 14), (14, 18), (18, 22), (22, 30))
        at, size, self._data_at, _ = (int.from_bytes(payload[low:high], "little") for low, high in places)
        self.table = schema.root(payload[at : at + size], "XNNGraph")
        self._payload, self._named, self._where = payload, named, (id(payload), at)
        self._kinds = {number: name for name, number in schema.enums["XNNDatatype"][1].items()}

    def activations(self) -> Iterator[Activation]:
        """Yield the graph's activations; a node clamped to 0 … ∞ is a relu."""
        for node in self.table["xnodes"]:
            kind = node.member("xnode_union")
            if kind in _ACTIVATIONS:
                yield _ACTIVATIONS[kind]
            elif (bounds := node["output_min_max"]) and (bounds["output_min"], bounds["output_max"]) == _RELU:
                yield "relu"

    def arithmetic(self) -> Iterator[Arithmetic]:
        """Yield the arithmetic of each linear: int8 if its input is quantised before, per token or per tensor."""
        kinds: dict[str | None, Arithmetic] = {"PerTokenDynamicQuant": "dynamic_int8", "PerTensorQuant": "static_int8"}
        quantised = self._quantised()
        for linear in self._linears():
            value = quantised.get(linear["input1_id"])
            yield kinds.get(value.member("quant_params"), "float") if value is not None else "float"

    def static_scales(self) -> dict[int, StaticScales]:
        """Return the scales and zero points of input and output of each static int8 linear, by its position."""
        found: dict[int, StaticScales] = {}
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
                self._check_bias(linear, read["scale"])
                found[linear.position] = (read["scale"], read["zero_point"], made["scale"], made["zero_point"])
        return found

    def _check_bias(self, linear: Table, step: float) -> None:
        """Refuse an integer bias with another scale than its products have, which XNNPACK assumes."""
        quantised = self._quantised()
        weight, bias = (quantised.get(linear[name]) for name in ("filter_id", "bias_id"))
        if weight is not None and bias is not None:
            scales, own = (self._scales(value)[1] for value in (weight, bias))
            check_bias(own, scales, step)

    def _quantised(self) -> dict[int, Table]:
        """Return the values with scales, by id."""
        values = [value["xvalue_union"] for value in self.table["xvalues"]]
        return {plain_value(value)["id_out"]: value for value in values if value.name == QUANTISED}

    def _linears(self) -> Iterator[Table]:
        return (
            node["xnode_union"] for node in self.table["xnodes"] if node.member("xnode_union") == "XNNFullyConnected"
        )

    def constant(self, value: Table) -> Iterator[Found]:
        """Yield a value's constant, if it has one."""
        tensor = plain_value(value)
        number = tensor["constant_buffer_idx"]
        sizes = tuple(int(size) for size in tensor["dims"])
        if not number or int(np.prod(sizes)) < 2:
            return
        key, data = self._data(number)
        kind = self._kinds[tensor["datatype"]]
        if kind in _FLOATS:
            stored, code = _FLOATS[kind]
            values = np.frombuffer(data, code, int(np.prod(sizes))).reshape(sizes)
            yield (*key, sizes), f"XNNPACK {sizes}", lambda: values.astype(np.float32, copy=False), stored
        elif kind in _SCALED:
            stored, code = _SCALED[kind]
            raw = np.frombuffer(data, code, int(np.prod(sizes))).reshape(sizes)
            quantised, scale, axis, zero = self._scales(value)
            yield (*key, sizes, *quantised), f"XNNPACK {sizes}", lambda: codes.by_axis(raw, scale, axis, zero), stored
        elif kind == _BLOCKS:
            packed = codes.of_linear(data, sizes)
            blocks, scales = self._block_scales(value)
            yield (*key, sizes, *blocks), f"XNNPACK {sizes}", lambda: codes.by_group(packed, scales), "int4"
        elif kind != "xnn_datatype_int32":
            raise ToolchainError(f"the .pte has an XNNPACK constant of {kind}, which is not read here.")

    def number(self, value: Table) -> Iterator[tuple[object, float]]:
        """Yield a value's number, if it is a constant of one element."""
        tensor = plain_value(value)
        number = tensor["constant_buffer_idx"]
        kind = self._kinds[tensor["datatype"]]
        if number and int(np.prod([int(size) for size in tensor["dims"]])) == 1 and kind in _FLOATS:
            key, data = self._data(number)
            yield key, float(np.frombuffer(data, _FLOATS[kind][1], 1)[0])

    def _scales(self, value: Table) -> tuple[tuple[object, ...], NDArray[np.float32], int, int]:
        """Return a key for the scales, the scales, their axis, and the zero point."""
        row = value["quant_params"]
        kind = value.member("quant_params")
        if kind == "PerTensorQuant":
            scale = np.array([row["scale"]], np.float32)
            return (row["scale"], row["zero_point"]), scale, 0, row["zero_point"]
        if kind != "PerChannelQuant":
            raise ToolchainError(f"the .pte has an XNNPACK constant with {kind}, which is not read here.")
        key, data = self._data(row["scale_buffer_idx"])
        return key, np.frombuffer(data, "<f4", row["num_scales"]), row["channel_dim"], 0

    def _block_scales(self, value: Table) -> tuple[tuple[object, ...], NDArray[np.float32]]:
        """Return a key for the scales of blocks, and the scales, `(rows, blocks)`."""
        kind = value.member("quant_params") if value.name == QUANTISED else None
        if kind != "PerChannelGroupQuant":
            raise ToolchainError(f"the .pte has an XNNPACK constant of blocks with {kind}, which is not read here.")
        row = value["quant_params"]
        key, data = self._data(row["scale_buffer_idx"])
        rows = int(plain_value(value)["dims"][0])
        return key, codes.from_bfloat16(data, row["num_scales"]).reshape(rows, -1)

    def _data(self, number: int) -> tuple[tuple[object, ...], memoryview]:
        """Return an identifying key of a constant, and its bytes."""
        row = self.table["constant_data"][number]
        if row["offset"] == _NAMED:
            return (row["named_key"],), self._named(row["named_key"])
        start = self._data_at + row["offset"]
        return (*self._where, row["offset"]), self._payload[start : start + row["size"]]
