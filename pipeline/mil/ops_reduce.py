"""Operations along axes: sums, extremes, orders."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.mil.values import Array


def _over(axes: Array | None) -> tuple[int, ...] | None:
    return None if axes is None else tuple(int(axis) for axis in np.atleast_1d(axes))


def reduce_sum(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Sum."""
    return np.sum(x, axis=_over(axes), keepdims=bool(keep_dims), dtype=x.dtype)


def reduce_mean(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Mean."""
    result: Array = np.mean(x, axis=_over(axes), keepdims=bool(keep_dims))
    return result


def reduce_max(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """The largest; NaN where there is one."""
    result: Array = np.max(x, axis=_over(axes), keepdims=bool(keep_dims))
    return result


def reduce_min(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """The smallest; NaN where there is one."""
    result: Array = np.min(x, axis=_over(axes), keepdims=bool(keep_dims))
    return result


def reduce_prod(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Product."""
    result: Array = np.prod(x, axis=_over(axes), keepdims=bool(keep_dims), dtype=x.dtype)
    return result


def reduce_sum_square(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Sum of squares."""
    return reduce_sum(np.square(x), axes, keep_dims)


def reduce_l1_norm(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Sum of magnitudes."""
    return reduce_sum(np.abs(x), axes, keep_dims)


def reduce_l2_norm(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Root of the sum of squares."""
    return np.sqrt(reduce_sum_square(x, axes, keep_dims))


def reduce_log_sum(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Logarithm of the sum."""
    return np.log(reduce_sum(x, axes, keep_dims))


def reduce_log_sum_exp(x: Array, axes: Array | None = None, keep_dims: Array | bool = False) -> Array:
    """Logarithm of the sum of e^x, without overflow."""
    largest = reduce_max(x, axes, True)
    # Of an infinite largest, the difference to itself would be NaN.
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    sums: Array = np.log(reduce_sum(np.exp(x - shift), axes, True)) + shift
    return sums if keep_dims else sums.squeeze(_over(axes))


def reduce_argmax(
    x: Array, axis: Array | int = -1, keep_dims: Array | bool = False, output_dtype: str = "int32"
) -> Array:
    """Index of the largest, the first of equals."""
    result: Array = np.argmax(x, axis=int(axis), keepdims=bool(keep_dims))
    return result


def reduce_argmin(
    x: Array, axis: Array | int = -1, keep_dims: Array | bool = False, output_dtype: str = "int32"
) -> Array:
    """Index of the smallest, the first of equals."""
    result: Array = np.argmin(x, axis=int(axis), keepdims=bool(keep_dims))
    return result


def cumsum(x: Array, axis: Array | int = 0, exclusive: Array | bool = False, reverse: Array | bool = False) -> Array:
    """Running sum; exclusive of the number itself, or from the end."""
    along = int(axis)
    given = np.flip(x, along) if reverse else x
    sums = np.cumsum(given, along, dtype=x.dtype)
    if exclusive:
        # Shifted, not subtracted: a sum less its last number is another number in floats.
        first = np.zeros_like(np.take(sums, [0], along)) if sums.shape[along] else sums
        sums = np.concatenate([first, np.take(sums, range(sums.shape[along] - 1), along)], along)
    return np.flip(sums, along) if reverse else sums


def argsort(x: Array, axis: Array | int = -1, ascending: Array | bool = False) -> Array:
    """Indices in the order of their numbers, largest first; equals keep their order."""
    if ascending:
        return np.argsort(x, axis=int(axis), kind="stable")
    turned = np.argsort(np.flip(x, int(axis)), axis=int(axis), kind="stable")
    result: Array = x.shape[int(axis)] - 1 - np.flip(turned, int(axis))
    return result


def topk(
    x: Array,
    k: Array | int = 1,
    axis: Array | int = -1,
    ascending: Array | bool = False,
    sort: Array | bool = True,
    return_indices: Array | bool = True,
    output_indices_dtype: str = "int32",
) -> tuple[Array, ...]:
    """The k largest, or smallest, and where they are; always sorted, which MIL leaves open without `sort`."""
    order = np.take(argsort(x, axis, ascending), range(int(k)), int(axis))
    values = np.take_along_axis(x, order, int(axis))
    return (values, order) if return_indices else (values,)


OPS: Mapping[str, Callable[..., Any]] = {
    "argsort": argsort,
    "cumsum": cumsum,
    "reduce_argmax": reduce_argmax,
    "reduce_argmin": reduce_argmin,
    "reduce_l1_norm": reduce_l1_norm,
    "reduce_l2_norm": reduce_l2_norm,
    "reduce_log_sum": reduce_log_sum,
    "reduce_log_sum_exp": reduce_log_sum_exp,
    "reduce_max": reduce_max,
    "reduce_mean": reduce_mean,
    "reduce_min": reduce_min,
    "reduce_prod": reduce_prod,
    "reduce_sum": reduce_sum,
    "reduce_sum_square": reduce_sum_square,
    "topk": topk,
}
