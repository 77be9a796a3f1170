"""List a package: the operations of each function, and the weights with sizes and readers."""

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from pipeline.mil import trial
from pipeline.mil.constants import Weight, is_constant, weights
from pipeline.mil.package import Package, Program, read


@dataclass(frozen=True)
class OpRow:
    """The operations of one type and element type in a function."""

    kind: str
    dtypes: str
    """Types of the operations' outputs."""
    count: int


@dataclass(frozen=True)
class FunctionRow:
    """The operations of one function."""

    name: str
    opset: str
    operations: tuple[OpRow, ...]
    """Most frequent first, without constants but with decompressions."""


@dataclass(frozen=True)
class WeightRow:
    """A weight of the package's weight files."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    """Element type that operations read."""
    stored: str
    bytes: int
    """Size of all parts: numbers, scales, palettes, masks."""
    readers: int
    """Number of operations that read it, over all functions."""
    functions: int
    """Number of functions that read it."""


@dataclass(frozen=True)
class Duplicate:
    """Equal bytes that are stored several times in the weight files."""

    names: tuple[str, ...]
    """Weights that have one of the copies as a part."""
    copies: int
    bytes: int
    """Size of one copy."""


@dataclass(frozen=True)
class Listing:
    """The functions, weights and duplicates of a package."""

    functions: tuple[FunctionRow, ...]
    weights: tuple[WeightRow, ...]
    duplicates: tuple[Duplicate, ...]

    @property
    def weight_bytes(self) -> int:
        """Size of all weights."""
        return sum(row.bytes for row in self.weights)

    @property
    def duplicate_bytes(self) -> int:
        """Bytes that storing each content once would save."""
        return sum((row.copies - 1) * row.bytes for row in self.duplicates)


def read_listing(path: Path) -> Listing:
    """List the package at a path, see `trial.find`.

    Raises:
        ArtifactError: the package is damaged.
        InputError: there is none.
    """
    return take(read(trial.find(path)))


def take(package: Package) -> Listing:
    """List a package.

    Raises:
        ArtifactError: the package is damaged.
    """
    found = [weight for weight in weights(package) if weight.blobs]
    return Listing(
        functions=tuple(_function(package.program(name)) for name in package.functions),
        weights=tuple(_weight(package, weight) for weight in found),
        duplicates=_duplicates(package, found),
    )


def _function(program: Program) -> FunctionRow:
    counts: Counter[tuple[str, str]] = Counter()
    for operation in program.operations:
        if operation.kind == "const":
            continue
        types = dict.fromkeys(output.type.dtype.name if output.type else "dictionary" for output in operation.outputs)
        counts[operation.kind, ", ".join(types)] += 1
    return FunctionRow(program.name, program.opset, tuple(OpRow(*row, count) for row, count in counts.most_common()))


def count_operations(program: Program) -> int:
    """Return the number of operations that run at each call."""
    return sum(not is_constant(operation) for operation in program.operations)


def _weight(package: Package, weight: Weight) -> WeightRow:
    size = sum(package.blob(file).record(offset).bytes for file, offset in weight.blobs)
    return WeightRow(
        name=weight.name,
        shape=(weight.type.shape if weight.type else None) or (),
        dtype=weight.type.dtype.name if weight.type else "list",
        stored=weight.stored,
        bytes=size,
        readers=len({(reader.function, reader.name) for reader in weight.readers}),
        functions=len({reader.function for reader in weight.readers}),
    )


def _duplicates(package: Package, found: list[Weight]) -> tuple[Duplicate, ...]:
    """Return the contents that are stored several times, the largest saving first."""
    owners: dict[tuple[str, int], list[str]] = defaultdict(list)
    for weight in found:
        for place in weight.blobs:
            owners[place].append(weight.name)
    places: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
    sizes: dict[bytes, int] = {}
    for file, offset in owners:
        raw = package.blob(file).raw(offset)
        digest = hashlib.sha256(raw.data).digest()
        places[digest].append((file, offset))
        sizes[digest] = int(raw.size)
    rows = [
        Duplicate(tuple(dict.fromkeys(name for place in same for name in owners[place])), len(same), sizes[digest])
        for digest, same in places.items()
        if len(same) > 1 and sizes[digest]
    ]
    return tuple(sorted(rows, key=lambda row: -(row.copies - 1) * row.bytes))
