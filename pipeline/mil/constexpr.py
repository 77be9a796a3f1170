"""Compressed weights: the `constexpr_*` operations, which Core ML evaluates when it loads a model.

Each takes the parameters of its MIL name. Sums and products are computed in single precision; the caller rounds the
result to its declared type. `mask` is one bit or byte per element; a sparse operation returns a mask and the nonzero
elements.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.mil.values import Array, unpack_bits


def _along(vector: Array, data: Array, axis: int) -> Array:
    """Return a scalar, or a vector laid along one axis of `data`, as float32."""
    vector = np.asarray(vector, np.float32)
    if vector.ndim == 0:
        return vector
    return vector.reshape([-1 if i == axis % data.ndim else 1 for i in range(data.ndim)])


def _spread(blocks: Array, shape: tuple[int, ...]) -> Array:
    """Repeat one number per block to the shape of the data."""
    for axis, size in enumerate(shape):
        if blocks.shape[axis] not in (1, size):
            blocks = np.repeat(blocks, size // blocks.shape[axis], axis)
    return blocks


def affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: Array) -> Array:
    """Dequantise as of iOS 16: scale · (data − zero point), scalars or one per index of an axis."""
    data = quantized_data.astype(np.float32)
    data -= _along(zero_point, data, int(axis))
    data *= _along(scale, data, int(axis))
    return data


def blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """Dequantise as of iOS 18: scale · (data − offset), one of each per block of `data.shape / scale.shape`."""
    result = data.astype(np.float32)
    if offset is not None:
        result -= _spread(offset.astype(np.float32), data.shape)
    result *= _spread(scale.astype(np.float32), data.shape)
    return result


def lut_to_dense(indices: Array, lut: Array, shape: Array | None = None, vector_axis: Array | None = None) -> Array:
    """Look indices up in a palette: iOS 16 packs them and gives a shape, iOS 18 has a palette per block."""
    if shape is None:
        return _look_up(indices, lut, vector_axis)
    size = tuple(int(length) for length in shape)
    unpacked = unpack_bits(indices.tobytes(), int(math.log2(lut.size)), math.prod(size))
    return lut.reshape(-1)[unpacked].reshape(size)


def _look_up(indices: Array, lut: Array, vector_axis: Array | None) -> Array:
    """Look up in palettes of shape `(*blocks, entries, vector)`; a vector's parts lie along `vector_axis`."""
    owner = [np.arange(size) // (size // lut.shape[axis]) for axis, size in enumerate(indices.shape)]
    found: Array = lut[(*np.ix_(*owner), indices)]
    vector = lut.shape[-1]
    if vector == 1:
        return found.reshape(indices.shape)
    axis = int(vector_axis if vector_axis is not None else -1) % indices.ndim
    shape = [size * vector if i == axis else size for i, size in enumerate(indices.shape)]
    result: Array = np.moveaxis(found, -1, axis + 1).reshape(shape)
    return result


def sparse_to_dense(nonzero_data: Array, mask: Array, shape: Array | None = None) -> Array:
    """Restore a sparse tensor's zeros: iOS 16 packs the mask and gives a shape, iOS 18 has a mask of that shape."""
    if shape is not None:
        size = tuple(int(length) for length in shape)
        mask = unpack_bits(mask.tobytes(), 1, math.prod(size)).reshape(size)
    result = np.zeros(mask.shape, nonzero_data.dtype)
    result[mask.astype(bool)] = nonzero_data
    return result


def lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: Array | None = None
) -> tuple[Array, Array]:
    """Look up the indices of nonzero elements in a palette; with vectors, the mask grows along their axis as well."""
    values = _look_up(sparse_to_dense(indices_nonzero_data, indices_mask), lut, vector_axis)
    mask = indices_mask
    if lut.shape[-1] > 1:
        axis = int(vector_axis if vector_axis is not None else -1) % mask.ndim
        mask = np.repeat(mask, lut.shape[-1], axis)
    return mask, values[mask.astype(bool)]


def sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    """Dequantise the nonzero elements of a sparse tensor, each with the scale of its block."""
    dense = blockwise_shift_scale(sparse_to_dense(nonzero_data, data_mask), scale, offset)
    return data_mask, dense[data_mask.astype(bool)]


def cast(source_val: Array, output_dtype: str) -> Array:
    """Widen half precision; `output_dtype` can be fp32 only."""
    return source_val.astype(np.float32)


EXPRESSIONS: Mapping[str, Callable[..., Any]] = {
    "constexpr_affine_dequantize": affine_dequantize,
    "constexpr_blockwise_shift_scale": blockwise_shift_scale,
    "constexpr_cast": cast,
    "constexpr_lut_to_dense": lut_to_dense,
    "constexpr_lut_to_sparse": lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": sparse_blockwise_shift_scale,
    "constexpr_sparse_to_dense": sparse_to_dense,
}
