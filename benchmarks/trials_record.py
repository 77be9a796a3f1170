"""The record of a trial: what was made, how good it is, and what a paired interval needs; one JSON a seed of a row.

An interval needs no example's label or output: the metric of each of 1,000 resamples is kept. Two records over the same
rows were resampled alike, so the differences of their resamples are the paired bootstrap's.
"""

import base64
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from benchmarks import records, trials
from benchmarks.records import State, Strict
from benchmarks.trials import Row, Table, Trial
from pipeline.kinds import OutputKind
from pipeline.metrics import scoring
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.scoring import Labels
from pipeline.verify.stage import Verdict

RESAMPLES = 1000
SEARCHED = ("recall_at_1", "recall_at_10")
"""Metrics of search that are recorded."""


class Metric(Strict):
    """The task metric over one dataset."""

    dataset: str
    data_sha256: str
    """Digest of the dev split."""
    metric: str
    rows: int
    chance: float | None
    """The metric of a guess; None where it was not computed."""
    value: float
    resamples: str
    """The metric of each resample: float32, little endian, base64."""

    def resampled(self) -> NDArray[np.float64]:
        """Return the metric of each resample, `(1000,)`."""
        return np.frombuffer(base64.b64decode(self.resamples), "<f4").astype(np.float64)


class Stage(Strict):
    """One artifact on the way to the student."""

    name: str
    version: int
    key: str
    digest: str
    """Content digest of its files."""
    metric: str | None = None
    value: float | None = None
    """After training; a perplexity is better the smaller it is."""
    updates: int | None = None
    seconds: float | None = None
    """Seconds of updates, over all parts of a run that was stopped."""


class File(Strict):
    """One converted file."""

    backend: str
    scheme: str
    verdict: Verdict
    reasons: list[str]
    file_bytes: int
    digest: str
    """Digest of the model artifact."""
    value: float | None
    """Its task metric; None where it was not run."""


class Record(Strict):
    """One seed of a row."""

    schema_version: Literal[1] = 1
    table: str
    row: str
    seed: int
    key: str
    """See `trials.key`; another one says that code has changed since."""
    settings: str
    """See `trials.settings`; others make the record stale."""
    parameters: int
    compute_fraction: float | None
    """Share of the whole encoder's multiply-adds at 128 tokens; None where its layers cannot be taken apart."""
    metric: Metric | None
    retrieval: list[Metric] = Field(default_factory=list)
    """Of an embedding, `SEARCHED` over all queries of the table's collections; a row of a metric is a query."""
    stages: list[Stage]
    files: list[File]
    """Files of the first seed of a row that is converted; empty otherwise."""
    tools: dict[str, str]
    machine: str


def resample(kind: OutputKind, labels: Labels, outputs: RowOutputs) -> NDArray[np.float64]:
    """Return the metric of each of 1,000 resamples, drawn as `scoring.interval_of_drop` draws them.

    Source: Efron and Tibshirani 1993, chapter 13.
    """
    row = scoring.METRICS[labels.metric]
    resamples = row.parts(kind, labels, outputs)[draws(len(labels.gold))]
    found: NDArray[np.float64] = row.value(resamples).astype(np.float64)
    return found


def resampled_means(each: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over examples, `(examples,)`, in each of the same 1,000 resamples."""
    found: NDArray[np.float64] = each[draws(len(each))].mean(1)
    return found


def draws(examples: int) -> NDArray[np.int64]:
    """Return the rows of each resample, `(1000, examples)`, the same whenever there are as many examples."""
    return np.random.default_rng(0).integers(0, examples, (RESAMPLES, examples))


def packed(resampled: NDArray[np.float64]) -> str:
    """Return resamples as a record holds them."""
    return base64.b64encode(resampled.astype("<f4").tobytes()).decode()


def place(table: Table, trial: Trial) -> Path:
    """Return where a trial's record is."""
    return table.records / table.name / f"{trial.name}.json"


def write(table: Table, trial: Trial, record: Record) -> None:
    """Write a record, whole or not at all."""
    records.write(place(table, trial), record)


def read(table: Table, trial: Trial) -> tuple[Record | None, State]:
    """Return a trial's record with its state, or None where there is none or it is of other settings.

    Raises:
        ArtifactError: it cannot be read.
    """
    record = records.read(Record, place(table, trial))
    if record is None:
        return None, "not run"
    if record.key == trials.key(table, trial):
        return record, "there"
    return (record, "older") if record.settings == trials.settings(table, trial) else (None, "stale")


def of_row(table: Table, row: Row) -> dict[int, Record]:
    """Return a row's records at hand by seed, of this code or older; stale ones are left out."""
    found = {seed: read(table, Trial(row, seed))[0] for seed in row.seeds}
    return {seed: record for seed, record in found.items() if record is not None}


def states(table: Table, row: Row) -> dict[int, State]:
    """Return what there is of each seed."""
    return {seed: read(table, Trial(row, seed))[1] for seed in row.seeds}
