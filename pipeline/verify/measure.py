"""Run a converted file over the reference's texts, in a worker, and compare what can be compared without running it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline import backends
from pipeline.backends import Evaluator, signature
from pipeline.convert.model import Model
from pipeline.metrics.outputs import RowOutputs
from pipeline.student import reference
from pipeline.student.reference import Reference
from pipeline.verify import companions, structure
from pipeline.verify.expected import Expected
from pipeline.verify.record import GateResult

PADDED_EVERY = 3
"""Every so many verification rows are run at the longest length too."""
ALL_LENGTHS_EVERY = 24
"""Every so many rows are run at each length that they fit, and once more in fresh sessions."""


@dataclass(frozen=True)
class Run:
    """One execution: which row, at which length."""

    row: int
    length: int


@dataclass(frozen=True)
class Repeated:
    """Some runs again, each in a session of its own and in the opposite order."""

    runs: list[Run]
    outputs: RowOutputs
    """Of the session that ran everything."""
    again: RowOutputs
    """Of a fresh session."""
    threaded: RowOutputs | None
    """Of a session with two threads; None where the evaluator does not heed the number."""
    others: dict[str, RowOutputs]
    """Of the backend's other evaluators, by name."""


@dataclass(frozen=True)
class Measured:
    """Raw results of one file."""

    evaluator: str
    evaluator_stands_in: str | None
    natural: list[Run]
    """One per row of the reference, in order: the smallest length that fits."""
    outputs: RowOutputs
    """Of `natural`."""
    padded: list[Run]
    padded_outputs: RowOutputs
    all_pad_lengths: list[int]
    all_pad_outputs: RowOutputs
    """One a length, of all its tokens where the kind of output has an item for each."""
    repeated: Repeated
    wrong_ids: list[int]
    """Verification rows whose ids the shipped tokenizer does not reproduce."""
    static_gates: list[GateResult]
    """What was judged without running the file: the files beside it, its signature, its structure."""


def measure(model_folder: Path, student: Path, reference_folder: Path) -> Measured:
    """Run one file over all rows of the reference, padded and unpadded, and compare what it holds."""
    truth = reference.read(reference_folder)
    evaluator, *others = backends.get(signature.read(model_folder).backend).evaluators()
    model = Model(model_folder, evaluator=evaluator)
    natural = [Run(number, model.signature.choose(len(row))[1]) for number, row in enumerate(truth.rows)]
    lengths = _test_lengths(model)
    padded = list(_padded_runs(truth, natural, lengths))
    outputs, padded_outputs = _run(model, truth, natural), _run(model, truth, padded)
    all_pad = RowOutputs.of([model.run_all_padding(length) for length in lengths])
    wrong_ids = _wrong_ids(model, truth)
    model.close()
    sample = [number for number in range(truth.checked) if number % ALL_LENGTHS_EVERY == 0]
    of_sample = [number for number, run in enumerate(padded) if run.row % ALL_LENGTHS_EVERY == 0]
    runs = [natural[number] for number in sample] + [padded[number] for number in of_sample]
    known = outputs.take(sample) + padded_outputs.take(of_sample)
    return Measured(
        evaluator=evaluator.name,
        evaluator_stands_in=evaluator.stands_in,
        natural=natural,
        outputs=outputs,
        padded=padded,
        padded_outputs=padded_outputs,
        all_pad_lengths=lengths,
        all_pad_outputs=all_pad,
        repeated=_repeat(model_folder, truth, evaluator, others, runs, known),
        wrong_ids=wrong_ids,
        static_gates=_static_gates(model, student, truth),
    )


def _test_lengths(model: Model) -> list[int]:
    """Return the lengths at which padding is tried: each fixed one, or a free length's bounds and powers of two."""
    lengths = {function.max_length for function in model.signature.functions}
    for function in model.signature.functions:
        if not function.fixed:
            lengths |= {2**power for power in range(3, 14) if function.min_length <= 2**power <= function.max_length}
    return sorted(lengths)


def _padded_runs(truth: Reference, natural: list[Run], lengths: list[int]) -> Iterable[Run]:
    """Yield runs longer than the row needs."""
    for number in range(truth.checked):
        if number % ALL_LENGTHS_EVERY == 0:
            chosen = lengths
        elif number % PADDED_EVERY == 0:
            chosen = lengths[-1:]
        else:
            continue
        for length in chosen:
            if length > natural[number].length:
                yield Run(number, length)


def _run(model: Model, truth: Reference, runs: list[Run]) -> RowOutputs:
    return RowOutputs.of([model.run(truth.rows[run.row], length=run.length) for run in runs])


def _repeat(
    folder: Path,
    truth: Reference,
    first: Evaluator,
    others: list[Evaluator],
    runs: list[Run],
    known: RowOutputs,
) -> Repeated:
    """Run some rows again in fresh sessions; nothing may depend on what ran before, nor on the number of threads."""

    def fresh(evaluator: Evaluator, threads: int) -> RowOutputs:
        model = Model(folder, threads=threads, evaluator=evaluator)
        result = _run(model, truth, runs[::-1]).take(range(len(runs))[::-1])
        model.close()
        return result

    return Repeated(
        runs=runs,
        outputs=known,
        again=fresh(first, 1),
        threaded=fresh(first, 2) if first.uses_threads else None,
        others={other.name: fresh(other, 1) for other in others},
    )


def _wrong_ids(model: Model, truth: Reference) -> list[int]:
    """Encode the verification texts with the shipped tokenizer alone and compare with the reference's rows."""
    numbers = [number for number in range(truth.checked) if truth.texts[number].kind != reference.ONE_TOKEN]
    return [n for n in numbers if model.encoder.encode(truth.texts[n].first, truth.texts[n].second) != truth.rows[n]]


def _static_gates(model: Model, student: Path, truth: Reference) -> list[GateResult]:
    """Judge the files beside the model, its signature, and the constants and attributes in it."""
    found = model.signature
    backend = backends.get(found.backend)
    file = model.folder / found.file
    functions = backend.inspect(file)
    results: list[GateResult] = companions.check(model.folder, student, found, functions, truth)
    expected = Expected.read(student, truth.checkpoint)
    held = backend.structure(file)
    return results + structure.check(held, expected, found.scheme, found.backend, functions=len(functions))
