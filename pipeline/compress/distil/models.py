"""One distillation as data, and its two models: the student and the teacher, with the head that is compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline import architectures, tasks
from pipeline.checkpoint import sentences, shapes
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.source import Source, inspect_folder
from pipeline.compress.distil.dataset import DistilData, head_labels, training_texts
from pipeline.compress.space import adapter, embedding, fitting
from pipeline.data.datasets import Dataset, sample
from pipeline.errors import StudentError
from pipeline.heads import sentence
from pipeline.recipe.distillation import DistilSection
from pipeline.tasks import Task
from pipeline.text.bundled import calibration_texts, everyday_sentences
from pipeline.train.checks import has_head, has_masked_lm_head
from pipeline.train.model import LoadSpec, load_model

_MASKED_LM_CLASS = "AutoModelForMaskedLM"
_TEXTS_OF_LINEAR = 1024
"""Training texts on which a new linear is fitted before it is trained."""


@dataclass(frozen=True)
class DistilJob:
    """The inputs of one distillation, as a value that can be sent to another process."""

    key: str
    """Sha256 over everything that decides the result."""
    source: Path
    """The student to begin with."""
    teacher: Path | None
    teacher_digest: str
    """Content digest of the teacher's files; empty without a teacher."""
    task_name: str
    section: DistilSection
    data: DistilData
    checkpoints: Path
    """Folder for the checkpoints from which an interrupted run continues."""
    cache: Path
    """Folder for outputs of teachers and candidates of augmentation; runs may share it."""
    only_head: bool = False
    """Whether only the head is trained and the encoder is frozen."""
    own: Path | None = None
    """The checkpoint whose embeddings are a part of what the student learns, with `space = "own"`."""
    own_digest: str = ""
    """Content digest of its files."""

    @property
    def task(self) -> Task:
        """The task's row."""
        return tasks.get(self.task_name)

    @property
    def masked_lm(self) -> bool:
        """Whether it distils with the masked-LM head on blocks of text."""
        return self.section.head == "masked_lm"


def load_student(job: DistilJob) -> tuple[Any, list[str], tuple[str, ...]]:
    """Load the student of a job; see `begin_student`."""
    teacher = read_folder(job.teacher) if job.teacher else None
    model, new, labels = begin_student(job.source, teacher, job.task, job.section, job.data.dataset)
    if any(name.startswith(sentence.NAME) for name in new):
        _fit_linear(model, job)
    if job.only_head:
        # The embedding table, to which the head is tied, belongs to the encoder.
        model.base_model.requires_grad_(False)
    return model, new, labels


def begin_student(
    checkpoint: Path | Source, teacher: Source | None, task: Task, section: DistilSection, dataset: Dataset | None
) -> tuple[Any, list[str], tuple[str, ...]]:
    """Load a student with the head that it learns with; a `Source` without its weights.

    Args:
        checkpoint: the student.
        teacher: may give the labels of a new head.
        task: decides the head, where it is not the masked-LM head.
        section: the settings.
        dataset: may give the labels of a new head.

    Returns:
        The model, the names of its new tensors, and the labels of its head.
    """
    source = checkpoint if isinstance(checkpoint, Source) else read_folder(checkpoint)
    if section.head == "masked_lm":
        return *load_masked_lm(checkpoint, keeps_head=has_masked_lm_head(source), seed=section.seed), ()
    keeps_head = not task.uses_head or has_head(task, source)
    labels = head_labels(source, task, teacher, dataset) if task.has_labels else ()
    config: dict[str, Any] = {"problem_type": task.problem_type} if task.problem_type else {}
    if task.uses_head and task.most_labels and not labels:
        config["num_labels"] = task.most_labels
    options = {} if task.uses_head else architectures.get(source.architecture.model_type).backbone_options
    spec = LoadSpec(checkpoint, task.auto_class, keeps_head, section.seed, labels, config, options)
    model, new = load_model(spec)
    if section.space == "teacher" and teacher is not None:
        new = sorted([*new, *_put_linear(model, teacher)])
    return model, new, labels


def _put_linear(model: Any, teacher: Source) -> list[str]:
    """Give a student a linear into its teacher's vectors, uninitialised, if they have another width or length.

    Returns:
        The names of its tensors; none where there was no need.
    """
    before = {name for name, _ in model.named_parameters()}
    mine, theirs = sentence.settings(model), sentences.settings_of(teacher.folder, teacher.config.get(sentence.NAME))
    width = theirs.width(int(teacher.config.get("hidden_size") or teacher.config["dim"]))
    if mine.width(sentence.hidden_size(model.config)) == width and mine.normalizes == theirs.normalizes:
        return []
    adapter.put(model, theirs, width, "ridge")
    return [name for name, _ in model.named_parameters() if name not in before]


def _fit_linear(model: Any, job: DistilJob) -> None:
    """Fit the student's new linear by least squares on some of the training texts: a start that is not random."""
    assert job.teacher
    rows = sample(training_texts(job.section, job.task, job.data), _TEXTS_OF_LINEAR, seed=job.section.seed)
    texts, length = [row.first for row in rows], job.section.max_length
    inputs, targets = (
        embedding.vectors(load_checkpoint(folder, job.task), folder, texts, length, about, prompt="")
        for folder, about in ((job.source, "the student's linear"), (job.teacher, "the teacher's vectors"))
    )
    ridge = fitting.best_ridge(inputs, targets, fitting.every_fourth(len(texts)))
    embedding.set_linear(adapter.linear_of(model), fitting.least_squares(inputs, targets, ridge=ridge))


def own_and_taught(model: Any, job: DistilJob) -> tuple[fitting.Vectors, fitting.Vectors]:
    """Return vectors of the package's texts by a trained student and by its teacher."""
    assert job.teacher
    texts, length = [*calibration_texts(), *everyday_sentences()], job.section.max_length
    own = embedding.vectors(model, job.source, texts, length, "the student's vectors", prompt="")
    teacher = load_checkpoint(job.teacher, job.task)
    return own, embedding.vectors(teacher, job.teacher, texts, length, "the teacher's vectors", prompt="")


def load_teacher(checkpoint: Path | Source, task: Task, section: DistilSection) -> Any:
    """Load a teacher, which is never trained; a `Source` without its weights."""
    if section.head == "masked_lm":
        source = checkpoint if isinstance(checkpoint, Source) else read_folder(checkpoint)
        model, _ = load_masked_lm(checkpoint, keeps_head=has_masked_lm_head(source), seed=section.seed)
    else:
        model = load_checkpoint(checkpoint, task)
        if patch := architectures.get(model.config.model_type).training_patch:
            patch(model)
    return model.eval().requires_grad_(False)


def load_own(job: DistilJob) -> Any:
    """Load the checkpoint whose embeddings the student learns beside its teacher's."""
    assert job.own
    return load_teacher(job.own, job.task, job.section)


def load_masked_lm(checkpoint: Path | Source, *, keeps_head: bool, seed: int) -> tuple[Any, list[str]]:
    """Load a checkpoint with its masked-LM head, or with a new head, tied to the embedding table.

    Returns:
        The model, and the names of its new tensors.

    Raises:
        StudentError: it does not load, or the head cannot be tied to the embedding table.
    """
    model, new = load_model(LoadSpec(checkpoint, _MASKED_LM_CLASS, keeps_head, seed))
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(table, torch.nn.Embedding) or head.weight.shape != table.weight.shape:
        raise StudentError(
            f"{shapes.name_of(checkpoint)}: a masked-LM head is tied to the embedding table, and this table is "
            "factorised or has another shape than the head. Distil on masked tokens first, and factorise afterwards."
        )
    # A table that compression reshaped is another tensor than the one that the class tied.
    head.weight = table.weight
    return model, new


def read_folder(folder: Path) -> Source:
    """Inspect a checkpoint folder inside the worker; its origin and licence are not needed there."""
    return inspect_folder(folder, origin=folder.name, licence=None)
