"""Integer weights in a LiteRT file: packing to four bits, dequantisation, and checks of blockwise scales.

4-bit integers have a scale per block of neighbouring columns. The scales are in a tensor of their own, which no
operation reads: the weight's quantization table refers to it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.columns import Ints, Rows

INT4 = 17
"""INT4 in `TensorType`."""
_FLOAT16 = 1
_BLOCKWISE = "BlockwiseQuantization"
COLUMNS = 32
"""XNNPACK's linears support blocks of a multiple of this many columns; tables may have one block per row instead."""


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


def places(tensors: Rows) -> tuple[Ints, Ints, Rows | None]:
    """Return the tensors with blockwise quantisation and the tensors of their scales.

    Returns:
        Indices over all graphs of the tensors with blocks and of the tensors with their scales, and the quantization
            tables; None if there are none.
    """
    quantization = tensors["quantization"]
    rows = quantization.members("details").get(_BLOCKWISE)
    if rows is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), None
    having = quantization.owner[rows.owner]
    first = np.searchsorted(tensors.owner, tensors.owner[having])
    return having, first + rows.number("scales").astype(np.int64), rows


def check(tensors: Rows, constant: NDArray[np.bool_], content: Callable[[int], NDArray[np.uint8]]) -> None:
    """Refuse a file whose 4-bit blocks and scales do not fit.

    Args:
        tensors: tensors of all graphs, whose buffers have the sizes of their shapes.
        constant: whether the file holds each tensor's content.
        content: returns the bytes of a constant tensor.
    """
    for kind, details in tensors["quantization"].members("details").items():
        details.demand(np.full(len(details), kind == _BLOCKWISE), "it is quantised in a form that is not read here")
    having, scales, rows = places(tensors)
    types, counts = tensors.number("type"), np.bincount(tensors.owner)
    blocks = np.zeros(len(tensors), bool)
    blocks[having] = True
    tensors.demand(blocks == (types == INT4), "int4 and blocks of columns go together, and it has one of them")
    tensors.demand(constant | ~blocks, "it has blocks of columns, and no content")
    if rows is None:
        return
    owner, size = tensors.owner[having], rows.number("block_size").astype(np.int64)
    named = rows.number("scales")
    rows.demand((named >= 0) & (named < counts[owner]), "it names a tensor that is not there")
    rows.demand(rows.number("zero_points") == -1, "it has zero points")
    rows.demand(rows.vector("block_shape").count == 0, "it has a shape of blocks")
    shapes = tensors.vector("shape").rows()
    whole = np.array([shapes[weight][-1:] == (block,) for weight, block in zip(having, size.tolist(), strict=True)])
    rows.demand((size > 0) & (whole | (size % COLUMNS == 0)), f"its blocks are no multiple of {COLUMNS} columns")
    fits = [
        len(shapes[weight]) == 2
        and shapes[weight][1] % block == 0
        and shapes[scale] == (shapes[weight][0], shapes[weight][1] // block)
        for weight, scale, block in zip(having.tolist(), scales.tolist(), size.tolist(), strict=True)
    ]
    rows.demand(fits, "its scales are not as many as its blocks")
    rows.demand(constant[scales] & (types[scales] == _FLOAT16), "its scales are no constant in half precision")
    numbers = {scale: content(scale).view("<f2") for scale in set(scales.tolist())}
    right = {scale: bool((np.isfinite(values) & (values > 0)).all()) for scale, values in numbers.items()}
    rows.demand([right[scale] for scale in scales.tolist()], "a scale is not positive, or no number")
