"""How far a file's outputs are from the reference's, and which scheme's bounds that keeps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.foreign.record import Cause, Storage, Verdict
from pipeline.formats.ports import Array
from pipeline.kinds import OutputKind
from pipeline.metrics import measures
from pipeline.schemes import SCHEMES, Gates, Scheme
from pipeline.verify.structure import declared_sqnr_db


@dataclass(frozen=True)
class Measured:
    """Outputs of all rows against the reference's."""

    scores: Array | None
    """Cosine of each embedding, or SQNR of each row in dB; None where shapes differ or a number is not finite."""
    mean_score: float | None
    sqnr_db: float | None
    agreement: float | None
    kl: float | None


def measure(kind: OutputKind, reference: Sequence[Array], found: Sequence[Array]) -> Measured:
    """Measure a file's outputs."""
    alike = all(a.shape == b.shape and np.isfinite(b).all() for a, b in zip(reference, found, strict=True))
    if not alike:
        return Measured(None, None, None, None, None)
    right, own = np.concatenate(reference), np.concatenate(found)
    if kind == "embedding":
        scores = measures.cosine(right, own)
        # A vector of zeros has no direction: it is as wrong as can be.
        scores = np.where(np.isfinite(scores), scores, -1.0)
    else:
        scores = np.array([measures.sqnr_db(a, b) for a, b in zip(reference, found, strict=True)])
    agreement = measures.same_decisions(kind, reference, found)
    kl = measures.mean_kl_divergence(kind, reference, found)
    finite = scores[np.isfinite(scores)]
    mean = float(finite.mean()) if len(finite) else None
    return Measured(scores, mean, measures.sqnr_db(right, own), agreement, kl)


def scheme_kept(
    measured: Measured, storage: Storage, kind: OutputKind, backend: str | None, activation: str
) -> str | None:
    """Return the scheme that a file is rounded as if its outputs keep the bounds, or None.

    That is the finest whose bounds they keep, but none finer than the file's storage. A file in single precision may
    compute in half, and one of unknown storage may be rounded in any way.
    """
    own = SCHEMES[storage.scheme] if storage.scheme else None
    declared = declared_sqnr_db(backend, (activation,)) if backend else float("inf")
    for scheme in _allowed(own):
        if _keeps(measured, scheme.gates[kind], declared):
            if own is None or scheme.weight_bytes < own.weight_bytes:
                return scheme.name
            # Of the same weights, the bounds that are kept; in floats and finer, the storage that was read.
            coarser = scheme.weights == own.weights and _fineness(scheme) < _fineness(own)
            return scheme.name if coarser else own.name
    return None


def _fineness(scheme: Scheme) -> float:
    """Return how close to the reference a scheme promises to be; the larger, the finer."""
    return scheme.gates["embedding"].min_mean_cosine or 0.0


def _allowed(own: Scheme | None) -> Iterator[Scheme]:
    """Yield schemes from the finest to the coarsest that a file of a scheme may look like."""
    ordered = sorted(SCHEMES.values(), key=_fineness, reverse=True)
    floats = [scheme for scheme in ordered if scheme.granularity is None and scheme.palette_bits is None]
    if own is None:
        yield from ordered
    elif own in floats:
        yield from floats
    else:
        # Another tool may round activations with one scale per tensor, as onnxruntime does; ours has one per token.
        alike = [scheme for scheme in ordered if scheme.weights == own.weights]
        yield from (*floats, *alike)


def _keeps(measured: Measured, gates: Gates, declared: float) -> bool:
    """Return whether outputs keep a scheme's bounds; a NaN keeps none."""
    if measured.scores is None:
        return False
    sqnr = None if gates.min_sqnr_db is None else min(gates.min_sqnr_db, declared)
    least = [
        (measured.mean_score, gates.min_mean_cosine),
        (float(measured.scores.min()), gates.min_worst_cosine),
        (measured.sqnr_db, sqnr),
        (measured.agreement, gates.min_agreement),
    ]
    kept = all(value >= bound for value, bound in least if bound is not None and value is not None)
    return kept and (gates.max_kl is None or measured.kl is None or measured.kl <= gates.max_kl)


def verdict(cause: Cause | None, kept: str | None, storage: Storage) -> tuple[Verdict, str]:
    """Return the verdict, and the same in words."""
    if cause is not None or kept is None:
        return "another", f"another model: {cause.words}" if cause else "another model"
    finest = max(SCHEMES.values(), key=lambda scheme: scheme.weight_bytes)
    if kept == finest.name:
        return "same", "the same model"
    how = "rounded as" if storage.scheme == kept else "rounded by no more than"
    return "rounded", f"the same model, {how} {kept} ({SCHEMES[kept].summary})"
