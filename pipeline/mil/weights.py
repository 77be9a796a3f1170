"""The stored weights of a package: each once, with all who read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.mil.package import Literal, Operation, Package, Program
from pipeline.mil.sources import Expression, Source, constants, is_constant, literals
from pipeline.mil.values import TensorType

_QUANTISED = ("data", "quantized_data")
_SPARSE = ("nonzero_data", "indices_nonzero_data")


@dataclass(frozen=True)
class Reader:
    """An operation that reads a weight."""

    function: str
    kind: str
    name: str


@dataclass
class Weight:
    """A constant that operations read, compressed or not."""

    name: str
    """In the first function that has it."""
    source: Source
    readers: list[Reader]

    @property
    def type(self) -> TensorType | None:
        """What operations see."""
        return self.source.output.type if isinstance(self.source, Expression) else self.source.type

    @cached_property
    def stored(self) -> str:
        """How it is kept: an element type, `lut4` for a palette of four bits; `sparse` before it without its zeros."""
        return stored(self.source)

    @property
    def blobs(self) -> tuple[tuple[str, int], ...]:
        """The places in weight files of all its parts, in order."""
        places = (part.blob for part in literals(self.source))
        return tuple(dict.fromkeys(place for place in places if place is not None))


def stored(source: Source) -> str:
    """Say how a constant is kept, see `Weight.stored`."""
    if isinstance(source, Literal):
        return source.type.dtype.name.replace("fp", "float") if source.type else "list"
    arguments = source.arguments
    kind = source.operation.kind
    if "lut" in kind:
        palette = _type(arguments["lut"])
        entries = palette.shape[-2 if "shape" not in arguments else -1] if palette.shape else None
        sparse = "sparse " if "sparse" in kind else ""
        return f"{sparse}lut{(entries or 1).bit_length() - 1}"
    if "sparse" in kind:
        inner = stored(arguments[next(name for name in _SPARSE if name in arguments)])
        return inner if inner.startswith("sparse") else f"sparse {inner}"
    return stored(arguments[next((name for name in _QUANTISED if name in arguments), "source_val")])


def _type(source: Source) -> TensorType:
    found = source.output.type if isinstance(source, Expression) else source.type
    assert found is not None, "a list cannot be an argument of constexpr_*"
    return found


def weights(package: Package) -> tuple[Weight, ...]:
    """Return the constants that operations read, in the order of the file, each once for all functions.

    Two constants are one when they lie at one place of a weight file. What is written into the program is told apart by
    its name and function, because the program then really holds it twice.
    """
    found: dict[Any, Weight] = {}
    for name in package.functions:
        program = package.program(name)
        _add(found, program, constants(program))
    return tuple(found.values())


def _add(found: dict[Any, Weight], program: Program, sources: Mapping[str, Source]) -> None:
    for operation in program.operations:
        if is_constant(operation):
            continue
        for value in _read(operation):
            source = sources.get(value) if isinstance(value, str) else value
            if source is None:
                continue
            name = value if isinstance(value, str) else f"{operation.name}:literal"
            key = source.key if any(part.blob for part in literals(source)) else (program.name, name)
            weight = found.setdefault(key, Weight(name, source, []))
            weight.readers.append(Reader(program.name, operation.kind, operation.name))


def _read(operation: Operation) -> tuple[str | Literal, ...]:
    return tuple(argument for given in operation.arguments.values() for argument in given)
