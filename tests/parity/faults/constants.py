"""Find a checkpoint's tensor in a converted file by its bytes, and overwrite it there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_ROUNDINGS: tuple[tuple[Any, float], ...] = ((np.float32, 127.0), (np.float32, 127.5), (np.float16, 127.0))
"""What a quantizer computes in, and a row's largest number over its scale: LiteRT, torchao, Core ML."""


class NotFound(Exception):
    """The file does not hold the bytes that a fault wants to change."""


@dataclass(frozen=True)
class Quantised:
    """An int8 tensor as a file holds it."""

    values: NDArray[np.int8]
    scales: NDArray[Any]


def bytes_file(model: Path) -> Path:
    """Return the plain file in which a model keeps its constants."""
    return model if model.is_file() else next(model.rglob("weight.bin"))


def overwrite(model: Path, old: NDArray[Any], new: NDArray[Any]) -> None:
    """Replace every copy of an array's bytes by another's of the same size.

    Raises:
        NotFound: there is none.
    """
    file = bytes_file(model)
    content = file.read_bytes()
    before, after = old.tobytes(), new.astype(old.dtype).tobytes()
    if before not in content or len(before) != len(after):
        raise NotFound(f"{file.name} holds no {old.dtype} {old.shape} with these bytes")
    file.write_bytes(content.replace(before, after))


def exchange(model: Path, one: Floats, other: Floats) -> None:
    """Exchange two vectors in every place, in whatever float type the file has them.

    Raises:
        NotFound: it has one of them in none.
    """
    file = bytes_file(model)
    content = file.read_bytes()
    for dtype in (np.float32, np.float16):
        first, second = (vector.astype(dtype).tobytes() for vector in (one, other))
        if first in content and second in content:
            aside = bytes(byte ^ 0xA5 for byte in first)
            assert aside not in content
            file.write_bytes(content.replace(first, aside).replace(second, first).replace(aside, second))
            return
    raise NotFound(f"{file.name} does not hold both vectors")


def quantised(model: Path, weights: Floats) -> Quantised:
    """Return a tensor's int8 values and scales, one a row, as the file holds them.

    Raises:
        NotFound: the file holds it in another form.
    """
    content = bytes_file(model).read_bytes()
    for dtype, half_range in _ROUNDINGS:
        rounded = weights.astype(dtype)
        scales = np.abs(rounded).max(axis=1) / dtype(half_range)
        values = np.clip(np.round(rounded / scales[:, None]), -128, 127).astype(np.int8)
        if _mostly_in(values, content):
            return Quantised(_stored(values, content), _scales(scales, content))
    raise NotFound(f"{model.name} holds no int8 form of this tensor")


def _mostly_in(values: NDArray[np.int8], content: bytes) -> bool:
    """Ties may have been rounded otherwise in some rows; half of them are proof enough."""
    sample = values[:: max(1, len(values) // 16)]
    return sum(row.tobytes() in content for row in sample) * 2 > len(sample)


def _stored(values: NDArray[np.int8], content: bytes) -> NDArray[np.int8]:
    """Read the whole tensor from the file, beginning where one of its rows was found."""
    for number, row in enumerate(values):
        at = content.find(row.tobytes())
        start = at - number * values.shape[1]
        if at >= 0 and start >= 0:
            found = np.frombuffer(content, np.int8, values.size, start).reshape(values.shape)
            if np.abs(found.astype(int) - values).max() <= 1:
                return found
    raise NotFound("the rows are there, but not as one tensor")


def _scales(scales: NDArray[Any], content: bytes) -> NDArray[Any]:
    """Find the scales, in whatever float type, by the first one or its neighbours, and read them all."""
    for dtype in (np.float32, np.float16, np.float64):
        first = scales[:1].astype(dtype)
        for start in (first, np.nextafter(first, dtype(0)), np.nextafter(first, dtype(np.inf))):
            for at in _places(start.tobytes(), content, len(content) - scales.size * first.itemsize):
                found = np.frombuffer(content, dtype, scales.size, at)
                if np.allclose(found, scales, rtol=2e-3, atol=0):
                    return found
    raise NotFound("the scales of this tensor are not in the file")


def _places(wanted: bytes, content: bytes, last: int) -> Iterator[int]:
    at = content.find(wanted)
    while 0 <= at <= last:
        yield at
        at = content.find(wanted, at + 1)
