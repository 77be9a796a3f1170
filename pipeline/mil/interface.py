"""The inputs and outputs of a function, as the model description states them, and the check of given inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.mil.values import Array

_ARRAYS = {65568: "float32", 65552: "float16", 65600: "float64", 131104: "int32", 131080: "int8"}
"""Names of `ArrayFeatureType.ArrayDataType`."""
_OTHERS = {
    "doubleType": "float64",
    "int64Type": "int64",
    "stringType": "string",
    "dictionaryType": "dictionary",
    "imageType": "image",
    "sequenceType": "sequence",
    "stateType": "state",
}
_NO_BOUND = (-1, 2**63 - 1)
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Port:
    """An input or output. A size of None is free, within the bounds or the enumerated shapes."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    """Enumerated shapes; empty if there are none."""
    bounds: tuple[tuple[int, int | None], ...] = ()
    """Smallest and largest size of each axis; empty if the shape is fixed or enumerated."""

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape fits."""
        if self.shapes:
            return shape in self.shapes
        if self.bounds:
            sizes = zip(shape, self.bounds, strict=False)
            return len(shape) == len(self.bounds) and all(a <= n and (b is None or n <= b) for n, (a, b) in sizes)
        return len(shape) == len(self.shape) and all(a in (None, b) for a, b in zip(self.shape, shape, strict=True))

    def __str__(self) -> str:
        """Return name, type and shapes, for messages."""
        if self.shapes:
            return f"{self.name} {self.dtype} of shape {' or '.join(map(_shape_text, self.shapes))}"
        if self.bounds:
            sizes = (str(a) if a == b else f"{a}…{'' if b is None else b}" for a, b in self.bounds)
            return f"{self.name} {self.dtype} of shape ({', '.join(sizes)})"
        return f"{self.name} {self.dtype} of shape {_shape_text(self.shape)}"


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in shape)})"


def port(row: Any) -> Port:
    """Read a `FeatureDescription`."""
    kind = row.type.WhichOneof("Type")
    if kind != "multiArrayType":
        return Port(row.name, _OTHERS.get(kind, str(kind)), ())
    array = row.type.multiArrayType
    dtype = _ARRAYS.get(array.dataType, f"array type {array.dataType}")
    default = tuple(int(size) for size in array.shape)
    flexible = array.WhichOneof("ShapeFlexibility")
    if flexible == "enumeratedShapes":
        # coremltools writes the default one first.
        shapes = tuple(sorted(tuple(map(int, shape.shape)) for shape in array.enumeratedShapes.shapes))
        free = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
        return Port(row.name, dtype, free, shapes=shapes)
    if flexible == "shapeRange":
        ranges = array.shapeRange.sizeRanges
        bounds = tuple((int(r.lowerBound), None if r.upperBound in _NO_BOUND else int(r.upperBound)) for r in ranges)
        return Port(row.name, dtype, tuple(a if a == b else None for a, b in bounds), bounds=bounds)
    return Port(row.name, dtype, default)


def check_inputs(ports: tuple[Port, ...], given: Mapping[str, Array], where: str) -> dict[str, Array]:
    """Return the arrays in their ports' types; integers may be of any width that holds them.

    Args:
        ports: the function's inputs.
        given: the caller's arrays.
        where: package and function, for messages.

    Raises:
        InputError: a name is missing or unknown, or an array has a shape or type that the function does not take.
    """
    takes = "; ".join(map(str, ports))
    for problem, names in (
        ("has no input", set(given) - {one.name for one in ports}),
        ("was not given", {one.name for one in ports} - set(given)),
    ):
        if names:
            raise InputError(f"{where} {problem} {', '.join(sorted(names))}; it takes {takes}.")
    return {one.name: _checked(one, np.asarray(given[one.name]), where) for one in ports}


def _checked(port: Port, array: Array, where: str) -> Array:
    if not port.takes(array.shape):
        raise InputError(f"{where} was given {port.name} of shape {_shape_text(array.shape)}; it takes {port}.")
    if port.dtype.startswith("float") and array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    if port.dtype == "int32" and array.dtype.kind in "iu":
        if array.size and (int(array.min()) < _INT32.min or int(array.max()) > _INT32.max):
            raise InputError(f"{where} was given {port.name} with numbers beyond int32.")
        return array.astype(np.int32, copy=False)
    raise InputError(f"{where} was given {port.name} as {array.dtype}; it takes {port}.")
