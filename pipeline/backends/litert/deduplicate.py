"""What several signatures of a `.tflite` file repeat, stored once: 23.9 MB instead of 26.5 for MiniLM at four lengths.

A LiteRT graph has a fixed length, so a file for several lengths holds one subgraph each. They share their weights, but
scales, zero points, names and position tables are written anew for each; a flatbuffer may refer to one copy instead.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ToolchainError

Array = npt.NDArray[Any]

DATA_ALIGNMENT_BYTES = 16
PREFIX_VIEW_MIN_BYTES = 1024
NAME_MAX_BYTES = 120
_LINEAR_BY_ROW = 12
"""Version of FULLY_CONNECTED that knows a scale a row under float activations."""


def share_constants(source: Path, path: Path, *, unique_names: bool = False) -> None:
    """Rewrite a `.tflite` file so that what several signatures repeat is stored once.

    Scales, zero points, shapes and names become shared vectors, quantization tables shared tables, and a shorter
    signature's position table a view of the start of the longest one's. The graph and every constant stay as they are.

    Args:
        source: The file to read.
        path: The file to write; may not be `source`.
        unique_names: Give every tensor of the file a name of its own, as the quantizer wants it. Otherwise names are
            unique within a graph, and equal ones of several graphs are stored once.
    """
    from ai_edge_litert import schema_py_generated as schema

    raw = source.read_bytes()
    model: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAs(raw, 0))
    contents = [_content(raw, buffer) for buffer in model.buffers]
    _drop_unused_buffers(model, contents)
    places, chunks = _place(contents, _outside(model), _viewable(model, schema))
    _declare_versions(model, schema)
    _shorten_names(model, unique=unique_names)
    _share_tables(model)
    # Offsets are absolute, so the graph is packed once to learn its length and once for good.
    draft_bytes = len(_pack(model, contents, places, start=DATA_ALIGNMENT_BYTES))
    start = _aligned(draft_bytes)
    graph = _pack(model, contents, places, start=start)
    if len(graph) != draft_bytes:
        raise ToolchainError(f"packing {source} twice gave {draft_bytes} and {len(graph)} bytes")
    with path.open("wb") as file:
        file.write(graph.ljust(start, b"\0"))
        for chunk in chunks:
            file.write(chunk)
            file.write(bytes(_aligned(len(chunk)) - len(chunk)))


def _declare_versions(model: Any, schema: Any) -> None:
    """Raise the version of a linear whose int8 weights have a scale a row under float activations.

    The quantizer (ai-edge-quantizer 0.10) leaves version 5. tflite-runtime 2.14 knows 10, so it takes such a file and
    computes it wrong without a word; now it refuses. LiteRT 1.0.1 to 2.3.0 give the same numbers as before.
    Source: tensorflow/compiler/mlir/lite/tools/versioning/op_version.cc.
    """
    for graph in model.subgraphs:
        for operation in graph.operators or []:
            code = model.operatorCodes[operation.opcodeIndex]
            if max(code.builtinCode, code.deprecatedBuiltinCode) != schema.BuiltinOperator.FULLY_CONNECTED:
                continue
            rows, weights = (graph.tensors[operation.inputs[place]] for place in (0, 1))
            scales = weights.quantization.scale if weights.quantization else None
            by_row = weights.type == schema.TensorType.INT8 and scales is not None and len(scales) > 1
            if by_row and rows.type == schema.TensorType.FLOAT32:
                code.version = max(code.version, _LINEAR_BY_ROW)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // DATA_ALIGNMENT_BYTES) * DATA_ALIGNMENT_BYTES


def _content(raw: bytes, buffer: Any) -> memoryview:
    # The quantizer stores large data after the flatbuffer (offset, size); the converter stores it inside.
    if buffer.offset > 1:
        return memoryview(raw)[buffer.offset : buffer.offset + buffer.size]
    return memoryview(b"" if buffer.data is None else buffer.data.tobytes())


def _tensors(model: Any) -> Iterator[Any]:
    for subgraph in model.subgraphs:
        yield from subgraph.tensors


def _drop_unused_buffers(model: Any, contents: list[memoryview]) -> None:
    holders = [*_tensors(model), *(model.metadata or [])]
    # Every empty buffer means "no constant", and buffer 0 is the empty one by convention.
    used = sorted({h.buffer for h in holders if len(contents[h.buffer])} - {0})
    index = {old: new for new, old in enumerate(used, start=1)}
    contents[:] = [memoryview(b""), *(contents[old] for old in used)]
    for holder in holders:
        holder.buffer = index.get(holder.buffer, 0)


def _outside(model: Any) -> set[int]:
    # Runtimes read metadata from inside the flatbuffer only.
    return {t.buffer for t in _tensors(model)} - {m.buffer for m in model.metadata or []} - {0}


def _viewable(model: Any, schema: Any) -> set[int]:
    # XNNPACK's weight cache knows a packed weight by its address, so linear weights keep one each.
    linear = schema.BuiltinOperator.FULLY_CONNECTED
    codes = [max(c.builtinCode, c.deprecatedBuiltinCode) for c in model.operatorCodes]
    packed = {
        subgraph.tensors[i].buffer
        for subgraph in model.subgraphs
        for op in subgraph.operators
        if codes[op.opcodeIndex] == linear
        for i in op.inputs
        if i >= 0
    }
    return {t.buffer for t in _tensors(model)} - packed


def _place(
    contents: list[memoryview], outside: set[int], viewable: set[int]
) -> tuple[dict[int, int], list[memoryview]]:
    places: dict[int, int] = {}
    chunks: list[memoryview] = []
    homes: dict[bytes, list[tuple[int, memoryview]]] = {}
    position = 0
    # Longest first, so that the beginning of a table finds the whole table already placed.
    for i in sorted(outside, key=lambda i: (-len(contents[i]), i)):
        data = contents[i]
        may_view = i in viewable and len(data) >= PREFIX_VIEW_MIN_BYTES
        candidates = homes.setdefault(bytes(data[:PREFIX_VIEW_MIN_BYTES]), []) if may_view else []
        home = next((at for at, whole in candidates if whole[: len(data)] == data), None)
        if home is None:
            home = position
            chunks.append(data)
            candidates.append((home, data))
            position += _aligned(len(data))
        places[i] = home
    return places, chunks


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
    for tensor in _tensors(model):
        if tensor.quantization is not None:
            tensor.quantization = tables.setdefault(_table_key(tensor.quantization), _Shared(tensor.quantization))


def _table_key(table: Any) -> Any:
    # Nested details (block-wise, custom) are told apart by identity: never shared, never wrong.
    parts = []
    for name, value in sorted(vars(table).items()):
        is_vector = isinstance(value, np.ndarray)
        plain = value is None or isinstance(value, int)
        parts.append((name, value.tobytes() if is_vector else value if plain else id(value)))
    return tuple(parts)


class _Shared:
    """A table that is written once per builder and then referred to."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def Pack(self, builder: Any) -> int:
        if self not in builder.shared:
            builder.shared[self] = self._table.Pack(builder)
        offset: int = builder.shared[self]
        return offset


def _sharing_builder() -> Any:
    import flatbuffers

    class SharingBuilder(flatbuffers.Builder):  # type: ignore[misc]
        """A flatbuffer builder that writes equal vectors and strings once."""

        def __init__(self) -> None:
            super().__init__(1 << 20)
            self.shared: dict[Any, int] = {}

        def CreateNumpyVector(self, x: Array) -> int:
            key = (x.dtype.str, x.tobytes())
            if key not in self.shared:
                self.shared[key] = super().CreateNumpyVector(x)
            return self.shared[key]

        def CreateString(self, s: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> int:
            key = s if isinstance(s, bytes) else s.encode(encoding, errors)
            if key not in self.shared:
                self.shared[key] = super().CreateString(key)
            return self.shared[key]

    return SharingBuilder()


def _pack(model: Any, contents: list[memoryview], places: Mapping[int, int], *, start: int) -> bytes:
    from ai_edge_litert import schema_py_generated as schema

    model.buffers = []
    for i, data in enumerate(contents):
        buffer = schema.BufferT()
        if i in places:
            buffer.offset, buffer.size = start + places[i], len(data)
        elif len(data):
            buffer.data = np.frombuffer(data, np.uint8)
        model.buffers.append(buffer)
    builder = _sharing_builder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
