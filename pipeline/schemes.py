"""Schemes: their names, what they promise, and the gates that hold them to it.

Where a scheme is applied differs by toolchain (see DESIGN): each backend does it at its own point in `convert`
and answers for every scheme here, with support or with a reason. To add a scheme, add a row.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

OutputKind = Literal["embedding", "logits", "value", "token_logits", "spans"]
"""What each is: `pipeline.metrics.outputs`."""


class Gates(BaseModel):
    """Bounds on a target's parity record; None switches a bound off. A recipe may override each of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
    min_mean_cosine: float | None = None
    min_worst_cosine: float | None = None
    min_sqnr_db: float | None = None
    min_agreement: float | None = None
    """Fraction of rows, tokens or spans with the same winner, near ties apart; see `metrics.agreement`."""
    max_kl: float | None = None
    """Mean Kullback-Leibler divergence from the truth's probabilities to the file's, in nats."""
    max_abs_error: float | None = None
    """Largest absolute difference of any number of any row that is not all padding; see `Measures.unit`."""
    max_all_pad_error: float | None = None
    """Largest absolute value in the embedding of a row that is all padding; the truth is exactly zero."""
    max_pad_difference: float | None = None
    """Largest absolute difference between the same text at its own length and padded to another, likewise."""
    max_thread_difference: float | None = None
    """Largest absolute difference between one thread and two, likewise."""
    max_task_drop: float | None = None
    """Largest loss of the task metric, as a fraction of 1; of its interval's bad end where the rows allow."""
    max_bytes_per_parameter: float | None = None


@dataclass(frozen=True)
class Scheme:
    """One numeric format for weights and activations."""

    name: str
    summary: str
    weight_bytes: float
    """Stored bytes per parameter, scales apart."""
    gates: dict[OutputKind, Gates]


def _gates(
    *,
    cosine: float,
    worst: float,
    sqnr: float,
    agreement: float,
    kl: float,
    error: float | None,
    drop: float,
    pad: float,
    size: float,
    spans_kl: float | None = None,
) -> dict[OutputKind, Gates]:
    """Spell one scheme's default gates out for every kind of output."""
    embedding = Gates(
        min_mean_cosine=cosine,
        min_worst_cosine=worst,
        min_sqnr_db=sqnr,
        max_abs_error=error,
        max_all_pad_error=1e-6,
        max_pad_difference=pad,
        max_thread_difference=pad,
        max_task_drop=drop,
        max_bytes_per_parameter=size,
    )
    value = Gates(
        min_sqnr_db=sqnr,
        max_pad_difference=pad,
        max_thread_difference=pad,
        max_task_drop=drop,
        max_bytes_per_parameter=size,
    )
    logits = value.model_copy(update={"min_agreement": agreement, "max_kl": kl})
    # A softmax over all tokens of a row. Clean MobileBERT files of random weights: 1.2e-4 (fp16, 47 dB), .011 and .021
    # (int8, 27 and 24 dB).
    spans = logits.model_copy(update={"max_kl": spans_kl or kl})
    return {"embedding": embedding, "logits": logits, "value": value, "token_logits": logits, "spans": spans}


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "fp32",
            "weights and activations in single precision",
            4.0,
            _gates(
                cosine=0.99999,
                worst=0.9999,
                sqnr=70,
                agreement=0.99,
                kl=1e-6,
                error=1e-4,
                drop=0.001,
                pad=1e-4,
                size=4.3,
            ),
        ),
        Scheme(
            "fp16",
            "weights in half precision; activations too where the runtime has it",
            2.0,
            _gates(
                cosine=0.9999,
                worst=0.999,
                sqnr=45,
                agreement=0.99,
                kl=1e-5,
                error=5e-3,
                drop=0.002,
                pad=1e-2,
                size=2.15,
                spans_kl=5e-4,
            ),
        ),
        Scheme(
            "int8_weight_only",
            "weights and embedding tables in int8 with a scale per row, activations in float",
            1.0,
            _gates(
                cosine=0.998,
                worst=0.98,
                sqnr=20,
                agreement=0.97,
                kl=5e-3,
                error=None,
                drop=0.005,
                pad=1e-2,
                size=1.2,
                spans_kl=3e-2,
            ),
        ),
        Scheme(
            "int8_dynamic",
            "int8 weights and embedding tables with a scale per row; activations to int8 per token, at run time",
            1.0,
            _gates(
                cosine=0.995,
                worst=0.96,
                sqnr=17,
                agreement=0.95,
                kl=1e-2,
                error=None,
                drop=0.01,
                # An activation at the edge of two steps flips when a sum comes out a last bit apart, as it does in
                # ExecuTorch at another length: up to .020 on clean students (LOG.md); planted faults begin at .16.
                pad=3e-2,
                size=1.2,
                spans_kl=5e-2,
            ),
        ),
    )
}


@dataclass(frozen=True)
class Support:
    """A backend's answer for one scheme: `reason` is None where it is supported."""

    reason: str | None = None

    @property
    def supported(self) -> bool:
        """Whether the backend carries the scheme out."""
        return self.reason is None


SUPPORTED = Support()
