"""`pocketbert study`: search for the best student under a budget, or say what the search would take."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, Dry
from pipeline.cli.progress import Progress
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError, RecipeError

if TYPE_CHECKING:
    from pipeline.execution.executor import Executor
    from pipeline.fronts.recommending import Recommendation
    from pipeline.fronts.record import Record, TrialRecord
    from pipeline.study.estimate import Plan


_STEPS = {
    "baseline": "the recipe as it is",
    "compressed": "compressed students",
    "trained": "trained ones",
    "files": "files",
    "beside": "recipes beside",
}
"""The steps of a plan."""


def study(
    spec: Annotated[Path, typer.Argument(help="TOML file of the study: a recipe, keys to vary, objectives, a budget.")],
    dry: Dry = False,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Trials at a time; one per core of the machine or cluster unless given.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Run nodes on a Ray cluster: auto, or HOST:PORT of its head.")
    ] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Search for the best student under a budget.

    Interrupted or killed, the next run goes on. It ends with an answer: the best student that fits, or the nearest one
    and what each bound costs.
    """
    from pipeline.execution.local import slots
    from pipeline.fronts import spec as specs
    from pipeline.study import estimate, run
    from pipeline.study.bench import Request

    read = specs.read(spec)
    parallel = parallel or (slots() if cluster is None else _cores(cluster))
    request = Request(read, spec, build, parallel, partial(_executor, cluster))
    if dry:
        found = estimate.plan(request)
        documents.show(as_json, documents.study_plan_document(found), partial(_print_plan, found))
        return
    with Progress(quiet=as_json) as progress:
        record = run.run(request, progress)
    documents.show(as_json, documents.study_document(record), partial(_print_record, record, request.folder))


def is_study(path: Path) -> bool:
    """Return whether a file is a study rather than a recipe; one that cannot be read is left to who reads it."""
    from pipeline.recipe import loading

    try:
        return "space" in loading.read_values(path)
    except RecipeError:
        return False


def recommend(
    task: Annotated[str, typer.Option(help="Task of the student.")] = "embedding",
    size_mb: Annotated[float | None, typer.Option(min=0, help="Largest file, in MB.")] = None,
    latency_ms: Annotated[float | None, typer.Option(min=0, help="Longest time of a full row, in ms.")] = None,
    macs_m: Annotated[float | None, typer.Option(min=0, help="Most multiply-adds of the encoder, in millions.")] = None,
    metric: Annotated[float | None, typer.Option(min=0, max=1, help="Least metric of the task.")] = None,
    given: Annotated[
        list[Path] | None, typer.Option("--study", help="Folder or record of a study; all that are known unless given.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the recipe to this file.")] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Recommend a recipe for a budget from what studies have found.

    It comes with its evidence. Nothing is tried anew.
    """
    from pipeline import atomic
    from pipeline.devices import host
    from pipeline.fronts import recipes, recommending
    from pipeline.fronts import record as records
    from pipeline.fronts.spec import LARGER_IS_BETTER

    asked = {"size_mb": size_mb, "latency_ms": latency_ms, "macs_m": macs_m, "metric": metric}
    if odd := next((name for name, value in asked.items() if value is not None and not math.isfinite(value)), None):
        raise InputError(f"--{odd.replace('_', '-')} {asked[odd]}: a bound is a finite number.")
    bounds: dict[str, tuple[float, bool]] = {
        name: (value, LARGER_IS_BETTER[name]) for name in LARGER_IS_BETTER if (value := asked.get(name)) is not None
    }
    every = records.known(build, given or (), Progress(quiet=False).note)
    found = recommending.recommend([one for one, _ in every], task, bounds, host.describe().model_id)
    folder = next(file.parent for one, file in every if one is found.record)
    place = (output.parent if output else Path()).resolve()
    text = recipes.stored(found.record, found.trial, folder, place)
    if output is not None:
        with atomic.writing(output.parent):
            atomic.write_text(output, text)
    code = EXIT_DONE if found.fits else EXIT_GATE_FAILED
    document = documents.recommendation_document(found, text)
    documents.show(as_json, document, partial(_print_recommendation, found, text, output), code)
    raise typer.Exit(code)


def _print_recommendation(found: "Recommendation", text: str, output: Path | None) -> None:
    record, trial = found.record, found.trial
    tables.say(
        f"{'fits' if found.fits else 'nearest; nothing known fits'}: {_line(trial)} of study {record.study.name}"
    )
    for name, (value, bound) in found.beyond.items():
        tables.say(f"  {name} {value:.4g}, {bound:.4g} was asked")
    for name in found.unmeasured:
        tables.say(f"  {name} was not measured in that study, so that nobody knows whether the bound is kept")
    for one in found.ready:
        assert one.reported
        told = f"{one.reported.metric} {one.reported.value:.4f} on {one.reported.dataset}"
        if trial.reported and trial.reported.dataset == one.reported.dataset:
            told += f", where the trial has {trial.reported.value:.4f}"
        tables.say(f"  recipe {one.choice['recipe']}, beside that study, keeps the bounds on costs: {told}")
    if found.others:
        tables.say(f"  judged by other data, so that their metrics do not compare with its: {', '.join(found.others)}")
    if found.elsewhere:
        tables.say(f"  latencies were measured on {record.machine}, so that latency_ms was not judged")
    tables.say(str(output) if output is not None else text.rstrip())


def _executor(cluster: str | None) -> "Executor | None":
    if cluster is None:
        return None
    from pipeline.execution.ray import Ray

    return Ray(cluster)


def _cores(cluster: str) -> int:
    from pipeline.execution.ray import Ray

    joined = Ray(cluster)
    try:
        return max(1, joined.cores)
    finally:
        joined.close()


def _print_plan(found: "Plan") -> None:
    choices = "no end of choices" if found.choices is None else f"{found.choices:,} choices"
    tables.say(f"{found.trials} trials of {choices}")
    parts = ", ".join(f"{hours:.1f} for {_STEPS[step]}" for step, hours in found.hours_by_step.items() if hours)
    tables.say(
        f"about {found.hours:.1f} hours: {parts}; by {found.sampled} students drawn at random, of whose {found.asked} "
        f"artifacts {found.shared} are shared or there"
    )


def _print_record(record: "Record", folder: Path) -> None:
    answer = record.answer
    trials = {one.number: one for one in record.trials}
    best = trials.get(answer.trial) if answer.trial is not None else None
    if best is not None:
        tables.say(f"{'best within the budget' if answer.fits else 'nearest to the budget'}: {_line(best)}")
    for name, (found, bound) in answer.beyond.items():
        tables.say(f"  {name} {found:.4g}, {bound:.4g} was asked")
    for sentence in answer.sentences:
        tables.say(f"  {sentence}")
    shared = record.asked - record.made
    tables.say(
        f"{len(record.trials)} trials in {record.hours:.2f} h; of {record.asked} artifacts {shared} were shared"
        f"{'' if record.finished else '; the time was spent before the end'}"
    )
    tables.say(f"{folder}: front.html, FRONT.md{', best.toml' if best else ''}")


def _line(one: "TrialRecord") -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in one.measures.items())
    from pipeline.fronts.spec import label

    said = ", ".join(f"{key} = {label(value)}" for key, value in one.choice.items())
    return f"trial {one.number}: {values} ({said})"
