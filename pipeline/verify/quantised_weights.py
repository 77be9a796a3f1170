"""Compare the weights of a quantised checkpoint with the student's, tensor by tensor.

No bound here is measured. Tensors that were rewritten without rounding are the student's up to single precision.
Dequantised weights take the values that rounding the student's own numbers allows. GPTQ (`pipeline.quantize.gptq`) and
training may take another value than the nearest, but never so far that zeros would be nearer to the student: an
unrelated tensor, an exchanged row or a turned sign is always farther off than that. A single row of GPTQ may be farther
off, where it spreads an outlier's error over a direction that the inputs do not have; the student's row is still in it.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint import ranges
from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.checkpoint.palettes import Palette
from pipeline.schemes import Scheme
from pipeline.verify.weights import Array, Expected

QuantisedWeight = Palette | Integers
"""The quantised form of a weight, stored beside its dequantised numbers."""
_ERROR = 4 * 2.0**-24
"""Relative to a tensor's largest number: a division by each of two scales, a product, and the rounding of each."""
_HALF_ERROR = 2.0**-11
"""Relative error of centroids, which are kept in half precision."""
_TIE = 1e-5
"""Share of a scale: a number halfway between two codes may round to either."""


def differing(
    student: Expected,
    rewritten: Expected,
    quantised: Mapping[str, QuantisedWeight] | None,
    scheme: Scheme,
    *,
    trained: bool = False,
) -> list[str]:
    """Return the differences between a checkpoint's tensors and the student's, in words.

    Args:
        student: the student's tensors; the reference.
        rewritten: the quantised checkpoint's tensors.
        quantised: its palettes or integers by tensor name, or None where it has scales around its linears.
        scheme: the scheme that they have to follow.
        trained: whether the checkpoint was trained; its embedding tables never are.
    """
    tables = {f"{module}.weight" for module, sources in student.calls if not sources}
    wrong, seen = [], set()
    for name, reference in student.tensors.items():
        path, _, kind = name.rpartition(".")
        inner = f"{path}.{ranges.INNER}.{kind}"
        place = inner if inner in rewritten.tensors else name
        found = rewritten.tensors.get(place)
        seen.add(place)
        if found is None or found.shape != reference.shape:
            wrong.append(f"{name} is not there")
        elif quantised and name in quantised:
            wrong += _rounded_otherwise(name, found, reference, quantised[name], scheme, table=name in tables)
        else:
            plain = _scales_undone(found, path, kind, rewritten)
            wrong += _another(name, plain, reference, learns=trained and name not in tables)
    ends = tuple(f".{gain}.weight" for gain in (ranges.INPUT_GAIN, ranges.OUTPUT_GAIN))
    strangers = rewritten.tensors.keys() - seen
    wrong += [f"{name} is no tensor of the student" for name in strangers if not name.endswith(ends)]
    if quantised is not None:
        wrong += [f"{name} has few bits and is no tensor" for name in quantised.keys() - rewritten.tensors.keys()]
        wrong += [] if quantised else ["no weight has few bits"]
    return wrong


def _another(name: str, found: Array, reference: Array, *, learns: bool) -> Iterator[str]:
    """Yield a message if a tensor that was not rounded differs from the student's."""
    if learns:
        # How far training may take a vector has no bound: it was near zero, or near one, to begin with.
        if not np.isfinite(found).all() or (found.ndim > 1 and _beyond_zeros(found, reference)):
            yield f"{name} is farther from the student's than zeros are"
        return
    largest = float(np.abs(reference).max()) or 1.0
    error = float(np.abs(found - reference).max()) / largest
    # Written so that NaN fails.
    if not error <= _ERROR:
        yield f"{name}, with its scales undone, differs from the student's by {error:.1e}"


def _beyond_zeros(found: Array, reference: Array) -> bool:
    size = float(np.linalg.norm(reference))
    return size > 0 and not float(np.linalg.norm(found - reference)) < size


def _scales_undone(found: Array, path: str, kind: str, rewritten: Expected) -> Array:
    """Return a linear's weight or bias multiplied by the scales around the linear."""
    result = found.astype(np.float64)
    if kind == "weight" and (before := _input_gain(path, rewritten)) is not None:
        result = result * before
    after = rewritten.tensors.get(f"{path}.{ranges.OUTPUT_GAIN}.weight")
    if after is not None:
        result = result * (after[:, None] if kind == "weight" else after)
    return result.astype(np.float32)


def _input_gain(path: str, rewritten: Expected) -> Array | None:
    """Return the SmoothQuant scale of a linear's input, which is named after the first linear that shares the input."""
    for name, sources in rewritten.calls:
        if name == f"{path}.{ranges.INNER}" and sources:
            maker = rewritten.calls[sources[0]][0]
            return rewritten.tensors.get(f"{maker}.weight") if maker.endswith(f".{ranges.INPUT_GAIN}") else None
    return None


# --- weights of few bits ----------------------------------------------------------------------------------------------


def _rounded_otherwise(
    name: str, found: Array, reference: Array, weight: QuantisedWeight, scheme: Scheme, *, table: bool
) -> Iterator[str]:
    """Yield a message if a quantised weight cannot be the result of rounding the student's."""
    bits = (scheme.palette_bits,) if scheme.palette_bits else (4, 8)
    if weight.bits not in bits:
        yield f"{name} has {weight.bits} bits; {scheme.name} means {bits[0]}"
    elif not np.array_equal(weight.dense(), found):
        yield f"{name} is not what its {'palette gives' if scheme.palette_bits else 'codes give'}"
    elif isinstance(weight, Integers) and (strange := _strange_scales(weight, reference, table=table)):
        yield f"of {name}, {strange} of {weight.scales.size} scales are none that rounding the student's tries"
    elif isinstance(weight, Palette) and _beyond_the_student(weight, reference):
        yield f"{name} has a palette that reaches beyond the student's numbers"
    elif table:
        # Nothing compensates a table's errors, so each number is rounded to the nearest.
        if off := int(np.count_nonzero(~(np.abs(found - reference) <= _least_distance(reference, weight)))):
            yield f"of {name}, {off} of {found.size} numbers are not the nearest that it could have"
    elif _beyond_zeros(found, reference):
        yield f"{name} is farther from the student's than zeros are"
    elif far := _rows_beyond_zeros(found, reference, weight):
        yield f"a row of {name} is farther from the student's than zeros are, of {far} such"


def _strange_scales(weight: Integers, reference: Array, *, table: bool) -> int:
    """Return how many scales of a weight are not among those that quantising the student's weight tries."""
    import torch

    from pipeline.quantize.integers import scales_tried

    # In the precision of the quantiser.
    original = torch.tensor(reference, dtype=torch.float32 if table else torch.float64)
    known = np.zeros(weight.scales.shape, bool)
    for tried in scales_tried(original, bits=weight.bits, block=weight.block):
        known |= weight.scales == tried.float().numpy()
    return int(np.count_nonzero(~known))


def _beyond_the_student(weight: Palette, reference: Array) -> bool:
    """Return whether a centroid is outside the range of the student's numbers, of which k-means takes means."""
    groups = reference.reshape(len(weight.lut), -1)
    slack = _HALF_ERROR * np.abs(groups).max(1)
    low, high = weight.lut.astype(np.float64).min(1), weight.lut.astype(np.float64).max(1)
    return bool((low < groups.min(1) - slack).any() or (high > groups.max(1) + slack).any())


def _rows_beyond_zeros(found: Array, reference: Array, weight: QuantisedWeight) -> int:
    """Count the rows that are farther from the student's than zeros are, and than rounding alone can move them.

    A row in which the student's own row is still found does not count, see `holding_their_own`.
    """
    distances, sizes = (np.linalg.norm(one.astype(np.float64), axis=1) for one in (found - reference, reference))
    far = np.flatnonzero(~(distances <= np.maximum(sizes, _rounding_of_rows(reference, weight))))
    return len(far) - holding_their_own(found, reference, far)


def holding_their_own(found: Array, reference: Array, rows: NDArray[np.intp]) -> int:
    """Count the rows that are more like the student's own row than like any other, and hold it about once.

    Source: measured on bge-small with palettes of 6 bits. An outlier that the palette cuts moved all numbers of two
    rows of 1,536 by the same amount, to 1.6 and 1.7 times the row's size; on the calibration set the outputs stay.
    """
    student = reference.astype(np.float64)
    products = found[rows].astype(np.float64) @ student.T
    squares = np.square(student).sum(1)
    likest = (products / np.sqrt(np.maximum(squares, 1e-30))).argmax(1) == rows
    held = products[np.arange(len(rows)), rows] / np.maximum(squares[rows], 1e-30)
    # Nearer to once than to not at all, or to twice.
    return int(np.count_nonzero(likest & (np.abs(held - 1) < 0.5)))


def _rounding_of_rows(reference: Array, weight: QuantisedWeight) -> Array:
    """Return the norm of each row's largest rounding error: half a scale per number, or half a palette's widest gap."""
    if isinstance(weight, Integers):
        halves: Array = weight.scales.repeat(weight.block, axis=1) / np.float32(2)
        length: Array = np.linalg.norm(halves, axis=1)
        return length
    gaps = np.diff(weight.lut.astype(np.float32), axis=1).max(1) / 2
    rows: Array = gaps.repeat(len(reference) // len(weight.lut)) * np.float32(reference.shape[1] ** 0.5)
    return rows


def _least_distance(reference: Array, weight: QuantisedWeight) -> Array:
    """Return the distance of each number to the nearest value that its codes or centroids allow."""
    if isinstance(weight, Integers):
        scales = weight.scales.repeat(weight.block, axis=1)
        codes = np.clip(np.rint(reference / scales), LOWEST[weight.bits], HIGHEST[weight.bits])
        least: Array = np.abs(codes * scales - reference) + np.float32(_TIE) * scales
        return least
    distances = np.empty_like(reference)
    size = len(reference) // len(weight.lut)
    for group, entries in enumerate(weight.lut.astype(np.float32)):
        rows = reference[group * size : (group + 1) * size]
        above = np.searchsorted(entries, rows).clip(1, len(entries) - 1)
        distances[group * size : (group + 1) * size] = np.minimum(
            np.abs(entries[above] - rows), np.abs(entries[above - 1] - rows)
        )
    return distances
