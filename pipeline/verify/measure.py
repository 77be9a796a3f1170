"""Run a converted file over the reference's texts.

Running needs the file's runtime, so it happens in a worker; the comparisons that need no run are made beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline import formats
from pipeline.convert.model import Model
from pipeline.errors import ToolchainError
from pipeline.formats import Evaluator, signature
from pipeline.formats.structure import Structure
from pipeline.metrics.outputs import RowOutputs
from pipeline.schemes import SCHEMES
from pipeline.student.reference import ONE_TOKEN, Reference
from pipeline.verify import companions, control, quantised_checkpoint, ranges, structure
from pipeline.verify.quantised_weights import QuantisedWeight
from pipeline.verify.record import Control, GateResult, HeadToVerify, VerifyRequest
from pipeline.verify.weights import Expected
from pipeline.verify.wiring import MatchedFunction

PADDED_EVERY = 6
"""Stride over verification rows that run at the longest length too."""
ALL_LENGTHS_EVERY = 24
"""Stride over rows that run at each length that they fit, and once more in fresh sessions."""
_FITTED_EVERY = 8
"""Stride over verification rows on which ranges are judged."""


@dataclass(frozen=True)
class Run:
    """One execution: the number of a row, and the length at which it ran."""

    row: int
    length: int


@dataclass(frozen=True)
class Repeated:
    """Some runs repeated, each evaluator in a session of its own and in reverse order."""

    runs: list[Run]
    outputs: RowOutputs
    """Outputs of the session that ran everything."""
    again: RowOutputs
    """Outputs of a fresh session."""
    threaded: RowOutputs | None
    """Outputs of a session with two threads; None where the evaluator ignores the number of threads."""
    others: dict[str, RowOutputs]
    """Outputs of the format's other evaluators, by name."""


@dataclass(frozen=True)
class FileMeasurements:
    """Outputs of one file, the static gates and the control."""

    evaluator: str
    evaluator_stands_in: str | None
    natural: list[Run]
    """One per row of the reference, in order: the smallest length that fits."""
    outputs: RowOutputs
    """Outputs of the rows of `natural`."""
    padded: list[Run]
    padded_outputs: RowOutputs
    all_pad_lengths: list[int]
    all_pad_outputs: RowOutputs
    """One row per length; per token where the output kind has an axis of tokens."""
    all_pad_flushed: RowOutputs | None
    """The same with subnormal numbers of half precision flushed to zero; None for a file without half precision, or
    where the evaluator cannot flush."""
    repeated: Repeated
    wrong_ids: list[int]
    """Verification rows whose ids the shipped tokenizer does not reproduce."""
    static_gates: list[GateResult]
    """Gates on the files beside the model, its signature and its structure, which need no run."""
    control: Control | None
    """None where a static gate failed: with wrong weights, its errors would say nothing about the graph."""
    worst_linear: str | None
    """A sentence on the linear with the largest rounding error, where a checkpoint was quantised."""


def measure(
    model_folder: Path,
    student: Path,
    quantised: Path | None,
    reference: Reference,
    again: Path | None,
    request: VerifyRequest,
    heads: Sequence[HeadToVerify] = (),
) -> FileMeasurements:
    """Run one file over all rows of the reference, padded and unpadded, and apply the static gates to it.

    Args:
        model_folder: the model folder, or that of another head in it, whose functions alone are judged then.
        student: the student's folder.
        quantised: the checkpoint that the file was converted from, where that is not the student.
        reference: the student's outputs in fp32 PyTorch.
        again: see `verify.stage.make`.
        request: the target with its bounds.
        heads: the other heads that the file has to have, if `model_folder` is the model folder.

    Every session is closed again, so that one process measures file after file.
    """
    evaluator, *others = formats.get(signature.read(model_folder).backend).evaluators()
    with Model(model_folder, evaluator=evaluator) as model:
        natural = [Run(number, model.signature.choose(len(row))[1]) for number, row in enumerate(reference.rows)]
        lengths = _test_lengths(model)
        padded = list(_padded_runs(reference, natural, lengths))
        outputs, padded_outputs = _run(model, reference, natural), _run(model, reference, padded)
        all_pad = RowOutputs.of([model.run_all_padding(length) for length in lengths])
        wrong_ids = _wrong_ids(model, reference)
    _check_shape(model_folder, outputs, reference)
    flushed = _all_pad_flushed(model_folder, evaluator, lengths)
    sample = [number for number in range(reference.checked) if number % ALL_LENGTHS_EVERY == 0]
    of_sample = [number for number, run in enumerate(padded) if run.row % ALL_LENGTHS_EVERY == 0]
    runs = [natural[number] for number in sample] + [padded[number] for number in of_sample]
    known = outputs.take(sample) + padded_outputs.take(of_sample)
    static_gates, holds = _static_gates(model, student, quantised, reference, request, heads)
    if again is not None:
        static_gates.append(companions.reproduced(model_folder, again))
    single = None
    if all(gate.passed for gate in static_gates):
        subject = control.Subject(model_folder, evaluator, quantised or student, reference, *holds)
        single = control.run(subject, thorough=request.thorough)
    return FileMeasurements(
        evaluator=evaluator.name,
        evaluator_stands_in=evaluator.stands_in,
        natural=natural,
        outputs=outputs,
        padded=padded,
        padded_outputs=padded_outputs,
        all_pad_lengths=lengths,
        all_pad_outputs=all_pad,
        all_pad_flushed=flushed,
        repeated=_repeat(model_folder, reference, evaluator, others, runs, known),
        wrong_ids=wrong_ids,
        static_gates=static_gates,
        control=single,
        worst_linear=quantised_checkpoint.worst_linear(quantised) if quantised else None,
    )


def _check_shape(model_folder: Path, outputs: RowOutputs, reference: Reference) -> None:
    """Refuse outputs that cannot be compared with the reference's: of another width, or for tokens and not for texts.

    Raises:
        ToolchainError: they are.
    """
    found, expected = (np.shape(one.values) for one in (outputs, reference.outputs))
    if found != expected:
        raise ToolchainError(
            f"{model_folder / signature.SIGNATURE} names functions that give {found[0]} outputs of width {found[1]} on "
            f"the texts, and {reference.task} gives {expected[0]} of width {expected[1]}: they are another head's."
        )


def _all_pad_flushed(model_folder: Path, evaluator: Evaluator, lengths: Sequence[int]) -> RowOutputs | None:
    """Run all-padding rows with subnormal numbers of half precision flushed to zero, as some compute units do."""
    known = signature.read(model_folder)
    open_flushed = evaluator.load_flushed
    if open_flushed is None or SCHEMES[known.scheme].support[known.backend].base != "float16":
        return None
    flushing = replace(evaluator, load=lambda file, read_back, threads: open_flushed(file, read_back))
    with Model(model_folder, evaluator=flushing) as model:
        return RowOutputs.of([model.run_all_padding(length) for length in lengths])


def _test_lengths(model: Model) -> list[int]:
    """Return the lengths at which padding is tested: each fixed one; of a free one, its bounds and powers of two."""
    lengths = {function.max_length for function in model.signature.functions}
    for function in model.signature.functions:
        if not function.fixed:
            lengths |= {2**power for power in range(3, 14) if function.min_length <= 2**power <= function.max_length}
    return sorted(lengths)


def _padded_runs(reference: Reference, natural: list[Run], lengths: list[int]) -> Iterable[Run]:
    """Yield the runs at longer lengths than the row needs."""
    for number in range(reference.checked):
        if number % ALL_LENGTHS_EVERY == 0:
            chosen = lengths
        elif number % PADDED_EVERY == 0:
            chosen = lengths[-1:]
        else:
            continue
        for length in chosen:
            if length > natural[number].length:
                yield Run(number, length)


def _run(model: Model, reference: Reference, runs: list[Run]) -> RowOutputs:
    return RowOutputs.of([model.run(reference.rows[run.row], length=run.length) for run in runs])


def _repeat(
    folder: Path,
    reference: Reference,
    first: Evaluator,
    others: list[Evaluator],
    runs: list[Run],
    known: RowOutputs,
) -> Repeated:
    """Repeat some runs in fresh sessions: outputs may depend neither on earlier runs nor on the number of threads."""

    def fresh(evaluator: Evaluator, threads: int) -> RowOutputs:
        with Model(folder, threads=threads, evaluator=evaluator) as model:
            return _run(model, reference, runs[::-1]).take(range(len(runs))[::-1])

    return Repeated(
        runs=runs,
        outputs=known,
        again=fresh(first, 1),
        threaded=fresh(first, 2) if first.uses_threads else None,
        others={other.name: fresh(other, 1) for other in others},
    )


def _wrong_ids(model: Model, reference: Reference) -> list[int]:
    """Return the verification rows for which the shipped tokenizer alone gives other ids than the reference has."""
    numbers = [number for number in range(reference.checked) if reference.texts[number].kind != ONE_TOKEN]
    return [
        n
        for n in numbers
        if replace(reference.rows[n], unpooled=0)
        != model.encoder.encode(reference.texts[n].first, reference.texts[n].second)
    ]


_Holds = tuple[Expected, Structure, Sequence[MatchedFunction]]


def _static_gates(
    model: Model,
    student: Path,
    quantised: Path | None,
    reference: Reference,
    request: VerifyRequest,
    heads: Sequence[HeadToVerify] = (),
) -> tuple[list[GateResult], _Holds]:
    """Judge the files beside the model, its signature and its structure; return the gates and what they compared."""
    claimed = model.signature
    backend = formats.get(claimed.backend)
    file = signature.root(model.folder) / claimed.file
    functions = backend.inspect(file)
    whole = stored = backend.structure(file)
    if heads or model.folder != signature.root(model.folder):
        # Of a file with several heads, what the functions of this one compute; `heads` sees that each is of one.
        names = [function.name for function in claimed.functions]
        functions = tuple(function for function in functions if function.name in names)
        stored = backend.structure(file, names)
    results: list[GateResult] = companions.check(
        model.folder, student, claimed, functions, whole, reference, request, heads
    )
    expected = Expected.read(student, reference.checkpoint)
    row = SCHEMES[claimed.scheme]
    quantised_weights: Mapping[str, QuantisedWeight] | None = None
    if quantised is not None:
        half = row.support[claimed.backend].base == "float16"
        rewritten, quantised_weights = quantised_checkpoint.read(quantised, row, half=half)
        results.append(
            quantised_checkpoint.check(
                quantised, student, expected, rewritten, quantised_weights, row, request.checkpoint
            )
        )
        if rewritten.static:
            texts = reference.rows[: reference.checked : _FITTED_EVERY]
            results.append(ranges.check(quantised, reference.task, texts, outputs=not half))
        expected = rewritten
    checked = structure.check(stored, expected, claimed.scheme, claimed.backend, functions=len(functions))
    results += checked.gates
    if quantised_weights is not None:
        base = row.support[claimed.backend].base
        results.append(quantised_checkpoint.check_stored(stored, checked.followed, quantised_weights, row, base))
    return results, (expected, stored, checked.followed)
