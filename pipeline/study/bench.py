"""What all trials of a study share: the recipe, the data, the store, the baseline; and how one is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.execution.executor import Executor, Outcome, Progress
from pipeline.execution.node import Graph, Node
from pipeline.execution.store import Store
from pipeline.planning.run import carry_out
from pipeline.study import baseline, graphs, judging, record, selection, space
from pipeline.study.baseline import Baseline
from pipeline.study.graphs import named
from pipeline.study.judging import JudgedBy
from pipeline.study.parts import Parts
from pipeline.study.record import ESTIMATED, Measured, TrialRecord
from pipeline.study.space import Base, Candidate, Choice
from pipeline.study.spec import Study

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

    def __init__(self, request: Request, progress: Progress) -> None:
        """Read the recipe and the data, and measure the baseline.

        Raises:
            PipelineError: the study, its recipe or its data cannot work.
        """
        self._request, self.study, self.progress = request, request.study, progress
        self.store = Store(request.build)
        self.base: Base = space.base(self.study, request.file)
        self.by: JudgedBy = judging.choose(self.study.judge, self.base.recipe, request.file)
        baseline.check_timing(self.study, baseline.targets(self.study, self.base))
        self.name = f"{record.FOLDER}/{self.study.name}"
        graph, judgement, found = baseline.nodes(self.study, self.base, self.by, self.store, self.name)
        self.baseline: Baseline = baseline.read(self.carry_out(graph), judgement, found)
        self.bounds = selection.bounds(self.study.budget, self.baseline.measures["metric"])

    def carry_out(self, graph: Graph) -> Outcome:
        """Make what a graph lacks."""
        # Artifacts are found by their keys: views would fill the build folder with a folder for each trial.
        graph.views.clear()
        return carry_out(graph, self._request.build, self.progress, self._request.executor())

    def candidate(self, number: int, choice: Choice, *, trained: bool) -> tuple[Candidate, graphs.Judged]:
        """Return a trial's recipe, with or without what it learns after compression, and the nodes that judge it.

        Raises:
            PipelineError: there is no such student.
        """
        found = space.candidate(self.base, choice, "trial")
        if not trained:
            found = space.untrained(found, self.base.file)
        found = named(found, f"{self.name}/{number:04d}")
        return found, graphs.judged(found, self.base.file, self.by, self.store, length=self.study.judge.length)

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
            true = measured(model.manifest.metrics["file_bytes"], latency.manifest.metrics if latency else None)
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


def was_made(outcome: Outcome, node: Node) -> bool:
    """Return whether a node's artifact was made in this run, rather than found."""
    made = outcome.artifact(node)
    return made is not None and any(step.made and step.key == made.manifest.key for step in outcome.steps)


def measured(file_bytes: int, latency: Any) -> Measured:
    """Return what is known of a file by its size and the metrics of its `time` artifact, if there is one."""
    if latency is None:
        return Measured(size_mb=file_bytes / 1e6)
    peak = latency["peak_bytes"]
    return Measured(
        size_mb=file_bytes / 1e6,
        latency_ms=float(latency["ms"]),
        times_base=float(latency["times_base"][0]),
        memory_mb=peak / 1e6 if peak else None,
    )
