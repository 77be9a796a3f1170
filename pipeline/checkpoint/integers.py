"""Weights as integers with scales of `pipeline.quantize`; converted files have the same codes and the same scales.

A checkpoint whose weights were rounded holds the numbers that a file gives, so it is one like any other. Beside them
lie the codes and the scales, `integers.safetensors`: converters put them in as they are, and round nothing themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.ranges import QuantisedWeightRecord, QuantisedWeightsRecord
from pipeline.checkpoint.weights import CODES
from pipeline.errors import StudentError

RECORD = "integers.json"
_CODES, _SCALES, _BITS = ".codes", ".scales", ".bits"
"""Suffixes of a weight's name in the file."""
LOWEST: Mapping[int, int] = {4: -8, 8: -127}
HIGHEST: Mapping[int, int] = {4: 7, 8: 127}
"""Largest code by number of bits, as `LOWEST` has the smallest. The zero point is 0."""


@dataclass(frozen=True)
class Integers:
    """One quantised matrix or table: `codes · scales`, with a scale per block of neighbouring columns of a row."""

    codes: NDArray[np.int8]
    """`(rows, columns)`, from `LOWEST` to `HIGHEST` of its bits."""
    scales: NDArray[np.float32]
    """`(rows, blocks)`, all blocks of the same size. Each scale is exact in bfloat16 and in float16: XNNPACK stores
    block scales in the former, LiteRT and Core ML in the latter."""
    bits: int
    """4 or 8."""

    @property
    def block(self) -> int:
        """Columns that share a scale."""
        return int(self.codes.shape[1]) // int(self.scales.shape[1])

    def dense(self) -> NDArray[np.float32]:
        """Return the dequantised weight, `(rows, columns)`; exact in float32."""
        return self.codes.astype(np.float32) * self.scales.repeat(self.block, axis=1)


class Rounded(QuantisedWeightRecord):
    """The record of one weight quantised to integers."""

    bits: int
    block: int
    """Columns that share a scale."""


class Record(QuantisedWeightsRecord):
    """The record of all integer weights of a student."""

    weights: tuple[Rounded, ...]


def write(integers: Mapping[str, Integers], folder: Path) -> None:
    """Write integer weights by name, beside the checkpoint that holds their dequantised values."""
    from safetensors.numpy import save_file

    tensors: dict[str, NDArray[np.generic]] = {}
    for name, one in integers.items():
        tensors |= {name + _CODES: one.codes, name + _SCALES: one.scales, name + _BITS: np.array([one.bits], np.uint8)}
    save_file(tensors, folder / CODES)


def read(folder: Path) -> dict[str, Integers]:
    """Return a checkpoint's integers by the names of their weights.

    Raises:
        StudentError: there are none, or the codes and scales of one do not fit together.
    """
    from safetensors.numpy import load_file

    if not (folder / CODES).is_file():
        raise StudentError(f"{folder} has no {CODES}: it was not quantised for a scheme of integers.")
    tensors = load_file(folder / CODES)
    found = {}
    for name in (one.removesuffix(_CODES) for one in tensors if one.endswith(_CODES)):
        codes, scales, bits = (tensors.get(name + end) for end in (_CODES, _SCALES, _BITS))
        if codes is None or scales is None or bits is None or not _fit(codes, scales, bits):
            raise StudentError(f"{folder / CODES}: the codes and the scales of {name} do not fit together.")
        found[name] = Integers(codes, scales, int(bits[0]))
    return found


def _fit(codes: NDArray[Any], scales: NDArray[Any], bits: NDArray[Any]) -> bool:
    kinds = (str(codes.dtype), str(scales.dtype), str(bits.dtype), bits.shape)
    if kinds != ("int8", "float32", "uint8", (1,)) or int(bits[0]) not in LOWEST:
        return False
    shaped = codes.ndim == scales.ndim == 2 and 0 not in (*codes.shape, *scales.shape)
    if not shaped or len(codes) != len(scales) or codes.shape[1] % scales.shape[1]:
        return False
    within = LOWEST[int(bits[0])] <= int(codes.min()) and int(codes.max()) <= HIGHEST[int(bits[0])]
    return within and bool(np.isfinite(scales).all() and (scales > 0).all())
