"""Run a converted file over the reference's texts, in a worker."""

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import backends, reference
from pipeline.encoding import Row
from pipeline.reference import Reference
from pipeline.runtime import Model

PADDED_EVERY = 3
"""Every so many verification rows are run at the longest length too."""
ALL_LENGTHS_EVERY = 24
"""Every so many rows are run at each length that they fit."""


@dataclass(frozen=True)
class Run:
    """One execution: which row, at which length."""

    row: int
    length: int


@dataclass(frozen=True)
class Measured:
    """Raw results of one file."""

    evaluator: str
    natural: list[Run]
    """One per row of the reference, in order: the smallest length that fits."""
    outputs: NDArray[np.float32]
    """`(rows, width)`, of `natural`."""
    padded: list[Run]
    padded_outputs: NDArray[np.float32]
    all_pad_lengths: list[int]
    all_pad_outputs: NDArray[np.float32]
    """`(lengths, width)`."""
    wrong_ids: list[int]
    """Verification rows whose ids the shipped tokenizer does not reproduce."""


def measure(model_folder: Path, student: Path, reference_folder: Path) -> Measured:
    """Run one file over all rows of the reference, padded and unpadded, and compare what it holds."""
    truth = reference.read(reference_folder)
    model = Model(model_folder)
    natural = [Run(number, model.signature.choose(len(row))[1]) for number, row in enumerate(truth.rows)]
    padded = list(_padded_runs(truth, natural, _test_lengths(model)))
    lengths = _test_lengths(model)
    result = Measured(
        evaluator=_evaluator(model),
        natural=natural,
        outputs=_run(model, truth, natural),
        padded=padded,
        padded_outputs=_run(model, truth, padded),
        all_pad_lengths=lengths,
        all_pad_outputs=np.stack([model.run(Row((), ()), length=length) for length in lengths]),
        wrong_ids=_wrong_ids(model, truth),
    )
    model.close()
    return result


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


def _run(model: Model, truth: Reference, runs: list[Run]) -> NDArray[np.float32]:
    outputs = [model.run(truth.rows[run.row], length=run.length) for run in runs]
    return np.stack(outputs) if outputs else np.zeros((0, truth.outputs.shape[1]), np.float32)


def _wrong_ids(model: Model, truth: Reference) -> list[int]:
    """Encode the verification texts with the shipped tokenizer alone and compare with the reference's rows."""
    numbers = range(truth.checked)
    return [n for n in numbers if model.encoder.encode(truth.texts[n].first, truth.texts[n].second) != truth.rows[n]]


def _evaluator(model: Model) -> str:
    backend = backends.get(model.signature.backend)
    distribution = backend.DISTRIBUTIONS[0]
    return f"{backend.TITLE} ({distribution} {importlib.metadata.version(distribution)})"
