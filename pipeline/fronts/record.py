"""What a study keeps: one line for each trial, and a record of the whole that pages and `recommend` read."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pipeline import atomic
from pipeline.errors import ArtifactError
from pipeline.fronts.parts import Parts
from pipeline.fronts.spec import Study

FOLDER = "studies"
TRIALS, RECORD, JOURNAL = "trials.jsonl", "record.json", "journal.log"
Step = Literal["compressed", "trained", "files"]
ESTIMATED = ("size_mb", "latency_ms", "memory_mb")
"""Measures of a file that are estimated until there is one."""
BESIDE = 1_000_000
"""Number of the first recipe that is shown beside the trials."""
STEPS: tuple[Step, ...] = ("compressed", "trained", "files")
"""How far a trial came, from the cheapest judgement on."""
SHIPPED = Path(__file__).parent / "records"
"""Records that come with the package."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measured(_Frozen):
    """A real file of a trial."""

    size_mb: float
    latency_ms: float | None = None
    """At the study's length: the base file's, over `times_base`; None if it was not timed."""
    times_base: float | None = None
    """The time of the recipe's own file over this one's, in the same run, median over rounds."""
    memory_mb: float | None = None
    """Peak memory of its process, in MB."""


class Reported(_Frozen):
    """The metric on the recipe's own data, which no choice was made by."""

    dataset: str
    metric: str
    fp32: float
    """Of the checkpoint in PyTorch."""
    drop: tuple[float, float, float] | None
    """Loss against the recipe's own student, with its 95 % interval; None of that student itself."""
    file: float | None = None
    """Of the file; None where it was not verified."""
    recall_at_10: float | None = None
    """Of the checkpoint, mean over the recipe's collections."""

    @property
    def value(self) -> float:
        """The metric of the file; of the checkpoint if there is none."""
        return self.fp32 if self.file is None else self.file


class TrialRecord(_Frozen):
    """One trial, as far as it came."""

    number: int
    """−1 is the recipe as it is."""
    choice: dict[str, Any]
    target: str
    step: Step
    measures: dict[str, float]
    """By the study's measures; size, latency and memory are estimates before the last step."""
    trained: bool = False
    """Whether the student is judged after all that its recipe has it learn."""
    parts: Parts | None = None
    drop: tuple[float, float, float] | None = None
    """Loss of the metric against the recipe as it is, on the judged rows, with its 95 % interval."""
    estimated: dict[str, float] = {}
    """Size, latency and memory as they were estimated, where `measured` has the truth."""
    measured: Measured | None = None
    verdict: str | None = None
    reported: Reported | None = None
    failed: str | None = None
    """Why there is no such student."""
    nodes: int = 0
    """Artifacts that it asked for."""
    made: int = 0
    """Those of them that were not there yet."""
    seconds: float = 0.0
    """Of all its steps; in a batch of several trials, its share."""


class Answer(_Frozen):
    """What a study found."""

    trial: int | None
    """Number of the best trial; None if none succeeded."""
    fits: bool
    """Whether it is within every budget; if not, it is the nearest one."""
    beyond: dict[str, tuple[float, float]]
    """Budgets that it does not keep: its measure, and the bound."""
    sentences: list[str]
    """What each budget costs, in words."""


class Record(_Frozen):
    """A whole study."""

    schema_version: int = 1
    study: Study
    task: str
    recipe_name: str
    metric_name: str
    judged_on: str
    machine: str
    tools: dict[str, str]
    base: TrialRecord
    base_target: str
    misfits: dict[str, float]
    """Largest error of each target's cost table on the encoders that it was made of, as a fraction."""
    trials: list[TrialRecord]
    beside: list[TrialRecord] = []
    """Files of other recipes, judged and timed like those of trials; `choice` has the recipe's name."""
    recipes: dict[int, dict[str, Any]]
    """The recipe of each trial that is a student, as TOML has it; relative paths start at the study's folder."""
    answer: Answer
    asked: int
    """Artifacts that all trials asked for."""
    made: int
    """Artifacts that were made for them: the others were shared."""
    hours: float
    finished: bool
    """Whether all steps were gone through; if not, the time was spent."""


def append(folder: Path, trial: TrialRecord) -> None:
    """Add a trial's line; the last line of a number counts.

    Raises:
        ArtifactError: the file cannot be written.
    """
    path = folder / TRIALS
    with atomic.writing(folder), path.open("ab+") as handle:
        # A line that a kill cut short would take this one with it.
        if handle.seek(0, os.SEEK_END):
            handle.seek(-1, os.SEEK_END)
            if handle.read(1) != b"\n":
                handle.write(b"\n")
        handle.write(trial.model_dump_json().encode() + b"\n")
        handle.flush()


def read_trials(folder: Path) -> dict[int, TrialRecord]:
    """Read all trials by number; a line that a kill cut short is left out."""
    found: dict[int, TrialRecord] = {}
    path = folder / TRIALS
    if not path.is_file():
        return found
    # Of bytes: text has other ends of lines too, which an error's words may hold.
    for line in path.read_bytes().split(b"\n"):
        # A kill may have cut any line short, if another run went on behind it.
        with contextlib.suppress(ValueError):
            trial = TrialRecord.model_validate_json(line)
            found[trial.number] = trial
    return found


def write(folder: Path, record: Record) -> None:
    """Write a study's record."""
    with atomic.writing(folder):
        atomic.write_text(folder / RECORD, record.model_dump_json(indent=1) + "\n")


def read(path: Path) -> Record:
    """Read a study's record.

    Args:
        path: the file, or the study's folder.

    Raises:
        ArtifactError: it is absent or no such record.
    """
    file = path / RECORD if path.is_dir() else path
    try:
        found = Record.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}. `pocketbert study` writes it.") from error
    except ValueError as error:
        raise ArtifactError(f"{file} is no record of a study: {str(error).splitlines()[0]}.") from error
    absent = [one.number for one in shown(found.trials) if one.number not in found.recipes]
    if absent:
        raise ArtifactError(
            f"{file} is damaged: it lacks the recipe of trial {absent[0]}. `pocketbert study` writes it."
        )
    return found


def known(build: Path | None, given: Sequence[Path], note: Callable[[str], None]) -> list[tuple[Record, Path]]:
    """Return records with their files: those that are given, or else the build folder's and the package's.

    Args:
        build: the build folder; None: only the package's.
        given: records, or folders of studies; none means all that there are.
        note: is told of a record that was not asked for by name and cannot be read.

    Raises:
        ArtifactError: a record that is given is absent or damaged.
    """
    if given:
        return [(read(path), path / RECORD if path.is_dir() else path) for path in given]
    found = []
    own = sorted((build / FOLDER).glob(f"*/{RECORD}")) if build else []
    for path in own + sorted(SHIPPED.glob("*.json")):
        try:
            found.append((read(path), path))
        except ArtifactError as error:
            note(f"left out: {error}")
    return found


def began_with(record: Record, folder: Path, source: str, base: Path) -> bool:
    """Return whether all students of a study were made of one checkpoint.

    Args:
        record: of the study.
        folder: where the record is; relative paths of its recipes start there.
        source: the checkpoint, as `student.source` names it.
        base: where a relative path of `source` starts.
    """
    students = [values.get("student") for values in record.recipes.values()]
    sources = {_checkpoint(str(one.get("source")), folder) if isinstance(one, dict) else "" for one in students}
    return sources == {_checkpoint(source, base)}


def _checkpoint(source: str, folder: Path) -> str:
    # Of a record, it may be anything: the name of no user, or longer than a path can be.
    with contextlib.suppress(OSError, RuntimeError):
        path = folder / Path(source).expanduser()
        return os.path.realpath(path) if path.exists() else source
    return source


def violations(measures: Mapping[str, float], bounds: Mapping[str, tuple[float, bool]]) -> dict[str, float]:
    """Return by how much a trial is beyond each budget, as a fraction of the bound; 0 or less is within.

    Args:
        measures: of the trial; a bound whose measure is absent counts as kept.
        bounds: by measure, the bound and whether it is the least value.
    """
    return {
        name: (bound - measures[name] if least else measures[name] - bound) / max(abs(bound), 1e-9)
        for name, (bound, least) in bounds.items()
        if name in measures
    }


def shown(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that succeeded."""
    return [one for one in trials if one.failed is None]


def able(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that may be an answer: those that succeeded, without files that failed their verification."""
    return [one for one in shown(trials) if one.verdict != "failed"]


def dump(values: Any) -> str:
    """Return values as one line of JSON."""
    return json.dumps(values, sort_keys=True, default=str)
