"""Judge a file that any tool made against a checkpoint: find out how to call it, run texts, compare, name the error."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline import tasks
from pipeline.checkpoint.inspection import Summary, check_pooling, find_cached, resolve, summarise
from pipeline.checkpoint.source import Source, at
from pipeline.convert.private_log import private_log
from pipeline.errors import InputError, WorkerDied, no_file
from pipeline.execution.worker import Worker
from pipeline.foreign import calling, companions, diagnosis, measures, reference, session, weights
from pipeline.foreign.calling import Call, File, Lengths
from pipeline.foreign.record import Cause, Judgement, Storage, Worst
from pipeline.foreign.reference import Facts, Sample
from pipeline.foreign.session import Caller
from pipeline.formats.ports import Array
from pipeline.kinds import PoolingMode
from pipeline.planning.draft import choose_task
from pipeline.recipe.schema import StudentSection
from pipeline.tasks import Task
from pipeline.text.encoding import Row

_TEXTS, _TRIAL_ROWS, _DIAGNOSED = 120, 8, 40
"""Texts of an ordinary verdict; rows with which ways to call a file are tried; rows over which errors are tried."""
_PADDED_EACH, _PADDING = 3, 16
"""Where a file takes any length, every third row runs again with this many tokens of padding."""


@dataclass(frozen=True)
class Request:
    """What is judged, and against what."""

    file: Path
    checkpoint: str
    """A folder, `bundled:NAME`, `hub:OWNER/NAME@COMMIT`, or a cached name."""
    task: str | None
    pooling: PoolingMode | None
    thorough: bool
    """Whether every text of verification runs."""


@dataclass(frozen=True)
class Known:
    """The checkpoint as it was found, and what is done with it."""

    source: Source
    summary: Summary
    task: Task
    why: str
    section: StudentSection
    longest: int
    """Tokens at which its texts end."""


def judge(request: Request, tell: Callable[[str], None]) -> Judgement:
    """Judge a file.

    Args:
        request: what is judged.
        tell: called before a download.

    Raises:
        InputError: there is no such file, or it cannot be called as an encoder.
        StudentError: the checkpoint does not exist, or no task fits it.
        ArtifactError: the file is damaged.
        ToolchainError: its runtime is absent, or refuses it.
    """
    check(request.file)
    known = look_up(request, tell)
    with workers() as (checkpoint, log, scratch):
        facts = checkpoint.call(
            reference.open_checkpoint, known.source.folder, known.task.name, known.section, scratch, known.longest
        )
        file = File.open(request.file.resolve(), log)
        try:
            return _judged(request, known, checkpoint, facts, file)
        finally:
            file.close()


@contextlib.contextmanager
def workers() -> Iterator[tuple[Worker, Path, Path]]:
    """Start the worker of the checkpoint; yield it, a log for the file's, and an empty folder."""
    with (
        private_log() as log,
        private_log() as own,
        tempfile.TemporaryDirectory(prefix="pocketbert-") as scratch,
        # Small operations of two threads wait for each other where cores are shared: 56 s against 3.
        Worker(own, threads=1) as checkpoint,
    ):
        yield checkpoint, log, Path(scratch)


def check(file: Path) -> None:
    """Refuse what is no file that can be judged.

    Raises:
        InputError: it is none.
    """
    if file.suffix not in session.SUFFIXES:
        raise InputError(f"{file} is none of the files that can be judged: {', '.join(session.SUFFIXES)}.")
    if not file.exists() or (file.is_dir() and not (file / "Manifest.json").is_file()):
        raise InputError(f"{file} {no_file(file)}. Name the model file, or the package, itself.")


def look_up(request: Request, tell: Callable[[str], None]) -> Known:
    """Find the checkpoint, and choose its task and head as `init` does."""
    if request.task is not None:
        tasks.get(request.task)
    here = Path("recipe.toml")
    named = resolve(request.checkpoint, here, tell)
    place = find_cached(named) or named
    if place.startswith("hub:"):
        tell(f"{named} is not in the local hub cache; downloading it")
    source = at(place, here)
    summary = summarise(source, named)
    chosen, why, _ = choose_task(summary, request.task)
    task = tasks.get(chosen)
    check_pooling(summary, task, request.pooling)
    trained = summary.trained_length if not task.uses_head else None
    longest = min(source.max_length, trained or source.max_length)
    return Known(source, summary, task, why, StudentSection(source=place, pooling=request.pooling), longest)


@dataclass(frozen=True)
class Rows:
    """Everything that runs: samples with the lengths at which they run, padded ones included."""

    samples: list[Sample]
    lengths: list[int]

    @property
    def padded(self) -> int:
        """How many run with padding."""
        return sum(len(one.row) < length for one, length in zip(self.samples, self.lengths, strict=True))

    def parts(self, call: Call) -> list[tuple[Caller, list[Row], list[int]]]:
        """Return the rows by entry point, in order; and so are `ordered`'s."""
        numbers = self.order(call)
        found: list[tuple[Caller, list[Row], list[int]]] = []
        for number in numbers:
            caller = call.caller(self.lengths[number])
            if not found or found[-1][0] is not caller:
                found.append((caller, [], []))
            found[-1][1].append(self.samples[number].row)
            found[-1][2].append(self.lengths[number])
        return found

    def order(self, call: Call) -> list[int]:
        """Return the numbers of the rows in the order of `parts`."""
        return sorted(range(len(self.samples)), key=lambda at: call.callers.index(call.caller(self.lengths[at])))


def _rows(samples: Sequence[Sample], lengths: Lengths, *, masked: bool) -> Rows:
    """Choose the length of each sample; of free lengths, some run again with padding, if there is a mask to say so."""
    chosen = [(one, lengths.at(len(one.row))) for one in samples]
    if lengths.free and masked:
        more = [(one, min(length + _PADDING, lengths.longest)) for one, length in chosen[::_PADDED_EACH]]
        chosen += [(one, length) for one, length in more if length > len(one.row)]
    return Rows([one for one, _ in chosen], [length for _, length in chosen])


def _spread(rows: Rows, count: int) -> list[int]:
    """Return numbers of rows of every kind: short, long, pairs and padded ones."""
    tokens = [len(one.row) for one in rows.samples]
    pairs = [at for at, one in enumerate(rows.samples) if one.text.second is not None]
    singles = sorted(set(range(len(tokens))) - set(pairs), key=lambda at: tokens[at])
    chosen = []
    for numbers, share in ((singles, count - count // 4), (pairs, count // 4)):
        if numbers:
            chosen += [numbers[at] for at in np.unique(np.linspace(0, len(numbers) - 1, share).round().astype(int))]
    return sorted(chosen)


def _judged(request: Request, known: Known, checkpoint: Worker, facts: Facts, file: File) -> Judgement:
    kind = known.task.output_kind
    ways, lengths = calling.entries(file, facts, known.longest)
    samples = checkpoint.call(reference.samples, lengths.longest, None if request.thorough else _TEXTS)
    taken = {role for one in ways for way in one for role in way.roles}
    left_out = kind == "embedding" and facts.takes_types and "token_type_ids" not in taken
    if left_out:
        samples = [one for one in samples if one.text.second is None]
    rows = _rows(samples, lengths, masked="attention_mask" in taken)
    trial = [rows.samples[at] for at in _spread(rows, _TRIAL_ROWS)]
    call = calling.find(file, checkpoint, facts, kind, ways, lengths, trial)
    right = checkpoint.call(reference.reference, [one.row for one in rows.samples])
    crash, found = None, []
    try:
        outputs = calling.run(file, checkpoint, rows.parts(call), call.reading)
        by_number = dict(zip(rows.order(call), outputs, strict=True))
        found = [by_number[at] for at in range(len(outputs))]
    except WorkerDied as error:
        crash = str(error)
    storage = checkpoint.call(weights.read, file.path)
    notes = [*_notes(known, facts, call, pairs_left_out=left_out), *companions.notes(file.path, known.source.folder)]
    if not crash:
        notes += _padding_alone(file, call, facts)
    return _conclude(known, facts, file, checkpoint, call, rows, right, found, storage, crash, notes)


def _conclude(
    known: Known,
    facts: Facts,
    file: File,
    checkpoint: Worker,
    call: Call,
    rows: Rows,
    right: list[Array],
    found: list[Array],
    storage: Storage,
    crash: str | None,
    notes: list[str],
) -> Judgement:
    """Compare the outputs, and put the judgement together."""
    kind = known.task.output_kind
    fitting: list[Cause] = []
    measured = None
    if found:
        # All rows are measured; errors are looked for in some, since each takes a forward pass of its own.
        chosen = _spread(rows, _DIAGNOSED)
        variants = checkpoint.call(
            reference.erring, [rows.samples[at] for at in chosen], [rows.lengths[at] for at in chosen]
        )
        fitting = diagnosis.causes([right[at] for at in chosen], [found[at] for at in chosen], variants, kind=kind)
        measured = measures.measure(kind, right, found)
    backend = session.backend_of(file.path)
    kept = measures.scheme_kept(measured, storage, kind, backend, facts.activation) if measured else None
    findings = [*storage.findings]
    if crash:
        cause: Cause | None = Cause("crash", f"its runtime goes down on the checkpoint's texts: {crash}", 0)
    elif fitting:
        cause = fitting[0]
    else:
        # A scale alone is no error: a graph may fold that of the attention into a weight.
        cause = None if kept else next(iter(findings), diagnosis.by_size(right, found))
    verdict, said = measures.verdict(cause, kept, storage)
    entry = call.callers[0].binding.entry
    return Judgement(
        file=str(file.path),
        checkpoint=known.summary.origin,
        task=known.task.name,
        task_why=known.why,
        verdict=verdict,
        said=said,
        scheme=kept if cause is None else None,
        score="cosine" if kind == "embedding" else "sqnr_db",
        mean_score=measured.mean_score if measured else None,
        worst=_worst(rows, measured.scores) if measured and measured.scores is not None else None,
        sqnr_db=measured.sqnr_db if measured else None,
        agreement=measured.agreement if measured else None,
        cause=cause,
        others=tuple(one for one in (*fitting, *findings) if one is not cause)[:3],
        runtime=file.description.runtime,
        stands_in=file.description.stands_in,
        inputs={port.name: role for port, role in zip(entry.inputs, call.callers[0].binding.roles, strict=True)},
        outputs=tuple(entry.outputs[at].name for at in call.reading.outputs),
        lengths=str(call.lengths),
        texts=len(rows.samples),
        padded=rows.padded,
        storage=storage,
        assumed=(*_entries_left_out(file, call), *_assumed(known, facts, call)),
        notes=tuple(notes),
    )


def _worst(rows: Rows, scores: Array) -> Worst:
    number = int(np.argmin(scores))
    one = rows.samples[number]
    text = f"{one.text.first} | {one.text.second}" if one.text.second is not None else one.text.first
    return Worst(text[:300], one.text.kind, len(one.row), rows.lengths[number], float(scores[number]))


def _entries_left_out(file: File, call: Call) -> Iterator[str]:
    """Yield what a file has beside the entry points that ran."""
    ran = {caller.binding.entry.name for caller in call.callers}
    others = [entry.name for entry in file.description.entries if entry.name not in ran]
    if others:
        yield f"only {', '.join(sorted(ran))} ran; it has other entry points: {', '.join(sorted(others))}"


def _assumed(known: Known, facts: Facts, call: Call) -> Iterator[str]:
    """Yield what the file does not say and was taken to be so."""
    binding = call.callers[0].binding
    entry = binding.entry
    if not binding.by_name:
        order = ", ".join(binding.roles)
        how = "the best fit of the orders that were tried" if call.tried > 1 else "Hugging Face's own order, which fits"
        yield f"the names of its inputs do not say what they are: taken as {order}, {how}"
    if call.reading.form == "tokens":
        yield f"its output is the vectors of tokens: {facts.head} is computed here, as the checkpoint has it"
    if not call.lengths.free and call.lengths.longest < known.longest:
        yield (
            f"it takes {call.lengths.longest} tokens at most, and the checkpoint {known.longest}: longer texts were "
            "cut for both"
        )
    if any(port.shape and (port.shape[0] or 1) > 1 for port in binding.entry.inputs if len(port.shape) == 2):
        yield "its batch is fixed: each text ran as every row of it, and the first was read"
    if any(not entry.outputs[at].dtype.startswith("float") for at in call.reading.outputs):
        yield "its output is integers: read with the scale and zero point that the file has for them"
    if any(port.dtype.startswith("float") for port in binding.entry.inputs):
        yield "it takes ids as floating-point numbers: above 2^24, or 2,048 in half precision, ids would merge"


def _notes(known: Known, facts: Facts, call: Call, *, pairs_left_out: bool) -> Iterator[str]:
    roles = call.callers[0].binding.roles
    if "attention_mask" not in roles and call.lengths.free:
        yield "it takes no mask, so it is right without padding alone: one text at a time, at its own length"
    elif "attention_mask" not in roles:
        yield "it takes no mask: it could tell padding by its id alone"
    if pairs_left_out:
        yield "it takes no token types, so pairs were not compared; the embedding of a single text needs none"
    elif facts.takes_types and "token_type_ids" not in roles:
        yield "it takes no token types, so the second text of a pair counts as the first"
    if known.section.pooling:
        yield f"the pooling is {known.section.pooling}, as --pooling says"
    if facts.prompts.texts:
        default = f"{facts.prompts.default!r} was put before every text" if facts.prompts.default else "none by default"
        yield f"prompts of the checkpoint: {', '.join(facts.prompts.texts)}; {default}, and three texts ran behind each"


def _padding_alone(file: File, call: Call, facts: Facts) -> Iterator[str]:
    """Yield a note on a row that is nothing but padding, which an app may give by mistake; no verdict hangs on it."""
    caller = call.caller(call.lengths.longest)
    if "attention_mask" not in caller.binding.roles:
        return
    try:
        results = file.worker.call(session.outputs_of, caller, Row((), ()), call.lengths.longest)
    except InputError as error:
        yield f"a row of padding alone is refused: {error}"
        return
    except WorkerDied:
        yield "a row of padding alone takes the runtime down"
        return
    if not all(np.isfinite(np.asarray(results[at], np.float64)).all() for at in call.reading.outputs):
        yield "a row of padding alone gives NaN or infinity; the checkpoint's own embedding of it is zero"
