"""Texts and the ids that the reference library gives them, written for the tokenizers of both apps."""

import itertools
import json
import random
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.text.encoding import Encoder

SCRIPTS = (
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x3FF),
    (0x400, 0x52F), (0x530, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x137F), (0x1780, 0x17FF),
    (0x1AB0, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x209F), (0x20A0, 0x2BFF), (0x3000, 0x30FF), (0x3130, 0x33FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFDFF), (0xFE00, 0xFFFD), (0x10000, 0x10FFF), (0x11000, 0x11FFF),
    (0x1D000, 0x1D7FF), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0xE000, 0xE010), (0x0, 0x1F), (0x7F, 0x9F),
    (0x1100, 0x11FF), (0xE0000, 0xE01EF),
)  # fmt: skip
_LONGEST = 40
_UNCUT = 1 << 20
Pair = tuple[str, str | None]


@dataclass(frozen=True)
class Written:
    """What was written of one tokenizer."""

    rows: int
    tokens: int


def strings(words: list[str], *, count: int, seed: int) -> Iterator[str]:
    """Yield generated strings: words of a vocabulary, runs of one script, and characters of all of them."""
    draw = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 6)):
            parts.append(_part(draw, words))
            if draw.random() < 0.6:
                parts.append(draw.choice((" ", " ", " ", "  ", "\t", "\n", "\u3000", "\u00a0", "\u200b")))
        yield "".join(parts)


def _part(draw: random.Random, words: list[str]) -> str:
    kind = draw.random()
    if kind < 0.35:
        word = draw.choice(words).removeprefix("##").removeprefix("▁")
        return draw.choice((word, word.upper(), word.title(), word[::-1]))
    if kind < 0.75:
        first, last = draw.choice(SCRIPTS)
        return "".join(_character(draw, first, last) for _ in range(draw.randint(1, 8)))
    if kind < 0.9:
        base, mark = draw.choice("aeionAEION0\uac00\u0627"), draw.choice(_MARKS)
        return base + "".join(draw.choice((mark, draw.choice(_MARKS))) for _ in range(draw.randint(1, 3)))
    return "".join(_character(draw, *draw.choice(SCRIPTS)) for _ in range(draw.randint(1, 5)))


def _character(draw: random.Random, first: int, last: int) -> str:
    return chr(draw.randint(first, last))


_MARKS = [chr(c) for c in range(0x300, 0x370)] + [c for c in map(chr, range(0x590, 0x1DFF)) if unicodedata.combining(c)]


def every_character() -> Iterator[str]:
    """Yield every code point between letters, alone, and behind a letter, sixteen a string."""
    for first in range(0, 0x30000, 16):
        group = [chr(code) for code in range(first, first + 16) if not 0xD800 <= code <= 0xDFFF]
        yield " ".join(f"a{c}b" for c in group)
        yield "".join(group)
    for code in (*range(0xE0000, 0xE01F0), *range(0x10FFF0, 0x110000)):
        yield f"a{chr(code)}b {chr(code)}"


def write(folder: Path, tokenizer: Tokenizer, real: Sequence[Pair], generated: Iterable[str], *, seed: int) -> Written:
    """Write a tokenizer and its rows.

    A row is `[first, second, longest row, ids, types, from, to]`. The last two are the spans of tokens in the strings,
    in UTF-16 code units; they are null for generated strings, where marks in impossible places make them a matter of
    taste. Of the generated strings every ninth is a pair and every fifth is cut; real texts are given whole and cut.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    rows = tokens = 0
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in itertools.chain(_real(tokenizer, real), _generated(tokenizer, generated, seed)):
            file.write(json.dumps(row) + "\n")
            rows += 1
            tokens += len(row[3])
    return Written(rows, tokens)


def _real(tokenizer: Tokenizer, texts: Sequence[Pair]) -> Iterator[list[Any]]:
    for length in (None, 32):
        encoder = Encoder(tokenizer, length or _UNCUT)
        for first, second in texts:
            row, spans = encoder.encode_with_offsets(first, second)
            sequences = tokenizer.encode(first, second).sequence_ids
            places = [
                _utf16((first, second or "")[which or 0], span) for which, span in zip(sequences, spans, strict=True)
            ]
            starts, ends = zip(*places, strict=True)
            yield [first, second, length, row.ids, row.types, starts, ends]


def _generated(tokenizer: Tokenizer, texts: Iterable[str], seed: int) -> Iterator[list[Any]]:
    draw = random.Random(seed)
    before = "the text before"
    for number, text in enumerate(texts):
        second = before if number % 9 == 8 else None
        longest = draw.randint(6, _LONGEST) if number % 5 == 4 else None
        if longest:
            tokenizer.enable_truncation(longest)
        else:
            tokenizer.no_truncation()
        row = tokenizer.encode(text, second)
        yield [text, second, longest, row.ids, row.type_ids, None, None]
        before = text


def _utf16(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return a span of characters as one of UTF-16 code units."""
    first, end = (len(text[:at].encode("utf-16-le", "surrogatepass")) // 2 for at in span)
    return first, end
