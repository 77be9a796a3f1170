"""`python -m benchmarks.search`: what an index of a book costs, and what each engine and storage finds of it.

The book is cut into windows of 60 words (`--words`), which a converted model embeds once through `pocketbert index`;
memory is read after each batch. Every engine and storage is then filled with the same vectors, and asked pieces of the
book that lie across the windows. Recall is against the exact search over float32: what a storage or a graph loses, not
how good the model is.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from pipeline.data.datasets import DATA_VARIABLE
from pipeline.planning import places
from pipeline.search import about as abouts
from pipeline.search import embedding, indexing, sqlite
from pipeline.search.about import About
from pipeline.search.codes import Floats
from pipeline.search.embedding import Embedder
from pipeline.search.flat import FlatIndex, Hit, Passage
from pipeline.search.hnsw import GraphIndex
from pipeline.search.indexing import Engine, Index
from pipeline.search.sqlite import SqliteIndex
from pipeline.search.texts import Source
from pipeline.vectors.storage import StorageName

BOOK = "lm/war-and-peace.txt"
_QUESTION_WORDS = 12
_TOP = 10
_BATCH = 256
_ENGINES: dict[Engine, Callable[[Path, About], Index]] = {
    "flat": FlatIndex.create,
    "usearch": GraphIndex.create,
    "sqlite": lambda folder, about: SqliteIndex.create(folder, about, "sqlite"),
    "sqlite-vec": lambda folder, about: SqliteIndex.create(folder, about, "sqlite-vec"),
}
_CASES: tuple[tuple[Engine, StorageName], ...] = (
    ("flat", "float32"),
    ("flat", "float16"),
    ("flat", "int8"),
    ("flat", "bits"),
    ("usearch", "float32"),
    ("usearch", "float16"),
    ("usearch", "int8"),
    ("usearch", "bits"),
    ("sqlite", "int8"),
    ("sqlite-vec", "int8"),
    ("sqlite-vec", "bits"),
)


@dataclass(frozen=True)
class Embedding:
    """What the indexing through the model took."""

    passages: int
    words: int
    """Of a passage."""
    seconds: float
    per_second: float
    first_mb: float
    """Resident memory of this process and its worker after the first tenth."""
    last_mb: float
    peak_mb: float

    def __str__(self) -> str:
        """Return it as a line; of an index that was there already nothing was measured."""
        return (
            f"{self.passages:,} passages of {self.words} words: {self.seconds:.0f} s, {self.per_second:.0f} a second; "
            f"memory {self.first_mb:.0f} MB after a tenth, {self.last_mb:.0f} at the end, {self.peak_mb:.0f} at most"
        )


@dataclass(frozen=True)
class Row:
    """What one engine and storage costs and finds."""

    engine: str
    storage: str
    fill_seconds: float
    megabytes: float
    """Of all files, passages included."""
    search_ms: float
    """Median of a question, without embedding it."""
    recall: float
    """Mean share of the ten passages that the exact search over float32 finds."""
    recall_at_1: float

    def __str__(self) -> str:
        """Return it as a line of the table."""
        return (
            f"{self.engine:11}{self.storage:9}{self.fill_seconds:8.1f}{self.megabytes:8.2f}{self.search_ms:8.2f}"
            f"{self.recall:11.4f}{self.recall_at_1:8.4f}"
        )


def processes() -> list[psutil.Process]:
    """Return this process and its workers."""
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def memory_mb() -> float:
    """Return the resident memory of this process and its workers."""
    return sum(process.memory_info().rss for process in processes()) / 1e6


def take_text(parser: argparse.ArgumentParser) -> None:
    """Give a command the option that `text_of` reads."""
    parser.add_argument("--text", type=Path, help=f"a plain text; {BOOK} of {DATA_VARIABLE} unless given")


def text_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Path:
    """Return the text that a command names, or the book of the data folder; without either the command ends."""
    if not options.text and DATA_VARIABLE not in os.environ:
        parser.error(f"give --text FILE, or set {DATA_VARIABLE} to the folder that has {BOOK}.")
    return options.text or Path(os.environ[DATA_VARIABLE], BOOK)


def embed(source: Source, place: Path, model: Embedder) -> Embedding:
    """Index the windows through the model, in float32."""
    seen: list[tuple[float, float]] = []

    def tell(what: str, fraction: float) -> None:
        seen.append((fraction, memory_mb()))
        if not len(seen) % 64:
            print(f"  {what}", flush=True)

    request = indexing.Request(source, place, "flat", "float32")
    made = indexing.run(request, model, tell)
    first = next(memory for fraction, memory in seen if fraction >= 0.1)
    peak = max(memory for _, memory in seen)
    return Embedding(
        made.added, source.window or 0, made.seconds, round(made.added / made.seconds, 1), first, seen[-1][1], peak
    )


def questions(text: Path, words_each: int, count: int) -> list[str]:
    """Return pieces of the book, evenly spread, that begin in the middle of a window."""
    words = text.read_text(encoding="utf-8").split()
    step = max(1, len(words) // count // words_each) * words_each
    begins = range(max(0, words_each - _QUESTION_WORDS // 2), len(words) - _QUESTION_WORDS, step)
    return [" ".join(words[begin : begin + _QUESTION_WORDS]) for begin in begins][:count]


def measure(
    engine: Engine,
    about: About,
    passages: Sequence[Passage],
    vectors: Floats,
    asked: Floats,
    exact: Sequence[list[str]],
) -> Row:
    """Fill an index and ask it everything."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with _ENGINES[engine](Path(folder, "index"), about) as index:
            for begin in range(0, len(passages), _BATCH):
                index.add(passages[begin : begin + _BATCH], vectors[begin : begin + _BATCH])
            index.finish()
            filled = time.monotonic() - began
            found, times = ask(index, asked)
            shares = [len({*one} & {*best}) / len(best) for one, best in zip(found, exact, strict=True)]
            first = [one[0] == best[0] for one, best in zip(found, exact, strict=True)]
            return Row(
                engine,
                about.storage,
                round(filled, 2),
                round(index.size_bytes / 1e6, 2),
                round(1000 * statistics.median(times), 2),
                round(statistics.mean(shares), 4),
                round(statistics.mean(first), 4),
            )


def ask(index: Index, asked: Floats) -> tuple[list[list[str]], list[float]]:
    """Return the ids that each question finds, and the seconds that it took."""
    found, times = [], []
    index.search(asked[0], _TOP)
    for vector in asked:
        began = time.perf_counter()
        hits: list[Hit] = index.search(vector, _TOP)
        times.append(time.perf_counter() - began)
        found.append([hit.id for hit in hits])
    return found, times


def rows(model: Embedder, source: Source, place: Path, asked: Floats) -> Iterator[Row]:
    """Measure every engine and storage on the vectors of a float32 index."""
    with FlatIndex.open(place) as index:
        vectors = np.array(index.codes())
        exact, _ = ask(index, asked)
    passages = list(source)
    for engine, storage in _CASES:
        if engine == "sqlite-vec" and not sqlite.can_load_extensions():
            print("sqlite-vec not run: this Python's sqlite3 loads no extensions")
            continue
        about = abouts.of(model.vectors, storage, width=None, prompts=(None, None), made_by=model.made_by)
        yield measure(engine, about, passages, vectors, asked, exact)


def main() -> int:
    """Embed, fill, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("minilm/litert-int8_dynamic"))
    parser.add_argument("--build", type=Path, default=Path("build"))
    take_text(parser)
    parser.add_argument("--windows", type=int, default=10_000, help="most passages")
    parser.add_argument("--words", type=int, default=60, help="words of a passage")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep the index there, and continue it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    book = text_of(parser, options)
    with tempfile.TemporaryDirectory(prefix="pocketbert-search-") as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        text = work / book.name
        words = book.read_text(encoding="utf-8").split()[: options.windows * options.words]
        text.write_text(" ".join(words), encoding="utf-8")
        source = Source([text], window=options.words)
        with embedding.opened(places.model(options.model, options.build)) as model:
            embedded = embed(source, work / "index", model)
            print(embedded)
            asked, _ = model.embed(questions(text, options.words, options.questions), model.prompts.of_queries)
            print(f"{len(asked)} questions of {_QUESTION_WORDS} words")
            table = []
            print(f"{'engine':11}{'storage':9}{'fill s':>8}{'MB':>8}{'ms':>8}{'recall@10':>11}{'@1':>8}")
            for row in rows(model, source, work / "index", asked):
                table.append(row)
                print(row, flush=True)
        if options.json:
            record = {"embedding": asdict(embedded), "rows": [asdict(row) for row in table]}
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
