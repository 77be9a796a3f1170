"""Speed ratio of two files that were timed in turns in one run, with its interval; drift affects both alike."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from scipy import stats

CONFIDENCE = 0.95
_RESAMPLES = 2000


class Ratio(BaseModel):
    """One file's time over the other one's: median over rounds, with its interval."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    value: float
    low: float
    high: float

    @property
    def less_time(self) -> float:
        """How much less time the second takes, as a fraction of the first one's; negative where it takes more."""
        return 1 - 1 / self.value


def by_round(samples: Sequence[float], rounds: int) -> NDArray[np.float64]:
    """Return the median of each round's runs, `(rounds,)`; every round has as many."""
    found: NDArray[np.float64] = np.median(np.asarray(samples, np.float64).reshape(rounds, -1), axis=1)
    return found


def ratio(first: Sequence[float], second: Sequence[float], *, rounds: int) -> Ratio:
    """Return the speed ratio first / second as the median over rounds, with a bootstrap interval.

    Args:
        first: times of the file to compare with, round by round.
        second: times of the other file, in the same rounds.
        rounds: number of rounds of the run, two or more.

    Source: Efron and Tibshirani 1993, chapter 13: percentile interval of a bootstrap over rounds.
    """
    ratios = by_round(first, rounds) / by_round(second, rounds)
    found = stats.bootstrap(
        (ratios,),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Ratio(value=float(np.median(ratios)), low=float(found.low), high=float(found.high))
