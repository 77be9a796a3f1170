"""What is wrong with training data for a checkpoint, found before anything heavy is imported."""

from collections.abc import Sequence

from pipeline.checkpoint import layers
from pipeline.checkpoint.source import Source
from pipeline.data import datasets as data
from pipeline.data.datasets import Dataset, Labelled
from pipeline.errors import InputError, RecipeError
from pipeline.recipe.fields import Updates
from pipeline.recipe.schema import TrainSection
from pipeline.schemes import OutputKind
from pipeline.tasks import Task


def check(train: TrainSection, task: Task, dataset: Dataset, source: Source) -> None:
    """Refuse training that cannot go well.

    Raises:
        RecipeError: rows longer than the checkpoint takes, or a precision that this machine has not.
        InputError: data that are absent, malformed, empty, of one class, or of labels that the checkpoint lacks.
    """
    if train.max_length > source.max_length:
        limit = f"the checkpoint's limit of {source.max_length} positions"
        raise RecipeError(f"train.max_length = {train.max_length} is beyond {limit}.")
    check_precision(train, "train")
    if train.sparse is not None:
        layers.layout_of(source.architecture.model_type)
    rows = training_rows(dataset, train)
    problem = one_label(rows, dataset, task.output_kind)
    if problem:
        raise InputError(f"training data {_where(dataset)}: {problem}.")
    check_dev(dataset, task.output_kind)
    _check_head(train, task, dataset, source)


def check_precision(settings: Updates, section: str) -> None:
    """Refuse a precision that this machine has no device for.

    Raises:
        RecipeError: it is fp16, which no CPU trains in.
    """
    if settings.precision != "fp16":
        return
    import torch  # heavy, and only here the one who knows

    if not torch.accelerator.is_available():
        raise needs_gpu(section)


def needs_gpu(section: str) -> RecipeError:
    """Return the error of fp16 on a CPU."""
    asked = f"{section}.precision = 'fp16'"
    return RecipeError(f"{asked} needs a GPU, and there is none here. Use 'no', or 'bf16'.")


def check_dev(dataset: Dataset, kind: OutputKind) -> None:
    """Refuse rows to judge by that have one label, on which each metric is at chance or has no value.

    Raises:
        InputError: they have, or they are absent or malformed.
    """
    rows = dataset.load()
    problem = None if kind == "spans" else one_label(rows, dataset, kind)
    if problem:
        raise InputError(f"data to judge by {dataset.path() or dataset.name}: {problem}.")


def training_rows(dataset: Dataset, train: Updates) -> list[Labelled]:
    """Return the rows to train on: all of them, or a sample that the seed fixes."""
    absent = dataset.absent("train")
    if absent:
        way_out = data.data_folder_note() or " Set POCKETBERT_DATA to the folder of data sets."
        raise InputError(f"training data of {dataset.name}: {absent}.{way_out}")
    return data.sample(dataset.load("train"), train.max_rows, seed=train.seed)


def has_head(task: Task, source: Source) -> bool:
    """Return whether the checkpoint was saved with a head for the task."""
    saved = source.config.get("architectures") or [""]
    return str(saved[0]).endswith(task.head_suffix)


def checkpoint_labels(source: Source) -> list[str]:
    """Return the names of the checkpoint's labels in order; transformers' own where config.json has none."""
    named = source.config.get("id2label")
    if isinstance(named, dict):
        return [str(named.get(str(number), "")) for number in range(len(named))]
    return [f"LABEL_{number}" for number in range(int(source.config.get("num_labels") or 2))]


def _where(dataset: Dataset) -> str:
    return str(dataset.path("train") or dataset.name)


def one_label(rows: Sequence[Labelled], dataset: Dataset, kind: OutputKind) -> str | None:
    """Say why there is nothing to tell apart, or return None."""
    if kind == "spans":
        without = sum(not row.answers for row in rows)
        return f"{without} of {len(rows)} questions have no answer" if without else None
    tagged = kind == "token_logits"
    found = {float(tag) for row in rows for tag in row.tags} if tagged else {row.label for row in rows}
    if len(found) > 1:
        return None
    if not found:
        return "no word has a tag"
    (only,) = found
    name = dataset.names[int(only)] if dataset.names else only
    return f"all {len(rows)} rows have the one label {name!r}; there is nothing to tell apart"


def _check_head(train: TrainSection, task: Task, dataset: Dataset, source: Source) -> None:
    """Refuse a head that is kept and does not fit the data."""
    if train.new_head or not has_head(task, source):
        return
    way_out = "train.new_head = true begins a new head with the data's labels"
    labels = checkpoint_labels(source)
    if task.has_labels:
        found = dataset.label_ids(labels)
        if isinstance(found, str):
            raise InputError(f"data set {dataset.name} does not fit {source.origin}: {found}. {way_out}.")
    elif task.most_labels is not None and len(labels) != task.most_labels:
        gives = f"the head of {source.origin} gives {len(labels)} numbers"
        raise InputError(f"{gives}; task {task.name} has {task.most_labels}. {way_out}.")
