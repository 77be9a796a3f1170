"""Hold the weights of a quantised checkpoint to the student's, tensor by tensor.

No bound here is measured. What quantisation rewrote without rounding is the student's up to single precision. Codes lie
on a grid, or a palette has entries, that rounding the student's own numbers makes. What hands its rounding errors on
(`pipeline.quantize.gptq`) or is trained may take other codes than the nearest, but never so far that zeros would be
nearer to the student: an unrelated tensor, a row of another or a turned sign is always farther off than that.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.checkpoint import ranges
from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.checkpoint.palettes import Palette
from pipeline.schemes import Scheme
from pipeline.verify.weights import Array, Expected

Held = Palette | Integers
"""What a checkpoint has beside the numbers of a weight."""
_ERROR = 4 * 2.0**-24
"""Relative to a tensor's largest number: a division for each of two scales, a product, and the rounding of each."""
_HALF_ERROR = 2.0**-11
"""Relative: palettes are kept in half precision."""
_TIE = 1e-5
"""Share of a step: a number in the middle of two codes may go to either."""


def differing(
    student: Expected,
    rewritten: Expected,
    held: Mapping[str, Held] | None,
    scheme: Scheme,
    *,
    trained: bool = False,
) -> list[str]:
    """Return what of a checkpoint's tensors is not the student's, in words.

    Args:
        student: the truth.
        rewritten: the checkpoint.
        held: its palettes or integers by the names of its tensors, or None where it has scales around its linears.
        scheme: what they are to be.
        trained: whether the checkpoint was trained; its tables were not.
    """
    tables = {f"{module}.weight" for module, sources in student.calls if not sources}
    wrong, seen = [], set()
    for name, wanted in student.tensors.items():
        path, _, kind = name.rpartition(".")
        inner = f"{path}.{ranges.INNER}.{kind}"
        place = inner if inner in rewritten.tensors else name
        found = rewritten.tensors.get(place)
        seen.add(place)
        if found is None or found.shape != wanted.shape:
            wrong.append(f"{name} is not there")
        elif held and name in held:
            wrong += _rounded_otherwise(name, found, wanted, held[name], scheme, table=name in tables)
        else:
            plain = _scales_undone(found, path, kind, rewritten)
            wrong += _another(name, plain, wanted, learns=trained and name not in tables)
    ends = tuple(f".{gain}.weight" for gain in (ranges.INPUT_GAIN, ranges.OUTPUT_GAIN))
    strangers = rewritten.tensors.keys() - seen
    wrong += [f"{name} is no tensor of the student" for name in strangers if not name.endswith(ends)]
    if held is not None:
        wrong += [f"{name} has few bits and is no tensor" for name in held.keys() - rewritten.tensors.keys()]
        wrong += [] if held else ["no weight has few bits"]
    return wrong


def _another(name: str, found: Array, wanted: Array, *, learns: bool) -> Iterator[str]:
    """Say that a tensor which was not rounded is another than the student's."""
    if learns:
        # Of a vector nothing tells how far training may take it; it was near zero to begin with, or near one.
        if not np.isfinite(found).all() or (found.ndim > 1 and _beyond_zeros(found, wanted)):
            yield f"{name} is farther from the student's than zeros are"
        return
    largest = float(np.abs(wanted).max()) or 1.0
    error = float(np.abs(found - wanted).max()) / largest
    # Written so that NaN fails.
    if not error <= _ERROR:
        yield f"{name}, with its scales undone, differs from the student's by {error:.1e}"


def _beyond_zeros(found: Array, wanted: Array) -> bool:
    size = float(np.linalg.norm(wanted))
    return size > 0 and not float(np.linalg.norm(found - wanted)) < size


def _scales_undone(found: Array, path: str, kind: str, rewritten: Expected) -> Array:
    """Return a linear's weight or bias multiplied with the scales around the linear."""
    result = found.astype(np.float64)
    if kind == "weight" and (before := _input_gain(path, rewritten)) is not None:
        result = result * before
    after = rewritten.tensors.get(f"{path}.{ranges.OUTPUT_GAIN}.weight")
    if after is not None:
        result = result * (after[:, None] if kind == "weight" else after)
    return result.astype(np.float32)


def _input_gain(path: str, rewritten: Expected) -> Array | None:
    """Return the scale of what a linear reads, which goes by the first linear that shares it: the call before it."""
    for name, sources in rewritten.calls:
        if name == f"{path}.{ranges.INNER}" and sources:
            maker = rewritten.calls[sources[0]][0]
            return rewritten.tensors.get(f"{maker}.weight") if maker.endswith(f".{ranges.INPUT_GAIN}") else None
    return None


# --- weights of few bits ----------------------------------------------------------------------------------------------


def _rounded_otherwise(
    name: str, found: Array, wanted: Array, held: Held, scheme: Scheme, *, table: bool
) -> Iterator[str]:
    """Say what of a weight of few bits is not what rounding the student's gives."""
    bits = (scheme.palette_bits,) if scheme.palette_bits else (4, 8)
    if held.bits not in bits:
        yield f"{name} has {held.bits} bits; {scheme.name} means {bits[0]}"
    elif not np.array_equal(held.dense(), found):
        yield f"{name} is not what its {'palette gives' if scheme.palette_bits else 'codes give'}"
    elif isinstance(held, Integers) and (strange := _strange_scales(held, wanted, table=table)):
        yield f"of {name}, {strange} of {held.scales.size} scales are none that rounding the student's tries"
    elif isinstance(held, Palette) and _beyond_the_student(held, wanted):
        yield f"{name} has a palette that reaches beyond the student's numbers"
    elif table:
        # Nothing makes up for what a table loses, so each number is rounded to the nearest.
        if off := int(np.count_nonzero(~(np.abs(found - wanted) <= _least_distance(wanted, held)))):
            yield f"of {name}, {off} of {found.size} numbers are not the nearest that it could have"
    elif _beyond_zeros(found, wanted):
        yield f"{name} is farther from the student's than zeros are"
    elif far := _rows_beyond_zeros(found, wanted, held):
        yield f"a row of {name} is farther from the student's than zeros are, of {far} such"


def _strange_scales(held: Integers, wanted: Array, *, table: bool) -> int:
    """Return how many scales of a weight are none of those that rounding the student's tries."""
    import torch

    from pipeline.quantize.integers import scales_tried

    # In the precision in which they are chosen.
    weight = torch.tensor(wanted, dtype=torch.float32 if table else torch.float64)
    known = np.zeros(held.scales.shape, bool)
    for tried in scales_tried(weight, bits=held.bits, block=held.block):
        known |= held.scales == tried.float().numpy()
    return int(np.count_nonzero(~known))


def _beyond_the_student(held: Palette, wanted: Array) -> bool:
    """Return whether an entry is no mean of the student's numbers, which k-means makes each of."""
    groups = wanted.reshape(len(held.lut), -1)
    slack = _HALF_ERROR * np.abs(groups).max(1)
    low, high = held.lut.astype(np.float64).min(1), held.lut.astype(np.float64).max(1)
    return bool((low < groups.min(1) - slack).any() or (high > groups.max(1) + slack).any())


def _rows_beyond_zeros(found: Array, wanted: Array, held: Held) -> int:
    """Count the rows to which zeros would be nearer; one that is smaller than its rounding may be so far off."""
    distances, sizes = (np.linalg.norm(one.astype(np.float64), axis=1) for one in (found - wanted, wanted))
    return int(np.count_nonzero(~(distances <= np.maximum(sizes, _rounding_of_rows(wanted, held)))))


def _rounding_of_rows(wanted: Array, held: Held) -> Array:
    """Return the length of half a step in each number of a row; of a palette, of half its widest gap."""
    if isinstance(held, Integers):
        halves: Array = held.scales.repeat(held.block, axis=1) / np.float32(2)
        length: Array = np.linalg.norm(halves, axis=1)
        return length
    gaps = np.diff(held.lut.astype(np.float32), axis=1).max(1) / 2
    rows: Array = gaps.repeat(len(wanted) // len(held.lut)) * np.float32(wanted.shape[1] ** 0.5)
    return rows


def _least_distance(wanted: Array, held: Held) -> Array:
    """Return the distance of each number to the nearest that it could be."""
    if isinstance(held, Integers):
        scales = held.scales.repeat(held.block, axis=1)
        codes = np.clip(np.rint(wanted / scales), LOWEST[held.bits], HIGHEST[held.bits])
        least: Array = np.abs(codes * scales - wanted) + np.float32(_TIE) * scales
        return least
    distances = np.empty_like(wanted)
    size = len(wanted) // len(held.lut)
    for group, entries in enumerate(held.lut.astype(np.float32)):
        rows = wanted[group * size : (group + 1) * size]
        above = np.searchsorted(entries, rows).clip(1, len(entries) - 1)
        distances[group * size : (group + 1) * size] = np.minimum(
            np.abs(entries[above] - rows), np.abs(entries[above - 1] - rows)
        )
    return distances
