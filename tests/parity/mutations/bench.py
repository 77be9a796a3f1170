"""One run of `make mutations`: every file loaded or judged once, in two workers, and kept as it comes."""

import json
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from faults import line
from faults.students import Student
from faults.workers import Start, WorkerPool
from store import only_run

from mutations import judging, loading
from mutations.mutation import Mutation, flip, mutation
from mutations.subject import Subject, subjects
from pipeline import artifact
from pipeline.errors import ToolchainError, WorkerDied
from pipeline.execution.worker import Worker

BUILD = line.REPOSITORY / "build" / "mutations"
PARALLEL = 2
ISOLATED_EVERY = 25
"""Every so many mutations are also given to `pipeline.load(folder, isolated=True)`, besides all that crash or hang."""
_PATIENCE_SECONDS = 120.0
_TOLD_EVERY = 250


@dataclass(frozen=True)
class Result:
    """What became of one mutation."""

    number: int
    kind: str
    everywhere: bool
    path: str
    at: int
    bit: int | None
    outcome: str
    said: str


@dataclass(frozen=True)
class Campaign:
    """What is done to each of a number of files."""

    name: str
    draw: Callable[[Subject, int, int], Mutation]
    call: Callable[[Worker, Subject, Mutation], tuple[str, str]]


def _loaded(worker: Worker, subject: Subject, damaged: Mutation) -> tuple[str, str]:
    found = worker.call(loading.attempt, subject, damaged)
    return found.outcome, found.said


def _judged(worker: Worker, subject: Subject, damaged: Mutation) -> tuple[str, str]:
    try:
        found = worker.call(judging.judge, subject, damaged)
    except WorkerDied as error:
        worker.close()
        return (judging.HUNG if "said nothing" in str(error) else judging.CRASHED), str(error)
    return found.outcome, found.said


LOADED = Campaign("loaded", mutation, _loaded)
JUDGED = Campaign("judged", flip, _judged)


class Bench:
    """Workers, and what is kept of earlier runs."""

    def __init__(self, seed: int, count: int, tell: Callable[[str], None]) -> None:
        self.seed, self.count, self._tell = seed, count, tell
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._workers: dict[int, Worker] = {}
        self._kept = threading.Lock()

    @contextmanager
    def at_work(self, start: Start | None = None) -> Iterator[WorkerPool]:
        """Prepare what makes clean files, in workers that `start` starts, and end every worker with the context."""
        for number in range(PARALLEL):
            self._free.put(number)
        pool = WorkerPool(BUILD / "logs", 1, start)
        try:
            waiting = partial(self._tell, "another run makes files; waiting")
            with only_run(line.BUILD, waiting=waiting), pool.at_work():
                yield pool
        finally:
            self._end_workers()

    def _end_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def subjects(self, pool: WorkerPool, names: tuple[str, ...], which: Student = Student()) -> list[Subject]:  # noqa: B008
        """Make the clean files."""
        with pool.take() as workers:
            return list(subjects(names, workers, which))

    def run(self, campaign: Campaign, subject: Subject) -> list[Result]:
        """Do all that no earlier run has done, and return all."""
        file = BUILD / f"{subject.name}-{campaign.name}-{self.seed}.jsonl"
        key = artifact.digest_of([subject.digest, _code()])
        known = self._known(file, key)
        missing = [number for number in range(self.count) if number not in known]
        if missing:
            self._tell(f"{subject.name}: {campaign.name}, {len(missing)} of {self.count}")
        with ThreadPoolExecutor(PARALLEL) as pool, file.open("a", encoding="utf-8") as sink:
            for done, result in enumerate(pool.map(lambda n: self.one(campaign, subject, n), missing), 1):
                known[result.number] = result
                sink.write(json.dumps(asdict(result)) + "\n")
                sink.flush()
                if done % _TOLD_EVERY == 0:
                    self._tell(f"{subject.name}: {campaign.name}, {done} done")
        # What is forked next has nothing of this campaign in it.
        self._end_workers()
        return [known[number] for number in range(self.count)]

    def isolated(self, subject: Subject, loaded: list[Result]) -> list[Result]:
        """Open some files as a user's program does: every so many, and all that ended their process."""
        wanted = [r for r in loaded if r.number % ISOLATED_EVERY == 0 or r.outcome in (loading.CRASHED, loading.HUNG)]

        def one(result: Result) -> Result:
            found = loading.isolated(subject, mutation(subject, self.seed, result.number))
            return Result(**(asdict(result) | {"outcome": found.outcome, "said": found.said}))

        self._tell(f"{subject.name}: isolated, {len(wanted)}")
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(one, wanted))

    def _known(self, file: Path, key: str) -> dict[int, Result]:
        """Return what an earlier run of the same code on the same file has found; nothing if it was another."""
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if not lines or lines[0] != key:
            file.write_text(key + "\n", encoding="utf-8")
            return {}
        # A run that was killed may have left half a line.
        whole = [row for row in lines[1:] if row.endswith("}")]
        return {result.number: result for result in (Result(**json.loads(row)) for row in whole)}

    def one(self, campaign: Campaign, subject: Subject, number: int) -> Result:
        """Do it to one file."""
        damaged = campaign.draw(subject, self.seed, number)
        with self._worker() as worker:
            outcome, said = campaign.call(worker, subject, damaged)
        return Result(number, damaged.kind, damaged.everywhere, damaged.path, damaged.at, damaged.bit, outcome, said)

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        """Lend a worker, a new one after one that went down."""
        number = self._free.get()
        try:
            if number not in self._workers:
                log = BUILD / "logs" / f"{number}.log"
                self._workers[number] = Worker(log, threads=1, patience_seconds=_PATIENCE_SECONDS)
            worker = self._workers[number]
            yield worker
            if worker._process.poll() is not None:
                self._workers.pop(number).close()
        except ToolchainError:
            self._workers.pop(number).close()
            raise
        finally:
            self._free.put(number)


def _code() -> str:
    """Return the digest of the code that decides an outcome."""
    return artifact.digest_of([line.judging_code(), *_own_sources()])


def _own_sources() -> list[str]:
    files = ("mutation.py", "loading.py", "judging.py", "subject.py", "fields.py")
    return [artifact.sha256_file(Path(__file__).with_name(name)) for name in files]


def summary(results: list[Result], outcomes: tuple[str, ...]) -> dict[str, int]:
    """Return how many files had each outcome."""
    return {outcome: sum(result.outcome == outcome for result in results) for outcome in outcomes}
