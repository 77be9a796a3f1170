"""`make core-speed`: both cores' tokenizers beside Hugging Face's `tokenizers`, in one run.

It prints a table and asserts nothing.
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
from rich.table import Table
from tokenizers import Tokenizer

from apps import toolchains
from apps.tokenizers import kit
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
            times[name] = _read(measure(file))
        except toolchains.Lacking as error:
            print(f"{name}: not measured: {error}")
    # A pipe has no width; nothing is cut there.
    Console(width=None if sys.stdout.isatty() else 120).print(_table(times))
    return 0


def _kotlin(texts: Path) -> str:
    return toolchains.maven(
        "test", "-Dtest=SpeedTest", f"-Dpocketbert.speed={texts}", f"-Dpocketbert.vectors={texts.parent}"
    )


def _swift(texts: Path) -> str:
    paths = {"POCKETBERT_VECTORS": texts.parent, "POCKETBERT_SPEED": texts}
    return toolchains.swift_test("--filter", "SpeedTests", paths=paths)


def _read(log: str) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in _LINE.findall(log)]
    return {row["tokenizer"]: row for row in rows}


def _reference(home: Path, texts: list[str]) -> dict[str, dict[str, Any]]:
    """Time the reference library, one text at a time as an app would."""
    found = {}
    for place in sorted(home.glob("*/tokenizer.json")):
        if not (place.parent / "rows.jsonl").is_file():
            continue
        document = place.read_text(encoding="utf-8")
        load = min(_millis(partial(Tokenizer.from_str, document)) for _ in range(5))
        tokenizer = Tokenizer.from_str(document)

        def sentence(tokenizer: Tokenizer = tokenizer) -> None:
            for _ in range(1000):
                tokenizer.encode(_SENTENCE)

        def everything(tokenizer: Tokenizer = tokenizer) -> None:
            for text in texts:
                tokenizer.encode(text)

        one = sorted(_millis(sentence) for _ in range(7))[3]
        found[place.parent.name] = {"load_ms": load, "sentence_us": one, "texts_ms": _millis(everything)}
    return found


def _millis(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1e3


def _table(times: dict[str, dict[str, dict[str, Any]]]) -> Table:
    table = Table("tokenizer", "library", "load, ms", "cold, ms", "30 words, µs", f"{TEXTS:,} texts, ms", "grown, kB")
    for name in times["tokenizers"]:
        for library, rows in times.items():
            row = rows.get(name, {})
            cells = [row.get(key) for key in ("load_ms", "cold_load_ms", "sentence_us", "texts_ms", "grown_kb")]
            table.add_row(name, library, *("" if cell is None else f"{cell:,.0f}" for cell in cells))
    return table


if __name__ == "__main__":
    sys.exit(main())
