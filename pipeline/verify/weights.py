"""Match each constant of a converted file with a tensor of the checkpoint.

Converters keep neither names nor layouts, so a constant is recognised by its content. The allowed distance between its
numbers and the checkpoint's follows from the checkpoint's own rows, never from the scales in the file; int8 has to be
the toolchain's own rounding, to the last bit.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import architectures
from pipeline.checkpoint.parameters import content_digest
from pipeline.checkpoint.weights import GAINS, WEIGHTS
from pipeline.errors import StudentError
from pipeline.formats.rounding import SMALLEST_STEP, Rounding
from pipeline.formats.structure import Constant, StaticScales
from pipeline.schemes import Granularity, Stored

Array = NDArray[np.float32]

_SUM_ERROR = 1e-6
"""Error of a dot product in float32, against the sum of its absolute terms."""
_SAMPLES = 128
_TRIED = 4
"""Forms compared in full: int8's rounding may hide whether a norm is folded into a weight."""
_PRECISION: dict[Stored, int] = {"float32": 0, "float16": 1, "int8": 2, "palette6": 3, "int4": 4, "palette4": 5}
_BOTH_ENDS = 4
"""Numbers in `StaticScales` if the output is int8 too: scale and zero point of a linear's input and its output."""
_CHOSEN: tuple[Stored, ...] = ("palette6", "int4", "palette4")
_INT8_SLACK = 1e-3
"""Slack as a share of half a step: scale and quotient are rounded to float32."""
_HALF_SLACK = 3 * 2.0**-11
"""Relative: Core ML rounds the weight, its scale and their product to half precision. Found in files: 2.74 of the 3."""
_HALF_SMALLEST = 2.0**-24
"""Smallest number in half precision; coremltools 9.0 raises smaller ones to it, where others round to zero."""


STATIC_ROUNDING = Rounding(127)
"""Rounding of linears with calibrated ranges, see `checkpoint.static`: their codes are ours, not the toolchain's."""


@dataclass(frozen=True)
class Form:
    """A tensor of the checkpoint in a form that a file may hold: plain, looked up, or with a module folded in."""

    tensor: str
    """Name in the checkpoint."""
    how: str
    """Empty, or the folded tensor and how it is folded in."""
    plain: Array
    factor: Array | None = None
    """Factor along the last axis."""
    error: Array | None = None
    """Absolute error of a sum, beyond the rounding of the file."""
    parts: tuple[str, ...] = ()
    """Checkpoint names of the tensors folded in."""
    prefix: bool = False
    """Whether a file may hold the first rows only."""
    places: NDArray[np.int64] | None = None
    """For a table that is looked up at conversion, each number's index. A file may hold the part for its length."""
    rounding: Rounding | None = None
    """Rounding to int8, where it is not the format's."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self.plain.shape

    @property
    def label(self) -> str:
        """Name in messages."""
        return f"{self.tensor} {self.how}".rstrip()

    @cached_property
    def values(self) -> Array:
        """Numbers of the form, computed at first use."""
        return self.plain if self.factor is None else self.plain * self.factor

    def at(self, index: tuple[NDArray[np.int64], ...]) -> Array:
        """Return the numbers at an index without computing all of them."""
        return self.plain[index] if self.factor is None else self.plain[index] * self.factor[index[-1]]


@dataclass(frozen=True)
class Expected:
    """The parts of a checkpoint that a file can be compared with."""

    tensors: Mapping[str, Array]
    positions: frozenset[str]
    """Tables of which a file may hold the first rows only."""
    feeds: Mapping[str, tuple[str, ...]]
    """For a linear, the modules whose output it reads."""
    epsilons: tuple[float, ...]
    activations: tuple[str, ...]
    calls: tuple[tuple[str, tuple[int, ...]], ...]
    """Modules in the order in which they run, each with the numbers of the calls on whose results it works."""
    static: Mapping[str, StaticScales] = field(default_factory=dict)
    """Scale and zero point of the input and output of each static int8 linear, by name."""
    one_scale: bool = False
    """Whether the weights of these linears have one scale per tensor."""
    rounded: frozenset[str] | None = None
    """Names of the tensors with chosen integers; None if the checkpoint has none."""
    gathered: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Indices of tables that converters look up at conversion, by name, see `Architecture.gathered`."""

    @classmethod
    def read(cls, student: Path, structure: Mapping[str, Any]) -> "Expected":
        """Read the tensors of a student by content digest: files may use other names than the structure.

        Raises:
            StudentError: the checkpoint is not the one that the structure describes.
        """
        files = [file for file in (student / WEIGHTS, student / GAINS) if file.is_file()]
        by_digest = {content_digest(values): values for file in files for values in _tensors(file)}
        tensors = {}
        for name, row in structure["parameters"].items():
            if row["sha256"] not in by_digest:
                raise StudentError(f"{student} holds no tensor with the content of {name}; verify from the start.")
            tensors[name] = by_digest[row["sha256"]].reshape(row["shape"])
        feeds = {name: tuple(makers) for name, makers in structure["feeds"].items()}
        epsilons, activations = tuple(structure["epsilons"]), tuple(structure["activations"])
        calls = tuple((name, tuple(needs)) for name, needs in structure["calls"])
        config = json.loads((student / "config.json").read_text(encoding="utf-8"))
        look_up = architectures.get(config["model_type"]).gathered
        gathered = look_up({name: values.shape for name, values in tensors.items()}) if look_up else {}
        return cls(tensors, frozenset(structure["positions"]), feeds, epsilons, activations, calls, gathered=gathered)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Every form of every tensor, plain forms first."""
        plain = [self._plain(name, values) for name, values in self.tensors.items()]
        gathered = [
            Form(name, "looked up", self.tensors[name].ravel()[places], places=places)
            for name, places in self.gathered.items()
        ]
        return (*plain, *gathered, *self._folded())

    def _plain(self, name: str, values: Array) -> Form:
        """Return the plain form of a tensor; the bias of a static linear may be off by half its scale."""
        linear, _, kind = name.rpartition(".")
        # A linear that gives floats adds its bias to them.
        if len(self.static.get(linear, ())) < _BOTH_ENDS:
            return Form(name, "", values, prefix=name in self.positions)
        if kind == "weight":
            return Form(name, "", values, rounding=STATIC_ROUNDING)
        largest = np.abs(self.tensors[f"{linear}.weight"]).max(1)
        of_weights = (np.full_like(largest, largest.max()) if self.one_scale else largest) / STATIC_ROUNDING.steps
        step, *_ = self.static[linear]
        error = step * of_weights * np.float32((1 + _INT8_SLACK) / 2) + np.abs(values) * np.float32(_SUM_ERROR)
        return Form(name, "", values, error=error.astype(np.float32))

    def _folded(self) -> Iterator[Form]:
        """Yield the forms of linears with the layer norm before them folded in: W·g and b + W·β.

        litert-torch 0.10 does this wherever a norm or a bias is followed by a linear.
        """
        for linear, makers in self.feeds.items():
            weight = self.tensors.get(f"{linear}.weight")
            for maker in makers if weight is not None else ():
                assert weight is not None
                scale, shift = self.tensors.get(f"{maker}.weight"), self.tensors.get(f"{maker}.bias")
                if scale is not None and scale.shape == weight.shape[1:]:
                    how, parts = f"times {maker}.weight", (f"{maker}.weight",)
                    yield Form(f"{linear}.weight", how, weight, factor=scale, parts=parts)
                if shift is not None:
                    yield self._shifted(linear, maker, weight, shift)

    def _shifted(self, linear: str, maker: str, weight: Array, shift: Array) -> Form:
        bias = self.tensors.get(f"{linear}.bias", np.zeros(len(weight), np.float32))
        total = weight.astype(np.float64) @ shift
        error = _SUM_ERROR * (np.abs(weight) @ np.abs(shift) + np.abs(bias))
        how, parts = f"plus its weight times {maker}.bias", (f"{maker}.bias",)
        # Made in float64 and rounded once.
        values = (bias + total).astype(np.float32)
        return Form(f"{linear}.bias", how, values, error=error.astype(np.float32), parts=parts)


def _tensors(file: Path) -> Iterator[Array]:
    """Yield the floating-point tensors of a safetensors file as float32; NumPy has no bfloat16, so it is read here.

    Source: https://github.com/huggingface/safetensors#format.
    """
    data = np.memmap(file, np.uint8, "r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + size].tobytes())
    for name, row in header.items():
        if name == "__metadata__" or row["dtype"] not in ("F64", "F32", "F16", "BF16"):
            continue
        first, last = (8 + size + offset for offset in row["data_offsets"])
        raw = data[first:last]
        if row["dtype"] == "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view(f"<f{int(row['dtype'][1:]) // 8}").astype(np.float32, copy=False)
        yield np.asarray(values.reshape(row["shape"]))


# --- which tensor a constant is ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """Storage and rounding of a scheme's weights on a backend."""

    tables: Stored
    """Storage of matrices and tables."""
    vectors: Stored
    """Storage of biases and norms, and of tables before they were quantised."""
    granularity: Granularity | None
    """Granularity of integers' scales."""
    rounding: Rounding
    """Rounding to int8."""

    def of(self, form: Form, stored: Stored) -> Stored:
        """Return the storage whose rounding error a tensor may have: the finer one of the promised and the file's."""
        promised = self.vectors if len(form.shape) < 2 else self.tables
        return min(promised, stored, key=_PRECISION.__getitem__)


@dataclass(frozen=True)
class Match:
    """The comparison of a constant with one form of one tensor."""

    form: Form
    off: int
    """Number of elements that are farther off than the rounding allows."""
    size: int
    error: float
    """Largest distance, as a multiple of the allowed one."""
    worst: tuple[int, ...]
    found: float
    reference: float

    def describe(self) -> str:
        """Return a message with the number of wrong elements and the worst one."""
        where = f"row {self.worst[0]}" + "".join(f", column {axis}" for axis in self.worst[1:])
        return (
            f"{self.form.label}: {self.off} of {self.size} elements are not the checkpoint's, "
            f"the worst in {where}: {self.found:.6g} instead of {self.reference:.6g}"
        )


def best_match(constant: Constant, forms: Sequence[Form], precision: Precision) -> list[Match]:
    """Return the forms that a constant equals within rounding in every element; if there is none, the nearest one.

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
    due = tuple(size for size in form.shape if size != 1)
    if turned:
        return len(shape) == 2 and shape[::-1] == due
    if len(shape) != len(due) or len(shape) < 2:
        return shape == due
    if form.places is not None:
        return shape[:-2] == due[:-2] and shape[-1] == shape[-2] <= due[-1]
    return shape == due or (form.prefix and len(shape) == 2 and shape[1] == due[1] and shape[0] < due[0])


def _sample(values: Array) -> tuple[NDArray[np.int64], ...]:
    """Return random indices; for a sparse matrix, indices of nonzero elements, by which alone it can be recognised."""
    generator = np.random.default_rng(0)
    if 0 < 2 * np.count_nonzero(values) < values.size:
        filled = np.flatnonzero(values)
        return np.unravel_index(generator.choice(filled, _SAMPLES), values.shape)
    return tuple(generator.integers(0, size, _SAMPLES) for size in values.shape)


def _distance(known: Array, form: Form, index: tuple[NDArray[np.int64], ...], *, turned: bool) -> float:
    """Return the median distance over the sample: a few damaged elements do not move it."""
    placed = index[::-1] if turned else index
    for axis, size in enumerate(form.shape):
        if size == 1:
            placed = (*placed[:axis], np.zeros(_SAMPLES, np.int64), *placed[axis:])
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.median(np.abs(known - form.at(placed))))
    return distance if np.isfinite(distance) else np.inf


def _compare(values: Array, form: Form, stored: Stored, precision: Precision) -> Match:
    """Compare element by element; `values` have the form's layout or are its first rows."""
    reference = form.values
    if form.prefix and values.ndim == 2:
        reference = reference[: len(values)]
    elif form.places is not None:
        reference = reference[..., : values.shape[-1], : values.shape[-1]]
    values = values.reshape(reference.shape)
    storage = precision.of(form, stored)
    # Beside int4 weights, int8 was chosen by the quantiser, like those.
    rounds = storage == "int8" and precision.tables == "int8"
    largest = _largest(reference, form, precision) if rounds else None
    allowed = _allowed(reference, form, largest, storage, precision)
    # In place: the largest table has twelve million elements.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = np.abs(values - reference)
        outside = ~(distance <= allowed)
        if stored in _CHOSEN and storage != stored:
            # Fewer bits than the scheme promised.
            outside[...] = True
        if largest is not None:
            # Half a step hides a scale that is off by a bit.
            outside |= values != (form.rounding or precision.rounding).of(reference, largest)
        off = int(np.count_nonzero(outside))
        np.divide(distance, allowed, out=distance)
    distance[np.isnan(distance)] = 0
    distance[outside & ~(distance > 1)] = np.inf
    worst = np.unravel_index(int(distance.argmax()), distance.shape)
    place = tuple(int(axis) for axis in worst)
    return Match(form, off, values.size, float(distance[worst]), place, float(values[worst]), float(reference[worst]))


def _largest(reference: Array, form: Form, precision: Precision) -> Array:
    """Return the largest magnitude among the elements that share a scale, in a shape that broadcasts."""
    # coremltools 9.0 sees a table's first rows as one row, (1, length, width), and gives it one scale.
    one_scale = precision.granularity == "tensor" or (form.prefix and precision.vectors == "float16")
    largest: Array = np.abs(reference).max(axis=None if one_scale else tuple(range(1, reference.ndim)), keepdims=True)
    return largest


def _allowed(reference: Array, form: Form, largest: Array | None, storage: Stored, precision: Precision) -> Array:
    """Return the largest distance allowed for each element, in a shape that broadcasts.

    Weights that the quantiser chose must match exactly: the quantised checkpoint has the same. In half precision, an
    8-bit code times its scale is rounded to that.
    """
    allowed: Array = np.zeros((1,) * reference.ndim, np.float32) if form.error is None else form.error
    base = precision.vectors
    if storage == "float16" or (storage == "int8" and largest is None and base == "float16"):
        allowed = allowed + _half_unit(reference)
        if base == "float16":
            allowed[np.abs(reference) < _HALF_SMALLEST] = _HALF_SMALLEST
    elif largest is not None:
        step = np.maximum(largest / np.float32(127), np.float32(SMALLEST_STEP)).astype(np.float32)
        allowed = allowed + step * np.float32((1 + _INT8_SLACK) / 2)
        if base == "float16":
            slack: Array = np.abs(reference) * np.float32(_HALF_SLACK) + np.float32(_HALF_SMALLEST)
            allowed = allowed + slack
    return allowed


def _half_unit(reference: Array) -> Array:
    """Return half a unit in the last place of half precision: 2^-11 of the leading bit; below 2^-14 it is constant.

    By the bits of float32, whose exponent has a bias of 127: twelve million logarithms would take a second.
    """
    exponent = np.maximum((np.ascontiguousarray(reference).view(np.int32) >> 23) & 0xFF, 127 - 14) - 11
    half: Array = (exponent << 23).view(np.float32)
    return half
