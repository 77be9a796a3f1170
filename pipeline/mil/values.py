"""Types and literals of a program, and the rounding of its numbers to half precision."""

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ArtifactError

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = Array | str | tuple[str | int, ...]
"""The value of a decoded literal; a tuple is a list of class labels."""


@dataclass(frozen=True)
class DataType:
    """An element type of MIL."""

    name: str
    numpy: Any
    """NumPy type of arrays; integers of fewer than eight bits take a byte each, strings have no such type."""
    bits: int

    @property
    def floating(self) -> bool:
        """Whether it is a float."""
        return self.name.startswith("fp")


DATA_TYPES = {
    1: DataType("bool", np.bool_, 8),
    2: DataType("string", None, 0),
    10: DataType("fp16", np.float16, 16),
    11: DataType("fp32", np.float32, 32),
    12: DataType("fp64", np.float64, 64),
    21: DataType("int8", np.int8, 8),
    22: DataType("int16", np.int16, 16),
    23: DataType("int32", np.int32, 32),
    24: DataType("int64", np.int64, 64),
    25: DataType("int4", np.int8, 4),
    31: DataType("uint8", np.uint8, 8),
    32: DataType("uint16", np.uint16, 16),
    33: DataType("uint32", np.uint32, 32),
    34: DataType("uint64", np.uint64, 64),
    35: DataType("uint4", np.uint8, 4),
    36: DataType("uint2", np.uint8, 2),
    37: DataType("uint1", np.uint8, 1),
    38: DataType("uint6", np.uint8, 6),
    39: DataType("uint3", np.uint8, 3),
}
"""By `MILSpec.DataType`."""


@dataclass(frozen=True)
class TensorType:
    """A declared type. A size of None is known at run time only; a shape of None means that even the rank is."""

    dtype: DataType
    shape: tuple[int | None, ...] | None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a computed shape agrees with the declared one."""
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(a in (None, b) for a, b in zip(self.shape, shape, strict=True))

    @property
    def size(self) -> int:
        """Number of elements; only for a shape without None."""
        return int(np.prod(self.fixed_shape, dtype=np.int64))

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape of a literal.

        Raises:
            ArtifactError: a size is unknown.
        """
        if self.shape is None or None in self.shape:
            raise ArtifactError("a constant without a fixed shape; the package is damaged. Convert it again.")
        return tuple(size for size in self.shape if size is not None)


def tensor_type(proto: Any) -> TensorType:
    """Read `MILSpec.TensorType`.

    Raises:
        ArtifactError: the element type is unknown to this reader.
    """
    if proto.dataType not in DATA_TYPES:
        raise ArtifactError(f"element type {proto.dataType} of MIL is not known; the package is newer, or damaged.")
    if any(row.WhichOneof("dimension") == "unknown" and row.unknown.variadic for row in proto.dimensions):
        return TensorType(DATA_TYPES[proto.dataType], None)
    rows = (row.constant.size if row.WhichOneof("dimension") == "constant" else None for row in proto.dimensions)
    return TensorType(DATA_TYPES[proto.dataType], tuple(rows))


def unpack_bits(packed: bytes | Array, bits: int, count: int, *, signed: bool = False) -> Array:
    """Return integers of fewer than eight bits, packed from the lowest bit up, one per byte."""
    stream = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little", count=bits * count)
    weights = np.uint8(1) << np.arange(bits, dtype=np.uint8)
    values: Array = stream.reshape(count, bits) @ weights
    if signed:
        sign = 1 << (bits - 1)
        values = ((values.astype(np.int16) ^ sign) - sign).astype(np.int8)
    return values


def immediate(proto: Any, declared: TensorType | None) -> Value:
    """Decode a literal that is written into the program.

    Args:
        proto: a `MILSpec.Value.ImmediateValue`.
        declared: its type; None for a list.

    Raises:
        ArtifactError: the count of numbers differs from the shape's, or the kind of literal is unknown.
    """
    if proto.WhichOneof("value") == "list":
        return tuple(_label(row.immediateValue.tensor) for row in proto.list.values)
    if proto.WhichOneof("value") != "tensor" or declared is None:
        raise ArtifactError(f"a literal of kind {proto.WhichOneof('value')} is not known; the package is damaged.")
    kind = proto.tensor.WhichOneof("value")
    if kind == "strings":
        return str(_label(proto.tensor))
    if kind is None:
        return np.zeros(declared.fixed_shape, declared.dtype.numpy)
    try:
        return _numbers(getattr(proto.tensor, kind).values, declared)
    except ValueError as error:
        raise ArtifactError(f"a literal does not fill its shape {declared.shape}; the package is damaged.") from error


def _label(proto: Any) -> str | int:
    values = getattr(proto, proto.WhichOneof("value")).values
    return values[0] if isinstance(values[0], str) else int(values[0])


def _numbers(values: Any, declared: TensorType) -> Array:
    """Decode numbers, or the bytes in which MIL stores types that protobuf lacks."""
    dtype = declared.dtype
    if not isinstance(values, bytes):
        return np.array(list(values), dtype.numpy).reshape(declared.fixed_shape)
    if dtype.bits < 8:
        return unpack_bits(values, dtype.bits, declared.size, signed=dtype.name == "int4").reshape(declared.fixed_shape)
    return np.frombuffer(values, dtype.numpy).reshape(declared.fixed_shape)


# --- half precision ----------------------------------------------------------------------------------------------

SMALLEST_NORMAL = 2.0**-14
"""Numbers of half precision below it are subnormal: multiples of 2^-24, which some processors flush to zero."""
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SMALLEST_NORMAL_BITS = np.uint32(0x38800000)
_OVERFLOW = np.uint32(0x477FF000)
"""65520: half precision is infinite from here on."""
_SPACED_BY_2_TO_MINUS_24 = np.float32(0.75)
"""A number with neighbours 2^-24 apart in single precision: adding it rounds numbers below 2^-14."""
_DROPPED_BITS = np.uint32(13)
_HALF_STEP = np.uint32(0xFFF)
_LOWEST_BIT = np.uint32(1)
_KEPT = np.uint32(0xFFFFE000)
_BLOCK = 16384
"""Numbers per block, so that intermediate results stay in the cache."""


def flush(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return numbers of half precision with subnormal ones replaced by a zero of their sign."""
    subnormal = np.abs(values) < np.float32(SMALLEST_NORMAL)
    return np.where(subnormal, np.copysign(np.float32(0), values), values)


def to_half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 values rounded to the nearest float16, ties to even; from 65520 on they become infinite.

    The same bits as `values.astype(float16).astype(float32)`, NaN apart, in a fraction of the time: NumPy converts
    element by element. PyTorch uses the processor's own instruction, two to eight times as fast again, where a process
    has loaded it anyway; the interpreter itself does without.
    """
    values = np.ascontiguousarray(values)
    from_numpy = getattr(sys.modules.get("torch"), "from_numpy", None)
    if from_numpy is not None and values.flags.writeable:
        converted: NDArray[np.float32] = from_numpy(values).half().float().numpy()
        return converted
    result = np.empty_like(values)
    flat, rounded = values.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        _round(flat[start : start + _BLOCK], rounded[start : start + _BLOCK])
    return result


def _round(values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Round a block of at least one number."""
    bits, rounded = values.view(np.uint32), out.view(np.uint32)
    np.right_shift(bits, _DROPPED_BITS, out=rounded)
    rounded &= _LOWEST_BIT
    rounded += bits
    rounded += _HALF_STEP
    rounded &= _KEPT
    magnitude = bits & _MAGNITUDE
    if magnitude.min() < _SMALLEST_NORMAL_BITS:
        with np.errstate(invalid="ignore"):
            tiny = values + _SPACED_BY_2_TO_MINUS_24
        tiny -= _SPACED_BY_2_TO_MINUS_24
        np.copysign(tiny, values, out=tiny)
        np.copyto(out, tiny, where=magnitude < _SMALLEST_NORMAL_BITS)
    if magnitude.max() >= _OVERFLOW:
        large = np.flatnonzero(magnitude >= _OVERFLOW)
        with np.errstate(over="ignore", invalid="ignore"):
            out[large] = values[large].astype(np.float16)
