"""Texts and the ids that the reference library gives them, written for the tokenizers of both apps."""

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.text.encoding import Encoder

SCRIPTS = (
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x6FF),
    (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x137F), (0x1780, 0x17FF), (0x1AB0, 0x1EFF), (0x1F00, 0x1FFF),
    (0x2000, 0x209F), (0x20A0, 0x2BFF), (0x3000, 0x30FF), (0x3130, 0x33FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xF900, 0xFDFF), (0xFE00, 0xFFFD), (0x10000, 0x10FFF), (0x11000, 0x11FFF), (0x1D000, 0x1D7FF),
    (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF), (0xE000, 0xE010), (0x0, 0x1F), (0x7F, 0x9F), (0x1100, 0x11FF), (0xE0000, 0xE01EF),
)  # fmt: skip
_LONGEST = 40


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
        base, mark = draw.choice("aeionAEION0가ا"), draw.choice(_MARKS)
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


def write(folder: Path, tokenizer: Tokenizer, texts: Iterator[str], *, seed: int = 0) -> int:
    """Write a tokenizer and its rows; every ninth is a pair, every fifth is cut. Return the number of tokens.

    A row is `[first, second, longest row, ids, types, from, to]`; the last two are indices into the strings in UTF-16
    code units, or null where this Python's Unicode tables are too old to tell which characters are accents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    draw = random.Random(seed)
    before = "the text before"
    tokens = 0
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            second = before if number % 9 == 8 else None
            longest = draw.randint(6, _LONGEST) if number % 5 == 4 else None
            encoder = Encoder(tokenizer, longest or 1 << 20)
            row, spans = encoder.encode_with_offsets(text, second)
            sequences = tokenizer.encode(text, second).sequence_ids
            places = [_utf16((text, second or "")[which or 0], span) for which, span in zip(sequences, spans, strict=True)]
            known = all(unicodedata.category(c) != "Cn" for c in text + (second or ""))
            starts, ends = ([list(side) for side in zip(*places, strict=True)] or [[], []]) if known else (None, None)
            tokens += len(row.ids)
            file.write(json.dumps([text, second, longest, row.ids, row.types, starts, ends]) + "\n")
            before = text
    return tokens


def _utf16(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Return a span of characters as one of UTF-16 code units."""
    first, end = (at + sum(ord(c) > 0xFFFF for c in text[:at]) for at in span)
    return first, end
