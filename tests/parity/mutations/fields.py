"""Which bytes of a file are weights, and in which field any byte lies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.formats.columns import Columns, Rows, damage
from pipeline.formats.executorch import schemas
from pipeline.formats.litert import bounds as litert
from pipeline.mil.package import model_class

Span = tuple[int, int]
_LEAST_BYTES = 64
"""A constant of fewer is a shape, an axis or a number, and no weight."""
_RECORD_BYTES = 64
_MESSAGE, _LENGTH_DELIMITED = 11, 2


def weights(name: str, part: Path) -> list[Span]:
    """Return where the weights of a file lie."""
    if name == "litert":
        buffers = _root(name, part)["buffers"]
        spans = zip(buffers.number("offset").tolist(), buffers.number("size").tolist(), strict=True)
        return [(start, start + size) for start, size in spans if size >= _LEAST_BYTES]
    if name == "executorch":
        segments = _root(name, part)["segments"]
        base = int.from_bytes(part.read_bytes()[24:32], "little")
        delegates = _root(name, part)["execution_plan"]["delegates"]["processed"].number("index").tolist()
        spans = zip(segments.number("offset").tolist(), segments.number("size").tolist(), strict=True)
        return [(base + start, base + start + size) for n, (start, size) in enumerate(spans) if n not in delegates]
    return [(start, start + size) for _, start, size in _blobs(part)] if part.suffix == ".bin" else []


def field_of(name: str, part: Path, at: int) -> str:
    """Return what a byte of a clean file is."""
    if name == "coreml":
        return _field_of_package(part, at)
    found = [row for row in _fields(name, part) if row[0] <= at < row[1]]
    if found:
        return min(found, key=lambda row: row[1] - row[0])[2]
    if any(start <= at < end for start, end in weights(name, part)):
        return "a constant"
    return "between the fields"


def _root(name: str, part: Path) -> Rows:
    schema, kind = (litert._schema(), "Model") if name == "litert" else (schemas.schema(schemas.PROGRAM), "Program")
    data = np.fromfile(part, np.uint8)
    return Columns(schema, data, damage(part)).root(kind, len(data))


def _fields(name: str, part: Path) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and name of every field of a flatbuffer's tables."""
    root = _root(name, part)
    yield from ((0, 4, "offset of the root"), (4, 8, "identifier"))
    if name == "executorch":
        yield 8, 40, "header"
    yield from _of_rows(root)
    if name == "executorch":
        yield from _payloads(root, part)
    if name == "litert":
        buffers = root["buffers"]
        spans = zip(buffers.number("offset").tolist(), buffers.number("size").tolist(), strict=True)
        yield from ((start, start + size, f"content of buffer {n}") for n, (start, size) in enumerate(spans) if start)


def _payloads(root: Rows, part: Path) -> Iterator[tuple[int, int, str]]:
    content = part.read_bytes()
    base = int.from_bytes(content[24:32], "little")
    offsets = root["segments"].number("offset")
    for number, index in enumerate(root["execution_plan"]["delegates"]["processed"].number("index").tolist()):
        start = base + int(offsets[index])
        yield start, start + 30, f"header of payload {number}"
        low = start + int.from_bytes(content[start + 10 : start + 14], "little")
        high = low + int.from_bytes(content[start + 14 : start + 18], "little")
        columns = Columns(schemas.schema(schemas.XNNPACK), root.columns.data, damage(part))
        for begin, end, label in _of_rows(columns.roots("XNNGraph", *(np.array([at]) for at in (low, low, high)))):
            yield begin, end, f"payload {number}: {label}"
        yield low, low + 8, f"payload {number}: root and identifier"


def _of_rows(rows: Rows) -> Iterator[tuple[int, int, str]]:
    for row in range(len(rows)):
        at, table, size = int(rows.at[row]), int(rows._vtable[row]), int(rows._fields_bytes[row])
        yield table, table + size, f"{rows.where}[{row}], places of its fields"
        yield at, at + 4, f"{rows.where}[{row}], offset of the places of its fields"
    for name, entry in rows.columns.schema.tables[rows.kind].items():
        code = rows.columns.schema.scalar(entry.kind)
        width = np.dtype(code).itemsize if code and not entry.kind.startswith("[") else 4
        present, places = rows._places(name, width)
        for row in np.flatnonzero(present).tolist():
            yield int(places[row]), int(places[row]) + width, f"{rows.where}[{row}].{name}"
        vector = rows._vectors.get(name)
        if vector is not None:
            wide = np.dtype(vector.code).itemsize
            for row in np.flatnonzero(vector.start).tolist():
                start, count = int(vector.start[row]), int(vector.count[row])
                yield start - 4, start, f"{rows.where}[{row}].{name}, length"
                yield start, start + wide * count, f"{rows.where}[{row}].{name}, content"
    for below in rows._below.values():
        yield from _of_rows(below)


# --- Core ML ----------------------------------------------------------------------------------------------------------


def _blobs(part: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the record, the begin and the size of each blob, one after the other."""
    content = part.read_bytes()
    at = _RECORD_BYTES
    while at + _RECORD_BYTES <= len(content):
        size = int.from_bytes(content[at + 8 : at + 16], "little")
        start = int.from_bytes(content[at + 16 : at + 24], "little")
        yield at, start, size
        at = -(-(start + size) // _RECORD_BYTES) * _RECORD_BYTES


def _field_of_package(part: Path, at: int) -> str:
    if part.suffix == ".bin":
        for number, (record, start, size) in enumerate(_blobs(part)):
            if record <= at < record + 24:
                return f"record of blob {number}"
            if start <= at < start + size:
                return f"blob {number}"
        return "header" if at < _RECORD_BYTES else "between the blobs"
    if part.suffix == ".mlmodel":
        return ".".join(_way(model_class().DESCRIPTOR, part.read_bytes(), at))
    return part.name


def _way(message: Any, content: bytes, at: int) -> Iterator[str]:
    """Yield the names of the fields that lead to a byte of a protobuf."""
    place = 0
    while place < len(content):
        start = place
        tag, place = _varint(content, place)
        field = message.fields_by_number.get(tag >> 3)
        kind = tag & 7
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind == 0:
            _, place = _varint(content, place)
        elif kind == _LENGTH_DELIMITED:
            size, place = _varint(content, place)
        if at < place + size:
            name = field.name if field else str(tag >> 3)
            yield name if at >= place or kind == 0 else f"{name}, tag or length at {start}"
            if at >= place and kind == _LENGTH_DELIMITED and field and field.type == _MESSAGE:
                yield from _way(field.message_type, content[place : place + size], at - place)
            return
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
