"""Verify stage: judge whether a converted file still is the same model, with verdicts that cannot lie.

`measure.py` runs the file over real text, `structure.py` and `weights.py` compare its content without running it,
`gates.py` judges, and `record.py` defines the record.
"""

import os
import traceback
from pathlib import Path
from typing import Any

from pipeline import artifact, atomic
from pipeline.errors import PipelineError, StudentError, UnknownOp
from pipeline.formats import signature
from pipeline.student.reference import Reference
from pipeline.student.reference import read as read_reference
from pipeline.verify.gates import judge
from pipeline.verify.measure import FileMeasurements, measure
from pipeline.verify.record import PARITY, Parity, Verdict, VerifyRequest, read_parity

__all__ = ["PARITY", "VERSION", "Parity", "Verdict", "VerifyRequest", "make", "read_parity", "record_crash"]

VERSION = 15


def make(
    model: Path,
    student: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: VerifyRequest,
    out: Path,
) -> dict[str, Any]:
    """Judge one converted file and write `parity.json`.

    Runs in a worker, one file after the other: every session is closed again, and no state is left. The worker may go
    down with the runtime; `record_crash` writes the verdict then.

    Args:
        model: the model folder that `convert` made.
        student: the checkpoint in Hugging Face layout that the file was made from.
        quantised: the student's quantised checkpoint, where the file was converted from that.
        reference_folder: outputs of the student in fp32 PyTorch, see `pipeline.student.reference`.
        again: the model folder of the same conversion, run once more, to compare with; None to skip that.
        request: the target, with its bounds.
        out: the artifact's directory.

    Returns:
        The verdict and the main figures.
    """
    reference = read_reference(reference_folder)
    measured: FileMeasurements | None = None
    crash: str | None = None
    not_run: str | None = None
    try:
        measured = measure(model, student, quantised, reference, again, request)
    except UnknownOp as error:
        not_run = str(error)
    except StudentError as error:
        _pass_on_full_disk(error)
        crash = str(error)
    except PipelineError as error:
        _pass_on_full_disk(error)
        crash = f"the file does not run: {error}"
    except Exception as error:  # a runtime raises errors of its own on a file that it cannot run
        _pass_on_full_disk(error)
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [""])[0][:300]
        crash = f"the file does not run: {type(error).__name__}: {first_line}"
    return _judge(model, reference, request, measured, not_run, crash, out)


def _pass_on_full_disk(error: Exception) -> None:
    """Raise errors of a full disk again: they say nothing about the file, and as a verdict they would be kept.

    Raises:
        OSError: no bytes or inodes were left; toolchains report that in errors of their own.
    """
    for number in atomic.FULL:
        if os.strerror(number) in str(error):
            raise OSError(number, os.strerror(number), getattr(error, "filename", None)) from error


def record_crash(
    crash: str,
    model: Path,
    student: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: VerifyRequest,
    out: Path,
) -> dict[str, Any]:
    """Judge a file whose process crashed; `crash` says how, the other arguments are those of `make`."""
    return _judge(model, read_reference(reference_folder), request, None, None, crash, out)


def _judge(
    model: Path,
    reference: Reference,
    request: VerifyRequest,
    measured: FileMeasurements | None,
    not_run: str | None,
    crash: str | None,
    out: Path,
) -> dict[str, Any]:
    said = signature.read(model)
    # The file's size is measured here; the gate `claims` compares it with the manifest's.
    metrics = artifact.read_manifest(model).metrics | {"file_bytes": artifact.file_bytes(model / said.file)}
    parity = judge(said, reference, measured, request, metrics, not_run=not_run, crash=crash)
    (out / PARITY).write_text(parity.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return {"verdict": parity.verdict, "reasons": parity.reasons, "score": parity.score, **parity.headline()}
