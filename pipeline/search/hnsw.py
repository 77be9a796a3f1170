"""The engine `usearch`: an HNSW graph in `graph.usearch` beside the files of a flat index.

The flat files stay what counts. The graph is made of them at the end of an indexing, and finds candidates, which are
scored and ordered as the exact scan does it. usearch's own bindings read the file; keys are numbers of rows.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline import atomic
from pipeline.errors import ArtifactError, ToolchainError
from pipeline.search import codes
from pipeline.search.about import About
from pipeline.search.codes import Floats
from pipeline.search.files import State
from pipeline.search.flat import FlatIndex, Hit
from pipeline.vectors.storage import StorageName

if TYPE_CHECKING:
    from usearch.index import Index

GRAPH = "graph.usearch"
_KINDS: dict[StorageName, str] = {"int8": "i8", "float32": "f32", "float16": "f16", "bits": "b1"}
_ROWS_AT_ONCE = 4096
_CANDIDATES_PER_HIT = 10
_FEWEST_CANDIDATES = 100
_EXPANSION = 256
"""Nodes that a search keeps in sight: of the ten nearest of 9,439 passages it leaves out 0.5 %, and with usearch's own
64 2.7 % (`benchmarks/search.py`)."""


class GraphIndex(FlatIndex):
    """An open flat index with a graph over its rows."""

    engine = "usearch"
    _graph: "Index | None" = None

    def finish(self) -> None:
        """Bring the graph up to the rows that there are, and write it.

        Raises:
            ToolchainError: usearch is not installed.
            ArtifactError: the disk is full or read-only, or the graph that is there is damaged.
        """
        super().finish()
        file = self.folder / GRAPH
        graph = _load(file, self.about) if file.is_file() else _new(self.about)
        if not len(graph):
            # What is added to an empty one that was read gives other bytes.
            graph = _new(self.about)
        with _usable(file):
            changed = _update(graph, self)
        if changed or not file.is_file():
            with (
                atomic.writing(self.folder, advice="The passages are in the index; run the command again."),
                atomic.write_aside(file) as aside,
            ):
                # usearch tells a full disk by an exception of its own.
                aside.write_bytes(bytes(graph.save() or b""))
        self._graph = graph

    def search(self, vector: Floats, top: int) -> list[Hit]:
        """Return the passages nearest to an embedding of whole width, as far as the graph finds them."""
        if not len(self):
            return []
        if self._graph is None:
            self._graph = self._whole_graph()
        wanted = max(_FEWEST_CANDIDATES, _CANDIDATES_PER_HIT * top)
        query = codes.comparable_query(vector, self.about)
        with _usable(self.folder / GRAPH):
            found = self._graph.search(query, min(wanted, len(self)), threads=1)
        rows = np.asarray(found.keys).astype(np.int64)
        return self.hits(self.scan().ranked(vector, rows[(rows >= 0) & (rows < self.rows)], top))

    def _whole_graph(self) -> "Index":
        graph = _load(self.folder / GRAPH, self.about)
        with _usable(self.folder / GRAPH):
            # A writer may have been killed before it wrote the graph.
            _update(graph, self)
        return graph

    def _hold(self) -> None:
        super()._hold()
        self._graph = self._whole_graph()

    def _write_kept(self, folder: Path) -> State:
        state = super()._write_kept(folder)
        # An empty one, so that the folder is one with a graph if a kill comes before the whole one is written.
        (folder / GRAPH).write_bytes(bytes(_new(self.about).save() or b""))
        return state


def require() -> type["Index"]:
    """Return usearch's class.

    Raises:
        ToolchainError: usearch is not installed.
    """
    try:
        from usearch.index import Index
    except ImportError as error:
        raise ToolchainError(
            "--engine usearch: the package usearch is not installed. It is in the extra `search`: "
            "`pip install -e '.[search]'` in PocketBERT's folder; --engine flat needs no package."
        ) from error
    # Without usearch's types mypy takes its class for Any.
    index: type[Index] = Index
    return index


def _new(about: About) -> "Index":
    """Return an empty graph."""
    metric = "hamming" if about.storage == "bits" else "ip" if about.similarity == "dot" else "cos"
    return require()(ndim=about.width, metric=metric, dtype=_KINDS[about.storage], expansion_search=_EXPANSION)


def _load(file: Path, about: About) -> "Index":
    """Read a graph.

    Raises:
        ToolchainError: usearch is not installed.
        ArtifactError: the file is absent, damaged or another graph.
    """
    graph = _new(about)
    kind = graph.dtype
    with _usable(file):
        graph.load(file)
    if graph.ndim != about.width or graph.dtype != kind:
        raise ArtifactError(f"{file} is not the graph of this index. Delete it and index again.")
    return graph


@contextlib.contextmanager
def _usable(file: Path) -> Iterator[None]:
    """Turn usearch's errors into one that names the file."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        raise ArtifactError(f"{file} is no graph of usearch: {error}. Delete it and index again.") from error


def _update(graph: "Index", flat: FlatIndex) -> bool:
    """Add the rows that a graph lacks, and take out removed ones; return whether there were any."""
    stored, removed = flat.codes(), flat.removed_rows()
    keys = np.asarray(graph.keys).astype(np.int64)
    # A writer may have gone on since the files were opened, whose rows are none of these.
    gone = keys[np.isin(keys, removed) | (keys < 0) | (keys >= flat.rows)]
    if len(gone):
        graph.remove(gone)
    added = np.setdiff1d(np.arange(flat.rows), np.union1d(keys, removed))
    for begin in range(0, len(added), _ROWS_AT_ONCE):
        rows: NDArray[Any] = added[begin : begin + _ROWS_AT_ONCE]
        # One thread: with several, the same rows do not give the same graph.
        graph.add(rows, codes.comparable(stored[rows], flat.about), threads=1)
    return bool(len(gone) or len(added))
