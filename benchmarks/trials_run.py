"""Carry out one trial through the ordinary stages, and write its record; what is there is kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import trials, trials_record
from benchmarks.trials import Table, Trial
from benchmarks.trials_record import File, Metric, Record, Stage
from pipeline import artifact, tasks
from pipeline.artifact import Artifact, digest_of
from pipeline.checkpoint import source as student
from pipeline.checkpoint.source import Source
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.cli.progress import Progress
from pipeline.compress.prune.structure import encoder_macs, stored_shape
from pipeline.convert.stage import Target, targets
from pipeline.data import datasets as data
from pipeline.data import retrieval
from pipeline.devices import host
from pipeline.errors import StudentError
from pipeline.execution.executor import Outcome
from pipeline.execution.local import Local
from pipeline.execution.node import versions
from pipeline.metrics import ranking, scoring
from pipeline.planning import run as running
from pipeline.planning.branches import StageName
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.planning.students import reference_node
from pipeline.recipe.schema import Recipe
from pipeline.student import reference
from pipeline.student.reference import Reference
from pipeline.verify import stage as verify

_TOOLS = ("torch", "transformers", "accelerate", "numpy")


def run(table: Table, trial: Trial, progress: Progress, threads: int | None = None) -> Record:
    """Make a trial's checkpoint, judge it, and write the record.

    Args:
        table: whose trial it is.
        trial: what it is made of is made before, or kept.
        progress: hears of each step.
        threads: of its trainings, where other trials run beside it; None: one a core.

    Raises:
        PipelineError: what could not be carried out; artifacts finished by then stay.
    """
    found = _record(table, trial, _made(table, trial, progress, threads))
    trials_record.write(table, trial, found)
    return found


@dataclass(frozen=True)
class Made:
    """A trial's recipe and what became of it."""

    recipe: Recipe
    folder: Path
    targets: list[Target]
    outcome: Outcome
    collections: list[retrieval.Source]
    """By which it is judged in search."""


def _made(table: Table, trial: Trial, progress: Progress, threads: int | None, *, judged: bool = True) -> Made:
    """Make a trial, after those that it is made of."""
    for parent in table.parents(trial):
        _made(table, parent, progress, threads, judged=False)
    recipe, file = trials.write(table, trial)
    progress.note(trial.name if judged else f"{trial.name}, which others are made of")
    until = _until(recipe, trial, judged=judged)
    graph = build(Request(recipe, file, until, targets(recipe)))
    # Trials run side by side, and their nodes have the same names.
    graph.root = ""
    laid_out = graph.at(recipe.name, "student")
    collections, absent = retrieval.chosen(recipe.verify.retrieval or (), file, "verify.retrieval")
    if judged and trial.row.dataset is not None and laid_out is not None:
        datasets, longest, searched = recipe.verify.datasets, _longest(recipe), (collections, absent)
        graph.include(reference_node(recipe, laid_out, datasets, longest, exempt=True, collections=searched))
    outcome = running.carry_out(graph, table.folder, progress, Local(threads))
    return Made(recipe, table.folder / recipe.name, targets(recipe), outcome, collections)


def _longest(recipe: Recipe) -> int:
    return max(recipe.lengths(backend)[-1] for backend in recipe.targets)


def _until(recipe: Recipe, trial: Trial, *, judged: bool) -> StageName:
    if judged and trial.row.dataset is not None:
        return "verify" if trials.with_files(trial) else "student"
    return "train" if trials.product(recipe) == "trained" else "compress"


def _record(table: Table, trial: Trial, made: Made) -> Record:
    judged = trial.row.dataset is not None
    folder = made.folder / ("student" if judged else trials.product(made.recipe))
    source = student.inspect_folder(folder, origin=folder.name, licence=None)
    judgement = _reference(made) if judged else None
    return Record(
        table=table.name,
        row=trial.row.name,
        seed=trial.seed,
        key=trials.key(table, trial),
        settings=trials.settings(table, trial),
        parameters=_parameters(folder),
        compute_fraction=_compute(source, table),
        metric=_metric(judgement) if judgement else None,
        retrieval=list(_searched(judgement, made.collections)) if judgement and judgement.collections else [],
        stages=list(_stages(made)),
        files=list(_files(made)) if judged and trials.with_files(trial) else [],
        tools=versions(*_TOOLS),
        machine=host.describe().model_id,
    )


def _stages(made: Made) -> Iterator[Stage]:
    for place, node in made.outcome.graph.views.items():
        found = made.outcome.artifact(node)
        if found and len(place.parts) == 2 and place.parts[0] == made.recipe.name:
            yield _stage(node.stage, found)


def _stage(name: str, made: Artifact) -> Stage:
    facts = made.manifest.metrics
    return Stage(
        name=name,
        version=made.manifest.stage_version,
        key=made.manifest.key,
        digest=made.digest,
        metric=facts.get("metric"),
        value=facts.get("dev"),
        updates=facts.get("steps"),
        seconds=facts.get("train_seconds"),
    )


def _parameters(folder: Path) -> int:
    """Return a student's parameters; of a checkpoint that is only made, the numbers that it stores."""
    from safetensors import safe_open

    known = artifact.read_manifest(folder).metrics
    if folder.name == "student":
        return int(known["parameters"])
    with safe_open(folder / WEIGHTS, framework="numpy") as handle:
        return sum(math.prod(handle.get_slice(name).get_shape()) for name in handle.keys())  # noqa: SIM118


def _compute(source: Source, table: Table) -> float | None:
    """Return the encoder's multiply-adds as a fraction of those of the table's own student."""
    whole = student.at(table.student, table.folder / "recipes" / "any.toml")
    try:
        found, full = (encoder_macs(stored_shape(one)) for one in (source, whole))
    except StudentError:
        return None
    return found / full


def _metric(found: Reference) -> Metric:
    (labels,) = found.datasets
    kind, row = tasks.get(found.task).output_kind, scoring.METRICS[labels.metric]
    return Metric(
        dataset=labels.name,
        data_sha256=str(data.DATASETS[labels.name].digest()),
        metric=labels.metric,
        rows=len(labels.gold),
        chance=row.chance(labels),
        value=scoring.score(kind, labels, found.outputs),
        resamples=trials_record.packed(trials_record.resample(kind, labels, found.outputs)),
    )


def _searched(found: Reference, sources: Sequence[retrieval.Source]) -> Iterator[Metric]:
    """Yield the metrics of search by fp32 PyTorch's vectors."""
    each = []
    for one in found.collections:
        queries, documents = ranking.vectors_of(one, found.outputs)
        each.append(ranking.by_query(one, ranking.near(queries, documents, "cosine")))
    for name in trials_record.SEARCHED:
        of_queries = np.concatenate([one[name] for one in each])
        yield Metric(
            dataset=" + ".join(one.name for one in found.collections),
            data_sha256=digest_of([one.digest() for one in sources]),
            metric=name,
            rows=len(of_queries),
            chance=0.0,
            value=float(of_queries.mean()),
            resamples=trials_record.packed(trials_record.resampled_means(of_queries)),
        )


def _reference(made: Made) -> Reference:
    """Return fp32 PyTorch's outputs, which verification keeps."""
    found = made.outcome.at(made.recipe.name, f"reference-{_longest(made.recipe)}")
    assert found is not None, "it was a part of the graph"
    return reference.read(found.path)


def _files(made: Made) -> Iterator[File]:
    for target in made.targets:
        yield _file(made.folder, target)


def _file(folder: Path, target: Target) -> File:
    parity = verify.read_parity(folder / str(target) / "parity")
    return File(
        backend=parity.backend,
        scheme=parity.scheme,
        verdict=parity.verdict,
        reasons=parity.reasons,
        file_bytes=parity.file_bytes,
        digest=artifact.read_manifest(folder / str(target) / "model").digest,
        value=parity.datasets[0].found if parity.datasets else None,
    )
