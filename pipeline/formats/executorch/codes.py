"""Unpack 4-bit codes of ExecuTorch's files, and dequantise codes with their scales.

Source: `convert_to_qc4w` in executorch/backends/xnnpack/operators/node_visitor.py for linears, and
`_pack_embedding_weight` in executorch/exir/passes/_quant_patterns_and_replacements.py for tables.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ZERO = 8
"""Code of zero in four bits."""


def of_linear(data: bytes | memoryview, sizes: Sequence[int]) -> NDArray[np.int8]:
    """Return the 4-bit codes of a linear with the given sizes, two to a byte, the first in the lower half."""
    packed = np.frombuffer(data, np.uint8, int(np.prod(sizes)) // 2)
    return _unpacked(packed & 0xF, packed >> 4).reshape(sizes)


def of_table(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return the 4-bit codes of a table `(rows, width / 2)`, two to a byte, the first in the upper half."""
    return _unpacked(packed >> 4, packed & 0xF).reshape(len(packed), -1)


def packed_table(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack the 4-bit codes of a table `(rows, width)`, see `of_table`."""
    halves = (codes + np.int8(_ZERO)).astype(np.uint8)
    found = np.left_shift(halves[:, ::2], 4) | halves[:, 1::2]
    return found.astype(np.uint8, copy=False)


def _unpacked(first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
    codes: NDArray[np.int8] = np.stack([first, second], axis=-1).astype(np.int8) - np.int8(_ZERO)
    return codes


def from_bfloat16(data: bytes | memoryview, count: int) -> NDArray[np.float32]:
    """Return bfloat16 numbers, which are the upper halves of floats, as floats."""
    halves = np.frombuffer(data, "<u2", count)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def by_group(
    codes: NDArray[np.generic], scales: NDArray[np.generic], zeros: NDArray[np.generic] | None = None
) -> NDArray[np.float32]:
    """Dequantise `(rows, width)` with scales `(rows, groups)` and zero points of the same shape."""
    values = codes.astype(np.float32).reshape(*scales.shape, -1)
    if zeros is not None:
        values -= zeros.astype(np.float32)[..., None]
    values *= scales.astype(np.float32)[..., None]
    return values.reshape(codes.shape)


def by_axis(codes: NDArray[np.generic], scales: NDArray[np.float32], axis: int, zero: int) -> NDArray[np.float32]:
    """Dequantise with one scale per slice along an axis, or one per tensor."""
    shape = [1] * codes.ndim
    shape[axis] = -1
    values: NDArray[np.float32] = (codes.astype(np.float32) - np.float32(zero)) * scales.reshape(shape)
    return values
