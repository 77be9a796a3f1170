"""Verify stage: is a converted file still the same model? Verdicts that cannot lie; see DESIGN.

`record.py` is what is written down, `measure.py` runs the file over real text, `gates.py` judges.
"""

from pathlib import Path
from typing import Any

from pipeline.backends import signature
from pipeline.errors import PipelineError, UnknownOp, WorkerDied
from pipeline.graph.worker import Worker
from pipeline.schemes import Gates
from pipeline.student import reference
from pipeline.verify import gates as judging
from pipeline.verify.measure import Measured, measure
from pipeline.verify.record import PARITY, Parity, Verdict, read

__all__ = ["PARITY", "VERSION", "Parity", "Verdict", "make", "read"]

VERSION = 3


def make(
    model: Path,
    model_metrics: dict[str, Any],
    student: Path,
    reference_folder: Path,
    gates: Gates,
    out: Path,
    *,
    log: Path,
    random_weights: bool,
) -> dict[str, Any]:
    """Judge one converted file and write `parity.json`.

    Args:
        model: the model folder that `convert` made.
        model_metrics: the metrics of its manifest.
        student: the checkpoint in Hugging Face layout that the file was made from.
        reference_folder: the truth, see `pipeline.student.reference`.
        gates: bounds of this target.
        out: the artifact's directory.
        log: where the runtime's own words go.
        random_weights: whether the recipe declares that the weights were never trained.

    Returns:
        The verdict and the main figures.
    """
    truth = reference.read(reference_folder)
    found: Measured | None = None
    crash: str | None = None
    not_run: str | None = None
    try:
        with Worker(log, threads=1) as worker:
            found = worker.call(measure, model, student, reference_folder)
    except UnknownOp as error:
        not_run = str(error)
    except WorkerDied as error:
        crash = str(error)
    except PipelineError as error:
        crash = f"the file does not run: {error}"
    parity = judging.judge(
        signature.read(model),
        truth,
        found,
        gates,
        model_metrics,
        not_run=not_run,
        crash=crash,
        random_weights=random_weights,
    )
    (out / PARITY).write_text(parity.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return {"verdict": parity.verdict, "reasons": parity.reasons, **parity.headline()}
