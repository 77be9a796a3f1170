"""Distil stage: a student and a teacher in, a folder in Hugging Face layout out, with the record of how it went."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from pipeline import tasks
from pipeline.artifact import digest_of
from pipeline.checkpoint import source as student
from pipeline.checkpoint.source import Made, Source
from pipeline.compress.distil import checks, terms
from pipeline.compress.distil.material import Material
from pipeline.graph.worker import tell
from pipeline.recipe.compression import UNPRUNED, DistilSection, HeadSection

if TYPE_CHECKING:
    from pipeline.compress.distil.models import Work

VERSION = 3
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "accelerate")
"""What decides the weights."""
FILE = "distillation.json"
_NOT_IN_KEY: dict[str, Any] = dict.fromkeys(("texts", "teacher", "train_file", "dev_file", "checkpoint_minutes"), True)
_NOT_IN_KEY["augment"] = {"model"}
"""Paths, whose content is in the key instead, and what does not change the result."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Point(_Strict):
    """One point of the loss curve."""

    step: int
    """Updates done."""
    loss: float
    """Weighted sum of the terms, mean over the updates since the point before."""
    learning_rate: float
    gradient_norm: float | None = None
    """Before the gradient is cut, mean over the same updates; None where one overflowed, or not recorded yet."""
    terms: dict[str, float]
    """Each loss before its weight."""


class Score(_Strict):
    """The dev metric at one moment."""

    step: int
    epoch: float
    value: float


class Distilled(_Strict):
    """A finished distillation."""

    task: str
    settings: dict[str, Any]
    """The recipe's `[distil]`, defaults included, without paths."""
    teacher_layers: tuple[int, ...]
    """The teacher's layer, from 0, for each of the student's, where layers are compared."""
    cached: bool
    """Whether the teacher's outputs were computed once."""
    new_tensors: list[str]
    rows: int
    """Learnt on."""
    augmented_rows: int
    """Of them, copies with words replaced."""
    tokens: int
    steps: int
    epochs: float
    seconds: float
    """Of updates and dev metrics, summed over the parts of a run that was stopped."""
    resumed_at: list[int]
    device: str
    processes: int
    dataset: str | None
    """What the metric was measured on; None where it was nothing, or text that is not learnt on."""
    metric: str | None
    """A row of `metrics.scoring.METRICS`; `perplexity`, of which less is better; None where nothing was measured."""
    before: float | None
    """The metric of the student to begin with."""
    dev: list[Score]
    """After each epoch and at the end."""
    curve: list[Point]


def read(folder: Path) -> Distilled:
    """Read a distilled artifact's record."""
    return Distilled.model_validate_json((folder / FILE).read_bytes())


def teacher_of(
    section: DistilSection, unpruned: Source, recipe_file: Path, made: Made = student.NOTHING
) -> Source | None:
    """Return the teacher's checkpoint, or None where no loss compares with one.

    Args:
        section: the settings.
        unpruned: the recipe's checkpoint before compression.
        recipe_file: a relative folder is meant from there.
        made: by other recipes.
    """
    if not checks.needs_teacher(section):
        return None
    return unpruned if section.teacher == UNPRUNED else student.at(section.teacher, recipe_file, made)


def order_params(section: DistilSection | HeadSection, task_name: str, found: Material) -> dict[str, Any]:
    """Return what decides the result, besides student and teacher."""
    settings = section.model_dump(mode="json", exclude=_NOT_IN_KEY)
    newer = terms.versions(section.losses) if isinstance(section, DistilSection) else {}
    return {"task": task_name, "settings": settings, **found.params} | ({"losses": newer} if newer else {})


def make(
    source: Path,
    teacher: Path | None,
    task_name: str,
    section: DistilSection,
    found: Material,
    checkpoints: Path,
    out: Path,
) -> dict[str, Any]:
    """Distil, and write a folder in Hugging Face layout. Runs in a worker, since it imports torch.

    Args:
        source: the student to begin with.
        teacher: None where no loss compares with one.
        task_name: a row of `tasks.py`.
        section: the settings.
        found: what is learnt on.
        checkpoints: folder for what a run that was stopped goes on from, and for the teacher's outputs.
        out: the artifact's directory.

    Returns:
        The dev metric before and after, the losses, and what it took.

    Raises:
        RecipeError: what cannot go together, see `checks.check`.
        InputError: texts or labels that are absent or malformed, or a loss that is no number.
        StudentError: a checkpoint that does not load, or a teacher that does not fit.
    """
    return _make(work(source, teacher, task_name, section, found, checkpoints), out)


def work(
    source: Path,
    teacher: Path | None,
    task_name: str,
    section: DistilSection,
    found: Material,
    checkpoints: Path,
) -> "Work":
    """Return a distillation that was checked; see `make`."""
    from pipeline.compress.distil.models import Work

    both = [_look_at(one) for one in (source, teacher) if one]
    if found.augmenter:
        found = replace(found, augmenter=_look_at(found.augmenter.folder))
    checks.check(section, both[0], tasks.get(task_name), both[1] if teacher else None, found)
    params = order_params(section, task_name, found)
    digests = [one.digest for one in both]
    key = digest_of([VERSION, params, digests])
    return Work(
        key, source, teacher, digests[-1] if teacher else "", task_name, section, found, checkpoints, checkpoints
    )


def _look_at(folder: Path) -> Source:
    """Look at a checkpoint again where the work is done: its files are what counts there."""
    return student.inspect_folder(folder, origin=folder.name, licence=None)


def make_head(
    source: Path, section: HeadSection, files: tuple[Path, ...], checkpoints: Path, out: Path
) -> dict[str, Any]:
    """Train a tied masked-LM head on plain text; the encoder stays as it is. Runs in a worker, since it imports torch.

    Returns:
        The perplexity before and after.
    """
    from dataclasses import replace

    checks.check_head(section, _look_at(source), files)
    settings = section.model_dump() | {"losses": {"masked_lm": 1.0}, "head": "masked_lm"}
    whole = work(source, None, "embedding", DistilSection.model_validate(settings), Material(files), checkpoints)
    return _make(replace(whole, key=digest_of([whole.key, "head"]), only_head=True), out)


def _make(wanted: "Work", out: Path) -> dict[str, Any]:
    model, record = distil(wanted)
    return write(model, record, wanted.source, out)


def distil(wanted: "Work", told: Callable[[str, float], None] | None = None) -> tuple[Any, Distilled]:
    """Distil; return the student on the CPU and the record. `told` hears how far it is, or who owns this worker."""
    from pipeline.compress.distil.goal import DistilGoal
    from pipeline.train import loop
    from pipeline.train.sparsity import zeros_in_training

    told = told or tell
    plan = loop.RunPlan(wanted.key, wanted.checkpoints, wanted.section, "distil", wanted.section.passes)
    with loop.open_accelerator(plan) as accelerator:
        goal = DistilGoal(wanted, accelerator, told)
        before = goal.dev_metric(accelerator.device)
        finished = loop.run(goal, plan, accelerator, told, zeros_in_training(goal.model.student, wanted.section.sparse))
        return goal.model.student.cpu().eval(), _record(wanted, goal, finished, accelerator, before)


def _record(wanted: "Work", goal: Any, finished: Any, accelerator: Any, before: float | None) -> Distilled:
    notes, (first, *_) = finished.history, goal.weights
    # A single term has no curve of its own.
    curve = [{"terms": {first: one["loss"] / goal.weights[first]}} | one for one in notes.curve]
    dataset = wanted.material.dataset
    measured = dataset if goal.dev is not None else None
    return Distilled(
        task=wanted.task_name,
        settings=wanted.section.model_dump(mode="json", exclude=_NOT_IN_KEY),
        teacher_layers=goal.mapping,
        cached=goal.cached,
        new_tensors=goal.new_tensors,
        rows=len(goal.lengths),
        augmented_rows=goal.batches.augmented_rows,
        tokens=int(goal.lengths.sum()),
        steps=finished.steps,
        epochs=finished.epochs,
        seconds=notes.seconds,
        resumed_at=notes.resumed_at,
        device=str(accelerator.device),
        processes=accelerator.num_processes,
        dataset=measured.name if measured else None,
        metric="perplexity" if wanted.section.head == "masked_lm" else measured.metric if measured else None,
        before=before,
        dev=[Score.model_validate(one) for one in notes.dev],
        curve=[Point.model_validate(one) for one in curve],
    )


def write(model: Any, record: Distilled, source: Path, out: Path) -> dict[str, Any]:
    """Write a distilled student with the tokenizer of the one that it began with, and its record."""
    from pipeline.train.model import save_with_record
    from pipeline.train.sparsity import metrics_if_sparse

    save_with_record(model, source, out, record=record, file_name=FILE)
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
    } | metrics_if_sparse(model)
