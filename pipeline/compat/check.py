"""Compat stage: every `.tflite` of a recipe's finished targets on every runtime that can be had."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import artifact, tasks
from pipeline.artifact import Artifact, Order
from pipeline.backends import signature
from pipeline.compat import environments, judging, operators, trials
from pipeline.compat.environments import Environment
from pipeline.compat.record import RECORD, Compat, ExecuTorchFile, File, Row, Verdict
from pipeline.convert.stage import Target
from pipeline.devices import host
from pipeline.errors import ArtifactError
from pipeline.graph.executor import Progress, Step
from pipeline.graph.node import versions
from pipeline.recipe.schema import Recipe
from pipeline.runtimes import Runtime, find, version_numbers
from pipeline.student import golden

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


@dataclass(frozen=True)
class _Wanted:
    """What there is to look at."""

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
    progress: Progress,
) -> Compat:
    """Try the files, or keep what was found if neither they nor the environments changed.

    Args:
        recipe: names the folder, and may ask for a minimum runtime, which is then tried as well.
        build: the build folder; environments lie in it, shared by all recipes.
        targets: those that are not made yet are left out.
        runtimes: rows of the table.
        install: make missing environments, which downloads.
        progress: told what is going on.

    Raises:
        ArtifactError: no target is made yet, or one was changed.
    """
    folder = build / recipe.name
    wanted = _finished(folder, targets)
    floor = find(recipe.targets[_TRIED].minimum_runtime or "") if _TRIED in recipe.targets else None
    chosen = [*runtimes, floor] if floor and floor not in runtimes else list(runtimes)
    chosen = chosen if wanted.tflite else []
    ready = [_prepare(runtime, build / environments.FOLDER, install=install, progress=progress) for runtime in chosen]
    order = _order(folder / STAGE, wanted, ready, floor)
    log = folder / "logs" / f"{STAGE}.log"
    make = partial(_make, recipe.name, wanted, ready, floor, log, partial(progress.advanced, STAGE))
    waiting = partial(progress.note, f"another run works in {folder}; waiting for it")
    with artifact.only_run(folder, waiting=waiting):
        progress.started(STAGE)
        started = time.perf_counter()
        found, made = artifact.build(order, make)
        progress.finished(Step(STAGE, order.place, made, "", time.perf_counter() - started, 0, found))
    return Compat.model_validate_json((found.path / RECORD).read_bytes())


def _finished(folder: Path, targets: Sequence[Target]) -> _Wanted:
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
    return _Wanted(
        {target: model for target, model in there.items() if target.backend == _TRIED},
        {target: model for target, model in there.items() if target.backend == _PROMISED},
        [str(target) for target in able if target not in there],
    )


def _prepare(runtime: Runtime, root: Path, *, install: bool, progress: Progress) -> Environment:
    progress.advanced(STAGE, f"looking for {runtime.name}", 0.0)
    return environments.prepare(runtime, root, install=install, note=progress.note)


def _order(place: Path, wanted: _Wanted, ready: Sequence[Environment], floor: Runtime | None) -> Order:
    """Describe what decides the findings: files, runtimes and why one is missing, and the processor."""
    machine = host.describe()
    params = {
        "runtimes": {one.runtime.name: [*one.runtime.requirements, one.reason] for one in ready},
        "minimum_runtime": floor.name if floor else None,
        "unfinished": wanted.unfinished,
        "machine": [machine.model_id, machine.cpu_features, machine.os],
    }
    inputs = {str(target): model.digest for target, model in (wanted.tflite | wanted.pte).items()}
    return Order(place, STAGE, VERSION, params, inputs, versions("ai-edge-litert"))


def _make(
    name: str,
    wanted: _Wanted,
    ready: Sequence[Environment],
    floor: Runtime | None,
    log: Path,
    tell: Tell,
    out: Path,
) -> dict[str, Any]:
    """Try everything and write the document; returns how many files each runtime computes right."""
    rows: list[Row] = []
    count = max(1, len(wanted.tflite) * len(ready))
    for target, model in wanted.tflite.items():
        for environment in ready:
            tell(f"{target} on {environment.runtime.name}", len(rows) / count)
            verdict = try_file(model.path, environment, log=log)
            rows.append(Row(target=str(target), runtime=environment.runtime.name, verdict=verdict))
    document = Compat(
        recipe=name,
        minimum_runtime=floor.name if floor else None,
        floor_kept=None,
        rows=rows,
        files=[_file(target, model) for target, model in wanted.tflite.items()],
        executorch=[_promised(target, model) for target, model in wanted.pte.items()],
        unfinished=wanted.unfinished,
    )
    if floor:
        document = document.model_copy(update={"floor_kept": not document.below_floor})
    (out / RECORD).write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
    right = {one.runtime.name: 0 for one in ready}
    for row in rows:
        right[row.runtime] += row.verdict.status == "right"
    return {"right": right, "files": len(wanted.tflite)}


def try_file(folder: Path, environment: Environment, *, log: Path, timeout_s: float = trials.TIMEOUT_S) -> Verdict:
    """Run one model folder's file on one runtime and judge it."""
    runtime = environment.runtime
    if environment.python is None:
        return Verdict(status="not_tried", reason=environment.reason)
    described = signature.read(folder)
    rows = golden.read(folder)
    calls = trials.calls_of(described, rows)
    names = tasks.get(described.task).output_names
    file = folder / described.file
    trial = trials.run(environment.python, runtime.module, file, calls, names, log=log, timeout_s=timeout_s)
    verdict = judging.judge(trial, calls, rows, runtime=runtime.name)
    if verdict.status != "refused":
        return verdict
    codes = operators.read(file)
    asked = operators.probes(codes)
    models = [operators.only(code, version) for code, version in asked]
    opened = trials.probe(environment.python, runtime.module, models, log=log, timeout_s=timeout_s)
    # A runtime that breaks while it is asked leaves its own words as the reason.
    unknown = operators.too_new(codes, asked, opened) if opened else []
    return judging.refused(unknown, verdict, runtime=runtime.name)


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
        operators=operators.read(file),
    )


def _promised(target: Target, model: Artifact) -> ExecuTorchFile:
    made_with = model.manifest.tools["executorch"]
    major, minor = version_numbers(made_with)[:2]
    return ExecuTorchFile(
        target=str(target),
        made_with=made_with,
        minimum_runtime=signature.read(model.path).minimum_runtime,
        promised_on=[f"{major}.{minor}", f"{major}.{minor + 1} (or {major + 1}.0, if that follows)"],
        promise=EXECUTORCH_PROMISE,
        policy=EXECUTORCH_POLICY,
    )
