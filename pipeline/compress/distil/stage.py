"""The distil stage: a student and a teacher turn into a distilled student in Hugging Face layout, with its record."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import tasks
from pipeline.artifact import digest_of
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.source import NOTHING, CheckpointsBySource, Source, inspect_folder
from pipeline.checkpoint.source import at as checkpoint_at
from pipeline.compress.distil import checks
from pipeline.compress.distil.dataset import DistilData
from pipeline.execution.worker import tell
from pipeline.recipe.distillation import UNPRUNED, DistilSection, HeadSection
from pipeline.recipe.losses import loss_versions
from pipeline.train.job import DevScore, FrozenRecord, LossPoint
from pipeline.vectors.contract import declared_space

if TYPE_CHECKING:
    from pipeline.compress.distil.models import DistilJob

VERSION = 3
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "accelerate")
"""Packages that decide the weights."""
RECORD_FILE = "distillation.json"
_NOT_IN_KEY: dict[str, Any] = dict.fromkeys(("texts", "teacher", "train_file", "dev_file", "checkpoint_minutes"), True)
_NOT_IN_KEY["augment"] = {"model"}
"""Paths, whose contents are in the key instead, and settings that do not change the result."""


class DistilLossPoint(LossPoint):
    """One point of the loss curve; `loss` is the weighted sum of the terms."""

    terms: dict[str, float]
    """Each loss before its weight."""


class DistilRecord(FrozenRecord):
    """A finished distillation."""

    task: str
    settings: dict[str, Any]
    """The recipe's `[distil]`, defaults included, without paths."""
    teacher_layers: tuple[int, ...]
    """The teacher's layer, from 0, for each of the student's, if layers are compared."""
    cached: bool
    """Whether the teacher's outputs were computed once."""
    new_tensors: list[str]
    rows: int
    """Rows that the student was trained on."""
    augmented_rows: int
    """Copies with words replaced among these rows."""
    tokens: int
    steps: int
    epochs: float
    seconds: float
    """Time of updates and dev metrics, summed over the parts of an interrupted run."""
    resumed_at: list[int]
    device: str
    processes: int
    dataset: str | None
    """The dataset of the metric; None without a metric, and for held-out text."""
    metric: str | None
    """Name of the metric: a row of `pipeline.metrics.scoring.METRICS`; `perplexity`, where lower is better; or None."""
    before: float | None
    """The metric of the student before distillation."""
    dev: list[DevScore]
    """After each epoch and at the end."""
    curve: list[DistilLossPoint]
    found_among_ten: float | None = None
    """Fraction of the package's texts that the student finds among the ten nearest of its teacher's vectors; None if it
    did not learn these."""
    shares_space: bool | None = None


def read_record(folder: Path) -> DistilRecord:
    """Read the record of a distilled artifact."""
    return DistilRecord.model_validate_json((folder / RECORD_FILE).read_bytes())


def teacher_of(
    section: DistilSection, unpruned: Source, recipe_file: Path, made: CheckpointsBySource = NOTHING
) -> Source | None:
    """Return the teacher's checkpoint, or None if no loss needs one.

    Args:
        section: the settings.
        unpruned: the recipe's checkpoint before compression.
        recipe_file: a relative folder is relative to its folder.
        made: checkpoints that other recipes made.
    """
    if not checks.needs_teacher(section):
        return None
    return unpruned if section.teacher == UNPRUNED else checkpoint_at(section.teacher, recipe_file, made)


def order_params(section: DistilSection | HeadSection, task_name: str, data: DistilData) -> dict[str, Any]:
    """Return the parameters of the key, besides the student and the teacher: task, settings and data."""
    settings = section.model_dump(mode="json", exclude=_NOT_IN_KEY)
    versions = loss_versions(section.losses) if isinstance(section, DistilSection) else {}
    if isinstance(section, DistilSection) and section.space != "own":
        # What was made before there was such a space keeps its key.
        del settings["teacher_weight"]
    return {"task": task_name, "settings": settings, **data.params} | ({"losses": versions} if versions else {})


def make(
    source: Path,
    teacher: Path | None,
    task_name: str,
    section: DistilSection,
    data: DistilData,
    checkpoints: Path,
    out: Path,
    own: Path | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Distil, and write a folder in Hugging Face layout. Runs in a worker, since it imports torch.

    Args:
        source: the student to begin with.
        teacher: None if no loss needs one.
        task_name: a row of `tasks.py`.
        section: the settings.
        data: what the student is trained on.
        checkpoints: folder for the checkpoints of an interrupted run.
        out: the artifact's directory.
        own: the checkpoint before compression, for `space = "own"`.
        cache: folder for what other distillations may use again, such as the teacher's outputs; `checkpoints` unless
            given.

    Returns:
        The dev metric before and after, the losses, and the time it took.

    Raises:
        RecipeError: the settings do not fit the checkpoints, see `checks.check`.
        InputError: texts or labels are absent or malformed, or the loss is not finite.
        StudentError: a checkpoint does not load, or the teacher does not fit.
    """
    return _make(job(source, teacher, task_name, section, data, checkpoints, own, cache), out)


def job(
    source: Path,
    teacher: Path | None,
    task_name: str,
    section: DistilSection,
    data: DistilData,
    checkpoints: Path,
    own: Path | None = None,
    cache: Path | None = None,
) -> "DistilJob":
    """Return the job of a distillation after its checks; see `make`."""
    from pipeline.compress.distil.models import DistilJob, read_folder

    both = [read_folder(one) for one in (source, teacher) if one]
    if data.augmenter:
        data = replace(data, augmenter=read_folder(data.augmenter.folder))
    before = read_folder(own) if own else None
    checks.check(section, both[0], tasks.get(task_name), both[1] if teacher else None, data, before)
    params = order_params(section, task_name, data)
    digests = [one.digest for one in both]
    key = digest_of([VERSION, params, digests, *([before.digest] if before else [])])
    return DistilJob(
        key,
        source,
        teacher,
        digests[-1] if teacher else "",
        task_name,
        section,
        data,
        checkpoints,
        cache or checkpoints,
        own=own,
        own_digest=before.digest if before else "",
    )


def make_head(
    source: Path, section: HeadSection, text_files: tuple[Path, ...], checkpoints: Path, out: Path
) -> dict[str, Any]:
    """Train a tied masked-LM head on plain text with a frozen encoder. Runs in a worker, since it imports torch.

    Returns:
        The perplexity before and after.
    """
    checks.check_head(section, inspect_folder(source, origin=source.name, licence=None), text_files)
    settings = section.model_dump() | {"losses": {"masked_lm": 1.0}, "head": "masked_lm"}
    whole = job(source, None, "embedding", DistilSection.model_validate(settings), DistilData(text_files), checkpoints)
    return _make(replace(whole, key=digest_of([whole.key, "head"]), only_head=True), out)


def _make(job: "DistilJob", out: Path) -> dict[str, Any]:
    model, record = distil(job)
    return write(model, record, job.source, out)


def distil(job: "DistilJob", told: Callable[[str, float], None] | None = None) -> tuple[Any, DistilRecord]:
    """Distil a student.

    Args:
        job: the distillation.
        told: called with a message and the fraction that is done; by default the parent of this worker is told.

    Returns:
        The student on the CPU, and the record.
    """
    from pipeline.compress.distil.objective import DistilObjective
    from pipeline.train import loop
    from pipeline.train.sparsity import zeros_in_training

    told = told or tell
    plan = loop.RunPlan(job.key, job.checkpoints, job.section, "distil", job.section.passes)
    with loop.open_accelerator(plan) as accelerator:
        objective = DistilObjective(job, accelerator, told)
        before = objective.dev_metric(accelerator.device)
        zeros = zeros_in_training(objective.model.student, job.section.sparse)
        finished = loop.run(objective, plan, accelerator, told, zeros)
        record = _record(job, objective, finished, accelerator, before)
        trained = objective.model.student.cpu().eval()
        return trained, record.model_copy(update=_claim_space(trained, job))


def _claim_space(model: Any, job: "DistilJob") -> dict[str, Any]:
    """Say in the student's config whose space it was taught; what it said before holds only if the teacher says so.

    Returns:
        See `embedding.claim_space`; empty if no space was taught.
    """
    from pipeline.compress.distil.models import own_and_taught
    from pipeline.compress.space import embedding

    if job.teacher is None:
        return {}
    if job.section.space == "teacher":
        return embedding.claim_space(model, embedding.space_of(job.teacher), *own_and_taught(model, job))
    said = declared_space(read_json(job.source / "config.json"))
    if said is not None and said != embedding.space_of(job.teacher):
        embedding.declare_space(model, None)
    return {}


def _record(job: "DistilJob", objective: Any, finished: Any, accelerator: Any, before: float | None) -> DistilRecord:
    history, (first, *_) = finished.history, objective.weights
    # The history of a single loss has no terms.
    curve = [{"terms": {first: point["loss"] / objective.weights[first]}} | point for point in history.curve]
    measured = job.data.dataset if objective.dev is not None else None
    return DistilRecord(
        task=job.task_name,
        settings=job.section.model_dump(mode="json", exclude=_NOT_IN_KEY),
        teacher_layers=objective.teacher_layers,
        cached=objective.cached,
        new_tensors=objective.new_tensors,
        rows=len(objective.lengths),
        augmented_rows=objective.batches.augmented_rows,
        tokens=int(objective.lengths.sum()),
        steps=finished.steps,
        epochs=finished.epochs,
        seconds=history.seconds,
        resumed_at=history.resumed_at,
        device=str(accelerator.device),
        processes=accelerator.num_processes,
        dataset=measured.name if measured else None,
        metric="perplexity" if job.masked_lm else measured.metric if measured else None,
        before=before,
        dev=[DevScore.model_validate(score) for score in history.dev],
        curve=[DistilLossPoint.model_validate(point) for point in curve],
    )


def write(model: Any, record: DistilRecord, source: Path, out: Path) -> dict[str, Any]:
    """Write a distilled student with the tokenizer of its source checkpoint, and `distillation.json`."""
    from pipeline.train.model import save_with_record
    from pipeline.train.sparsity import metrics_if_sparse

    save_with_record(model, source, out, record=record, file_name=RECORD_FILE)
    return {
        "dataset": record.dataset,
        "metric": record.metric,
        "before": record.before,
        "dev": record.dev[-1].value if record.dev else None,
        "rows": record.rows,
        "augmented_rows": record.augmented_rows,
        "steps": record.steps,
        "first_loss": record.curve[0].loss,
        "final_loss": record.curve[-1].loss,
        "final_terms": record.curve[-1].terms,
        "teacher_cached": record.cached,
        "new_tensors": record.new_tensors,
        "train_seconds": record.seconds,
        "device": record.device,
        "found_among_ten": record.found_among_ten,
        "shares_space": record.shares_space,
    } | metrics_if_sparse(model)
