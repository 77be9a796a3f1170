"""Rewrite a `.pte` so that its delegates run in single precision and can be compared tightly.

The same module of LiteRT says why.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ToolchainError
from pipeline.formats.executorch import codes

_FLOAT, _INT8, _DYNAMIC_INT8 = "xnn_datatype_fp32", "xnn_datatype_qcint8", "xnn_datatype_qdint8"
_STATIC_INT8, _BIAS = "xnn_datatype_qint8", "xnn_datatype_qcint32"
_CODES = {_INT8: "i1", _BIAS: "<i4"}
_IN_BLOCKS = ("xnn_datatype_qbint4", "PerChannelGroupQuant")
_CHAR_SCALAR, _FLOAT_SCALAR = 1, 6
"""executorch/exir/scalar_type.py."""
_NONE = 2**32 - 1
"""Id of an absent value."""
_ALIGNMENT = 64
Json = dict[str, Any]


def write_control(file: Path, path: Path) -> bool:
    """Write a copy of a file with activations that stay floats, and linears that read the same weights dequantised.

    Args:
        file: the file, which is not changed.
        path: the file to write.

    Returns:
        Whether an activation was int8; without one nothing is written, for the file computes in floats already.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    program_file = deserialize_pte_binary(file.read_bytes())
    store = program_file.named_data
    named = {} if store is None else {key: store.buffers[row.buffer_index] for key, row in store.pte_data.items()}
    changed = False
    for row in program_file.program.backend_delegate_data:
        payload = _Payload.read(row.data)
        if payload.widen(named):
            row.data = payload.written()
            changed = True
    if changed:
        for plan in program_file.program.execution_plan:
            _widen_between_delegates(plan)
        path.write_bytes(bytes(serialize_pte_binary(program_file, extract_delegate_segments=True)))
    return changed


@dataclass
class _Payload:
    """One XNNPACK payload: its graph as the schema's JSON, and the constants behind it."""

    graph: Json
    constants: bytearray

    @classmethod
    def read(cls, data: bytes) -> "_Payload":
        from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader
        from executorch.exir._serialize._flatbuffer import _flatc_decompile

        header = XNNHeader.from_bytes(data[: XNNHeader.EXPECTED_LENGTH])
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder) / "graph.bin"
            binary.write_bytes(data[header.flatbuffer_offset : header.flatbuffer_offset + header.flatbuffer_size])
            _flatc_decompile(folder, _write_schema(folder), str(binary))
            # JSON has no infinity, and flatc writes one without quotes all the same.
            text = re.sub(r": (-?inf)\b", r': "\1"', binary.with_suffix(".json").read_text(encoding="utf-8"))
        start = header.constant_data_offset
        return cls(json.loads(text), bytearray(data[start : start + header.constant_data_size]))

    def written(self) -> bytes:
        """Return the payload as bytes."""
        from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader
        from executorch.exir._serialize._flatbuffer import _flatc_compile

        with tempfile.TemporaryDirectory() as folder:
            document = Path(folder) / "graph.json"
            document.write_text(json.dumps(self.graph), encoding="utf-8")
            _flatc_compile(folder, _write_schema(folder), str(document))
            graph = document.with_suffix(".bin").read_bytes()
        first = _aligned(XNNHeader.EXPECTED_LENGTH)
        second = first + _aligned(len(graph))
        header: bytes = XNNHeader(first, len(graph), second, len(self.constants)).to_bytes()
        return (header.ljust(first, b"\0") + graph).ljust(second, b"\0") + bytes(self.constants)

    def widen(self, named: Mapping[str, bytes]) -> bool:
        """Turn quantised activations and the weights of their linears into floats; return whether there were any.

        Args:
            named: constants outside of the payload, by key.
        """
        tensors = {_plain(row)["id_out"]: row for row in self.graph["xvalues"]}
        makers = {
            node["xnode_union"]["output_id"]: node["xnode_union"]["input_id"]
            for node in self.graph["xnodes"]
            if node["xnode_union_type"] == "XNNConvert"
            and _plain(tensors[node["xnode_union"]["output_id"]])["datatype"] == _DYNAMIC_INT8
        }
        static = {
            number
            for number, row in tensors.items()
            if _plain(row)["datatype"] == _STATIC_INT8 and not _plain(row)["constant_buffer_idx"]
        }
        linears = [
            node["xnode_union"]
            for node in self.graph["xnodes"]
            if node["xnode_union_type"] == "XNNFullyConnected"
            and node["xnode_union"]["input1_id"] in {*makers, *static}
        ]
        constants = {number for linear in linears for number in (linear["filter_id"], linear["bias_id"])}
        for number in sorted(constants - {_NONE}):
            if _plain(tensors[number])["datatype"] != _FLOAT:
                self._widen_weights(tensors[number], named)
        for linear in linears:
            linear["input1_id"] = makers.get(linear["input1_id"], linear["input1_id"])
        self._widen_static(static, tensors)
        self._remove_unread(set(makers))
        return bool(linears or static)

    def _widen_static(self, static: set[int], tensors: Mapping[int, Json]) -> None:
        """Turn activations with a fixed range into floats, and the nodes that round them into copies."""
        for number in static:
            tensors[number]["xvalue_union"] = _plain(tensors[number]) | {"datatype": _FLOAT}
            tensors[number]["xvalue_union_type"] = "XNNTensorValue"
        for node in self.graph["xnodes"]:
            if node["xnode_union_type"] == "XNNConvert" and static & {*_inputs(node), node["xnode_union"]["output_id"]}:
                node["xnode_union_type"] = "XNNCopy"

    def _widen_weights(self, value: Json, named: Mapping[str, bytes]) -> None:
        """Append a dequantised matrix or bias to the constants, and let the value read it."""
        plain = _plain(value)
        values = self._multiplied_out(plain, value["xvalue_union"], named).astype("<f4")
        self.constants += bytes(_aligned(len(self.constants)) - len(self.constants))
        self.graph["constant_data"].append({"offset": len(self.constants), "size": values.nbytes})
        self.constants += values.tobytes()
        value["xvalue_union_type"] = "XNNTensorValue"
        place = len(self.graph["constant_data"]) - 1
        value["xvalue_union"] = plain | {"datatype": _FLOAT, "constant_buffer_idx": place}

    def _multiplied_out(self, plain: Json, quantised: Json, named: Mapping[str, bytes]) -> NDArray[np.float32]:
        row, sizes = quantised["quant_params"], plain["dims"]
        kinds = (plain["datatype"], quantised["quant_params_type"])
        if kinds[1] not in ("PerChannelQuant", "PerChannelGroupQuant") or (
            kinds != _IN_BLOCKS and kinds[0] not in _CODES
        ):
            raise ToolchainError(f"the .pte has a linear with weights of {' and '.join(kinds)}, not read here.")
        raw, scales = (
            self._constant(number, named) for number in (plain["constant_buffer_idx"], row["scale_buffer_idx"])
        )
        if kinds == _IN_BLOCKS:
            by_block = codes.from_bfloat16(scales, row["num_scales"]).reshape(sizes[0], -1)
            return codes.by_group(codes.of_linear(raw, sizes), by_block)
        integers = np.frombuffer(raw, _CODES[kinds[0]], int(np.prod(sizes))).reshape(sizes)
        return codes.by_axis(integers, np.frombuffer(scales, "<f4", row["num_scales"]), row["channel_dim"], 0)

    def _constant(self, number: int, named: Mapping[str, bytes]) -> bytes:
        row = self.graph["constant_data"][number]
        if row.get("named_key"):
            return named[row["named_key"]]
        return bytes(self.constants[row["offset"] : row["offset"] + row["size"]])

    def _remove_unread(self, made: set[int]) -> None:
        """Remove nodes that quantise activations which nothing reads any more, and these activations."""
        read = {number for node in self.graph["xnodes"] for number in _inputs(node)}
        unread = made - read - set(self.graph["output_ids"])
        nodes, values = self.graph["xnodes"], self.graph["xvalues"]
        self.graph["xnodes"] = [row for row in nodes if row["xnode_union"].get("output_id") not in unread]
        self.graph["xvalues"] = [row for row in values if _plain(row)["id_out"] not in unread]


def _widen_between_delegates(plan: Any) -> None:
    """Turn int8 tensors between delegates into floats; each gets memory behind the planned memory."""
    for value in plan.values:
        tensor = value.val
        if getattr(tensor, "scalar_type", None) != _CHAR_SCALAR or tensor.allocation_info is None:
            continue
        where = tensor.allocation_info.memory_id
        start = _aligned(int(plan.non_const_buffer_sizes[where]))
        tensor.scalar_type = type(tensor.scalar_type)(_FLOAT_SCALAR)
        tensor.allocation_info.memory_offset_low = start & 0xFFFFFFFF
        tensor.allocation_info.memory_offset_high = start >> 32
        plan.non_const_buffer_sizes[where] = start + 4 * int(np.prod(tensor.sizes))


def _inputs(node: Json) -> Iterator[int]:
    """Yield the ids of the values that a node reads."""
    for name, value in node["xnode_union"].items():
        if name.endswith("_id") and not name.startswith("output") and value != _NONE:
            yield value


def _plain(value: Json) -> Json:
    """Return a tensor value without its quantisation."""
    row: Json = value["xvalue_union"]
    plain: Json = row["tensor_value"] if value["xvalue_union_type"] == "XNNQuantizedTensorValue" else row
    return plain


def _write_schema(folder: str) -> str:
    """Write the payload's schema into a folder for flatc, and return its path."""
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import _get_schema_bytes

    path = Path(folder) / "graph.fbs"
    path.write_bytes(_get_schema_bytes())
    return str(path)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
