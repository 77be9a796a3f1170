"""ALBERT's rule for numbers, as places where a fast tokenizer cuts before it looks for pieces.

The rule (google-research/albert, `encode_pieces`): the best path may use pieces such as `▁2010,`; each one that ends
in a digit and a comma is then cut again without its comma. A fast tokenizer cannot cut twice, so the cuts come first:

- at a comma that no digit follows: no piece goes on behind it, so both ways give the same pieces;
- behind `▁N` where `▁N,` is a piece and a digit follows, unless a piece over the comma (`2,000`) makes a better path.
  Which digits do that is found by asking the model itself: up to three, with each tail that some piece goes on with.

Not covered: four and more digits without a comma behind such a number (`1,2345`).
"""

import re
from collections.abc import Iterator

from tokenizers import Tokenizer
from tokenizers.models import Unigram

from pipeline.errors import StudentError

_SPACE = "▁"
_RULED = re.compile(rf"{_SPACE}(\d+),")


def cuts(pieces: list[str], vocabulary: list[tuple[str, float]], *, unknown: int, file: object) -> list[str]:
    """Return patterns of the commas that are cut off, for pieces of a model and its scored vocabulary.

    Raises:
        StudentError: a piece holds a comma in a way for which the cuts would not be the rule.
    """
    ruled = [match.group(1) for piece in pieces if (match := _RULED.fullmatch(piece))]
    over = [piece for piece in pieces if "," in piece and piece != "," and not _RULED.fullmatch(piece)]
    strange = [piece for piece in over if not re.fullmatch(r"[^,]*(,\d+)+", piece)]
    if strange or "," not in pieces:
        raise StudentError(
            f"{file} has {f'the piece {strange[0]!r}' if strange else 'no comma'}; ALBERT's rule for numbers cannot be "
            "applied here. Save tokenizer.json beside the model."
        )
    path = Tokenizer(Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
    tails = sorted({"", *_tails(pieces)})
    alike: dict[str, list[str]] = {}
    for number in ruled:
        kept = "|".join(_kept(path, number, _behind(over, number), tails))
        alike.setdefault(f"(?!{kept})" if kept else "", []).append(rf"\A{_SPACE}{number}")
    rules = [rf"(?<={'|'.join(numbers)}),(?=\d){unless}" for unless, numbers in alike.items()]
    return [r",(?!\d)", *rules]


def _tails(pieces: list[str]) -> Iterator[str]:
    """Say what pieces go on with behind up to three digits, such as `%` and `,000`."""
    for piece in pieces:
        if match := re.fullmatch(r"\d{1,3}([^\d].*)|(,.+)", piece):
            yield match.group(1) or match.group(2)


def _behind(over: list[str], number: str) -> tuple[str, ...]:
    """Return what stands behind the comma in pieces that could take the end of a number and its comma."""
    found = set()
    for piece in over:
        before, _, after = piece.partition(",")
        if number.endswith(before.removeprefix(_SPACE)):
            found.add(after.split(",")[0][:3])
    return tuple(found)


def _kept(path: Tokenizer, number: str, starts: tuple[str, ...], tails: list[str]) -> Iterator[str]:
    """Describe what follows where the best path goes over the comma."""
    for width in (1, 2, 3):
        for digits in (f"{value:0{width}d}" for value in range(10**width)):
            if digits.startswith(starts):
                yield from _kept_tails(path, number, digits, tails)


def _kept_tails(path: Tokenizer, number: str, digits: str, tails: list[str]) -> Iterator[str]:
    ruled = f"{_SPACE}{number},"
    over = {tail: path.encode(ruled + digits + tail).tokens[0] != ruled for tail in tails}
    for tail in tails:
        longer = [other for other in tails if other.startswith(tail) and over[other] != over[tail]]
        implied = [other for other in tails if other != tail and tail.startswith(other) and over[other] == over[tail]]
        if over[tail] and not implied:
            unless = "|".join(re.escape(other[len(tail) :]) for other in longer)
            yield re.escape(digits + tail) + r"(?!\d)" + (f"(?!{unless})" if unless else "")
