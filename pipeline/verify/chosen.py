"""Judge a checkpoint whose weights were chosen from few numbers, as palettes or integers, and the file made of it.

What was chosen cannot be multiplied out to the student, so it is held to what rounding may change. Rounding that hands
its errors on from column to column and from layer to layer (`pipeline.quantize.gptq`) takes numbers to others than the
nearest, but it leaves rows what they were: a row, a layer or a table in another's place is many times farther off.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pipeline.backends.structure import Structure
from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.checkpoint.palettes import Palette
from pipeline.schemes import Scheme, Stored
from pipeline.verify import equalised
from pipeline.verify.record import GateResult, listed
from pipeline.verify.weights import Array, Expected
from pipeline.verify.wiring import Followed

Held = Palette | Integers
"""What a checkpoint has beside the numbers of a weight."""
_TENSOR: Mapping[int, float] = {8: 0.2, 6: 0.25, 4: 0.35}
"""By bits: the largest distance of a matrix to the student's, relative to it. What makes up for earlier layers takes a
matrix of MiniLM at most .11 away; rounding to 6 and 4 bits adds at most .09 and .18."""
_ROW: Mapping[int, float] = {8: 0.87, 6: 0.95, 4: 0.87}
"""By bits: largest distance of a row to the student's, relative to it; another row is farther off than 1, and so is one
twice as large. MiniLM, with outliers: at most .82; with one list for a tensor .89, in a row whose norm is one number's,
which is beyond that list."""
_SMALL_ROW = 0.3
"""A row smaller than this, relative to a mean one, counts as so large: of such a one the direction is lost."""
_ELEMENT = 0.5
"""The largest distance of a number to the student's, relative to all that the tensor spans. MiniLM: at most .38."""


def check(
    student: Expected, rewritten: Expected, held: Mapping[str, Held], scheme: Scheme, *, trained: bool = False
) -> GateResult:
    """Compare a checkpoint whose weights were chosen with the student.

    Args:
        student: the truth.
        rewritten: the checkpoint whose numbers the file has.
        held: its palettes or integers, by the names of its tensors.
        scheme: what they are to be.
        trained: whether the checkpoint was trained behind that; tables were not.
    """
    what = "a palette" if scheme.palette_bits else "codes"
    wrong = [f"{name} is no tensor of the student" for name in rewritten.tensors.keys() - student.tensors.keys()]
    wrong += [f"{name} has {what} and is no tensor" for name in held.keys() - rewritten.tensors.keys()]
    wrong += [] if held else [f"nothing has {what}"]
    tables = {f"{module}.weight" for module, sources in student.calls if not sources}
    worst = 0.0
    for name, wanted in student.tensors.items():
        found = rewritten.tensors.get(name)
        if found is None or found.shape != wanted.shape:
            wrong.append(f"{name} is not there")
        elif name not in held:
            near = trained and name not in tables and equalised.distance(found, wanted) <= equalised.TRAINED
            same = near or np.array_equal(found, wanted)
            wrong += [] if same else [f"{name} lacks {what} and is not the student's"]
        elif held[name].bits not in _bits(scheme):
            wrong.append(f"{name} has {held[name].bits} bits; {scheme.name} means {_bits(scheme)[0]}")
        elif not np.array_equal(held[name].dense(), found):
            wrong.append(f"{name} is not what its {'palette gives' if scheme.palette_bits else 'codes give'}")
        else:
            problem, share = _compare(name, found, wanted, held[name], table=name in tables)
            worst = max(worst, share)
            wrong += [problem] if problem else []
    detail = f"{len(held)} weights are at most {worst:.2f} of what rounding explains from the student; the rest is its"
    if wrong:
        detail = f"{len(wrong)} tensors of the rounded checkpoint are not the student's: {listed(wrong)}"
    return GateResult(name="chosen", bound=1.0, found=worst, passed=not wrong, detail=detail)


def _bits(scheme: Scheme) -> tuple[int, ...]:
    """Return what the weights of a scheme may have; of integers, some have more than the scheme says."""
    return (scheme.palette_bits,) if scheme.palette_bits else (4, 8)


def check_stored(
    stored: Structure, followed: Sequence[Followed], held: Mapping[str, Held], scheme: Scheme, base: Stored
) -> GateResult:
    """Judge whether a file holds as palettes or integers what was chosen as such, in as many bits, and nothing else.

    Args:
        stored: what its backend read back from the file.
        followed: each function of the file beside the checkpoint.
        held: the checkpoint's, by the names of its tensors.
        scheme: the file's.
        base: what everything else is stored as.
    """
    kinds: dict[str, Stored] = {name: _kind(one) for name, one in held.items()}
    wrong = list(dict.fromkeys(_misstored(stored, followed, kinds, base)))
    read = {name for one in followed for places in one.places.values() for name in places}
    wrong += [f"{name} is read by no operation" for name in sorted(held.keys() - read)]
    counts = Counter(kinds.values())
    detail = " and ".join(f"{count} weights are {kind}" for kind, count in sorted(counts.items()))
    return GateResult(
        name="stored",
        bound=0.0,
        found=float(len(wrong)),
        passed=not wrong,
        detail=f"{scheme.name}: {listed(wrong)}" if wrong else detail,
    )


def _kind(held: Held) -> Stored:
    if isinstance(held, Palette):
        return "palette6" if held.bits == 6 else "palette4"
    return "int8" if held.bits == 8 else "int4"


def _misstored(
    stored: Structure, followed: Iterable[Followed], kinds: Mapping[str, Stored], base: Stored
) -> Iterator[str]:
    for one in followed:
        for places in one.places.values():
            for name, place in places.items():
                kind, wanted = stored.constants[place.constant].stored, kinds.get(name, base)
                if kind != wanted:
                    yield f"{name} is stored as {kind}, not {wanted}"


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


def _compare(name: str, found: Array, wanted: Array, held: Held, *, table: bool) -> tuple[str | None, float]:
    """Say what of a weight rounding does not explain, if anything, and what share of the bounds is reached."""
    if isinstance(held, Integers) and (strange := _strange_scales(held, wanted, table=table)):
        return f"of {name}, {strange} of {held.scales.size} scales are none that rounding the student's tries", 1.0
    if table:
        # Nothing makes up for what a table loses, so each number is rounded to the nearest.
        off = int(np.count_nonzero(np.abs(found - wanted) > _least_distance(wanted, held)))
        if off:
            return f"of {name}, {off} of {found.size} numbers are not the nearest that it could have", 1.0
    share = {
        "the whole": float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) or 1.0)) / _TENSOR[held.bits],
        "a row": 0.0 if table else _largest_row_distance(found, wanted) / _ROW[held.bits],
        "a number": float(np.abs(found - wanted).max()) / (float(np.ptp(wanted)) or 1.0) / _ELEMENT,
    }
    what = max(share, key=share.__getitem__)
    passed = share[what] <= 1
    return None if passed else f"{what} of {name} is {share[what]:.3g} times as far off as rounding explains", share[
        what
    ]


def _least_distance(wanted: Array, held: Held) -> Array:
    """Return the distance of each number to the nearest that it could be."""
    if isinstance(held, Integers):
        scales = held.scales.repeat(held.block, axis=1)
        codes = np.clip(np.rint(wanted / scales), LOWEST[held.bits], HIGHEST[held.bits])
        # A number in the middle of two may go to either.
        least: Array = np.abs(codes * scales - wanted) + np.float32(1e-5) * scales
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


def _largest_row_distance(found: Array, wanted: Array) -> float:
    """Return the largest distance of a row relative to the student's row, see `_SMALL_ROW`."""
    distances, sizes = (np.linalg.norm(one.astype(np.float64), axis=1) for one in (found - wanted, wanted))
    least = _SMALL_ROW * np.sqrt(np.mean(sizes**2))
    return float((distances / np.maximum(sizes, least + 1e-30)).max())
