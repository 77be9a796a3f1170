"""Judge whether a quantised checkpoint is the one that the recipe asks for, of this student, with nothing left out.

A file is compared with such a checkpoint, and held to what it says of itself. So what a checkpoint leaves out, a linear
without codes or ranges, would be floats in both, and another epsilon in its config would be right in both.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from pipeline.checkpoint import integers, palettes, ranges
from pipeline.checkpoint.integers import Integers
from pipeline.checkpoint.palettes import Palette
from pipeline.errors import StudentError
from pipeline.quantize import stage as quantize
from pipeline.quantize.stage import Wanted
from pipeline.schemes import Scheme
from pipeline.verify import equalised
from pipeline.verify.chosen import Held
from pipeline.verify.record import GateResult, listed
from pipeline.verify.weights import Expected

Calls = tuple[tuple[str, tuple[int, ...]], ...]


def read(folder: Path, scheme: Scheme, *, half: bool) -> tuple[Expected, Mapping[str, Held] | None]:
    """Read a quantised checkpoint.

    Args:
        folder: the checkpoint.
        scheme: for which it was quantised.
        half: whether the file that is compared with it is in half precision.

    Returns:
        Its tensors, and its palettes or integers by the names of these; None for a scheme that has neither.

    Raises:
        StudentError: it is damaged, or half of it is another's.
    """
    try:
        rewritten = equalised.read(folder, half=half)
        if not scheme.chosen:
            return rewritten, None
        return rewritten, palettes.read(folder) if scheme.palette_bits else integers.read(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise StudentError(
            f"the quantised checkpoint {folder} cannot be read: {type(error).__name__}: {error}. Delete it, and "
            "`pocketbert convert` makes it again."
        ) from error


def check(
    folder: Path,
    of_student: Path,
    student: Expected,
    rewritten: Expected,
    held: Mapping[str, Held],
    scheme: Scheme,
    wanted: Wanted,
) -> GateResult:
    """Judge a quantised checkpoint apart from its numbers, which `chosen` and `equalised` compare.

    Args:
        folder: the checkpoint.
        of_student: the student's folder.
        student: the truth.
        rewritten: the checkpoint.
        held: its palettes or integers.
        scheme: the file's.
        wanted: what the recipe asks of it.
    """
    _, record = quantize.read(folder)
    wrong = [*_of_another_model(folder, of_student, student, rewritten)]
    if record.scheme != scheme.name:
        wrong.append(f"it was made for {record.scheme}")
    if (record.training is not None) != wanted.trained:
        wrong.append("it was trained" if record.training else "it was not trained")
    elif wanted.trained and _untouched(student, rewritten):
        wrong.append("it says that it was trained, and its norms and biases are the student's")
    if scheme.chosen:
        wrong += _few_bits(student, held, scheme, wanted)
    if isinstance(record, integers.Record):
        said = {one.name: (one.bits, one.block) for one in record.weights}
        has = {name: (one.bits, one.block) for name, one in held.items() if isinstance(one, Integers)}
        wrong += [f"{integers.RECORD} says something else of {name}" for name in _differing(said, has)]
    if scheme.activations == "static_int8" and isinstance(record, ranges.Ranges):
        having = {one.path for one in record.linears if one.input and one.output}
        wrong += [f"{path} has no ranges" for path in sorted(_encoder_linears(student) - having)]
        wrong += [
            f"{path} has ranges and is no linear of the encoder" for path in sorted(having - _encoder_linears(student))
        ]
    detail = f"it is what the recipe asks for: {'trained' if wanted.trained else 'calibrated'}, for {scheme.name}"
    if wrong:
        detail = f"the quantised checkpoint is not what the recipe asks for: {listed(wrong)}"
    return GateResult(name="calibrated", bound=0.0, found=float(len(wrong)), passed=not wrong, detail=detail)


def _untouched(student: Expected, rewritten: Expected) -> bool:
    """Return whether each vector that has no gain is the student's; training changes them all."""
    pairs = [(one, rewritten.tensors.get(name)) for name, one in student.tensors.items() if one.ndim == 1]
    return all(other is None or np.array_equal(one, other) for one, other in pairs)


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def _of_another_model(folder: Path, of_student: Path, student: Expected, rewritten: Expected) -> Iterator[str]:
    """Say what of its model, apart from tensors and gains, is not the student's."""
    if (folder / "config.json").read_bytes() != (of_student / "config.json").read_bytes():
        yield "its config.json is not the student's"
    for name in ("epsilons", "activations", "positions"):
        if getattr(student, name) != getattr(rewritten, name):
            yield f"it has other {name} than the student"
    if _without_gains(rewritten.calls, {name for name, _ in student.calls}) != student.calls:
        yield "its modules run in another order than the student's"


def _without_gains(calls: Calls, known: set[str]) -> Calls:
    """Return calls without those of gains; a linear between gains goes by the name that it has in the student."""
    found: list[tuple[str, tuple[int, ...]]] = []
    stands_for: list[tuple[int, ...]] = []
    for name, needs in calls:
        # What is not made yet, as in a structure that was edited, is no source.
        sources = tuple(sorted({one for need in needs if need < len(stands_for) for one in stands_for[need]}))
        path, _, part = name.rpartition(".")
        if part in (ranges.INPUT_GAIN, ranges.OUTPUT_GAIN) and path in known:
            stands_for.append(sources)
            continue
        stands_for.append((len(found),))
        found.append((path if part == ranges.INNER and path in known else name, sources))
    return tuple(found)


def _few_bits(student: Expected, held: Mapping[str, Held], scheme: Scheme, wanted: Wanted) -> Iterator[str]:
    """Say which weights have no integers or palettes, or others than the scheme and the recipe's policy give them."""
    for name, sources in dict(student.calls).items():
        weight = student.tensors.get(f"{name}.weight")
        # The second of two names that one tensor has is no tensor's; tables of positions are cut to each length.
        if (
            weight is None
            or weight.ndim != 2
            or weight.size < ranges.LEAST_CHOSEN
            or f"{name}.weight" in student.positions
        ):
            continue
        found, columns = held.get(f"{name}.weight"), weight.shape[1]
        if found is None:
            yield f"{name}.weight was left in floats"
        elif isinstance(found, Palette):
            continue
        else:
            block = scheme.block or columns
            if sources:
                few = name not in wanted.eight_bits and columns % block == 0
                due = (4, block) if few else (8, columns)
            else:
                due = (wanted.table_bits, block if wanted.table_bits == 4 and columns % block == 0 else columns)
            if (found.bits, found.block) != due:
                has = f"{found.bits} bits in blocks of {found.block}"
                yield f"{name}.weight has {has}, and {due[0]} in blocks of {due[1]} are due"


def _encoder_linears(student: Expected) -> set[str]:
    """Return the linears that read int8 where ranges are fixed: all but those of a task's head."""
    linears = [
        name
        for name, sources in student.calls
        if sources and f"{name}.weight" in student.tensors and student.tensors[f"{name}.weight"].ndim == 2
    ]
    # A model with a head has its encoder, and so its tables, below one name, such as `bert.embeddings`.
    tables = [name for name, sources in student.calls if not sources]
    root = tables[0].partition(".")[0]
    return {name for name in linears if root == "embeddings" or name.startswith(f"{root}.")}
