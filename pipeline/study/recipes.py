"""Recipes of trials as files of their own, with the evidence in comments, wherever they are written."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from pipeline.study.record import Record, TrialRecord


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


def moved(value: Any, before: Path, now: Path) -> Any:
    """Return values whose relative paths, which exist from one folder, start at another one."""
    if isinstance(value, Mapping):
        return {key: moved(one, before, now) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [moved(one, before, now) for one in value]
    if (isinstance(value, str) and os.sep in value) or (isinstance(value, str) and "." in value):
        inside = before / os.path.expanduser(value)
        if not os.path.isabs(os.path.expanduser(value)) and os.path.exists(inside):
            return os.path.relpath(inside, now)
    return value
