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
from typing import Annotated, NoReturn

import typer

from pipeline.atomic import FULL
from pipeline.cli import (
    arm64,
    compatible,
    demo,
    documents,
    gate,
    history,
    mil,
    phones,
    predicting,
    quantisation,
    searching,
    shipping,
    signatures,
    stages,
    studying,
    tables,
)
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.cli.progress import Progress, print_error
from pipeline.errors import EXIT_DONE, EXIT_USAGE, InputError, PipelineError
from pipeline.kinds import PoolingMode

app = typer.Typer(
    name="pocketbert",
    help="Convert small BERT students for phones, and prove that they are still the same model.",
    no_args_is_help=True,
    add_completion=False,
    # Rich's own markup would read a recipe's [section] in a text as a style and leave it out.
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

_INTERRUPTED, _TERMINATED = 130, 143
_UNWRITABLE = (*FULL, errno.EIO, errno.EFBIG, errno.EBADF)
"""Errors of an output that takes no more; a closed pipe ends the command in typer, as shells expect."""


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
        "run": stages.run,
        "plan": stages.plan,
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
        "train": stages.train,
        "compress": stages.compress,
        "student": stages.student,
        "convert": stages.convert,
        "verify": stages.verify,
        "benchmark": stages.benchmark,
        "report": stages.report,
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
