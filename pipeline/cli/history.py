"""`pocketbert history`: the figures of a recipe over several reports."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.report.history import Row


def history(
    reports: Annotated[
        list[Path],
        typer.Argument(
            help="report.json files, folders of them, or recipes; oldest first. Labels are their names, or --label."
        ),
    ],
    label: Annotated[
        list[str] | None, typer.Option("--label", help="Name of a report, such as its commit; one for each, in order.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write a page with curves and a table here.")] = None,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Compare the reports of a recipe over time.

    Size, scores, metrics, instructions and times of each file in each report.
    """
    from pipeline.atomic import write_text
    from pipeline.planning import places
    from pipeline.report import baseline
    from pipeline.report import history as histories

    labels = label or _labels(reports)
    if len(labels) != len(reports) or len(set(labels)) < len(labels):
        raise InputError(f"--label names each report once: there are {len(reports)} reports, and labels {labels}.")
    read = {name: baseline.read(places.report(file, build)) for name, file in zip(labels, reports, strict=True)}
    found = histories.rows(read)
    recipe = next(iter(read.values())).recipe["name"]
    if out is not None:
        write_text(out, histories.page(recipe, found))
    document = {
        "recipe": recipe,
        "rows": [row.model_dump(mode="json") for row in found],
        "page": str(out or "") or None,
    }
    documents.show(as_json, document, partial(_print, found, out))


def _labels(reports: list[Path]) -> list[str]:
    """Return short names of reports: their files' names if these differ, else their folders."""
    stems = [file.stem for file in reports]
    return stems if len(set(stems)) == len(stems) else [str(file.parent) for file in reports]


def _print(found: "Sequence[Row]", out: Path | None) -> None:
    table = Table(box=None, pad_edge=False)
    datasets = list(dict.fromkeys(name for row in found for name in row.metrics))
    for title in ("report", "target", "verdict", "MB", "mean score", *datasets, "M instructions", "ms per text"):
        table.add_column(title)
    for row in found:
        figures = [None if row.mean_score is None else f"{row.mean_score:.5f}"]
        figures += [f"{row.metrics[name]:.4f}" if name in row.metrics else None for name in datasets]
        figures += [None if row.instructions is None else f"{row.instructions:.2f}"]
        figures += [None if row.mean_ms is None else f"{row.mean_ms:.3f}"]
        cells = [value or "–" for value in figures]
        table.add_row(escape(row.label), row.target, row.verdict, f"{row.file_bytes / 1e6:.2f}", *cells)
    tables.show(table)
    tables.say("Times of two reports were not measured in turns, and are no ground for a judgement.")
    if out is not None:
        tables.say(f"wrote {out}")
