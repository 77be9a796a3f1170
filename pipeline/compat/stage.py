"""Compat stage: every `.tflite` of a recipe's finished targets on every runtime that can be had.

The reference is the golden rows, and the bounds are the target's gates.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline import artifact, formats, tasks
from pipeline.artifact import Artifact, Spec
from pipeline.compat import environments, trials
from pipeline.compat.environments import Environment
from pipeline.compat.record import RECORD, Compat, ExecuTorchFile, File, Row, TooNew, Verdict, read_compat
from pipeline.compat.trials import Call, Trial, timed_call
from pipeline.convert.stage import Target
from pipeline.devices import host
from pipeline.errors import ArtifactError
from pipeline.execution.node import versions
from pipeline.execution.store import Store
from pipeline.formats import signature
from pipeline.metrics import measures
from pipeline.recipe.schema import Recipe
from pipeline.runtimes import Runtime, find, version_numbers
from pipeline.student import golden
from pipeline.student.golden import Golden

STAGE = "compat"
VERSION = 1
_TRIED = "litert"
_PROMISED = "executorch"

EXECUTORCH_POLICY = "https://github.com/pytorch/executorch/blob/main/runtime/COMPATIBILITY.md"
EXECUTORCH_PROMISE = (
    "ExecuTorch promises that a .pte runs on the release that made it and on the next minor or major one at least, "
    "delegated parts included; it promises nothing for older runtimes"
)
"""Source: the policy's sections on backward and forward compatibility, see `EXECUTORCH_POLICY`."""

Tell = Callable[[str, float], None]


class Listener(Protocol):
    """The callbacks for progress."""

    def started(self, step: str) -> None:
        """Called when the trials begin."""

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """Called when a fraction of the trials is done."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""


@dataclass(frozen=True)
class Outcome:
    """The compat document with its artifact, and whether it was made now."""

    document: Compat
    artifact: Artifact
    made: bool
    """Whether the trials ran now; False if nothing had changed since the last time."""
    seconds: float


@dataclass(frozen=True)
class _Files:
    """The finished targets, and the names of the unfinished ones."""

    tflite: dict[Target, Artifact]
    pte: dict[Target, Artifact]
    unfinished: list[str]


def run(
    recipe: Recipe,
    build: Path,
    targets: Sequence[Target],
    runtimes: Sequence[Runtime],
    *,
    install: bool,
    progress: Listener,
) -> Outcome:
    """Try the files, or keep the document in place if neither they nor the environments changed.

    Args:
        recipe: names the folder, and may ask for a minimum runtime, which is then tried as well.
        build: the build folder; environments lie in it, shared by all recipes.
        targets: those that are not made yet are left out.
        runtimes: rows of the table.
        install: make missing environments, which downloads.
        progress: hears what is going on.

    Raises:
        ArtifactError: no target is made yet, or one was changed.
    """
    folder = build / recipe.name
    files = _finished(folder, targets)
    floor = find(recipe.targets[_TRIED].minimum_runtime or "") if _TRIED in recipe.targets else None
    chosen = [*runtimes, floor] if floor and floor not in runtimes else list(runtimes)
    chosen = chosen if files.tflite else []
    ready = [_prepare(runtime, build / environments.FOLDER, install=install, progress=progress) for runtime in chosen]
    spec = _spec(files, ready, floor)
    log = folder / "logs" / f"{STAGE}.log"
    make = partial(_make, recipe.name, files, ready, floor, log, partial(progress.advanced, STAGE))
    waiting = partial(progress.note, f"another run makes {folder / STAGE}; waiting for it")
    progress.started(STAGE)
    started = time.perf_counter()
    finished, made = Store(build).get(spec, folder / STAGE, make, waiting=waiting)
    return Outcome(read_compat(finished.path), finished, made, time.perf_counter() - started)


def _finished(folder: Path, targets: Sequence[Target]) -> _Files:
    """Open the targets that are made."""
    places = {target: folder / str(target) / "model" for target in targets}
    able = {target: place for target, place in places.items() if target.backend in (_TRIED, _PROMISED)}
    there = {target: artifact.load(place) for target, place in able.items() if place.exists()}
    if not there:
        names = ", ".join(map(str, able)) or "none of them is a .tflite or a .pte"
        raise ArtifactError(
            f"{folder} has no finished target to try ({names}). Make them with `pocketbert convert`, "
            "and try LiteRT or ExecuTorch targets."
        )
    return _Files(
        {target: model for target, model in there.items() if target.backend == _TRIED},
        {target: model for target, model in there.items() if target.backend == _PROMISED},
        [str(target) for target in able if target not in there],
    )


def _prepare(runtime: Runtime, root: Path, *, install: bool, progress: Listener) -> Environment:
    progress.advanced(STAGE, f"looking for {runtime.name}", 0.0)
    return environments.prepare(runtime, root, install=install, note=progress.note)


def _spec(files: _Files, ready: Sequence[Environment], floor: Runtime | None) -> Spec:
    """Return the artifact's spec; its key depends on files, runtimes (or why one is missing) and processor."""
    machine = host.describe()
    params = {
        "runtimes": {one.runtime.name: [*one.runtime.requirements, one.reason] for one in ready},
        "minimum_runtime": floor.name if floor else None,
        "unfinished": files.unfinished,
        "machine": [machine.model_id, machine.cpu_features, machine.os],
    }
    inputs = {str(target): model.digest for target, model in (files.tflite | files.pte).items()}
    return Spec(STAGE, VERSION, params, inputs, versions("ai-edge-litert"))


def _make(
    name: str,
    files: _Files,
    ready: Sequence[Environment],
    floor: Runtime | None,
    log: Path,
    tell: Tell,
    out: Path,
) -> dict[str, Any]:
    """Try everything and write the document; returns how many files each runtime computes right."""
    rows: list[Row] = []
    count = max(1, len(files.tflite) * len(ready))
    for target, model in files.tflite.items():
        for environment in ready:
            tell(f"{target} on {environment.runtime.name}", len(rows) / count)
            # In the folder that is swept: a killed trial leaves nothing in the system's.
            verdict = try_file(model.path, environment, log=log, scratch=out)
            rows.append(Row(target=str(target), runtime=environment.runtime.name, verdict=verdict))
    document = Compat(
        recipe=name,
        minimum_runtime=floor.name if floor else None,
        floor_kept=None,
        rows=rows,
        files=[_file(target, model) for target, model in files.tflite.items()],
        executorch=[_promised(target, model) for target, model in files.pte.items()],
        unfinished=files.unfinished,
    )
    if floor:
        document = document.model_copy(update={"floor_kept": not document.below_floor})
    (out / RECORD).write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
    right = {one.runtime.name: 0 for one in ready}
    for row in rows:
        right[row.runtime] += row.verdict.status == "right"
    return {"right": right, "files": len(files.tflite)}


def try_file(
    folder: Path,
    environment: Environment,
    *,
    log: Path,
    scratch: Path | None = None,
    timeout_s: float = trials.TIMEOUT_S,
) -> Verdict:
    """Run one model folder's file on one runtime and judge it."""
    runtime = environment.runtime
    if environment.python is None:
        return Verdict(status="not_tried", reason=environment.reason)
    described = signature.read(folder)
    rows = golden.read(folder)
    calls = trials.calls_of(described, rows)
    names = tasks.get(described.task).output_names
    file = folder / described.file
    places: dict[str, Any] = {"log": log, "scratch": scratch, "timeout_s": timeout_s}
    trial = trials.run(environment.python, runtime.module, file, calls, names, **places)
    verdict = judge(trial, calls, rows, runtime=runtime.name)
    if verdict.status != "refused":
        return verdict
    codes = trials.operators_of(file)
    pairs = trials.versions_to_probe(codes)
    models = [trials.model_of_one_operator(code, version) for code, version in pairs]
    opened = trials.probe(environment.python, runtime.module, models, **places)
    # A runtime that breaks while it is asked leaves its own words as the reason.
    unknown = trials.operators_too_new(codes, pairs, opened) if opened else []
    return refused(unknown, verdict, runtime=runtime.name)


def _file(target: Target, model: Artifact) -> File:
    rows = golden.read(model.path)
    file = model.path / signature.read(model.path).file
    entry = next(entry for entry in model.manifest.files if entry.path == file.name)
    return File(
        target=str(target),
        sha256=entry.sha256,
        bytes=entry.bytes,
        min_cosine=rows.min_cosine,
        min_sqnr_db=rows.min_sqnr_db,
        operators=trials.operators_of(file),
    )


def _promised(target: Target, model: Artifact) -> ExecuTorchFile:
    made_with = model.manifest.tools[str(formats.get(target.backend).RUNTIME)]
    major, minor = version_numbers(made_with)[:2]
    return ExecuTorchFile(
        target=str(target),
        made_with=made_with,
        minimum_runtime=signature.read(model.path).minimum_runtime,
        promised_on=[f"{major}.{minor}", f"{major}.{minor + 1} (or {major + 1}.0, if that follows)"],
        promise=EXECUTORCH_PROMISE,
        policy=EXECUTORCH_POLICY,
    )


# --- verdicts --------------------------------------------------------------------------------------------------------


def judge(trial: Trial, calls: Sequence[Call], rows: Golden, *, runtime: str) -> Verdict:
    """Return the verdict on a trial.

    Args:
        trial: how the run ended.
        calls: what was run.
        rows: the reference, with the target's gates.
        runtime: its name, for the reason.
    """
    if trial.ended == "not_importable":
        return Verdict(status="not_tried", reason=f"{runtime} does not start: {_line(trial.words)}")
    if trial.ended == "died":
        return Verdict(status="crashed", reason=f"its process {trial.words} while {trial.at}")
    if trial.ended == "error":
        return Verdict(status="refused", reason=f"{_line(trial.words)} ({trial.at})")
    return _numbers(trial, calls, rows)


def refused(too_new: Sequence[TooNew], verdict: Verdict, *, runtime: str) -> Verdict:
    """Return a refusal with the operations that are too new for the runtime, if there are any."""
    if not too_new:
        return verdict
    reason = f"{runtime}: {'; '.join(map(str, too_new))}"
    return verdict.model_copy(update={"reason": reason, "too_new": list(too_new)})


def _numbers(trial: Trial, calls: Sequence[Call], rows: Golden) -> Verdict:
    """Compare every output with the reference of its row."""
    references = [np.asarray(rows.rows[call.row].output, np.float32) for call in calls]
    values = [
        _numbers_of(outputs, tokens=len(rows.rows[call.row].input_ids))
        for outputs, call in zip(trial.outputs, calls, strict=True)
    ]
    timed = calls[timed_call(calls)].function.max_length
    verdict = Verdict(status="wrong", runs=len(calls), p50_ms=round(statistics.median(trial.ms), 3), timed_length=timed)
    for value, reference, call in zip(values, references, calls, strict=True):
        where = _where(call, rows)
        if value.shape != reference.shape:
            reason = f"{value.size} numbers instead of {reference.size}, {where}"
            return verdict.model_copy(update={"reason": reason})
        if not measures.all_finite(value):
            return verdict.model_copy(update={"reason": f"numbers that are not finite, {where}"})
    if not any(value.any() for value in values):
        return verdict.model_copy(update={"reason": "every output is zero"})
    return _against_gates(verdict, values, references, calls, rows)


def _against_gates(
    verdict: Verdict,
    values: Sequence[NDArray[np.float32]],
    references: Sequence[NDArray[np.float32]],
    calls: Sequence[Call],
    rows: Golden,
) -> Verdict:
    """Judge finite outputs of the right shapes; a row that is zero has no direction, and so no cosine that passes."""
    cosines = [
        float(measures.cosine(reference.reshape(1, -1), value.reshape(1, -1))[0])
        for reference, value in zip(references, values, strict=True)
    ]
    worst = min(range(len(cosines)), key=lambda number: np.nan_to_num(cosines[number], nan=-np.inf))
    sqnr = measures.sqnr_db(_joined(references), _joined(values))
    reasons = []
    if rows.min_cosine is not None and not cosines[worst] >= rows.min_cosine:
        figure = f"{cosines[worst]:.5f}" if np.isfinite(cosines[worst]) else "none, a row is zero"
        reasons.append(f"worst cosine {figure}, {rows.min_cosine} is asked for, {_where(calls[worst], rows)}")
    if rows.min_sqnr_db is not None and not sqnr >= rows.min_sqnr_db:
        reasons.append(f"SQNR {sqnr:.1f} dB, {rows.min_sqnr_db} is asked for")
    return verdict.model_copy(
        update={
            "status": "wrong" if reasons else "right",
            "reason": "; ".join(reasons),
            "worst_cosine": cosines[worst] if np.isfinite(cosines[worst]) else None,
            "sqnr_db": sqnr if np.isfinite(sqnr) else None,
        }
    )


def _numbers_of(outputs: Sequence[NDArray[np.float32]], *, tokens: int) -> NDArray[np.float32]:
    """Return a row's outputs in the layout of the golden rows: side by side, without padding, flattened."""
    value = outputs[0][0] if len(outputs) == 1 else np.stack([output[0] for output in outputs], axis=-1)
    flat: NDArray[np.float32] = (value[:tokens] if value.ndim == 2 else value).reshape(-1)
    return flat


def _joined(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(arrays)


def _where(call: Call, rows: Golden) -> str:
    return f"{rows.rows[call.row].first[:30]!r} at length {call.function.max_length}"


def _line(words: str) -> str:
    return " ".join(words.split())[:300]
