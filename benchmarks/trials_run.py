"""Carry out one trial through the ordinary stages, and write its record; what is there is kept."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import trials, trials_record
from benchmarks.trials import Table, Trial
from benchmarks.trials_record import File, Metric, Record, Stage
from pipeline import artifact, tasks
from pipeline.artifact import Artifact
from pipeline.checkpoint import source as student
from pipeline.checkpoint.source import Source
from pipeline.cli.console import Progress
from pipeline.compress.prune import costs, parts
from pipeline.convert.stage import Target
from pipeline.data import datasets as data
from pipeline.devices import host
from pipeline.errors import StudentError
from pipeline.graph import fanout
from pipeline.graph import line as plan
from pipeline.graph.line import Line
from pipeline.graph.node import versions
from pipeline.metrics import scoring
from pipeline.recipe.schema import Recipe
from pipeline.student import reference
from pipeline.verify import stage as verify

_TOOLS = ("torch", "transformers", "accelerate", "numpy")


def run(table: Table, trial: Trial, progress: Progress, threads: int | None = None) -> Record:
    """Make a trial's checkpoint, judge it, and write the record.

    Args:
        table: whose trial it is.
        trial: what it is made of is made before, or kept.
        progress: hears of each step.
        threads: of its trainings, where other trials run beside it; None: one a core.

    Raises:
        PipelineError: what could not be carried out; artifacts finished by then stay.
    """
    line = _made(table, trial, progress, threads)
    found = _record(table, trial, line)
    trials_record.write(table, trial, found)
    # All artifacts are whole, so nothing goes on from these, and they are as large as the models.
    for folder in line.folder.glob("checkpoints*"):
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _made(table: Table, trial: Trial, progress: Progress, threads: int | None, *, judged: bool = True) -> Line:
    """Walk a trial's line, after those of what it is made of, which are only made."""
    for parent in table.parents(trial):
        _made(table, parent, progress, threads, judged=False)
    recipe, file = trials.write(table, trial)
    line = Line(recipe, file, table.folder, progress, plan.choose_targets(recipe, []))
    # Trials run side by side, and their steps have the same names.
    line.steps.prefix = f"{trial.name}: "
    line.steps.threads = threads
    progress.note(trial.name if judged else f"{trial.name}, which others are made of")
    line.run(_until(recipe, trial, judged=judged))
    return line


def _until(recipe: Recipe, trial: Trial, *, judged: bool) -> str:
    if judged and trial.row.dataset is not None:
        return "verify" if trials.with_files(trial) else "student"
    return "train" if trials.product(recipe) == "trained" else "compress"


def _record(table: Table, trial: Trial, line: Line) -> Record:
    judged = trial.row.dataset is not None
    folder = line.folder / ("student" if judged else trials.product(line.recipe))
    source = student.inspect_folder(folder, origin=folder.name, licence=None)
    metric = _metric(line) if judged else None
    return Record(
        table=table.name,
        row=trial.row.name,
        seed=trial.seed,
        key=trials.key(table, trial),
        parameters=_parameters(folder),
        compute_fraction=_compute(source, table),
        metric=metric,
        stages=list(_stages(line)),
        files=list(_files(line)) if judged and trials.with_files(trial) else [],
        tools=versions(*_TOOLS),
        machine=host.describe().model_id,
    )


def _stages(line: Line) -> Iterator[Stage]:
    own = {step.place: step for step in line.steps.done if step.place.parent == line.folder}
    for step in own.values():
        if step.artifact:
            yield _stage(step.name.removeprefix(line.steps.prefix), step.artifact)


def _stage(name: str, made: Artifact) -> Stage:
    facts = made.manifest.metrics
    return Stage(
        name=name,
        version=made.manifest.stage_version,
        key=made.manifest.key,
        digest=made.digest,
        metric=facts.get("metric"),
        value=facts.get("dev"),
        updates=facts.get("steps"),
        seconds=facts.get("train_seconds"),
    )


def _parameters(folder: Path) -> int:
    """Return a student's parameters; of a checkpoint that is only made, the numbers that it stores."""
    from safetensors import safe_open

    known = artifact.read_manifest(folder).metrics
    if folder.name == "student":
        return int(known["parameters"])
    with safe_open(folder / student.WEIGHTS, framework="numpy") as handle:
        return sum(math.prod(handle.get_slice(name).get_shape()) for name in handle.keys())  # noqa: SIM118


def _compute(source: Source, table: Table) -> float | None:
    """Return the encoder's multiply-adds as a fraction of those of the table's own student."""
    whole = student.at(table.student, table.folder / "recipes" / "any.toml")
    try:
        found, full = (costs.encoder_multiply_adds(parts.read(one)) for one in (source, whole))
    except StudentError:
        return None
    return found / full


def _metric(line: Line) -> Metric:
    truth = _reference(line)
    (labels,) = truth.datasets
    kind, row = tasks.get(truth.task).output_kind, scoring.METRICS[labels.metric]
    return Metric(
        dataset=labels.name,
        data_sha256=str(data.DATASETS[labels.name].digest()),
        metric=labels.metric,
        rows=len(labels.gold),
        chance=row.chance(labels),
        value=scoring.score(kind, labels, truth.outputs),
        resamples=trials_record.packed(trials_record.resample(kind, labels, truth.outputs)),
    )


def _reference(line: Line) -> reference.Reference:
    """Return fp32 PyTorch's outputs, where verification keeps them: its artifact, or the same one made now."""
    length = max(line.recipe.lengths(backend)[-1] for backend in line.recipe.targets)
    made = artifact.load(line.folder / "student")
    truth = fanout.take_reference(line.steps, line.recipe.task, line.recipe.verify.datasets, made, length)
    assert truth is not None, "it is not a dry run"
    return reference.read(truth.path)


def _files(line: Line) -> Iterator[File]:
    for target in line.targets:
        yield _file(line.folder, target)


def _file(folder: Path, target: Target) -> File:
    parity = verify.read(folder / str(target) / "parity")
    return File(
        backend=parity.backend,
        scheme=parity.scheme,
        verdict=parity.verdict,
        reasons=parity.reasons,
        file_bytes=parity.file_bytes,
        digest=artifact.read_manifest(folder / str(target) / "model").digest,
        value=parity.datasets[0].found if parity.datasets else None,
    )
