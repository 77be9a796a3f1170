"""Checks of a checkpoint and its training data that run before anything heavy is imported."""

from collections.abc import Sequence
from pathlib import Path

from pipeline import tasks
from pipeline.architectures import layers
from pipeline.checkpoint.source import Source
from pipeline.data.datasets import DATASETS, Dataset, Labelled, data_folder_note, sample
from pipeline.data.files import ENDINGS, check_columns
from pipeline.errors import InputError, RecipeError
from pipeline.kinds import KINDS, OutputKind
from pipeline.recipe.fields import LabelledUpdates, Updates
from pipeline.recipe.schema import Recipe, TrainSection
from pipeline.tasks import Task

MASKED_LM_SUFFIX = "ForMaskedLM"
"""How the names of classes with a masked-LM head end."""


def check_section(recipe: Recipe) -> None:
    """Refuse a `[train]` with no data, with two kinds of data, or with data of another task; no file is read.

    Raises:
        RecipeError: the section cannot be carried out, whatever the checkpoint.
    """
    train, task = recipe.train, tasks.get(recipe.task)
    if train is None:
        return
    if not KINDS[task.output_kind].trained:
        able = ", ".join(row.name for row in tasks.TASKS.values() if KINDS[row.output_kind].trained)
        raise RecipeError(f"train: task {task.name} has no training here; there is some for: {able}.")
    if recipe.student.random_weights:
        raise RecipeError(
            "student.random_weights says that the weights were never trained, and [train] trains them. Leave one of "
            "them out."
        )
    if train.epochs is not None and train.steps is not None:
        raise RecipeError("train has epochs and steps; give one of them.")
    files = {"train_file": train.train_file, "dev_file": train.dev_file}
    given = [key for key, file in files.items() if file is not None]
    if train.dataset is not None and given:
        raise RecipeError(f"train has dataset and {given[0]}; give one of them.")
    if train.dataset is not None:
        _check_dataset(train, task, train.dataset)
    elif len(given) < len(files):
        has = f"{given[0]} alone" if given else "no data"
        raise RecipeError(f"train has {has}; give dataset, or train_file and dev_file.")
    for key, file in files.items():
        if file is not None and Path(file).suffix.lower() not in ENDINGS[task.output_kind]:
            kinds = " or ".join(ENDINGS[task.output_kind])
            raise RecipeError(f"train.{key} = {file!r}: task {task.name} is trained on {kinds}.")
    if given:
        check_columns(task, train.labels, "train")
    check_metric(train, task, "train")


def check_metric(section: LabelledUpdates, task: Task, name: str) -> None:
    """Refuse a metric that the task does not have, or one beside a known dataset, which has its own.

    Raises:
        RecipeError: the section has one.
    """
    kind = KINDS[task.output_kind]
    if section.metric is None:
        return
    if section.dataset is not None:
        raise RecipeError(f"{name}.metric is for files of your own; dataset {section.dataset} has its own metric.")
    if section.metric not in (kind.metric, *kind.metrics):
        able = ", ".join((kind.metric, *kind.metrics))
        raise RecipeError(f"{name}.metric = {section.metric!r}: task {task.name} has {able}.")


def _check_dataset(train: TrainSection, task: Task, name: str) -> None:
    able = [one for one in task.datasets if DATASETS[one].train is not None]
    if name not in able:
        problem = f"has no rows to train {task.name} on" if name in DATASETS else "does not exist"
        raise RecipeError(
            f"train.dataset: {name!r} {problem}; there are: {', '.join(able)}. "
            "Or give files of your own as train_file and dev_file."
        )
    refuse_columns(train, "train")


def refuse_columns(section: LabelledUpdates, name: str) -> None:
    """Refuse the names of a file's columns beside a known dataset, which has its own.

    Raises:
        RecipeError: both are given.
    """
    if section.dataset is not None and section.own_columns:
        raise RecipeError(
            f"{name}.{min(section.own_columns)} names a column of train_file; dataset {section.dataset} has its own."
        )


def check(train: TrainSection, task: Task, dataset: Dataset, source: Source) -> None:
    """Refuse training that cannot succeed.

    Raises:
        RecipeError: `max_length` is beyond the checkpoint's limit, or this machine lacks the precision.
        InputError: the data are absent, malformed, empty or of one label, or have labels that the checkpoint lacks.
    """
    if train.max_length > source.max_length:
        limit = f"the checkpoint's limit of {source.max_length} positions"
        raise RecipeError(f"train.max_length = {train.max_length} is beyond {limit}.")
    check_precision(train, "train")
    if train.sparse is not None:
        layers.layout_of(source.architecture.model_type)
    rows = training_rows(dataset, train)
    problem = single_label_problem(rows, dataset, task.output_kind)
    if problem:
        raise InputError(f"training data {dataset.path('train') or dataset.name}: {problem}.")
    check_dev_split(dataset, task.output_kind)
    _check_head(train, task, dataset, source)


def check_precision(settings: Updates, section: str) -> None:
    """Refuse fp16 on a machine without a GPU.

    Raises:
        RecipeError: the precision is fp16, in which no CPU trains.
    """
    if settings.precision != "fp16":
        return
    import torch  # heavy, and it alone knows the devices

    if not torch.accelerator.is_available():
        raise gpu_required(section)


def gpu_required(section: str) -> RecipeError:
    """Return the error for fp16 on a CPU."""
    return RecipeError(
        f"{section}.precision = 'fp16' needs a GPU, and this machine has none. Give 'bf16' or 'no' instead."
    )


def check_dev_split(dataset: Dataset, kind: OutputKind) -> None:
    """Refuse a dev split with a single label, on which each metric is at chance or has no value.

    Raises:
        InputError: it has a single label, is absent or is malformed.
    """
    rows = dataset.load()
    problem = None if kind == "spans" else single_label_problem(rows, dataset, kind)
    if problem:
        raise InputError(f"dev data {dataset.path() or dataset.name}: {problem}.")


def training_rows(dataset: Dataset, settings: Updates) -> list[Labelled]:
    """Return the rows to train on: all of them, or a sample that the seed determines."""
    absent = dataset.absent("train")
    if absent:
        remedy = data_folder_note() or " Set POCKETBERT_DATA to the folder of datasets."
        raise InputError(f"training data of {dataset.name}: {absent}.{remedy}")
    return sample(dataset.load("train"), settings.max_rows, seed=settings.seed)


def single_label_problem(rows: Sequence[Labelled], dataset: Dataset, kind: OutputKind) -> str | None:
    """Return why the rows do not tell labels apart, or None if they do."""
    if kind == "spans":
        without = sum(not row.answers for row in rows)
        return f"{without} of {len(rows)} questions have no answer" if without else None
    if KINDS[kind].several_targets:
        return _constant_values(rows, dataset, kind)
    tagged = kind == "token_logits"
    labels = {float(tag) for row in rows for tag in row.tags} if tagged else {row.label for row in rows}
    if len(labels) > 1:
        return None
    if not labels:
        return "no word has a tag"
    (only,) = labels
    name = dataset.names[int(only)] if dataset.names else only
    return f"all {len(rows)} rows have the label {name!r}, and at least two labels are needed"


def _constant_values(rows: Sequence[Labelled], dataset: Dataset, kind: OutputKind) -> str | None:
    """Return why rows with a number for each output do not tell texts apart, or None if they do."""
    columns = list(zip(*(row.values for row in rows), strict=True))
    if not columns:
        return f"none of {len(rows)} rows has a label"
    constant = [name for name, column in zip(dataset.names, columns, strict=True) if len(set(column)) == 1]
    if KINDS[kind].decision == "each" and len(constant) == len(columns):
        return f"all {len(rows)} rows have the same labels, and a label has to be given to some and not to others"
    if KINDS[kind].decision is None and constant:
        return f"all {len(rows)} rows have the same number in column {constant[0]!r}, and a number has to differ"
    return None


# --- heads of a checkpoint -------------------------------------------------------------------------------------------


def has_head(task: Task, source: Source) -> bool:
    """Return whether the checkpoint was saved with a head for the task."""
    return class_of(source).endswith(task.head_suffix)


def has_masked_lm_head(source: Source) -> bool:
    """Return whether the checkpoint was saved with a masked-LM head."""
    name = class_of(source)
    return name.endswith((MASKED_LM_SUFFIX, "ForPreTraining")) and name not in source.architecture.without_masked_lm


def class_of(source: Source) -> str:
    """Return the name of the class that the checkpoint was saved from, `?` if config.json does not say."""
    return str((source.config.get("architectures") or ["?"])[0])


def _check_head(train: TrainSection, task: Task, dataset: Dataset, source: Source) -> None:
    """Refuse to continue a head that does not fit the data."""
    if train.new_head or not has_head(task, source):
        return
    remedy = "Set train.new_head = true to begin a new head with the labels of the data"
    labels = source.labels
    if task.has_labels:
        ids = dataset.label_ids(labels)
        if isinstance(ids, str):
            raise InputError(f"dataset {dataset.name} does not fit {source.origin}: {ids}. {remedy}.")
    elif task.most_labels is not None and len(labels) != task.most_labels:
        raise InputError(
            f"the head of {source.origin} has {len(labels)} outputs, and task {task.name} needs {task.most_labels}. "
            f"{remedy}."
        )
