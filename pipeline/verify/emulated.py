"""Run a file on emulated ARM processors: is it the same model there, and how many instructions does a row take?

The kernels there are others than on this machine, so outputs differ, and are compared with the reference by the
target's own bound; equal bytes are not asked for. Nothing here is a latency.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipeline import tasks
from pipeline.artifact import Artifact
from pipeline.convert.model import Model
from pipeline.devices import arm64
from pipeline.devices.arm64 import Call, Emulator
from pipeline.formats.signature import Signature
from pipeline.metrics import measures
from pipeline.student import golden
from pipeline.student.reference import Reference
from pipeline.student.reference import read as read_reference
from pipeline.text.encoding import Row

RECORD = "emulated.json"
"""Record file in the target's folder."""
_ROWS = 40
_REPEATS = 5
_OPPOSITE = -1.0
_EXACT_DB = 200.0
_WORD = 1
_SHORT = 16
"""Tokens of the shortest row whose instructions are counted, for files that take any length."""

Tell = Callable[[str, float], None]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Processor(_Frozen):
    """The scores of one file on one emulated processor."""

    cpu: str
    has: str
    """The processor's instruction sets that kernels can use, in words."""
    score: float
    """Against fp32 PyTorch, as an app's self-test has it: the worst row's cosine, or all rows' SQNR together, in dB."""
    mean: float
    """Mean score of the rows."""
    score_here: float
    """`score` on this machine, of the same file and rows."""
    max_difference: float
    """Largest absolute difference of an output to the same output on this machine."""
    verdict: Literal["passed", "failed"]
    reason: str | None


class Counts(_Frozen):
    """Instructions of one inference of a full row, in an emulated machine with one core."""

    cpu: str
    page_size: int
    instructions: dict[int, int]
    """Median over several runs, by the row's length in tokens."""
    spread: float
    """Largest difference between two runs of a length, as a fraction of their median."""


class EmulatedRuns(_Frozen):
    """The record in `emulated.json`."""

    schema_version: Literal[1] = 1
    source: Literal["emulated-arm64"] = "emulated-arm64"
    """Never a latency; see `BenchmarkRecord.source`."""
    target: str
    digest: str
    runtime: str
    stubs: list[str]
    """Libraries that the runtime links against, replaced by empty ones: a call of one would have ended the process."""
    answered: list[str]
    """Functions of those libraries that loading calls, so that they return the address of zeros instead."""
    rows: int
    lengths: list[int]
    """Lengths at which rows were run."""
    measure: Literal["cosine", "sqnr_db"]
    bound: float
    """Smallest `score` allowed: the target's own bound."""
    processors: list[Processor]
    counts: list[Counts]


def judge(
    model: Artifact,
    reference_folder: Path,
    emulator: Emulator,
    cpus: Sequence[str],
    counted: Sequence[str],
    log: Path,
    tell: Tell,
) -> EmulatedRuns:
    """Run a file on emulated processors and compare it with the reference; count instructions where asked.

    Args:
        model: a target's artifact.
        reference_folder: the student's outputs in fp32 PyTorch, see `pipeline.student.reference`.
        emulator: tools, and the packages of the target's backend.
        cpus: processors on which outputs are compared.
        counted: processors on which instructions are counted.
        log: file for the output of the runtimes.
        tell: called with the current step and the fraction done.
    """
    reference = read_reference(reference_folder)
    with Model(model.path) as opened:
        claimed = opened.signature
        chosen = rows_of(reference, claimed)
        if (hardest := _hardest(opened, reference)) not in chosen:
            chosen.append(hardest)
        calls = [_call(claimed, reference.rows[row], length) for row, length in chosen]
        here = [opened.run(reference.rows[row], length=length) for row, length in chosen]
    bounds = golden.read(model.path)
    embedding = claimed.output_kind == "embedding"
    bound = bounds.min_cosine if embedding else bounds.min_sqnr_db
    assert bound is not None, "golden rows beside a target have its bounds"
    rows_of_reference = [reference.outputs[row] for row, _ in chosen]
    file, processors, counts = model.path / claimed.file, [], []
    steps = len(cpus) + len(counted)
    for number, cpu in enumerate(cpus):
        tell(f"{model.path.parent.name} on {cpu}", number / steps)
        raw = emulator.outputs(file, calls, tasks.get(claimed.task).output_names, cpu, log)
        found = [_output(outputs, len(reference.rows[row])) for outputs, (row, _) in zip(raw, chosen, strict=True)]
        processors.append(_judged(cpu, rows_of_reference, found, here, bound, embedding=embedding))
    for number, cpu in enumerate(counted):
        tell(f"counting instructions on {cpu}", (len(cpus) + number) / steps)
        counts.append(_count(emulator, file, claimed, cpu, log))
    return EmulatedRuns(
        target=f"{claimed.backend}-{claimed.scheme}",
        digest=model.digest,
        runtime=emulator.site.title,
        stubs=list(emulator.site.stubs),
        answered=list(emulator.site.answered),
        rows=len(chosen),
        lengths=sorted({length for _, length in chosen}),
        measure="cosine" if embedding else "sqnr_db",
        bound=bound,
        processors=processors,
        counts=counts,
    )


def rows_of(reference: Reference, claimed: Signature) -> list[tuple[int, int]]:
    """Return about forty rows over all lengths of a file, each with the length at which it runs.

    A fixed length that no row selects gets the shortest rows, padded. Where the length is free, rows run unpadded, from
    the shortest to the longest, and the shortest once more, padded to the longest length.
    """
    natural: dict[int, list[int]] = {function.max_length: [] for function in claimed.functions}
    for row in range(reference.checked):
        if 0 < len(reference.rows[row]) <= claimed.max_length:
            natural[claimed.choose(len(reference.rows[row]))[0].max_length].append(row)
    shortest = sorted(range(reference.checked), key=lambda row: len(reference.rows[row]))
    each = max(1, _ROWS // len(natural))
    chosen = []
    for function in claimed.functions:
        fitting = natural[function.max_length]
        if function.fixed:
            fitting = fitting or [row for row in shortest if 0 < len(reference.rows[row]) <= function.max_length]
            chosen += [(row, function.max_length) for row in _evenly(fitting, each)]
        elif fitting:
            rising = sorted(fitting, key=lambda row: len(reference.rows[row]))
            lengths = {row: max(len(reference.rows[row]), function.min_length) for row in rising}
            chosen += [(row, lengths[row]) for row in _evenly(rising, each)] + [(rising[0], function.max_length)]
    return chosen


def _evenly(rows: Sequence[int], most: int) -> Sequence[int]:
    """Return at most `most` rows, evenly spaced, the first and the last included, so that all kinds of texts occur."""
    if len(rows) <= most:
        return rows
    return [rows[number * (len(rows) - 1) // max(1, most - 1)] for number in range(most)]


def _hardest(opened: Model, reference: Reference) -> tuple[int, int]:
    """Return the row with the largest error on this machine, and the length that it selects."""
    claimed = opened.signature
    rows = [row for row in range(reference.checked) if 0 < len(reference.rows[row]) <= claimed.max_length]
    outputs = [opened.run(reference.rows[row]) for row in rows]
    rows_of_reference = [
        reference.outputs[row].reshape(values.shape) for row, values in zip(rows, outputs, strict=True)
    ]
    if claimed.output_kind == "embedding":
        scores = _scores(rows_of_reference, outputs, embedding=True)
    else:
        scores = -np.array([measures.max_abs_error(a, b) for a, b in zip(rows_of_reference, outputs, strict=True)])
    row = rows[int(scores.argmin())]
    return row, claimed.choose(len(reference.rows[row]))[1]


def _call(claimed: Signature, row: Row, length: int) -> Call:
    function = claimed.choose(length)[0]
    names = tuple(tensor.name for tensor in function.inputs)
    inputs = row.padded(names, length, pad_token_id=claimed.pad_token_id)
    return Call(function.name, inputs, tuple(tensor.name for tensor in function.outputs))


def _output(outputs: Sequence[NDArray[np.float32]], tokens: int) -> NDArray[np.float32]:
    """Return a row's output in the layout of `Model.run`."""
    parts = [output[0] for output in outputs]
    whole = parts[0] if len(parts) == 1 else np.stack(parts, axis=-1)
    return whole[:tokens] if whole.ndim == 2 else whole


def _scores(
    reference: Sequence[NDArray[np.floating]], found: Sequence[NDArray[np.float32]], *, embedding: bool
) -> NDArray[np.float64]:
    """Score each row; a row that is not finite, or whose cosine is undefined, gets the lowest score."""
    scores = []
    for row, values in zip(reference, found, strict=True):
        if not measures.all_finite(values):
            scores.append(_OPPOSITE if embedding else -_EXACT_DB)
        elif embedding:
            cosine = float(measures.cosine(row.reshape(1, -1), values.reshape(1, -1))[0])
            scores.append(_OPPOSITE if np.isnan(cosine) else cosine)
        else:
            decibels = measures.sqnr_db(row.reshape(values.shape), values)
            scores.append(float(np.clip(decibels, -_EXACT_DB, _EXACT_DB)))
    return np.array(scores)


def _score(
    reference: Sequence[NDArray[np.floating]], found: Sequence[NDArray[np.float32]], *, embedding: bool
) -> float:
    """Return the value that the gate compares with its bound: the worst cosine, or the SQNR over all rows, in dB.

    A row whose logits are all small has a low SQNR on its own, which says nothing: rows count together, as in an app.
    """
    scores = _scores(reference, found, embedding=embedding)
    if embedding or not all(measures.all_finite(values) for values in found):
        return float(scores.min())
    decibels = measures.sqnr_db(*(np.concatenate([values.ravel() for values in rows]) for rows in (reference, found)))
    return float(np.clip(decibels, -_EXACT_DB, _EXACT_DB))


def _judged(
    cpu: str,
    reference: Sequence[NDArray[np.floating]],
    found: Sequence[NDArray[np.float32]],
    here: Sequence[NDArray[np.float32]],
    bound: float,
    *,
    embedding: bool,
) -> Processor:
    scores = _scores(reference, found, embedding=embedding)
    score = _score(reference, found, embedding=embedding)
    what = f"row {scores.argmin()} has a cosine of" if embedding else "the rows together have an SQNR in dB of"
    reason = f"{what} {score:.4f}, and {bound} is the least" if score < bound else None
    return Processor(
        cpu=cpu,
        has=arm64.CPUS[cpu],
        score=score,
        mean=float(scores.mean()),
        score_here=_score(reference, here, embedding=embedding),
        max_difference=max(measures.max_abs_error(a, b) for a, b in zip(here, found, strict=True)),
        verdict="failed" if reason else "passed",
        reason=reason,
    )


def _count(emulator: Emulator, file: Path, claimed: Signature, cpu: str, log: Path) -> Counts:
    """Count instructions of a full row at the shortest and longest length, and at the powers of two between them."""
    lengths = [function.max_length for function in claimed.functions]
    if not claimed.functions[-1].fixed:
        lengths += [_SHORT << step for step in range(8) if _SHORT << step < claimed.max_length]
    chosen = sorted({min(lengths), max(lengths), *(length for length in lengths if length & (length - 1) == 0)})
    # Ids of words: which ones does not matter to a dense model.
    calls = [_call(claimed, Row((_WORD,) * length, (0,) * length), length) for length in chosen]
    found = emulator.count(file, calls, cpu, _REPEATS, log)
    medians = [int(np.median(one.instructions)) for one in found]
    ranges = [max(one.instructions) - min(one.instructions) for one in found]
    spreads = [width / median for width, median in zip(ranges, medians, strict=True)]
    return Counts(
        cpu=cpu,
        page_size=found[0].page_size,
        instructions=dict(zip(chosen, medians, strict=True)),
        spread=max(spreads),
    )
