"""What a distillation learns on: plain text, a known data set, or labelled files of one's own. Imports nothing heavy.

What is wrong with it is found here, too, before any work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifact import sha256_file
from pipeline.checkpoint import source as student
from pipeline.checkpoint.source import Made, Source
from pipeline.data import corpus
from pipeline.data import datasets as data
from pipeline.data import files as own
from pipeline.data.datasets import Columns, Dataset
from pipeline.data.location import locate
from pipeline.errors import InputError, RecipeError, StudentError
from pipeline.recipe.compression import UNPRUNED, AugmentSection, DistilSection, HeadSection
from pipeline.tasks import Task
from pipeline.train.checks import check_dev, checkpoint_labels, has_head, one_label, training_rows

MASKED_LM = "ForMaskedLM"
"""How the names of classes with a masked-LM head end."""


@dataclass(frozen=True)
class Material:
    """What was found of it, as a value that can be handed to another process."""

    files: tuple[Path, ...] = ()
    """Plain text."""
    dataset: Dataset | None = None
    """Of rows to learn on where there is no plain text, and of the metric."""
    augmenter: Source | None = None
    """The model that replaces words."""

    @property
    def params(self) -> dict[str, Any]:
        """What of it decides the result."""
        found = self.dataset
        return {
            "texts": [sha256_file(path) for path in self.files],
            "dataset": found
            and {
                "name": found.name,
                "names": found.names,
                "train": found.digest("train"),
                "dev": found.digest(),
            },
            "augmenter": self.augmenter and self.augmenter.digest,
        }


def find(
    section: DistilSection,
    task: Task,
    unpruned: Source | None,
    recipe_file: Path,
    made: Made = student.NOTHING,
) -> Material:
    """Find what the settings name.

    Args:
        section: the settings.
        task: decides how files of one's own are read.
        unpruned: the recipe's checkpoint before compression.
        recipe_file: relative files are meant from there.
        made: by other recipes.

    Raises:
        RecipeError: data that are named twice or not at all, or of a kind that the task has not.
        InputError: labelled files that are absent or malformed.
        StudentError: there is no such checkpoint to replace words with.
    """
    _check_named(section, task)
    model = _augmenter(section.augment, unpruned, recipe_file, made) if section.augment else None
    return Material(files(section, recipe_file), _dataset(section, task, recipe_file), model)


def files(section: DistilSection | HeadSection, recipe_file: Path) -> tuple[Path, ...]:
    """Return the files of plain text."""
    return tuple(corpus.plain_file(name, recipe_file, "texts") for name in section.texts or ())


def _augmenter(section: AugmentSection, unpruned: Source | None, recipe_file: Path, made: Made) -> Source:
    if section.model != UNPRUNED:
        return student.at(section.model, recipe_file, made)
    if unpruned is None:
        raise RecipeError("distil.augment.model: there is no recipe whose checkpoint it could be; name a folder.")
    return unpruned


def _dataset(section: DistilSection, task: Task, recipe_file: Path) -> Dataset | None:
    if section.dataset is not None:
        return data.DATASETS[section.dataset]
    if section.train_file is None or section.dev_file is None:
        return None
    train, dev = (locate(name, recipe_file) for name in (section.train_file, section.dev_file))
    return own.dataset(task, train, dev, Columns(section.text, section.pair, section.label))


def _check_named(section: DistilSection, task: Task) -> None:
    given = {"train_file": section.train_file, "dev_file": section.dev_file}
    named = [key for key, file in given.items() if file is not None]
    if section.dataset is None and section.texts is None and not named:
        raise RecipeError(
            "distil has no data; give dataset, or train_file and dev_file, or texts: texts to learn on, the others "
            "to be judged as well."
        )
    if section.dataset is not None and named:
        raise RecipeError(f"distil has dataset and {named[0]}; give one of them.")
    if len(named) == 1:
        raise RecipeError(f"distil has {named[0]} alone; give train_file and dev_file.")
    if section.dataset is not None and section.dataset not in data.DATASETS:
        raise RecipeError(f"distil.dataset: {section.dataset!r} does not exist; there are: {', '.join(data.DATASETS)}.")
    endings = own.ENDINGS[task.output_kind]
    wrong = [key for key in named if Path(str(given[key])).suffix.lower() not in endings]
    if wrong:
        file, kinds = given[wrong[0]], " or ".join(endings)
        raise RecipeError(f"distil.{wrong[0]} = {file!r}: task {task.name} is distilled on {kinds}.")
    if named and task.output_kind == "embedding" and section.pair is None:
        raise RecipeError(
            "distil.train_file: an embedding is judged on pairs with a score, and distil.pair names no column of the "
            "second text. Name one, or give plain text as texts."
        )


# --- what is wrong with it -----------------------------------------------------------------------------------------


def plain(paths: Sequence[Path]) -> list[str]:
    """Return the lines of plain text files, without space around them.

    Raises:
        InputError: a file is absent, not UTF-8, or holds nothing.
    """
    return [line.strip() for path in paths for line in corpus.lines(path, "texts")]


def fits(dataset: Dataset | None, section: DistilSection, task: Task) -> bool:
    """Return whether a data set has labels of the task."""
    return dataset is not None and (section.dataset is None or dataset.name in task.datasets)


def check(section: DistilSection, task: Task, found: Material) -> None:
    """Refuse rows that cannot be learnt on; `plain` refuses text, and `check_labels` labels that are not the models'.

    Raises:
        RecipeError: hard labels are asked for where there are none, or words cannot be replaced.
        InputError: data that are absent, malformed, empty, of one class, or of labels that the models lack.
        StudentError: no masked-LM head to replace words with.
    """
    if section.alpha > 0:
        _check_alpha(section, task, found.dataset)
    if found.dataset is not None:
        _check_rows(section, task, found.dataset, learnt=not found.files)
    if section.augment is not None and found.augmenter is not None:
        _check_augment(section.augment, section, task, found.augmenter)


def _check_rows(section: DistilSection, task: Task, dataset: Dataset, *, learnt: bool) -> None:
    absent = dataset.absent("train") if learnt else None
    if absent:
        raise InputError(f"distil: training data of {dataset.name}: {absent}. Or give texts: plain text files.")
    rows = training_rows(dataset, section) if learnt else []
    asked = section.alpha > 0 or task.output_kind == "spans"
    if learnt and asked and (problem := one_label(rows, dataset, task.output_kind)):
        raise InputError(f"training data {dataset.path('train')}: {problem}.")
    if fits(dataset, section, task) and not dataset.absent():
        check_dev(dataset, task.output_kind)


def _check_alpha(section: DistilSection, task: Task, dataset: Dataset | None) -> None:
    asked = f"distil.alpha = {section.alpha} asks for hard labels"
    if section.head == "masked_lm":
        raise RecipeError(f"{asked}, and blocks of text have none; the loss on masked tokens is losses.masked_lm.")
    if task.output_kind not in own.TRAINED:
        raise RecipeError(f"{asked}, and task {task.name} has no training on labels here; set alpha = 0.")
    if section.texts is not None or dataset is None:
        raise RecipeError(
            f"{asked}, and distil.texts have no labels; give dataset, or train_file and dev_file, alone, or alpha = 0."
        )
    if not fits(dataset, section, task):
        able = ", ".join(name for name in task.datasets if data.DATASETS[name].train)
        raise RecipeError(f"{asked}, and dataset {dataset.name} has none of task {task.name}; there are: {able}.")


def labels(source: Source, task: Task, teacher: Source | None, dataset: Dataset | None) -> tuple[str, ...]:
    """Return the names of the head's numbers: of a head that is there, or else of the data."""
    owner = next((one for one in (source, teacher) if one is not None and has_head(task, one)), None)
    if owner is None and dataset is not None and dataset.names:
        return dataset.names
    return tuple(checkpoint_labels(owner or source))


def check_labels(source: Source, task: Task, teacher: Source | None, dataset: Dataset) -> None:
    """Refuse hard labels that are not those of the head that learns them.

    Raises:
        InputError: with the labels of both.
    """
    found = dataset.label_ids(labels(source, task, teacher, dataset))
    if isinstance(found, str):
        owner = source if teacher is None or has_head(task, source) else teacher
        raise InputError(f"data set {dataset.name} does not fit {owner.origin}: {found}.")


def _check_augment(section: AugmentSection, whole: DistilSection, task: Task, model: Source) -> None:
    if whole.head == "masked_lm":
        raise RecipeError("distil.augment is for a task's texts; with head = 'masked_lm' each pass masks other tokens.")
    if task.output_kind == "spans":
        raise RecipeError(
            f"distil.augment: task {task.name} asks for a part of the passage, which has to stay as it is."
        )
    if whole.max_length > model.max_length:
        limit = f"distil.augment.model: {model.origin} takes {model.max_length} positions"
        raise RecipeError(f"distil.max_length = {whole.max_length} is beyond the limit of {limit}.")
    if section.single_pieces == "masked_lm" and not has_masked_lm(model):
        raise StudentError(
            f"distil.augment.model {model.origin} has no trained masked-LM head: it was saved as {saved_as(model)}. "
            "Name a checkpoint that has one (a recipe's [head] trains it), or set single_pieces = 'neighbours'."
        )


def saved_as(source: Source) -> str:
    """Return the class that a checkpoint was saved from."""
    return str((source.config.get("architectures") or ["?"])[0])


def has_masked_lm(source: Source) -> bool:
    """Return whether a checkpoint was saved with a masked-LM head."""
    # ELECTRA's tells replaced tokens, and has no words to give.
    return saved_as(source).endswith((MASKED_LM, "ForPreTraining")) and saved_as(source) != "ElectraForPreTraining"
