"""`pocketbert ship`, `push` and `compat`: finished files leave the build folder, or meet older runtimes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder, RecipeName, Sign, Stale, Targets
from pipeline.cli.progress import Progress
from pipeline.convert.targets import choose_targets
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, EXIT_TOOLCHAIN

if TYPE_CHECKING:
    from pipeline.convert.stage import Target
    from pipeline.recipe.schema import Recipe


def ship(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    build: BuildFolder = BUILD,
    into: Annotated[Path, typer.Option(help="Project with android-demo/ and ios-demo/.")] = Path(),
    allow_not_run: Annotated[bool, typer.Option(help="Ship a target whose file could not be run here.")] = False,
    sign: Sign = None,
    stale: Stale = False,
    as_json: AsJson = False,
) -> None:
    """Copy verified files into the demo apps."""
    from pipeline.planning import places
    from pipeline.ship import apps

    parsed, file = places.recipe(recipe, build)
    chosen = apps.choose(parsed, choose_targets(parsed, target or []), explicit=bool(target))
    stale_targets = outdated(parsed, file, chosen, build, stale=stale)
    shipped = apps.ship(
        parsed, build, chosen, into, allow_not_run=allow_not_run, outdated=stale_targets, named=recipe, sign=sign
    )
    rows = [one.model_dump(mode="json") | {"places": [str(place) for place in places]} for one, places in shipped]
    document = {"shipped": rows}
    documents.show(as_json, document, partial(tables.print_shipped, shipped))


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
    build: BuildFolder = BUILD,
    allow_not_run: Annotated[bool, typer.Option(help="Push a target whose file could not be run here.")] = False,
    sign: Sign = None,
    stale: Stale = False,
    as_json: AsJson = False,
) -> None:
    """Bundle verified files with a model card, to upload them.

    Only --no-dry-run uploads.
    """
    from pipeline.planning import places
    from pipeline.ship import bundle as bundles
    from pipeline.ship.push import PushedBundle, check_names, upload

    parsed, file = places.recipe(recipe, build)
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
            outdated=outdated(parsed, file, chosen, build, stale=stale),
            tell=progress.note,
            sign=sign,
        )
    pushed = PushedBundle.of(folder, bundle, repository, revision)
    if not dry_run:
        pushed = upload(pushed, bundle, private=private, create=create)
    documents.show(as_json, pushed.model_dump(mode="json"), partial(tables.print_pushed, pushed))


def outdated(recipe: "Recipe", file: Path, targets: "list[Target]", build: Path, *, stale: bool) -> Mapping[str, str]:
    """Return the targets of other inputs than the recipe has now, which do not go out; none if `--stale` takes them."""
    from pipeline.planning import run as running
    from pipeline.planning.request import Request

    return {} if stale else running.outdated(Request(recipe, file, "verify", targets), build)


def compat(
    recipe: RecipeName = "minilm",
    target: Targets = None,
    runtime: Annotated[
        list[str] | None, typer.Option("--runtime", help="Only this runtime; may be repeated. Default: all known ones.")
    ] = None,
    build: BuildFolder = BUILD,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Download missing runtimes into BUILD/.compat/.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try LiteRT files on older runtimes."""
    from pipeline import runtimes
    from pipeline.compat import stage as trying
    from pipeline.execution.executor import Step
    from pipeline.planning import places

    parsed, _ = places.recipe(recipe, build)
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
