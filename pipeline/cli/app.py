"""The verbs of the command `pocketbert`, and its exit codes.

Exit codes: 0 done, 1 a gate failed, 2 usage or recipe, 3 toolchain or device missing, 130 interrupted.
Each verb imports what it needs when it is called, so that `--help`, and a plan that tries nothing, load no toolchain.
"""

import dataclasses
import errno
import io
import os
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.atomic import FULL
from pipeline.cli import (
    arm64,
    browser,
    demo,
    documents,
    foreign,
    gate,
    history,
    mil,
    phones,
    quantisation,
    signatures,
    tables,
)
from pipeline.cli.documents import AsJson
from pipeline.cli.progress import Progress, print_error
from pipeline.cli.texts import shortened
from pipeline.convert.targets import choose_targets
from pipeline.errors import (
    EXIT_DONE,
    EXIT_GATE_FAILED,
    EXIT_TOOLCHAIN,
    EXIT_USAGE,
    InputError,
    PipelineError,
    no_folder,
)
from pipeline.schemes import PoolingMode

if TYPE_CHECKING:
    from pipeline.convert.stage import Target
    from pipeline.execution.executor import Executor
    from pipeline.planning.checkpoints import StageName
    from pipeline.recipe.schema import Recipe

app = typer.Typer(
    name="pocketbert",
    help="Convert small BERT students for phones, and prove that they are still the same model.",
    no_args_is_help=True,
    add_completion=False,
    # Rich's own markup would read a recipe's [section] in a text as a style and leave it out.
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

app.add_typer(mil.app, name="mil")
app.add_typer(signatures.app, name="signing-key")
app.command("verify-signature")(signatures.verify_signature)
app.command("demo")(demo.demo)
app.command("arm64")(arm64.arm64)
app.command("gate")(gate.gate)
app.command("history")(history.history)
app.command("devices")(phones.devices)
app.command("import")(phones.import_record)
app.command("hand-in")(signatures.hand_in)
app.command("ranges")(quantisation.ranges)
app.command("sensitivity")(quantisation.sensitivity)

RecipeName = Annotated[str, typer.Argument(help="Name of a ready recipe, or path to a .toml file.")]
Targets = Annotated[
    list[str] | None, typer.Option("--target", help="Only this format or format:scheme; may be repeated.")
]


def _folder(path: Path) -> Path:
    """Refuse a path that cannot be the build folder before anything is planned."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        # It is made, or refused, when something is written.
        return path
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"--build {shortened(str(path))} cannot be used: {why}. Choose another folder.") from error
    if not path.is_dir():
        raise InputError(f"--build {path} {no_folder(path)}. Choose another folder.")
    return path


BuildFolder = Annotated[Path, typer.Option("--build", callback=_folder, help="Folder for artifacts.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would be made and why; make nothing.")]
Stale = Annotated[
    bool, typer.Option("--stale", help="Take files and verdicts that are of other inputs than the recipe has now.")
]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Sign with this private key; the verdicts have to be of `verify --thorough`."),
]
DeviceName = Annotated[str, typer.Option("--device", help="Name of a device, as `pocketbert list` shows it.")]
_BUILD = Path("build")
_INTERRUPTED = 130
_UNWRITABLE = (*FULL, errno.EIO, errno.EFBIG, errno.EBADF)
"""Errors of an output that takes no more; a closed pipe ends the command in typer, as shells expect."""


def _line(
    recipe: str,
    until: "StageName",
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
    from pipeline.planning import run as running
    from pipeline.planning.build import Request
    from pipeline.recipe.loading import read_recipe

    parsed, file = read_recipe(recipe)
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


def _outdated(recipe: "Recipe", file: Path, targets: "list[Target]", build: Path, *, stale: bool) -> Mapping[str, str]:
    """Return the targets of other inputs than the recipe has now, which do not go out; none if `--stale` takes them."""
    from pipeline.planning import run as running
    from pipeline.planning.build import Request

    return {} if stale else running.outdated(Request(recipe, file, "verify", targets), build)


def _executor(cluster: str | None) -> "Executor | None":
    """Return where nodes run: on a cluster, or None for this machine."""
    if cluster is None:
        return None
    from pipeline.execution.ray import Ray

    return Ray(cluster)


@app.command()
def init(
    checkpoint: Annotated[str, typer.Argument(help="A folder, bundled:NAME, hub:OWNER/NAME@COMMIT, or a cached name.")],
    output: Annotated[Path, typer.Option(help="Recipe file to write.")] = Path("recipe.toml"),
    name: Annotated[str | None, typer.Option(help="Name of the recipe; by default made from the checkpoint's.")] = None,
    task: Annotated[str | None, typer.Option(help="Task; by default read from the checkpoint's model class.")] = None,
    pooling: Annotated[
        PoolingMode | None,
        typer.Option(help="Pooling of an encoder whose folder says none, such as mean or cls."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Ask the Hub for today's commit of OWNER/NAME, and download it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inspect a checkpoint and write a recipe that fits it."""
    from pipeline.planning.draft import draft

    with Progress(quiet=as_json) as progress:
        drafted = draft(
            checkpoint,
            output,
            name=name,
            task=task,
            pooling=pooling,
            force=force,
            online=online,
            tell=progress.note,
        )
    documents.show(as_json, dataclasses.asdict(drafted), partial(tables.print_draft, drafted))


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
    """Show what `run` would make and why, what exists already, and how long it may take."""
    _line(recipe, "report", target=target, build=build, as_json=as_json, dry=True, mermaid=mermaid)


@app.command()
def train(recipe: RecipeName, dry_run: Dry = False, build: BuildFolder = _BUILD, as_json: AsJson = False) -> None:
    """Fine-tune the student as the recipe's [train] says; a stopped run continues where it was."""
    _line(recipe, "train", target=None, build=build, as_json=as_json, dry=dry_run)


@app.command()
def compress(recipe: RecipeName, dry_run: Dry = False, build: BuildFolder = _BUILD, as_json: AsJson = False) -> None:
    """Make the student smaller: [train], [head], [start], [vocabulary], [prune], [factorise], [share], [distil]."""
    _line(recipe, "compress", target=None, build=build, as_json=as_json, dry=dry_run)


@app.command()
def student(recipe: RecipeName = "minilm", build: BuildFolder = _BUILD, as_json: AsJson = False) -> None:
    """Find the student's checkpoint, check it, and copy it into the build folder."""
    _line(recipe, "student", target=None, build=build, as_json=as_json)


@app.command()
def convert(
    recipe: RecipeName = "minilm", target: Targets = None, build: BuildFolder = _BUILD, as_json: AsJson = False
) -> None:
    """Convert the student for every target."""
    _line(recipe, "convert", target=target, build=build, as_json=as_json)


@app.command()
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
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Prove on real text that each converted file, or with --against any file, still is the same model."""
    if against is not None:
        if target:
            raise InputError("--target chooses among a recipe's targets, and --against judges one file. Leave it out.")
        foreign.judge(recipe, against, task, pooling, thorough=thorough, as_json=as_json)
    if task or pooling:
        raise InputError("--task and --pooling belong to --against; a recipe says both itself.")
    from pipeline.foreign.session import SUFFIXES

    if Path(recipe).suffix in SUFFIXES:
        raise InputError(f"{recipe} is a model file. Name the checkpoint that it was made of: --against CHECKPOINT.")
    _line(recipe, "verify", target=target, build=build, as_json=as_json, thorough=thorough)


@app.command()
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
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Measure latency, load time and memory on a device: this machine, or a phone with the demo app."""
    if phones.is_phone(device):
        if plain:
            phones.plain(recipe, target, device, build, as_json=as_json)
        else:
            phones.benchmark(recipe, target, device, build, sign, minutes=sustained, as_json=as_json)
        return
    if plain or sustained or sign:
        raise InputError(f"--plain, --sustained and --sign are for phones, and {device} is none.")
    _line(recipe, "benchmark", target=target, build=build, as_json=as_json, device=device)


@app.command()
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
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Write the report of what was converted, verified and measured."""
    if not serve:
        if lan or port or install:
            raise InputError("--lan, --port and --install belong to --serve.")
        _line(recipe, "report", target=target, build=build, as_json=as_json)
    from pipeline.recipe.loading import read_recipe

    parsed, file = read_recipe(recipe)
    chosen = choose_targets(parsed, target or [])
    outdated = _outdated(parsed, file, chosen, build, stale=False)
    browser.serve(parsed, build, chosen, outdated, lan=lan, port=port, install=install, as_json=as_json)


@app.command()
def ship(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    build: BuildFolder = _BUILD,
    into: Annotated[Path, typer.Option(help="Project with android-demo/ and ios-demo/.")] = Path(),
    allow_not_run: Annotated[bool, typer.Option(help="Ship a target whose file could not be run here.")] = False,
    sign: Sign = None,
    stale: Stale = False,
    as_json: AsJson = False,
) -> None:
    """Copy verified targets into the demo apps."""
    from pipeline.recipe.loading import read_recipe
    from pipeline.ship import apps

    parsed, file = read_recipe(recipe)
    chosen = apps.choose(parsed, choose_targets(parsed, target or []), explicit=bool(target))
    outdated = _outdated(parsed, file, chosen, build, stale=stale)
    shipped = apps.ship(
        parsed, build, chosen, into, allow_not_run=allow_not_run, outdated=outdated, named=recipe, sign=sign
    )
    rows = [one.model_dump(mode="json") | {"places": [str(place) for place in places]} for one, places in shipped]
    document = {"shipped": rows}
    documents.show(as_json, document, partial(tables.print_shipped, shipped))


@app.command()
def push(
    recipe: RecipeName,
    repository: Annotated[str, typer.Argument(help="Repository on the Hugging Face Hub, as owner/name.")],
    target: Targets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only write the bundle and say what would be uploaded.")
    ] = True,
    private: Annotated[bool, typer.Option("--private", help="Refuse to upload to a public repository.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the repository or branch if it is missing.")] = False,
    revision: Annotated[str, typer.Option(help="Branch to upload to.")] = "main",
    build: BuildFolder = _BUILD,
    allow_not_run: Annotated[bool, typer.Option(help="Push a target whose file could not be run here.")] = False,
    sign: Sign = None,
    stale: Stale = False,
    as_json: AsJson = False,
) -> None:
    """Write verified targets and a model card as a bundle; upload it with --no-dry-run."""
    from pipeline.recipe.loading import read_recipe
    from pipeline.ship import bundle as bundles
    from pipeline.ship.push import PushedBundle, check_names, upload

    parsed, file = read_recipe(recipe)
    check_names(repository, revision)
    chosen = choose_targets(parsed, target or [])
    with Progress(quiet=as_json) as progress:
        folder, bundle = bundles.make(
            parsed,
            build / parsed.name,
            chosen,
            repository,
            explicit=bool(target),
            allow_not_run=allow_not_run,
            outdated=_outdated(parsed, file, chosen, build, stale=stale),
            tell=progress.note,
            sign=sign,
        )
    pushed = PushedBundle.of(folder, bundle, repository, revision)
    if not dry_run:
        pushed = upload(pushed, bundle, private=private, create=create)
    documents.show(as_json, pushed.model_dump(mode="json"), partial(tables.print_pushed, pushed))


@app.command()
def predict(
    file: Annotated[Path, typer.Argument(help="A converted file, or its folder.")],
    text: Annotated[list[str], typer.Argument(help="One or more texts.")],
    pair: Annotated[str | None, typer.Option(help="Second text, for tasks that take text pairs.")] = None,
    among: Annotated[
        Path | None, typer.Option(help="Text file, one candidate a line, to search for nearest neighbours.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt of an embedding model, by its name, such as query; '' for none.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels of your own, with commas between: for models of language inference.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Sentence for --labels, with {} where a label is put: 'This example is {}.'")
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="Decide each of --labels by itself, so that several may be true.")
    ] = False,
    head: Annotated[
        str | None, typer.Option(help="Another head of the file, by its name; by default the student's own.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of neighbours to show.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run a converted file on texts: labels, tags, an answer, a number, or nearest neighbours."""
    from pipeline.convert.model import classify_file, predict_file, read_candidates
    from pipeline.convert.private_log import call_in_worker

    if labels is not None:
        if pair is not None or among is not None:
            raise InputError("--labels goes with texts alone; leave --pair and --among out.")
        found = call_in_worker(
            classify_file,
            file,
            text,
            labels.split(","),
            template,
            multi_label=multi_label,
            threads=threads,
            head=head,
        )
        document = documents.zero_shot_document(text, found)
        return documents.show(as_json, document, partial(tables.print_zero_shot, text, found))
    if template is not None or multi_label:
        raise InputError("--template and --multi-label are for labels of your own; give those with --labels.")
    candidates = read_candidates(among) if among else None
    texts = [(one, pair) if pair is not None else one for one in text]
    # In a worker: LiteRT alone writes forty lines to standard error, and a runtime may take its process down.
    predictions, nearest = call_in_worker(
        predict_file, file, texts, candidates, prompt=prompt, top=top, threads=threads, head=head
    )
    document = documents.prediction_document(predictions, nearest)
    documents.show(as_json, document, partial(tables.print_predictions, predictions, nearest))


@app.command()
def compat(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    runtime: Annotated[
        list[str] | None, typer.Option("--runtime", help="Only this runtime; may be repeated. Default: all known ones.")
    ] = None,
    build: BuildFolder = _BUILD,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Download missing runtimes into BUILD/.compat/.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try finished LiteRT files on older runtimes, each in an environment of its own."""
    from pipeline import runtimes
    from pipeline.compat import stage as trying
    from pipeline.execution.executor import Step
    from pipeline.recipe.loading import read_recipe

    parsed, _ = read_recipe(recipe)
    chosen = runtimes.choose(runtime or [])
    with Progress(quiet=as_json) as progress:
        targets = choose_targets(parsed, target or [])
        outcome = trying.run(parsed, build, targets, chosen, install=install, progress=progress)
        made = outcome.artifact
        progress.finished(Step(trying.STAGE, made.path, outcome.made, "", outcome.seconds, 0, made))
    tried = outcome.document
    code = EXIT_GATE_FAILED if tried.below_floor else EXIT_DONE if tried.tried else EXIT_TOOLCHAIN
    documents.show(as_json, tried.model_dump(mode="json"), partial(tables.print_compat, tried), code)
    raise typer.Exit(code)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List architectures, tasks, formats, schemes, datasets, losses, presets, devices and recipes."""
    from pipeline.cli import inventory

    content = inventory.tables()
    documents.show(as_json, content, partial(tables.print_inventory, content))


@app.command()
def keys(
    section: Annotated[str | None, typer.Argument(help="Section, such as prune or distil.augment.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the sections of a recipe, or the keys of one section with what they accept, defaults and meaning."""
    from pipeline.recipe import reference

    sections = [reference.section(section)] if section else list(reference.sections().values())
    document = {"sections": [dataclasses.asdict(one) for one in sections]}
    text = partial(tables.print_keys, sections[0]) if section else partial(tables.print_sections, sections)
    documents.show(as_json, document, text)


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the ready recipes, what each does, and what it needs that is not here."""
    from pipeline.cli.inventory import ready_recipes

    ready = ready_recipes()
    documents.show(
        as_json, {"recipes": [dataclasses.asdict(one) for one in ready]}, partial(tables.print_recipes, ready)
    )


@app.command()
def clean(
    recipe: Annotated[str | None, typer.Argument(help="Only this recipe's folder.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only artifacts that no recipe shows and that were not used for 36h, 30d, 2w …")
    ] = None,
    build: BuildFolder = _BUILD,
    as_json: AsJson = False,
) -> None:
    """Remove recipes' folders and the artifacts that nothing else shows."""
    from pipeline.planning import cleaning

    if older_than is not None and recipe is not None:
        raise InputError("give a recipe or --older-than, not both; age concerns the artifacts that no recipe shows.")
    if older_than is not None:
        removed = cleaning.clean_older(build, older_than)
    else:
        # Beside the result, so that --json prints one document.
        removed = cleaning.clean(build, recipe, tell=partial(typer.echo, err=True))
    folders = [str(path) for path in removed.folders]
    text = f"nothing to remove in {build}"
    if removed.folders or removed.artifacts:
        text = f"removed {', '.join([*folders, f'{len(removed.artifacts)} artifacts of the store'])}"
    kept = [str(path) for path in removed.kept]
    if kept:
        text += f"; kept what pocketbert did not make: {', '.join(kept)}"
    in_use = [str(path) for path in removed.in_use]
    if in_use:
        text += f"; kept what a running process uses: {', '.join(in_use)}"
    document = {"removed": folders, "kept": kept, "in_use": in_use, "artifacts": removed.artifacts}
    documents.show(as_json, document, partial(tables.say, text))


def main() -> NoReturn:
    """Run the command and leave with its exit code."""
    # Libraries warn about each other at import, and the user can do nothing about it.
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A text, or a path, may hold what the terminal's encoding lacks.
            stream.reconfigure(errors="replace")
    try:
        # Not standalone: typer would print usage errors in a box, and end on Ctrl-C without a word.
        code = app(standalone_mode=False) or EXIT_DONE
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        # Otherwise the interpreter finds out at its very end that the last words could not be written.
        sys.stdout.flush()
    except typer.TyperException as error:
        code = EXIT_USAGE
        # Without arguments the help was printed already, and no message is left.
        if error.format_message():
            _report_error("UsageError", _usage(error), code)
    except PipelineError as error:
        code = error.exit_code
        _report_error(type(error).__name__, str(error), code)
    except OSError as error:
        # One of a file has its name.
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        code = EXIT_USAGE
        # Nor could an error's document be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print_error(f"standard output cannot be written: {error.strerror}. What was made is kept.")
    except KeyboardInterrupt:
        code = _INTERRUPTED
        message = "interrupted; finished artifacts are kept, and the next run continues from there"
        _report_error("Interrupted", message, code)
    sys.exit(code)


def _report_error(kind: str, message: str, code: int) -> None:
    """Print an error as one line, or as a JSON document if the arguments ask for one."""
    if "--json" in sys.argv:
        documents.print_document(documents.error_document(kind, message), code)
    else:
        print_error(message)


def _usage(error: typer.TyperException) -> str:
    """Return the error in the arguments, and the help command that explains them."""
    context = getattr(error, "ctx", None)
    help_for = context.command_path if context else "pocketbert"
    return f"{error.format_message().rstrip('.')}. See `{help_for} --help`."
