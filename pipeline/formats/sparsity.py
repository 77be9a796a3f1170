"""Sparse storage: a student's matrices that are mostly zeros, and their storage in files. Imports nothing heavy."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.formats.structure import Structure
from pipeline.schemes import SPARSE_STORAGE

LEAST = 0.5
"""Fraction of zeros from which on a matrix is stored sparsely. Half precision with a bit for each element is smaller
from one sixteenth on; below a half it saves little, and coremltools keeps it dense by default."""
SMALL = 2048
"""Elements up to which coremltools compresses nothing."""


@lru_cache(maxsize=4)
def sparse_matrices(student: Path) -> tuple[str, ...]:
    """Return the names of a checkpoint's matrices that are mostly zeros."""
    from safetensors.torch import load_file

    found = load_file(student / "model.safetensors").items()
    return tuple(name for name, one in found if one.ndim == 2 and _mostly(int((one == 0).sum()), one.numel()))


def in_file(found: Structure, backend: str) -> dict[str, Any]:
    """Return the manifest's entries on sparse matrices in a converted file; empty if it has none."""
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
