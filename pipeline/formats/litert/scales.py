"""Integer weights in a LiteRT file: packing to four bits, and dequantisation.

4-bit integers have a scale per block of neighbouring columns. The scales are in a tensor of their own, which no
operation reads: the weight's quantization table refers to it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(codes: NDArray[np.int8]) -> bytes:
    """Pack an even number of 4-bit codes two to a byte, the first one in the low half."""
    halves = (codes.reshape(-1) & 0xF).astype(np.uint8)
    return (halves[::2] | halves[1::2] << 4).tobytes()


def by_blocks(content: memoryview, scales: memoryview, shape: Sequence[int]) -> NDArray[np.float32]:
    """Dequantise packed 4-bit codes with a scale per block, see `packed`.

    Args:
        content: packed codes.
        scales: scales in half precision, equally many for each row.
        shape: number of rows and columns.
    """
    pairs = np.frombuffer(content, np.int8)
    # Shifted up and down again, so that the highest of four bits is the sign.
    codes = np.stack([pairs << 4, pairs], axis=1) >> 4
    by_block = np.frombuffer(scales, "<f2").astype(np.float32)
    found: NDArray[np.float32] = codes.reshape(len(by_block), -1) * by_block[:, None]
    return found.reshape(shape)


def by_axis(
    raw: NDArray[np.signedinteger[Any]], scales: NDArray[np.float32], zeros: NDArray[np.int64], axis: int
) -> NDArray[np.floating[Any]]:
    """Dequantise integers with one scale per tensor, or with one per slice along an axis."""
    shape = [1] * raw.ndim
    if len(scales) > 1:
        shape[axis] = len(scales)
    # Single precision represents every int8, but not every int32.
    wide: type[np.floating[Any]] = np.float32 if raw.itemsize == 1 else np.float64
    zero = zeros.astype(wide).reshape(shape if len(zeros) > 1 else [1] * raw.ndim)
    found: NDArray[np.floating[Any]] = (raw.astype(wide) - zero) * scales.reshape(shape)
    return found
