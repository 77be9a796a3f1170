"""`pocketbert gate`: a recipe's files held to a stored report, for a user's CI."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, RecipeName
from pipeline.cli.progress import Progress
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED
from pipeline.report import wording

if TYPE_CHECKING:
    from pipeline.artifact import Artifact
    from pipeline.benchmark.in_turns import InTurns
    from pipeline.execution.executor import Outcome
    from pipeline.recipe.schema import Recipe
    from pipeline.report.gate import Gate, Row, Unit, Untimed, Verdict
    from pipeline.report.record import Report, TargetReport

_STYLES: "Mapping[Verdict, str]" = {
    "worse": "[red]WORSE[/red]",
    "missing": "[red]MISSING[/red]",
    "same": "[green]same[/green]",
    "better": "[green]better[/green]",
    "not_judged": "[dim]not judged[/dim]",
    "new": "[yellow]new[/yellow]",
}
_PLAIN = {"metric": 4, "cosine": 5, "dB": 1}
"""Units whose change is shown as a difference, with its decimals; the change in other units is a growth."""


def gate(
    recipe: RecipeName,
    baseline: Annotated[Path, typer.Option("--baseline", help="A stored report.json of the recipe, or its folder.")],
    baseline_models: Annotated[
        Path | None,
        typer.Option("--baseline-models", help="Folder with TARGET/model of that report: judge latency, too."),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Let through what the baseline has and cannot be compared now.")
    ] = False,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Fail if something got worse than in a stored report.

    What is missing is made first. [regression] of the recipe says how much worse is allowed.
    """
    from pipeline.convert.targets import choose_targets
    from pipeline.planning import places
    from pipeline.planning import run as running
    from pipeline.planning.request import Request
    from pipeline.report import baseline as stored
    from pipeline.report.gate import compare

    parsed, file = places.recipe(recipe, build)
    baseline = places.report(baseline, build)
    # Before anything is made: whoever named another report is to know now.
    before = stored.read(baseline)
    stored.check_recipe(before, baseline, parsed)
    models = stored.open_models(baseline_models, before, baseline) if baseline_models else None
    with Progress(quiet=as_json) as progress:
        outcome = running.run(Request(parsed, file, "report", choose_targets(parsed, [])), build, progress)
        made = outcome.at(parsed.name, "report")
        assert made is not None, "the line ends with it"
        now = stored.read(made.path / "report.json")
        stored.check_student(before, baseline, now.student)
        log = build / parsed.name / "logs" / "gate.log"
        timings = None if models is None else _time(parsed, before, now, models, outcome, log, progress)
    found = compare(before, now, parsed.regression, timings=timings, allow_missing=allow_missing)
    code = EXIT_DONE if found.passed else EXIT_GATE_FAILED
    document = {"baseline": str(baseline), **found.model_dump(mode="json")}
    documents.show(as_json, document, partial(_print, found, baseline), code)
    raise typer.Exit(code)


def _time(
    recipe: "Recipe",
    before: "Report",
    now: "Report",
    models: "Mapping[str, Artifact]",
    outcome: "Outcome",
    log: Path,
    progress: Progress,
) -> "dict[str, list[InTurns] | Untimed]":
    """Time the files that are others than the baseline's, in turns with them."""
    from pipeline.benchmark.in_turns import time_pair

    theirs = {target.name: target for target in before.targets}
    found: dict[str, list[InTurns] | Untimed] = {}
    for target in now.targets:
        if target.name not in theirs or theirs[target.name].digest == target.digest:
            continue
        untimed = _untimed(target, models)
        if untimed:
            found[target.name] = untimed
            continue
        model = outcome.at(recipe.name, f"{target.name}/model")
        assert model is not None, "its report is there"
        label = f"timing {target.name} in turns with the baseline's"
        progress.started(label)
        tell = partial(progress.advanced, label)
        found[target.name] = time_pair(models[target.name], model, recipe.benchmark, log=log, tell=tell)
    return found


def _untimed(target: "TargetReport", models: "Mapping[str, Artifact]") -> "Untimed | None":
    """Return the reason why a target's files are not timed, or None."""
    from pipeline import formats
    from pipeline.report.gate import Untimed

    if target.parity.verdict == "failed":
        return Untimed("the file failed, so its times mean nothing", missing=False)
    if reason := formats.get(target.parity.backend).no_runtime():
        return Untimed(reason, missing=False)
    if target.name not in models:
        return Untimed(f"the folder of --baseline-models has no {target.name}/model", missing=True)
    return None


def _print(found: "Gate", baseline: Path) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("target", "figure"):
        table.add_column(title)
    for title in ("baseline", "now", "change", "allowed"):
        table.add_column(title, justify="right")
    table.add_column("")
    for number, row in enumerate(found.rows):
        again = number and found.rows[number - 1].target == row.target
        figures = (_figure(row.baseline, row.unit), _figure(row.now, row.unit), _change(row), _allowed(row))
        table.add_row("" if again else escape(row.target), escape(row.quantity), *figures, _STYLES[row.verdict])
    tables.show(table)
    for line in _reasons(found.rows):
        tables.say(line)
    for note in found.notes:
        tables.say(f"note: {note}")
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.counts.items() if count)
    tables.say(f"{found.recipe} against {baseline}: {counts}.")
    if found.counts["missing"]:
        fate = "and --allow-missing lets it through" if found.allow_missing else "so the gate is closed"
        tables.say(f"what is missing was not compared, {fate}.")


def _reasons(rows: "Sequence[Row]") -> Iterator[str]:
    """Yield each reason once, with the figures that it is of."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.reason:
            found.setdefault((row.target, row.verdict.replace("_", " "), row.reason), []).append(row.quantity)
    for (target, verdict, reason), quantities in found.items():
        more = f" and {len(quantities) - 1} more" if len(quantities) > 1 else ""
        yield f"{target}, {quantities[0]}{more}: {verdict}: {reason.rstrip('.')}."


def _figure(value: float | str | None, unit: "Unit") -> str:
    if value is None or isinstance(value, str):
        return wording.verdict(value) if value else wording.GAP
    words = {
        "metric": wording.fixed(value, 4),
        "cosine": wording.score(value, "cosine"),
        "dB": wording.score(value, "sqnr_db"),
        "bytes": f"{wording.mb(value)} MB",
        "instructions": f"{wording.in_millions(value)} M",
        "ms": f"{wording.ms(value)} ms",
    }
    return words[unit] or wording.GAP


def _change(row: "Row") -> str:
    if row.change is None:
        return ""
    if row.unit in _PLAIN:
        # Adding zero takes the sign off a minus zero.
        return f"{round(row.change, _PLAIN[row.unit]) + 0.0:+.{_PLAIN[row.unit]}f}"
    if row.interval is None:
        return _percent(row.change)
    low, high = row.interval
    return f"{_percent(row.change)} ({_percent(low)} to {_percent(high)})"


def _allowed(row: "Row") -> str:
    if row.allowed is None:
        return ""
    return f"-{row.allowed:g}" if row.unit in _PLAIN else f"+{row.allowed * 100:g} %"


def _percent(change: float) -> str:
    return f"{round(change * 100, 1) + 0.0:+.1f} %"
