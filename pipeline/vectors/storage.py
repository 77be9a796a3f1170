"""The forms in which an index stores vectors, one row each: what becomes of a vector, and how a query is compared.

The query is a float vector in every form: quantising it as well costs recall and saves nothing that counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.vectors.contract import LARGEST_CODE, Vectors

Floats = NDArray[np.floating]
StorageName = Literal["float32", "float16", "int8", "bits"]
_LARGEST_QUERY_CODE = 32_767
_LARGEST_SUM = 2**31 - 1


@dataclass(frozen=True)
class Storage:
    """One form."""

    name: StorageName
    bits: int
    """Bits of a number."""
    encode: Callable[[Floats, Floats], NDArray[Any]]
    """`(vectors (rows, width), scales (width,)) -> (rows, width)`, or bytes of eight signs each for bits."""
    decode: Callable[[NDArray[Any], Floats], Floats]
    """The vectors that the codes stand for, `(rows, width)`."""
    scores: Callable[[Floats, NDArray[Any], Floats], NDArray[Any]]
    """`(queries (queries, width), codes, scales) -> (queries, rows)`, larger is nearer. For each query they are its dot
    products with the stored vectors, up to a factor."""

    def bytes_per_vector(self, width: int) -> int:
        """Return the size of a vector of a width."""
        return -(-width * self.bits // 8)


def int8_codes(vectors: Floats, scales: Floats) -> NDArray[np.int8]:
    """Return codes between -127 and 127, a scale for each dimension; `(rows, width)`."""
    codes = np.rint(vectors.astype(np.float64) / np.asarray(scales, np.float64))
    return np.clip(codes, -LARGEST_CODE, LARGEST_CODE).astype(np.int8)


def largest_query_code(width: int) -> int:
    """Return the largest number by which int8 codes of a width are multiplied, see `query_codes`."""
    return min(_LARGEST_QUERY_CODE, _LARGEST_SUM // (LARGEST_CODE * width))


def query_codes(queries: Floats, scales: Floats) -> NDArray[np.int16]:
    """Return the whole numbers by which int8 codes are multiplied, `(queries, width)`.

    Each query times the scales, as 16-bit numbers that are as large as a 32-bit sum over all dimensions holds. So every
    language and processor computes the same score, and the same order.
    """
    scaled = queries.astype(np.float64) * np.asarray(scales, np.float64)
    most = largest_query_code(scaled.shape[1])
    largest = np.abs(scaled).max(1, keepdims=True)
    codes: NDArray[np.int16] = np.rint(scaled / np.where(largest > 0, largest, 1.0) * most).astype(np.int16)
    return codes


def _int8_scores(queries: Floats, codes: NDArray[Any], scales: Floats) -> NDArray[Any]:
    # Sums of whole numbers below 2^31 are exact in double precision, whose product is the fast one.
    return query_codes(queries, scales).astype(np.float64) @ codes.astype(np.float64).T


def packed(vectors: Floats) -> NDArray[np.uint8]:
    """Return the signs of vectors as bits, eight to a byte, `(rows, width / 8)`; their order is sqlite-vec's."""
    signs: NDArray[np.uint8] = np.packbits(vectors > 0, axis=1, bitorder="little")
    return signs


def _signs(codes: NDArray[Any], scales: Floats) -> Floats:
    """Return 1 and -1 of packed bits, `(rows, width)`."""
    bits = np.unpackbits(codes, axis=1, count=len(scales), bitorder="little")
    return bits.astype(np.float32) * 2 - 1


def _dot(queries: Floats, vectors: NDArray[Any]) -> NDArray[Any]:
    return queries.astype(np.float64) @ vectors.astype(np.float64).T


STORAGES: Mapping[StorageName, Storage] = {
    row.name: row
    for row in (
        Storage(
            "float32",
            32,
            lambda vectors, scales: vectors.astype(np.float32),
            lambda codes, scales: codes,
            lambda queries, codes, scales: _dot(queries, codes),
        ),
        Storage(
            "float16",
            16,
            lambda vectors, scales: vectors.astype(np.float16),
            lambda codes, scales: codes.astype(np.float32),
            lambda queries, codes, scales: _dot(queries, codes),
        ),
        Storage(
            "int8",
            8,
            int8_codes,
            lambda codes, scales: codes.astype(np.float64) * np.asarray(scales, np.float64),
            _int8_scores,
        ),
        Storage(
            "bits",
            1,
            lambda vectors, scales: packed(vectors),
            _signs,
            lambda queries, codes, scales: _dot(queries, _signs(codes, scales)),
        ),
    )
}


def similarities(
    queries: Floats, documents: Floats, storage: Storage, contract: Vectors, *, width: int
) -> NDArray[np.float64]:
    """Return how near queries are to documents that an index stores, `(queries, documents)`, up to a factor a query.

    Args:
        queries: embeddings, `(queries, whole width)`.
        documents: the same of the documents.
        storage: the form in which the index has the documents.
        contract: of the vectors.
        width: how many leading numbers are stored and compared.
    """
    kept = np.asarray(contract.scales, np.float64)[:width]
    codes = storage.encode(documents[:, :width], kept)
    found = storage.scores(queries[:, :width], codes, kept)
    if contract.compared_by == "dot" or (contract.unit_length and width == documents.shape[1]):
        return found
    norms = np.linalg.norm(storage.decode(codes, kept), axis=1)
    result: NDArray[np.float64] = found / np.where(norms > 0, norms, np.inf)
    return result
