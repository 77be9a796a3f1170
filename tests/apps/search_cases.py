"""Indexes that the pipeline writes and the cores search, and the other way round: the same rows in the same order."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.search import about
from pipeline.search.flat import FlatIndex, Passage
from pipeline.vectors.contract import Vectors
from pipeline.vectors.storage import StorageName

CASE = "case.json"
_SPACE = "b1946ac92492d234"
_ROWS, _QUERIES, _TOP = 240, 24, 12
_REMOVED = 25
Length = Literal["unit", "free", "dot"]
"""`dot` is free as well, and rows are ordered by the dot product."""
_SHAPES: tuple[tuple[int, int, Length], ...] = (
    (48, 48, "unit"),
    (48, 24, "unit"),
    (40, 40, "free"),
    (40, 16, "free"),
    (40, 40, "dot"),
    (40, 16, "dot"),
    (1024, 1024, "unit"),
)
"""Whole width, how much of it is kept, and the length of embeddings."""
_STORAGES: tuple[StorageName, ...] = ("int8", "float32")
_TEXTS = ("Plain words.", 'Quotes " and \\ and\nlines\t.', "caf\u00e9 cafe\u0301 😀 \u2028", "\u4eca\u5929", "")


def write(home: Path) -> int:
    """Write every index with its case, and return how many searches there are."""
    shutil.rmtree(home, ignore_errors=True)
    for number, (width, kept, length) in enumerate(_SHAPES):
        for storage in _STORAGES:
            folder = home / f"{storage}-{width}-{kept}-{length}"
            folder.mkdir(parents=True)
            case = _case(folder / "index", number, width=width, kept=kept, length=length, storage=storage)
            (folder / CASE).write_text(json.dumps(case), encoding="utf-8")
    return len(_SHAPES) * len(_STORAGES) * _QUERIES


def _case(folder: Path, seed: int, *, width: int, kept: int, length: Length, storage: StorageName) -> dict[str, Any]:
    unit_length = length == "unit"
    random = np.random.default_rng(seed)
    rows = _embeddings(random, _ROWS, width, unit_length=unit_length)
    # Equal ones come in the order of rows; what has no direction is near to nothing.
    rows[100:110] = rows[7]
    rows[50] = 0
    queries = _embeddings(random, _QUERIES, width, unit_length=unit_length)
    queries[0], queries[1] = rows[7], 0
    scales = np.abs(rows).max(0) / 127 + 1e-9
    # Some numbers are beyond what a code holds.
    scales[::9] /= 2
    vectors = Vectors(
        space=_SPACE,
        width=width,
        unit_length=unit_length,
        similarity="dot" if length == "dot" else "cosine",
        widths=(width,) if width == kept else (width, kept),
        scales=tuple(map(float, scales)),
    )
    passages = [Passage(f"{number} é", f"{_TEXTS[number % len(_TEXTS)]}{number}") for number in range(_ROWS)]
    removed = [one.id for one in passages[::_REMOVED]]
    says = about.of(vectors, storage, width=kept, prompts=("passage", None), made_by="litert-int8_dynamic")
    with FlatIndex.create(folder, says) as index:
        for begin in range(0, _ROWS, 100):
            index.add(passages[begin : begin + 100], rows[begin : begin + 100])
        index.remove(removed)
        found = [index.search(query, _TOP) for query in queries]
    return {
        "vectors": vectors.model_dump(),
        "about": says.model_dump(),
        "passages": [
            {"id": one.id, "text": one.text, "embedding": row.tolist()} for one, row in zip(passages, rows, strict=True)
        ],
        "removed": removed,
        "queries": [
            {
                "embedding": query.tolist(),
                "rows": [hit.row for hit in hits],
                "texts": [hit.text for hit in hits],
                "cosines": [hit.cosine for hit in hits],
            }
            for query, hits in zip(queries, found, strict=True)
        ],
    }


def _embeddings(random: np.random.Generator, count: int, width: int, *, unit_length: bool) -> NDArray[np.float32]:
    rows = random.normal(size=(count, width))
    if unit_length:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def check(home: Path, core: str) -> int:
    """Search the indexes that a core has written, and return how many there are."""
    checked = 0
    for folder in sorted(home.iterdir()):
        case = json.loads((folder / CASE).read_text(encoding="utf-8"))
        ours, theirs = folder / "index", folder / core
        assert (theirs / "vectors.bin").read_bytes() == (ours / "vectors.bin").read_bytes(), f"{theirs}: other vectors"
        with FlatIndex.open(theirs, writing=True) as index:
            for query in case["queries"]:
                hits = index.search(np.array(query["embedding"], np.float32), _TOP)
                assert [(hit.row, hit.text) for hit in hits] == list(zip(query["rows"], query["texts"], strict=True)), (
                    f"{theirs}: other passages"
                )
        checked += 1
    assert checked == len(_SHAPES) * len(_STORAGES), f"{checked} indexes of {core}"
    return checked
