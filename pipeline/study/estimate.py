"""What a study would do: its choices, and the hours of each step by a sample of its trials."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.errors import PipelineError
from pipeline.execution.node import Graph, Node
from pipeline.execution.pace import Pace
from pipeline.execution.store import Store
from pipeline.fronts.spec import Study
from pipeline.study import baseline, graphs, judging, space
from pipeline.study.bench import Request
from pipeline.study.graphs import named
from pipeline.study.judging import JudgedBy
from pipeline.study.proposing import load_optuna
from pipeline.study.space import Candidate

_SAMPLED = 8
"""Trials that a plan looks at."""


@dataclass(frozen=True)
class Plan:
    """What a study would do."""

    choices: int | None
    """Different choices of its space; None if there is no end of them."""
    trials: int
    hours: float
    """Estimated hours in all; training and timing take a machine each, and count as if there were one."""
    hours_by_step: dict[str, float]
    """Those of the baseline, of compressed students by a sample of them, of trained ones and of files by one each."""
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
    optuna = load_optuna()
    study, store = request.study, Store(request.build)
    base = space.base(study, request.file)
    by = judging.choose(study.judge, base.recipe, request.file, base.file)
    baseline.check_timing(study, baseline.targets(study, base))
    choices = space.size(study)
    trials = min(study.trials.compressed, choices or study.trials.compressed)
    sampled = min(_SAMPLED, trials)
    sampler = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=study.trials.seed))
    begins, _, of_targets = baseline.nodes(study, base, by, store, study.name)
    nodes, asked, later = Graph(study.name), 0, _Later()
    problem: PipelineError | None = None
    for number in range(sampled):
        choice = space.suggest(study, sampler.ask())
        try:
            whole = named(space.candidate(base, choice, "trial"), f"plan/{number}")
            judged = graphs.judged(space.untrained(whole), by, store, length=study.judge.length)
        except PipelineError:
            continue
        own = Graph(study.name)
        own.include(judged.judgement)
        asked += len(own.nodes)
        nodes.include(judged.judgement)
        # Whether a choice learns anything is not known before it is looked at: one that does tells more.
        if not later.trained:
            try:
                later = _later(whole, own, by, of_targets[str(whole.target)].model, study, store)
            except PipelineError as error:
                problem = error
    if problem and not later.file:
        raise problem
    absent = [node for node in nodes.nodes.values() if not _there(node, store)]
    seconds = _Seconds(Pace(), max(1, request.parallel))
    files = min(study.trials.files, trials)
    hours = {
        "baseline": seconds.of(node for node in begins.nodes.values() if not _there(node, store)),
        "compressed": seconds.of(absent) * trials / max(sampled, 1),
        "trained": seconds.of(later.trained) * min(study.trials.trained, trials),
        "files": seconds.of(later.file) * files,
    }
    hours = {step: value / 3600 for step, value in hours.items()}
    return Plan(choices, trials, sum(hours.values()), hours, sampled, asked, asked - len(absent))


@dataclass(frozen=True)
class _Seconds:
    """What nodes take on a machine that runs several at a time."""

    pace: Pace
    parallel: int

    def of(self, nodes: Iterable[Node]) -> float:
        """Return the seconds of nodes; one that needs the whole machine runs alone."""
        return sum(self.pace.seconds(one) / (self.parallel if one.needs == "core" else 1) for one in nodes)


@dataclass(frozen=True)
class _Later:
    """The nodes that a trial needs beyond its first judgement."""

    trained: list[Node] = field(default_factory=list)
    file: list[Node] = field(default_factory=list)


def _later(whole: Candidate, own: Graph, by: JudgedBy, base_model: Node, study: Study, store: Store) -> _Later:
    """Return the nodes that train a trial, and those of its file.

    Args:
        whole: the trial with all that it learns.
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
    return _Later(learned, [node for identity, node in file.nodes.items() if identity not in known])


def _there(node: Node, store: Store) -> bool:
    """Return whether an artifact exists that needs no other one; the keys of others are not known yet."""
    return not list(node.parents) and store.lookup(node.spec({})) is not None
