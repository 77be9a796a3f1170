"""What a study measures before its first trial: the student that its recipe begins with, and the tables of costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.artifact import Artifact
from pipeline.convert.stage import Target
from pipeline.errors import RecipeError
from pipeline.execution.executor import Outcome
from pipeline.execution.node import Graph, Node
from pipeline.execution.store import Store
from pipeline.fronts.parts import Parts
from pipeline.fronts.record import Measured, TrialRecord
from pipeline.fronts.spec import TARGET, Measure, Range, Study
from pipeline.schemes import SCHEMES
from pipeline.study import costs, graphs, space
from pipeline.study.costs import Table
from pipeline.study.judging import JudgedBy
from pipeline.study.space import Base, Candidate

NUMBER = -1
"""The number of the recipe as it is among the trials."""


@dataclass
class OfTarget:
    """The base's file of one target, and the table of costs."""

    candidate: Candidate
    model: Node
    latency: Node | None
    table: Node | None


@dataclass
class Baseline:
    """The student that every trial is compared with."""

    judgement: Artifact
    parts: Parts
    measures: dict[str, float]
    tables: dict[str, Table]
    """By target."""
    sizes_mb: dict[str, float]
    latencies_ms: dict[str, float]
    memories_mb: dict[str, float]
    models: dict[str, Node]
    """The nodes of the base's files, which trials are timed beside."""
    table_bits: int
    record: TrialRecord
    misfits: dict[str, float] = field(default_factory=dict)

    def estimates(self, parts: Parts, target: Target) -> dict[str, float]:
        """Return the estimated size, latency and memory of a candidate's file, held to the base's real ones.

        The size is that of the weights in the scheme, plus what the base's file has beside its weights. The latency is
        by the table of costs, times what the base takes beside its own estimate. The memory is the base's, more or less
        what the file is larger or smaller.
        """
        name, scheme = str(target), SCHEMES[target.scheme]

        def weights_mb(one: Parts) -> float:
            return scheme.file_bytes(one.table, one.others, self.table_bits) / 1e6

        found = {"macs_m": parts.macs / 1e6, "size_mb": weights_mb(parts)}
        found["size_mb"] += max(0.0, self.sizes_mb[name] - weights_mb(self.parts))
        if name in self.tables:
            table = self.tables[name]
            scale = self.latencies_ms[name] / table.estimate_ms(self.parts)
            found["latency_ms"] = table.estimate_ms(parts) * scale
        if name in self.memories_mb:
            # A runtime's own memory is the same for all; a file is mapped or copied whole.
            found["memory_mb"] = self.memories_mb[name] + found["size_mb"] - self.sizes_mb[name]
        return found


def targets(study: Study, base: Base) -> list[Target]:
    """Return the targets of a space, or the base recipe's first."""
    named = study.space.get(TARGET)
    assert not isinstance(named, Range)
    return [graphs.uncompressed(base, Target(*str(one).split(":", 1))).target for one in named or ()] or [
        space.candidate(base, {}, "base").target
    ]


def check_timing(study: Study, every: list[Target]) -> None:
    """Refuse a latency or a peak of memory that this machine cannot measure.

    Raises:
        RecipeError: a target has no runtime here.
    """
    timed = [name for name in ("latency_ms", "memory_mb") if name in study.measures]
    for target in every if timed else ():
        if (reason := costs.can_be_timed(target)) is not None:
            raise RecipeError(f"{timed[0]} of {target} cannot be measured here: {reason}. Take macs_m in its place.")


def nodes(study: Study, base: Base, by: JudgedBy, store: Store, name: str) -> tuple[Graph, Node, dict[str, OfTarget]]:
    """Return the graph of a baseline: the judgement of its checkpoint, and files and costs of each target."""
    graph, found, judgement = Graph(name), {}, None
    for target in targets(study, base):
        one = graphs.named(graphs.uncompressed(base, target), f"{name}/base")
        judged = graphs.judged(one, by, store, length=study.judge.length)
        judgement = judgement or judged.judgement
        model = graphs.converted(one, judged.branch)
        latency = graphs.timed(one, model, model, study)
        table = None
        if "latency_ms" in study.measures and latency is not None:
            table = costs.node(one.recipe, judged.branch.end.input, target, length=study.judge.length)
        graph.include(judgement, model, *(node for node in (latency, table) if node))
        found[str(target)] = OfTarget(one, model, latency, table)
    assert judgement
    return graph, judgement, found


def read(outcome: Outcome, judgement: Node, found: Mapping[str, OfTarget]) -> Baseline:
    """Return the baseline that a graph's artifacts hold."""
    judged = outcome.artifact(judgement)
    assert judged
    metrics = judged.manifest.metrics
    parts = Parts(**metrics["parts"])
    tables, sizes, latencies, memories = {}, {}, {}, {}
    for name, one in found.items():
        model, latency, table = (outcome.artifact(node) for node in (one.model, one.latency, one.table))
        assert model
        sizes[name] = model.manifest.metrics["file_bytes"] / 1e6
        if latency:
            latencies[name] = float(latency.manifest.metrics["ms"])
            if peak := latency.manifest.metrics["peak_bytes"]:
                memories[name] = peak / 1e6
        if table:
            tables[name] = costs.read(table.path)
    first = next(iter(found))
    measures: dict[str, float] = {"metric": float(metrics["metric"]), "size_mb": sizes[first]}
    measures["macs_m"] = parts.macs / 1e6
    if metrics["recall_at_10"] is not None:
        measures["recall_at_10"] = float(metrics["recall_at_10"])
    if first in latencies:
        measures["latency_ms"] = latencies[first]
    if first in memories:
        measures["memory_mb"] = memories[first]
    quantize = found[first].candidate.recipe.quantize
    record = TrialRecord(
        number=NUMBER,
        choice={},
        target=first,
        step="compressed",
        measures=measures,
        parts=parts,
        measured=Measured(size_mb=sizes[first], latency_ms=latencies.get(first), memory_mb=memories.get(first)),
    )
    return Baseline(
        judged,
        parts,
        measures,
        tables,
        sizes,
        latencies,
        memories,
        {name: one.model for name, one in found.items()},
        quantize.table_bits if quantize else 8,
        record,
        {name: table.misfit for name, table in tables.items()},
    )


def wanted(measures: Mapping[str, float], names: tuple[Measure, ...]) -> dict[str, float]:
    """Return the measures of a study among all that are known."""
    return {name: measures[name] for name in names if name in measures}
