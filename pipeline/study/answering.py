"""The answer of a study: the best student within the budget, or the nearest one, and what each bound costs."""

from collections.abc import Mapping, Sequence

from pipeline.study.record import Answer, TrialRecord, shown, violations
from pipeline.study.spec import LARGER_IS_BETTER, Study

Bounds = Mapping[str, tuple[float, bool]]
_UNITS = {"size_mb": "MB", "latency_ms": "ms", "memory_mb": "MB of memory", "macs_m": "million multiply-adds"}
_WORDS = {"metric": "a metric", "recall_at_10": "a recall@10"}


def answer(study: Study, trials: Sequence[TrialRecord], bounds: Bounds) -> Answer:
    """Return the best of the files, or of the trials where none became one.

    Within the budget the best one has the most of the first objective that counts quality. Beyond it, it is the trial
    whose bounds are missed by the least, as fractions of them together.
    """
    able = shown(trials)
    files = [one for one in able if one.step == "files" and one.verdict != "failed"]
    pool = files or able
    if not pool:
        return Answer(trial=None, fits=False, beyond={}, sentences=["no trial became a student; each says why"])
    quality = quality_of(study)
    inside = [one for one in pool if not _beyond(one, bounds)]
    best = (
        max(inside, key=lambda one: one.measures.get(quality, 0.0))
        if inside
        else min(pool, key=lambda one: sum(max(0.0, by) for by in violations(one.measures, bounds).values()))
    )
    return Answer(
        trial=best.number,
        fits=bool(inside),
        beyond={name: (best.measures[name], bounds[name][0]) for name in _beyond(best, bounds)},
        sentences=[line for name in bounds if (line := _cost(name, able, bounds, quality))],
    )


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
    said = f"{_WORDS.get(name, name)} of at least {bound:.3g}" if least else f"{bound:.3g} {_UNITS[name]}"
    if not free:
        return None
    if least:
        return _cost_of_quality(name, free, within, said)
    best_free = max(free, key=lambda one: one.measures.get(quality, 0.0))
    if not within:
        nearest = min(free, key=lambda one: one.measures[name])
        return (
            f"no trial within the other bounds keeps {said}: the nearest has {nearest.measures[name]:.3g} "
            f"{_UNITS[name]} ({quality} {nearest.measures.get(quality, 0.0):.4f})"
        )
    best = max(within, key=lambda one: one.measures.get(quality, 0.0))
    more = best_free.measures.get(quality, 0.0) - best.measures.get(quality, 0.0)
    if more <= 0:
        return f"{said} costs nothing: no trial beyond it is better"
    return (
        f"{said} costs {100 * more:.2f} points: {best_free.measures[quality]:.4f} at {best_free.measures[name]:.3g} "
        f"{_UNITS[name]}, {best.measures[quality]:.4f} within it"
    )


def _cost_of_quality(name: str, free: Sequence[TrialRecord], within: Sequence[TrialRecord], said: str) -> str:
    if not within:
        best = max(one.measures[name] for one in free)
        return f"no trial within the other bounds keeps {said}: the best has {best:.4f}"
    for other, unit in _UNITS.items():
        able = [one for one in within if other in one.measures]
        if able:
            least = min(one.measures[other] for one in able)
            return f"below {least:.3g} {unit} no trial keeps {said}"
    return f"{said} is kept by {len(within)} trials"
