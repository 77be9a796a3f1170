"""Judge a file without running it: does it hold all of the checkpoint's weights, nothing else, each in its place?"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from pipeline import formats
from pipeline.formats.structure import Activation, Constant, Structure
from pipeline.schemes import SCHEMES
from pipeline.verify.record import GateResult, listed
from pipeline.verify.weights import Expected, Form, Match, Precision, best_match
from pipeline.verify.wiring import MatchedFunction, follow

_SMALL = 16
"""Constants of fewer elements need no explanation: they are parts of masks and norms."""
_TABLE = 128
"""Matrices of at least so many elements occur once; converters repeat smaller ones, such as token types."""
_DAMAGED = 0.5
"""A constant with a larger share of wrong elements is not a damaged copy of a tensor but another constant."""
_HALF_EPSILON = 2.0**-24
"""The smallest epsilon in half precision, to which Core ML's converter raises smaller ones."""
_EPSILON_ERROR = 1e-6
"""Relative; some formats store it in single precision."""
_HALF_ERROR, _SINGLE_ERROR = 2.0**-10, 1e-6
"""Relative error of a tensor that is stored as one number."""

_SPELLED: dict[str, tuple[str, ...]] = {
    # Written out as formulas where a converter knows no such operation: x · sigmoid(x) …
    "silu": ("silu", "sigmoid"),
    "gelu_tanh": ("gelu_tanh", "tanh"),
}
"""Operators that any format may use for an activation of the checkpoint; activations not listed have their own only."""


def declared_sqnr_db(backend: str, activations: Sequence[str]) -> float:
    """Return the lowest SQNR that a format declares for its forms of some activations, or infinity for none."""
    known = formats.get(backend).COMPUTED_AS
    return min((known[kind].least_db for kind in activations if kind in known), default=float("inf"))


@dataclass(frozen=True)
class StructureGates:
    """The static gates on a file's structure, and the functions as matched with the checkpoint."""

    gates: list[GateResult]
    """`weights`, `constants`, `wiring`, `arithmetic`, `ranges` of static linears, `epsilon`, `activation`, and
    `operators`."""
    followed: tuple[MatchedFunction, ...]
    """Each function matched with the checkpoint."""


def check(stored: Structure, expected: Expected, scheme: str, backend: str, *, functions: int) -> StructureGates:
    """Judge a file's structure: its weights, constants, wiring, arithmetic, ranges, norms, activations and operators.

    Args:
        stored: the structure that the format read from the file.
        expected: the checkpoint; the reference.
        scheme: the scheme of the file, whose rounding is allowed.
        backend: the format of the file.
        functions: number of functions in the file.
    """
    precision = precision_of(scheme, backend)
    half = precision.vectors == "float16"
    matched = _sort_out(stored, expected, precision)
    followed = tuple(follow(uses, matched.forms, expected) for uses in stored.uses)
    gates = [
        _weights_gate(matched, stored.numbers, expected, precision),
        _constants_gate(matched),
        _wiring_gate(stored, followed, functions),
        _arithmetic_gate(stored, expected, scheme, functions),
        *([_ranges_gate(stored, followed, expected, functions)] if expected.static or stored.static_scales else []),
        _epsilon_gate(stored.epsilons, expected, functions, half=half),
        _activation_gate(stored, expected, backend, functions),
        _operators_gate(stored),
    ]
    return StructureGates(gates, followed)


def precision_of(scheme: str, backend: str) -> Precision:
    """Return the storage and rounding that a scheme promises on a backend."""
    row = SCHEMES[scheme]
    return Precision(row.weights, row.support[backend].base, row.granularity, formats.get(backend).ROUNDING)


@dataclass
class _MatchedConstants:
    """Every constant of a file, matched with the checkpoint's tensors."""

    present: Counter[str] = field(default_factory=Counter)
    """Number of constants that hold a tensor of the checkpoint, by its name."""
    folded: set[str] = field(default_factory=set)
    """Tensors that are folded into others."""
    copies: Counter[tuple[frozenset[str], tuple[int, ...]]] = field(default_factory=Counter)
    """Number of matrices of a shape that hold the same forms of tensors: equal ones cannot be told apart."""
    forms: list[list[Form]] = field(default_factory=list)
    """For each constant of the file, the forms that it matches, whole or damaged; empty for an unknown constant."""
    damaged: list[Match] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    error: float = 0.0
    """Largest error among the undamaged matches, as a multiple of the allowed one."""


def _sort_out(stored: Structure, expected: Expected, precision: Precision) -> _MatchedConstants:
    result = _MatchedConstants()
    for constant in stored.constants:
        matches = best_match(constant, expected.forms, precision)
        whole = [match for match in matches if match.off == 0]
        for match in whole:
            result.present[match.form.tensor] += 1
            result.folded.update(match.form.parts)
            result.error = max(result.error, match.error)
        damaged = not whole and bool(matches) and matches[0].off <= _DAMAGED * matches[0].size
        # A damaged tensor still shows where it is read.
        result.forms.append([match.form for match in (matches[:1] if damaged else whole)])
        if whole:
            result.unknown.extend(_one_too_many(constant, whole, result.copies))
            continue
        if damaged:
            result.damaged.append(matches[0])
        elif constant.values.size >= _SMALL and not _says_nothing(constant.values):
            result.unknown.append(_unknown(constant.name, constant.values.shape, matches))
    return result


def _one_too_many(
    constant: Constant, whole: Sequence[Match], copies: Counter[tuple[frozenset[str], tuple[int, ...]]]
) -> list[str]:
    """Count a matrix, and name it if the file has more copies than the checkpoint: a shared layer was duplicated.

    Position tables are cut to each length, so a copy of another shape counts separately.
    """
    shape = constant.values.squeeze().shape
    if len(shape) != 2 or constant.values.size < _TABLE or _says_nothing(constant.values.ravel()):
        return []
    # A linear of a shared layer may occur plain, and again with the norm before it folded in.
    forms = frozenset(match.form.label for match in whole)
    copies[forms, shape] += 1
    if copies[forms, shape] <= len(forms):
        return []
    return [f"{constant.name} {list(shape)}, once more what {whole[0].form.label} is"]


def _says_nothing(values: NDArray[np.float32]) -> bool:
    """Return whether a constant is a bias of zeros: Core ML's converter adds one to a linear without bias."""
    return values.ndim == 1 and not values.any()


def _unknown(name: str, shape: Sequence[int], matches: Sequence[Match]) -> str:
    nearest = f", nearest to {matches[0].form.label}" if matches else ", of a shape that no tensor has"
    return f"{name} {list(shape)}{nearest}"


def _wiring_gate(stored: Structure, followed: Sequence[MatchedFunction], functions: int) -> GateResult:
    """Judge whether each operation of every function reads the same tensors as its counterpart in the checkpoint."""
    wrong = [problem for one in followed for problem in one.problems]
    if len(stored.uses) != functions:
        wrong.insert(0, f"{len(stored.uses)} of its {functions} functions read constants")
    read = sum(map(len, stored.uses))
    detail = f"{read} operations of {functions} functions read what the checkpoint has in their place"
    if wrong:
        detail = f"{len(wrong)} tensors are not read where the checkpoint has them: {listed(wrong)}"
    return GateResult(name="wiring", bound=0.0, found=float(len(wrong)), passed=not wrong, detail=detail)


def _arithmetic_gate(stored: Structure, expected: Expected, scheme: str, functions: int) -> GateResult:
    """Judge whether the linears use the scheme's arithmetic: a file of another scheme may be as close, or closer.

    Static int8 applies to linears with ranges, and dynamic int8 beside int4 to those with integers; heads are floats.
    """
    arithmetic = SCHEMES[scheme].activations
    others = [kind for kind in stored.arithmetic if kind != arithmetic]
    detail = f"{len(stored.arithmetic)} linears multiply {arithmetic}"
    chosen = arithmetic == "dynamic_int8" and expected.rounded is not None
    if arithmetic == "static_int8" or chosen:
        # Tables have integers too, and no sources.
        linears = [name for name, sources in expected.calls if sources and f"{name}.weight" in (expected.rounded or ())]
        due = functions * (len(linears) if chosen else sum(name in expected.static for name, _ in expected.calls))
        found = len(stored.arithmetic) - len(others)
        wrong = abs(due - found) + sum(kind != "float" for kind in others)
        detail = (
            f"{found} of {len(stored.arithmetic)} linears multiply {arithmetic}, the others, which are heads, floats"
        )
        if wrong:
            what = "integers were chosen" if chosen else "ranges were found"
            detail = f"{found} linears multiply {arithmetic}, and {what} for {due}; others: {sorted(set(others))}"
        return GateResult(name="arithmetic", bound=0.0, found=float(wrong), passed=not wrong, detail=detail)
    if others:
        detail = f"{len(others)} of {len(stored.arithmetic)} linears multiply {others[0]}; {scheme} means {arithmetic}"
    return GateResult(name="arithmetic", bound=0.0, found=float(len(others)), passed=not others, detail=detail)


def _ranges_gate(
    stored: Structure, followed: Sequence[MatchedFunction], expected: Expected, functions: int
) -> GateResult:
    """Judge whether static linears round their inputs and outputs over their own calibrated ranges."""
    calibrated = Counter(expected.static[name] for name, _ in expected.calls * functions if name in expected.static)
    found = Counter(stored.static_scales)
    wrong = sum((found - calibrated).values()) + sum((calibrated - found).values())
    detail = (
        f"{len(stored.static_scales)} static linears of {functions} functions have the ranges that calibration found"
    )
    if wrong:
        other = next(iter((found - calibrated) or (calibrated - found)))
        has = "a linear has" if other in found - calibrated else "no linear has"
        ends = zip(other[::2], other[1::2], ("reads", "gives"), strict=False)
        said = ", ".join(f"scale {one:.6g} and zero point {zero} for what it {does}" for one, zero, does in ends)
        detail = f"{has} {said}; {wrong} differ from what calibration found"
    elif exchanged := _other_ranges(stored, followed, expected):
        wrong = len(exchanged)
        detail = f"{listed(exchanged)}: read and give what calibration found for others"
    return GateResult(name="ranges", bound=0.0, found=float(wrong), passed=not wrong, detail=detail)


def _other_ranges(stored: Structure, followed: Sequence[MatchedFunction], expected: Expected) -> list[str]:
    """Return the static linears whose weight the file reads nowhere together with the linear's own ranges."""
    wrong = []
    for one, uses in zip(followed, stored.uses, strict=False):
        found = {(number, use.static_scales) for use in uses for number, role in use.constants if role == "weight"}
        for call, (name, _) in enumerate(expected.calls):
            place = one.places.get(call, {}).get(f"{name}.weight") if name in expected.static else None
            if place and (place.constant, expected.static[name]) not in found:
                wrong.append(name)
    return list(dict.fromkeys(wrong))


def _weights_gate(
    matched: _MatchedConstants, numbers: Sequence[float], expected: Expected, precision: Precision
) -> GateResult:
    """Judge whether each tensor is in the file, and each copy of it right in every element."""
    damaged = [match.describe() for match in matched.damaged]
    named = {match.form.tensor for match in matched.damaged} | set(matched.present) | matched.folded
    missing = [
        name
        for name in expected.tensors
        if name not in named and not _needless(expected, name) and not _one_number(expected, name, numbers, precision)
    ]
    wrong = damaged + [f"{name} {list(expected.tensors[name].shape)} is not in the file" for name in missing]
    worst = max((match.error for match in matched.damaged), default=matched.error)
    detail = (
        f"{len(expected.tensors)} tensors of the checkpoint are in the file, in {precision.tables} and better; "
        f"the largest error is {matched.error:.3f} of the rounding allowed"
    )
    # A wrong element that should be exact is infinitely far off, and JSON has no infinity.
    reached = worst if np.isfinite(worst) and not missing else None
    return GateResult(
        name="weights", bound=1.0, found=reached, passed=not wrong, detail=listed(wrong) if wrong else detail
    )


def _needless(expected: Expected, name: str) -> bool:
    """Return whether a tensor may be absent: a bias of zeros, or a norm's weight of ones."""
    values = expected.tensors[name]
    return values.ndim == 1 and (not values.any() or bool((values == 1).all()))


def _one_number(expected: Expected, name: str, numbers: Sequence[float], precision: Precision) -> bool:
    """Return whether a file has a tensor as one number: a bias of one element, or a scale with equal elements.

    LiteRT's converter writes a vector of equal elements as a single one.
    """
    slack = _HALF_ERROR if precision.vectors == "float16" else _SINGLE_ERROR
    for form in expected.forms:
        if form.tensor == name and (form.values == form.values.flat[0]).all():
            one = float(form.values.flat[0])
            error = slack * max(abs(one), _HALF_EPSILON) + (0.0 if form.error is None else float(form.error.max()))
            if any(abs(number - one) <= error for number in numbers):
                return True
    return False


def _constants_gate(matched: _MatchedConstants) -> GateResult:
    """Judge whether each constant is explained by the checkpoint; a stale copy of a shared layer is not."""
    count = len(matched.unknown)
    detail = f"{count} constants are not the checkpoint's: {listed(matched.unknown)}" if count else "none unknown"
    return GateResult(name="constants", bound=0.0, found=float(count), passed=not count, detail=detail)


def _epsilon_gate(epsilons: Sequence[float], expected: Expected, functions: int, *, half: bool) -> GateResult:
    """Judge whether every function has the checkpoint's layer norms with the checkpoint's epsilons."""
    if len(epsilons) != functions * len(expected.epsilons):
        count = f"each of its {functions} functions should have {len(expected.epsilons)}"
        detail = f"the file has {len(epsilons)} layer norms, and {count}"
        return GateResult(name="epsilon", bound=None, found=float(len(epsilons)), passed=False, detail=detail)
    expected_epsilons = sorted(expected.epsilons * functions)
    wrong = [
        pair for pair in zip(expected_epsilons, sorted(epsilons), strict=True) if not _same_epsilon(*pair, half=half)
    ]
    worst = max((abs(value / due - 1) for due, value in wrong), default=0.0)
    detail = f"{len(epsilons)} layer norms of {functions} functions, epsilon {max(epsilons, default=0.0):.6g}"
    if wrong:
        due, value = wrong[0]
        detail = f"{len(wrong)} of {len(epsilons)} layer norms have another epsilon: {value:.6g} instead of {due:.6g}"
    return GateResult(name="epsilon", bound=_EPSILON_ERROR, found=worst, passed=not wrong, detail=detail)


def _same_epsilon(due: float, value: float, *, half: bool) -> bool:
    accepted = [due, float(np.float16(max(due, _HALF_EPSILON)))] if half else [due]
    return any(abs(value - one) <= _EPSILON_ERROR * one for one in accepted)


def _activation_gate(stored: Structure, expected: Expected, backend: str, functions: int) -> GateResult:
    """Judge whether the file's activation operators are those of the checkpoint: gelu by tanh does not pass for gelu.

    An activation may be a formula of other operators instead, and those without an operator in a format always are.
    A formula is compared by its outputs, in the control, not by its operators.
    """
    counts: Counter[str] = Counter(expected.activations)
    have: Counter[str] = Counter(stored.activations)
    named = Counter({kind: count for kind, count in counts.items() if kind in get_args(Activation)})
    formulas = counts.keys() - named.keys()
    totals = [(one, _total(one, named, functions)) for one in _spellings(named, backend)]
    fitting = [(one, total) for one, total in totals if formulas or not have - total]
    has = ", ".join(f"{count} {kind}" for kind, count in have.items()) or "none"
    if fitting:
        chosen, total = max(fitting, key=lambda one: (have & one[1]).total())
        others = [f"{own} as {kind}" for own, kind in chosen.items() if own != kind and kind in have]
        others += [f"{kind} as a formula" for kind in (*formulas, *(total - have))]
        detail = has + (f"; computed by design: {', '.join(others)}" if others else "")
    else:
        due = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
        detail = f"the file has {has}; each of its {functions} functions should have {due}"
    return GateResult(name="activation", bound=None, found=None, passed=bool(fitting), detail=detail)


def _spellings(kinds: Counter[str], backend: str) -> Iterator[dict[str, str]]:
    """Yield every combination of operators by which a file may express the checkpoint's activations."""
    known = formats.get(backend).COMPUTED_AS
    ways = [known[kind].forms if kind in known else _SPELLED.get(kind, (kind,)) for kind in kinds]
    for way in product(*ways):
        yield dict(zip(kinds, way, strict=True))


def _total(spelling: dict[str, str], counts: Counter[str], functions: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for kind, count in counts.items():
        total[spelling[kind]] += count * functions
    return total


def _operators_gate(stored: Structure) -> GateResult:
    """Judge whether a file has a forbidden operator; any other operator is judged by its outputs."""
    counts = Counter(stored.denied)
    wrong = [f"{count} {kind}, which is {why}" for (kind, why), count in counts.items()]
    detail = f"operators: {listed(wrong)}" if wrong else "no control flow, no randomness, no custom operator"
    return GateResult(name="operators", bound=0.0, found=float(counts.total()), passed=not wrong, detail=detail)
