"""Rounding to half precision of values that stay in single precision."""

import numpy as np
from numpy.typing import NDArray

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SMALLEST_NORMAL = np.uint32(0x38800000)
"""2^-14, below which half precision is spaced evenly, by 2^-24."""
_OVERFLOW = np.uint32(0x477FF000)
"""65520, from which on half precision is infinite."""
_SPACED_BY_2_TO_MINUS_24 = np.float32(0.75)
"""A number whose neighbours in single precision are that far apart: adding it rounds what is below 2^-14."""
_DROPPED_BITS = np.uint32(13)
_HALF_STEP = np.uint32(0xFFF)
_LOWEST_BIT = np.uint32(1)
_KEPT = np.uint32(0xFFFFE000)
_BLOCK = 16384
"""Numbers at a time, so that what is computed in between stays in the cache."""


def to_half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 values rounded to the nearest float16, ties to even; from 65520 on they become infinite.

    The same bits as `values.astype(float16).astype(float32)`, NaN apart, in a fraction of the time: NumPy converts
    element by element.
    """
    values = np.ascontiguousarray(values)
    result = np.empty_like(values)
    flat, rounded = values.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        _round(flat[start : start + _BLOCK], rounded[start : start + _BLOCK])
    return result


def _round(values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Round a block of numbers, at least one."""
    bits, rounded = values.view(np.uint32), out.view(np.uint32)
    np.right_shift(bits, _DROPPED_BITS, out=rounded)
    rounded &= _LOWEST_BIT
    rounded += bits
    rounded += _HALF_STEP
    rounded &= _KEPT
    magnitude = bits & _MAGNITUDE
    if magnitude.min() < _SMALLEST_NORMAL:
        with np.errstate(invalid="ignore"):
            tiny = values + _SPACED_BY_2_TO_MINUS_24
        tiny -= _SPACED_BY_2_TO_MINUS_24
        np.copysign(tiny, values, out=tiny)
        np.copyto(out, tiny, where=magnitude < _SMALLEST_NORMAL)
    if magnitude.max() >= _OVERFLOW:
        large = np.flatnonzero(magnitude >= _OVERFLOW)
        with np.errstate(over="ignore", invalid="ignore"):
            out[large] = values[large].astype(np.float16)
