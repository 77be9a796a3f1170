"""Judge whether a quantised checkpoint is the student's, quantised as the recipe asks.

A file is compared with such a checkpoint to the last bit. An error in the checkpoint, such as another student's
weights, a scale that was applied twice or a linear that was left in floats, is therefore in both, and only the
comparison with the student finds it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from pipeline.checkpoint import integers, palettes, ranges
from pipeline.checkpoint.integers import Integers
from pipeline.checkpoint.palettes import Palette
from pipeline.checkpoint.weights import CODES
from pipeline.errors import StudentError
from pipeline.formats.structure import StaticScales, Structure
from pipeline.quantize import checkpoint as quantised
from pipeline.quantize.stage import QuantiseRequest
from pipeline.schemes import SCHEMES, Scheme, Stored
from pipeline.verify.quantised_weights import QuantisedWeight, differing
from pipeline.verify.record import GateResult, listed
from pipeline.verify.weights import Expected
from pipeline.verify.wiring import MatchedFunction

Calls = tuple[tuple[str, tuple[int, ...]], ...]


# --- reading ----------------------------------------------------------------------------------------------------------


def read(folder: Path, scheme: Scheme, *, half: bool) -> tuple[Expected, Mapping[str, QuantisedWeight] | None]:
    """Read a quantised checkpoint.

    Args:
        folder: the checkpoint.
        scheme: the scheme for which it was quantised.
        half: whether the file to compare is in half precision.

    Returns:
        Its tensors, and its palettes or integers by tensor name; None for a scheme that has neither.

    Raises:
        StudentError: it is damaged, or half of it is another's.
    """
    try:
        rewritten = read_weights(folder, half=half)
        if not scheme.chosen:
            return rewritten, None
        return rewritten, palettes.read(folder) if scheme.palette_bits else integers.read(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise StudentError(
            f"the quantised checkpoint {folder} cannot be read: {type(error).__name__}: {error}. Delete it, and "
            "`pocketbert convert` makes it again."
        ) from error


def read_weights(folder: Path, *, half: bool = False) -> Expected:
    """Read a quantised checkpoint, with its static linears' scales and zero points or its integer weights' names."""
    found = Expected.read(folder, quantised.structure(folder))
    linears = {name for name, _ in found.calls}
    static_scales: dict[str, StaticScales] = {}
    # A checkpoint of palettes has none.
    known = ranges.read(folder) if (folder / ranges.FILE).is_file() else None
    for row in known.linears if known else ():
        of_linear = row.static_scales(half=half)
        if of_linear:
            inner = f"{row.path}.{ranges.INNER}"
            of_input, *of_output = of_linear
            static_scales[inner if inner in linears else row.path] = (
                (*of_input, *of_output[0]) if of_output else of_input
            )
    rounded = frozenset(integers.read(folder)) if (folder / CODES).is_file() else None
    one_scale = known is not None and SCHEMES[known.scheme].one_scale
    return replace(found, static=static_scales, one_scale=one_scale, rounded=rounded)


def worst_linear(folder: Path) -> str | None:
    """Return a sentence on the linear with the largest rounding error on the calibration set, or None."""
    errors = quantised.read_record(folder)[1].errors()
    if not errors:
        return None
    path = max(errors, key=errors.__getitem__)
    error = errors[path] ** 0.5
    return f"on the calibration set, rounding changes the output of {path} most: by {error:.0%} of its size"


# --- the gate ---------------------------------------------------------------------------------------------------------


def check(
    folder: Path,
    of_student: Path,
    student: Expected,
    rewritten: Expected,
    weights: Mapping[str, QuantisedWeight] | None,
    scheme: Scheme,
    request: QuantiseRequest,
) -> GateResult:
    """Judge a quantised checkpoint.

    Args:
        folder: the quantised checkpoint's folder.
        of_student: the student's folder.
        student: the student's tensors; the reference.
        rewritten: the quantised checkpoint's tensors.
        weights: its palettes or integers, see `read`.
        scheme: the scheme of the file.
        request: what the recipe asks of the checkpoint.
    """
    of_recipe = list(_not_asked_for(folder, of_student, student, rewritten, weights or {}, scheme, request))
    wrong = [*of_recipe, *differing(student, rewritten, weights, scheme, trained=request.trained)]
    how = "trained" if request.trained else "calibrated"
    detail = f"{len(student.tensors)} tensors are the student's, {how} for {scheme.name} as the recipe asks"
    if wrong:
        detail = f"the quantised checkpoint is not the student's, or not as the recipe asks: {listed(wrong)}"
    return GateResult(name="quantised_weights", bound=0.0, found=float(len(wrong)), passed=not wrong, detail=detail)


# --- what the recipe asks for -----------------------------------------------------------------------------------------


def _not_asked_for(
    folder: Path,
    of_student: Path,
    student: Expected,
    rewritten: Expected,
    weights: Mapping[str, QuantisedWeight],
    scheme: Scheme,
    request: QuantiseRequest,
) -> Iterator[str]:
    """Yield the differences from the student or from the recipe's request, apart from the weights' numbers.

    A linear that the checkpoint leaves out, for example without a range, would be floats in the file too.
    """
    _, record = quantised.read_record(folder)
    yield from _of_another_model(folder, of_student, student, rewritten)
    if record.scheme != scheme.name:
        yield f"it was made for {record.scheme}"
    if (record.training is not None) != request.trained:
        yield "it was trained" if record.training else "it was not trained"
    elif request.trained and _untouched(student, rewritten):
        yield "it says that it was trained, and its norms and biases are the student's"
    if scheme.chosen:
        yield from _few_bits(student, weights, scheme, request)
    if isinstance(record, integers.Record):
        said = {one.name: (one.bits, one.block) for one in record.weights}
        has = {name: (one.bits, one.block) for name, one in weights.items() if isinstance(one, Integers)}
        yield from (
            f"{integers.RECORD} says something else of {name}"
            for name in sorted(said.keys() | has.keys())
            if said.get(name) != has.get(name)
        )
    if scheme.activations == "static_int8" and isinstance(record, ranges.Ranges):
        having = {one.path for one in record.linears if one.input and one.output}
        linears = _encoder_linears(student)
        yield from (f"{path} has no ranges" for path in sorted(linears - having))
        yield from (f"{path} has ranges and is no linear of the encoder" for path in sorted(having - linears))


def _untouched(student: Expected, rewritten: Expected) -> bool:
    """Return whether each vector is the student's, those inside scaled linears aside; training changes them all."""
    pairs = [(one, rewritten.tensors.get(name)) for name, one in student.tensors.items() if one.ndim == 1]
    return all(other is None or np.array_equal(one, other) for one, other in pairs)


def _of_another_model(folder: Path, of_student: Path, student: Expected, rewritten: Expected) -> Iterator[str]:
    """Yield the differences of the model from the student's, apart from tensors and scales around linears."""
    if (folder / "config.json").read_bytes() != (of_student / "config.json").read_bytes():
        yield "its config.json is not the student's"
    for name in ("epsilons", "activations", "positions"):
        if getattr(student, name) != getattr(rewritten, name):
            yield f"it has other {name} than the student"
    if _without_gains(rewritten.calls, {name for name, _ in student.calls}) != student.calls:
        yield "its modules run in another order than the student's"


def _without_gains(calls: Calls, known: set[str]) -> Calls:
    """Return the calls without those of scales around linears; an inner linear takes its name in the student."""
    found: list[tuple[str, tuple[int, ...]]] = []
    stands_for: list[tuple[int, ...]] = []
    for name, needs in calls:
        # A call that comes later, as in a structure that was edited, is no source.
        sources = tuple(sorted({one for need in needs if need < len(stands_for) for one in stands_for[need]}))
        path, _, part = name.rpartition(".")
        if part in (ranges.INPUT_GAIN, ranges.OUTPUT_GAIN) and path in known:
            stands_for.append(sources)
            continue
        stands_for.append((len(found),))
        found.append((path if part == ranges.INNER and path in known else name, sources))
    return tuple(found)


def _few_bits(
    student: Expected, weights: Mapping[str, QuantisedWeight], scheme: Scheme, request: QuantiseRequest
) -> Iterator[str]:
    """Yield the weights without integers or palettes, or with other bits or blocks than scheme and policy ask for."""
    for name, sources in dict(student.calls).items():
        weight = student.tensors.get(f"{name}.weight")
        # The second of two names that one tensor has is no tensor's; tables of positions are cut to each length.
        if (
            weight is None
            or weight.ndim != 2
            or weight.size < ranges.SMALLEST_QUANTISED
            or f"{name}.weight" in student.positions
        ):
            continue
        found, columns = weights.get(f"{name}.weight"), weight.shape[1]
        if found is None:
            yield f"{name}.weight was left in floats"
        elif isinstance(found, Palette):
            continue
        else:
            block = scheme.block or columns
            if sources:
                few = name not in request.eight_bits and columns % block == 0
                due = (4, block) if few else (8, columns)
            else:
                due = (request.table_bits, block if request.table_bits == 4 and columns % block == 0 else columns)
            if (found.bits, found.block) != due:
                has = f"{found.bits} bits in blocks of {found.block}"
                yield f"{name}.weight has {has}, and {due[0]} in blocks of {due[1]} are due"


def _encoder_linears(student: Expected) -> set[str]:
    """Return the linears that read int8 in static schemes: all but those of the task's head."""
    linears = [
        name
        for name, sources in student.calls
        if sources and f"{name}.weight" in student.tensors and student.tensors[f"{name}.weight"].ndim == 2
    ]
    # A model with a head has its encoder, and so its tables, below one name, such as `bert.embeddings`.
    tables = [name for name, sources in student.calls if not sources]
    root = tables[0].partition(".")[0]
    return {name for name in linears if root == "embeddings" or name.startswith(f"{root}.")}


# --- the file ---------------------------------------------------------------------------------------------------------


def check_stored(
    stored: Structure,
    followed: Sequence[MatchedFunction],
    weights: Mapping[str, QuantisedWeight],
    scheme: Scheme,
    base: Stored,
) -> GateResult:
    """Judge whether a file stores exactly the quantised weights as palettes or integers, in the right number of bits.

    Args:
        stored: the file's structure.
        followed: each function of the file matched with the checkpoint.
        weights: palettes or integers of the checkpoint, by tensor name.
        scheme: the scheme of the file.
        base: the storage of every other tensor.
    """
    kinds: dict[str, Stored] = {name: _kind(one) for name, one in weights.items()}
    wrong = list(dict.fromkeys(_misstored(stored, followed, kinds, base)))
    read = {name for one in followed for places in one.places.values() for name in places}
    wrong += [f"{name} is read by no operation" for name in sorted(weights.keys() - read)]
    counts = Counter(kinds.values())
    detail = " and ".join(f"{count} weights are {kind}" for kind, count in sorted(counts.items()))
    return GateResult(
        name="stored",
        bound=0.0,
        found=float(len(wrong)),
        passed=not wrong,
        detail=f"{scheme.name}: {listed(wrong)}" if wrong else detail,
    )


def _kind(weight: QuantisedWeight) -> Stored:
    if isinstance(weight, Palette):
        return "palette6" if weight.bits == 6 else "palette4"
    return "int8" if weight.bits == 8 else "int4"


def _misstored(
    stored: Structure, followed: Iterable[MatchedFunction], kinds: Mapping[str, Stored], base: Stored
) -> Iterator[str]:
    for one in followed:
        for places in one.places.values():
            for name, place in places.items():
                kind, due = stored.constants[place.constant].stored, kinds.get(name, base)
                if kind != due:
                    yield f"{name} is stored as {kind}, not {due}"
