"""The answer of a study: the best student within the budget, or the nearest one, and what each bound costs."""

import math
from collections.abc import Mapping, Sequence

from pipeline.fronts.record import Answer, TrialRecord, able, violations
from pipeline.fronts.spec import LARGER_IS_BETTER, Study

Bounds = Mapping[str, tuple[float, bool]]
_UNITS = {"size_mb": "MB", "latency_ms": "ms", "memory_mb": "MB of memory", "macs_m": "million multiply-adds"}
_WORDS = {"metric": "a metric", "recall_at_10": "a recall@10"}


def answer(study: Study, trials: Sequence[TrialRecord], bounds: Bounds) -> Answer:
    """Return the best of the files, or of the trials where none became one.

    Within the budget the best one has the most of the first objective that counts quality, or the least of the first
    one if none does. Beyond it, it is the trial whose bounds are missed by the least, as fractions of them together.
    """
    sound = able(trials)
    pool = [one for one in sound if one.step == "files"] or sound
    if not pool:
        return Answer(trial=None, fits=False, beyond={}, sentences=["no trial became a sound student; each says why"])
    quality = quality_of(study)
    inside = [one for one in pool if not _beyond(one, bounds)]
    best = (
        min(inside, key=lambda one: merit(one, study))
        if inside
        else min(pool, key=lambda one: sum(max(0.0, by) for by in violations(one.measures, bounds).values()))
    )
    return Answer(
        trial=best.number,
        fits=bool(inside),
        beyond={name: (best.measures[name], bounds[name][0]) for name in _beyond(best, bounds)},
        sentences=[line for name in bounds if (line := _cost(name, sound, bounds, quality))],
    )


def merit(one: TrialRecord, study: Study) -> float:
    """Return what a trial is chosen by within a budget; less is better.

    A study whose objectives are all costs, with a bound on quality, looks for the cheapest one that keeps it.
    """
    sought = next((name for name in study.objectives if LARGER_IS_BETTER[name]), study.objectives[0])
    sign = -1.0 if LARGER_IS_BETTER[sought] else 1.0
    return sign * one.measures[sought] if sought in one.measures else float("inf")


def quality_of(study: Study) -> str:
    """Return the measure of quality by which the best one within the budget is chosen."""
    return next((name for name in (*study.objectives, *study.measures) if LARGER_IS_BETTER[name]), "metric")


def _beyond(one: TrialRecord, bounds: Bounds) -> list[str]:
    return [name for name, by in violations(one.measures, bounds).items() if by > 0]


def _cost(name: str, trials: Sequence[TrialRecord], bounds: Bounds, quality: str) -> str | None:
    """Say what one bound costs: the best within all bounds, and the best within all the others."""
    others = {key: bound for key, bound in bounds.items() if key != name}
    free = [one for one in trials if name in one.measures and not _beyond(one, others)]
    within = [one for one in free if not _beyond(one, bounds)]
    bound, least = bounds[name]
    said = f"{_WORDS.get(name, name)} of at least {bound:.4g}" if least else f"{_number(bound)} {_UNITS[name]}"
    if not free:
        return None
    if least:
        return _cost_of_quality(name, free, within, said, alone=not others)
    best_free = max(free, key=lambda one: one.measures.get(quality, 0.0))
    if not within:
        nearest = min(free, key=lambda one: one.measures[name])
        return (
            f"no trial within the other bounds keeps {said}: the nearest has {_number(nearest.measures[name])} "
            f"{_UNITS[name]} ({quality} {nearest.measures.get(quality, 0.0):.4f})"
        )
    best = max(within, key=lambda one: one.measures.get(quality, 0.0))
    more = best_free.measures.get(quality, 0.0) - best.measures.get(quality, 0.0)
    if more <= 0:
        return f"{said} costs nothing: no trial beyond it is better"
    return (
        f"{said} costs {100 * more:.2f} points: {best_free.measures[quality]:.4f} at "
        f"{_number(best_free.measures[name])} {_UNITS[name]}, {best.measures[quality]:.4f} within it"
    )


def _number(value: float, *, down: bool = False) -> str:
    """Return a number with three digits, as people write it: 0.0123, 12.3, 1234.

    Args:
        value: the number.
        down: never to round up, for what is said of all that is below.
    """
    if value <= 0 or not math.isfinite(value):
        return f"{value:.3g}"
    places = max(0, 2 - math.floor(math.log10(value)))
    unit = 10.0**-places
    rounded = math.floor(value / unit + 1e-9) * unit if down else value
    shown = f"{rounded:.{places}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def _cost_of_quality(
    name: str, free: Sequence[TrialRecord], within: Sequence[TrialRecord], said: str, *, alone: bool
) -> str:
    if not within:
        best = max(one.measures[name] for one in free)
        return f"no trial within the other bounds keeps {said}: the best has {best:.4f}"
    for other, unit in _UNITS.items():
        able = [one for one in within if other in one.measures]
        if able:
            least = min(one.measures[other] for one in able)
            other_bounds = "" if alone else " within the other bounds"
            return f"below {_number(least, down=True)} {unit} no trial{other_bounds} keeps {said}"
    return f"{said} is kept by {len(within)} trials"
