"""MIL blob storage, version 2: the weight files of a package.

Source: coremltools, mlmodel/src/MILBlob/Blob/StorageFormat.hpp. A header of 64 bytes, then blobs, each a record of
64 bytes (sentinel, element type, size in bytes, offset of the data) that points at its data.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.errors import ArtifactError
from pipeline.mil.values import Array, TensorType, unpack_bits

_HEADER = struct.Struct("<II")
_RECORD = struct.Struct("<IIQQ")
_RECORD_BYTES = 64
_VERSION = 2
_SENTINEL = 0xDEADBEEF
_TYPES = {
    1: "fp16",
    2: "fp32",
    3: "uint8",
    4: "int8",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
}
"""Element types by `BlobDataType`; 5, bfloat16, has no MIL type."""


@dataclass(frozen=True)
class Record:
    """The type of a blob, and the range of its data."""

    dtype: str
    start: int
    bytes: int


class BlobFile:
    """A weight file, mapped into memory when its first blob is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _map(self) -> Array:
        try:
            mapped = np.memmap(self.path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{self.path} cannot be read: {error}. Convert the model again.") from error
        found = _HEADER.unpack(mapped[: _HEADER.size].tobytes())[1] if mapped.size >= _RECORD_BYTES else None
        if found != _VERSION:
            raise self._damaged(f"its header says version {found}, not {_VERSION}")
        return mapped

    def _damaged(self, what: str) -> ArtifactError:
        return ArtifactError(f"{self.path} is no blob storage or is damaged: {what}. Convert the model again.")

    def record(self, offset: int) -> Record:
        """Read the record of the blob at an offset.

        Raises:
            ArtifactError: there is no record, or it points out of the file.
        """
        size = self._map.size
        if not 0 <= offset <= size - _RECORD_BYTES:
            raise self._damaged(f"a blob at offset {offset} of {size} bytes")
        sentinel, kind, count, start = _RECORD.unpack(self._map[offset : offset + _RECORD.size].tobytes())
        if sentinel != _SENTINEL:
            raise self._damaged(f"no blob at offset {offset}")
        if kind not in _TYPES:
            raise self._damaged(f"the blob at offset {offset} has element type {kind}")
        if start + count > size:
            raise self._damaged(f"the blob at offset {offset} ends at {start + count} of {size} bytes")
        return Record(_TYPES[kind], start, count)

    def raw(self, offset: int) -> Array:
        """Return the bytes of a blob, without a copy."""
        record = self.record(offset)
        return self._map[record.start : record.start + record.bytes]

    def read(self, offset: int, declared: TensorType) -> Array:
        """Return a blob's numbers in its declared shape, without a copy unless they are packed.

        Raises:
            ArtifactError: the blob has another type or size than declared.
        """
        record = self.record(offset)
        dtype, size = declared.dtype, declared.size
        if record.dtype != dtype.name and not (record.dtype == "uint8" and dtype.name == "bool"):
            raise self._damaged(f"the blob at offset {offset} is {record.dtype}, and the program says {dtype.name}")
        needed = (size * dtype.bits + 7) // 8
        if record.bytes != needed:
            raise self._damaged(f"the blob at offset {offset} has {record.bytes} bytes, and its shape needs {needed}")
        raw = self.raw(offset)
        if dtype.bits < 8:
            values = unpack_bits(raw.tobytes(), dtype.bits, size, signed=dtype.name == "int4")
        else:
            values = np.asarray(raw).view(dtype.numpy)
        return values.reshape(declared.fixed_shape)
