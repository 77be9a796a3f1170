"""Clean lines: a student, its reference and its converted files, made by the pipeline's stages and kept in build/."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pieces
import sources
from filelock import FileLock
from store import kept

from faults import planting, settings, students
from faults.settings import SETTINGS
from faults.students import Student
from faults.workers import Workers
from pipeline import artifact, formats, tasks
from pipeline.artifact import Artifact, Spec
from pipeline.checkpoint import source as student
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.execution.node import versions
from pipeline.quantize import stage as quantize
from pipeline.schemes import SCHEMES, supported
from pipeline.student import reference
from pipeline.student import stage as student_stage

REPOSITORY = Path(__file__).resolve().parents[3]
BUILD = REPOSITORY / "build" / "faults"
BACKENDS = tuple(f"pipeline.formats.{name}" for name in formats.NAMES)
"""Imported by name, so no import statement tells of them."""


@cache
def converting_code() -> str:
    """Return the digest of the code that decides a converted file."""
    return sources.digest("pipeline.convert.stage", "pipeline.student.stage", *BACKENDS)


@cache
def judging_code() -> str:
    """Return the digest of the code and texts that decide a verdict."""
    code = sources.digest("pipeline.verify.stage", "pipeline.student.reference", *BACKENDS)
    texts = sorted((REPOSITORY / "pipeline" / "text" / "texts").iterdir())
    return artifact.digest_of([code, [artifact.sha256_file(path) for path in texts]])


@cache
def quantising_code() -> str:
    """Return the digest of the code that decides a quantised checkpoint."""
    return sources.digest("pipeline.quantize.stage", "pipeline.data.calibration")


def schemes_of(backend: str, *, calibrated: bool = False) -> list[str]:
    """Return every scheme that a backend supports and makes of the student as it is, the base scheme first.

    Args:
        backend: one of `formats.NAMES`.
        calibrated: return those that it makes of a calibrated checkpoint instead.
    """
    every = supported(backend, minimum_ios=planting.MINIMUM_IOS)
    return [name for name in every if SCHEMES[name].calibrated == calibrated]


def rank(target: Target) -> tuple[str, int]:
    """Return the order in which targets are made: a backend's base scheme, and fp16 before the int8 made from it."""
    return target.backend, list(SCHEMES).index(target.scheme)


@dataclass(frozen=True)
class Line:
    """One clean student with the truth about it."""

    which: Student
    student: Artifact
    reference: Artifact

    @property
    def folder(self) -> Path:
        """Where the line lies."""
        return self.student.path.parent

    def model(self, target: Target) -> Path:
        """Return where the clean file of a target lies."""
        return self.folder / str(target)

    def convert(self, target: Target, workers: Workers) -> Artifact:
        """Make a target's clean model folder, its base scheme first."""
        base = base_of(target)
        from_base = self.convert(base, workers) if base else None
        quantised = self.quantise(target.scheme, workers)
        made = {"base": from_base, "quantised": quantised}
        inputs = {name: one.digest for name, one in made.items() if one}
        spec = self.spec(target, inputs, planted="")
        first, of = (one.path if one else None for one in made.values())
        call = lambda out: workers.converter.call(  # noqa: E731
            planting.convert_clean, self.student, target, first, of, out
        )
        with _alone(self.model(target)):
            return kept(self.model(target), spec, call)

    def quantise(self, scheme: str, workers: Workers) -> Artifact | None:
        """Make the checkpoint that a scheme's files are made of; None where that is the student."""
        if not SCHEMES[scheme].calibrated:
            return None
        steps = SETTINGS[self.which.setting].training_steps
        params = {"scheme": scheme, "steps": steps, "code": quantising_code()}
        place = self.folder / f"quantised-{scheme}"
        tools = versions(*quantize.DISTRIBUTIONS)
        spec = Spec("quantize", quantize.version(scheme), params, {"student": self.student.digest}, tools)
        task = self.which.task
        call = lambda out: workers.converter.call(  # noqa: E731
            planting.quantise, self.student.path, task, scheme, steps, out
        )
        with _alone(place):
            return kept(place, spec, call)

    def spec(self, target: Target, inputs: Mapping[str, str], *, planted: str) -> Spec:
        """Return the spec of a converted file; `planted` says what was changed."""
        params: dict[str, Any] = {
            "target": str(target),
            "lengths": list(self.which.lengths),
            "code": converting_code(),
            "planted": planted,
        }
        tools = versions(*formats.get(target.backend).DISTRIBUTIONS)
        return Spec("convert", convert.VERSION, params, {"student": self.student.digest, **inputs}, tools)


def base_of(target: Target) -> Target | None:
    """Return the target from whose file this one is made."""
    scheme = None if SCHEMES[target.scheme].calibrated else formats.get(target.backend).BASE_SCHEME
    return Target(target.backend, scheme) if scheme and scheme != target.scheme else None


def _alone(place: Path) -> FileLock:
    """Return the lock of a place: two threads, or two processes, ask for the same file at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(place.with_name(f".{place.name}.lock"), thread_local=False)


def open_line(which: Student, workers: Workers) -> Line:
    """Make a student and its reference, or find them made."""
    folder = BUILD / "lines" / str(which)
    code = [artifact.sha256_file(Path(inspect.getfile(module))) for module in (students, settings, pieces)]
    tools = versions("torch", "transformers", "tokenizers")
    params = {"task": which.task, "origin": str(which), "licence": "Apache-2.0", "random_weights": which.random_weights}
    params["lengths"] = list(which.lengths)
    spec = Spec(
        "student",
        student_stage.VERSION,
        params,
        {"code": artifact.digest_of(code), "line": converting_code()},
        tools,
    )
    with _alone(folder / "student"):
        made = kept(folder / "student", spec, lambda out: workers.converter.call(make_student, which, out))
    wanted = {**reference.order_params(tasks.get(which.task), None, which.lengths[-1]), "code": judging_code()}
    spec = Spec("reference", reference.VERSION, wanted, {"student": made.digest}, tools)
    with _alone(folder / "reference"):
        truth = kept(
            folder / "reference",
            spec,
            lambda out: workers.converter.call(reference.make, made.path, which.task, None, which.lengths[-1], out),
        )
    return Line(which, made, truth)


def make_student(which: Student, out: Path) -> dict[str, Any]:
    """Write a student and lay it out as the student stage does. Runs in a worker."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        folder = students.source(which, Path(scratch))
        return student_stage.make(
            student.inspect_folder(folder, origin=str(which), licence=None).folder, which.task, False, out
        )
