"""Order trials: those within the budget first, then by who is better in everything, then by who has room around him."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.fronts.record import TrialRecord, shown, violations
from pipeline.fronts.spec import LARGER_IS_BETTER, Budget, Measure

Bounds = Mapping[str, tuple[float, bool]]
_WON_BACK = 0.8
"""Share of a loss that training after compression wins back: a half or a quarter of MiniLM left out costs SST-2 .42 and
2.14 points, and .08 and .50 after distillation; STS-B .81 and .14 (benchmarks/COMPRESSION.md)."""


def bounds(budget: Budget, base_metric: float) -> dict[str, tuple[float, bool]]:
    """Return the bound of each measure, and whether it is the least value.

    Args:
        budget: of the study.
        base_metric: the metric of the recipe as it is, from which `metric_drop` counts.
    """
    found: dict[str, tuple[float, bool]] = {
        name: (float(value), LARGER_IS_BETTER[name]) for name, value in _plain(budget).items()
    }
    if budget.metric_drop is not None:
        least = base_metric - budget.metric_drop
        found["metric"] = (max(least, found["metric"][0]) if "metric" in found else least, True)
    return found


def before_training(bounds: Bounds, base: Mapping[str, float]) -> dict[str, tuple[float, bool]]:
    """Return bounds for students that have not been trained yet, which may lose more than they are to lose in the end.

    Without that, the students that come nearest to a bound on quality would be trained, which are the slow ones.

    Args:
        bounds: of the study.
        base: measures of the recipe as it is, from which a loss counts.
    """
    return {
        name: (base[name] - (base[name] - bound) / (1 - _WON_BACK), least)
        if least and base.get(name, bound) > bound
        else (bound, least)
        for name, (bound, least) in bounds.items()
    }


def _plain(budget: Budget) -> dict[Measure, float]:
    values = budget.model_dump(exclude_none=True, exclude={"metric_drop"})
    return {name: values[name] for name in LARGER_IS_BETTER if name in values}


def losses(trials: Sequence[TrialRecord], objectives: Sequence[Measure]) -> NDArray[np.float64]:
    """Return `(trials, objectives)` numbers of which less is better."""
    signs = [-1.0 if LARGER_IS_BETTER[name] else 1.0 for name in objectives]
    rows = [[sign * one.measures[name] for name, sign in zip(objectives, signs, strict=True)] for one in trials]
    return np.array(rows)


def front(trials: Sequence[TrialRecord], objectives: Sequence[Measure]) -> list[TrialRecord]:
    """Return the trials that no other one beats in one objective without losing in another, in their order."""
    able = shown(trials)
    if not able:
        return []
    values = losses(able, objectives)
    return [one for number, one in enumerate(able) if not _beaten(values, number)]


def _beaten(values: NDArray[np.float64], number: int) -> bool:
    better = (values <= values[number]).all(axis=1) & (values < values[number]).any(axis=1)
    return bool(better.any())


def best(trials: Sequence[TrialRecord], objectives: Sequence[Measure], bounds: Bounds, count: int) -> list[TrialRecord]:
    """Return the trials that deserve the next step, the most deserving first.

    Trials within every budget come first, front by front, and of a front the most distant ones, so that the whole range
    goes on. Those beyond a budget follow, the nearest first.

    Source: Deb et al. 2002 (NSGA-II), for fronts and crowding distance.
    """
    able = shown(trials)
    beyond = {one.number: sum(max(0.0, by) for by in violations(one.measures, bounds).values()) for one in able}
    inside = [one for one in able if beyond[one.number] == 0]
    ordered: list[TrialRecord] = []
    while inside and len(ordered) < count:
        first = front(inside, objectives)
        ordered += _spread(first, objectives)
        taken = {one.number for one in first}
        inside = [one for one in inside if one.number not in taken]
    outside = sorted((one for one in able if beyond[one.number] > 0), key=lambda one: beyond[one.number])
    return (ordered + outside)[:count]


def _spread(trials: list[TrialRecord], objectives: Sequence[Measure]) -> list[TrialRecord]:
    """Order the trials of a front by crowding distance, the loneliest first."""
    values = losses(trials, objectives)
    distance = np.zeros(len(trials))
    for column in values.T:
        order = np.argsort(column, kind="stable")
        span = column[order[-1]] - column[order[0]]
        distance[order[[0, -1]]] = np.inf
        if span > 0:
            distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / span
    return [trials[number] for number in np.argsort(-distance, kind="stable")]
