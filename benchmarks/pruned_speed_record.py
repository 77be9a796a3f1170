"""What pruning buys in the real runtimes: typed rows beside what multiply-adds promise, and the page of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy import stats

from pipeline.benchmark.record import BenchmarkRecord, LengthTiming
from pipeline.errors import ArtifactError

LEAST = 0.8
"""Share of what multiply-adds promise, to which a measured speed-up is held."""
_CONFIDENCE = 0.95
_RESAMPLES = 2000

Verdict = Literal["reached", "missed", "undecided"]
"""Whether the whole interval lies above the bound, below it, or on both sides."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ratio(_Frozen):
    """The unpruned file's time over the pruned one's: median over rounds, with its interval."""

    value: float
    low: float
    high: float


class Row(_Frozen):
    """One pruned file at one length."""

    recipe: str
    backend: str
    scheme: str
    seq_len: int
    unpruned_ms: float
    """Median of the rounds, by the wall clock."""
    ms: float
    wall: Ratio
    cpu: Ratio
    """In processor time, which other work on the machine disturbs less."""
    promised: float
    """Multiply-adds of the unpruned encoder over those of the pruned, at the lengths at which the files ran."""

    @property
    def share(self) -> float:
        """The measured speed-up as a fraction of the promised one."""
        return self.wall.value / self.promised

    @property
    def verdict(self) -> Verdict:
        """What the interval says of the bound."""
        if self.wall.low >= LEAST * self.promised:
            return "reached"
        return "missed" if self.wall.high < LEAST * self.promised else "undecided"


class Speed(_Frozen):
    """One run."""

    schema_version: Literal[1] = 1
    unpruned: str
    """Name of the recipe that the others are compared with."""
    rounds: int
    rows: list[Row]
    records: list[BenchmarkRecord]
    """Records of every file, raw samples included."""


def read(path: Path) -> Speed:
    """Read a run's record.

    Raises:
        ArtifactError: it is absent or cannot be read.
    """
    try:
        return Speed.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ArtifactError(f"{path} is no record of pruned speed; `make pruned-speed` makes one.") from error


def by_round(samples: Sequence[float], rounds: int) -> NDArray[np.float64]:
    """Return the median of each round's runs, `(rounds,)`; every round has as many."""
    found: NDArray[np.float64] = np.median(np.asarray(samples, np.float64).reshape(rounds, -1), axis=1)
    return found


def ratio(unpruned: Sequence[float], pruned: Sequence[float], *, rounds: int) -> Ratio:
    """Return how many times faster the second is, pairing what ran in the same round of one run.

    Source: Efron and Tibshirani 1993, chapter 13: percentile interval of a bootstrap over rounds.
    """
    ratios = by_round(unpruned, rounds) / by_round(pruned, rounds)
    found = stats.bootstrap(
        (ratios,),
        np.median,
        confidence_level=_CONFIDENCE,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Ratio(value=float(np.median(ratios)), low=float(found.low), high=float(found.high))


def row(names: tuple[str, str, str], unpruned: LengthTiming, pruned: LengthTiming, promised: float, rounds: int) -> Row:
    """Compare two files of one run at one length.

    Args:
        names: recipe, backend and scheme.
        unpruned: its runs.
        pruned: likewise.
        promised: see `Row.promised`.
        rounds: of the run.
    """
    recipe, backend, scheme = names
    return Row(
        recipe=recipe,
        backend=backend,
        scheme=scheme,
        seq_len=pruned.seq_len,
        unpruned_ms=float(np.median(by_round(unpruned.latencies_ms, rounds))),
        ms=float(np.median(by_round(pruned.latencies_ms, rounds))),
        wall=ratio(unpruned.latencies_ms, pruned.latencies_ms, rounds=rounds),
        cpu=ratio(unpruned.cpu_ms or [], pruned.cpu_ms or [], rounds=rounds),
        promised=promised,
    )


def page(speed: Speed) -> Iterator[str]:
    """Yield the lines of the table."""
    device, conditions = speed.records[0].device, speed.records[0].conditions
    yield f"{device.model_id}, {' '.join(device.cpu_features)}; one thread, batch 1; {speed.rounds} rounds,"
    yield f"interleaved; other work took {conditions.busy_before_fraction:.0%} of the cores before the run."
    yield f"× against `{speed.unpruned}`, with a {_CONFIDENCE:.0%} interval over rounds; promised: by multiply-adds of"
    yield f"the encoder. The bound is {LEAST} × promised."
    yield ""
    titles = ["recipe", "format", "scheme", "tokens", "ms, unpruned → pruned", "× measured", "× in processor time"]
    titles += ["× promised", "share", "bound"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * 3}{'--:|' * 6}---|"
    for one in speed.rows:
        cells = [one.recipe, one.backend, one.scheme, str(one.seq_len), f"{one.unpruned_ms:.2f} → {one.ms:.2f}"]
        cells += [_shown(one.wall), _shown(one.cpu), f"{one.promised:.2f}", f"{one.share:.2f}", one.verdict]
        yield f"| {' | '.join(cells)} |"


def _shown(found: Ratio) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
