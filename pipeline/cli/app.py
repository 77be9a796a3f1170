"""The verbs of the command `pocketbert`, and its exit codes.

Exit codes: 0 done, 1 a gate failed, 2 usage or recipe, 3 toolchain or device missing, 4 usable
with loss (`compatible`), 130 interrupted, 143 terminated.
Each verb imports what it needs when it is called, so that `--help`, and a plan that tries nothing, load no toolchain.
"""

import dataclasses
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.atomic import FULL
from pipeline.cli import (
    arm64,
    browser,
    compatible,
    demo,
    documents,
    foreign,
    gate,
    history,
    mil,
    phones,
    predicting,
    quantisation,
    searching,
    shipping,
    signatures,
    studying,
    tables,
)
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, DeviceName, Dry, RecipeName, Targets
from pipeline.cli.progress import Progress, print_error
from pipeline.convert.targets import choose_targets
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, EXIT_USAGE, InputError, PipelineError
from pipeline.kinds import PoolingMode
from pipeline.planning.checkpoints import StageName

if TYPE_CHECKING:
    from pipeline.execution.executor import Executor

app = typer.Typer(
    name="pocketbert",
    help="Convert small BERT students for phones, and prove that they are still the same model.",
    no_args_is_help=True,
    add_completion=False,
    # Rich's own markup would read a recipe's [section] in a text as a style and leave it out.
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Until = Annotated[StageName, typer.Option("--until", help="Last stage.")]
_INTERRUPTED, _TERMINATED = 130, 143
_UNWRITABLE = (*FULL, errno.EIO, errno.EFBIG, errno.EBADF)
"""Errors of an output that takes no more; a closed pipe ends the command in typer, as shells expect."""


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


def init(
    checkpoint: Annotated[str, typer.Argument(help="A folder, bundled:NAME, hub:OWNER/NAME, or a cached name.")],
    output: Annotated[Path, typer.Option(help="Recipe file to write.")] = Path("recipe.toml"),
    name: Annotated[str | None, typer.Option(help="Name of the recipe; by default made from the checkpoint's.")] = None,
    task: Annotated[str | None, typer.Option(help="Task; by default read from the checkpoint's model class.")] = None,
    pooling: Annotated[
        PoolingMode | None,
        typer.Option(help="Pooling of an encoder whose folder says none, such as mean or cls."),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="Labelled .csv, .tsv, .jsonl or .parquet, or a folder of train and dev files, to fine-tune on."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column of --train with the text.")] = None,
    pair: Annotated[str | None, typer.Option(help="Column of --train with the second text of a pair.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of --train with the label.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inspect a checkpoint and write a recipe that fits it."""
    from pipeline.planning.draft import draft

    given = {"text": text, "pair": pair, "label": label}
    with Progress(quiet=as_json) as progress:
        drafted = draft(
            checkpoint,
            output,
            name=name,
            task=task,
            pooling=pooling,
            train=train,
            columns={key: name for key, name in given.items() if name is not None},
            force=force,
            tell=progress.note,
        )
    documents.show(as_json, dataclasses.asdict(drafted), partial(tables.print_draft, drafted))


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


def list_(as_json: AsJson = False) -> None:
    """List architectures, tasks, formats, schemes, datasets and more.

    Losses, presets, devices and recipes, too.
    """
    from pipeline.cli import inventory

    content = inventory.tables()
    documents.show(as_json, content, partial(tables.print_inventory, content))


def keys(
    section: Annotated[str | None, typer.Argument(help="Section, such as prune or distil.augment.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the sections of a recipe, or the keys of one.

    Each key with what it accepts, its default and its meaning.
    """
    from pipeline.recipe import reference

    sections = [reference.section(section)] if section else list(reference.sections().values())
    document = {"sections": [dataclasses.asdict(one) for one in sections]}
    text = partial(tables.print_keys, sections[0]) if section else partial(tables.print_sections, sections)
    documents.show(as_json, document, text)


def recipes(as_json: AsJson = False) -> None:
    """List the ready recipes, and what each needs."""
    from pipeline.cli.inventory import ready_recipes

    ready = ready_recipes()
    documents.show(
        as_json, {"recipes": [dataclasses.asdict(one) for one in ready]}, partial(tables.print_recipes, ready)
    )


def clean(
    recipe: Annotated[str | None, typer.Argument(help="Only this recipe's folder: its name, or its .toml.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only artifacts that no recipe shows and that were not used for 36h, 30d, 2w …")
    ] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Remove what was made.

    Recipes' folders, and the artifacts that nothing else shows.
    """
    from pipeline.planning import cleaning, places

    if recipe is not None and recipe.endswith(".toml"):
        recipe = places.recipe(recipe, build)[0].name
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


_VERBS: Mapping[str, Mapping[str, Callable[..., object]]] = {
    "In the order of work": {
        "init": init,
        "run": run,
        "plan": plan,
        "predict": predicting.predict,
        "index": searching.index,
        "search": searching.search,
        "compatible": compatible.compatible,
        "ship": shipping.ship,
        "push": shipping.push,
        "gate": gate.gate,
        "history": history.history,
        "study": studying.study,
        "recommend": studying.recommend,
        "clean": clean,
    },
    "Single stages of a run": {
        "train": train,
        "compress": compress,
        "student": student,
        "convert": convert,
        "verify": verify,
        "benchmark": benchmark,
        "report": report,
    },
    "What there is": {"recipes": recipes, "keys": keys, "list": list_, "devices": phones.devices},
    "Rarely needed": {
        "compat": shipping.compat,
        "ranges": quantisation.ranges,
        "sensitivity": quantisation.sensitivity,
        "arm64": arm64.arm64,
        "demo": demo.demo,
        "import": phones.import_record,
        "hand-in": signatures.hand_in,
        "verify-signature": signatures.verify_signature,
    },
}
"""The verbs by the panels of `--help`."""

for _panel, _verbs in _VERBS.items():
    for _verb, _function in _verbs.items():
        app.command(_verb, rich_help_panel=_panel)(_function)
app.add_typer(signatures.app, name="signing-key", rich_help_panel="Rarely needed")
app.add_typer(mil.app, name="mil", rich_help_panel="Rarely needed")


def main() -> NoReturn:
    """Run the command and leave with its exit code."""
    # Libraries warn about each other at import, and the user can do nothing about it.
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A text, or a path, may hold what the terminal's encoding lacks.
            stream.reconfigure(errors="replace")
    # As Ctrl-C, so that workers end and nothing half-made stays.
    terminated: list[int] = []
    before = signal.signal(signal.SIGTERM, partial(_interrupt, terminated))
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
        code = _TERMINATED if terminated else _INTERRUPTED
        how = "ended by SIGTERM" if terminated else "interrupted"
        message = f"{how}; finished artifacts are kept, and the next run continues from there"
        _report_error("Interrupted", message, code)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _interrupt(terminated: list[int], number: int, _frame: object) -> NoReturn:
    """Handle SIGTERM: note it, and go the way of Ctrl-C."""
    terminated.append(number)
    raise KeyboardInterrupt


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
    # Typer's word for a choice that is none.
    message = error.format_message().replace("Value error, ", "")
    return f"{message.rstrip('.')}. See `{help_for} --help`."
