"""Palettes: weights as indices into a few centroids, found by `pipeline.quantize` and used unchanged by converters.

The weights of a palettised checkpoint are the dequantised values, so it loads like any other. Beside them,
`palettes.safetensors` holds the centroids and indices, which converters write into the file without searching for
their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoint.ranges import QuantisedWeightRecord, QuantisedWeightsRecord
from pipeline.checkpoint.weights import PALETTES
from pipeline.errors import StudentError

RECORD = "palettes.json"
_INDICES, _LUT = ".indices", ".lut"
"""Suffixes of a weight's name in the file."""


@dataclass(frozen=True)
class Palette:
    """One palettised matrix or table."""

    indices: NDArray[np.uint8]
    """Index of each element's centroid, `(rows, columns)`."""
    lut: NDArray[np.float16]
    """Centroids `(groups, entries)`, ascending, for each group of neighbouring rows; all groups have the same size."""

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return int(self.lut.shape[1]).bit_length() - 1

    def dense(self) -> NDArray[np.float32]:
        """Return the dequantised weight, `(rows, columns)`."""
        group = np.arange(len(self.indices)) // (len(self.indices) // len(self.lut))
        found: NDArray[np.float32] = self.lut[group[:, None], self.indices].astype(np.float32)
        return found


class Palettised(QuantisedWeightRecord):
    """One weight as a palette."""

    groups: int
    """How many palettes it has, each for as many neighbouring rows."""


class Record(QuantisedWeightsRecord):
    """All weights of a student that have palettes."""

    weights: tuple[Palettised, ...]


def write(palettes: Mapping[str, Palette], folder: Path) -> None:
    """Write palettes by the names of their weights, beside the checkpoint that holds the numbers."""
    from safetensors.numpy import save_file

    tensors = {name + _INDICES: one.indices for name, one in palettes.items()}
    save_file({**tensors, **{name + _LUT: one.lut for name, one in palettes.items()}}, folder / PALETTES)


def read(folder: Path) -> dict[str, Palette]:
    """Return a checkpoint's palettes by the names of their weights.

    Raises:
        StudentError: there are none, or the indices and lists of one do not fit together.
    """
    from safetensors.numpy import load_file

    if not (folder / PALETTES).is_file():
        raise StudentError(f"{folder} has no {PALETTES}: it was not quantised for a scheme of palettes.")
    tensors = load_file(folder / PALETTES)
    found = {}
    for name in (one.removesuffix(_LUT) for one in tensors if one.endswith(_LUT)):
        lut, indices = tensors[name + _LUT], tensors.get(name + _INDICES)
        fits = (
            indices is not None
            and (lut.ndim, indices.ndim) == (2, 2)
            and (str(lut.dtype), str(indices.dtype)) == ("float16", "uint8")
            and lut.shape[1] == 1 << (lut.shape[1].bit_length() - 1)
            and len(indices) % len(lut) == 0
            and indices.size > 0
            and int(indices.max()) < lut.shape[1]
        )
        if not fits or indices is None:
            raise StudentError(f"{folder / PALETTES}: the indices and the list of {name} do not fit together.")
        found[name] = Palette(indices, lut)
    return found
