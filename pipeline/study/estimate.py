"""What a study would do: its choices and the hours of its cheap trials, by a sample of those."""

from dataclasses import dataclass

from pipeline.errors import PipelineError
from pipeline.execution.node import Graph, Node
from pipeline.execution.pace import Pace
from pipeline.execution.store import Store
from pipeline.study import baseline, graphs, judging, space
from pipeline.study.bench import Request
from pipeline.study.graphs import named
from pipeline.study.proposing import load_optuna

_SAMPLED = 8
"""Trials that a plan looks at."""


@dataclass(frozen=True)
class Plan:
    """What a study would do."""

    choices: int | None
    """Different choices of its space; None if there is no end of them."""
    trials: int
    hours: float
    """Estimated hours of the compressed trials, by a sample of them; training and files come on top."""
    sampled: int
    asked: int
    """Artifacts that the sample asks for."""
    shared: int
    """Those that another trial of the sample has too, or that are there."""


def plan(request: Request) -> Plan:
    """Estimate a study's compressed trials by a random sample of them. Nothing is written.

    Raises:
        PipelineError: the study, its recipe or its data cannot work.
    """
    optuna = load_optuna()
    study, store, pace = request.study, Store(request.build), Pace()
    base = space.base(study, request.file)
    by = judging.choose(study.judge, base.recipe, request.file, base.file)
    baseline.check_timing(study, baseline.targets(study, base))
    choices = space.size(study)
    trials = min(study.trials.compressed, choices or study.trials.compressed)
    sampled = min(_SAMPLED, trials)
    sampler = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=study.trials.seed))
    graph, asked = Graph(study.name), 0
    for number in range(sampled):
        choice = space.suggest(study, sampler.ask())
        try:
            found = space.untrained(space.candidate(base, choice, "trial"))
            judged = graphs.judged(named(found, f"plan/{number}"), by, store, length=study.judge.length)
        except PipelineError:
            continue
        own = Graph(study.name)
        own.include(judged.judgement)
        asked += len(own.nodes)
        graph.include(judged.judgement)
    absent = [node for node in graph.nodes.values() if not _there(node, store)]
    seconds = sum(pace.seconds(node) for node in absent) * trials / max(sampled, 1)
    hours = seconds / 3600 / max(1, request.parallel)
    return Plan(choices, trials, hours, sampled, asked, asked - len(absent))


def _there(node: Node, store: Store) -> bool:
    """Return whether an artifact exists that needs no other one; the keys of others are not known yet."""
    return not list(node.parents) and store.lookup(node.spec({})) is not None
