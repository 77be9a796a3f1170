"""Judge a checkpoint of a trial in fp32 PyTorch on data that no result is reported on, and count its parts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import formats, tasks
from pipeline.artifact import Artifact, sha256_file
from pipeline.convert.stage import Target
from pipeline.data import files, retrieval
from pipeline.data.datasets import DATASETS, Columns, Dataset, Labelled, Split, sample
from pipeline.data.location import locate
from pipeline.errors import InputError, RecipeError
from pipeline.execution.node import Estimate, External, Input, Node, versions
from pipeline.fronts.spec import Judge
from pipeline.heads import sentence
from pipeline.heads.sentence import DEFAULT
from pipeline.metrics import measures, ranking, scoring
from pipeline.metrics.outputs import RowOutputs
from pipeline.planning.branches import branch_for
from pipeline.recipe.distillation import DistilSection
from pipeline.recipe.schema import Recipe
from pipeline.student import thresholds
from pipeline.student.reference import EncodedTexts
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Similarity

VERSION = 1
PARTS = "parts.npy"
"""What the metric is computed from, `(rows, k)`: two students are compared row by row."""
_RESAMPLES = 2000
_FEWEST_ROWS = 20
"""Rows of a user's own file; the interval of fewer says nothing, and of one row there is no correlation."""


@dataclass(frozen=True)
class Sampled(Dataset):
    """A dataset of which a fixed sample of one split is judged."""

    rows: int = 1000
    split: Split = "train"

    def load(self, split: Split = "dev") -> list[Labelled]:
        """Read the sample, whichever split is asked for."""
        del split
        return sample(super().load(self.split), self.rows, seed=0)


@dataclass(frozen=True)
class JudgedBy:
    """The data that trials are compared on, as a value that is sent to another process."""

    dataset: Sampled
    collections: tuple[retrieval.Source, ...]
    max_length: int

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that decide a judgement, besides the checkpoint."""
        return {
            "dataset": [self.dataset.name, self.dataset.split, self.dataset.rows],
            "digest": self.dataset.digest(self.dataset.split),
            "collections": {one.name: one.digest() for one in self.collections},
            "max_length": self.max_length,
        }


def choose(judge: Judge, recipe: Recipe, study_file: Path, recipe_file: Path | None = None) -> JudgedBy:
    """Return the data that a study's trials are compared on.

    Args:
        judge: of the study.
        recipe: that every trial begins with.
        study_file: relative paths of `judge` start at its folder.
        recipe_file: those of the recipe start at its folder; the study's unless given.

    Raises:
        RecipeError: the recipe trains on these very rows, or reports on them, or there are none for its task.
        InputError: a file is absent or malformed.
    """
    task = tasks.get(recipe.task)
    length = max(recipe.lengths(backend)[-1] for backend in recipe.targets)
    names = judge.retrieval or ()
    reported = set(recipe.verify.retrieval or ()) & set(names)
    if reported:
        raise RecipeError(
            f"{study_file}: judge.retrieval names {sorted(reported)[0]}, on which {recipe.name} reports its result; "
            "what is searched by cannot tell how good the result is. Name another collection."
        )
    collections, absent = retrieval.chosen(names, study_file, "judge.retrieval")
    for name, reason in absent.items():
        raise InputError(f"{study_file}: judge.retrieval: {name}: {reason}.")
    recipe_file = recipe_file or study_file
    for one in retrieval.chosen(recipe.verify.retrieval or (), recipe_file, "verify.retrieval")[0]:
        same = next((other for other in collections if _places(other) == _places(one)), None)
        if same is not None:
            raise RecipeError(
                f"{study_file}: judge.retrieval names {same.name}, on which {recipe.name} reports its result; "
                "what is searched by cannot tell how good the result is. Name another collection."
            )
    if judge.file is not None:
        columns = Columns(judge.text, judge.pair, judge.label)
        found = files.single("judge_file", task, locate(judge.file, study_file), columns)
        # Now, so that a plan tells of a column that is not there as well.
        if (count := len(found.load())) < _FEWEST_ROWS:
            raise InputError(
                f"{study_file}: judge.file = {judge.file!r} has {count} row{'' if count == 1 else 's'}; trials are "
                f"told apart by {_FEWEST_ROWS} or more, better by some hundreds."
            )
        _check_apart(found, judge.file, recipe, study_file, recipe_file)
        return JudgedBy(_sampled(found, judge.rows, "dev"), tuple(collections), length)
    found = _training_rows(judge, recipe, study_file, recipe_file)
    split: Split = "held_out" if found.held_out else "train"
    return JudgedBy(_sampled(found, judge.rows, split), tuple(collections), length)


def _places(one: retrieval.Source) -> list[str]:
    return [os.path.realpath(file) for file in one.files]


def _check_apart(found: Dataset, shown: str, recipe: Recipe, study_file: Path, recipe_file: Path) -> None:
    """Refuse a file that the recipe learns from or reports on, by whichever name: its content is compared.

    Raises:
        RecipeError: it is such a file.
    """
    own = found.digest()
    for section in (recipe.train, recipe.distil):
        for key in ("train_file", "dev_file") if section is not None else ():
            named = getattr(section, key)
            path = locate(named, recipe_file) if named else None
            if path is not None and path.is_file() and sha256_file(path) == own:
                what = "learns from" if key == "train_file" else "reports on"
                raise RecipeError(
                    f"{study_file}: judge.file = {shown!r} is what {recipe.name} {what} ({named}). Give labelled rows "
                    "that neither train nor report."
                )
    learnt = [one.dataset for one in (recipe.train, recipe.distil) if one is not None and one.dataset]
    known = tasks.get(recipe.task).datasets if recipe.verify.datasets is None else recipe.verify.datasets
    every: list[tuple[str, Split, str]] = [(name, "dev", "reports on") for name in (*known, *learnt)]
    for name, split, what in [*every, *((name, "train", "learns from") for name in learnt)]:
        if name in DATASETS and own is not None and DATASETS[name].digest(split) == own:
            raise RecipeError(
                f"{study_file}: judge.file = {shown!r} is what {recipe.name} {what} ({name}). Give labelled rows that "
                "neither train nor report."
            )


def _training_rows(judge: Judge, recipe: Recipe, study_file: Path, recipe_file: Path) -> Dataset:
    """Return the dataset whose training rows trials are judged on; if something learns from it, those held out."""
    task = tasks.get(recipe.task)
    usable = [name for name in task.datasets if DATASETS[name].train is not None]
    sections = [one for one in (recipe.train, recipe.distil) if one is not None and one.held_out]
    own = next((one for section in sections if (one := files.learned(section, task, recipe_file))), None)
    name = judge.dataset or next((name for name in usable if DATASETS[name].absent("train") is None), None)
    if judge.dataset is None and own is not None:
        # Of a user's two files these are rows of the first, and the dataset goes by the name of the second.
        found = own if own.name in DATASETS else replace(own, name="train_file")
    elif name is None or name not in DATASETS:
        known = "; ".join(f"{one} ({DATASETS[one].absent('train') or 'at hand'})" for one in usable) or "none"
        raise RecipeError(
            f"{study_file}: judge.dataset: {'no dataset is at hand' if name is None else repr(name)}; for task "
            f"{task.name} there are training rows of: {known}. Give judge.file, a labelled file of your own."
        )
    else:
        found = DATASETS[name]
    if (reason := found.absent("train")) is not None:
        raise InputError(f"{study_file}: judge.dataset = {name!r}: {reason}.")
    return replace(found, held_out=_held_out(found, recipe, study_file, recipe_file) or 0)


def refuse_learnt(by: JudgedBy, recipe: Recipe, study_file: Path, recipe_file: Path) -> None:
    """Refuse a trial whose space has it learn from the very rows that trials are compared on.

    Raises:
        RecipeError: it does.
    """
    if by.dataset.split == "dev":
        return
    rows = _held_out(by.dataset, recipe, study_file, recipe_file)
    if rows is not None and (by.dataset.split == "train" or rows < by.dataset.held_out):
        raise RecipeError(
            f"{study_file}: trials are judged on training rows of {by.dataset.name} that the study's recipe does not "
            f"learn from, and this one learns from some of them: its held_out is {rows}. Set held_out in the recipe."
        )


def _held_out(found: Dataset, recipe: Recipe, study_file: Path, recipe_file: Path) -> int | None:
    """Return how many training rows of a dataset are held out from all that makes a recipe's student.

    The recipes whose students it begins with or learns from count as well. None: nothing learns from any of the rows.

    Raises:
        RecipeError: something learns from all of them, or from labelled files that may hold them.
    """
    held = []
    content = replace(found, held_out=0).digest("train")
    for one in branch_for(recipe, recipe_file).every():
        own = one.recipe
        for section in (own.train, own.distil):
            if section is None:
                continue
            rows = files.learned(section, tasks.get(own.task), one.file)
            same = rows is not None and (
                rows.name == found.name if content is None else replace(rows, held_out=0).digest("train") == content
            )
            if isinstance(section, DistilSection) and section.texts:
                # Beside texts a dataset gives the rows that are left out of them, whatever their names.
                same = same and bool(section.held_out)
                learns = same or found.name in section.texts
            else:
                learns = same or (rows is not None and section.train_file is not None)
            if learns:
                held.append(section.held_out or 0 if same else 0)
                if not held[-1]:
                    raise RecipeError(
                        f"{study_file}: {own.name} learns from {found.name}'s training rows or from labelled files, "
                        "and on rows that it has learnt every trial looks good. Set held_out, a number of training "
                        "rows that nothing learns from, wherever it learns from them; or give judge.file: labelled "
                        "rows that neither train nor report."
                    )
    return min(held, default=None)


def _sampled(found: Dataset, rows: int, split: Split) -> Sampled:
    return Sampled(**{name: getattr(found, name) for name in found.__dataclass_fields__}, rows=rows, split=split)


def reported_on(recipe: Recipe, recipe_file: Path, by: JudgedBy, chosen: Sequence[str | Dataset]) -> JudgedBy | None:
    """Return the data of the recipe's own report, for finalists alone; None if it reports on no labelled data."""
    rows = [DATASETS[one] if isinstance(one, str) else one for one in chosen if one != "none"]
    usable = [row for row in rows if row.absent() is None and row.metric == by.dataset.metric]
    if not usable:
        return None
    # The largest tells most; the bundled ones are small.
    largest = max(usable, key=lambda row: len(row.load()))
    collections, _ = retrieval.chosen(recipe.verify.retrieval or (), recipe_file, "verify.retrieval")
    return replace(by, dataset=_sampled(largest, 10**9, "dev"), collections=tuple(collections))


def node(recipe: Recipe, checkpoint: Node | External, by: JudgedBy, *, length: int, name: str) -> Node:
    """Return the node that judges one checkpoint.

    Args:
        recipe: of the candidate.
        checkpoint: the candidate's checkpoint.
        by: the data.
        length: tokens at which multiply-adds count.
        name: of the node, for progress.
    """
    return Node(
        recipe=recipe.name,
        name=name,
        place=name.replace(" ", "-"),
        stage="judge",
        version=VERSION,
        params={"task": recipe.task, "length": length, **by.params},
        inputs={"checkpoint": checkpoint},
        tools=versions("torch", "transformers", "tokenizers"),
        function=judge_checkpoint,
        arguments=(Input("checkpoint"), recipe.task, by, length),
        estimate=Estimate(12.0, 200_000),
        inexact_files=(PARTS,),
    )


def judge_checkpoint(folder: Path, task_name: str, by: JudgedBy, length: int, out: Path) -> dict[str, Any]:
    """Run a checkpoint over the data in fp32 PyTorch; the function of a `judge` node.

    Returns:
        The metric, recall@10, and the counts of the checkpoint's parts.
    """
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.fronts.parts import count
    from pipeline.student.outputs import label_names, reference_outputs

    task = tasks.get(task_name)
    model = load_checkpoint(folder, task)
    names = label_names(model.config) if task.has_labels else []
    head = DEFAULT if task.uses_head else sentence.settings(model)
    encoder = Encoder.from_folder(folder, by.max_length)
    judged = _Judged(by, task, encoder, names, head.wanted, head.compared_by, thresholds.read(folder))
    found = judged.judge(reference_outputs(model, task, judged.rows), out)
    return found | {"parts": count(model, length=length)}


def file_node(recipe: Recipe, model: Node, by: JudgedBy, target: Target) -> Node:
    """Return the node that judges a converted file on the same data."""
    name = f"judge {target}"
    return Node(
        recipe=recipe.name,
        name=name,
        place=name.replace(" ", "-"),
        stage="judge-file",
        version=VERSION,
        params={"task": recipe.task, **by.params},
        inputs={"model": model},
        tools=versions(*formats.get(target.backend).DISTRIBUTIONS),
        function=judge_file,
        arguments=(Input("model"), recipe.task, by),
        estimate=Estimate(20.0, 200_000),
        worker=f"convert-{target.backend}",
        inexact_files=(PARTS,),
    )


def judge_file(folder: Path, task_name: str, by: JudgedBy, out: Path) -> dict[str, Any]:
    """Run a converted file over the data in its runtime; the function of a `judge-file` node."""
    from pipeline.convert.model import Model

    with Model(folder) as model:
        said = model.signature
        similarity = said.vectors.compared_by if said.vectors else DEFAULT.compared_by
        judged = _Judged(
            by, tasks.get(task_name), model.encoder, said.labels or (), said.wanted, similarity, said.thresholds
        )
        return judged.judge(RowOutputs.of([model.run(row) for row in judged.rows]), out)


class _Judged:
    """The data of a study, encoded for one student."""

    def __init__(
        self,
        by: JudgedBy,
        task: Task,
        encoder: Encoder,
        names: Sequence[str],
        prompts: Prompts,
        similarity: Similarity,
        given_from: Sequence[float] | None,
    ) -> None:
        misfit = by.dataset.label_ids(names) if task.has_labels else None
        if isinstance(misfit, str):
            raise InputError(f"judge: {by.dataset.name} does not fit the checkpoint: {misfit}.")
        book = EncodedTexts(encoder, task, names, prompts)
        self._task, self._similarity = task, similarity
        self._labels = replace(book.add_dataset(by.dataset), thresholds=list(given_from) if given_from else None)
        self._collections = [book.add_collection(one) for one in by.collections]
        self.rows = book.rows

    def judge(self, outputs: RowOutputs, out: Path) -> dict[str, Any]:
        if not measures.all_finite(outputs.values):
            raise InputError("there is NaN or infinity among the outputs of a text.")
        kind, labels = self._task.output_kind, self._labels
        np.save(out / PARTS, scoring.METRICS[labels.metric].parts(kind, labels, outputs))
        recalls = [ranking.means(one, outputs, self._similarity)["recall_at_10"] for one in self._collections]
        return {
            "metric": scoring.score(kind, labels, outputs),
            "metric_name": labels.metric,
            "dataset": labels.name,
            "rows": len(labels.gold),
            "recall_at_10": float(np.mean(recalls)) if recalls else None,
        }


def drop(metric: str, before: Artifact, after: Artifact) -> tuple[float, float, float]:
    """Return how much of a metric is lost between two judgements of the same rows, with its 95 % interval.

    Source: Efron and Tibshirani 1993, chapter 13: percentile interval of a paired bootstrap over rows.
    """
    row = scoring.METRICS[metric]
    first, second = (parts(one) for one in (before, after))
    draw, drops = np.random.default_rng(0), []
    for _ in range(_RESAMPLES // 100):
        chosen = draw.integers(0, len(first), (100, len(first)))
        drops.append(row.value(first[chosen]) - row.value(second[chosen]))
    low, high = np.percentile(np.concatenate(drops), (2.5, 97.5))
    return float(row.value(first) - row.value(second)), float(low), float(high)


def parts(judged: Artifact) -> NDArray[np.floating]:
    """Return what a judgement's metric is computed from, `(rows, k)`."""
    return np.asarray(np.load(judged.path / PARTS, allow_pickle=False))


Judgement = Mapping[str, Any]
"""The metrics of a `judge` artifact."""
