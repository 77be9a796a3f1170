"""The command `pocketbert`: verbs, exit codes, and the only place that prints and catches `PipelineError`.

Exit codes: 0 done, 1 a gate failed, 2 usage or recipe, 3 toolchain or device missing, 130 interrupted.
"""

import dataclasses
import io
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.cli import console
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, EXIT_TOOLCHAIN, EXIT_USAGE, InputError, PipelineError

app = typer.Typer(
    name="pocketbert",
    help="Small BERT students, converted for phones and proven to be the same model.",
    no_args_is_help=True,
    add_completion=False,
    # Rich's own markup would take a recipe's [section] in a text for a style, and leave it out.
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

mil_app = typer.Typer(
    help="Look into and run Core ML packages, without Core ML.", no_args_is_help=True, rich_markup_mode="markdown"
)
app.add_typer(mil_app, name="mil")

if TYPE_CHECKING:
    from pipeline.graph.checkpoints import Until
    from pipeline.graph.executor import Executor

RecipeName = Annotated[str, typer.Argument(help="Name of a ready recipe, or path to a .toml.")]
Targets = Annotated[list[str] | None, typer.Option("--target", help="Only backend[:scheme]; may be repeated.")]
BuildFolder = Annotated[Path, typer.Option("--build", help="Folder for artifacts.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be made, and why; make nothing.")]
DeviceName = Annotated[str, typer.Option("--device", help="A row of pipeline/devices/devices.toml.")]
_BUILD = Path("build")
_INTERRUPTED = 130


def _line(
    recipe: str,
    until: "Until",
    *,
    target: list[str] | None,
    build: Path,
    as_json: bool,
    dry: bool = False,
    mermaid: bool = False,
    device: str = "host",
    cluster: str | None = None,
) -> None:
    """Walk the line up to a stage, print what happened, and leave with the right exit code."""
    from pipeline.convert.targets import choose_targets
    from pipeline.graph import run as running
    from pipeline.graph.build import Request
    from pipeline.recipe import loading

    parsed, file = loading.read(recipe)
    request = Request(parsed, file, until, choose_targets(parsed, target or []), device)
    with console.Progress(quiet=as_json) as progress:
        outcome = running.plan(request, build) if dry else running.run(request, build, progress, _executor(cluster))
    steps, parities = outcome.steps, running.parities(outcome, parsed.name)
    failed = [parity for parity in parities.values() if parity.verdict == "failed"]
    code = EXIT_GATE_FAILED if failed and not dry else EXIT_DONE
    if mermaid:
        console.say(outcome.graph.mermaid())
    elif as_json:
        nodes = {"graph": outcome.graph.document()} if dry else {}
        console.print_json(console.document(parsed.name, steps, parities, code) | nodes)
    elif dry:
        console.print_plan(steps, build)
    else:
        console.print_outcome(build / parsed.name, steps, parities)
    raise typer.Exit(code)


def _executor(cluster: str | None) -> "Executor | None":
    """Return where nodes run: on a cluster, or None for this machine."""
    if cluster is None:
        return None
    from pipeline.graph.ray import Ray

    return Ray(cluster)


@app.command()
def init(
    checkpoint: Annotated[str, typer.Argument(help="A folder, bundled:NAME, hub:OWNER/NAME@COMMIT, or a cached name.")],
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("recipe.toml"),
    name: Annotated[str | None, typer.Option(help="Of the recipe; else made from the checkpoint's.")] = None,
    task: Annotated[str | None, typer.Option(help="Else read off the checkpoint's class.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a checkpoint and write a recipe that fits it."""
    from pipeline.recipe import init as drafting

    with console.Progress(quiet=as_json) as progress:
        draft = drafting.draft(checkpoint, output, name=name, task=task, force=force, tell=progress.note)
    if as_json:
        console.print_json(draft.document() | {"exit": EXIT_DONE})
    else:
        console.print_draft(draft)


@app.command()
def run(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    dry_run: Dry = False,
    device: DeviceName = "host",
    cluster: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: auto, or HOST:PORT of its head. BUILD has to be shared.")
    ] = None,
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Take a student through every stage to a report."""
    _line(recipe, "report", target=target, build=build, as_json=as_json, dry=dry_run, device=device, cluster=cluster)


@app.command()
def plan(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    build: BuildFolder = _BUILD,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph as a Mermaid flowchart instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what `run` would make, what is there already, why, and how long it may take."""
    _line(recipe, "report", target=target, build=build, as_json=as_json, dry=True, mermaid=mermaid)


@app.command()
def train(recipe: RecipeName, dry_run: Dry = False, build: BuildFolder = _BUILD, as_json: AsJson = False) -> None:
    """Fine-tune the student by the recipe's [train]; go on where a stopped run was."""
    _line(recipe, "train", target=None, build=build, as_json=as_json, dry=dry_run)


@app.command()
def compress(recipe: RecipeName, dry_run: Dry = False, build: BuildFolder = _BUILD, as_json: AsJson = False) -> None:
    """Make the student smaller: [train], [head], [start], [vocabulary], [prune], [factorise], [share], [distil]."""
    _line(recipe, "compress", target=None, build=build, as_json=as_json, dry=dry_run)


@app.command()
def student(recipe: RecipeName = "minilm", build: BuildFolder = _BUILD, as_json: AsJson = False) -> None:
    """Find and check the student, and lay it out."""
    _line(recipe, "student", target=None, build=build, as_json=as_json)


@app.command()
def convert(
    recipe: RecipeName = "minilm", target: Targets = None, build: BuildFolder = _BUILD, as_json: AsJson = False
) -> None:
    """Convert the student for every target."""
    _line(recipe, "convert", target=target, build=build, as_json=as_json)


@app.command()
def verify(
    recipe: RecipeName = "minilm", target: Targets = None, build: BuildFolder = _BUILD, as_json: AsJson = False
) -> None:
    """Prove on real text that each file still is the same model."""
    _line(recipe, "verify", target=target, build=build, as_json=as_json)


@app.command()
def benchmark(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    device: DeviceName = "host",
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Measure latency, load time and memory."""
    _line(recipe, "benchmark", target=target, build=build, as_json=as_json, device=device)


@app.command()
def report(
    recipe: RecipeName = "minilm", target: Targets = None, build: BuildFolder = _BUILD, as_json: AsJson = False
) -> None:
    """Write the report."""
    _line(recipe, "report", target=target, build=build, as_json=as_json)


@app.command()
def ship(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    build: BuildFolder = _BUILD,
    into: Annotated[Path, typer.Option(help="Project with android-demo/ and ios-demo/.")] = Path(),
    allow_not_run: Annotated[bool, typer.Option(help="Ship a target whose file could not be run here.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy verified targets into the demo apps."""
    from pipeline.convert.targets import choose_targets
    from pipeline.recipe import loading as recipes
    from pipeline.ship import apps as shipping

    parsed, _ = recipes.read(recipe)
    chosen = shipping.choose(parsed, choose_targets(parsed, target or []), explicit=bool(target))
    shipped = shipping.ship(build / parsed.name, chosen, into, allow_not_run=allow_not_run)
    if as_json:
        console.print_json({"shipped": [item.model_dump(mode="json") for item in shipped], "exit": EXIT_DONE})
    else:
        console.print_shipped(shipped)


@app.command()
def push(
    recipe: RecipeName,
    repository: Annotated[str, typer.Argument(help="Where to: owner/name on the Hugging Face Hub.")],
    target: Targets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only write the bundle and say what would be uploaded.")
    ] = True,
    private: Annotated[bool, typer.Option("--private", help="Not into a public repository.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the repository or branch where it is absent.")] = False,
    revision: Annotated[str, typer.Option(help="Branch.")] = "main",
    build: BuildFolder = _BUILD,
    allow_not_run: Annotated[bool, typer.Option(help="Push a target whose file could not be run here.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write verified targets and a model card as a bundle, and upload it if told to."""
    from pipeline.convert.targets import choose_targets
    from pipeline.recipe import loading as recipes
    from pipeline.ship import bundle as bundling
    from pipeline.ship import push as pushing

    parsed, _ = recipes.read(recipe)
    pushing.check_names(repository, revision)
    with console.Progress(quiet=as_json) as progress:
        folder, bundle = bundling.make(
            parsed,
            build / parsed.name,
            choose_targets(parsed, target or []),
            repository,
            explicit=bool(target),
            allow_not_run=allow_not_run,
            tell=progress.note,
        )
    pushed = pushing.Pushed.of(folder, bundle, repository, revision)
    if not dry_run:
        pushed = pushing.upload(pushed, bundle, private=private, create=create)
    if as_json:
        console.print_json(pushed.model_dump(mode="json") | {"exit": EXIT_DONE})
    else:
        console.print_pushed(pushed)


@app.command()
def predict(
    file: Annotated[Path, typer.Argument(help="A converted file, or its folder.")],
    text: Annotated[list[str], typer.Argument(help="One or more texts.")],
    pair: Annotated[str | None, typer.Option(help="Second text, for pair tasks.")] = None,
    among: Annotated[
        Path | None, typer.Option(help="Text file, one candidate a line, in which to look for neighbours.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many neighbours.")] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Run a converted file on texts: labels, tags, an answer, a number, or nearest neighbours."""
    from pipeline.convert import neighbours
    from pipeline.graph.worker import Worker

    candidates = neighbours.candidates(among) if among else None
    texts = [(one, pair) if pair is not None else one for one in text]
    log = Path(tempfile.gettempdir()) / f"pocketbert-predict-{os.getpid()}.log"
    # In a worker: LiteRT alone writes forty lines to standard error, and a runtime may go down with its process.
    try:
        with Worker(log) as worker:
            predictions, near = worker.call(neighbours.answer, file, texts, candidates, top=top, threads=threads)
    except PipelineError as error:
        if str(log) not in str(error):
            log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)
    if as_json:
        console.print_json(console.prediction_document(predictions, near))
    else:
        console.print_predictions(predictions, near)


@app.command()
def compat(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    runtime: Annotated[
        list[str] | None, typer.Option("--runtime", help="Only this runtime; may be repeated. Else all known ones.")
    ] = None,
    build: BuildFolder = _BUILD,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Download runtimes that are missing, into BUILD/.compat/.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try finished LiteRT files on older runtimes, each in an environment of its own."""
    from pipeline import runtimes
    from pipeline.compat import check
    from pipeline.convert.targets import choose_targets
    from pipeline.recipe import loading as recipes

    parsed, _ = recipes.read(recipe)
    chosen = runtimes.choose(runtime or [])
    with console.Progress(quiet=as_json) as progress:
        targets = choose_targets(parsed, target or [])
        found = check.run(parsed, build, targets, chosen, install=install, progress=progress)
    code = EXIT_GATE_FAILED if found.below_floor else EXIT_DONE if found.tried else EXIT_TOOLCHAIN
    if as_json:
        console.print_json(found.model_dump(mode="json") | {"exit": code})
    else:
        console.print_compat(found)
    raise typer.Exit(code)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List architectures, tasks, backends, schemes, data sets, losses, devices and recipes."""
    from pipeline.cli import inventory

    found = inventory.take()
    if as_json:
        console.print_json(found)
    else:
        console.print_inventory(found)


@app.command("keys")
def keys_(
    section: Annotated[str | None, typer.Argument(help="Section, such as prune or distil.augment.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a recipe can say: its sections, or the keys of one with values, defaults and meaning."""
    from pipeline.recipe import reference as keys

    found = [keys.section(section)] if section else list(keys.sections().values())
    if as_json:
        console.print_json({"sections": [dataclasses.asdict(one) for one in found], "exit": EXIT_DONE})
    else:
        console.print_keys(found, whole=section is not None)


@app.command("recipes")
def recipes_(as_json: AsJson = False) -> None:
    """List the ready recipes, what each does, and what it needs that is not here."""
    from pipeline.cli import inventory

    rows = inventory.ready()
    if as_json:
        console.print_json({"recipes": [dataclasses.asdict(row) for row in rows], "exit": EXIT_DONE})
    else:
        console.print_recipes(rows)


@app.command()
def clean(
    recipe: Annotated[str | None, typer.Argument(help="Only this recipe's folder.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only artifacts that no recipe shows and nobody used for so long: 36h, 30d, 2w.")
    ] = None,
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Remove recipes' folders and the artifacts that nothing else shows."""
    from pipeline.graph import cleaning

    if older_than is not None and recipe is not None:
        raise InputError("give a recipe or --older-than; age concerns what no recipe shows.")
    removed = cleaning.clean_older(build, older_than) if older_than is not None else cleaning.clean(build, recipe)
    if as_json:
        folders = [str(path) for path in removed.folders]
        console.print_json({"removed": folders, "artifacts": removed.artifacts, "exit": EXIT_DONE})
    elif removed.folders or removed.artifacts:
        count = f"{len(removed.artifacts)} artifacts of the store"
        console.say(f"removed {', '.join([*map(str, removed.folders), count])}")
    else:
        console.say(f"nothing to remove in {build}")


PackagePath = Annotated[Path, typer.Argument(help="A .mlpackage, or a model folder that holds one.")]


@mil_app.command("run")
def mil_run(
    package: PackagePath,
    inputs: Annotated[Path, typer.Option(help="A .npz with an array per input.")],
    function: Annotated[str | None, typer.Option(help="A function of the package; else its default one.")] = None,
    precision: Annotated[str, typer.Option(help="fp16 rounds what is declared half; fp32 does not.")] = "fp16",
    outputs: Annotated[Path | None, typer.Option(help="Write the outputs to this .npz.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a package in the reference interpreter and sum its outputs up."""
    from pipeline.mil import Interpreter, trial

    chosen = trial.precision(precision)
    interpreter = Interpreter(trial.find(package), function, precision=chosen)
    found = trial.run(interpreter, trial.read_inputs(inputs), precision=chosen)
    if outputs:
        trial.write_outputs(found, outputs)
    if as_json:
        console.print_json(console.trial_document(found))
    else:
        console.print_trial(found)


@mil_app.command("ops")
def mil_ops(package: PackagePath, as_json: AsJson = False) -> None:
    """List a package's operations and weights."""
    from pipeline import mil
    from pipeline.mil import listing, trial

    found = listing.take(mil.read(trial.find(package)))
    if as_json:
        console.print_json(console.listing_document(found))
    else:
        console.print_listing(found)


def main() -> NoReturn:
    """Run the command and leave with its exit code."""
    # Libraries warn about each other at import; the user can do nothing about it.
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A text, or a path, may hold what the terminal's encoding lacks.
            stream.reconfigure(errors="replace")
    as_json = "--json" in sys.argv
    try:
        # Not standalone: typer would print usage errors in a box, and end on Ctrl-C without a word.
        code = app(standalone_mode=False) or EXIT_DONE
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
    except typer.TyperException as error:
        code = EXIT_USAGE
        # Without arguments the help was printed already, and no message is left.
        if error.format_message():
            console.print_error("UsageError", _usage(error), code, as_json=as_json)
    except PipelineError as error:
        code = error.exit_code
        console.print_error(type(error).__name__, str(error), code, as_json=as_json)
    except KeyboardInterrupt:
        code = _INTERRUPTED
        message = "interrupted; finished artifacts are kept, the next run goes on from there"
        console.print_error("Interrupted", message, code, as_json=as_json)
    sys.exit(code)


def _usage(error: typer.TyperException) -> str:
    """Return what is wrong with the arguments, and where they are explained."""
    context = getattr(error, "ctx", None)
    help_for = context.command_path if context else "pocketbert"
    return f"{error.format_message().rstrip('.')}. See `{help_for} --help`."
