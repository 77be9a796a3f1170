"""Time a trial's file in turns with the file of the recipe as it is, at the study's length, on one thread."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.benchmark import stage
from pipeline.benchmark.paired import ratio
from pipeline.devices import host
from pipeline.execution.node import Estimate, Input, Log, Node, versions
from pipeline.execution.worker import tell
from pipeline.formats import signature
from pipeline.planning.request import opened
from pipeline.recipe.schema import BenchmarkSection, Recipe
from pipeline.text.bundled import everyday_sentences

VERSION = 1
_ROUNDS, _RUNS = 20, 5


def node(recipe: Recipe, model: Node, base: Node, *, length: int, backend_tools: tuple[str, ...]) -> Node:
    """Return the node that times a file.

    Args:
        recipe: of the candidate.
        model: its file.
        base: the file of the recipe as it is, of the same target; may be the same node.
        length: tokens of a full row.
        backend_tools: distributions of the runtime.
    """
    machine = host.describe()
    return Node(
        recipe=recipe.name,
        name="time",
        place="time",
        stage="time",
        version=VERSION,
        params={"length": length, "machine": [machine.model_id, machine.cpu_features, machine.os]},
        inputs={"model": model, "base": base},
        tools=versions(*backend_tools),
        function=time_file,
        arguments=(Input("model"), Input("base"), length, Log()),
        estimate=Estimate(20.0, 100_000),
        needs="quiet",
        worker="benchmark",
    )


def time_file(model: Path, base: Path, length: int, log: Path, out: Path) -> Mapping[str, Any]:
    """Time two files in turns; the function of a `time` node.

    Raises:
        ToolchainError: a runtime does not open a file, or goes down.
    """
    del out
    both = [opened(base), opened(model)]
    variants = [stage.of_target(both[0], "base"), stage.of_target(both[1])]
    at = min(length, *(signature.read(one.path).max_length for one in both))
    settings = BenchmarkSection(
        lengths=(at,), rounds=_ROUNDS, block_ms=0.0, runs_per_block=_RUNS, texts=1, text_passes=1
    )
    first, second = stage.measure(variants, (at,), everyday_sentences()[:1], 1, settings, log=log, tell=tell)
    theirs, ours = first.timing.lengths[0].latencies_ms, second.timing.lengths[0].latencies_ms
    times = ratio(theirs, ours, rounds=_ROUNDS)
    return {
        "length": at,
        "base_ms": median(theirs),
        "ms": median(ours),
        "times_base": [times.value, times.low, times.high],
        "peak_bytes": second.memory.peak_bytes,
        "file_bytes": both[1].manifest.metrics["file_bytes"],
        "base_bytes": both[0].manifest.metrics["file_bytes"],
    }
