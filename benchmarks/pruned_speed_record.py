"""What pruning buys in the real runtimes: typed rows beside what multiply-adds promise, and the page of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.benchmark.paired import CONFIDENCE, Ratio, by_round, ratio
from pipeline.benchmark.record import BenchmarkRecord, LengthTiming
from pipeline.errors import ArtifactError

LEAST = 0.8
"""Share of what multiply-adds promise, to which a measured speed-up is held."""

Verdict = Literal["reached", "missed", "undecided"]
"""Whether the whole interval lies above the bound, below it, or on both sides."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    yield f"× against `{speed.unpruned}`, with a {CONFIDENCE:.0%} interval over rounds; promised: by multiply-adds of"
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
