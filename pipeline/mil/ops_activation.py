"""Activations."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.mil.values import Array

_ONE = np.float32(1)
_ERF_IS_ONE = np.float32(6)
_ERF_SLOPE = np.float32(0.4)
_ERF = tuple(
    np.float32(coefficient)
    for coefficient in (
        -1.1283791894905189,
        0.5486489548695226,
        -0.1327996195234948,
        0.005110640361430607,
        0.003967291655556268,
        -1.560228405374643e-06,
        -0.0002988220776034131,
        3.978026261099024e-05,
    )
)
"""Coefficients, ascending, of a least-squares fit to scipy's erfcx over 0 … 4.3, weighted by exp(−a²)."""
_BLOCK = 16384
"""Numbers per block, so that intermediate results stay in the cache."""
_GELU_CUBE = np.float32(0.044715)
_SQRT_HALF = np.float32(math.sqrt(0.5))
_SQRT_2_OVER_PI = np.float32(math.sqrt(2 / math.pi))


def gelu(x: Array, mode: str = "EXACT") -> Array:
    """Gaussian error linear unit, by erf, by tanh or by sigmoid."""
    if mode == "EXACT":
        return _gelu_exact(x)
    if mode == "TANH_APPROXIMATION":
        result: Array = x * np.float32(0.5) * (1 + np.tanh(_SQRT_2_OVER_PI * (x + _GELU_CUBE * x * x * x)))
        return result
    if mode == "SIGMOID_APPROXIMATION":
        return x * sigmoid(np.float32(1.702) * x)
    raise ValueError(f"gelu of mode {mode}")


def _gelu_exact(x: Array) -> Array:
    """x/2 · (1 + erf(x/√2)), where the error of erf is below 2e-7.

    scipy's erf is scalar code and took a third of a forward; this is a few passes of vector code over
    erf(a) = 1 − exp(−a²) · (1 + t · p(t)), t = a / (1 + 0.4 a), with p fitted to the scaled complement of erf.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        _gelu_block(flat[start : start + _BLOCK], result[start : start + _BLOCK])
    return result.reshape(x.shape)


def _gelu_block(x: Array, out: Array) -> None:
    """Write the exact gelu of a block of numbers."""
    a = np.abs(x, out=out)
    a *= _SQRT_HALF
    # Where erf is 1 in single precision; infinity over infinity is NaN below.
    np.minimum(a, _ERF_IS_ONE, out=a)
    t = a * _ERF_SLOPE
    t += _ONE
    np.divide(a, t, out=t)
    p = t * _ERF[-1]
    for coefficient in _ERF[-2::-1]:
        p += coefficient
        p *= t
    p += _ONE
    a *= a
    np.negative(a, out=a)
    np.exp(a, out=a)
    a *= p
    np.subtract(_ONE, a, out=a)
    np.copysign(a, x, out=a)
    a += _ONE
    a *= x
    a *= np.float32(0.5)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x)."""
    result: Array = np.reciprocal(1 + np.exp(-x))
    return result


def silu(x: Array) -> Array:
    """Sigmoid linear unit: x · sigmoid(x)."""
    return x * sigmoid(x)


def relu(x: Array) -> Array:
    """The larger of x and zero; NaN stays NaN."""
    return np.maximum(x, np.float32(0))


def relu6(x: Array) -> Array:
    """Keep between 0 and 6."""
    return np.minimum(relu(x), np.float32(6))


def clamped_relu(x: Array, alpha: Array, beta: Array) -> Array:
    """Leaky ReLU with slope alpha, cut off above beta."""
    return np.minimum(beta, leaky_relu(x, alpha))


def leaky_relu(x: Array, alpha: Array) -> Array:
    """Leaky ReLU: x, or alpha · x below zero."""
    return np.where(x >= 0, x, alpha * x)


def prelu(x: Array, alpha: Array) -> Array:
    """Leaky ReLU with one alpha per channel (axis 1)."""
    return np.where(x >= 0, x, alpha.reshape(-1, *[1] * (x.ndim - 2)) * x)


def elu(x: Array, alpha: Array) -> Array:
    """Exponential linear unit: alpha · (e^x − 1) below zero."""
    return np.where(x >= 0, x, alpha * np.expm1(x))


def sigmoid_hard(x: Array, alpha: Array, beta: Array) -> Array:
    """Linear, alpha · x + beta, between 0 and 1."""
    result: Array = np.minimum(np.maximum(alpha * x + beta, np.float32(0)), np.float32(1))
    return result


def linear_activation(x: Array, alpha: Array, beta: Array) -> Array:
    """Linear: alpha · x + beta."""
    return alpha * x + beta


def scaled_tanh(x: Array, alpha: Array, beta: Array) -> Array:
    """Hyperbolic tangent: alpha · tanh(beta · x)."""
    result: Array = alpha * np.tanh(beta * x)
    return result


def softplus(x: Array) -> Array:
    """log(1 + e^x), without overflow."""
    return np.logaddexp(x, np.float32(0))


def softsign(x: Array) -> Array:
    """Soft sign: x / (1 + |x|)."""
    result: Array = x / (1 + np.abs(x))
    return result


def thresholded_relu(x: Array, alpha: Array) -> Array:
    """Zero below alpha."""
    return np.where(x >= alpha, x, np.float32(0))


def softmax(x: Array, axis: Array | int = -1) -> Array:
    """e^x over its sum along an axis; a row of −inf alone gives NaN, as on a device."""
    result: Array = x - np.max(x, axis=int(axis), keepdims=True, initial=-np.inf)
    np.exp(result, out=result)
    result /= np.sum(result, axis=int(axis), keepdims=True)
    return result


OPS: Mapping[str, Callable[..., Any]] = {
    "clamped_relu": clamped_relu,
    "elu": elu,
    "gelu": gelu,
    "leaky_relu": leaky_relu,
    "linear_activation": linear_activation,
    "prelu": prelu,
    "relu": relu,
    "relu6": relu6,
    "scaled_tanh": scaled_tanh,
    "sigmoid": sigmoid,
    "sigmoid_hard": sigmoid_hard,
    "silu": silu,
    "softmax": softmax,
    "softplus": softplus,
    "softsign": softsign,
    "tanh": lambda x: np.tanh(x),
    "thresholded_relu": thresholded_relu,
}
