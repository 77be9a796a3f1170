"""What all trials of a study share: the recipe, the data, the store, the baseline; and how one is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.errors import PipelineError, RecipeError
from pipeline.execution.executor import Executor, Outcome, Progress
from pipeline.execution.kept import Kept
from pipeline.execution.node import Graph, Node
from pipeline.execution.store import Store
from pipeline.fronts import record, selection
from pipeline.fronts.parts import Parts
from pipeline.fronts.record import BESIDE, ESTIMATED, Measured, TrialRecord
from pipeline.fronts.spec import TARGET, Study
from pipeline.planning.run import carry_out
from pipeline.study import baseline, graphs, judging, space
from pipeline.study.baseline import Baseline
from pipeline.study.graphs import named
from pipeline.study.judging import JudgedBy
from pipeline.study.space import Base, Candidate, Choice

MakeExecutor = Callable[[], Executor | None]


@dataclass(frozen=True)
class Request:
    """A study to run."""

    study: Study
    file: Path
    build: Path
    parallel: int
    """Trials of a batch."""
    executor: MakeExecutor
    """Makes what runs the nodes of a batch; None stands for this machine's cores."""

    @property
    def folder(self) -> Path:
        """Where records, recipes and pages are."""
        return self.build / record.FOLDER / self.study.name


class Bench:
    """The common ground of a study's trials."""

    def __init__(self, request: Request, progress: Progress, base: Base, by: JudgedBy) -> None:
        """Measure the baseline.

        Args:
            request: the study to run.
            progress: who is told.
            base: the recipe that every trial begins with.
            by: the data that trials are compared on.

        Raises:
            PipelineError: the study, its recipe or its data cannot work.
        """
        self._request, self.study, self.progress = request, request.study, progress
        self.store = Store(request.build)
        self.base, self.by = base, by
        self.beside: dict[int, Base] = dict(enumerate(space.beside(self.study, request.file), BESIDE))
        """Recipes that are shown beside the trials, by numbers that no trial has."""
        baseline.check_timing(self.study, baseline.targets(self.study, self.base))
        self.name = f"{record.FOLDER}/{self.study.name}"
        graph, judgement, found = baseline.nodes(self.study, self.base, self.by, self.store, self.name)
        self.baseline: Baseline = baseline.read(self.carry_out(graph), judgement, found)
        absent = [name for name in self.study.measures if name not in self.baseline.measures]
        if absent:
            target = self.baseline.record.target
            raise RecipeError(
                f"{request.file}: {absent[0]} is not known of {target}, so no trial can be compared by it. Take it "
                "out of objectives and budget."
            )
        self.bounds = selection.bounds(self.study.budget, self.baseline.measures["metric"])

    def carry_out(self, graph: Graph) -> Outcome:
        """Make what a graph lacks."""
        # Artifacts are found by their keys: views would fill the build folder with a folder for each trial.
        graph.views.clear()
        executor = self._request.executor()
        try:
            return carry_out(graph, self._request.build, self.progress, executor)
        except PipelineError:
            # A connection that broke would fail every trial after this one.
            if isinstance(executor, Kept) and not executor.here:
                executor.end()
            raise

    def candidate(self, number: int, choice: Choice, *, trained: bool) -> tuple[Candidate, graphs.Judged]:
        """Return a trial's recipe, with or without what it learns after compression, and the nodes that judge it.

        Raises:
            PipelineError: there is no such student.
        """
        if number in self.beside:
            target = self.baseline.record.target.replace("-", ":", 1)
            found = space.candidate(self.beside[number], {TARGET: target}, "beside")
        else:
            found = space.candidate(self.base, choice, "trial")
            judging.refuse_learnt(self.by, found.recipe, self._request.file, found.file)
        if not trained:
            found = space.untrained(found)
        found = named(found, f"{self.name}/{number:04d}")
        return found, graphs.judged(found, self.by, self.store, length=self.study.judge.length)

    def file_nodes(self, found: Candidate, judged: graphs.Judged) -> list[Node]:
        """Return the node of a trial's file, without its verification, and of its latency if it can be timed here."""
        model = graphs.converted(found, judged.branch)
        latency = graphs.timed(found, model, self.baseline.models[str(found.target)], self.study)
        return [model, *([latency] if latency else [])]

    def judged(
        self,
        number: int,
        choice: Choice,
        found: Candidate,
        judged: graphs.Judged,
        file: Sequence[Node],
        outcome: Outcome,
    ) -> TrialRecord:
        """Return the record of a trial whose nodes are made.

        Args:
            number: of the trial.
            choice: its values.
            found: its recipe.
            judged: its nodes.
            file: the nodes of its file, if it has one already.
            outcome: the artifacts.
        """
        made = outcome.artifact(judged.judgement)
        assert made
        metrics = made.manifest.metrics
        parts = Parts(**metrics["parts"])
        estimated = self.baseline.estimates(parts, found.target)
        known = {**estimated, "metric": float(metrics["metric"])}
        if metrics["recall_at_10"] is not None:
            known["recall_at_10"] = float(metrics["recall_at_10"])
        true = None
        if file:
            model, latency = (outcome.artifact(one) for one in (file[0], file[1] if file[1:] else None))
            assert model
            true = self.measured(found, model, latency)
        return TrialRecord(
            number=number,
            choice=dict(choice),
            target=str(found.target),
            step="compressed",
            measures=baseline.wanted(known, self.study.measures),
            parts=parts,
            drop=judging.drop(str(metrics["metric_name"]), self.baseline.judgement, made),
            estimated={name: estimated[name] for name in ESTIMATED if name in estimated},
            measured=true,
        )

    def measured(self, found: Candidate, model: Artifact, latency: Artifact | None) -> Measured:
        """Return what is known of a file.

        Its latency is that of the base's file, over how many times as fast it was in turns with that file: so latencies
        of hours in which the machine was more or less busy can be compared.

        Args:
            found: its recipe.
            model: the file.
            latency: its `time` artifact, if there is one.
        """
        size = model.manifest.metrics["file_bytes"] / 1e6
        if latency is None:
            return Measured(size_mb=size)
        metrics = latency.manifest.metrics
        times, peak = float(metrics["times_base"][0]), metrics["peak_bytes"]
        return Measured(
            size_mb=size,
            latency_ms=self.baseline.latencies_ms[str(found.target)] / times,
            times_base=times,
            memory_mb=peak / 1e6 if peak else None,
        )

    def by_this_baseline(self, one: TrialRecord) -> TrialRecord:
        """Return a trial of an earlier run with sizes and times by the baseline of this one.

        The earlier run may have been on another machine, or on a busier one.
        """
        if one.failed is not None or one.parts is None or one.target not in self.baseline.models:
            return one
        estimated = self.baseline.estimates(one.parts, Target(*one.target.split("-", 1)))
        kept, true, base_ms = dict(one.measures), one.measured, self.baseline.latencies_ms.get(one.target)
        if one.step != "files":
            kept |= {name: estimated[name] for name in kept if name in estimated}
        # A budget that came later may name a measure that the earlier run did not need.
        for name in self.study.measures:
            known_of = (true is not None and one.step == "files" and getattr(true, name, None)) or estimated.get(name)
            if name not in kept and known_of is not None:
                kept[name] = known_of
        if true is not None and true.times_base and base_ms:
            latency_ms = base_ms / true.times_base
            true = true.model_copy(update={"latency_ms": latency_ms})
            if one.step == "files" and "latency_ms" in kept:
                kept["latency_ms"] = latency_ms
        known = {name: estimated[name] for name in one.estimated if name in estimated}
        return one.model_copy(update={"measures": kept, "estimated": known, "measured": true})


def was_made(outcome: Outcome, node: Node) -> bool:
    """Return whether a node's artifact was made in this run, rather than found."""
    made = outcome.artifact(node)
    return made is not None and any(step.made and step.key == made.manifest.key for step in outcome.steps)
