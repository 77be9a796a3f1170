"""Files damaged at one place that is known by its field, for tests of what reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.formats.columns import Columns, Rows, damage
from pipeline.formats.executorch import schemas
from pipeline.formats.flatbuffer import Schema
from pipeline.formats.litert import bounds as litert


class Damaged:
    """A flatbuffer in memory; fields are written over by the names of the schema."""

    def __init__(self, file: Path, schema: Schema, kind: str) -> None:
        self.file = file
        self.data = np.fromfile(file, np.uint8)
        self.root = Columns(schema, self.data.copy(), damage(file)).root(kind, len(self.data))

    @classmethod
    def litert(cls, file: Path) -> "Damaged":
        return cls(file, litert._schema(), "Model")

    @classmethod
    def executorch(cls, file: Path) -> "Damaged":
        return cls(file, schemas.schema(schemas.PROGRAM), "Program")

    def payload(self, number: int = 0) -> Rows:
        """Return the graph of a delegate's payload."""
        head = self.data.tobytes()
        places = self.root["execution_plan"]["delegates"]["processed"]
        segment = int(places.number("index")[number])
        start = int.from_bytes(head[24:32], "little") + int(self.root["segments"].number("offset")[segment])
        low = start + int.from_bytes(head[start + 10 : start + 14], "little")
        high = low + int.from_bytes(head[start + 14 : start + 18], "little")
        columns = Columns(schemas.schema(schemas.XNNPACK), self.root.columns.data, damage(self.file))
        return columns.roots("XNNGraph", np.array([low]), np.array([low]), np.array([high]))

    def number(self, rows: Rows, name: str, value: Any, *, row: int | None = None) -> "Damaged":
        """Write a number over a field of a row, or of the first row that has it."""
        code = rows.number(name).dtype
        present, places = rows._places(name, code.itemsize)
        chosen = int(np.flatnonzero(present)[0]) if row is None else row
        assert present[chosen], f"{rows.where} number {chosen} has no {name} to write over"
        return self.bytes(int(places[chosen]), np.array([value], code).tobytes())

    def element(self, rows: Rows, name: str, value: Any, *, row: int = 0, at: int = 0) -> "Damaged":
        """Write a number over an element of a vector."""
        vector = rows.vector(name)
        assert vector.count[row] > at, f"{rows.where} number {row} has no element {at} of {name}"
        width = np.dtype(vector.code).itemsize
        return self.bytes(int(vector.start[row]) + width * at, np.array([value], vector.code).tobytes())

    def length(self, rows: Rows, name: str, value: int, *, row: int = 0) -> "Damaged":
        """Write another length over a vector's or a text's own."""
        return self.bytes(int(rows.vector(name).start[row]) - 4, value.to_bytes(4, "little"))

    def offset(self, rows: Rows, name: str, value: int, *, row: int = 0) -> "Damaged":
        """Write another offset over a field that leads elsewhere."""
        present, places = rows._places(name)
        assert present[row], f"{rows.where} number {row} has no {name} to write over"
        return self.bytes(int(places[row]), value.to_bytes(4, "little"))

    def bytes(self, at: int, content: bytes) -> "Damaged":
        """Write bytes over others."""
        self.data[at : at + len(content)] = np.frombuffer(content, np.uint8)
        return self

    def write(self, file: Path) -> Path:
        """Write the damaged file."""
        self.data.tofile(file)
        return file


def first(rows: Rows, name: str, value: Any) -> int:
    """Return the first row whose number or text is this."""
    found = rows.texts(name) if name in rows._vectors else rows.number(name).tolist()
    return int(found.index(value))
