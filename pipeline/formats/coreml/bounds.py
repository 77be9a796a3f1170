"""Check a Core ML package before anything runs it: every reference stays inside it and leads to something.

The protobuf itself is parsed by Google's library, which refuses truncated ones. The rest are names of values that no
operation computes, offsets into weight files, shapes, and literals that do not fill them.
"""

import math
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline import mil
from pipeline.formats.columns import damage
from pipeline.formats.coreml import written
from pipeline.mil import Package
from pipeline.mil.constants import is_constant
from pipeline.mil.package import VARIADIC, Literal, Operation, Output, Program
from pipeline.mil.values import TensorType

_MOST_BYTES = 2**32
"""Most bytes of one value; the largest of an encoder's is its vocabulary's table."""
_MOST_AXES = 8
"""Most axes: a palette has two more than its weight, and Core ML's values have five at most."""
_MOST_CHAINED = 8
"""Most decompressions of one constant, one after the other."""
_ALIGNMENT = 64
"""Alignment of a blob's data."""
_BEHIND_RECORD = 64


def read(file: Path) -> Package:
    """Read a package, and refuse one with a reference that leads nowhere, or with content that no conversion writes.

    Raises:
        ArtifactError: the first such reference or content, in one line.
        InputError: there is nothing at that path, or no package.
        ToolchainError: coremltools, which carries the schema, is not installed.
    """
    try:
        package = mil.read(file)
        _Check(package).all()
        written.check(package)
    except (RecursionError, MemoryError) as error:
        raise damage(file)(f"it asks for too much: {error!r}") from error
    return package


def check(file: Path) -> None:
    """Refuse a damaged package, see `read`."""
    read(file)


class _Check:
    """The bounds check of one package."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._refuse = damage(package.path)
        self._seen: set[object] = set()
        """References to weight files that were checked with the same type; functions share them."""

    def all(self) -> None:
        """Check every function."""
        functions = self._package.functions
        if len(set(functions)) < len(functions) or not set(functions) <= set(self._package.spec.mlProgram.functions):
            raise self._refuse(f"it describes the functions {', '.join(functions)}, which it does not hold")
        for name in functions:
            self._function(self._package.program(name))

    def _function(self, program: Program) -> None:
        known: dict[str, TensorType | None] = {}
        chained: dict[str, int] = {}
        """Number of decompressions by which a constant is made."""
        for row in program.inputs:
            self._declared(row, f"{program.name}, input {row.name}")
            known[row.name] = row.type
        for operation in program.operations:
            where = f"{program.name}, {operation.kind} {operation.name}"
            self._arguments(operation, known, where)
            if is_constant(operation):
                before = [
                    chained.get(one, 0)
                    for given in operation.arguments.values()
                    for one in given
                    if isinstance(one, str)
                ]
                depth = max(before, default=0) + 1
                if depth > _MOST_CHAINED:
                    raise self._refuse(f"{where} is decompressed {depth} times")
                chained |= {output.name: depth for output in operation.outputs}
            if not operation.outputs:
                raise self._refuse(f"{where} gives nothing")
            for output in operation.outputs:
                self._declared(output, where)
                if output.name in known:
                    raise self._refuse(f"{where} gives {output.name}, which is there already")
                known[output.name] = output.type
        for name in program.outputs:
            if name not in known:
                raise self._refuse(f"{program.name} gives {name}, which nothing computes")
        self._described(program, known)

    def _arguments(self, operation: Operation, known: dict[str, TensorType | None], where: str) -> None:
        if operation.kind == "const" and "val" not in operation.arguments:
            raise self._refuse(f"{where} has no value")
        for name, given in operation.arguments.items():
            if len(given) != 1 and (name != VARIADIC or not given):
                raise self._refuse(f"{where} is given {len(given)} of {name}")
            for one in given:
                if isinstance(one, Literal):
                    self._literal(one, f"{where}, {name}")
                elif one not in known:
                    raise self._refuse(f"{where} reads {one}, which nothing before it computes")
            if operation.kind == "const" and name == "val":
                self._same(given[0], operation.outputs, where)

    def _same(self, value: Any, outputs: tuple[Output, ...], where: str) -> None:
        if not isinstance(value, Literal) or len(outputs) != 1:
            raise self._refuse(f"{where} is not one literal")
        if value.type != outputs[0].type:
            raise self._refuse(f"{where} is declared otherwise than its literal")

    # --- types and literals -------------------------------------------------------------------------------------------

    def _declared(self, output: Output, where: str) -> None:
        if output.type is not None:
            self._size(output.type.shape or (), output.type.dtype.bits, where)

    def _size(self, shape: Iterable[int | None], bits: int, where: str) -> int:
        """Return the number of elements of a shape after checking it; free sizes count as 1."""
        sizes = [1 if size is None else int(size) for size in shape]
        elements = math.prod(sizes)
        if len(sizes) > _MOST_AXES or any(size < 0 for size in sizes) or elements * max(bits, 8) > 8 * _MOST_BYTES:
            raise self._refuse(f"{where} has the shape {sizes}")
        return elements

    def _literal(self, literal: Literal, where: str) -> None:
        place = (literal.blob, literal.type)
        if place in self._seen:
            return
        if literal.type is None:
            if literal.blob is not None or literal.proto.WhichOneof("value") != "list":
                raise self._refuse(f"{where} is a literal without a type")
            return
        declared = literal.type
        if None in (declared.shape or (None,)) and declared.shape != ():
            raise self._refuse(f"{where} is a literal without a fixed shape")
        elements = self._size(declared.shape or (), declared.dtype.bits, where)
        if literal.blob is None:
            self._immediate(literal, elements, where)
        else:
            self._blob(literal.blob, declared, elements, where)
            self._seen.add(place)

    def _blob(self, place: tuple[str, int], declared: TensorType, elements: int, where: str) -> None:
        name, offset = place
        if not PurePosixPath(name).name or ".." in PurePosixPath(name).parts:
            raise self._refuse(f"{where} lies in a weight file without a name")
        record = self._package.blob(name).record(offset)
        dtype = declared.dtype
        if record.dtype != dtype.name and not (record.dtype == "uint8" and dtype.name == "bool"):
            raise self._refuse(f"{where} is {dtype.name}, and its weights at {offset} are {record.dtype}")
        needed = (elements * dtype.bits + 7) // 8
        if record.bytes != needed:
            raise self._refuse(f"{where} needs {needed} bytes, and its weights at {offset} are {record.bytes}")
        if record.start % _ALIGNMENT or record.start < offset + _BEHIND_RECORD:
            raise self._refuse(f"{where} has its weights at {record.start}, askew or before their record")

    def _immediate(self, literal: Literal, elements: int, where: str) -> None:
        kind = literal.proto.WhichOneof("value")
        if kind != "tensor":
            raise self._refuse(f"{where} is a literal of kind {kind}")
        form = literal.proto.tensor.WhichOneof("value")
        if form is None:
            # Zeros are left out of the protobuf.
            if elements > 1:
                raise self._refuse(f"{where} has no numbers for the shape {literal.type and literal.type.shape}")
            return
        values = getattr(literal.proto.tensor, form).values
        dtype = literal.type.dtype if literal.type else None
        if dtype is None or (form == "strings") != (dtype.numpy is None):
            raise self._refuse(f"{where} is a literal of {form} and declared otherwise")
        held = len(values) * 8 // max(dtype.bits, 1) if isinstance(values, bytes) else len(values)
        padded = dtype.bits < 8 and isinstance(values, bytes) and len(values) == (elements * dtype.bits + 7) // 8
        if held != elements and not padded:
            raise self._refuse(f"{where} has {held} numbers for the shape {literal.type and literal.type.shape}")
        if not isinstance(values, bytes) and dtype.numpy is not None:
            self._package.literal(literal)

    # --- the description ----------------------------------------------------------------------------------------------

    def _described(self, program: Program, known: dict[str, TensorType | None]) -> None:
        """Check that the model's description names a function's inputs and outputs, with shapes that fit."""
        inputs = {row.name for row in program.inputs}
        for rows, names, what in (
            (program.description.input, inputs, "input"),
            (program.description.output, set(program.outputs), "output"),
        ):
            described = [row.name for row in rows]
            if set(described) != names or len(set(described)) < len(described):
                raise self._refuse(f"{program.name} is described with the {what}s {', '.join(described)}")
            for row in rows:
                if row.type.WhichOneof("Type") == "multiArrayType":
                    where = f"{program.name}, {what} {row.name}"
                    shape = tuple(int(size) for size in row.type.multiArrayType.shape)
                    self._size(shape, 32, where)
                    declared = known[row.name]
                    if what == "input" and shape and declared is not None and not declared.fits(shape):
                        raise self._refuse(f"{where} is described as {list(shape)}, and declared {declared.shape}")
