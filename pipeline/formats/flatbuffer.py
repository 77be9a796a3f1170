"""A reader of flatbuffers that takes names and slots of fields from a schema file (`.fbs`).

ExecuTorch's generated classes come with four seconds of imports and cannot follow a vector of tables; its schemas are
packaged beside them. Source: https://flatbuffers.dev/internals.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SCALARS = {
    "bool": "?", "byte": "i1", "ubyte": "u1", "short": "<i2", "ushort": "<u2", "int": "<i4", "uint": "<u4",
    "long": "<i8", "ulong": "<u8", "float": "<f4", "double": "<f8",
    "int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4", "int64": "<i8",
    "uint64": "<u8", "float32": "<f4", "float64": "<f8",
}  # fmt: skip
_DECLARATION = re.compile(r"\b(table|enum|union)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{([^}]*)\}")
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?\w+\]?)\s*(?:=\s*(\w+))?\s*(\([^)]*\))?\s*;")
_INCLUDE = re.compile(r'\binclude\s+"([^"]+)"')


@dataclass(frozen=True)
class _Field:
    slot: int
    """Offset of the field in the vtable, in bytes."""
    kind: str
    default: int


@dataclass
class Schema:
    """The tables, unions and enums of a schema file."""

    tables: dict[str, dict[str, _Field]] = field(default_factory=dict)
    unions: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Members as (name, table), in order; number 0 is none."""
    enums: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    """Scalar type, and numbers by name."""

    @classmethod
    def read(cls, path: Path) -> "Schema":
        """Read a schema file and its includes."""
        schema = cls()
        schema._add(path)
        return schema

    def _add(self, path: Path) -> None:
        text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        for included in _INCLUDE.findall(text):
            self._add(path.parent / included)
        declared = _DECLARATION.findall(text)
        # Unions and enums first: a table's slots depend on them.
        for kind, name, base, body in declared:
            entries = [entry.strip() for entry in body.split(",") if entry.strip()]
            if kind == "enum":
                self.enums[name] = (SCALARS[base], _numbered(entries))
            elif kind == "union":
                pairs = [entry.partition(":") for entry in entries]
                self.unions[name] = [(left.strip(), (right or left).strip()) for left, _, right in pairs]
        for kind, name, _, body in declared:
            if kind == "table":
                self.tables[name] = self._fields(body)

    def _fields(self, body: str) -> dict[str, _Field]:
        fields: dict[str, _Field] = {}
        slot = 4
        for name, kind, default, _ in _FIELD.findall(body):
            if kind in self.unions:
                fields[f"{name}_type"] = _Field(slot, "ubyte", 0)
                slot += 2
            number = self.enums[kind][1].get(default, 0) if kind in self.enums else int(default or 0)
            fields[name] = _Field(slot, kind, number)
            slot += 2
        return fields

    def scalar(self, kind: str) -> str | None:
        """Return NumPy's code for a kind of number, or None for other kinds."""
        return self.enums[kind][0] if kind in self.enums else SCALARS.get(kind)

    def root(self, data: memoryview, name: str) -> "Table":
        """Return the root table of a buffer."""
        return Table(self, name, data, _unsigned(data, 0))


def _numbered(entries: list[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    following = 0
    for entry in entries:
        name, _, value = (part.strip() for part in entry.partition("="))
        numbers[name] = int(value) if value else following
        following = numbers[name] + 1
    return numbers


def _unsigned(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


@dataclass(frozen=True)
class Table:
    """One table of a buffer; each field is read when it is accessed."""

    schema: Schema
    name: str
    data: memoryview
    position: int

    def __getitem__(self, name: str) -> Any:
        """Return a field: a number, a string, a table or None, a NumPy view, or a list of tables or strings."""
        entry = self.schema.tables[self.name][name]
        vtable = self.position - int.from_bytes(self.data[self.position : self.position + 4], "little", signed=True)
        present = entry.slot < int.from_bytes(self.data[vtable : vtable + 2], "little")
        offset = int.from_bytes(self.data[vtable + entry.slot : vtable + entry.slot + 2], "little") if present else 0
        if entry.kind.startswith("["):
            return self._vector(entry.kind[1:-1], self.position + offset if offset else None)
        scalar = self.schema.scalar(entry.kind)
        if scalar:
            return np.frombuffer(self.data, scalar, 1, self.position + offset)[0].item() if offset else entry.default
        return self._reference(name, entry.kind, self.position + offset) if offset else None

    def _reference(self, name: str, kind: str, at: int) -> Any:
        target = at + _unsigned(self.data, at)
        if kind == "string":
            return bytes(self.data[target + 4 : target + 4 + _unsigned(self.data, target)]).decode()
        if kind not in self.schema.unions:
            return Table(self.schema, kind, self.data, target)
        number = self[f"{name}_type"]
        return Table(self.schema, self.schema.unions[kind][number - 1][1], self.data, target) if number else None

    def member(self, name: str) -> str | None:
        """Return the member of a union that a field holds, by its name, or None."""
        number = self[f"{name}_type"]
        members = self.schema.unions[self.schema.tables[self.name][name].kind]
        return members[number - 1][0] if number else None

    def _vector(self, kind: str, at: int | None) -> Any:
        scalar = self.schema.scalar(kind)
        if at is None:
            return np.empty(0, scalar) if scalar else []
        start = at + _unsigned(self.data, at)
        count = _unsigned(self.data, start)
        # A count from a damaged file would be four thousand million tables.
        if count * np.dtype(scalar or "<u4").itemsize > len(self.data) - start - 4:
            raise ValueError(f"a vector of {count} elements ends outside of the file")
        if scalar:
            return np.frombuffer(self.data, scalar, count, start + 4)
        return list(self._entries(kind, start + 4, count))

    def _entries(self, kind: str, start: int, count: int) -> Iterator[Any]:
        for at in range(start, start + 4 * count, 4):
            yield self._reference("", kind, at)
