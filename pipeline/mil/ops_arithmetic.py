"""Operations on each element, and along axes: sums, extremes, orders."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.mil.values import Array

_CASTS: Mapping[str, Any] = {
    "bool": np.bool_,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "fp16": np.float32,
    "fp32": np.float32,
    "fp64": np.float64,
}
"""Array type after `cast`; the caller rounds to half precision."""


def cast(x: Array, dtype: str) -> Array:
    """Convert the element type; floats are truncated towards zero for integers."""
    return x.astype(_CASTS[dtype], copy=False)


def real_div(x: Array, y: Array) -> Array:
    """Divide; integers are truncated towards zero."""
    quotient: Array = np.divide(x, y)
    return quotient if np.result_type(x, y).kind == "f" else np.trunc(quotient).astype(np.result_type(x, y))


def select(cond: Array, a: Array, b: Array) -> Array:
    """`a` where the condition holds, else `b`."""
    return np.where(cond, a, b)


def clip(x: Array, alpha: Array, beta: Array) -> Array:
    """Limit to the range from alpha to beta; NaN stays NaN."""
    return np.minimum(np.maximum(x, alpha), beta)


def rsqrt(x: Array, epsilon: Array | float = 1e-12) -> Array:
    """1 / √(x + epsilon)."""
    result: Array = np.reciprocal(np.sqrt(x + epsilon))
    return result


def inverse(x: Array, epsilon: Array | float = 1e-4) -> Array:
    """1 / (x + epsilon)."""
    result: Array = np.reciprocal(x + epsilon)
    return result


def log(x: Array, epsilon: Array | float = 1e-45) -> Array:
    """Natural logarithm of x + epsilon."""
    result: Array = np.log(x + epsilon)
    return result


def threshold(x: Array, alpha: Array) -> Array:
    """The larger of x and alpha."""
    return np.maximum(x, alpha)


def erf(x: Array) -> Array:
    """Error function, to the last bit."""
    # Here because the import takes longer than most programs run.
    from scipy import special

    result: Array = special.erf(x)
    return result


def identity(x: Array) -> Array:
    """The value itself."""
    return x


# --- along axes ---------------------------------------------------------------------------------------------------


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
    # For an infinite maximum, the difference from itself would be NaN.
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    sums: Array = np.log(reduce_sum(np.exp(x - shift), axes, True)) + shift
    return sums if keep_dims else sums.squeeze(_over(axes))


def reduce_argmax(
    x: Array, axis: Array | int = -1, keep_dims: Array | bool = False, output_dtype: str = "int32"
) -> Array:
    """Index of the largest, the first among equals."""
    result: Array = np.argmax(x, axis=int(axis), keepdims=bool(keep_dims))
    return result


def reduce_argmin(
    x: Array, axis: Array | int = -1, keep_dims: Array | bool = False, output_dtype: str = "int32"
) -> Array:
    """Index of the smallest, the first among equals."""
    result: Array = np.argmin(x, axis=int(axis), keepdims=bool(keep_dims))
    return result


def cumsum(x: Array, axis: Array | int = 0, exclusive: Array | bool = False, reverse: Array | bool = False) -> Array:
    """Cumulative sum; without the element itself if `exclusive`, from the end if `reverse`."""
    along = int(axis)
    given = np.flip(x, along) if reverse else x
    sums = np.cumsum(given, along, dtype=x.dtype)
    if exclusive:
        # Shifted, not subtracted: a sum less its last number is another number in floats.
        first = np.zeros_like(np.take(sums, [0], along)) if sums.shape[along] else sums
        sums = np.concatenate([first, np.take(sums, range(sums.shape[along] - 1), along)], along)
    return np.flip(sums, along) if reverse else sums


def argsort(x: Array, axis: Array | int = -1, ascending: Array | bool = False) -> Array:
    """Indices that sort an axis, largest first; equal elements keep their order."""
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
    """The k largest, or smallest, elements and their indices; always sorted, which MIL leaves open without `sort`."""
    order = np.take(argsort(x, axis, ascending), range(int(k)), int(axis))
    values = np.take_along_axis(x, order, int(axis))
    return (values, order) if return_indices else (values,)


OPS: Mapping[str, Callable[..., Any]] = {
    "abs": lambda x: np.abs(x),
    "add": lambda x, y: np.add(x, y),
    "argsort": argsort,
    "cast": cast,
    "ceil": lambda x: np.ceil(x),
    "clip": clip,
    "cos": lambda x: np.cos(x),
    "cumsum": cumsum,
    "equal": lambda x, y: np.equal(x, y),
    "erf": erf,
    "exp": lambda x: np.exp(x),
    "exp2": lambda x: np.exp2(x),
    "floor": lambda x: np.floor(x),
    "floor_div": lambda x, y: np.floor_divide(x, y),
    "greater": lambda x, y: np.greater(x, y),
    "greater_equal": lambda x, y: np.greater_equal(x, y),
    "identity": identity,
    "inverse": inverse,
    "less": lambda x, y: np.less(x, y),
    "less_equal": lambda x, y: np.less_equal(x, y),
    "log": log,
    "logical_and": lambda x, y: np.logical_and(x, y),
    "logical_not": lambda x: np.logical_not(x),
    "logical_or": lambda x, y: np.logical_or(x, y),
    "logical_xor": lambda x, y: np.logical_xor(x, y),
    "maximum": lambda x, y: np.maximum(x, y),
    "minimum": lambda x, y: np.minimum(x, y),
    "mod": lambda x, y: np.mod(x, y),
    "mul": lambda x, y: np.multiply(x, y),
    "not_equal": lambda x, y: np.not_equal(x, y),
    "pow": lambda x, y: np.power(x, y),
    "real_div": real_div,
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
    "round": lambda x: np.rint(x),
    "rsqrt": rsqrt,
    "select": select,
    "sign": lambda x: np.sign(x),
    "sin": lambda x: np.sin(x),
    "sqrt": lambda x: np.sqrt(x),
    "square": lambda x: np.square(x),
    "sub": lambda x, y: np.subtract(x, y),
    "threshold": threshold,
    "topk": topk,
}
