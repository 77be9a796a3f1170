"""Operations that move, select, join and create elements without arithmetic."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.mil.values import Array


def _ints(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def reshape(x: Array, shape: Array) -> Array:
    """Change the shape; 0 keeps the size of its axis, −1 takes the remaining elements.

    Raises:
        ValueError: 0 where the number of axes changes, which MIL does not define.
    """
    sizes = _ints(shape)
    if 0 in sizes and len(sizes) != x.ndim:
        raise ValueError(f"reshape of {x.shape} to {sizes}: 0 needs as many axes as before")
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])


def transpose(x: Array, perm: Array) -> Array:
    """Reorder the axes."""
    return x.transpose(_ints(perm))


def expand_dims(x: Array, axes: Array) -> Array:
    """Add axes of size 1."""
    return np.expand_dims(x, _ints(np.atleast_1d(axes)))


def squeeze(x: Array, axes: Array | None = None) -> Array:
    """Remove axes of size 1; an axis of another size stays, as in PyTorch."""
    removed = range(x.ndim) if axes is None else _ints(np.atleast_1d(axes))
    return x.squeeze(tuple(axis for axis in removed if x.shape[axis] == 1))


def slice_by_index(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    """x[begin:end:stride] on each axis; masks drop a bound, or take one index and remove the axis."""
    picked: list[int | slice] = []
    for axis in range(x.ndim):
        if squeeze_mask is not None and squeeze_mask[axis]:
            picked.append(int(begin[axis]))
            continue
        first = None if begin_mask is not None and begin_mask[axis] else int(begin[axis])
        last = None if end_mask is not None and end_mask[axis] else int(end[axis])
        picked.append(slice(first, last, None if stride is None else int(stride[axis])))
    result: Array = x[tuple(picked)]
    return result


def slice_by_size(x: Array, begin: Array, size: Array) -> Array:
    """`size` elements from `begin` on each axis; −1 takes the rest, a negative begin counts from the end."""
    picked = []
    for axis, (first, count) in enumerate(zip(_ints(begin), _ints(size), strict=True)):
        first += x.shape[axis] if first < 0 else 0
        picked.append(slice(first, None if count == -1 else first + count))
    return x[tuple(picked)]


def gather(
    x: Array,
    indices: Array,
    axis: Array | int = 0,
    batch_dims: Array | int = 0,
    validate_indices: Array | bool = False,
) -> Array:
    """Take slices at indices of an axis; with batch axes, each batch has its own indices."""
    batch, along = int(batch_dims), int(axis) % x.ndim
    if batch == 0:
        return np.take(x, indices, axis=along)
    own = indices.shape[batch:]
    flat_x = np.moveaxis(x.reshape(-1, *x.shape[batch:]), along - batch + 1, 1)
    flat_indices = indices.reshape(-1, *own)
    rows = np.arange(flat_x.shape[0]).reshape(-1, *[1] * len(own))
    found = flat_x[rows, flat_indices]
    # (batch, *own, *before, *after) → (batch, *before, *own, *after)
    source = tuple(range(1, 1 + len(own)))
    found = np.moveaxis(found, source, tuple(position + along - batch for position in source))
    return found.reshape(*x.shape[:batch], *found.shape[1:])


def gather_along_axis(x: Array, indices: Array, axis: Array | int = 0, validate_indices: Array | bool = False) -> Array:
    """Take elements along an axis; indices have the shape of the result."""
    return np.take_along_axis(x, indices.astype(np.int64), int(axis))


def gather_nd(x: Array, indices: Array, batch_dims: Array | int = 0, validate_indices: Array | bool = False) -> Array:
    """Take elements or slices by index tuples, which lie along the last axis of `indices`."""
    batch = int(batch_dims)
    wide = np.moveaxis(indices, -1, 0).astype(np.int64)
    own = wide.ndim - 1
    rows = [np.arange(x.shape[i]).reshape([-1 if i == axis else 1 for axis in range(own)]) for i in range(batch)]
    result: Array = x[(*rows, *wide)]
    return result


def concat(values: Sequence[Array], axis: Array, interleave: Array | bool = False) -> Array:
    """Concatenate along an axis, one after the other or interleaved."""
    parts = [np.atleast_1d(value) for value in values]
    if not interleave:
        return np.concatenate(parts, int(axis))
    along = int(axis) % parts[0].ndim
    shape = [size * len(parts) if i == along else size for i, size in enumerate(parts[0].shape)]
    return np.stack(parts, along + 1).reshape(shape)


def stack(values: Sequence[Array], axis: Array) -> Array:
    """Stack along a new axis."""
    return np.stack(values, int(axis))


def split(
    x: Array, axis: Array, num_splits: Array | None = None, split_sizes: Array | None = None
) -> tuple[Array, ...]:
    """Split an axis into parts of equal or given sizes.

    Raises:
        ValueError: the sizes do not add up to the axis.
    """
    if split_sizes is None:
        if num_splits is None:
            raise ValueError("split without a number or sizes")
        return tuple(np.split(x, int(num_splits), axis=int(axis)))
    sizes = _ints(split_sizes)
    if sum(sizes) != x.shape[int(axis)]:
        raise ValueError(f"split of {x.shape[int(axis)]} into {sizes}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=int(axis)))


def pad(x: Array, pad: Array, mode: str = "constant", constant_val: Array | float = 0.0) -> Array:
    """Pad the last axes with a constant, by reflection, or with the edge."""
    given = _ints(pad)
    edges = [(0, 0)] * (x.ndim - len(given) // 2) + list(zip(given[::2], given[1::2], strict=True))
    if mode == "constant":
        return np.pad(x, edges, constant_values=x.dtype.type(constant_val))
    if mode == "reflect":
        return np.pad(x, edges, mode="reflect")
    if mode == "replicate":
        return np.pad(x, edges, mode="edge")
    raise ValueError(f"pad of mode {mode}")


def tile(x: Array, reps: Array) -> Array:
    """Repeat the tensor along each axis."""
    return np.tile(x, _ints(reps))


def reverse(x: Array, axes: Array | None = None) -> Array:
    """Reverse axes, by default all."""
    return np.flip(x, None if axes is None else _ints(np.atleast_1d(axes)))


def shape(x: Array) -> Array:
    """Sizes of the axes."""
    return np.array(x.shape, np.int32)


def fill(shape: Array, value: Array | float = 0.0) -> Array:
    """A tensor of one value."""
    return np.full(_ints(shape), value)


def fill_like(ref_tensor: Array, value: Array | float = 0.0) -> Array:
    """A tensor of one value, in the shape of another."""
    return np.full(ref_tensor.shape, value)


def range_1d(start: Array, end: Array, step: Array) -> Array:
    """Numbers from start to before end."""
    result: Array = np.arange(start.item(), end.item(), step.item(), dtype=np.result_type(start, end, step))
    return result


def band_part(x: Array, lower: Array | int = -1, upper: Array | int = -1) -> Array:
    """Keep a band around the diagonal of the last two axes: `lower` below it and `upper` above, −1 for all."""
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None, :]
    below = int(lower) < 0 or (rows - columns <= int(lower))
    above = int(upper) < 0 or (columns - rows <= int(upper))
    return np.where(np.logical_and(below, above), x, x.dtype.type(0))


def one_hot(
    indices: Array,
    one_hot_vector_size: Array,
    axis: Array | int = -1,
    on_value: Array | int = 1,
    off_value: Array | int = 0,
) -> Array:
    """Add an axis with the on-value at the index and the off-value elsewhere."""
    matches = np.arange(int(one_hot_vector_size)) == indices[..., None]
    return np.moveaxis(np.where(matches, on_value, off_value), -1, int(axis))


OPS: Mapping[str, Callable[..., Any]] = {
    "band_part": band_part,
    "concat": concat,
    "expand_dims": expand_dims,
    "fill": fill,
    "fill_like": fill_like,
    "gather": gather,
    "gather_along_axis": gather_along_axis,
    "gather_nd": gather_nd,
    "one_hot": one_hot,
    "pad": pad,
    "range_1d": range_1d,
    "reshape": reshape,
    "reverse": reverse,
    "shape": shape,
    "slice_by_index": slice_by_index,
    "slice_by_size": slice_by_size,
    "split": split,
    "squeeze": squeeze,
    "stack": stack,
    "tile": tile,
    "transpose": transpose,
}

KEEPS_ROUNDING = frozenset(OPS) - {"fill", "fill_like", "range_1d"}
"""Operations whose results are elements of their inputs, which are already rounded if they are half precision."""
