"""The student and the teacher, in the class of the head that is compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline import tasks
from pipeline.checkpoint import architectures
from pipeline.checkpoint import source as student
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.source import Source
from pipeline.compress.distil import material
from pipeline.compress.distil.material import Material, has_masked_lm
from pipeline.errors import StudentError
from pipeline.recipe.compression import DistilSection
from pipeline.tasks import Task
from pipeline.train import model
from pipeline.train.checks import has_head

_MASKED_LM = "AutoModelForMaskedLM"


@dataclass(frozen=True)
class Work:
    """One distillation, as a value that can be handed to another process."""

    key: str
    """Sha256 over everything that decides the result."""
    source: Path
    """The student to begin with."""
    teacher: Path | None
    teacher_digest: str
    """Content digest of the teacher's files; empty without one."""
    task_name: str
    section: DistilSection
    material: Material
    """What is learnt on."""
    checkpoints: Path
    """Folder for what a run that was stopped goes on from."""
    cache: Path
    """Folder for teachers' outputs; runs may share it."""
    only_head: bool = False
    """Whether the encoder stays as it is."""

    @property
    def task(self) -> Task:
        """The task's row."""
        return tasks.get(self.task_name)


def load_student(work: Work) -> tuple[Any, list[str], tuple[str, ...]]:
    """Load the student.

    Returns:
        The model, the names of its new tensors, and the labels of its head.
    """
    source = student.inspect_folder(work.source, origin=work.source.name, licence=None)
    if work.section.head == "masked_lm":
        found, new = load_masked_lm(work.source, keeps_head=has_masked_lm(source), seed=work.section.seed)
        if work.only_head:
            _freeze(found)
        return found, new, ()
    task = work.task
    keeps = not task.uses_head or has_head(task, source)
    labels = material.labels(source, task, _teacher(work), work.material.dataset) if task.has_labels else ()
    config = {"num_labels": task.most_labels} if task.uses_head and task.most_labels and not labels else {}
    options = {} if task.uses_head else architectures.get(source.architecture.model_type).backbone_options
    wanted = model.Wanted(work.source, task.auto_class, keeps, work.section.seed, labels, config, options)
    return *model.load_as(wanted), labels


def _teacher(work: Work) -> Source | None:
    if work.teacher is None:
        return None
    return student.inspect_folder(work.teacher, origin=work.teacher.name, licence=None)


def load_teacher(work: Work) -> Any:
    """Load the teacher, which is never trained."""
    assert work.teacher is not None
    if work.section.head == "masked_lm":
        source = student.inspect_folder(work.teacher, origin=work.teacher.name, licence=None)
        found, _ = load_masked_lm(work.teacher, keeps_head=has_masked_lm(source), seed=work.section.seed)
    else:
        found = load_checkpoint(work.teacher, work.task)
        architectures.zero_padding_by_hook(found)
    return found.eval().requires_grad_(False)


def load_masked_lm(folder: Path, *, keeps_head: bool, seed: int) -> tuple[Any, list[str]]:
    """Load a checkpoint with its masked-LM head, or a new one that is tied to the table of tokens.

    Returns:
        The model, and the names of its new tensors.

    Raises:
        StudentError: it does not load, or the head cannot be tied to the table.
    """
    found, new = model.load_as(model.Wanted(folder, _MASKED_LM, keeps_head, seed))
    table, head = found.get_input_embeddings(), found.get_output_embeddings()
    if not isinstance(table, torch.nn.Embedding) or head.weight.shape != table.weight.shape:
        raise StudentError(
            f"{folder}: a masked-LM head is tied to the table of tokens, and this one is factorised or of another "
            "shape. Distil on masked tokens first, and factorise then."
        )
    # A table that was given another shape is another tensor than the one that the class tied.
    head.weight = table.weight
    return found, new


def _freeze(model: Any) -> None:
    """Leave the head alone to be trained; the table that it is tied to belongs to the encoder."""
    model.base_model.requires_grad_(False)
