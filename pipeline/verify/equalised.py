"""Judge a checkpoint that `pipeline.quantize` rewrote: multiplied out with its gains it has to be the student.

One that was trained then is no longer the student number by number; its tables are, and the rest is near.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.backends.structure import Steps
from pipeline.checkpoint import integers, ranges
from pipeline.checkpoint.source import CODES
from pipeline.quantize import stage as quantize
from pipeline.schemes import SCHEMES
from pipeline.verify.record import GateResult
from pipeline.verify.weights import Array, Expected

_ERROR = 1e-6
"""Relative: a weight is divided once for each of two gains and rounded to single precision."""
_SMALL = 0.1
TRAINED = 0.25
"""How far training may take a tensor, relative to it. MiniLM: vectors .01, matrices .09 with their rounding."""


def read(quantised: Path, *, half: bool = False) -> Expected:
    """Read a checkpoint that `pipeline.quantize` made, with the steps of its static linears or its integers' names.

    Args:
        quantised: the checkpoint.
        half: whether the file that is compared with it is in half precision.
    """
    found = Expected.read(quantised, quantize.structure(quantised))
    linears = {name for name, _ in found.calls}
    steps: dict[str, Steps] = {}
    # A checkpoint of palettes has none.
    known = ranges.read(quantised) if (quantised / ranges.FILE).is_file() else None
    for row in known.linears if known else ():
        found_steps = row.steps(half=half)
        if found_steps:
            inner = f"{row.path}.{ranges.INNER}"
            read, *made = found_steps
            steps[inner if inner in linears else row.path] = (*read, *made[0]) if made else read
    rounded = frozenset(integers.read(quantised)) if (quantised / CODES).is_file() else None
    one_scale = known is not None and SCHEMES[known.scheme].one_scale
    return replace(found, static=steps, one_scale=one_scale, rounded=rounded)


def worst_linear(quantised: Path) -> str | None:
    """Say which linear rounding changes most on the calibration set, or None where there is none."""
    errors = quantize.read(quantised)[1].errors()
    if not errors:
        return None
    path = max(errors, key=errors.__getitem__)
    return f"on the calibration set, rounding changes most what {path} gives: by {errors[path] ** 0.5:.0%} of its size"


def check(student: Expected, rewritten: Expected, *, trained: bool) -> GateResult:
    """Compare each tensor of the student with the rewritten one between its gains.

    Args:
        student: the truth.
        rewritten: the same with `input_gain` and `output_gain` around some linears.
        trained: whether it was trained.
    """
    wrong, worst = [], 0.0
    tables = {f"{module}.weight" for module, sources in student.calls if not sources}
    bound = TRAINED if trained else _ERROR
    seen = set()
    for name, wanted in student.tensors.items():
        path, _, kind = name.rpartition(".")
        inner = f"{path}.{ranges.INNER}.{kind}"
        place = inner if inner in rewritten.tensors else name
        found = rewritten.tensors.get(place)
        seen.add(place)
        if found is None or found.shape != wanted.shape:
            wrong.append(f"{name} is not there")
            continue
        learns = trained and name not in tables
        error = (distance if learns else _relative)(_multiplied_out(found, path, kind, rewritten), wanted)
        worst = max(worst, error)
        # Written so that NaN fails.
        if not error <= (TRAINED if learns else _ERROR):
            wrong.append(f"{name} multiplied out differs by {error:.1e}")
    ends = tuple(f".{gain}.weight" for gain in (ranges.INPUT_GAIN, ranges.OUTPUT_GAIN))
    gains = {name for name in rewritten.tensors if name.endswith(ends)}
    wrong += [f"{name} is no tensor of the student" for name in rewritten.tensors.keys() - seen - gains]
    detail = f"{len(gains)} gains, with which the weights are the student's"
    if trained:
        detail = f"{len(gains)} gains; training took the weights {worst:.2g} of their size from the student's at most"
    if wrong:
        detail = f"{len(wrong)} tensors of the quantised checkpoint are not the student's: {'; '.join(wrong[:3])}"
    return GateResult(name="equalised", bound=bound, found=worst, passed=not wrong, detail=detail)


def _multiplied_out(found: Array, path: str, kind: str, rewritten: Expected) -> Array:
    """Return a linear's weight or bias with its gains."""
    result = found.astype(np.float64)
    if kind == "weight" and (before := _input_gain(path, rewritten)) is not None:
        result = result * before
    after = rewritten.tensors.get(f"{path}.{ranges.OUTPUT_GAIN}.weight")
    if after is not None:
        result = result * (after[:, None] if kind == "weight" else after)
    return result.astype(np.float32)


def _input_gain(path: str, rewritten: Expected) -> Array | None:
    """Return the gain of what a linear reads, which goes by the first linear that shares it: the call before it."""
    for name, sources in rewritten.calls:
        if name == f"{path}.{ranges.INNER}" and sources:
            maker = rewritten.calls[sources[0]][0]
            return rewritten.tensors.get(f"{maker}.weight") if maker.endswith(f".{ranges.INPUT_GAIN}") else None
    return None


def distance(found: Array, wanted: Array) -> float:
    """Return how far a tensor is from another, relative to that; a small one counts as one of numbers of a tenth."""
    size = max(float(np.linalg.norm(wanted)), _SMALL * float(np.sqrt(wanted.size)))
    return float(np.linalg.norm(found - wanted)) / size


def _relative(found: Array, wanted: Array) -> float:
    largest = float(np.abs(wanted).max()) or 1.0
    return float(np.abs(found - wanted).max()) / largest
