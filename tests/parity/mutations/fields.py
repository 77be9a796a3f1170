"""Which bytes of a file are weights."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.formats.executorch.reader import _Program

Span = tuple[int, int]
_LEAST_BYTES = 64
"""A constant of fewer is a shape, an axis or a number, and no weight."""
_RECORD_BYTES = 64


def weights(name: str, part: Path) -> list[Span]:
    """Return where the weights of a file lie."""
    if name == "litert":
        from ai_edge_litert import schema_py_generated as schema

        model = schema.Model.GetRootAs(part.read_bytes(), 0)
        buffers = [model.Buffers(number) for number in range(model.BuffersLength())]
        return [(one.Offset(), one.Offset() + one.Size()) for one in buffers if one.Size() >= _LEAST_BYTES]
    if name == "executorch":
        program = _Program.read(memoryview(part.read_bytes()))
        delegates = {one["processed"]["index"] for plan in program.table["execution_plan"] for one in plan["delegates"]}
        spans = ((program.base + start, program.base + start + size) for start, size in program.segments)
        return [span for number, span in enumerate(spans) if number not in delegates]
    return list(_blobs(part)) if part.suffix == ".bin" else []


def _blobs(part: Path) -> Iterator[Span]:
    """Yield start and end of each blob of a Core ML weight file."""
    content = part.read_bytes()
    at = _RECORD_BYTES
    while at + _RECORD_BYTES <= len(content):
        size = int.from_bytes(content[at + 8 : at + 16], "little")
        start = int.from_bytes(content[at + 16 : at + 24], "little")
        yield start, start + size
        at = -(-(start + size) // _RECORD_BYTES) * _RECORD_BYTES
