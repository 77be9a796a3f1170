"""The data of a distillation: plain text, a known dataset or a user's labelled files.

Imports nothing heavy, so that wrong data are refused before any work.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifact import digest_of
from pipeline.checkpoint.source import NOTHING, CheckpointsBySource, Source
from pipeline.checkpoint.source import at as checkpoint_at
from pipeline.data import corpus, files
from pipeline.data.datasets import DATASETS, Dataset, Labelled, sample
from pipeline.errors import InputError, RecipeError, StudentError
from pipeline.execution import planned
from pipeline.kinds import KINDS
from pipeline.recipe.distillation import UNPRUNED, AugmentSection, DistilSection, HeadSection
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder
from pipeline.train import examples
from pipeline.train.checks import (
    check_dev_split,
    check_metric,
    class_of,
    has_head,
    has_masked_lm_head,
    refuse_columns,
    single_label_problem,
    training_rows,
)
from pipeline.train.examples import EncodedExample


@dataclass(frozen=True)
class DistilData:
    """The training data of a distillation, as a value that can be sent to another process."""

    text_files: tuple[Path, ...] = ()
    """Plain text."""
    text_datasets: tuple[str, ...] = ()
    """Datasets whose training texts are read as plain text, without labels."""
    dataset: Dataset | None = None
    """Gives the metric, and the rows to train on; beside plain text, the rows that are held out of that."""
    augmenter: Source | None = None
    """The model that replaces words."""
    judged: frozenset[str] = frozenset()
    """Queries and documents of `verify.retrieval`, which are left out of what is trained on."""

    @property
    def has_texts(self) -> bool:
        """Whether the student is trained on text without labels, and not on the dataset's rows."""
        return bool(self.text_files or self.text_datasets)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the key: digests of the texts, the labelled dataset and the augmenter."""
        dataset = self.dataset
        judged = {"judged": digest_of(sorted(self.judged))} if self.judged else {}
        others = {name: DATASETS[name].digest("train") for name in self.text_datasets}
        return (
            judged
            | ({"text_datasets": others} if others else {})
            | {
                "texts": [planned.digest(path) for path in self.text_files],
                "dataset": dataset
                and {
                    "name": dataset.name,
                    "names": dataset.names,
                    "train": dataset.digest("train"),
                    "dev": dataset.digest(),
                },
                "augmenter": self.augmenter and self.augmenter.digest,
            }
        )


# --- find the data ---------------------------------------------------------------------------------------------------


def find_data(
    section: DistilSection,
    task: Task,
    unpruned: Source | None,
    recipe_file: Path,
    made: CheckpointsBySource = NOTHING,
) -> DistilData:
    """Find the data that the settings name.

    Args:
        section: the settings.
        task: decides how a user's own files are read.
        unpruned: the recipe's checkpoint before compression.
        recipe_file: relative paths are relative to its folder.
        made: checkpoints that other recipes made.

    Raises:
        RecipeError: no data are named, or two kinds, or a kind that the task does not have.
        InputError: labelled files are absent or malformed.
        StudentError: the checkpoint to replace words with does not exist.
    """
    check_named(section, task)
    model = _augmenter(section.augment, unpruned, recipe_file, made) if section.augment else None
    others = tuple(name for name in section.texts or () if _is_dataset(name))
    return DistilData(text_files(section, recipe_file), others, files.learned(section, task, recipe_file), model)


def text_files(section: DistilSection | HeadSection, recipe_file: Path) -> tuple[Path, ...]:
    """Return the files of plain text."""
    named = [name for name in section.texts or () if not _is_dataset(name)]
    return tuple(corpus.plain_file(name, recipe_file, "texts") for name in named)


def _is_dataset(name: str) -> bool:
    return name in DATASETS and name not in corpus.PLAIN


def _augmenter(
    section: AugmentSection, unpruned: Source | None, recipe_file: Path, made: CheckpointsBySource
) -> Source:
    if section.model != UNPRUNED:
        return checkpoint_at(section.model, recipe_file, made)
    if unpruned is None:
        raise RecipeError("distil.augment.model = 'unpruned' needs a recipe, and there is none. Give a folder instead.")
    return unpruned


def check_named(section: DistilSection, task: Task) -> None:
    """Refuse a `[distil]` with no data, with two kinds of data, or with data that cannot be read; no file is read.

    Raises:
        RecipeError: the section cannot be carried out, whatever the checkpoints.
    """
    given = {"train_file": section.train_file, "dev_file": section.dev_file}
    named = [key for key, file in given.items() if file is not None]
    if section.dataset is None and section.texts is None and not named:
        raise RecipeError(
            "distil has no data. Give texts to train on without a metric; or dataset, or train_file and dev_file, to "
            "have one."
        )
    if section.dataset is not None and named:
        raise RecipeError(f"distil has dataset and {named[0]}; give one of them.")
    if len(named) == 1:
        raise RecipeError(f"distil has {named[0]} alone; give train_file and dev_file.")
    if section.dataset is not None and section.dataset not in DATASETS:
        raise RecipeError(f"distil.dataset: {section.dataset!r} does not exist; there are: {', '.join(DATASETS)}.")
    refuse_columns(section, "distil")
    if section.held_out and section.dataset is None and not named:
        raise RecipeError(
            "distil.held_out counts training rows of a dataset, and none is named beside distil.texts. Name it: with "
            'dataset = "stsb" the texts of its rows that are held out are left out of distil.texts.'
        )
    suffixes = files.ENDINGS[task.output_kind]
    wrong = [key for key in named if Path(str(given[key])).suffix.lower() not in suffixes]
    if wrong:
        file, kinds = given[wrong[0]], " or ".join(suffixes)
        raise RecipeError(f"distil.{wrong[0]} = {file!r}: task {task.name} is distilled on {kinds}.")
    if named:
        files.check_columns(task, section.labels, "distil")
    check_metric(section, task, "distil")
    if named and task.output_kind == "embedding" and section.pair is None:
        raise RecipeError(
            "distil.train_file: embeddings are evaluated on scored pairs, and distil.pair names no column of the "
            "second text. Name one, or give plain text as texts."
        )


# --- check it --------------------------------------------------------------------------------------------------------


def plain_lines(paths: Sequence[Path]) -> list[str]:
    """Return the lines of plain text files, stripped.

    Raises:
        InputError: a file is absent, not UTF-8, or has no text.
    """
    return [line.strip() for path in paths for line in corpus.lines(path, "texts")]


def unlabelled_texts(data: DistilData) -> list[str]:
    """Return the lines of a distillation's plain text, and the texts of its `text_datasets`, each of these once.

    Raises:
        InputError: a file or dataset is absent, malformed, or has no text.
    """
    rows = [row for name in data.text_datasets for row in corpus.training_rows(name, "distil.texts")]
    return plain_lines(data.text_files) + _singles(rows)


def _singles(rows: Iterable[Labelled]) -> list[str]:
    """Return each text once, those of a pair apart."""
    return list(dict.fromkeys(text for row in rows for text in (row.first, row.second) if text))


def has_task_labels(dataset: Dataset | None, section: DistilSection, task: Task) -> bool:
    """Return whether a dataset has labels of the task."""
    return dataset is not None and (section.dataset is None or dataset.name in task.datasets)


def check_data(section: DistilSection, task: Task, data: DistilData) -> None:
    """Refuse rows to train on; `plain_lines` refuses text, and `check_labels` labels that the models lack.

    Raises:
        RecipeError: hard labels are asked for and there are none, or words cannot be replaced.
        InputError: the data are absent, malformed, empty or of one label.
        StudentError: the model that replaces words has no masked-LM head.
    """
    if section.alpha > 0:
        _check_alpha(section, task, data.dataset)
    if data.dataset is not None:
        _check_rows(section, task, data.dataset, trained_on=not data.has_texts)
    if section.augment is not None and data.augmenter is not None:
        _check_augment(section.augment, section, task, data.augmenter)


def _check_rows(section: DistilSection, task: Task, dataset: Dataset, *, trained_on: bool) -> None:
    absent = dataset.absent("train") if trained_on else None
    if absent:
        raise InputError(f"distil: training data of {dataset.name}: {absent}. Or give plain text files as texts.")
    if not trained_on and dataset.held_out:
        if (absent := dataset.absent("train")) is not None:
            raise InputError(f"distil.held_out: training rows of {dataset.name}: {absent}.")
        dataset.load("held_out")
    rows = training_rows(dataset, section) if trained_on else []
    uses_labels = section.alpha > 0 or task.output_kind == "spans"
    if trained_on and uses_labels and (problem := single_label_problem(rows, dataset, task.output_kind)):
        raise InputError(f"training data {dataset.path('train')}: {problem}.")
    if has_task_labels(dataset, section, task) and not dataset.absent():
        check_dev_split(dataset, task.output_kind)


def _check_alpha(section: DistilSection, task: Task, dataset: Dataset | None) -> None:
    request = f"distil.alpha = {section.alpha} asks for hard labels"
    if section.head == "masked_lm":
        raise RecipeError(f"{request}, and blocks of text have none. The loss on masked tokens is losses.masked_lm.")
    if not KINDS[task.output_kind].trained:
        raise RecipeError(f"{request}, and task {task.name} cannot be trained on labels. Set alpha = 0.")
    if section.texts is not None or dataset is None:
        raise RecipeError(
            f"{request}, and distil.texts have no labels. Give dataset, or train_file and dev_file, alone; or "
            "alpha = 0."
        )
    if not has_task_labels(dataset, section, task):
        able = ", ".join(name for name in task.datasets if DATASETS[name].train)
        raise RecipeError(f"{request}, and dataset {dataset.name} has none of task {task.name}; there are: {able}.")


def head_labels(source: Source, task: Task, teacher: Source | None, dataset: Dataset | None) -> tuple[str, ...]:
    """Return the labels in the order of the head's outputs: the student's, else the teacher's, else the dataset's."""
    owner = next((one for one in (source, teacher) if one is not None and has_head(task, one)), None)
    if owner is None and dataset is not None and dataset.names:
        return dataset.names
    return tuple((owner or source).labels)


def check_labels(source: Source, task: Task, teacher: Source | None, dataset: Dataset) -> None:
    """Refuse a labelled dataset whose labels differ from the head's.

    Raises:
        InputError: they differ; the message has both.
    """
    ids = dataset.label_ids(head_labels(source, task, teacher, dataset))
    if isinstance(ids, str):
        owner = source if teacher is None or has_head(task, source) else teacher
        raise InputError(f"dataset {dataset.name} does not fit {owner.origin}: {ids}.")


def _check_augment(section: AugmentSection, distil: DistilSection, task: Task, model: Source) -> None:
    if distil.head == "masked_lm":
        raise RecipeError(
            "distil.augment is for the texts of a task. With head = 'masked_lm', each pass masks other tokens."
        )
    if task.output_kind == "spans":
        raise RecipeError(f"distil.augment: answers of task {task.name} are parts of passages, which must not change.")
    if distil.max_length > model.max_length:
        limit = f"distil.augment.model {model.origin}, {model.max_length} positions"
        raise RecipeError(f"distil.max_length = {distil.max_length} is beyond the limit of {limit}.")
    if section.single_pieces == "masked_lm" and not has_masked_lm_head(model):
        raise StudentError(
            f"distil.augment.model {model.origin} has no trained masked-LM head: it was saved as {class_of(model)}. "
            "Name a checkpoint that has one (a recipe's [head] trains it), or set single_pieces = 'neighbours'."
        )


# --- encode it -------------------------------------------------------------------------------------------------------


def training_texts(section: DistilSection, task: Task, data: DistilData) -> list[Labelled]:
    """Return the rows to train on, in a fixed order; the label of plain text is 0.

    Embeddings and masked tokens are of single texts, so each text of a pair is a row of its own there, once.
    """
    if data.has_texts or data.dataset is None:
        rows = [Labelled(text, None) for text in unlabelled_texts(data)]
    else:
        rows = data.dataset.load("train")
        if task.output_kind == "embedding" or section.head == "masked_lm":
            rows = [Labelled(text, None) for text in _singles(rows)]
    judged = data.judged
    if data.has_texts and data.dataset is not None and data.dataset.held_out:
        judged |= {*_singles(data.dataset.load("held_out"))}
    if judged:
        rows = [row for row in rows if judged.isdisjoint((row.first, row.second))]
    return sample(rows, section.max_rows, seed=section.seed)


def encode(
    encoder: Encoder,
    section: DistilSection,
    task: Task,
    dataset: Dataset | None,
    rows: Sequence[Labelled],
    *,
    labels: Sequence[str],
) -> Iterator[EncodedExample]:
    """Encode rows, with targets if hard labels are used.

    Args:
        encoder: of the student or of the teacher.
        section: the settings.
        task: decides what a target is, and whether passages are cut into windows.
        dataset: whose labels they are.
        rows: of `training_texts`, and their augmented copies.
        labels: labels in the order of the head's outputs.
    """
    if section.alpha > 0 and dataset is not None:
        ids = _label_ids(dataset, labels) if task.has_labels else []
        return examples.encode(encoder, task, rows, ids, width=len(labels))
    if task.output_kind == "spans" and section.texts is None:
        return examples.encode(encoder, task, rows, [])
    return (EncodedExample(encoder.encode(row.first, row.second), ()) for row in rows)


def _label_ids(dataset: Dataset, labels: Sequence[str]) -> list[int]:
    ids = dataset.label_ids(labels)
    if isinstance(ids, str):
        raise InputError(f"dataset {dataset.name} does not fit the student: {ids}.")
    return ids


def check_same_tokens(
    student: Encoder, teacher: Encoder, rows: Iterable[tuple[EncodedExample, EncodedExample]]
) -> None:
    """Refuse rows that the two tokenizers split differently.

    Raises:
        InputError: with the first such row.
    """
    for number, (mine, theirs) in enumerate(rows, 1):
        first, second = student.tokens(mine.row), teacher.tokens(theirs.row)
        if first != second:
            at = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
            raise InputError(
                f"row {number}: the student's vocabulary gives {first[at]!r} where the teacher's gives {second[at]!r}, "
                "and losses token by token need the same tokens. Trim the vocabulary on these texts, or use losses of "
                "whole texts."
            )
