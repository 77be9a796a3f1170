"""Bring a trial further: train it as the recipe says, make its verified file, and report on data no choice has seen."""

import time
from typing import Any

from pipeline import tasks
from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.execution.executor import Outcome
from pipeline.execution.node import Graph, Node
from pipeline.fronts.record import Reported, Step, TrialRecord
from pipeline.study import baseline, graphs, judging
from pipeline.study.bench import Bench, was_made
from pipeline.study.graphs import named
from pipeline.study.space import Candidate
from pipeline.verify.record import Parity
from pipeline.verify.stage import read_parity


def untimed(bench: Bench, step: Step, one: TrialRecord) -> Graph:
    """Return the graph of all that a step needs of a trial, but for the times of its file.

    Raises:
        PipelineError: the recipe cannot work.
    """
    found, judged = bench.candidate(one.number, one.choice, trained=one.trained or step == "trained")
    graph = Graph(bench.name)
    graph.include(judged.judgement)
    if step == "files":
        base_model = bench.baseline.models[str(found.target)]
        file, _ = graphs.verified(found, bench.by, base_model, bench.study, bench.store)
        last = _report_node(bench, found, judged)
        graph.include(*(node for node in file.nodes.values() if node.needs != "quiet"), *([last] if last else []))
    return graph


def train(bench: Bench, one: TrialRecord) -> TrialRecord:
    """Judge a trial's student after all that its recipe does to it.

    Raises:
        PipelineError: the recipe cannot work.
    """
    began = time.monotonic()
    found, judged = bench.candidate(one.number, one.choice, trained=True)
    graph = Graph(bench.name)
    graph.include(judged.judgement)
    asked, outcome = len(graph.nodes), bench.carry_out(graph)
    kept = bench.judged(one.number, one.choice, found, judged, (), outcome)
    made = sum(was_made(outcome, node) for node in graph.nodes.values())
    more = {
        "step": "trained",
        "trained": True,
        "measured": one.measured,
        "nodes": one.nodes + asked,
        "made": one.made + made,
        "seconds": one.seconds + time.monotonic() - began,
    }
    return kept.model_copy(update=more)


def file(bench: Bench, one: TrialRecord) -> TrialRecord:
    """Make a trial's file, verify, judge and time it.

    Raises:
        PipelineError: the recipe cannot work.
    """
    began = time.monotonic()
    # One that was not trained, for lack of time or of anything to train, stays as it was judged.
    found, judged = bench.candidate(one.number, one.choice, trained=one.trained)
    base_model = bench.baseline.models[str(found.target)]
    graph, nodes = graphs.verified(found, bench.by, base_model, bench.study, bench.store)
    graph.include(judged.judgement)
    last = _report_node(bench, found, judged)
    graph.include(*([last] if last else []))
    asked, outcome = len(graph.nodes), bench.carry_out(graph)
    made = sum(was_made(outcome, node) for node in graph.nodes.values())
    model, judgement = outcome.artifact(nodes.model), outcome.artifact(nodes.judgement)
    assert model
    assert judgement
    latency, metrics = outcome.artifact(nodes.latency), judgement.manifest.metrics
    true = bench.measured(found, model, latency)
    known = {**one.measures, "metric": float(metrics["metric"]), "size_mb": true.size_mb}
    known |= {name: value for name in ("latency_ms", "memory_mb") if (value := getattr(true, name)) is not None}
    if metrics["recall_at_10"] is not None:
        known["recall_at_10"] = float(metrics["recall_at_10"])
    parity_of = outcome.artifact(nodes.parity)
    parity = read_parity(parity_of.path) if parity_of else None
    more: dict[str, Any] = {
        "step": "files",
        "measures": baseline.wanted(known, bench.study.measures),
        "drop": judging.drop(str(metrics["metric_name"]), bench.baseline.judgement, judgement),
        "measured": true,
        "verdict": parity.verdict if parity else None,
        "reported": _reported(outcome.artifact(last), base_report(bench), parity),
        "nodes": one.nodes + asked,
        "made": one.made + made,
        "seconds": one.seconds + time.monotonic() - began,
    }
    return one.model_copy(update=more)


def beside(bench: Bench) -> list[TrialRecord]:
    """Return records of the recipes that are shown beside the trials: their files, made and judged like a trial's.

    Raises:
        PipelineError: one of them cannot work.
    """
    found = []
    for number, other in bench.beside.items():
        begun = TrialRecord(
            number=number, choice={}, target=bench.baseline.record.target, step="compressed", measures={}, trained=True
        )
        made = file(bench, train(bench, begun))
        found.append(made.model_copy(update={"choice": {"recipe": other.recipe.name}}))
    return found


def report(bench: Bench, one: TrialRecord) -> Artifact | None:
    """Return the judgement of a trial's student on the data that the recipe reports on; None if it reports on none."""
    found, judged = bench.candidate(one.number, one.choice, trained=one.trained)
    return _report(bench, found, judged)


def base_report(bench: Bench) -> Artifact | None:
    """Return the judgement of the recipe as it is on the data that it reports on; None if it reports on none."""
    target = Target(*bench.baseline.record.target.split("-", 1))
    found = named(graphs.uncompressed(bench.base, target), f"{bench.name}/base")
    return _report(bench, found, graphs.judged(found, bench.by, bench.store, length=bench.study.judge.length))


def _report(bench: Bench, found: Candidate, judged: graphs.Judged) -> Artifact | None:
    node = _report_node(bench, found, judged)
    if node is None:
        return None
    graph = Graph(bench.name)
    graph.include(node)
    outcome: Outcome = bench.carry_out(graph)
    return outcome.artifact(node)


def report_of_base(bench: Bench) -> Reported | None:
    """Return what is reported of the recipe as it is."""
    return _reported(base_report(bench), None, None)


def _report_node(bench: Bench, found: Candidate, judged: graphs.Judged) -> Node | None:
    choice = judged.branch.datasets
    names = tasks.get(found.recipe.task).datasets if choice is None else choice
    by = judging.reported_on(found.recipe, found.file, bench.by, names)
    if by is None:
        return None
    source, length = judged.branch.end.input, bench.study.judge.length
    return judging.node(found.recipe, source, by, length=length, name="judge for the report")


def _reported(made: Artifact | None, base: Artifact | None, parity: Parity | None) -> Reported | None:
    if made is None:
        return None
    metrics = made.manifest.metrics
    scores = parity.datasets if parity else []
    return Reported(
        dataset=metrics["dataset"],
        metric=metrics["metric_name"],
        fp32=metrics["metric"],
        drop=judging.drop(str(metrics["metric_name"]), base, made) if base else None,
        file=next((one.found for one in scores if one.dataset == metrics["dataset"]), None),
        recall_at_10=metrics["recall_at_10"],
    )
