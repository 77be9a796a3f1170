"""The work of `pocketbert index`: embed what an index lacks, batch by batch, each of them committed."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from pipeline.errors import InputError
from pipeline.search import about as abouts
from pipeline.search import files, hnsw
from pipeline.search.about import About
from pipeline.search.codes import Floats
from pipeline.search.embedding import Embedder
from pipeline.search.flat import FlatIndex, Passage
from pipeline.search.hnsw import GRAPH, GraphIndex
from pipeline.search.sqlite import FILE, SqliteIndex
from pipeline.search.texts import Source
from pipeline.vectors.storage import StorageName

Engine = Literal["flat", "usearch", "sqlite", "sqlite-vec"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
Index = FlatIndex | SqliteIndex
_BATCH = 256
"""Passages that are committed together. A kill costs two batches at most: one being written, one being embedded."""


@dataclass(frozen=True)
class Request:
    """What an index is made of, and how; None is what the index has already, or else the default."""

    source: Source
    place: Path
    engine: Engine | None = None
    storage: StorageName | None = None
    width: int | None = None
    prompt: str | None = None
    """Name of the prompt before passages; None for the model's own for documents."""
    sync: bool = False
    """Whether passages that the texts no longer have are removed."""


@dataclass(frozen=True)
class Outcome:
    """What became of an index."""

    index: str
    engine: Engine
    about: About
    passages: int
    added: int
    replaced: int
    """Of the added ones: those whose id was there with another text."""
    kept: int
    """Passages of the texts that were there already."""
    removed: int
    truncated: int
    """Of the added ones: those longer than the file takes."""
    bytes: int
    seconds: float


def open_index(place: Path, *, writing: bool = False) -> Index:
    """Open an index by whichever engine made it.

    Raises:
        PipelineError: see the engines' `open`.
    """
    # First: what follows is about the folder's files.
    files.recover(place)
    if os.path.isfile(place / FILE):
        return SqliteIndex.open(place, writing=writing)
    kind = GraphIndex if os.path.isfile(place / GRAPH) else FlatIndex
    return kind.open(place, writing=writing)


def _open(request: Request, model: Embedder) -> Index:
    """Open the index of a request for writing, or make it.

    Raises:
        InputError: there is an index of another space, engine, storage, width or prompt, or something else.
    """
    place = request.place
    if request.engine == "usearch":
        # Now, and not when everything is embedded.
        hnsw.require()
    files.recover(place)
    if _is_free(place):
        return _created(request, model)
    index = open_index(place, writing=True)
    try:
        _check(request, index, model)
    except BaseException:
        index.close()
        raise
    if request.engine == "usearch" and isinstance(index, FlatIndex) and not isinstance(index, GraphIndex):
        # A graph can be added to the flat files at any time; a kill before the end left them without one.
        index.close()
        return GraphIndex.open(place, writing=True)
    return index


def _is_free(place: Path) -> bool:
    """Return whether nothing is at a place, or what a process left that was killed while it made an index.

    Raises:
        InputError: something else is there.
    """
    if os.path.isfile(files.real(place).parent / abouts.ABOUT):
        raise InputError(f"{place} is in the folder of an index, which holds nothing else. Choose another --out.")
    if not os.path.lexists(place):
        return True
    try:
        names = set(os.listdir(place)) if os.path.isdir(place) else {""}
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror}. Choose another --out.") from error
    names = {name for name in names if not name.startswith(".")} - {files.LOCK}
    if names - {abouts.ABOUT} and abouts.ABOUT not in names:
        raise InputError(f"{place} is there, and is no index. Choose another --out.")
    return names <= {abouts.ABOUT}


def _created(request: Request, model: Embedder) -> Index:
    prompt = model.prompts.of_documents if request.prompt is None else request.prompt
    about = abouts.of(
        model.vectors,
        request.storage or "int8",
        width=request.width,
        prompts=(prompt, model.prompts.of_queries),
        made_by=model.made_by,
    )
    engine = request.engine or "flat"
    if engine == "sqlite-vec" and about.similarity == "dot":
        raise InputError(
            f"--engine sqlite-vec: {model.name} compares by the dot product, which sqlite-vec does not know. Choose "
            "flat, usearch or sqlite."
        )
    if engine == "flat":
        return FlatIndex.create(request.place, about)
    if engine == "usearch":
        return GraphIndex.create(request.place, about)
    return SqliteIndex.create(request.place, about, engine)


def _check(request: Request, index: Index, model: Embedder) -> None:
    """Refuse to continue an index as what it is not."""
    about = index.about
    abouts.check_space(request.place, about, model.vectors, model.name)
    added_graph = (index.engine, request.engine) == ("flat", "usearch")
    asked = {
        "engine": (None if added_graph else request.engine, index.engine),
        "storage": (request.storage, about.storage),
        "width": (request.width, about.width),
        "prompt": (None if _same_prompt(request, about, model) else request.prompt, about.document_prompt),
    }
    for name, (wanted, found) in asked.items():
        if wanted is not None and wanted != found:
            raise InputError(
                f"--{name} {wanted}: {request.place} has {found or 'none'}. Leave --{name} out to continue it, or "
                "choose another --out."
            )


def _same_prompt(request: Request, about: About, model: Embedder) -> bool:
    """Return whether a request's prompt has the text of the index's, by whatever name."""
    return model.prompts.text(request.prompt) == model.prompts.text(about.document_prompt)


def run(request: Request, model: Embedder, tell: Callable[[str, float], None]) -> Outcome:
    """Add to an index what it lacks of the texts; what is there with the same text is kept.

    Args:
        request: what is asked for.
        model: an open model.
        tell: is told how far it is, in words and as a fraction.

    Raises:
        PipelineError: the texts, the model or the index cannot be used.
    """
    began = time.monotonic()
    model.check_prompt(request.prompt)
    total = request.source.total
    with _open(request, model) as index:
        with _Writing(index, model, total, tell) as writing:
            for passage in request.source:
                writing.take(passage)
            writing.flush()
        removed = 0
        if request.sync:
            wanted = {passage.id for passage in request.source}
            removed = index.remove([one for one in index.ids() if one not in wanted])
        if isinstance(index, GraphIndex):
            tell("the graph", 1.0)
        index.finish()
        return Outcome(
            index=str(request.place),
            engine=index.engine,
            about=index.about,
            passages=len(index),
            added=writing.added,
            replaced=writing.replaced,
            kept=writing.kept,
            removed=removed,
            truncated=writing.truncated,
            bytes=index.size_bytes,
            seconds=round(time.monotonic() - began, 2),
        )


class _Writing:
    """Passages on their way into an index: a batch is written while the next one is embedded."""

    def __init__(self, index: Index, model: Embedder, total: int, tell: Callable[[str, float], None]) -> None:
        self._index, self._model, self._total, self._tell = index, model, total, tell
        self._waiting: dict[str, Passage] = {}
        """By id, so that a file that changes while it is read, after its ids were compared, gives none twice."""
        self._embedding: tuple[list[Passage], Future[tuple[Floats, int]]] | None = None
        self._in_flight: dict[str, str] = {}
        """Texts by id of the batch that is being embedded."""
        self._beside = ThreadPoolExecutor(1)
        self._began = time.monotonic()
        self._embedded = 0
        """Passages of the batches that are embedded."""
        self.added = self.replaced = self.kept = self.truncated = 0

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for a batch that is being embedded, whose model answers one call at a time; Ctrl-C ends its process."""
        self._beside.shutdown(wait=kind is not KeyboardInterrupt, cancel_futures=True)

    def take(self, passage: Passage) -> None:
        """Take a passage, and embed a batch when it is full."""
        if self._index.has(passage) or self._in_flight.get(passage.id) == passage.text:
            self.kept += 1
            return
        self._waiting[passage.id] = passage
        if len(self._waiting) == _BATCH:
            self._next()

    def flush(self) -> None:
        """Embed and commit all that waits."""
        self._next()
        self._next()
        self._told(0)

    def _next(self) -> None:
        """Begin to embed what waits, and commit the batch before it."""
        before, self._embedding = self._embedding, None
        found = before[1].result() if before else None
        if before:
            self._embedded += len(before[0])
        if self._waiting:
            waiting = list(self._waiting.values())
            self._in_flight = {passage.id: passage.text for passage in waiting}
            texts, prompt = list(self._in_flight.values()), self._index.about.document_prompt
            self._embedding = waiting, self._beside.submit(self._model.embed, texts, prompt, self._told)
            self._waiting = {}
        if before and found:
            vectors, truncated = found
            self.replaced += self._index.add(before[0], vectors)
            self.added += len(before[0])
            self.truncated += truncated

    def _told(self, embedded: int) -> None:
        """Tell how far it is, with what is embedded and not written yet."""
        fresh = self._embedded + embedded
        pace = fresh / max(time.monotonic() - self._began, 1e-9)
        done = fresh + self.kept
        self._tell(f"{done:,} of {self._total:,} passages, {pace:.0f} a second", done / self._total)
