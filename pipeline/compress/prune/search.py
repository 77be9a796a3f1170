"""Which units are kept: as much importance as a budget buys.

Source: Kwon et al. 2022, mask search (the number of heads is swept, rows fill the rest) and mask rearrangement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.compress.prune.costs import least_cost
from pipeline.compress.prune.importance import Importance
from pipeline.compress.prune.parts import KINDS, Kind, Part
from pipeline.errors import RecipeError

Kept = list[NDArray[np.int64]]
"""For each part the numbers of the units that are kept, ascending."""


@dataclass(frozen=True)
class _Pieces:
    """What is bought one by one: a head, or so many rows of one layer, dearest first by importance per cost."""

    parts: NDArray[np.int64]
    importance: NDArray[np.float64]
    costs: NDArray[np.float64]

    def counts(self, bought: int, parts: int) -> NDArray[np.int64]:
        """Return how many pieces of each part are among the first `bought`."""
        return np.bincount(self.parts[:bought], minlength=parts)


def everything(parts: Sequence[Part]) -> Kept:
    """Return all units of each part."""
    return [np.arange(part.units) for part in parts]


def within(
    parts: Sequence[Part],
    importances: Sequence[Importance],
    costs: Sequence[float],
    *,
    budget: float,
    rows: int,
    even: bool = False,
) -> Kept:
    """Return the units kept so that together they cost no more than a budget.

    Args:
        parts: of the encoder.
        importances: of the units of each part.
        costs: of one unit of each part: multiply-adds, or measured milliseconds.
        budget: in the unit of `costs`.
        rows: feed-forward rows are kept by so many, which is what runtimes compute at once.
        even: each part of a kind keeps as many.

    Raises:
        RecipeError: the budget does not buy a head and `rows` rows for each part.
    """
    spare = budget - least_cost(parts, costs, rows=rows)
    if spare < 0:
        raise RecipeError(f"the budget {budget:.4g} does not buy a head and {rows} rows of each layer.")
    if even:
        return _evenly(parts, importances, costs, budget=budget, rows=rows)
    heads = _pieces(parts, importances, costs, "heads", rows)
    feed_forward = _pieces(parts, importances, costs, "feed_forward", rows)
    paid, gained = _running(feed_forward.costs), _running(feed_forward.importance)
    best, choice = -np.inf, (0, 0)
    for bought, (cost, gain) in enumerate(zip(_running(heads.costs), _running(heads.importance), strict=True)):
        if cost > spare * (1 + 1e-12):
            break
        filled = int(np.searchsorted(paid, (spare - cost) * (1 + 1e-12), side="right")) - 1
        if gain + gained[filled] > best:
            best, choice = gain + gained[filled], (bought, filled)
    counts = heads.counts(choice[0], len(parts)) + feed_forward.counts(choice[1], len(parts))
    return [_top(part, one, 1 + int(count), rows) for part, one, count in zip(parts, importances, counts, strict=True)]


def _evenly(
    parts: Sequence[Part], importances: Sequence[Importance], costs: Sequence[float], *, budget: float, rows: int
) -> Kept:
    """Return as many heads and as many rows of each layer: each number of heads is tried, and rows fill the rest."""
    prices = {kind: sum(cost for part, cost in zip(parts, costs, strict=True) if part.kind == kind) for kind in KINDS}
    most = {kind: min(part.units for part in parts if part.kind == kind) for kind in KINDS}
    rows = min(rows, most["feed_forward"])
    # A last piece that is not whole is as large in each layer only where all have as many rows.
    alike = len({part.units for part in parts if part.kind == "feed_forward"}) == 1
    largest = -(-most["feed_forward"] // rows) if alike else most["feed_forward"] // rows
    best, choice = -np.inf, None
    for heads in range(1, most["heads"] + 1):
        spare = (budget - heads * prices["heads"]) * (1 + 1e-12)
        pieces = min(int(spare // (rows * prices["feed_forward"])), largest)
        if pieces < 1:
            break
        kept = [
            _top(part, one, heads if part.kind == "heads" else pieces, rows)
            for part, one in zip(parts, importances, strict=True)
        ]
        worth = sum(float(one.units[numbers].sum()) for one, numbers in zip(importances, kept, strict=True))
        if worth > best:
            best, choice = worth, kept
    if choice is None:
        raise RecipeError(f"the budget {budget:.4g} does not buy a head and {rows} rows of each layer.")
    return choice


def fraction(
    parts: Sequence[Part],
    importances: Sequence[Importance],
    kept: Kept,
    kind: Kind,
    *,
    of: float,
    rows: int,
    even: bool = False,
) -> Kept:
    """Return `kept` with the given fraction of all units of one kind, wherever they matter most.

    With `even` the fraction is of each part's own, rounded down to whole pieces.

    Raises:
        RecipeError: that is less than a head, or `rows` rows, for each part.
    """
    costs = [float(part.passes) if part.kind == kind else 0.0 for part in parts]
    budget = of * sum(part.units * cost for part, cost in zip(parts, costs, strict=True))
    spare = budget - least_cost(parts, costs, rows=rows)
    if spare < 0:
        raise RecipeError(f"{kind} = {of} leaves no unit for some layer; each keeps a head and {rows} rows.")
    if even:
        fewest = min(part.units for part in parts if part.kind == kind)
        each = int(of * fewest * (1 + 1e-12)) // (1 if kind == "heads" else rows)
        counts = [max(1, each)] * len(parts)
    else:
        pieces = _pieces(parts, importances, costs, kind, rows)
        bought = int(np.searchsorted(_running(pieces.costs), spare * (1 + 1e-12), side="right")) - 1
        counts = [1 + int(count) for count in pieces.counts(bought, len(parts))]
    return [
        _top(part, one, count, rows) if part.kind == kind else before
        for part, one, count, before in zip(parts, importances, counts, kept, strict=True)
    ]


def _running(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(values)])


def _pieces(
    parts: Sequence[Part], importances: Sequence[Importance], costs: Sequence[float], kind: Kind, rows: int
) -> _Pieces:
    """Return all pieces of a kind but the first of each part, which is kept anyway."""
    owners, gains, prices = [], [], []
    for number, (part, importance, cost) in enumerate(zip(parts, importances, costs, strict=True)):
        size = 1 if kind == "heads" else rows
        ordered = np.sort(importance.units)[::-1] if part.kind == kind else np.zeros(0)
        for start in range(size, len(ordered), size):
            piece = ordered[start : start + size]
            owners.append(number)
            gains.append(float(piece.sum()))
            prices.append(cost * len(piece))
    worth = np.array(gains) / np.array(prices)
    order = np.argsort(-worth, kind="stable")
    return _Pieces(np.array(owners, np.int64)[order], np.array(gains)[order], np.array(prices)[order])


def _top(part: Part, importance: Importance, pieces: int, rows: int) -> NDArray[np.int64]:
    count = min(part.units, pieces * (1 if part.kind == "heads" else rows))
    return np.sort(np.argsort(-importance.units, kind="stable")[:count])


def rearranged(kept: Kept, importances: Sequence[Importance]) -> Kept:
    """Exchange units within each part, their number as it is, while that lessens Σ over pairs of what is lost."""
    return [
        one if importance.together is None else _exchanged(one, importance.together)
        for one, importance in zip(kept, importances, strict=True)
    ]


def _exchanged(kept: NDArray[np.int64], together: NDArray[np.float64]) -> NDArray[np.int64]:
    """Try each lost unit once against the best kept one. The loss of lost units p is pᵀ F p."""
    lost = np.ones(len(together), bool)
    lost[kept] = False
    own = together.diagonal()
    shared = together @ lost
    for back in np.flatnonzero(lost):
        others = shared - together[:, back]
        change = np.where(lost, np.inf, own + 2 * others) - (own[back] + 2 * others[back])
        away = int(np.argmin(change))
        if change[away] < -1e-12 * abs(own[back]):
            lost[back], lost[away] = False, True
            shared = others + together[:, away]
    return np.flatnonzero(~lost)
