"""Find out how to call and read a file: every way that its names allow runs a few rows, and the best one stays."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import InputError, PipelineError, WorkerDied
from pipeline.execution.worker import Worker
from pipeline.foreign import diagnosis, reference, session
from pipeline.foreign.binding import Binding, Reading, bindings, readings
from pipeline.foreign.record import Variant
from pipeline.foreign.reference import Facts, Sample
from pipeline.foreign.session import Caller
from pipeline.formats.ports import Array
from pipeline.kinds import OutputKind
from pipeline.text.encoding import Row

_RIGHT = 0.02
"""Relative error from which on no other way to call a file is tried."""
_CLEARLY = 0.9
"""Part of the error so far that another way has to be below, so that the likelier one stays where two are alike."""


@dataclass(frozen=True)
class Lengths:
    """The lengths at which a file runs."""

    listed: tuple[int, ...]
    """Ascending; of free lengths the least and the largest."""
    free: bool

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.listed[-1]

    def at(self, tokens: int) -> int:
        """Return the least length that takes a row."""
        if self.free:
            return max(tokens, self.listed[0])
        return next(length for length in self.listed if length >= tokens)

    def __str__(self) -> str:
        """Return the lengths in words."""
        if self.free:
            return f"{self.listed[0]} to {self.listed[1]} tokens"
        return f"{', '.join(map(str, self.listed))} tokens"


@dataclass
class File:
    """An open file in its worker; a runtime that dies on a trial is started again."""

    path: Path
    worker: Worker
    log: Path
    description: session.Description

    @classmethod
    def open(cls, path: Path, log: Path) -> "File":
        """Open a file in a new process.

        Raises:
            ArtifactError: it is damaged.
            ToolchainError: its runtime refuses it, is not installed, or went down.
        """
        worker = Worker(log, threads=1)
        return cls(path, worker, log, worker.call(session.open_file, path))

    def close(self) -> None:
        """Let the file go, and end its process, which may be dead."""
        with contextlib.suppress(WorkerDied):
            self.worker.call(session.close_file)
        self.worker.close()

    def again(self) -> None:
        """Start a process anew after one that died."""
        self.worker.close()
        self.worker = Worker(self.log, threads=1)
        self.worker.call(session.open_file, self.path)


@dataclass(frozen=True)
class Call:
    """The way in which a file is called and read."""

    callers: tuple[Caller, ...]
    """One for each entry point that is used, by rising lengths: of several fixed lengths, each has its own."""
    lengths: Lengths
    reading: Reading
    tried: int
    """How many ways were tried."""

    def caller(self, length: int) -> Caller:
        """Return the entry point for a length."""
        return self.callers[0 if len(self.callers) == 1 else self.lengths.listed.index(length)]


def entries(file: File, facts: Facts, longest: int) -> tuple[list[list[Binding]], Lengths]:
    """Return the ways to call each entry point that is used, and the lengths that they take.

    Several entry points of one fixed length each are taken together; else the first alone.

    Raises:
        InputError: a file of no entry point, or of one that takes something else.
    """
    if not file.description.entries:
        raise InputError(f"{file.path} has no entry point that could be called.")
    found: list[tuple[int, list[Binding]]] = []
    for entry in file.description.entries:
        ways = list(bindings(entry))
        lengths = _lengths(file, ways, facts, longest)
        if len(lengths) != 1:
            return [ways], Lengths(tuple(lengths), free=not any(port.sizes for port in entry.inputs))
        found.append((lengths[0], ways))
    by_length = dict(sorted(found, key=lambda one: one[0]))
    return list(by_length.values()), Lengths(tuple(by_length), free=False)


def _lengths(file: File, ways: Sequence[Binding], facts: Facts, longest: int) -> list[int]:
    """Return the lengths of an entry point, by the first way that runs at any."""
    said: InputError | None = None
    for way in ways:
        try:
            return file.worker.call(session.working_lengths, _caller(way, facts), facts.pad_token_id, longest)
        except InputError as error:
            said = error
        except WorkerDied:
            file.again()
    raise said or InputError(f"{file.path} takes its process down whatever it is given.")


def _caller(binding: Binding, facts: Facts) -> Caller:
    return Caller(binding, facts.pad_token_id, facts.first_position)


def find(
    file: File,
    checkpoint: Worker,
    facts: Facts,
    kind: OutputKind,
    ways: list[list[Binding]],
    lengths: Lengths,
    samples: Sequence[Sample],
) -> Call:
    """Return the way that fits best: to the reference, or to one that makes an error.

    Args:
        file: the open file.
        checkpoint: the worker of the reference.
        facts: what it told.
        kind: the task's kind of output.
        ways: of each entry point that is used.
        lengths: of the file.
        samples: a few rows.

    Raises:
        InputError: no way runs, or gives outputs that could be the task's.
    """
    rows = [one.row for one in samples]
    at = [lengths.at(len(row)) for row in rows]
    right = checkpoint.call(reference.reference, rows)
    # The first entry point that is used tells for all, since one tool made them.
    entry = lengths.listed.index(max(at)) if len(ways) > 1 else 0
    same = [number for number, length in enumerate(at) if len(ways) == 1 or length == max(at)]
    rows, at, right = [rows[n] for n in same], [at[n] for n in same], [right[n] for n in same]
    variants: list[Variant] | None = None
    best: tuple[float, Binding, Reading] | None = None
    tried, failures = 0, []
    for way in ways[entry]:
        try:
            found = list(_read(file, checkpoint, facts, kind, way, rows, at))
        except PipelineError as error:
            failures.append(error)
            if isinstance(error, WorkerDied):
                file.again()
            continue
        for reading, outputs in found:
            tried += 1
            distance = float(np.mean([diagnosis.relative_error(a, b) for a, b in zip(right, outputs, strict=True)]))
            if distance >= _RIGHT and (len(ways[entry]) > 1 or len(found) > 1):
                if variants is None:
                    variants = checkpoint.call(reference.erring, [samples[n] for n in same], at)
                distance = diagnosis.nearest_error(right, outputs, variants, kind=kind)
            if best is None or distance < _CLEARLY * best[0]:
                best = (distance, way, reading)
        if best is not None and best[0] < _RIGHT:
            break
    if best is None:
        raise failures[0] if failures else InputError(f"{file.path} gives nothing that could be read.")
    roles = best[1].roles
    chosen = [next(way for way in one if way.roles == roles) for one in ways]
    return Call(tuple(_caller(one, facts) for one in chosen), lengths, best[2], tried)


def _read(
    file: File, checkpoint: Worker, facts: Facts, kind: OutputKind, way: Binding, rows: list[Row], at: list[int]
) -> Iterator[tuple[Reading, list[Array]]]:
    """Yield each way to read the outputs of rows, with what is read."""
    caller = _caller(way, facts)
    first = file.worker.call(session.outputs_of, caller, rows[0], at[0])
    for reading in readings(way.entry, first, kind=kind, length=at[0], hidden=facts.hidden, count=facts.outputs):
        yield reading, run(file, checkpoint, [(caller, rows, at)], reading)


def run(
    file: File, checkpoint: Worker, parts: Sequence[tuple[Caller, list[Row], list[int]]], reading: Reading
) -> list[Array]:
    """Return what is read of rows, part by part; vectors of tokens go through the checkpoint's own head."""
    found: list[Array] = []
    for caller, rows, at in parts:
        outputs = file.worker.call(session.run_rows, caller, reading, rows, at)
        found += checkpoint.call(reference.embed, outputs, rows) if reading.form == "tokens" else outputs
    return found
