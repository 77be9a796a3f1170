"""What a study would do: its choices, and the hours of each step by a sample of its trials."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.errors import PipelineError
from pipeline.execution.node import Graph, Node
from pipeline.execution.pace import Pace
from pipeline.execution.store import Store
from pipeline.fronts.spec import LEFT_OUT, TARGET, Study
from pipeline.study import baseline, graphs, judging, space
from pipeline.study.baseline import OfTarget
from pipeline.study.bench import Request
from pipeline.study.graphs import named
from pipeline.study.judging import JudgedBy
from pipeline.study.proposing import load_optuna
from pipeline.study.space import Base, Candidate

_SAMPLED = 8
"""Trials that a plan looks at."""


@dataclass(frozen=True)
class Plan:
    """What a study would do."""

    choices: int | None
    """Different choices of its space; None if there is no end of them."""
    trials: int
    hours: float
    """Estimated hours in all; of a cluster's machines, which share trainings, one is counted."""
    hours_by_step: dict[str, float]
    """Those of the baseline, of compressed students by a sample, of trained ones and files by one each, and of recipes
    beside."""
    sampled: int
    asked: int
    """Artifacts that the sample asks for."""
    shared: int
    """Those that another trial of the sample has too, or that are there."""


def plan(request: Request) -> Plan:
    """Estimate a study's hours by a random sample of its trials. Nothing is written.

    Raises:
        PipelineError: the study, its recipe or its data cannot work, or no trial of the sample can be trained.
    """
    study, store = request.study, Store(request.build)
    base = space.base(study, request.file)
    by = judging.choose(study.judge, base.recipe, request.file, base.file)
    baseline.check_timing(study, baseline.targets(study, base))
    choices = space.size(study)
    trials = min(study.trials.compressed, choices or study.trials.compressed)
    begins, _, of_targets = baseline.nodes(study, base, by, store, study.name)
    count = min(_SAMPLED, trials)
    sample = _sample(study, base, by, {name: one.model for name, one in of_targets.items()}, store, count)
    absent = [node for node in sample.compressed.nodes.values() if not _there(node, store)]
    seconds = _Seconds(Pace(), max(1, request.parallel))
    trained = min(study.trials.trained, trials)
    at_once = [node for node in sample.trained if node.needs == "machine"] * min(trained, seconds.parallel)
    first = next(iter(of_targets.values()))
    beside = [node for one in space.beside(study, request.file) for node in _beside(one, by, first, study, store)]
    hours = {
        "baseline": seconds.of(node for node in begins.nodes.values() if not _there(node, store)),
        "compressed": seconds.of(absent) * trials / max(count, 1),
        "trained": seconds.of(sample.trained, trainings=_together(at_once, request)) * trained,
        "files": seconds.of(sample.file) * min(study.trials.files, trials),
        "beside": seconds.of(beside),
    }
    hours = {step: value / 3600 for step, value in hours.items()}
    return Plan(choices, trials, sum(hours.values()), hours, count, sample.asked, sample.asked - len(absent))


def _together(trainings: list[Node], request: Request) -> int:
    """Return how many trainings run at a time; of a cluster, one, since its machines are not known."""
    executor = request.executor()
    if executor is None:
        return graphs.trainings_at_once(trainings)
    executor.close()
    return 1


@dataclass
class _Sample:
    """The nodes of a few trials."""

    compressed: Graph
    """What judges all of them without training."""
    asked: int = 0
    """Artifacts that they ask for, a shared one as often as it is asked for."""
    trained: list[Node] = field(default_factory=list)
    """What one of them needs beyond that to be trained and judged again."""
    file: list[Node] = field(default_factory=list)
    """What its file needs beyond that."""


def _sample(
    study: Study, base: Base, by: JudgedBy, base_models: Mapping[str, Node], store: Store, count: int
) -> _Sample:
    """Draw trials at random, without those that are no student.

    Raises:
        PipelineError: none of them can be trained or become a file, and some are to be.
    """
    optuna = load_optuna()
    sampler = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=study.trials.seed))
    found, problem = _Sample(Graph(study.name)), None
    for number in range(count):
        choice = space.suggest(study, sampler.ask())
        try:
            whole = named(space.candidate(base, choice, "trial"), f"plan/{number}")
            plain = space.untrained(whole)
            judged = graphs.judged(plain, by, store, length=study.judge.length)
        except PipelineError:
            continue
        own = Graph(study.name)
        own.include(judged.judgement)
        found.asked += len(own.nodes)
        found.compressed.include(judged.judgement)
        # A choice may leave nothing to learn; one that learns tells more.
        if not found.trained and any(value != LEFT_OUT for key, value in choice.items() if key != TARGET):
            try:
                last = whole if study.trials.trained else plain
                found.trained, found.file = _later(last, own, by, base_models[str(whole.target)], study, store)
            except PipelineError as error:
                problem = error
    if problem and not found.file and (study.trials.trained or study.trials.files):
        raise problem
    return found


@dataclass(frozen=True)
class _Seconds:
    """What nodes take on a machine that runs several at a time."""

    pace: Pace
    parallel: int

    def of(self, nodes: Iterable[Node], *, trainings: int = 1) -> float:
        """Return the seconds of nodes, of which so many trainings and one that is timed run at a time."""
        at_once = {"core": self.parallel, "machine": trainings, "quiet": 1}
        return sum(self.pace.seconds(one) / at_once[one.needs] for one in nodes)


def _later(
    whole: Candidate, own: Graph, by: JudgedBy, base_model: Node, study: Study, store: Store
) -> tuple[list[Node], list[Node]]:
    """Return the nodes that train a trial, and those of its file.

    Args:
        whole: the trial with all that it learns, if trials are trained.
        own: the nodes that judge it without training.
        by: what it is judged on.
        base_model: the file that its file is timed beside.
        study: the study.
        store: of the build folder.

    Raises:
        PipelineError: the trial cannot be made.
    """
    trained, (file, _) = Graph(study.name), graphs.verified(whole, by, base_model, study, store)
    trained.include(graphs.judged(whole, by, store, length=study.judge.length).judgement)
    of_base = Graph(study.name)
    of_base.include(base_model)
    learned = [node for identity, node in trained.nodes.items() if identity not in own.nodes]
    known = {*own.nodes, *trained.nodes, *of_base.nodes}
    return learned, [node for identity, node in file.nodes.items() if identity not in known]


def _beside(one: Base, by: JudgedBy, of_target: OfTarget, study: Study, store: Store) -> list[Node]:
    """Return the nodes of a recipe that is shown beside the trials; a run leaves one out that cannot work."""
    target = of_target.candidate.target
    try:
        found = named(space.candidate(one, {TARGET: f"{target.backend}:{target.scheme}"}, "beside"), "plan/beside")
        graph, _ = graphs.verified(found, by, of_target.model, study, store)
    except PipelineError:
        return []
    return [node for node in graph.nodes.values() if not _there(node, store)]


def _there(node: Node, store: Store) -> bool:
    """Return whether an artifact exists that needs no other one; the keys of others are not known yet."""
    return not list(node.parents) and store.lookup(node.spec({})) is not None
