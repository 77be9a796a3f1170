"""Flatbuffers read by column: every offset is checked before it is followed, all tables of a kind at once.

The runtimes follow the offsets of a file unchecked. This does the work of flatbuffers' own verifier in C++, which no
wheel offers to Python, in milliseconds: a field of four thousand tensors is one operation of NumPy.
Source: https://flatbuffers.dev/internals.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ArtifactError
from pipeline.formats.flatbuffer import Schema

Ints = NDArray[np.int64]
Refuse = Callable[[str], ArtifactError]
"""Makes the error for a damaged file from a description of the damage."""
_MOST_TABLES = 1_000_000
"""Most tables or references in one vector field: the limit of flatbuffers' own verifier. Vectors may share entries, so
a small file could lead to any number of them."""
_MOST_NUMBERS = 16_000_000
"""Most numbers in all vectors of a field, for the same reason. Scales for each row of XLM-R's table and for each
channel, in each of four signatures, are 1.5 million; BERT-large has as many."""


def damage(file: object) -> Refuse:
    """Return a function that makes the error for a damaged file."""
    return lambda what: ArtifactError(f"{file} is damaged: {what}. Make the target again, or copy it again.")


@dataclass
class Columns:
    """The bytes of one file with the schema to read them."""

    schema: Schema
    data: NDArray[np.uint8]
    refuse: Refuse

    def roots(self, kind: str, places: Ints, low: Ints, high: Ints) -> "Rows":
        """Check the flatbuffers between `low` and `high`, and return their root tables.

        Args:
            kind: table of the root.
            places: positions of the offsets that lead to the roots.
            low: start of each flatbuffer, from which alignment counts.
            high: end of each flatbuffer.

        Raises:
            ArtifactError: an offset leads out of its flatbuffer, a place is not aligned, or a text is not UTF-8.
        """
        owner = np.arange(len(places))
        self.demand(
            (low >= 0) & (places >= low) & (places + 4 <= high) & (high <= len(self.data)), kind, "lies outside"
        )
        rows = Rows(self, kind, kind, places + self.gather(places, "<u4"), owner, low, high)
        rows.check()
        return rows

    def root(self, kind: str, size: int) -> "Rows":
        """Check the flatbuffer at the start of a file, see `roots`."""
        zero = np.zeros(1, np.int64)
        return self.roots(kind, zero, zero, np.array([size]))

    def gather(self, places: Ints, code: str) -> NDArray[Any]:
        """Return numbers of one type at checked positions."""
        width = np.dtype(code).itemsize
        taken = self.data[places[:, None] + np.arange(width)]
        numbers: NDArray[Any] = taken.view(code)[:, 0] if len(places) else np.empty(0, code)
        return numbers

    def demand(self, right: NDArray[np.bool_], where: str, problem: str) -> None:
        """Refuse the file at the first row that is false."""
        if not right.all():
            raise self.refuse(f"{where}, number {int(np.flatnonzero(~right)[0])}: {problem}")


@dataclass
class Vectors:
    """One vector per row; empty where the field is absent."""

    columns: Columns
    where: str
    code: str
    start: Ints
    """Position of the first element."""
    count: Ints

    @cached_property
    def owner(self) -> Ints:
        """Row of each element."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def order(self) -> Ints:
        """Index of each element in its vector."""
        ends = np.cumsum(self.count)
        return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - self.count, self.count)

    @cached_property
    def values(self) -> NDArray[Any]:
        """All elements, row by row."""
        if int(self.count.sum()) > _MOST_NUMBERS:
            raise self.columns.refuse(f"{self.where}: more than {_MOST_NUMBERS} elements in all")
        width = np.dtype(self.code).itemsize
        return self.columns.gather(self.start[self.owner] + width * self.order, self.code)

    def total(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum per row of some numbers, one for each element."""
        return np.bincount(self.owner, values, len(self.count)).astype(np.float64)

    def product(self) -> NDArray[np.float64]:
        """Return the product of each row, 1 for an empty one; in double precision, so that it does not overflow."""
        result = np.ones(len(self.count))
        np.multiply.at(result, self.owner, self.values.astype(np.float64))
        return result

    def at(self, row: int) -> list[Any]:
        """Return the elements of one row."""
        first = int(self.count[:row].sum())
        return list(self.values[first : first + int(self.count[row])].tolist())

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the elements of every row."""
        ends = np.cumsum(self.count).tolist()
        values = self.values.tolist()
        return [tuple(values[end - size : end]) for end, size in zip(ends, self.count.tolist(), strict=True)]

    def are_orders(self, axes: "Vectors") -> Any:
        """Return whether each row is a permutation of as many axes as another vector has."""
        if (self.count != axes.count).any():
            return self.count == axes.count
        return [sorted(row) == list(range(len(row))) for row in self.rows()]

    def demand_below(self, limit: Ints | int, what: str, *, least: int = 0) -> None:
        """Refuse an element outside of `least` to `limit`, where `limit` is a count for each row."""
        limits = np.broadcast_to(limit, self.count.shape)[self.owner]
        wrong = np.flatnonzero((self.values < least) | (self.values >= limits))
        if len(wrong):
            first = int(wrong[0])
            named = f"{what} {self.values[first]} of {int(limits[first])}"
            raise self.columns.refuse(f"{self.where}, number {int(self.owner[first])}: it names {named}")


@dataclass
class Rows:
    """All tables of a kind that are reached by the same path of fields."""

    columns: Columns
    kind: str
    where: str
    """The path, for messages."""
    at: Ints
    owner: Ints
    """For each table, the row of the parent table."""
    low: Ints
    high: Ints
    _numbers: dict[str, NDArray[Any]] = field(default_factory=dict)
    _vectors: dict[str, Vectors] = field(default_factory=dict)
    _below: dict[tuple[str, str | None], "Rows"] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.at)

    def __getitem__(self, name: str) -> "Rows":
        """Return the tables that a field leads to."""
        return self._below[name, None]

    def members(self, name: str) -> "dict[str, Rows]":
        """Return the tables of a union field, by the members that occur in the file."""
        return {member: rows for (field, member), rows in self._below.items() if field == name and member}

    def number(self, name: str) -> NDArray[Any]:
        """Return a field of numbers, with the schema's default where it is absent."""
        return self._numbers[name]

    def vector(self, name: str) -> Vectors:
        """Return a field of number vectors, or the bytes of strings."""
        return self._vectors[name]

    def has(self, name: str) -> NDArray[np.bool_]:
        """Return whether each row has a field."""
        return self._places(name)[0]

    def texts(self, name: str) -> list[str]:
        """Return a field of strings, empty where it is absent."""
        vector = self._vectors[name]
        data = self.columns.data
        spans = zip(vector.start.tolist(), vector.count.tolist(), strict=True)
        return [bytes(data[start : start + count]).decode() for start, count in spans]

    def demand(self, right: Any, problem: str) -> None:
        """Refuse the file at the first row that is false."""
        self.columns.demand(np.asarray(right, bool), self.where, problem)

    def check(self) -> None:
        """Check the tables themselves, then every field, then the tables below."""
        if len(self) > _MOST_TABLES:
            raise self.columns.refuse(f"{self.where}: more than {_MOST_TABLES} tables")
        gather = self.columns.gather
        self._demand_inside(self.at, 4)
        self.demand((self.at - self.low) % 4 == 0, "the table lies askew")
        self._vtable = self.at - gather(self.at, "<i4")
        self._demand_inside(self._vtable, 4)
        self.demand((self._vtable - self.low) % 2 == 0, "the table's list of fields lies askew")
        self._fields_bytes = gather(self._vtable, "<u2").astype(np.int64)
        self._bytes = gather(self._vtable + 2, "<u2").astype(np.int64)
        self.demand(
            (self._fields_bytes >= 4) & (self._fields_bytes % 2 == 0), "the table's list of fields is too short"
        )
        self._demand_inside(self._vtable, self._fields_bytes)
        self._demand_inside(self.at, self._bytes)
        for name, entry in self.columns.schema.tables[self.kind].items():
            self._check_field(name, entry.kind, entry.default)

    def _check_field(self, name: str, kind: str, default: int) -> None:
        schema = self.columns.schema
        code = schema.scalar(kind)
        if kind.startswith("["):
            self._check_vector(name, kind[1:-1])
        elif code:
            present, places = self._places(name, np.dtype(code).itemsize)
            numbers = np.full(len(self), default, code)
            numbers[present] = self.columns.gather(places[present], "u1" if code == "?" else code)
            self._numbers[name] = numbers
        elif kind == "string":
            self._check_texts(name)
        elif kind in schema.unions:
            self._check_union(name, schema.unions[kind])
        else:
            rows, targets = self._targets(name)
            self._lead(name, None, kind, targets, rows)

    def _check_union(self, name: str, members: list[tuple[str, str]]) -> None:
        kinds = self._numbers[f"{name}_type"]
        self.demand(kinds <= len(members), f"{name} is of kind {kinds.max(initial=0)}, which the schema lacks")
        rows, targets = self._targets(name)
        self.demand((kinds != 0) <= self.has(name), f"{name} has a kind, and there is none")
        for number, (member, table) in enumerate(members, 1):
            chosen = kinds[rows] == number
            # Most members occur in no file, and need no check.
            if chosen.any():
                self._lead(name, member, table, targets[chosen], rows[chosen])

    def _check_vector(self, name: str, kind: str) -> None:
        code = self.columns.schema.scalar(kind)
        found = self._vector(name, code or "<u4")
        if code:
            self._vectors[name] = found
            return
        offsets = found.values.astype(np.int64)
        targets = found.start[found.owner] + 4 * found.order + offsets
        self._lead(name, None, kind, targets, found.owner)

    def _check_texts(self, name: str) -> None:
        found = self._vector(name, "u1")
        self._vectors[name] = found
        data = self.columns.data
        present = found.start > 0
        ends = found.start + found.count
        self._demand_inside(np.where(present, ends, self.low), 1)
        self.demand(~present | (data[np.where(present, ends, 0)] == 0), f"{name} has no end")
        for start, count in set(zip(found.start.tolist(), found.count.tolist(), strict=True)):
            try:
                bytes(data[start : start + count]).decode()
            except UnicodeDecodeError:
                raise self.columns.refuse(f"{self.where}.{name} at byte {start} is no text") from None

    def _vector(self, name: str, code: str) -> Vectors:
        rows, targets = self._targets(name)
        count, start = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        low, high = self.low[rows], self.high[rows]
        where, width = f"{self.where}.{name}", np.dtype(code).itemsize
        demand = self.columns.demand
        demand((targets + 4 <= high) & ((targets - low) % 4 == 0), where, "the vector lies outside, or askew")
        count[rows] = self.columns.gather(targets, "<u4")
        start[rows] = targets + 4
        demand(start[rows] + width * count[rows] <= high, where, "the vector ends outside")
        demand((count[rows] == 0) | ((start[rows] - low) % width == 0), where, "the vector's elements lie askew")
        return Vectors(self.columns, where, code, start, count)

    def _places(self, name: str, width: int = 4) -> tuple[NDArray[np.bool_], Ints]:
        """Return whether each row has a field, and the field's position in the row."""
        slot = self.columns.schema.tables[self.kind][name].slot
        offsets = np.zeros(len(self), np.int64)
        listed = self._fields_bytes > slot
        offsets[listed] = self.columns.gather(self._vtable[listed] + slot, "<u2")
        present = offsets > 0
        self.demand(~present | ((offsets >= 4) & (offsets + width <= self._bytes)), f"{name} lies outside of its table")
        return present, self.at + offsets

    def _targets(self, name: str) -> tuple[Ints, Ints]:
        """Return the rows that have a field, and the position that its offset leads to."""
        present, places = self._places(name)
        rows, places = np.flatnonzero(present), places[present]
        self.demand((places - self.low[rows]) % 4 == 0, f"{name} lies askew")
        return rows, places + self.columns.gather(places, "<u4")

    def _lead(self, name: str, member: str | None, kind: str, targets: Ints, owner: Ints) -> None:
        where = f"{self.where}.{name}"
        below = Rows(self.columns, kind, where, targets, owner, self.low[owner], self.high[owner])
        below.check()
        self._below[name, member] = below

    def _demand_inside(self, places: Ints, width: Ints | int) -> None:
        self.demand((places >= self.low) & (places + width <= self.high), "the table lies outside")


def room(offsets: NDArray[np.float64], size: float) -> NDArray[np.float64]:
    """Return the number of bytes from each offset to the next one, or to the end."""
    rising = np.append(np.unique(offsets), size)
    following: NDArray[np.float64] = rising[np.searchsorted(rising, offsets, side="right").clip(max=len(rising) - 1)]
    return following - offsets
