"""What is in a package: operations of each function, and weights with what they take and who reads them."""

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass

from pipeline.mil.constants import Weight, is_constant, weights
from pipeline.mil.package import Package, Program


@dataclass(frozen=True)
class OpRow:
    """Operations of one type and element type in a function."""

    kind: str
    dtypes: str
    """Types of the values that they give."""
    count: int


@dataclass(frozen=True)
class FunctionRow:
    """A function."""

    name: str
    opset: str
    operations: tuple[OpRow, ...]
    """The most frequent first; constants are not among them, decompressions are."""


@dataclass(frozen=True)
class WeightRow:
    """A weight of the package's weight files."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    """What operations see."""
    stored: str
    bytes: int
    """All parts: numbers, scales, palettes, masks."""
    readers: int
    """Operations, over all functions."""
    functions: int
    """Functions with a reader."""


@dataclass(frozen=True)
class Duplicate:
    """The same bytes in several places of the weight files."""

    names: tuple[str, ...]
    """Weights with a part in one of these places."""
    copies: int
    bytes: int
    """Size of one copy."""


@dataclass(frozen=True)
class Listing:
    """A package."""

    functions: tuple[FunctionRow, ...]
    weights: tuple[WeightRow, ...]
    duplicates: tuple[Duplicate, ...]

    @property
    def weight_bytes(self) -> int:
        """Size of all weights."""
        return sum(row.bytes for row in self.weights)

    @property
    def duplicate_bytes(self) -> int:
        """What storing each content once would save."""
        return sum((row.copies - 1) * row.bytes for row in self.duplicates)


def take(package: Package) -> Listing:
    """List a package.

    Raises:
        ArtifactError: it is damaged.
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
    """Return how many operations run at each call."""
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
    """Return contents that lie in several places, the largest saving first."""
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
