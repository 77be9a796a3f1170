"""How ExecuTorch's files keep integers, of four bits two to a byte, and how they are multiplied out with their scales.

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
    """Return the codes of four bits of a linear, of some sizes: the first of two is in the lower half of a byte."""
    packed = np.frombuffer(data, np.uint8, int(np.prod(sizes)) // 2)
    return _unpacked(packed & 0xF, packed >> 4).reshape(sizes)


def of_table(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return the codes of four bits of a table `(rows, width / 2)`: the first of two is in the upper half of a byte."""
    return _unpacked(packed >> 4, packed & 0xF).reshape(len(packed), -1)


def packed_table(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack the codes of four bits of a table `(rows, width)`, see `of_table`."""
    halves = (codes + np.int8(_ZERO)).astype(np.uint8)
    found = np.left_shift(halves[:, ::2], 4) | halves[:, 1::2]
    return found.astype(np.uint8, copy=False)


def _unpacked(first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
    codes: NDArray[np.int8] = np.stack([first, second], axis=-1).astype(np.int8) - np.int8(_ZERO)
    return codes


def from_bfloat16(data: bytes | memoryview, count: int) -> NDArray[np.float32]:
    """Return numbers of bfloat16, the upper half of a float's bits."""
    halves = np.frombuffer(data, "<u2", count)
    return (halves.astype(np.uint32) << 16).view(np.float32)


def by_group(
    codes: NDArray[np.generic], scales: NDArray[np.generic], zeros: NDArray[np.generic] | None = None
) -> NDArray[np.float32]:
    """Multiply `(rows, width)` out with scales `(rows, groups)`, after zero points of the same shape."""
    values = codes.astype(np.float32).reshape(*scales.shape, -1)
    if zeros is not None:
        values -= zeros.astype(np.float32)[..., None]
    values *= scales.astype(np.float32)[..., None]
    return values.reshape(codes.shape)


def by_axis(codes: NDArray[np.generic], scales: NDArray[np.float32], axis: int, zero: int) -> NDArray[np.float32]:
    """Multiply out with a scale for each place along an axis, or one for all."""
    shape = [1] * codes.ndim
    shape[axis] = -1
    values: NDArray[np.float32] = (codes.astype(np.float32) - np.float32(zero)) * scales.reshape(shape)
    return values
