"""Find which tensor of the checkpoint a constant of a file is, by content: converters keep neither names nor layouts.

How far a number may lie from the checkpoint's follows from the checkpoint's own row, never from the scales in the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.backends.structure import Constant, Stored
from pipeline.verify.expected import Array, Form

_SAMPLES = 128
_TRIED = 4
"""A weight and the same with a norm multiplied in may lie within int8's rounding of each other."""
_PRECISION: dict[Stored, int] = {"float32": 0, "float16": 1, "int8": 2}
_INT8_SLACK = 1e-3
"""Of half a step: scale and quotient are rounded to float32."""
_SMALLEST_STEP = 2.0**-23
"""torchao 0.18 lets no scale be smaller (`torch.finfo(torch.float32).eps`), so tiny rows are coarser than their own."""
_HALF_SLACK = 3 * 2.0**-11
"""Relative: Core ML rounds the weight, its scale and their product to half precision. Found in files: 2.74 of the 3."""
_HALF_SMALLEST = 2.0**-24
"""The smallest number in half precision; coremltools 9.0 raises what lies below to it, where others round to zero."""


@dataclass(frozen=True)
class Precision:
    """What a scheme promises on a backend."""

    tables: Stored
    """Of matrices and tables."""
    vectors: Stored
    """Of biases and norms, and what the tables were before they were compressed."""

    def of(self, form: Form, stored: Stored) -> Stored:
        """Return what a tensor is held to: what it is stored in, but nothing worse than was promised."""
        promised = self.vectors if len(form.shape) < 2 else self.tables
        return min(promised, stored, key=_PRECISION.__getitem__)


@dataclass(frozen=True)
class Match:
    """A constant beside one form of one tensor."""

    form: Form
    off: int
    """Elements farther away than the rounding allows."""
    size: int
    error: float
    """The largest distance, in units of what is allowed."""
    worst: tuple[int, ...]
    found: float
    wanted: float

    def describe(self) -> str:
        """Say what is off."""
        where = f"row {self.worst[0]}" + "".join(f", column {axis}" for axis in self.worst[1:])
        return (
            f"{self.form.label}: {self.off} of {self.size} elements are not the checkpoint's, "
            f"the worst in {where}: {self.found:.6g} instead of {self.wanted:.6g}"
        )


def best_match(constant: Constant, forms: Sequence[Form], precision: Precision) -> list[Match]:
    """Return the forms that a constant agrees with in every element; if there is none, the nearest one alone.

    Equal tensors, such as biases of zeros, may share one constant, so several forms can agree.
    """
    values = constant.values.squeeze()
    candidates = [
        (turned, form) for form in forms for turned in (False, True) if _fits(values.shape, form, turned=turned)
    ]
    if not candidates:
        return []
    index = _sample(values)
    known = values[index]
    distances = [_distance(known, form, index, turned=turned) for turned, form in candidates]
    order = np.argsort(distances, kind="stable")
    ties = int(np.searchsorted(np.asarray(distances)[order], distances[order[0]], side="right"))
    matches: list[Match] = []
    for place, number in enumerate(order[: max(ties, _TRIED)]):
        if place >= ties and any(match.off == 0 for match in matches):
            break
        turned, form = candidates[number]
        matches.append(_compare(values.T if turned else values, form, constant.stored, precision))
    whole = [match for match in matches if match.off == 0]
    return whole or [min(matches, key=lambda match: match.off)]


def _fits(shape: tuple[int, ...], form: Form, *, turned: bool) -> bool:
    wanted = tuple(size for size in form.shape if size != 1)
    if turned:
        return len(shape) == 2 and shape[::-1] == wanted
    shorter = form.prefix and len(shape) == len(wanted) == 2 and shape[1] == wanted[1] and shape[0] < wanted[0]
    return shape == wanted or shorter


def _sample(values: Array) -> tuple[NDArray[np.int64], ...]:
    """Return places; of a sparse matrix those that are not zero, by which alone it can be told from another."""
    generator = np.random.default_rng(0)
    if 0 < 2 * np.count_nonzero(values) < values.size:
        filled = np.flatnonzero(values)
        return np.unravel_index(generator.choice(filled, _SAMPLES), values.shape)
    return tuple(generator.integers(0, size, _SAMPLES) for size in values.shape)


def _distance(known: Array, form: Form, index: tuple[NDArray[np.int64], ...], *, turned: bool) -> float:
    """Return the median distance of some elements: a few damaged ones do not move it."""
    placed = index[::-1] if turned else index
    for axis, size in enumerate(form.shape):
        if size == 1:
            placed = (*placed[:axis], np.zeros(_SAMPLES, np.int64), *placed[axis:])
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.median(np.abs(known - form.at(placed))))
    return distance if np.isfinite(distance) else np.inf


def _compare(values: Array, form: Form, stored: Stored, precision: Precision) -> Match:
    """Compare element by element; `values` have the form's layout or are its first rows."""
    wanted = form.values
    if form.prefix and values.ndim == 2:
        wanted = wanted[: len(values)]
    values = values.reshape(wanted.shape)
    allowed = _allowed(wanted, form, precision.of(form, stored), precision.vectors)
    # In place: the largest table has twelve million elements.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = np.abs(values - wanted)
        outside = ~(distance <= allowed)
        off = int(np.count_nonzero(outside))
        np.divide(distance, allowed, out=distance)
    distance[np.isnan(distance)] = 0
    distance[outside & ~(distance > 1)] = np.inf
    worst = np.unravel_index(int(distance.argmax()), distance.shape)
    place = tuple(int(axis) for axis in worst)
    return Match(form, off, values.size, float(distance[worst]), place, float(values[worst]), float(wanted[worst]))


def _allowed(wanted: Array, form: Form, held_to: Stored, base: Stored) -> Array:
    """Return how far each element may be away; of a shape that broadcasts."""
    allowed: Array = np.zeros((1,) * wanted.ndim, np.float32) if form.error is None else form.error
    size = np.abs(wanted)
    if held_to == "float16":
        allowed = allowed + _half_unit(wanted)
        if base == "float16":
            allowed[size < _HALF_SMALLEST] = _HALF_SMALLEST
    elif held_to == "int8":
        # coremltools 9.0 sees a table's first rows as one row, (1, length, width), and gives it one scale.
        one_row = form.prefix and base == "float16"
        largest = size.max(axis=None if one_row else tuple(range(1, size.ndim)), keepdims=True)
        step = np.maximum(largest / np.float32(127), np.float32(_SMALLEST_STEP)).astype(np.float32)
        allowed = allowed + step * np.float32((1 + _INT8_SLACK) / 2)
        if base == "float16":
            slack: Array = size * np.float32(_HALF_SLACK) + np.float32(_HALF_SMALLEST)
            allowed = allowed + slack
    return allowed


def _half_unit(wanted: Array) -> Array:
    """Return half a unit in the last place of half precision: 2^-11 of the leading bit, one size below 2^-14.

    By the bits of float32, whose exponent has a bias of 127: twelve million logarithms would take a second.
    """
    exponent = np.maximum((np.ascontiguousarray(wanted).view(np.int32) >> 23) & 0xFF, 127 - 14) - 11
    half: Array = (exponent << 23).view(np.float32)
    return half
