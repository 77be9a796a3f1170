"""Operations of layers: products with weights, attention and normalisations. They sum in single precision."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.mil.ops_activation import softmax
from pipeline.mil.values import Array


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Product x · weightᵀ + bias; x is `(…, in)`, weight `(out, in)`."""
    # Turned round, weight · xᵀ, BLAS takes half the time for a few tokens.
    product = np.matmul(weight, x.reshape(-1, x.shape[-1]).T).T
    result = np.ascontiguousarray(product) if bias is None else np.add(product, bias, order="C")
    return result.reshape(*x.shape[:-1], weight.shape[0])


def matmul(x: Array, y: Array, transpose_x: Array | bool = False, transpose_y: Array | bool = False) -> Array:
    """Matrix product over the last two axes, each transposed first if asked; the others broadcast."""
    left = np.swapaxes(x, -1, -2) if transpose_x else x
    right = np.swapaxes(y, -1, -2) if transpose_y else y
    result: Array = np.matmul(left, right)
    return result


def einsum(values: Sequence[Array], equation: str) -> Array:
    """The one product that MIL's einsum supports: `nchw,nwhu->nchu`, or without n; n and h broadcast.

    Raises:
        ValueError: another equation.
    """
    x, y = values
    if _pattern(equation) not in ("abcd,adce->abce", "abc,cbd->abd"):
        raise ValueError(f"einsum of {equation}")
    product = np.matmul(np.swapaxes(x, -3, -2), np.swapaxes(y, -3, -2))
    return np.swapaxes(product, -3, -2)


def _pattern(equation: str) -> str:
    """Rename an equation's letters in order of appearance."""
    letters: dict[str, str] = {}
    for letter in filter(str.isalpha, equation):
        letters.setdefault(letter, chr(ord("a") + len(letters)))
    return "".join(letters.get(character, character) for character in equation.replace(" ", ""))


def scaled_dot_product_attention(query: Array, key: Array, value: Array, attn_mask: Array | None = None) -> Array:
    """softmax(query · keyᵀ / √size + mask) · value; in a mask of booleans, False hides."""
    scores = np.matmul(query, np.swapaxes(key, -1, -2))
    scores *= np.float32(1 / math.sqrt(query.shape[-1]))
    if attn_mask is not None:
        hidden = attn_mask.dtype == np.bool_
        scores = np.where(attn_mask, scores, np.float32(-np.inf)) if hidden else scores + attn_mask
    result: Array = np.matmul(softmax(scores), value)
    return result


def layer_norm(
    x: Array,
    axes: Array | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Array | float = 1e-5,
) -> Array:
    """(x − mean) / √(variance + epsilon) · gamma + beta over the given axes, by default all."""
    over = tuple(int(axis) % x.ndim for axis in (range(x.ndim) if axes is None else np.atleast_1d(axes)))
    shape = [size if axis in over else 1 for axis, size in enumerate(x.shape)]
    centred: Array = x - np.mean(x, axis=over, keepdims=True)
    variance = np.mean(np.square(centred), axis=over, keepdims=True)
    centred *= np.reciprocal(np.sqrt(variance + np.float32(epsilon)))
    if gamma is not None:
        centred *= gamma.reshape(shape)
    if beta is not None:
        centred += beta.reshape(shape)
    return centred


def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Array | float = 1e-5,
) -> Array:
    """(x − mean) / √(variance + epsilon) · gamma + beta with stored statistics, one per channel (axis 1)."""
    shape = (-1, *[1] * (x.ndim - 2))
    scale = np.reciprocal(np.sqrt(variance + np.float32(epsilon)))
    if gamma is not None:
        scale = scale * gamma
    result = (x - mean.reshape(shape)) * scale.reshape(shape)
    return result if beta is None else result + beta.reshape(shape)


def instance_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: Array | float = 1e-5
) -> Array:
    """Normalise each channel of each row over its positions."""
    result = layer_norm(x, np.arange(2, x.ndim), None, None, epsilon)
    shape = (-1, *[1] * (x.ndim - 2))
    if gamma is not None:
        result *= gamma.reshape(shape)
    if beta is not None:
        result += beta.reshape(shape)
    return result


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Array | None = None,
    pad_type: str = "valid",
    pad: Array | None = None,
    dilations: Array | None = None,
    groups: Array | int = 1,
) -> Array:
    """Convolution of `(batch, in, *space)` with `(out, in / groups, *kernel)`."""
    rank = x.ndim - 2
    kernel = weight.shape[2:]
    step = [1] * rank if strides is None else [int(size) for size in strides]
    gap = [1] * rank if dilations is None else [int(size) for size in dilations]
    reach = [(size - 1) * apart + 1 for size, apart in zip(kernel, gap, strict=True)]
    edges = _edges(x.shape[2:], reach, step, pad_type, pad)
    if any(size for edge in edges for size in edge):
        x = np.pad(x, [(0, 0), (0, 0), *edges])
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
    every = (slice(None), slice(None), *(slice(None, None, size) for size in (*step, *gap)))
    result = _products(windows[every], weight, int(groups))
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _edges(
    space: tuple[int, ...], reach: Sequence[int], step: Sequence[int], pad_type: str, pad: Array | None
) -> list[tuple[int, int]]:
    """Return the padding before and after each axis."""
    if pad_type == "valid":
        return [(0, 0)] * len(space)
    if pad_type == "custom":
        given = [0] * (2 * len(space)) if pad is None else [int(size) for size in pad]
        return list(zip(given[::2], given[1::2], strict=True))
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"padding of type {pad_type}")
    edges = []
    for size, window, stride in zip(space, reach, step, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + window - size, 0)
        small, large = total // 2, total - total // 2
        edges.append((large, small) if pad_type == "same_lower" else (small, large))
    return edges


def _products(windows: Array, weight: Array, groups: int) -> Array:
    """Multiply windows `(batch, in, *space, *kernel)` with the weights of their group."""
    batch, channels = windows.shape[:2]
    rank = weight.ndim - 2
    space = windows.shape[2 : 2 + rank]
    rows = windows.reshape(batch, groups, channels // groups, *space, *weight.shape[2:])
    rows = np.moveaxis(rows, 2, 2 + rank).reshape(batch, groups, math.prod(space), math.prod(weight.shape[1:]))
    columns = weight.reshape(groups, weight.shape[0] // groups, -1).transpose(0, 2, 1)
    result: Array = np.matmul(rows, columns).transpose(0, 1, 3, 2).reshape(batch, weight.shape[0], *space)
    return result


def _vector(vector: Array | None, x: Array, axis: Array | int | None) -> Array:
    """Return a scale or zero point laid along an axis of x, as float32; zero for None."""
    if vector is None:
        return np.zeros((), np.float32)
    values = np.asarray(vector, np.float32)
    if values.ndim == 0:
        return values
    along = int(0 if axis is None else axis) % x.ndim
    return values.reshape([-1 if i == along else 1 for i in range(x.ndim)])


def quantize(
    input: Array, scale: Array, output_dtype: str, zero_point: Array | None = None, axis: Array | None = None
) -> Array:
    """round(input / scale) + zero point, clipped to the range of int8 or uint8."""
    low, high = (-128, 127) if output_dtype == "int8" else (0, 255)
    steps = np.rint(input / _vector(scale, input, axis)) + _vector(zero_point, input, axis)
    result: Array = np.clip(steps, low, high).astype(np.int8 if output_dtype == "int8" else np.uint8)
    return result


def dequantize(input: Array, scale: Array, zero_point: Array | None = None, axis: Array | None = None) -> Array:
    """(input − zero point) · scale."""
    return (input.astype(np.float32) - _vector(zero_point, input, axis)) * _vector(scale, input, axis)


def pass_through(input: Array, **parameters: Any) -> Array:
    """Return the input of a `quantize` or `dequantize` unchanged, for programs without rounding."""
    return input


def classify(probabilities: Array, classes: Sequence[str | int]) -> tuple[Array, dict[str | int, float]]:
    """Return the label of the largest number, and a dictionary of all numbers by label."""
    flat = probabilities.reshape(-1)
    named = {label: float(share) for label, share in zip(classes, flat, strict=True)}
    return np.array(classes[int(np.argmax(flat))]), named


PAIR = frozenset({"quantize", "dequantize"})
"""Operations that round to integers and dequantise them."""
OPS: Mapping[str, Callable[..., Any]] = {
    "batch_norm": batch_norm,
    "classify": classify,
    "conv": conv,
    "dequantize": dequantize,
    "einsum": einsum,
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "linear": linear,
    "matmul": matmul,
    "quantize": quantize,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}
