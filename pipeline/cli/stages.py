"""The verbs that carry out a recipe's stages: all of them, up to one, or one by itself."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import browser, documents, foreign, phones, shipping, studying, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, DeviceName, Dry, RecipeName, Targets
from pipeline.cli.progress import Progress
from pipeline.convert.targets import choose_targets
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError
from pipeline.kinds import PoolingMode
from pipeline.planning.branches import StageName

if TYPE_CHECKING:
    from pipeline.execution.executor import Executor

Until = Annotated[StageName, typer.Option("--until", help="Last stage.")]


def _line(
    recipe: str,
    until: StageName,
    *,
    target: list[str] | None,
    build: Path,
    as_json: bool,
    dry: bool = False,
    mermaid: bool = False,
    device: str = "host",
    cluster: str | None = None,
    thorough: bool = False,
) -> None:
    """Run, or plan, the stages of a recipe up to one of them; print what happened and leave with the exit code."""
    from pipeline.planning import places
    from pipeline.planning import run as running
    from pipeline.planning.request import Request

    parsed, file = places.recipe(recipe, build)
    request = Request(parsed, file, until, choose_targets(parsed, target or []), device, thorough)
    with Progress(quiet=as_json) as progress:
        outcome = running.plan(request, build) if dry else running.run(request, build, progress, _executor(cluster))
    steps, parities = outcome.steps, running.parities(outcome, parsed.name)
    failed = [parity for parity in parities.values() if parity.verdict == "failed"]
    code = EXIT_GATE_FAILED if failed and not dry else EXIT_DONE
    document = documents.run_document(parsed.name, steps, parities)
    text = partial(tables.print_outcome, build / parsed.name, steps, parities)
    if dry:
        document["graph"] = outcome.graph.document()
        text = partial(tables.print_plan, steps, build)
    if mermaid:
        tables.say(outcome.graph.mermaid())
    else:
        documents.show(as_json, document, text, code)
    raise typer.Exit(code)


def _executor(cluster: str | None) -> "Executor | None":
    """Return where nodes run: on a cluster, or None for this machine."""
    if cluster is None:
        return None
    from pipeline.execution.ray import Ray

    return Ray(cluster)


def run(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    until: Until = "report",
    dry_run: Dry = False,
    device: DeviceName = "host",
    cluster: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: auto, or HOST:PORT of its head. BUILD has to be shared.")
    ] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Make, verify and measure all that a recipe asks for, and write the report."""
    _line(recipe, until, target=target, build=build, as_json=as_json, dry=dry_run, device=device, cluster=cluster)


def plan(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    until: Until = "report",
    build: BuildFolder = BUILD,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what `run` would make, why, and how long it may take."""
    if recipe.endswith(".toml") and studying.is_study(Path(recipe)):
        studying.study(Path(recipe), dry=True, build=build, as_json=as_json)
        return
    _line(recipe, until, target=target, build=build, as_json=as_json, dry=True, mermaid=mermaid)


def train(recipe: RecipeName, dry_run: Dry = False, build: BuildFolder = BUILD, as_json: AsJson = False) -> None:
    """Fine-tune the student.

    The recipe's [train] says how; a stopped run continues where it was.
    """
    _line(recipe, "train", target=None, build=build, as_json=as_json, dry=dry_run)


def compress(recipe: RecipeName, dry_run: Dry = False, build: BuildFolder = BUILD, as_json: AsJson = False) -> None:
    """Make the student smaller.

    By the recipe's [train], [head], [start], [vocabulary], [prune], [factorise], [share],
    [adapter], [distil], [static] and [rotate].
    """
    _line(recipe, "compress", target=None, build=build, as_json=as_json, dry=dry_run)


def student(recipe: RecipeName = "minilm", build: BuildFolder = BUILD, as_json: AsJson = False) -> None:
    """Find and check the student, and copy it into the build folder."""
    _line(recipe, "student", target=None, build=build, as_json=as_json)


def convert(
    recipe: RecipeName = "minilm", target: Targets = None, build: BuildFolder = BUILD, as_json: AsJson = False
) -> None:
    """Convert the student for every target."""
    _line(recipe, "convert", target=target, build=build, as_json=as_json)


def verify(
    recipe: Annotated[
        str, typer.Argument(help="Ready recipe, or path to a .toml file; with --against, a model file of any tool.")
    ] = "minilm",
    target: Targets = None,
    against: Annotated[
        str | None,
        typer.Option(help="Judge a file of another tool against this checkpoint: a folder, bundled:NAME or hub:…"),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="With --against: the task, if the checkpoint's class is not it.")
    ] = None,
    pooling: Annotated[
        PoolingMode | None, typer.Option(help="With --against: pooling of an encoder whose folder says none.")
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Try every length, every token id and every text; what `push` asks for.")
    ] = False,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Check that each converted file still is the same model.

    On real text, against PyTorch in fp32; with --against any file of another tool.
    """
    from pipeline.planning import places

    if against is not None:
        if target:
            raise InputError("--target chooses among a recipe's targets, and --against judges one file. Leave it out.")
        foreign.judge(
            str(places.below(Path(recipe), build)), against, task, pooling, thorough=thorough, as_json=as_json
        )
    if task or pooling:
        raise InputError("--task and --pooling belong to --against; a recipe says both itself.")
    from pipeline.foreign.session import SUFFIXES

    if Path(recipe).suffix in SUFFIXES:
        raise InputError(f"{recipe} is a model file. Name the checkpoint that it was made of: --against CHECKPOINT.")
    _line(recipe, "verify", target=target, build=build, as_json=as_json, thorough=thorough)


def benchmark(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    device: DeviceName = "host",
    sign: Annotated[
        Path | None, typer.Option("--sign", help="Sign what is pushed to a phone: a release of the app asks for it.")
    ] = None,
    sustained: Annotated[
        float, typer.Option(help="Minutes for which each file runs without a pause on a phone, after all else.", min=0)
    ] = 0.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="On an Android phone without the app: the runtimes' own runners.")
    ] = False,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Measure speed and memory, here or on a phone.

    Latency, load time and memory; on a phone the demo app measures.
    """
    if phones.is_phone(device):
        if plain:
            phones.plain(recipe, target, device, build, as_json=as_json)
        else:
            phones.benchmark(recipe, target, device, build, sign, minutes=sustained, as_json=as_json)
        return
    if plain or sustained or sign:
        raise InputError(f"--plain, --sustained and --sign are for phones, and {device} is none.")
    _line(recipe, "benchmark", target=target, build=build, as_json=as_json, device=device)


def report(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Instead, serve a page that runs the verified files in a browser.")
    ] = False,
    lan: Annotated[
        bool, typer.Option("--lan", help="With --serve: for a phone in this network too, for an hour.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --serve: the port; 0 for one that is free.", min=0, max=65535)] = 0,
    install: Annotated[
        bool, typer.Option("--install", help="With --serve: download the browser's runtime into BUILD/.browser/ once.")
    ] = False,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Write the report of what was converted, verified and measured."""
    if not serve:
        if lan or port or install:
            raise InputError("--lan, --port and --install belong to --serve.")
        _line(recipe, "report", target=target, build=build, as_json=as_json)
    from pipeline.planning import places

    parsed, file = places.recipe(recipe, build)
    chosen = choose_targets(parsed, target or [])
    outdated = shipping.outdated(parsed, file, chosen, build, stale=False)
    browser.serve(parsed, build, chosen, outdated, lan=lan, port=port, install=install, as_json=as_json)
