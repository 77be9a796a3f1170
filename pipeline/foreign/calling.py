"""Find out how to call and read a file: every way that its names allow runs a few rows, and the best one stays."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.errors import InputError, PipelineError, WorkerDied
from pipeline.execution.worker import Worker
from pipeline.foreign import diagnosis, reference, session
from pipeline.foreign.binding import Binding, Reading, bindings, readings
from pipeline.foreign.reference import Facts, Sample
from pipeline.foreign.session import Caller
from pipeline.formats.ports import Array
from pipeline.kinds import OutputKind
from pipeline.text.encoding import Row

_RIGHT = 0.02
"""Relative error from which on no other way to call a file is tried."""
_CLEARLY = 0.5
"""Part of the error so far that another way has to be below, so that the likelier one stays where two are alike."""
_FAR = 0.3
"""Relative error from which on no way is right."""


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
        try:
            return cls(path, worker, log, worker.call(session.open_file, path))
        except BaseException:
            worker.close()
            raise

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


@dataclass(frozen=True)
class _Tried:
    """A way to call and read a file, with what it gave."""

    way: Binding
    reading: Reading
    outputs: list[Array]
    error: float


def entries(file: File, facts: Facts, longest: int) -> tuple[list[list[Binding]], Lengths]:
    """Return the ways to call each entry point that is used, and the lengths that they take.

    Several entry points of one fixed length each are taken together; else the first alone. Of several models in a file
    each has its own for a length, and the shortest names are taken: those of other heads have a name in front.

    Raises:
        InputError: a file of no entry point, or of one that takes something else.
    """
    if not file.description.entries:
        raise InputError(f"{file.path} has no entry point that could be called.")
    found: list[tuple[int, list[Binding]]] = []
    for entry in file.description.entries:
        ways = list(bindings(entry, takes_types=facts.takes_types))
        lengths = _lengths(file, ways, facts, longest)
        if len(lengths) != 1:
            return [ways], Lengths(tuple(lengths), free=not any(port.sizes for port in entry.inputs))
        found.append((lengths[0], ways))
    # The last of a length stays.
    found.sort(key=lambda one: (one[0], -len(one[1][0].entry.name)))
    by_length = dict(found)
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
    found: list[_Tried] = []
    failures: list[PipelineError] = []
    for way in ways[entry]:
        try:
            found += [
                _Tried(way, reading, outputs, diagnosis.mean_error(right, outputs))
                for reading, outputs in _read(file, checkpoint, facts, kind, way, rows, at)
            ]
        except PipelineError as error:
            failures.append(error)
            if isinstance(error, WorkerDied):
                file.again()
        if found and min(one.error for one in found) < _RIGHT:
            break
    if not found:
        raise failures[0]
    if len(found) > 1 and min(one.error for one in found) > _FAR:
        # Wrong in every way: then a way in which it makes a mistake that is known.
        variants = checkpoint.call(reference.erring, [samples[n] for n in same], at)
        found = [replace(one, error=diagnosis.nearest_error(right, one.outputs, variants, kind=kind)) for one in found]
    best = found[0]
    for one in found[1:]:
        best = one if one.error < _CLEARLY * best.error else best
    chosen = [next(way for way in one if way.roles == best.way.roles) for one in ways]
    return Call(tuple(_caller(one, facts) for one in chosen), lengths, best.reading, len(found))


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
