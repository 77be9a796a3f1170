"""Read a `.tflite` file as objects, and write it with equal buffers stored once after the flatbuffer."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ToolchainError

Array = npt.NDArray[Any]

DATA_ALIGNMENT_BYTES = 16
PREFIX_VIEW_MIN_BYTES = 1024


def read_model(file: Path) -> tuple[Any, list[memoryview]]:
    """Return a file's `ModelT`, and the content of each of its buffers."""
    from ai_edge_litert import schema_py_generated as schema

    raw = file.read_bytes()
    model: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAs(raw, 0))
    return model, [_content(raw, buffer) for buffer in model.buffers]


def write_model(model: Any, contents: list[memoryview], path: Path) -> None:
    """Write a model; equal buffers are stored once, and a short table is a view of the start of a longer one.

    Args:
        model: a `ModelT`, whose buffers are replaced.
        contents: content of each buffer by its index; buffers that nothing reads are left out.
        path: the file to write.
    """
    from ai_edge_litert import schema_py_generated as schema

    _drop_unused_buffers(model, contents)
    places, chunks = _place(contents, _outside(model), _viewable(model, schema))
    # Offsets are absolute, so the graph is packed once to learn its length and once for good.
    draft_bytes = len(_pack(model, contents, places, start=DATA_ALIGNMENT_BYTES))
    start = _aligned(draft_bytes)
    graph = _pack(model, contents, places, start=start)
    if len(graph) != draft_bytes:
        raise ToolchainError(f"packing {path} twice gave {draft_bytes} and {len(graph)} bytes")
    with path.open("wb") as file:
        file.write(graph.ljust(start, b"\0"))
        for chunk in chunks:
            file.write(chunk)
            file.write(bytes(_aligned(len(chunk)) - len(chunk)))


def kinds_of(model: Any) -> list[int]:
    """Return the `BuiltinOperator` of each operator code."""
    # The older, narrower field holds the kind if the newer is not set.
    return [max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes]


def tensors_of(model: Any) -> Iterator[Any]:
    """Yield the tensors of all subgraphs."""
    for subgraph in model.subgraphs:
        yield from subgraph.tensors


def leave_out(graph: Any, left_out: Sequence[bool]) -> None:
    """Remove operations of one input from a graph: readers of their output read their input instead."""
    same: dict[int, int] = {}
    kept = []
    for operation, leave in zip(graph.operators, left_out, strict=True):
        operation.inputs = _renumbered(operation.inputs, same)
        if leave:
            same[int(operation.outputs[0])] = int(operation.inputs[0])
        else:
            kept.append(operation)
    graph.operators = kept
    graph.outputs = _renumbered(graph.outputs, same)


def drop_unread(model: Any) -> None:
    """Remove tensors without reference from an operation, port or blockwise quantisation, and unused operator codes."""
    signatures = {one.subgraphIndex: one for one in model.signatureDefs or []}
    for number, graph in enumerate(model.subgraphs):
        blocks = [one for tensor in graph.tensors if (one := blocks_of(tensor)) is not None]
        named = {int(one) for operation in graph.operators for one in (*operation.inputs, *operation.outputs)}
        named |= {*map(int, graph.inputs), *map(int, graph.outputs)} | {one.scales for one in blocks}
        kept = [place for place in range(len(graph.tensors)) if place in named]
        index = {old: new for new, old in enumerate(kept)}
        graph.tensors = [graph.tensors[old] for old in kept]
        for holder in (graph, *graph.operators):
            holder.inputs, holder.outputs = (_renumbered(one, index) for one in (holder.inputs, holder.outputs))
        for one in blocks:
            one.scales = index[one.scales]
        for port in (*signatures[number].inputs, *signatures[number].outputs) if number in signatures else ():
            port.tensorIndex = index[port.tensorIndex]
    operations = [operation for graph in model.subgraphs for operation in graph.operators]
    codes = sorted({operation.opcodeIndex for operation in operations})
    model.operatorCodes = [model.operatorCodes[old] for old in codes]
    for operation in operations:
        operation.opcodeIndex = codes.index(operation.opcodeIndex)


def blocks_of(tensor: Any) -> Any:
    """Return a tensor's blockwise quantisation, or None if it has none."""
    return tensor.quantization.details if tensor.quantization is not None else None


def _renumbered(numbers: Any, index: Mapping[int, int]) -> Any:
    return np.array([index.get(int(number), int(number)) for number in numbers], np.int32)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // DATA_ALIGNMENT_BYTES) * DATA_ALIGNMENT_BYTES


def _content(raw: bytes, buffer: Any) -> memoryview:
    # The quantizer stores large data after the flatbuffer (offset, size); the converter stores it inside.
    if buffer.offset > 1:
        return memoryview(raw)[buffer.offset : buffer.offset + buffer.size]
    return memoryview(b"" if buffer.data is None else buffer.data.tobytes())


def _drop_unused_buffers(model: Any, contents: list[memoryview]) -> None:
    holders = [*tensors_of(model), *(model.metadata or [])]
    # Every empty buffer means "no constant", and buffer 0 is the empty one by convention.
    used = sorted({h.buffer for h in holders if len(contents[h.buffer])} - {0})
    index = {old: new for new, old in enumerate(used, start=1)}
    contents[:] = [memoryview(b""), *(contents[old] for old in used)]
    for holder in holders:
        holder.buffer = index.get(holder.buffer, 0)


def _outside(model: Any) -> set[int]:
    # Runtimes read metadata from inside the flatbuffer only.
    return {t.buffer for t in tensors_of(model)} - {m.buffer for m in model.metadata or []} - {0}


def _viewable(model: Any, schema: Any) -> set[int]:
    # XNNPACK's weight cache identifies a packed weight by its address, so linear weights keep one each.
    linear = schema.BuiltinOperator.FULLY_CONNECTED
    codes = kinds_of(model)
    packed = {
        subgraph.tensors[i].buffer
        for subgraph in model.subgraphs
        for op in subgraph.operators
        if codes[op.opcodeIndex] == linear
        for i in op.inputs
        if i >= 0
    }
    return {t.buffer for t in tensors_of(model)} - packed


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
