"""Verify stage: judge whether a converted file still is the same model, with verdicts that cannot lie.

`measure.py` runs the file over real text, `scores.py` scores the runs, `structure.py` and `weights.py` compare its
content without running it, `gates.py` judges, and `record.py` defines the record.
"""

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import artifact, atomic
from pipeline.errors import PipelineError, StudentError, UnknownOp
from pipeline.formats import signature
from pipeline.formats.signature import HEADS
from pipeline.student.reference import Reference
from pipeline.student.reference import read as read_reference
from pipeline.verify.gates import judge
from pipeline.verify.measure import FileMeasurements, measure
from pipeline.verify.record import PARITY, HeadToVerify, Parity, Verdict, VerifyRequest, read_parity

__all__ = [
    "PARITY",
    "VERSION",
    "HeadToVerify",
    "Parity",
    "Verdict",
    "VerifyRequest",
    "make",
    "read_parity",
    "record_crash",
]

VERSION = 17


def make(
    model: Path,
    student: Path,
    quantised: Path | None,
    reference_folder: Path,
    again: Path | None,
    request: VerifyRequest,
    out: Path,
    heads: Sequence[HeadToVerify] = (),
) -> dict[str, Any]:
    """Judge one converted file and write `parity.json`.

    Each head's functions are judged against that head's own reference, by its own gates; the file passes if all do.

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
        heads: the other heads that the file has to have.

    Returns:
        The verdict and the main figures.
    """
    facts = _FileFacts.of(model, student, heads)
    reference = read_reference(reference_folder)
    results = _run(partial(measure, model, student, quantised, reference, again, request, heads))
    parity = _judge(model, reference, request, facts, results)
    found = {}
    for head in heads:
        folder, reference = model / HEADS / head.name, read_reference(head.reference)
        results = _run(partial(measure, folder, head.student, None, reference, None, head.request))
        found[head.name] = _judge(folder, reference, head.request, facts, results)
    return _written(parity.with_heads(found), out)


@dataclass(frozen=True)
class _Results:
    """What came of running a file: measurements, or why there are none."""

    measured: FileMeasurements | None = None
    not_run: str | None = None
    crash: str | None = None


def _run(measure_file: Callable[[], FileMeasurements]) -> _Results:
    """Measure a file; errors that say something about the file become a part of its verdict."""
    try:
        return _Results(measure_file())
    except UnknownOp as error:
        return _Results(not_run=str(error))
    except StudentError as error:
        _pass_on_full_disk(error)
        return _Results(crash=str(error))
    except PipelineError as error:
        _pass_on_full_disk(error)
        return _Results(crash=f"the file does not run: {error}")
    except Exception as error:  # a runtime raises errors of its own on a file that it cannot run
        _pass_on_full_disk(error)
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [""])[0][:300]
        return _Results(crash=f"the file does not run: {type(error).__name__}: {first_line}")


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
    heads: Sequence[HeadToVerify] = (),
) -> dict[str, Any]:
    """Judge a file whose process crashed; `crash` says how, the other arguments are those of `make`."""
    facts = _FileFacts.of(model, student, heads)
    return _written(_judge(model, read_reference(reference_folder), request, facts, _Results(crash=crash)), out)


@dataclass(frozen=True)
class _FileFacts:
    """Facts about a file that its heads share."""

    metrics: dict[str, Any]
    """The metrics of the conversion, with the file's size as it is now: the gate `claims` compares it with theirs."""
    parameters: int | None
    """Unique parameters of all heads' checkpoints; None where there is one head alone."""

    @classmethod
    def of(cls, model: Path, student: Path, heads: Sequence[HeadToVerify]) -> "_FileFacts":
        place = signature.root(model)
        file = place / signature.read(model).file
        metrics = artifact.read_manifest(place).metrics | {"file_bytes": artifact.file_bytes(file)}
        if not heads:
            return cls(metrics, None)
        own = sum(artifact.read_manifest(head.student).metrics["own_parameters"] for head in heads)
        return cls(metrics, artifact.read_manifest(student).metrics["parameters"] + own)


def _judge(model: Path, reference: Reference, request: VerifyRequest, facts: _FileFacts, results: _Results) -> Parity:
    return judge(
        signature.read(model),
        reference,
        results.measured,
        request,
        facts.metrics,
        parameters=facts.parameters,
        not_run=results.not_run,
        crash=results.crash,
    )


def _written(parity: Parity, out: Path) -> dict[str, Any]:
    (out / PARITY).write_text(parity.written(), encoding="utf-8")
    return {"verdict": parity.verdict, "reasons": parity.reasons, "score": parity.score, **parity.headline()}
