"""Time two files of one target in turns in one run: only such times show reliably which of them is slower.

They run with one thread, which waits for no other one.
"""

from pathlib import Path
from statistics import median

from pydantic import BaseModel, ConfigDict

from pipeline.artifact import Artifact
from pipeline.benchmark import stage
from pipeline.benchmark.paired import Ratio, ratio
from pipeline.benchmark.stage import Tell
from pipeline.formats import signature
from pipeline.recipe.schema import BenchmarkSection
from pipeline.text.bundled import everyday_sentences

_LEAST_ROUNDS = 20
"""The interval is of a bootstrap over rounds: of few rounds it is as wide as their extremes."""
_LEAST_RUNS = 5
"""Runs of a file in a round; their median is used, so that a single stalled run has no effect."""


class InTurns(BaseModel):
    """Two files at one length."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seq_len: int
    before_ms: float
    """Median over all runs of the file that is compared with."""
    now_ms: float
    growth: Ratio
    """The time of the file now over that of the file before; above 1 it takes longer."""


def time_pair(before: Artifact, now: Artifact, settings: BenchmarkSection, *, log: Path, tell: Tell) -> list[InTurns]:
    """Time full rows of both files in turns, at the recipe's lengths that both files support.

    Args:
        before: the file that is compared with.
        now: the other one, of the same target.
        settings: lengths, and the least number of rounds and runs of a round.
        log: where the runtimes' own words go.
        tell: called with what is being done and the fraction done.

    Raises:
        ToolchainError: a runtime does not open a file, or goes down.
    """
    longest = min(signature.read(one.path).max_length for one in (before, now))
    lengths = (*(length for length in settings.lengths if length < longest), longest)
    rounds = max(settings.rounds, _LEAST_ROUNDS)
    # Every block has as many runs, so that rounds can be told apart and paired.
    steady = BenchmarkSection(
        lengths=lengths,
        rounds=rounds,
        block_ms=0,
        runs_per_block=max(settings.runs_per_block, _LEAST_RUNS),
        text_passes=1,
    )
    variants = [stage.of_target(before, "baseline"), stage.of_target(now)]
    first, second = stage.measure(variants, lengths, everyday_sentences()[:1], 1, steady, log=log, tell=tell)
    found = []
    for theirs, ours in zip(first.timing.lengths, second.timing.lengths, strict=True):
        growth = ratio(ours.latencies_ms, theirs.latencies_ms, rounds=rounds)
        before_ms, now_ms = median(theirs.latencies_ms), median(ours.latencies_ms)
        found.append(InTurns(seq_len=ours.seq_len, before_ms=before_ms, now_ms=now_ms, growth=growth))
    return found
