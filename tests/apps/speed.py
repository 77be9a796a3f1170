"""`make core-speed`: both cores' tokenizers beside Hugging Face's `tokenizers`, in one run.

It prints a table and asserts nothing. A load is the median of several of one file. The first load is cold: for the
full-size tokenizer it is the first of its process. Kept is the heap, or in Swift the resident memory, that an open
tokenizer takes.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from tokenizers import Tokenizer

from apps import toolchains
from apps.tokenizers import kit
from pipeline.text import binary
from pipeline.text.bundled import everyday_sentences

TEXTS = 10_000
_SENTENCE = (
    "The old lighthouse keeper, who had lived alone on the island for thirty years, watched the storm roll in from the "
    "west and quietly lit the lamp for the ships."
)
"""Thirty words."""
_FULL_SIZE = "unigram_full_size"
_LINE = re.compile(r"speed: (\{.*\})")


def main() -> int:
    """Write the kit if it is absent, time all three, and print a table."""
    home = toolchains.APPS / "vectors"
    if not (home / "outputs.jsonl").is_file():
        kit.write(home, strings=0)
    sentences = everyday_sentences()
    texts = [_SENTENCE, *(sentences[at % len(sentences)] for at in range(TEXTS - 1))]
    file = home / "speed.json"
    file.write_text(json.dumps(texts), encoding="utf-8")
    times = {"tokenizers": _reference(home, texts)}
    for name, measure in {"Kotlin": _kotlin, "Swift": _swift}.items():
        try:
            times[name] = _read(measure(file, ""))
            for cold in (f"{_FULL_SIZE}/tokenizer.json", f"{_FULL_SIZE}/{binary.BINARY}"):
                times[name] |= _read(measure(file, cold))
        except toolchains.Lacking as error:
            print(f"{name}: not measured: {error}")
    # A pipe has no width; nothing is cut there.
    Console(width=None if sys.stdout.isatty() else 120).print(_table(times))
    return 0


def _kotlin(texts: Path, only: str) -> str:
    paths = {"speed": texts, "vectors": texts.parent, "speed.only": only}
    return toolchains.maven("test", "-Dtest=SpeedTest", *(f"-Dpocketbert.{name}={it}" for name, it in paths.items()))


def _swift(texts: Path, only: str) -> str:
    paths = {"VECTORS": texts.parent, "SPEED": texts, "SPEED_ONLY": Path(only)}
    return toolchains.swift_test(
        "--filter", "SpeedTests", paths={f"POCKETBERT_{name}": path for name, path in paths.items() if path != Path()}
    )


Rows = dict[tuple[str, str], dict[str, Any]]
"""What was measured, by tokenizer and file."""


def _read(log: str) -> Rows:
    rows = [json.loads(line) for line in _LINE.findall(log)]
    return {(row["tokenizer"], row["file"]): row for row in rows}


def _reference(home: Path, texts: list[str]) -> Rows:
    """Time the reference library, one text at a time as an app would."""
    found: Rows = {}
    for place in sorted(home.glob("*/tokenizer.json")):
        if not (place.parent / "rows.jsonl").is_file():
            continue
        document = place.read_text(encoding="utf-8")
        load = sorted(_millis(partial(Tokenizer.from_str, document)) for _ in range(5))[2]
        tokenizer = Tokenizer.from_str(document)

        def sentence(tokenizer: Tokenizer = tokenizer) -> None:
            for _ in range(1000):
                tokenizer.encode(_SENTENCE)

        def everything(tokenizer: Tokenizer = tokenizer) -> None:
            for text in texts:
                tokenizer.encode(text)

        one = sorted(_millis(sentence) for _ in range(7))[3]
        row = {"load_ms": load, "sentence_us": one, "texts_ms": _millis(everything)}
        found[place.parent.name, place.name] = row
    return found


def _millis(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1e3


_COLUMNS = {
    "load_ms": "load, ms", "cold_load_ms": "cold, ms", "kept_kb": "kept, kB", "sentence_us": "30 words, µs",
    "texts_ms": "texts, ms", "grown_kb": "grown, kB",
}  # fmt: skip


def _table(times: dict[str, Rows]) -> Table:
    table = Table(Column("tokenizer", no_wrap=True), "file", "library", *_COLUMNS.values())
    for tokenizer, file in sorted({place for rows in times.values() for place in rows}):
        for library, rows in times.items():
            if row := rows.get((tokenizer, file)):
                cells = (row.get(key) for key in _COLUMNS)
                numbers = ("" if cell is None else f"{cell:,.0f}" for cell in cells)
                table.add_row(tokenizer, Path(file).suffix, library, *numbers)
    return table


if __name__ == "__main__":
    sys.exit(main())
