"""`pocketbert compatible`: may the vectors of an old model, or of an index, stay where a new model asks?"""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.cli.texts import plain, shortened
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, EXIT_WITH_LOSS

if TYPE_CHECKING:
    from pipeline.search.compatibility import Comparison

_CODES = {"same_space": EXIT_DONE, "usable_with_loss": EXIT_WITH_LOSS, "re_index": EXIT_GATE_FAILED}
_COLOURS = {"same_space": "green", "usable_with_loss": "yellow", "re_index": "red"}


def compatible(
    old: Annotated[Path, typer.Argument(help="A converted embedding model, RECIPE/TARGET, or the folder of an index.")],
    new: Annotated[Path, typer.Argument(help="The model that is to ask: its folder, or RECIPE/TARGET.")],
    retrieval: Annotated[
        list[str] | None,
        typer.Option(help="Collection to search, or a folder laid out like BEIR's; all that are at hand unless given."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Tell whether vectors of an old model may stay in an index when a new model asks.

    Exit code 0: the same space. 4: usable with loss. 1: index again.
    """
    found = _compared(old, new, retrieval or (), build, threads)
    code = _CODES[found.verdict]
    document: dict[str, Any] = dataclasses.asdict(found)
    documents.show(as_json, document, partial(_print, found), code)
    raise typer.Exit(code)


def _compared(old: Path, new: Path, names: "list[str] | tuple[()]", build: Path, threads: int) -> "Comparison":
    from pipeline.planning import places
    from pipeline.search import compatibility, embedding
    from pipeline.search.about import ABOUT
    from pipeline.search.indexing import open_index
    from pipeline.text.bundled import everyday_sentences

    asking = places.model(new, build)
    place = places.below(old, build)
    if (place / ABOUT).is_file():
        with open_index(place) as index, embedding.opened(asking, threads=threads) as model:
            return compatibility.compare_with_index(index, model)
    stored = places.model(old, build)
    chosen = compatibility.collections(names, Path("recipe.toml"))
    texts = everyday_sentences()
    sides = []
    for folder in (stored, asking):
        with embedding.opened(folder, threads=threads) as model:
            sides.append(compatibility.of_model(model, texts, chosen))
    return compatibility.compare(sides[0], sides[1], texts, chosen)


def _print(found: "Comparison") -> None:
    tables.show(f"[{_COLOURS[found.verdict]}]{escape(plain(found.said))}[/]")
    table = Table(box=None, pad_edge=False, show_header=False)
    for title, text in _rows(found):
        table.add_row(title, escape(plain(text)))
    tables.show(table)


def _rows(found: "Comparison") -> Iterator[tuple[str, str]]:
    yield "old", f"{found.old}, space {found.old_space or 'unknown'}"
    yield "new", f"{found.new}, space {found.new_space or 'unknown'}"
    if found.mean_cosine is not None:
        yield (
            "cosines",
            f"{found.mean_cosine:.4f} on average over {found.texts} texts, {found.worst_cosine:.4f} at worst",
        )
    for row in found.searched:
        again = "" if row.new is None else f"; after indexing again {row.new:.4f}"
        yield (
            row.collection,
            f"recall@10 {row.old:.4f} → {row.across:.4f} ({row.low:+.4f} to {row.high:+.4f}){again}; recall@1 "
            f"{row.old_at_1:.4f} → {row.across_at_1:.4f}; {row.queries} queries, {row.documents} documents",
        )
    for text, cosine in found.worst:
        yield "worst text", f"cosine {cosine:.4f} on {shortened(text)!r}"
