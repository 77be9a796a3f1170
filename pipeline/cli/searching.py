"""`pocketbert index` and `pocketbert search`: an index of texts, and the passages nearest to a question."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import documents, studying, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.cli.progress import Progress
from pipeline.cli.texts import shortened
from pipeline.errors import InputError
from pipeline.search.indexing import ENGINES, Engine
from pipeline.vectors.storage import STORAGES, StorageName

if TYPE_CHECKING:
    from pipeline.search.asking import Found
    from pipeline.search.indexing import Outcome

_STEP = "index"

_MODEL = "A converted embedding model: its folder, or RECIPE/TARGET of the build folder."
ModelName = Annotated[Path, typer.Option("--model", help=_MODEL)]


def index(
    text: Annotated[list[Path], typer.Argument(help=".jsonl, .csv, .tsv, .txt and .md files, and folders of notes.")],
    model: ModelName,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the index; by default build/index/NAME, the name of the first TEXT.")
    ] = None,
    storage: Annotated[
        StorageName | None, typer.Option(help=f"How vectors are stored: {', '.join(STORAGES)}; int8 unless given.")
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Keep only this many first numbers of a vector.")] = None,
    engine: Annotated[Engine | None, typer.Option(help=f"{', '.join(ENGINES)}; flat unless given.")] = None,
    text_column: Annotated[
        str | None, typer.Option("--text", help="Column with the text; 'text' unless given.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column with the id; 'id' or '_id' unless given.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Cut texts into passages of this many words.")] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Prompt before passages, by its name; that for documents unless given, '' for none."),
    ] = None,
    sync: Annotated[bool, typer.Option("--sync", help="Remove passages that the texts no longer have.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Make or continue a search index of your own texts.

    Passages that are there with the same text are kept; interrupted or killed, the next run continues from there.
    """
    from pipeline.planning import places
    from pipeline.search import embedding, indexing
    from pipeline.search.texts import Source

    source = Source(text, text=text_column, id=id_column, window=window)
    place = out or build / "index" / (os.path.basename(os.path.realpath(text[0])) or "texts")
    request = indexing.Request(source, place, engine, storage, width, prompt, sync)
    folder = places.model(model, build)
    with Progress(quiet=as_json) as progress:
        progress.started(_STEP)
        # Texts that cannot be read are refused before a runtime is opened, which takes seconds.
        progress.advanced(_STEP, f"{source.total:,} passages", 0.0)
        with embedding.opened(folder, threads=threads) as embedder:
            outcome = indexing.run(request, embedder, partial(progress.advanced, _STEP))
    documents.show(as_json, documents.index_document(outcome), partial(_print_outcome, outcome))


def search(
    index: Annotated[
        Path, typer.Argument(help="Folder of an index that `pocketbert index` made; a study's TOML is run instead.")
    ],
    question: Annotated[str | None, typer.Argument(help="What to look for.")] = None,
    model: Annotated[Path | None, typer.Option("--model", help=_MODEL)] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of passages.")] = 10,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt before the question, by its name; that of the index unless given.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Show the passages of an index that are nearest to a question."""
    from pipeline.planning import places
    from pipeline.search import about, asking, embedding, files

    if index.suffix == ".toml":
        if question is not None or model is not None:
            raise InputError(f"{index} is a study, which takes no question; `pocketbert study {index}` runs it.")
        studying.study(index, build=build, as_json=as_json)
        return
    if question is None or model is None:
        raise InputError(
            f"search {index} lacks {'a question' if question is None else '--model'}: "
            f'`pocketbert search {index} "a red house" --model RECIPE/TARGET`.'
        )
    place = places.below(index, build)
    files.recover(place)
    # Before a runtime is opened, which takes seconds.
    about.read(place)
    with embedding.opened(places.model(model, build), threads=threads) as embedder:
        found = asking.ask(place, question, embedder, top=top, prompt=prompt)
    documents.show(as_json, documents.found_document(found), partial(_print_found, found))


def _print_outcome(outcome: "Outcome") -> None:
    about = outcome.about
    counts = {"added": outcome.added, "of them replaced": outcome.replaced, "kept": outcome.kept}
    counts |= {"removed": outcome.removed}
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
    tables.say(f"{said}, in {outcome.seconds:.1f} s")
    if outcome.truncated:
        tables.say(
            f"{outcome.truncated:,} were longer than the file takes and were cut; a smaller --window makes more of them"
        )
    tables.say(
        f"{outcome.index}: {outcome.passages:,} passages, {outcome.engine}, {about.storage} × {about.width}, space "
        f"{about.space}, {outcome.bytes / 1e6:.1f} MB"
    )


def _print_found(found: "Found") -> None:
    if found.truncated:
        tables.say("the question was cut to what the file takes")
    for hit in found.hits:
        tables.say(f"{hit.cosine:6.3f}  {shortened(hit.id, most=60)}  {shortened(' '.join(hit.text.split()))}")
