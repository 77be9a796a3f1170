"""Share repeated data of the signatures in a `.tflite` file: 23.9 MB instead of 26.5 for MiniLM at four lengths.

A LiteRT graph has a fixed length, so a file for several lengths holds one subgraph each. They share their weights, but
scales, zero points, names and position tables are written for each; a flatbuffer may refer to one copy instead.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.formats.litert.container import blocks_of, kinds_of, read_model, tensors_of, write_model

NAME_MAX_BYTES = 120
_LINEAR_OF_ONE_SCALE = 5
"""Version of FULLY_CONNECTED that supports int8 and more than two dimensions."""
_LINEAR_BY_ROW = 12
"""Version of FULLY_CONNECTED that supports a scale per row; scales per block have no later version."""


def share_constants(source: Path, path: Path, *, unique_names: bool = False, one_scale: bool = False) -> None:
    """Rewrite a `.tflite` file so that data repeated in several signatures is stored once.

    Scales, zero points, shapes and names become shared vectors, quantization tables shared tables, and a shorter
    signature's position table a view of the start of the longest one's. The graph and every constant stay as they are.

    Args:
        source: The file to read.
        path: The file to write; may not be `source`.
        unique_names: Give every tensor of the file a name of its own, as the quantizer wants it. Otherwise names are
            unique within a graph, and equal ones of several graphs are stored once.
        one_scale: Write one scale for a tensor whose rows have equal scales.
    """
    from ai_edge_litert import schema_py_generated as schema

    model, contents = read_model(source)
    if one_scale:
        _join_scales(model, schema)
    _declare_versions(model, schema)
    _shorten_names(model, unique=unique_names)
    _share_tables(model)
    write_model(model, contents, path)


def _join_scales(model: Any, schema: Any) -> None:
    """Write one scale for each weight or bias whose rows have equal scales.

    litert-torch 0.10 writes a scale per row for every linear, and the step before the quantizer has declared the
    version that goes with it; a runtime without support for it would refuse the file.
    """
    for code, kind in zip(model.operatorCodes, kinds_of(model), strict=True):
        if kind == schema.BuiltinOperator.FULLY_CONNECTED:
            code.version = min(code.version, _LINEAR_OF_ONE_SCALE)
    for tensor in tensors_of(model):
        table = tensor.quantization
        if table is None or table.scale is None or len(table.scale) < 2:
            continue
        if len(set(table.scale)) == 1 and len(set(table.zeroPoint)) == 1:
            table.scale, table.zeroPoint, table.quantizedDimension = table.scale[:1], table.zeroPoint[:1], 0


def _declare_versions(model: Any, schema: Any) -> None:
    """Raise the version of a linear with int8 weights and a scale per row, or with int4 weights and a scale per block.

    Quantizer (ai-edge-quantizer 0.10) and converter leave version 5. tflite-runtime 2.14 supports 10, so it takes such
    a file and silently computes it wrong; now it refuses. LiteRT 1.0.1 to 2.3.0 give the same outputs as before.
    Source: tensorflow/compiler/mlir/lite/tools/versioning/op_version.cc.
    """
    kinds, types = kinds_of(model), schema.TensorType
    for graph in model.subgraphs:
        for operation in graph.operators or []:
            if kinds[operation.opcodeIndex] != schema.BuiltinOperator.FULLY_CONNECTED:
                continue
            code = model.operatorCodes[operation.opcodeIndex]
            rows, weights = (graph.tensors[operation.inputs[place]] for place in (0, 1))
            scales = weights.quantization.scale if weights.quantization else None
            by_row = weights.type == types.INT8 and scales is not None and len(scales) > 1
            if (by_row or blocks_of(weights) is not None) and rows.type in (types.FLOAT32, types.INT8):
                code.version = max(code.version, _LINEAR_BY_ROW)


def _shorten_names(model: Any, *, unique: bool) -> None:
    for number, subgraph in enumerate(model.subgraphs):
        kept = {*map(int, subgraph.inputs), *map(int, subgraph.outputs)}
        prefix = b"%d|" % number if unique else b""
        taken = {bytes(subgraph.tensors[i].name or b"") for i in kept}
        for i, tensor in enumerate(subgraph.tensors):
            if i not in kept and tensor.name:
                tensor.name = _unique(prefix + _short_name(bytes(tensor.name)), taken)
            elif unique:
                tensor.name = prefix + bytes(tensor.name)


def _unique(name: bytes, taken: set[bytes]) -> bytes:
    number = 0
    candidate = name
    while candidate in taken:
        number += 1
        candidate = name + b"_%d" % number
    taken.add(candidate)
    return candidate


def _short_name(name: bytes) -> bytes:
    # "a.b.BertModel_m/…;a.b.…" to "BertModel_m/…": the module paths alone are 0.18 MB a signature.
    first = next((part for part in re.sub(rb"^\d+\|", b"", name).split(b";") if part), b"")
    return b"/".join(part.rsplit(b".", 1)[-1] for part in first.split(b"/"))[-NAME_MAX_BYTES:]


def _share_tables(model: Any) -> None:
    tables: dict[Any, _Shared] = {}
    for tensor in tensors_of(model):
        if tensor.quantization is not None:
            tensor.quantization = tables.setdefault(_table_key(tensor.quantization), _Shared(tensor.quantization))


def _table_key(table: Any) -> Any:
    parts: list[tuple[str, Any]] = []
    for name, value in sorted(vars(table).items()):
        if isinstance(value, np.ndarray):
            parts.append((name, value.tobytes()))
        else:
            # Nested is what is said of blocks, which names a tensor of the graph by its number.
            parts.append((name, value if value is None or isinstance(value, int) else _table_key(value)))
    return tuple(parts)


class _Shared:
    """A quantization table that is written once per builder, and referred to after that."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def Pack(self, builder: Any) -> int:
        if self not in builder.shared:
            builder.shared[self] = self._table.Pack(builder)
        offset: int = builder.shared[self]
        return offset
