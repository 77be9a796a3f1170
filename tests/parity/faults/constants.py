"""Find a checkpoint's tensor in a converted file by its bytes, and overwrite it there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_HALF_RANGES = (127.0, 127.5)
"""A row's largest number over its scale: LiteRT and Core ML use 127, torchao 127.5."""


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


def quantised(model: Path, weights: Floats) -> Quantised:
    """Return a tensor's int8 values and scales, one a row, as the file holds them.

    Raises:
        NotFound: the file holds it in another form.
    """
    content = bytes_file(model).read_bytes()
    for half_range in _HALF_RANGES:
        scales = np.abs(weights).max(axis=1) / np.float32(half_range)
        values = np.clip(np.round(weights / scales[:, None]), -128, 127).astype(np.int8)
        if _mostly_in(values, content):
            found = _stored(values, content)
            return Quantised(found, _scales(scales, content))
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


def _scales(scales: Floats, content: bytes) -> NDArray[Any]:
    """Find the scales, in whatever float type, by their beginning, and read them all."""
    for dtype in (np.float32, np.float16, np.float64):
        for nudge in (0, -1, 1):
            start = scales[:1].astype(dtype) if not nudge else np.nextafter(scales[:1].astype(dtype), np.inf * nudge)
            at = content.find(start.astype(dtype).tobytes())
            while at >= 0:
                if at + len(scales) * np.dtype(dtype).itemsize <= len(content):
                    found = np.frombuffer(content, dtype, len(scales), at)
                    if np.allclose(found, scales, rtol=2e-3, atol=0):
                        return found
                at = content.find(start.astype(dtype).tobytes(), at + 1)
    raise NotFound("the scales of this tensor are not in the file")
