"""Recipes of trials as files of their own, with the evidence in comments, wherever they are written."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from pipeline.checkpoint.source import RECIPE
from pipeline.data import corpus, retrieval
from pipeline.data.datasets import DATASETS
from pipeline.fronts.record import Record, TrialRecord

_PATHS = (
    *("source", "checkpoint", "into", "teacher", "model", "file", "train_file", "dev_file", "policy"),
    *("texts", "corpus", "calibration", "retrieval"),
)
"""Keys of a recipe that may be a plain name of a folder or a file."""
_NAMES = frozenset((*DATASETS, *retrieval.NAMES, *corpus.PLAIN))
"""What the same keys may name besides, and which comes first."""


def text(record: Record, trial: TrialRecord, values: Mapping[str, Any], base_file: Path, place: Path) -> str:
    """Return a trial's recipe as TOML.

    Args:
        record: of the study.
        trial: the trial.
        values: its recipe as TOML has it.
        base_file: the recipe that the study began with; relative paths of `values` start at its folder.
        place: the folder of the file that is written.
    """
    own = dict(values) | {"name": f"{record.study.name}-{trial.number}"}
    lines = [f"# Trial {trial.number} of study {record.study.name}, which began with {record.recipe_name}."]
    lines += [f"# {line}" for line in evidence(record, trial)]
    # A record is a file that others may hand on: none of its words ends a comment.
    lines = [" ".join(line.split()) for line in lines]
    return "\n".join(lines) + "\n" + tomli_w.dumps(moved(own, base_file.parent, place))


def stored(record: Record, trial: TrialRecord, folder: Path, place: Path) -> str:
    """Return a trial's recipe from a study's record, whose paths start at the study's folder.

    Args:
        record: of the study.
        trial: the trial.
        folder: where the record is.
        place: the folder of the file that is written.
    """
    return text(record, trial, record.recipes[trial.number], folder / "record", place)


def evidence(record: Record, trial: TrialRecord) -> list[str]:
    """Return what was measured of a trial, in sentences."""
    said = []
    if trial.measured is not None:
        size = f"The file has {trial.measured.size_mb:.2f} MB"
        if trial.measured.latency_ms is not None:
            times = (
                f", {trial.measured.times_base:.2f} times as fast as {record.recipe_name}'s"
                if (trial.measured.times_base)
                else ""
            )
            size += f" and takes {trial.measured.latency_ms:.2f} ms at {record.study.judge.length} tokens{times}"
        said.append(f"{size} ({trial.target}, {record.machine}).")
    else:
        said.append(
            f"Estimated: {', '.join(f'{name} {value:.3g}' for name, value in trial.measures.items())} ({trial.target})."
        )
    if trial.drop is not None:
        loss, low, high = (100 * one for one in trial.drop)
        said.append(
            f"{record.metric_name} on {record.judged_on}, by which it was chosen: {trial.measures['metric']:.4f}, "
            f"{loss:.2f} points less than {record.recipe_name} ({low:.2f} to {high:.2f})."
        )
    if trial.reported is not None:
        told = f"{trial.reported.metric} on {trial.reported.dataset}, by which nothing was chosen: "
        told += f"{trial.reported.fp32:.4f} in PyTorch"
        if trial.reported.file is not None:
            told += f", {trial.reported.file:.4f} of the file"
        if trial.reported.drop is not None:
            loss, low, high = (100 * one for one in trial.reported.drop)
            told += f"; {loss:.2f} points less than {record.recipe_name} ({low:.2f} to {high:.2f})"
        said.append(told + ".")
    if trial.verdict is not None:
        said.append(f"Verification: {trial.verdict}.")
    return said


def moved(value: Any, before: Path, now: Path, key: str = "") -> Any:
    """Return values whose relative paths, which exist from one folder, start at another one.

    Args:
        value: of a recipe, as TOML has it.
        before: where its paths start.
        now: where they are to start.
        key: the last part of the value's key.
    """
    if isinstance(value, Mapping):
        return {name: moved(one, before, now, name) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [moved(one, before, now, key) for one in value]
    if not isinstance(value, str):
        return value
    prefix = RECIPE if value.startswith(RECIPE) else ""
    path = value.removeprefix(prefix)
    looks_like_one = os.sep in path or "." in path or (key in _PATHS and path not in _NAMES)
    if looks_like_one and not os.path.isabs(os.path.expanduser(path)):
        # Links are followed first: from behind one, `..` leads elsewhere.
        inside = os.path.join(os.path.realpath(before), path)
        if os.path.exists(inside):
            return prefix + os.path.relpath(inside, os.path.realpath(now))
    return value
