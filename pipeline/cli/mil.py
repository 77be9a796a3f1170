"""`pocketbert mil`: Core ML packages without Core ML."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder

app = typer.Typer(
    help="Inspect and run Core ML packages without Core ML.", no_args_is_help=True, rich_markup_mode="markdown"
)

PackagePath = Annotated[Path, typer.Argument(help="A .mlpackage, a model folder with one, or RECIPE/TARGET.")]


@app.command()
def run(
    package: PackagePath,
    inputs: Annotated[Path, typer.Option(help="A .npz file with an array for each input.")],
    function: Annotated[str | None, typer.Option(help="Function of the package; by default its default one.")] = None,
    precision: Annotated[
        str, typer.Option(help="fp16 rounds values that the program declares as half precision; fp32 does not.")
    ] = "fp16",
    flush_subnormals: Annotated[
        bool,
        typer.Option(
            "--flush-subnormals",
            help="Make zeros of numbers below 2^-14 that operations read or give in half precision, as a Neural Engine "
            "or a GPU may; for fp16 alone, since fp32 rounds nothing to half precision.",
        ),
    ] = False,
    outputs: Annotated[Path | None, typer.Option(help="Write the outputs to this .npz file.")] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Run a package in the reference interpreter and summarise its outputs."""
    from pipeline.convert.private_log import call_in_worker
    from pipeline.mil import trial
    from pipeline.planning import places

    result = call_in_worker(
        trial.run_package, places.below(package, build), inputs, function, precision, flush_subnormals
    )
    if outputs:
        trial.write_outputs(result, outputs)
    documents.show(as_json, documents.trial_document(result), partial(tables.print_trial, result))


@app.command()
def ops(package: PackagePath, build: BuildFolder = BUILD, as_json: AsJson = False) -> None:
    """List a package's operations and weights."""
    from pipeline.convert.private_log import call_in_worker
    from pipeline.mil import listing
    from pipeline.planning import places

    content = call_in_worker(listing.read_listing, places.below(package, build))
    documents.show(as_json, documents.listing_document(content), partial(tables.print_listing, content))
