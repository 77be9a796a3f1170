"""The constants of a program, from a literal to a chain of decompressions, and the stored weights among them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.errors import ArtifactError
from pipeline.mil.constexpr import EXPRESSIONS
from pipeline.mil.package import Literal, Operation, Output, Package, Program
from pipeline.mil.values import Array, TensorType, Value, flush, to_half

PREFIX = "constexpr_"
"""Prefix of the operations that decompress weights."""
_QUANTISED = ("data", "quantized_data")
_SPARSE = ("nonzero_data", "indices_nonzero_data")


@dataclass(frozen=True)
class Expression:
    """One output of a `constexpr_*` operation."""

    operation: Operation
    arguments: Mapping[str, "Source"]
    index: int

    @property
    def output(self) -> Output:
        """The declared output."""
        return self.operation.outputs[self.index]

    @cached_property
    def whole_key(self) -> tuple[Any, ...]:
        """Equal for two operations that decode the same stored numbers in the same way."""
        return (self.operation.kind, *((name, source.key) for name, source in sorted(self.arguments.items())))

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for two expressions that decode the same stored numbers in the same way."""
        return (self.index, self.whole_key)


Source = Literal | Expression


def is_constant(operation: Operation) -> bool:
    """Whether an operation is evaluated when a model is loaded, not when it runs."""
    return operation.kind == "const" or operation.kind.startswith(PREFIX)


def constants(program: Program) -> dict[str, Source]:
    """Return the source of every constant of a function, by the name under which operations read it.

    Raises:
        ArtifactError: a decompression reads a value that is not constant.
    """
    found: dict[str, Source] = {}
    for operation in program.operations:
        if operation.kind == "const":
            (value,) = operation.arguments["val"]
            if isinstance(value, Literal):
                found[operation.name] = value
        elif operation.kind.startswith(PREFIX):
            arguments = {name: _source(found, operation, given[0]) for name, given in operation.arguments.items()}
            for index, output in enumerate(operation.outputs):
                found[output.name] = Expression(operation, arguments, index)
    return found


def _source(found: Mapping[str, Source], operation: Operation, argument: str | Literal) -> Source:
    if isinstance(argument, Literal):
        return argument
    if argument not in found:
        raise ArtifactError(f"{operation.kind} {operation.name} reads {argument}, which is no constant.")
    return found[argument]


def parameter(package: Package, sources: Mapping[str, Source], operation: Operation, name: str) -> Value | None:
    """Return a constant argument; None if the argument is absent or computed."""
    if name not in operation.arguments:
        return None
    (argument,) = operation.arguments[name]
    source = sources.get(argument) if isinstance(argument, str) else argument
    return None if source is None else decode(package, source, rounded=False)


def literals(source: Source) -> Iterator[Literal]:
    """Yield the literals from which a constant is decoded."""
    if isinstance(source, Literal):
        yield source
    else:
        for argument in source.arguments.values():
            yield from literals(argument)


def decoded(package: Package, source: Source, *, rounded: bool, flushed: bool = False) -> Value:
    """Return a constant as operations read it, decoded once for a package: floats in single precision.

    Args:
        package: the package with the constants.
        source: the constant to decode.
        rounded: round decompressed weights that are declared half precision to it.
        flushed: replace subnormal numbers that are declared half precision by zeros.

    Raises:
        ArtifactError: stored numbers are damaged or do not fit together.
    """
    half = flushed and is_half(source.output if isinstance(source, Expression) else source)
    key = (rounded and isinstance(source, Expression), half, source.key)
    if key not in package.decoded:
        value = decode(package, source, rounded=rounded)
        if isinstance(value, np.ndarray) and value.dtype == np.float16:
            value = value.astype(np.float32)
        package.decoded[key] = flush(value) if half and isinstance(value, np.ndarray) else value
    return package.decoded[key]


def is_half(value: Output | Literal) -> bool:
    """Whether a value is declared half precision."""
    return value.type is not None and value.type.dtype.name == "fp16"


def decode(package: Package, source: Source, *, rounded: bool) -> Value:
    """Return a constant's numbers; intermediate results are not kept."""
    return _decode(package, source, rounded, {})


def _decode(package: Package, source: Source, rounded: bool, parts: dict[Any, tuple[Array, ...]]) -> Value:
    if isinstance(source, Literal):
        return package.literal(source)
    # A sparse operation's mask and numbers are read by one consumer: computed once, through `parts`.
    if source.whole_key not in parts:
        arguments = {name: _decode(package, given, rounded, parts) for name, given in source.arguments.items()}
        parts[source.whole_key] = _evaluate(source.operation, arguments, rounded)
    return parts[source.whole_key][source.index]


def _evaluate(operation: Operation, arguments: Mapping[str, Value], rounded: bool) -> tuple[Array, ...]:
    try:
        result = EXPRESSIONS[operation.kind](**arguments)
    except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raise ArtifactError(f"{operation.kind} {operation.name} cannot be decoded: {error}.") from error
    results = result if isinstance(result, tuple) else (result,)
    finished = []
    for value, output in zip(results, operation.outputs, strict=True):
        if output.type is not None and not output.type.fits(value.shape):
            raise ArtifactError(f"{operation.kind} {output.name} decodes to {value.shape}, not {output.type.shape}.")
        half = rounded and output.type is not None and output.type.dtype.name == "fp16"
        finished.append(to_half(value.astype(np.float32, copy=False)) if half else value)
    return tuple(finished)


# --- stored weights -----------------------------------------------------------------------------------------------


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
    """Name in the first function that has it."""
    source: Source
    readers: list[Reader]

    @property
    def type(self) -> TensorType | None:
        """The type that operations see."""
        return self.source.output.type if isinstance(self.source, Expression) else self.source.type

    @cached_property
    def stored(self) -> str:
        """Element type, or `lut4` for a palette of four bits; `sparse` before it if zeros are not stored."""
        return stored(self.source)

    @property
    def blobs(self) -> tuple[tuple[str, int], ...]:
        """Weight file and offset of each of its parts, in order."""
        blobs = (part.blob for part in literals(self.source))
        return tuple(dict.fromkeys(blob for blob in blobs if blob is not None))


def stored(source: Source) -> str:
    """Return the storage of a constant, see `Weight.stored`."""
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

    Two constants are one if they have the same offset in a weight file. Constants that are written into the program
    differ by name and function, because the program holds each of them.
    """
    found: dict[Any, Weight] = {}
    for name in package.functions:
        program = package.program(name)
        sources = constants(program)
        for operation in (one for one in program.operations if not is_constant(one)):
            for value in (argument for given in operation.arguments.values() for argument in given):
                source = sources.get(value) if isinstance(value, str) else value
                if source is None:
                    continue
                label = value if isinstance(value, str) else f"{operation.name}:literal"
                key = source.key if any(part.blob for part in literals(source)) else (program.name, label)
                weight = found.setdefault(key, Weight(label, source, []))
                weight.readers.append(Reader(program.name, operation.kind, operation.name))
    return tuple(found.values())
