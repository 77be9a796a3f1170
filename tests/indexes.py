"""Indexes of random vectors in every engine, for tests."""

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.search import about as abouts
from pipeline.search import sqlite
from pipeline.search.about import About
from pipeline.search.flat import FlatIndex, Passage
from pipeline.search.hnsw import GraphIndex
from pipeline.search.indexing import Index
from pipeline.search.sqlite import SqliteIndex
from pipeline.vectors.contract import Similarity, Vectors
from pipeline.vectors.storage import StorageName

ROWS, WIDTH, HALF = 300, 32, 16
TEXTS = [Passage(f"n{number}", f'note {number}: größer\u2028 or "smaller"') for number in range(ROWS)]

Create = Callable[[Path, About], Index]
ENGINES: dict[str, Create] = {
    "flat": FlatIndex.create,
    "usearch": GraphIndex.create,
    "sqlite": lambda folder, about: SqliteIndex.create(folder, about, "sqlite"),
}
if sqlite.can_load_extensions():
    ENGINES["sqlite-vec"] = lambda folder, about: SqliteIndex.create(folder, about, "sqlite-vec")


def embeddings(seed: int, rows: int = ROWS, *, unit: bool = True) -> NDArray[np.float32]:
    """Return vectors in clusters, with numbers of unequal size, as encoders give them."""
    random = np.random.default_rng(seed)
    sizes = np.linspace(0.2, 3.0, WIDTH)
    found = (random.normal(size=(12, WIDTH))[random.integers(0, 12, rows)] + random.normal(size=(rows, WIDTH))) * sizes
    if unit:
        found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found.astype(np.float32)


def contract(*, unit: bool = True, similarity: Similarity = "cosine") -> Vectors:
    scales = np.abs(embeddings(1, 2000, unit=unit)).max(axis=0) / 127
    return Vectors(
        space="0123456789abcdef",
        width=WIDTH,
        unit_length=unit,
        similarity=similarity,
        widths=(WIDTH, HALF),
        scales=tuple(scales.astype(float)),
    )


def about(storage: StorageName = "int8", width: int = WIDTH, *, unit: bool = True) -> About:
    return abouts.of(contract(unit=unit), storage, width=width, prompts=("passage", "query"), made_by="litert-fp32")


def filled(create: Create, folder: Path, what: About, *, unit: bool = True) -> None:
    with create(folder, what) as index:
        vectors = embeddings(2, unit=unit)
        for begin in range(0, ROWS, 64):
            assert index.add(TEXTS[begin : begin + 64], vectors[begin : begin + 64]) == 0
        index.finish()


@contextlib.contextmanager
def no_file_beyond(most_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
