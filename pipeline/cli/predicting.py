"""`pocketbert predict`: a converted file's answers to texts, or to the lines of standard input as they come."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.errors import EXIT_DONE, InputError, PipelineError

if TYPE_CHECKING:
    from pipeline.convert.predicting import Answer, Settings

_STDIN = 0
_FROM_STDIN = "-"


def predict(
    file: Annotated[Path, typer.Argument(help="A converted file, its folder, or RECIPE/TARGET of the build folder.")],
    text: Annotated[
        list[str] | None, typer.Argument(help="One or more texts; none, or -, for a text a line of standard input.")
    ] = None,
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
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Try a converted file on your own texts.

    Prints labels, tags, an answer, a number, or nearest neighbours.
    Lines of standard input are answered as they come; with --json each answer is a line of JSON then.
    """
    from pipeline.convert.predicting import Settings, batches, read_candidates
    from pipeline.planning import places

    if labels is not None and (pair is not None or among is not None):
        raise InputError("--labels goes with texts alone; leave --pair and --among out.")
    if labels is None and (template is not None or multi_label):
        raise InputError("--template and --multi-label are for labels of your own; give those with --labels.")
    folder = places.model(file, build, head)
    streamed = text in (None, [], [_FROM_STDIN])
    # Python has no `stdin` where the descriptor is closed; whatever is opened next would be read in its place.
    if streamed and (sys.stdin is None or os.isatty(_STDIN)):
        raise InputError("there is no text: give one or more after the file, or pipe in a text a line.")
    settings = Settings(
        folder,
        threads=threads,
        prompt=prompt,
        among=tuple(read_candidates(among)) if among else None,
        top=top,
        labels=None if labels is None else tuple(labels.split(",")),
        template=template,
        multi_label=multi_label,
    )
    with _answering(settings, pair) as answer:
        if streamed:
            _stream(batches(_STDIN), answer, as_json=as_json)
        else:
            found = answer(text or [])
            documents.show(as_json, documents.answers_document(found), lambda: tables.print_answers(found))


@contextmanager
def _answering(settings: "Settings", pair: str | None) -> "Iterator[Callable[[Sequence[str]], list[Answer]]]":
    """Open the model in a worker; yield the function that answers a batch of texts.

    In a worker: LiteRT alone writes forty lines to standard error, and a runtime may take its process down.
    """
    from pipeline.convert import predicting
    from pipeline.convert.private_log import private_log
    from pipeline.execution.worker import Worker

    with private_log() as log, Worker(log) as worker:

        def answer(texts: Sequence[str]) -> "list[Answer]":
            return worker.call(predicting.answer, [one if pair is None else (one, pair) for one in texts])

        try:
            worker.call(predicting.open_model, settings)
            yield answer
        except PipelineError:
            with suppress(PipelineError):
                worker.call(predicting.close_model)
            raise
        worker.call(predicting.close_model)


def _stream(lines: Iterator[list[str]], answer: "Callable[[Sequence[str]], list[Answer]]", *, as_json: bool) -> None:
    """Print the answers to lines batch by batch; in JSON a line each, and the exit code in the last."""
    count = 0
    for batch in lines:
        found = answer(batch)
        if as_json:
            documents.print_lines(map(documents.answer_row, found))
        else:
            tables.print_answers(found, first=count == 0)
        count += len(found)
        sys.stdout.flush()
    if not count:
        raise InputError("standard input has no line of text; give texts after the file, or pipe in a text a line.")
    if as_json:
        documents.print_lines([{"exit": EXIT_DONE}])
