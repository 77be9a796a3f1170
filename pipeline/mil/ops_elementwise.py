"""Operations on each element."""

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
"""To what a value is held as after `cast`; the caller rounds to half precision."""


def cast(x: Array, dtype: str) -> Array:
    """Convert; towards integers, fractions are cut off."""
    return x.astype(_CASTS[dtype], copy=False)


def real_div(x: Array, y: Array) -> Array:
    """Divide; integers towards zero."""
    quotient: Array = np.divide(x, y)
    return quotient if np.result_type(x, y).kind == "f" else np.trunc(quotient).astype(np.result_type(x, y))


def select(cond: Array, a: Array, b: Array) -> Array:
    """`a` where the condition holds, else `b`."""
    return np.where(cond, a, b)


def clip(x: Array, alpha: Array, beta: Array) -> Array:
    """Keep between alpha and beta; NaN stays NaN."""
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


OPS: Mapping[str, Callable[..., Any]] = {
    "abs": lambda x: np.abs(x),
    "add": lambda x, y: np.add(x, y),
    "cast": cast,
    "ceil": lambda x: np.ceil(x),
    "clip": clip,
    "cos": lambda x: np.cos(x),
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
    "round": lambda x: np.rint(x),
    "rsqrt": rsqrt,
    "select": select,
    "sign": lambda x: np.sign(x),
    "sin": lambda x: np.sin(x),
    "sqrt": lambda x: np.sqrt(x),
    "square": lambda x: np.square(x),
    "sub": lambda x, y: np.subtract(x, y),
    "threshold": threshold,
}
