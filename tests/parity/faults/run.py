"""Convert, judge and keep: one cell is one file, faulty or clean, with verify's verdict on it."""

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from store import kept

from faults import calibrated, constants, file_faults, line, planting, settings, students
from faults.fault import Fault
from faults.line import BUILD, Line
from faults.students import Student
from faults.workers import Workers, instead, verify_in_worker
from pipeline import artifact, tasks
from pipeline.artifact import Artifact, Spec, digest_of
from pipeline.convert.stage import Target
from pipeline.errors import PipelineError
from pipeline.quantize.stage import QuantiseRequest
from pipeline.schemes import SCHEMES
from pipeline.verify import stage as verify

_HELPERS = (planting, constants, students, settings, file_faults.Planting, calibrated.Checkpoint)


@dataclass(frozen=True)
class Gate:
    """A gate's result as it is kept."""

    name: str
    bound: float | None
    found: float | None
    passed: bool
    detail: str


@dataclass(frozen=True)
class Cell:
    """What became of one file."""

    target: str
    verdict: str
    """`passed`, `failed` or `not_run` by verify; `refused` before it came to that."""
    gates: tuple[Gate, ...] = ()
    stopped: str | None = None
    """The error with which convert, load or the runtime refused it."""
    same_file: bool = False
    """Byte for byte the clean file."""
    thorough: bool = True
    """Whether the verdict is that of a thorough verification."""

    @property
    def fired(self) -> list[Gate]:
        """The gates that failed."""
        return [gate for gate in self.gates if not gate.passed]


def clean_cell(clean: Line, target: Target, workers: Workers) -> Cell:
    """Convert and judge a clean file."""
    model = clean.convert(target, workers)
    return _kept(
        BUILD / "clean" / f"{clean.which}-{target}",
        model.digest,
        clean,
        lambda: _judge(clean, model, clean.quantise(target.scheme, workers), thorough=True),
    )


def faulty_cell(fault: Fault, clean: Line, target: Target, workers: Workers) -> Cell:
    """Plant a fault, convert and judge; a fault that cannot be planted is said to be so, and never a catch."""
    try:
        return _faulty_cell(fault, clean, target, workers)
    except planting.PlantingFailed as error:
        return Cell(str(target), "not planted", stopped=str(error))


def _faulty_cell(fault: Fault, clean: Line, target: Target, workers: Workers) -> Cell:
    place = BUILD / "planted" / fault.name / str(target)
    if fault.in_exported_graph:
        model = _planted_model(fault, clean, target, workers)
        same = _same_file(model.path, clean.convert(target, workers).path)
        return _kept(place, model.digest, clean, lambda: replace(_verdict(clean, model), same_file=same))
    model = clean.convert(target, workers)
    digest = digest_of([model.digest, _code_of(fault)])
    plants: dict[str, Callable[..., Cell]] = {
        "file": _in_file,
        "companions": _beside_file,
        "manifest": _after_manifest,
        "runtime": _in_runtime,
        "quantised": _in_quantised,
        "rounding": _in_rounding,
    }
    return _kept(place, digest, clean, lambda: plants[fault.level](fault, clean, target, model, workers))


def _code_of(fault: Fault) -> str:
    """Return what decides how a fault is planted: its own source and the helpers that it shares."""
    plant = fault.plant
    inner = [cell.cell_contents for cell in plant.__closure__ or ()] if hasattr(plant, "__closure__") else []
    # A plant that is made by a function holds others, or numbers, or names of tensors.
    parts = (plant, *inner, *_HELPERS)
    sources = [inspect.getsource(part) if callable(part) or inspect.ismodule(part) else repr(part) for part in parts]
    return digest_of([fault.name, fault.level, *sources])


def _kept(place: Path, content: str, clean: Line, judge: Callable[[], Cell]) -> Cell:
    """Return the verdict of an earlier run on the same content by the same code, or judge now."""

    def make(out: Path) -> dict[str, Any]:
        (out / "cell.json").write_text(json.dumps(asdict(judge())), encoding="utf-8")
        return {}

    inputs = {"content": content, "reference": clean.reference.digest, "code": line.judging_code()}
    found = json.loads(
        (kept(place, Spec("fault", 1, {}, inputs, {}), make).path / "cell.json").read_text(encoding="utf-8")
    )
    return Cell(**(found | {"gates": tuple(Gate(**gate) for gate in found["gates"])}))


# --- judging -----------------------------------------------------------------------------------------------------


def _judge_planted(clean: Line, model: Artifact, quantised: Artifact | Path | None = None) -> Cell:
    """Judge as a run does by default, and thoroughly if that sees nothing; see `_judge`."""
    usual = _judge(clean, model, quantised, thorough=False)
    return usual if usual.verdict != "passed" else _judge(clean, model, quantised, thorough=True)


def _judge(clean: Line, model: Artifact, quantised: Artifact | Path | None = None, *, thorough: bool) -> Cell:
    """Let verify judge a model folder with the default gates, against the clean student.

    Args:
        clean: the student's line.
        model: the model folder.
        quantised: the checkpoint of which the file is to be, where it is not the student.
        thorough: try every length and every id.
    """
    target = model.manifest.params["target"]
    backend, _, scheme = target.partition("-")
    gates = SCHEMES[scheme].gates[tasks.get(clean.which.task).output_kind]
    wanted = QuantiseRequest(trained=planting.is_trained(scheme, settings.SETTINGS[clean.which.setting].training_steps))
    asked = verify.VerifyRequest(
        Target(backend, scheme), gates, clean.which.random_weights, thorough=thorough, checkpoint=wanted
    )
    with TemporaryDirectory() as scratch:
        out = Path(scratch)
        of = quantised.path if isinstance(quantised, Artifact) else quantised
        verify_in_worker(model.path, clean.student.path, of, clean.reference.path, None, asked, out)
        parity = verify.read_parity(out)
    judged = tuple(Gate(g.name, g.bound, g.found, g.passed, g.detail) for g in parity.gates)
    stopped = parity.reasons[0] if parity.measures is None and not any(not gate.passed for gate in judged) else None
    return Cell(target, parity.verdict, judged, stopped, thorough=thorough)


def _verdict(clean: Line, model: Artifact) -> Cell:
    """Judge, or say how convert refused."""
    refused = model.manifest.metrics.get("refused")
    if refused:
        return Cell(model.manifest.params["target"], "refused", stopped=f"convert: {refused}")
    return _judge_planted(clean, model)


def _guarded(target: Target, judge: Callable[[], Cell]) -> Cell:
    """Turn an error of load or verify into a refusal."""
    try:
        return judge()
    except planting.PlantingFailed:
        raise
    except PipelineError as error:
        return Cell(str(target), "refused", stopped=f"{type(error).__name__}: {error}")


def _same_file(folder: Path, clean: Path) -> bool:
    """Tell whether two model folders hold the same model file."""
    hashes = []
    for one in (folder, clean):
        entries = artifact.read_manifest(one).files
        hashes.append({entry.path: entry.sha256 for entry in entries if entry.path.startswith("model.")})
    return hashes[0] == hashes[1] != {}


# --- planting ----------------------------------------------------------------------------------------------------


def _planted_model(fault: Fault, clean: Line, target: Target, workers: Workers) -> Artifact:
    """Convert with a fault planted before the toolchain, the base scheme first."""
    base_target = line.base_of(target)
    base = _planted_model(fault, clean, base_target, workers) if base_target else None
    place = BUILD / "models" / fault.name / str(target)
    spec = clean.spec(target, {"base": base.digest} if base else {}, planted=_code_of(fault))

    def make(out: Path) -> dict[str, Any]:
        if base and "refused" in base.manifest.metrics:
            return {"refused": base.manifest.metrics["refused"]}
        path = base.path if base else None
        return workers.converter.call(planting.convert_planted, fault.name, clean.student, target, path, out)

    return kept(place, spec, make)


def _copy(model: Artifact, folder: Path, edit: Callable[[Path], dict[str, Any]]) -> Artifact:
    """Build an edited copy of a model folder, with an honest manifest over what was edited."""

    def make(out: Path) -> dict[str, Any]:
        shutil.copytree(model.path, out, dirs_exist_ok=True)
        (out / artifact.MANIFEST).unlink()
        return {**model.manifest.metrics, **edit(out)}

    return kept(folder / "model", Spec("convert", 1, model.manifest.params, {}, {}), make)


def stranger_of(which: Student) -> Student:
    """Return the student whose file may lie in the place of this one's."""
    return replace(which, seed=(which.seed or 0) + 1)


def otherwise_trained(which: Student) -> Student:
    """Return the student whose quantised checkpoints were trained where this one's were not, or the other way round."""
    one, other = "outliers", "outliers_trained"
    return replace(which, setting=one if which.setting == other else other)


def _in_file(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers) -> Cell:
    stranger = line.open_line(stranger_of(clean.which), workers).convert(target, workers)
    siblings = line.schemes_of(target.backend, calibrated=SCHEMES[target.scheme].calibrated)
    clean_files = {scheme: clean.convert(Target(target.backend, scheme), workers).path for scheme in siblings}

    quantised = clean.quantise(target.scheme, workers)

    def edit(out: Path) -> dict[str, Any]:
        given = (clean.student.path, target, clean_files, stranger.path, quantised.path if quantised else None, out)
        return workers.converter.call(planting.edit_file, fault.name, *given)

    with TemporaryDirectory(dir=BUILD) as scratch:
        planted = _copy(model, Path(scratch), edit)
        return _guarded(target, lambda: _judge_planted(clean, planted, clean.quantise(target.scheme, workers)))


def _beside_file(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers) -> Cell:
    def edit(out: Path) -> dict[str, Any]:
        with planting.failures_named(fault):
            return fault.plant(out) or {}

    with TemporaryDirectory(dir=BUILD) as scratch:
        planted = _copy(model, Path(scratch), edit)
        return _guarded(target, lambda: _judge_planted(clean, planted, clean.quantise(target.scheme, workers)))


def _after_manifest(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers) -> Cell:
    with TemporaryDirectory(dir=BUILD) as scratch:
        folder = Path(scratch) / "model"
        shutil.copytree(model.path, folder)
        with planting.failures_named(fault):
            fault.plant(folder)
        return _guarded(target, lambda: _judge_planted(clean, artifact.load(folder)))


def _in_runtime(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers) -> Cell:
    worker = workers.fresh_runner()
    worker.call(planting.plant_in_runtime, fault.name)
    with instead(worker):
        return _guarded(target, lambda: _judge_planted(clean, model))


def _in_quantised(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers) -> Cell:
    """Let verify see the checkpoint that was planted in: the student alone can give it away."""
    return _of_edited(fault, clean, target, model, workers, shown=True)


def _in_rounding(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers) -> Cell:
    """Convert the checkpoint that was planted in, and show verify the clean one, as if the converter had done it."""
    return _of_edited(fault, clean, target, model, workers, shown=False)


def _of_edited(fault: Fault, clean: Line, target: Target, model: Artifact, workers: Workers, *, shown: bool) -> Cell:
    quantised = clean.quantise(target.scheme, workers)
    assert quantised
    others = [stranger_of(clean.which), otherwise_trained(clean.which)]
    stranger, other = (line.open_line(which, workers).quantise(target.scheme, workers) for which in others)
    assert stranger
    assert other
    with TemporaryDirectory(dir=BUILD) as scratch:
        edited = Path(scratch) / "quantised"
        edited.mkdir()
        checkpoint = calibrated.Checkpoint(
            edited, clean.student.path, clean.which.task, target.scheme, stranger.path, other.path
        )
        checkpoint.take(quantised.path)
        workers.converter.call(planting.edit_quantised, fault.name, checkpoint)
        spec = Spec("convert", 1, model.manifest.params, {}, {})
        call = workers.converter.call
        planted = kept(
            Path(scratch) / "model",
            spec,
            lambda out: call(planting.convert_quantised, clean.student, target, edited, out),
        )
        if "refused" in planted.manifest.metrics:
            return Cell(str(target), "refused", stopped=f"convert: {planted.manifest.metrics['refused']}")
        cell = _guarded(target, lambda: _judge_planted(clean, planted, edited if shown else quantised))
        return replace(cell, same_file=_same_file(planted.path, model.path))
