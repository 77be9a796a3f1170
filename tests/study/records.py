"""Trials and records of studies that were not run, for tests of what follows from them."""

from typing import Any

from pipeline.fronts.record import Answer, Measured, Record, TrialRecord
from pipeline.fronts.spec import Study


def trial(number: int, metric: float, size: float, **more: Any) -> TrialRecord:
    """Return a trial that is a student."""
    given: dict[str, Any] = {
        "number": number,
        "choice": {"prune.compute": round(1 - number / 100, 2)},
        "target": "litert-int8_dynamic",
        "step": "compressed",
        "measures": {"metric": metric, "size_mb": size},
    }
    return TrialRecord.model_validate(given | more)


def study(**more: Any) -> Study:
    given: dict[str, Any] = {
        "name": "tried",
        "recipe": "minilm",
        "objectives": ["metric", "size_mb"],
        "space": {"prune.compute": {"from": 0.1, "to": 1.0, "step": 0.01}},
    }
    return Study.model_validate(given | more)


def record(trials: list[TrialRecord], answer: Answer, **more: Any) -> Record:
    base = trial(-1, 0.9, 20.0, choice={}, measured=Measured(size_mb=20.0, latency_ms=4.0))
    return Record(
        study=study(),
        task="embedding",
        recipe_name="minilm",
        metric_name="spearman",
        judged_on="60 rows of judge",
        machine="this machine",
        tools={},
        base=base,
        base_target=base.target,
        misfits={},
        trials=trials,
        recipes={one.number: {"name": "x", "task": "embedding"} for one in trials if one.failed is None},
        answer=answer,
        asked=10,
        made=6,
        hours=1.0,
        finished=True,
    ).model_copy(update=more)
