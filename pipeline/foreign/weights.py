"""How a file keeps its weights, read back from its constants where its format has a reader, else told by its size."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.artifact import file_bytes
from pipeline.errors import PipelineError
from pipeline.foreign import reference, session
from pipeline.foreign.record import Cause, Storage
from pipeline.formats.ports import Array
from pipeline.formats.structure import Structure
from pipeline.schemes import SCHEMES, Scheme

_SMALL = 1024
"""Elements below which a constant says nothing of a scheme: norms, and what is not quantised for its size."""
_ALIKE = 0.98
"""Cosine from which on a constant is a matrix of the checkpoint; four bits leave .99."""
_SCALED = 0.02
"""Relative difference of scale that no rounding makes."""
_FULL_BYTES = 3.5
"""Bytes per parameter from which on weights are in single precision."""


def read(file: Path) -> Storage:
    """Return how a file keeps its weights. Runs in the checkpoint's worker; a reader meets a file of anybody's.

    Args:
        file: the file or package.
    """
    size = file_bytes(file) / reference.parameters()
    try:
        found = session.reader_of(file)(file)
    except PipelineError as error:
        return _by_size(size, f"the size of the file; its constants could not be read: {error}")
    matrices = {name: one for name, one in reference.matrices() if one.size >= _SMALL}
    matched, findings = _compare(matrices, found)
    scheme = _scheme(found)
    return Storage(scheme.name if scheme else None, "its constants", size, len(matched), len(matrices), tuple(findings))


def _by_size(size: float, how: str) -> Storage:
    """Return a storage by bytes alone: in single precision, or unknown."""
    full = max(SCHEMES.values(), key=lambda scheme: scheme.weight_bytes)
    return Storage(full.name if size >= _FULL_BYTES else None, how, size)


def _scheme(found: Structure) -> Scheme | None:
    """Return the scheme that stores weights like the coarsest kind in a file, and computes linears like its own."""
    stored = {one.stored for one in found.constants if one.values.size >= _SMALL}
    arithmetic = next((kind for kind in ("static_int8", "dynamic_int8") if kind in found.arithmetic), "float")
    rows = [scheme for scheme in SCHEMES.values() if scheme.weights in stored]
    coarsest = min((scheme.weight_bytes for scheme in rows), default=None)
    rows = [scheme for scheme in rows if scheme.weight_bytes == coarsest]
    same = [scheme for scheme in rows if scheme.activations == arithmetic] or rows
    return min(same, key=lambda scheme: scheme.gates["embedding"].min_mean_cosine or 0.0, default=None)


def _compare(matrices: Mapping[str, Array], found: Structure) -> tuple[list[str], list[Cause]]:
    """Return which matrices of the checkpoint a file has, and what is wrong with them."""
    constants = [one.values.squeeze() for one in found.constants]
    tables = [form for one in constants if one.ndim == 2 and one.size >= _SMALL for form in (one, one.T)]
    matched, findings = [], []
    for name, matrix in matrices.items():
        candidates = [one for one in tables if one.shape[1] == matrix.shape[1] and len(one) <= len(matrix)]
        best, scale = max((_alike(matrix[: len(one)], one) for one in candidates), default=(0.0, 1.0))
        if best >= _ALIKE:
            matched.append(name)
            if abs(scale - 1.0) > _SCALED:
                findings.append(Cause("weights_scaled", f"{name} is {scale:.3g} times the checkpoint's", 0))
        elif any(_same_rows(matrix, one) for one in candidates):
            words = f"{name} has the checkpoint's rows in another order: ids are those of another vocabulary"
            findings.append(Cause("vocabulary", words, 0))
    return matched, findings


def _alike(matrix: Array, constant: Array) -> tuple[float, float]:
    """Return the cosine of a matrix and a constant, and how many times the matrix the constant is.

    A table of positions may be cut to the length of the file.
    """
    product = float((constant * matrix).sum())
    size, own = float((matrix * matrix).sum()), float((constant * constant).sum())
    return (product / (size * own) ** 0.5, product / size) if size > 0 and own > 0 else (0.0, 1.0)


def _same_rows(matrix: Array, constant: Array) -> bool:
    """Return whether a constant has the rows of a matrix, in another order."""
    if constant.shape != matrix.shape:
        return False
    ours, theirs = (np.sort(np.linalg.norm(rows, axis=1)) for rows in (matrix, constant))
    # Rows that are all alike would be those of any table.
    return bool(np.allclose(ours, theirs, rtol=0.02, atol=1e-6) and np.ptp(ours) > 0.05 * ours.mean())
