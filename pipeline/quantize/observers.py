"""Observers: functions that choose the range of an activation for int8 from a histogram of its values.

Values outside the range are clipped to its ends; a narrower range has a smaller scale. Every range contains zero, which
int8 then represents exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.ranges import STEPS, Range

Floats = NDArray[np.float64]
BINS = 2048
_PERCENTILE = 99.99
_CANDIDATES = 64
"""Number of candidate widths, as fractions of the full range."""
_LEAST_SHARE = 0.2
"""Smallest candidate width, as a fraction of the full range."""


@dataclass(frozen=True)
class Histogram:
    """Histogram of an activation's values over the calibration set, in bins of equal width."""

    counts: Floats
    """Counts, `(BINS,)`."""
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> "Histogram":
        """Count values of any shape; the histogram's range contains zero."""
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        if low == high:
            high = low + 1e-6
        counts, _ = np.histogram(values, BINS, (low, high))
        return cls(counts.astype(np.float64), low, high)

    @cached_property
    def centres(self) -> Floats:
        """Centre of each bin."""
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        middle: Floats = (edges[1:] + edges[:-1]) / 2
        return middle


def min_max(histogram: Histogram) -> Range:
    """Return the full range: clip nothing."""
    return histogram.low, histogram.high


def percentile(histogram: Histogram) -> Range:
    """Return the range without the outermost 0.01 % of values, half of them on either side."""
    share = np.cumsum(histogram.counts) / histogram.counts.sum()
    tail = (1 - _PERCENTILE / 100) / 2
    inside = np.flatnonzero((share > tail) & (share - histogram.counts / histogram.counts.sum() < 1 - tail))
    edges = np.linspace(histogram.low, histogram.high, len(histogram.counts) + 1)
    return min(float(edges[inside[0]]), 0.0), max(float(edges[inside[-1] + 1]), 0.0)


def mse(histogram: Histogram) -> Range:
    """Return the range with the least mean squared error of rounding and clipping."""
    return min(_ranges(histogram), key=lambda one: _squared_error(histogram, one))


def entropy(histogram: Histogram) -> Range:
    """Return the range whose int8 codes keep the distribution best, by Kullback-Leibler divergence.

    Source: Migacz 2017 (TensorRT's calibration), for symmetric ranges; here both ends may differ.
    """
    return min(_ranges(histogram), key=lambda one: _divergence(histogram, one))


OBSERVERS: Mapping[str, Callable[[Histogram], Range]] = {
    "min_max": min_max,
    "percentile": percentile,
    "mse": mse,
    "entropy": entropy,
}


def _ranges(histogram: Histogram) -> list[Range]:
    """Return candidate ranges: the full one, and others that clip one end or both."""
    found = [(histogram.low, histogram.high)]
    for share in np.linspace(1, _LEAST_SHARE, _CANDIDATES)[1:]:
        low, high = histogram.low * share, histogram.high * share
        found += [(low, high), (low, histogram.high), (histogram.low, high)]
    return list(dict.fromkeys(found))


def _squared_error(histogram: Histogram, found: Range) -> float:
    low, high = found
    step = (high - low) / STEPS
    centres = histogram.centres
    clipped = np.clip(centres, low, high)
    error = np.square(centres - clipped) + step * step / 12
    return float((histogram.counts * error).sum())


def _divergence(histogram: Histogram, found: Range) -> float:
    low, high = found
    centres, counts = histogram.centres, histogram.counts
    inside = np.flatnonzero((centres >= low) & (centres <= high))
    reference = counts[inside].copy()
    reference[0] += counts[centres < low].sum()
    reference[-1] += counts[centres > high].sum()
    # Rounding makes the values of one code equal: its count is spread evenly over its bins that are not empty.
    code = np.minimum(((centres[inside] - low) / (high - low) * STEPS).astype(np.int64), STEPS - 1)
    filled = (counts[inside] > 0).astype(np.float64)
    by_code = np.bincount(code, counts[inside], STEPS) / np.maximum(np.bincount(code, filled, STEPS), 1)
    kept = by_code[code] * filled
    seen = reference > 0
    p, q = reference[seen] / reference.sum(), kept[seen] / max(kept.sum(), 1.0)
    return float((p * np.log(p / np.maximum(q, 1e-12))).sum())
