"""`python -m benchmarks.indexing`: what it costs to add notes to an index, by several models side by side in one run.

Notes are windows of a plain text. Each model indexes all of them into a new int8 index, as `pocketbert index` does,
tokenisation, embedding and writing included; the models take turns, and medians of the rounds are printed, with the
ratio to the first model. Memory is that of this process and the worker with the model. Joules are those of the
processor's package, where the kernel lets them be read.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.search import memory_mb, processes, take_text, text_of
from pipeline.planning import places
from pipeline.search import embedding, indexing
from pipeline.search.texts import Source

_ENERGY = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
"""Linux' counter of the package's microjoules, on Intel's and AMD's processors; only root may read it since 2020."""
_EVERY_SECONDS = 0.02


@dataclass(frozen=True)
class Cost:
    """What one indexing of all notes took."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    """Resident memory at most, of this process and the worker."""
    joules: float | None


def _cpu_seconds() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes())


def _microjoules() -> int | None:
    try:
        return int(_ENERGY.read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """Watch the resident memory in MB until the block ends; the list's only entry is the highest."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_SECONDS):
            peak[0] = max(peak[0], memory_mb())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        ended.set()
        watching.join()


def cost(folder: Path, notes: Source) -> Cost:
    """Index all notes by a model, which is opened first and warm."""
    with embedding.opened(folder) as model, tempfile.TemporaryDirectory(prefix="pocketbert-indexing-") as place:
        model.embed(["A note to warm up."], None)
        cpu, energy, began = _cpu_seconds(), _microjoules(), time.perf_counter()
        with _peak_memory() as peak:
            indexing.run(indexing.Request(notes, Path(place, "index")), model, lambda _, __: None)
        seconds, after = time.perf_counter() - began, _microjoules()
        joules = None if energy is None or after is None or after < energy else (after - energy) / 1e6
        return Cost(seconds, _cpu_seconds() - cpu, peak[0], joules)


def table(models: Sequence[Path], costs: Sequence[Sequence[Cost]]) -> Iterator[str]:
    """Yield the lines of the table: medians, and the first model's seconds over each one's."""
    yield f"{'model':44}{'s':>9}{'CPU s':>9}{'peak MB':>9}{'joules':>9}{'× as fast':>11}"
    first = statistics.median(one.seconds for one in costs[0])
    for model, rounds in zip(models, costs, strict=True):
        seconds = statistics.median(one.seconds for one in rounds)
        cpu = statistics.median(one.cpu_seconds for one in rounds)
        peak = max(one.peak_mb for one in rounds)
        read = [one.joules for one in rounds if one.joules is not None]
        joules = f"{statistics.median(read):.1f}" if read else "unread"
        yield f"{model!s:44}{seconds:9.2f}{cpu:9.2f}{peak:9.0f}{joules:>9}{first / seconds:11.1f}"


def main() -> int:
    """Index by each model in turn, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.indexing", description=__doc__)
    parser.add_argument("--model", type=Path, action="append", metavar="RECIPE/TARGET", help="give several")
    parser.add_argument("--build", type=Path, default=Path("build"))
    take_text(parser)
    parser.add_argument("--notes", type=int, default=1000)
    parser.add_argument("--words", type=int, default=60, help="words of a note")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    models = options.model or [Path("minilm/litert-int8_dynamic"), Path("minilm/executorch-int8_dynamic")]
    book = text_of(parser, options)
    costs: list[list[Cost]] = [[] for _ in models]
    with tempfile.TemporaryDirectory(prefix="pocketbert-notes-") as folder:
        text = Path(folder, "notes.txt")
        text.write_text(" ".join(book.read_text(encoding="utf-8").split()[: options.notes * options.words]), "utf-8")
        notes = Source([text], window=options.words)
        for number in range(options.rounds):
            for model, found in zip(models, costs, strict=True):
                found.append(cost(places.model(model, options.build), notes))
                print(f"round {number + 1}, {model}: {found[-1].seconds:.2f} s", flush=True)
        print(f"{notes.total:,} notes of {options.words} words, medians of {options.rounds} rounds")
        print(*table(models, costs), sep="\n")
    if options.json:
        record = {str(model): [asdict(one) for one in found] for model, found in zip(models, costs, strict=True)}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
