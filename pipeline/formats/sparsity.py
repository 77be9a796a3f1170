"""Zeros in a student's matrices: what they buy in each format. Imports nothing heavy."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.formats.structure import Structure
from pipeline.schemes import SPARSE_STORAGE

LEAST = 0.5
"""Fraction of zeros from which on a matrix is stored without them. Half precision with a bit for each place is smaller
from one sixteenth on; below a half it saves little, and coremltools keeps it dense by default."""
SMALL = 2048
"""Elements below which coremltools compresses nothing."""


@lru_cache(maxsize=4)
def sparse_matrices(student: Path) -> tuple[str, ...]:
    """Return the names of a checkpoint's matrices that are mostly zeros."""
    from safetensors.torch import load_file

    found = load_file(student / "model.safetensors").items()
    return tuple(name for name, one in found if one.ndim == 2 and _mostly(int((one == 0).sum()), one.numel()))


def in_file(found: Structure, backend: str) -> dict[str, Any]:
    """Return what the manifest says of the zeros in a converted file; nothing where there are none to speak of."""
    matrices = [one for one in found.constants if one.values.squeeze().ndim == 2]
    sparse = [one for one in matrices if _mostly(int((one.values == 0).sum()), one.values.size)]
    if not sparse:
        return {}
    stored = sum(one.sparse for one in sparse)
    said = (
        f"{stored} of {len(sparse)} sparse matrices are stored without their zeros"
        if stored
        else SPARSE_STORAGE[backend]
    )
    return {"sparse_matrices": len(sparse), "stored_without_zeros": stored, "zeros": said}


def _mostly(zeros: int, size: int) -> bool:
    return size > SMALL and zeros > LEAST * size
