"""`pocketbert compatible`: may the vectors of an old model, or of an index, stay where a new model asks?"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.cli.progress import Progress
from pipeline.cli.texts import plain, shortened
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, EXIT_WITH_LOSS, InputError
from pipeline.kinds import PoolingMode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pipeline.search.compatibility import Comparison, Model

_CODES = {"same_space": EXIT_DONE, "usable_with_loss": EXIT_WITH_LOSS, "re_index": EXIT_GATE_FAILED}
_COLOURS = {"same_space": "green", "usable_with_loss": "yellow", "re_index": "red"}


def compatible(
    old: Annotated[Path, typer.Argument(help="A converted embedding model, RECIPE/TARGET, or the folder of an index.")],
    new: Annotated[Path, typer.Argument(help="The model that is to ask: its folder, or RECIPE/TARGET.")],
    old_against: Annotated[
        str | None,
        typer.Option(help="Checkpoint of OLD, if another tool made that file: tokenizer and prompts."),
    ] = None,
    new_against: Annotated[str | None, typer.Option(help="The same for NEW.")] = None,
    pooling: Annotated[
        PoolingMode | None, typer.Option(help="Pooling of such a checkpoint that is a bare encoder.")
    ] = None,
    retrieval: Annotated[
        list[str] | None,
        typer.Option(help="Collection to search, or a folder laid out like BEIR's; all that are at hand unless given."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Tell whether an index may stay when another model asks it.

    Exit code 0: the same space. 4: usable with loss. 1: index again.
    """
    with Progress(quiet=as_json) as progress:
        old_side = _Side(old, old_against, pooling, threads, build, progress)
        new_side = _Side(new, new_against, pooling, threads, build, progress)
        found = _compared(old_side, new_side, retrieval or ())
    code = _CODES[found.verdict]
    document: dict[str, Any] = dataclasses.asdict(found)
    documents.show(as_json, document, partial(_print, found), code)
    raise typer.Exit(code)


@dataclasses.dataclass(frozen=True)
class _Side:
    """What one of the two arguments names."""

    place: Path
    against: str | None
    pooling: PoolingMode | None
    threads: int
    build: Path
    progress: Progress

    def index(self) -> Path | None:
        """Return the folder of the index that is named, or None where a model is."""
        from pipeline.planning import places
        from pipeline.search import files
        from pipeline.search.about import ABOUT

        place = places.below(self.place, self.build)
        files.recover(place)
        return place if os.path.isfile(place / ABOUT) else None

    def opened(self) -> "AbstractContextManager[Model]":
        """Open the model that is named."""
        from pipeline.foreign import embedding as of_other_tools
        from pipeline.planning import places
        from pipeline.search import embedding

        if self.against is not None:
            return of_other_tools.opened(self.place, self.against, self.progress.note, pooling=self.pooling)
        return embedding.opened(places.model(self.place, self.build), threads=self.threads)


def _compared(old: _Side, new: _Side, names: Sequence[str]) -> "Comparison":
    from pipeline.search import compatibility, embedding
    from pipeline.search.indexing import open_index
    from pipeline.text.bundled import everyday_sentences

    if (place := old.index()) is not None:
        if names:
            raise InputError(f"{old.place} is an index, which is compared by its own passages; leave --retrieval out.")
        with open_index(place) as index, new.opened() as model:
            if not isinstance(model, embedding.Embedder):
                raise InputError(
                    f"{new.place} was made by another tool, and nobody has said which widths and scales its vectors "
                    "have. Compare it with the model that made the index."
                )
            return compatibility.compare_with_index(index, model)
    chosen = compatibility.collections(names, Path("recipe.toml"))
    texts = everyday_sentences()
    sides = []
    for one in (old, new):
        with one.opened() as model:
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
    if found.old_truncated != found.new_truncated:
        yield "truncated", f"{found.old_truncated} texts by the old model, {found.new_truncated} by the new one"
    for row in found.searched:
        again = "" if row.new is None else f"; after indexing again {row.new:.4f}"
        yield (
            row.collection,
            f"recall@10 {row.old:.4f} → {row.across:.4f} ({row.low:+.4f} to {row.high:+.4f}){again}; recall@1 "
            f"{row.old_at_1:.4f} → {row.across_at_1:.4f}; {row.queries} queries, {row.documents} documents",
        )
    for text, cosine in found.worst:
        yield "worst text", f"cosine {cosine:.4f} on {shortened(text, most=80)!r}"
