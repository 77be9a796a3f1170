"""Search of the structures to keep: the largest total importance within a budget.

Source: Kwon et al. 2022. Mask search tries each number of heads, and spends the rest of the budget on neurons; mask
rearrangement then exchanges structures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.compress.prune.importance import Importance
from pipeline.compress.prune.structure import KINDS, STRUCTURES, SublayerKind, SublayerShape, least_cost
from pipeline.errors import RecipeError

KeptStructures = list[NDArray[np.int64]]
"""For each sublayer, the numbers of the structures to keep, ascending."""


@dataclass(frozen=True)
class _Chunks:
    """What a budget search adds: heads, or groups of neurons; ordered by importance per cost, highest first."""

    sublayers: NDArray[np.int64]
    importance: NDArray[np.float64]
    costs: NDArray[np.float64]

    def counts(self, bought: int, sublayers: int) -> NDArray[np.int64]:
        """Return the number of each sublayer's chunks among the first `bought`."""
        return np.bincount(self.sublayers[:bought], minlength=sublayers)


def keep_all(sublayers: Sequence[SublayerShape]) -> KeptStructures:
    """Return all structures of each sublayer."""
    return [np.arange(sublayer.size) for sublayer in sublayers]


def search_budget(
    sublayers: Sequence[SublayerShape],
    importances: Sequence[Importance],
    costs: Sequence[float],
    *,
    budget: float,
    intermediate_multiple: int,
    uniform: bool = False,
) -> KeptStructures:
    """Return the structures to keep: the most important ones that together cost no more than a budget.

    Args:
        sublayers: shapes of the encoder's sublayers.
        importances: importance of each sublayer's structures.
        costs: cost of one structure of each sublayer, in MACs or measured milliseconds.
        budget: largest total cost, in the unit of `costs`.
        intermediate_multiple: neurons are kept in multiples of this number.
        uniform: whether all layers keep the same number of heads and the same number of neurons.

    Raises:
        RecipeError: the budget is below the cost of one head and one multiple of neurons in each layer.
    """
    spare = budget - least_cost(sublayers, costs, intermediate_multiple=intermediate_multiple)
    if spare < 0:
        raise _too_small(budget, intermediate_multiple)
    if uniform:
        return _search_uniform(
            sublayers, importances, costs, budget=budget, intermediate_multiple=intermediate_multiple
        )
    heads = _chunks(sublayers, importances, costs, "attention", 1)
    neurons = _chunks(sublayers, importances, costs, "feed_forward", intermediate_multiple)
    paid, gained = _running_sum(neurons.costs), _running_sum(neurons.importance)
    best, choice = -np.inf, (0, 0)
    running = zip(_running_sum(heads.costs), _running_sum(heads.importance), strict=True)
    for bought, (cost, gain) in enumerate(running):
        if cost > spare * (1 + 1e-12):
            break
        filled = int(np.searchsorted(paid, (spare - cost) * (1 + 1e-12), side="right")) - 1
        if gain + gained[filled] > best:
            best, choice = gain + gained[filled], (bought, filled)
    counts = heads.counts(choice[0], len(sublayers)) + neurons.counts(choice[1], len(sublayers))
    return [
        _most_important(sublayer, importance, 1 + int(count), intermediate_multiple)
        for sublayer, importance, count in zip(sublayers, importances, counts, strict=True)
    ]


def _too_small(budget: float, intermediate_multiple: int) -> RecipeError:
    return RecipeError(
        f"the budget {budget:.4g} is below the cost of a head and {intermediate_multiple} intermediate neurons in each "
        "layer."
    )


def _search_uniform(
    sublayers: Sequence[SublayerShape],
    importances: Sequence[Importance],
    costs: Sequence[float],
    *,
    budget: float,
    intermediate_multiple: int,
) -> KeptStructures:
    """Keep the same numbers in each layer: try each number of heads, and spend the rest of the budget on neurons."""
    prices = {
        kind: sum(cost for sublayer, cost in zip(sublayers, costs, strict=True) if sublayer.kind == kind)
        for kind in KINDS
    }
    smallest = {kind: min(sublayer.size for sublayer in sublayers if sublayer.kind == kind) for kind in KINDS}
    multiple = min(intermediate_multiple, smallest["feed_forward"])
    # The last, partial chunk has the same size in each layer only if all intermediate sizes are equal.
    same_size = len({sublayer.size for sublayer in sublayers if sublayer.kind == "feed_forward"}) == 1
    most_chunks = -(-smallest["feed_forward"] // multiple) if same_size else smallest["feed_forward"] // multiple
    best, choice = -np.inf, None
    for heads in range(1, smallest["attention"] + 1):
        spare = (budget - heads * prices["attention"]) * (1 + 1e-12)
        chunks = min(int(spare // (multiple * prices["feed_forward"])), most_chunks)
        if chunks < 1:
            break
        kept = [
            _most_important(sublayer, importance, heads if sublayer.kind == "attention" else chunks, multiple)
            for sublayer, importance in zip(sublayers, importances, strict=True)
        ]
        total = sum(
            float(importance.each[numbers].sum()) for importance, numbers in zip(importances, kept, strict=True)
        )
        if total > best:
            best, choice = total, kept
    if choice is None:
        raise _too_small(budget, multiple)
    return choice


def search_fraction(
    sublayers: Sequence[SublayerShape],
    importances: Sequence[Importance],
    kept: KeptStructures,
    kind: SublayerKind,
    *,
    fraction: float,
    intermediate_multiple: int,
    uniform: bool = False,
) -> KeptStructures:
    """Reduce the structures of one kind to a fraction of them: the most important ones over all layers.

    With `uniform` each sublayer keeps that fraction of the smallest one, rounded down to whole multiples.

    Raises:
        RecipeError: the fraction is less than one head or one multiple of neurons in each layer.
    """
    costs = [float(sublayer.passes) if sublayer.kind == kind else 0.0 for sublayer in sublayers]
    budget = fraction * sum(sublayer.size * cost for sublayer, cost in zip(sublayers, costs, strict=True))
    spare = budget - least_cost(sublayers, costs, intermediate_multiple=intermediate_multiple)
    if spare < 0:
        raise RecipeError(
            f"keeping {fraction} of the {STRUCTURES[kind]} leaves none for some layer; each layer keeps a head and "
            f"{intermediate_multiple} intermediate neurons."
        )
    multiple = 1 if kind == "attention" else intermediate_multiple
    if uniform:
        smallest = min(sublayer.size for sublayer in sublayers if sublayer.kind == kind)
        each = int(fraction * smallest * (1 + 1e-12)) // multiple
        counts = [max(1, each)] * len(sublayers)
    else:
        chunks = _chunks(sublayers, importances, costs, kind, multiple)
        bought = int(np.searchsorted(_running_sum(chunks.costs), spare * (1 + 1e-12), side="right")) - 1
        counts = [1 + int(count) for count in chunks.counts(bought, len(sublayers))]
    return [
        _most_important(sublayer, importance, count, intermediate_multiple) if sublayer.kind == kind else before
        for sublayer, importance, count, before in zip(sublayers, importances, counts, kept, strict=True)
    ]


def _running_sum(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(numbers)])


def _chunks(
    sublayers: Sequence[SublayerShape],
    importances: Sequence[Importance],
    costs: Sequence[float],
    kind: SublayerKind,
    multiple: int,
) -> _Chunks:
    """Return the chunks of all sublayers of a kind, without each sublayer's first chunk, which is always kept."""
    owners, gains, prices = [], [], []
    for number, (sublayer, importance, cost) in enumerate(zip(sublayers, importances, costs, strict=True)):
        ordered = np.sort(importance.each)[::-1] if sublayer.kind == kind else np.zeros(0)
        for start in range(multiple, len(ordered), multiple):
            chunk = ordered[start : start + multiple]
            owners.append(number)
            gains.append(float(chunk.sum()))
            prices.append(cost * len(chunk))
    gain_per_cost = np.array(gains) / np.array(prices)
    order = np.argsort(-gain_per_cost, kind="stable")
    return _Chunks(np.array(owners, np.int64)[order], np.array(gains)[order], np.array(prices)[order])


def _most_important(
    sublayer: SublayerShape, importance: Importance, chunks: int, intermediate_multiple: int
) -> NDArray[np.int64]:
    count = min(sublayer.size, chunks * (1 if sublayer.kind == "attention" else intermediate_multiple))
    return np.sort(np.argsort(-importance.each, kind="stable")[:count])


def rearrange(kept: KeptStructures, importances: Sequence[Importance]) -> KeptStructures:
    """Exchange removed and kept structures of a sublayer if that lowers the loss, to which removed pairs contribute."""
    return [
        numbers if importance.pairs is None else _exchange(numbers, importance.pairs)
        for numbers, importance in zip(kept, importances, strict=True)
    ]


def _exchange(kept: NDArray[np.int64], pairs: NDArray[np.float64]) -> NDArray[np.int64]:
    """Exchange each removed structure once for the kept one that lowers the loss most.

    The loss of a set of removed structures is pᵀ F p, with F the `pairs` and p one for each of them.
    """
    removed = np.ones(len(pairs), bool)
    removed[kept] = False
    alone = pairs.diagonal()
    shared = pairs @ removed
    for back in np.flatnonzero(removed):
        others = shared - pairs[:, back]
        change = np.where(removed, np.inf, alone + 2 * others) - (alone[back] + 2 * others[back])
        away = int(np.argmin(change))
        if change[away] < -1e-12 * abs(alone[back]):
            removed[back], removed[away] = False, True
            shared = others + pairs[:, away]
    return np.flatnonzero(~removed)
