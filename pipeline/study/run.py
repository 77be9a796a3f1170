"""Run a study: cheap trials first, the best of them trained, the best of those as files; every finished one is kept.

Each batch of trials is one graph, so that trials share every artifact that they have in common.
"""

import importlib.metadata
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from pipeline import atomic
from pipeline.artifact import digest_of
from pipeline.checkpoint.source import RECIPE, find
from pipeline.devices import host
from pipeline.errors import ArtifactError, PipelineError, RecipeError
from pipeline.execution.executor import Progress
from pipeline.execution.kept import Kept
from pipeline.execution.local import Local
from pipeline.execution.node import Graph, Node
from pipeline.execution.store import Store
from pipeline.fronts import answering, page, recipes, record, selection
from pipeline.fronts.record import Record, TrialRecord
from pipeline.fronts.spec import LEFT_OUT, TARGET
from pipeline.study import baseline, finalists, graphs, judging, space
from pipeline.study.bench import Bench, Request, was_made
from pipeline.study.proposing import Proposer
from pipeline.study.space import Candidate, Choice

if TYPE_CHECKING:
    import optuna

_SHARES = {"compressed": 0.6, "trained": 0.9, "files": 1.0}
"""Shares of the study's time by whose end a step begins no other trial."""
_MISSES = 200
"""Proposals in a row that were tried before, after which a space counts as gone through."""


def run(request: Request, progress: Progress) -> Record:
    """Run a study to its end, or to the end of its time; begun before, it goes on. Record and pages are written.

    Raises:
        PipelineError: the study, its recipe or its data cannot work. A trial that cannot work is recorded as such.
    """
    # To start processes and import torch for each batch would take longer than many a trial.
    kept = Kept(lambda: request.executor() or Local())
    with _alone(request.folder), Store(request.build).running():
        try:
            return _Run(replace(request, executor=lambda: kept), progress).go()
        finally:
            kept.end()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / ".lock")
    with atomic.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ArtifactError(
                f"{folder}: another process runs this study; wait for it, or give another name."
            ) from error
    try:
        yield
    finally:
        lock.release()


@dataclass
class _Ready:
    """A proposal whose nodes are known."""

    trial: "optuna.Trial"
    choice: Choice
    candidate: Candidate
    judged: graphs.Judged
    file: list[Node] = field(default_factory=list)
    """The nodes of its file, of every tenth trial."""

    @property
    def nodes(self) -> dict[str, Node]:
        """All nodes, by identity."""
        graph = Graph("")
        graph.include(self.judged.judgement, *self.file)
        return graph.nodes


def _student_digest(begins: space.Base) -> str | None:
    """Return the content digest of the checkpoint that every trial begins with; None if another recipe makes it."""
    named = begins.recipe.student.source
    return None if named.startswith(RECIPE) else find(begins.recipe, begins.file).digest


class _Run:
    """The state of a study that runs."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request, self._study, self._progress = request, request.study, progress
        self._since = time.monotonic()
        # First, so that a study with another space is refused before anything is measured.
        begins = space.base(request.study, request.file)
        by = judging.choose(self._study.judge, begins.recipe, request.file, begins.file)
        self._proposer = Proposer(
            self._study,
            request.file,
            request.folder,
            begins.values,
            digest_of(by.params),
            _student_digest(begins),
        )
        self._spent: float = self._proposer.seconds
        self._bench = Bench(request, progress, begins, by)
        before = record.read_trials(request.folder)
        self._trials = {number: self._bench.by_this_baseline(one) for number, one in before.items()}
        self._numbers = {record.dump(one.choice): number for number, one in self._trials.items()}
        """Of each choice that was tried."""
        self._check_measured()

    def _check_measured(self) -> None:
        """Refuse a bound on a quality that trials of an earlier run were not judged by: it would count as kept.

        Raises:
            RecipeError: there is one.
        """
        for one in record.shown(self._done()):
            absent = [name for name in self._study.measures if name not in one.measures]
            if absent:
                raise RecipeError(
                    f"{self._request.file}: {absent[0]} was not measured of the trials in {self._request.folder}. Give "
                    "the study another name; artifacts in the store are found again."
                )

    def go(self) -> Record:
        """Go through all steps, and write the record."""
        finished = self._compressed()
        pool = self._ranked(self._came_to("compressed"), trained=False)
        if self._trains(pool):
            finished &= self._each("trained", pool, self._study.trials.trained)
        pool = self._ranked(self._came_to("compressed"))
        # Those that were trained come first, and the best of the others fill the number up.
        pool.sort(key=lambda one: not one.trained)
        finished &= self._each("files", pool, self._study.trials.files)
        found = self._record(finished)
        record.write(self._request.folder, found)
        page.write(self._request.folder, found)
        return found

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def _elapsed(self) -> float:
        return self._spent + time.monotonic() - self._since

    def _time_left(self, step: str) -> bool:
        return self._elapsed < self._study.hours * 3600 * _SHARES[step]

    # --- compressed ---------------------------------------------------------------------------------------------------

    def _compressed(self) -> bool:
        """Judge compressed students until there are as many as asked; return whether time sufficed."""
        self._proposer.settle(self._trials, self._bench.bounds)
        misses, choices = 0, space.size(self._study)
        while (left := self._study.trials.compressed - len(self._done())) > 0 and misses < _MISSES:
            if choices is not None and len(self._done()) >= choices:
                # To ask on would only fill the journal.
                misses = _MISSES
                break
            if self._done() and not self._time_left("compressed"):
                self._progress.note(f"the time for compressed trials is spent; {left} of them were not tried")
                return False
            asked: list[tuple[optuna.Trial, Choice]] = []
            while len(asked) < min(left, self._request.parallel) and misses < _MISSES:
                trial, choice = self._proposer.ask()
                same = self._same(choice)
                if same is not None or record.dump(choice) in [record.dump(one) for _, one in asked]:
                    # It costs nothing, and is no other trial.
                    self._proposer.tell(trial, same, self._bench.bounds)
                    misses += 1
                    continue
                misses = 0
                asked.append((trial, choice))
            self._check_training([choice for _, choice in asked])
            self._batch(asked)
            self._proposer.seconds = self._elapsed
        if misses >= _MISSES:
            self._progress.note(f"the space has no other choices: {len(self._done())} were tried")
        return True

    def _done(self) -> list[TrialRecord]:
        return list(self._trials.values())

    def _same(self, choice: Choice) -> TrialRecord | None:
        number = self._numbers.get(record.dump(choice))
        return None if number is None else self._trials[number]

    def _check_training(self, asked: Sequence[Choice]) -> None:
        """Look for what the recipe learns from before the first trial, and not after the last.

        Raises:
            PipelineError: it is not there.
        """
        if self._study.trials.trained and not self._trials:
            for choice in asked:
                if any(value != LEFT_OUT for key, value in choice.items() if key != TARGET):
                    self._bench.candidate(0, choice, trained=True)
                    return

    def _batch(self, asked: Sequence[tuple["optuna.Trial", Choice]]) -> None:
        """Judge several trials in one graph; if one of them fails, each by itself."""
        began = time.monotonic()
        ready = [one for trial, choice in asked if (one := self._prepared(trial, choice))]
        graph = Graph(self._bench.name)
        for one in ready:
            graph.include(one.judged.judgement, *one.file)
        if not ready:
            return
        try:
            outcome = self._bench.carry_out(graph)
        except PipelineError as error:
            if len(ready) == 1:
                self._fail(ready[0].trial, ready[0].choice, error)
            else:
                for one in ready:
                    self._batch([(one.trial, one.choice)])
            return
        made = {identity for identity, node in graph.nodes.items() if was_made(outcome, node)}
        for one in ready:
            own = set(one.nodes)
            kept = self._bench.judged(one.trial.number, one.choice, one.candidate, one.judged, one.file, outcome)
            seconds = (time.monotonic() - began) / len(ready)
            kept = kept.model_copy(update={"nodes": len(own), "made": len(made & own), "seconds": seconds})
            # What was made for one trial is shared by those after it.
            made -= own
            self._keep(kept)
            self._proposer.tell(one.trial, kept, self._bench.bounds)

    def _prepared(self, trial: "optuna.Trial", choice: Choice) -> _Ready | None:
        """Return a proposal with its nodes, and of every tenth those of its file; None where it is no student."""
        try:
            found, judged = self._bench.candidate(trial.number, choice, trained=False)
            ready = _Ready(trial, choice, found, judged)
            if trial.number % self._study.trials.checked_every == self._study.trials.checked_every - 1:
                ready.file = self._bench.file_nodes(found, judged)
        except PipelineError as error:
            self._fail(trial, choice, error)
            return None
        return ready

    def _fail(self, trial: "optuna.Trial", choice: Choice, error: PipelineError) -> None:
        self._progress.note(f"trial {trial.number} is no student: {error}")
        target = str(baseline.targets(self._study, self._bench.base)[0])
        failed = TrialRecord(
            number=trial.number, choice=dict(choice), target=target, step="compressed", measures={}, failed=str(error)
        )
        self._keep(failed)
        self._proposer.tell(trial, failed, self._bench.bounds)

    def _keep(self, kept: TrialRecord) -> None:
        record.append(self._request.folder, kept)
        self._trials[kept.number] = kept
        self._numbers[record.dump(kept.choice)] = kept.number

    # --- trained, and files -------------------------------------------------------------------------------------------

    def _came_to(self, step: record.Step) -> list[TrialRecord]:
        depth = record.STEPS.index(step)
        return [one for one in self._done() if record.STEPS.index(one.step) >= depth]

    def _ranked(self, pool: Sequence[TrialRecord], *, trained: bool = True) -> list[TrialRecord]:
        """Return trials, the most deserving first: as they are, or as those that training would still better."""
        bounds = self._bench.bounds
        if not trained:
            bounds = selection.before_training(bounds, self._bench.baseline.measures)
        return selection.best(pool, self._study.objectives, bounds, len(pool))

    def _trains(self, pool: Sequence[TrialRecord]) -> bool:
        """Return whether any trial is to be trained, and the recipe has more for one of them than compression."""
        return any(self._learns(one) for one in pool[: self._study.trials.trained])

    def _learns(self, one: TrialRecord) -> bool:
        whole = space.candidate(self._bench.base, one.choice, "trial")
        return space.untrained(whole).values != whole.values

    def _each(self, step: record.Step, ranked: Sequence[TrialRecord], count: int) -> bool:
        """Bring some trials to a step, the best first; return whether time sufficed.

        One that cannot be brought there stays what it was judged as, and the next one takes its place.
        """
        depth, there, queue = record.STEPS.index(step), 0, list(ranked)
        while there < count and queue:
            batch: list[TrialRecord] = []
            time_left = self._time_left(step)
            most = self._at_once(step) if time_left else 1
            while queue and len(batch) < min(most, count - there):
                one = queue.pop(0)
                if record.STEPS.index(one.step) >= depth:
                    there += 1
                else:
                    batch.append(one)
            # The answer is a file, however late it is.
            if batch and not time_left and not (step == "files" and not there):
                self._progress.note(f"the time is spent; {count - there} trials were not brought to {step}")
                return False
            for kept in self._brought(step, batch):
                self._keep(kept)
                there += 1
            self._proposer.seconds = self._elapsed
        return True

    def _at_once(self, step: record.Step) -> int:
        """Return how many trials a batch has; where one training fills the machine, each is kept as soon as it ends."""
        return 1 if step == "trained" and self._is_local and graphs.has_gpu() else self._request.parallel

    @property
    def _is_local(self) -> bool:
        executor = self._request.executor()
        return executor is None or executor.here

    def _brought(self, step: record.Step, batch: Sequence[TrialRecord]) -> Iterator[TrialRecord]:
        """Yield the records of the trials of a batch that could be brought to a step."""
        perform = {"trained": finalists.train, "files": finalists.file}[step]
        made, seconds = self._together(step, batch) if len(batch) > 1 else ({}, 0.0)
        for one in batch:
            try:
                kept = perform(self._bench, one)
            except PipelineError as error:
                self._progress.note(f"trial {one.number} was not brought to {step}: {error}")
                continue
            more = {"made": kept.made + made.get(one.number, 0), "seconds": kept.seconds + seconds}
            yield kept.model_copy(update=more)

    def _together(self, step: record.Step, batch: Sequence[TrialRecord]) -> tuple[dict[int, int], float]:
        """Make what several trials lack in one graph, so that machines share the work; files are timed afterwards.

        A trial that fails here fails by itself again, and is told of then.

        Returns:
            The number of artifacts that were made for each trial, and the seconds for one.
        """
        began, every, graphs_of = time.monotonic(), Graph(self._bench.name), dict[int, Graph]()
        for one in batch:
            with suppress(PipelineError):
                graphs_of[one.number] = finalists.untimed(self._bench, step, one)
                every.include(*graphs_of[one.number].nodes.values())
        counts = dict[int, int]()
        with suppress(PipelineError):
            outcome = self._bench.carry_out(graphs.side_by_side(every) if self._is_local else every)
            made = {identity for identity, node in every.nodes.items() if was_made(outcome, node)}
            for number, graph in graphs_of.items():
                counts[number] = len(made & set(graph.nodes))
                made -= set(graph.nodes)
        return counts, (time.monotonic() - began) / len(batch)

    def _record(self, finished: bool) -> Record:
        bench, trials = self._bench, sorted(self._done(), key=lambda one: one.number)
        metrics = bench.baseline.judgement.manifest.metrics
        base = bench.baseline.record.model_copy(update={"reported": finalists.report_of_base(bench)})
        self._proposer.seconds = self._elapsed
        return Record(
            study=self._study,
            task=bench.base.recipe.task,
            recipe_name=bench.base.recipe.name,
            metric_name=str(metrics["metric_name"]),
            judged_on=f"{metrics['rows']} rows of {metrics['dataset']}",
            machine=host.describe().model_id,
            tools={name: importlib.metadata.version(name) for name in ("optuna", "torch", "pocketbert")},
            base=base,
            base_target=base.target,
            misfits=bench.baseline.misfits,
            trials=trials,
            beside=self._beside(),
            recipes={one.number: self._recipe(one) for one in trials if one.failed is None},
            answer=answering.answer(self._study, trials, bench.bounds),
            asked=sum(one.nodes for one in trials),
            made=sum(one.made for one in trials),
            hours=self._elapsed / 3600,
            finished=finished,
        )

    def _beside(self) -> list[TrialRecord]:
        """Return the recipes beside the trials; one that cannot work is said to be left out."""
        try:
            return finalists.beside(self._bench)
        except PipelineError as error:
            self._progress.note(f"the recipes beside the trials are left out: {error}")
            return []

    def _recipe(self, one: TrialRecord) -> dict[str, Any]:
        """Return the recipe of a trial's student as TOML has it."""
        found = space.candidate(self._bench.base, one.choice, "trial")
        if not one.trained:
            found = space.untrained(found)
        values: dict[str, Any] = recipes.moved(found.values, self._bench.base.file.parent, self._request.folder)
        return values | {"name": f"{self._study.name}-{one.number}"}
