"""Thresholds of several labels at once: from which probability on each is given, calibrated with the fp32 student.

The threshold of a label is the one with the best F1 on labelled texts. Source: Yang 2001 (A Study on Thresholding
Strategies for Text Categorization), SCut.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import tasks
from pipeline.checkpoint.source import Source
from pipeline.data import files
from pipeline.data.datasets import Columns, Dataset, sample
from pipeline.data.location import locate
from pipeline.errors import InputError, RecipeError
from pipeline.kinds import KINDS
from pipeline.metrics import measures, scoring
from pipeline.metrics.scoring import Labels
from pipeline.recipe.schema import Recipe, ThresholdsSection
from pipeline.student.outputs import label_names, reference_outputs
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder

THRESHOLDS = "thresholds.json"
_HALF = 0.5
_LEAST, _MOST = 0.001, 0.999
"""Bounds of a threshold: beyond them a probability says more of rounding than of a label."""
_DIGITS = (3, 4, 5, 6)
"""Digits of a threshold: as few as tell two probabilities apart, so that two processors find the same one."""


@dataclass(frozen=True)
class Calibration:
    """The labelled texts that thresholds are calibrated on, as a value that can be sent to another process."""

    dataset: Dataset
    max_length: int
    """Tokens to which texts are truncated: the files' longest length."""
    max_rows: int

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that determine the thresholds, besides the student."""
        columns = asdict(self.dataset.columns) if self.dataset.columns else None
        data = {"name": self.dataset.name, "columns": columns, "digest": self.dataset.digest()}
        return {"data": data, "max_length": self.max_length, "max_rows": self.max_rows}


def find(recipe: Recipe, recipe_file: Path, source: Source, trained_on: Dataset | None) -> Calibration | None:
    """Return the texts that a recipe's `[thresholds]` names, or None without that section.

    Args:
        recipe: the recipe.
        recipe_file: a relative path starts at its folder.
        source: the checkpoint that is converted.
        trained_on: the dataset of `[train]`, or the user's labelled files of `[distil]`.

    Raises:
        RecipeError: the task has no thresholds, or the section names no texts.
        InputError: the file is absent or malformed, or its labels are not the checkpoint's.
    """
    section, task = recipe.thresholds, tasks.get(recipe.task)
    if section is None:
        return None
    if KINDS[task.output_kind].decision != "each":
        able = ", ".join(row.name for row in tasks.TASKS.values() if KINDS[row.output_kind].decision == "each")
        raise RecipeError(f"{recipe_file}: thresholds: task {task.name} has none; there are some for: {able}.")
    dataset = _dataset(section, task, recipe_file, trained_on)
    misfit = dataset.label_ids(source.labels)
    if isinstance(misfit, str):
        raise InputError(f"thresholds: {dataset.path() or dataset.name} does not fit the checkpoint: {misfit}.")
    dataset.load()
    longest = max(recipe.lengths(backend)[-1] for backend in recipe.targets)
    return Calibration(dataset, longest, section.max_rows)


def _dataset(section: ThresholdsSection, task: Task, recipe_file: Path, trained_on: Dataset | None) -> Dataset:
    if section.file is not None:
        columns = Columns(section.text, section.pair, section.label, labels=section.labels or ())
        return files.single("thresholds_file", task, locate(section.file, recipe_file), columns)
    named = {"text", "pair", "label", "labels"} & section.model_fields_set
    if named:
        raise RecipeError(
            f"{recipe_file}: thresholds.{min(named)} names a column of thresholds.file, which is not given."
        )
    if trained_on is None:
        raise RecipeError(
            f"{recipe_file}: [thresholds] has no file, and the recipe trains on no labelled files whose dev_file could "
            "be taken. Give file."
        )
    return trained_on


def calibrate(model: Any, folder: Path, task: Task, calibration: Calibration, out: Path) -> dict[str, Any]:
    """Calibrate the thresholds of a student, and write them beside it.

    Args:
        model: the student in torch.
        folder: has its tokenizer.
        task: with labels that are decided one by one.
        calibration: the labelled texts.
        out: folder of the file.

    Returns:
        The thresholds, and micro and macro F1 with and without them on the same texts.
    """
    names = label_names(model.config)
    ids = calibration.dataset.label_ids(names)
    assert not isinstance(ids, str)
    rows = sample(calibration.dataset.load(), calibration.max_rows, seed=0)
    encoder = Encoder.from_folder(folder, calibration.max_length)
    outputs = reference_outputs(model, task, [encoder.encode(row.first, row.second) for row in rows])
    gold = [list(row.by_output(ids, len(names))) for row in rows]
    found = [
        best_threshold(probabilities, true == 1)
        for probabilities, true in zip(measures.sigmoid(outputs.values).T, np.array(gold).T, strict=True)
    ]
    (out / THRESHOLDS).write_text(json.dumps({"thresholds": found}) + "\n", encoding="utf-8")
    labels = Labels(calibration.dataset.name, list(range(len(rows))), None, gold, "micro_f1", names)
    return {
        "thresholds": found,
        "texts": len(rows),
        "calibrated": scoring.reported(task.output_kind, replace(labels, thresholds=found), outputs),
        "at_half": scoring.reported(task.output_kind, labels, outputs),
    }


def read(student: Path) -> list[float] | None:
    """Return the thresholds of a student, or None if each is one half."""
    path = student / THRESHOLDS
    return json.loads(path.read_text(encoding="utf-8"))["thresholds"] if path.is_file() else None


def best_threshold(probabilities: NDArray[np.floating], true: NDArray[np.bool_]) -> float:
    """Return the threshold of a label with the best F1; of equals the nearest to one half.

    Between two probabilities that follow each other, F1 is the same: one half stands for the two that it lies between,
    and the middle for all others. A label that no text has keeps one half.

    Args:
        probabilities: of each text, `(texts,)`.
        true: whether the text has the label, `(texts,)`.
    """
    if not true.any():
        return _HALF
    order = np.argsort(-probabilities, kind="stable")
    above = np.asarray(probabilities, np.float64)[order]
    below = np.append(above[1:], 0.0)
    f1 = 2 * true[order].cumsum() / (np.arange(1, len(order) + 1) + true.sum())
    candidates = [
        (round(float(score), 12), -abs(at - _HALF), at)
        for score, high, low in zip(f1, above, below, strict=True)
        if (at := _between(float(low), float(high))) is not None
    ]
    # Some other threshold than one half has to be better than it, by the texts' own decisions.
    at_half = probabilities >= _HALF
    half = 2 * float((at_half & true).sum()) / float(at_half.sum() + true.sum())
    return max([*candidates, (round(half, 12), 0.0, _HALF)])[2]


def _between(low: float, high: float) -> float | None:
    """Return the threshold by which a probability `high` is enough and `low` is not, or None if there is none."""
    if low < _HALF <= high:
        return _HALF
    middle = (max(low, _LEAST) + min(high, _MOST)) / 2
    at = next((rounded for digits in _DIGITS if low < (rounded := round(middle, digits)) <= high), middle)
    return at if low < at <= high and _LEAST <= at <= _MOST else None
