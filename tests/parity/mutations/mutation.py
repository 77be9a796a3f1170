"""Mutations: what is done to a file, drawn from a seed and a number alone, so that each can be made again."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mutations.subject import Subject

_LONGEST = 4096
"""Bytes of a slice that is moved or swapped."""
_NEAR = (0, 1, 2, 4, 8, 64, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
"""What an offset is replaced by, besides any number and numbers beside its own."""


@dataclass(frozen=True)
class Mutation:
    """One damaged file."""

    number: int
    kind: str
    everywhere: bool
    """Whether its place was drawn from the whole file; otherwise from what is no weight."""
    path: str
    """The part, in the model folder."""
    at: int
    """The first byte of that part that is changed."""
    bit: int | None
    """The one bit that is flipped, if it is one."""
    content: bytes
    """The damaged part."""


def _flipped(content: bytearray, at: int, random: np.random.Generator) -> None:
    content[at] ^= 1 << int(random.integers(8))


def _set(value: int) -> Callable[[bytearray, int, np.random.Generator], None]:
    def change(content: bytearray, at: int, random: np.random.Generator) -> None:
        # What has this value already is given its opposite.
        content[at] = value if content[at] != value else value ^ 255

    return change


def _truncated(content: bytearray, at: int, random: np.random.Generator) -> None:
    del content[at:]


def _extended(content: bytearray, at: int, random: np.random.Generator) -> None:
    content[at:at] = random.bytes(int(random.integers(1, _LONGEST)))


def _moved(content: bytearray, at: int, random: np.random.Generator) -> None:
    taken = bytes(content[at : at + int(random.integers(1, _LONGEST))])
    del content[at : at + len(taken)]
    to = int(random.integers(len(content) + 1))
    content[to:to] = taken


def _swapped(content: bytearray, at: int, random: np.random.Generator) -> None:
    size = int(random.integers(1, _LONGEST))
    other = int(random.integers(len(content)))
    size = min(size, abs(other - at), len(content) - max(at, other))
    one, two = bytes(content[at : at + size]), bytes(content[other : other + size])
    content[at : at + size], content[other : other + size] = two, one


def _offset(content: bytearray, at: int, random: np.random.Generator) -> None:
    at = min(at // 4 * 4, max(len(content) - 4, 0))
    found = int.from_bytes(content[at : at + 4], "little")
    drawn = (
        int(random.choice(_NEAR)),
        int(random.integers(2**32)),
        found + int(random.choice((-8, -4, -1, 1, 4, 8))),
        int(random.integers(len(content))),
    )
    value = drawn[int(random.integers(len(drawn)))] % 2**32
    content[at : at + 4] = value.to_bytes(4, "little")


KINDS: dict[str, Callable[[bytearray, int, np.random.Generator], None]] = {
    "bit flipped": _flipped,
    "byte set to 0": _set(0),
    "byte set to 255": _set(255),
    "cut off": _truncated,
    "bytes put in": _extended,
    "slice moved": _moved,
    "slices swapped": _swapped,
    "32-bit number replaced": _offset,
}


def mutation(subject: Subject, seed: int, number: int) -> Mutation:
    """Return mutation `number`: the kinds take turns, every other place is drawn from what is no weight."""
    random = _random(subject, seed, number)
    kind = list(KINDS)[number % len(KINDS)]
    everywhere = number // len(KINDS) % 2 == 0
    return _made(subject, number, kind, everywhere, random)


def flip(subject: Subject, seed: int, number: int) -> Mutation:
    """Return the single bit flip `number`; every other place is drawn from what is no weight."""
    return _made(subject, number, "bit flipped", number % 2 == 0, _random(subject, seed, number))


def _random(subject: Subject, seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number, zlib.crc32(subject.name.encode())])


def _made(subject: Subject, number: int, kind: str, everywhere: bool, random: np.random.Generator) -> Mutation:
    while True:
        place = int(random.integers(subject.size)) if everywhere else int(random.choice(subject.rest))
        part = subject.part_at(place)
        clean = (subject.folder / part.path).read_bytes()
        at = place - part.start
        content = bytearray(clean)
        KINDS[kind](content, at, random)
        if content != clean:
            bit = (content[at] ^ clean[at]).bit_length() - 1 if kind == "bit flipped" else None
            return Mutation(number, kind, everywhere, part.path, at, bit, bytes(content))
