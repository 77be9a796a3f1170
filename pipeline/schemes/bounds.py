"""Default gates of a scheme, from the bounds that differ between schemes to those of every kind of output."""

from pipeline.kinds import OutputKind
from pipeline.schemes.scheme import Gates


def gates(
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
    shift: float,
    spans_kl: float | None = None,
    usual_pad: float | None = None,
    threads: float | None = None,
) -> dict[OutputKind, Gates]:
    """Spell one scheme's default gates out for every kind of output."""
    embedding = Gates(
        min_mean_cosine=cosine,
        min_worst_cosine=worst,
        min_sqnr_db=sqnr,
        max_abs_error=error,
        max_all_pad_error=1e-6,
        max_pad_difference=pad,
        max_usual_pad_difference=usual_pad,
        max_thread_difference=threads or pad,
        max_task_drop=drop,
        min_recall_kept=0.99,
        min_recall_kept_small=0.97,
        max_bytes_per_parameter=size,
    )
    value = Gates(
        min_sqnr_db=sqnr,
        max_mean_shift=shift,
        max_pad_difference=pad,
        max_usual_pad_difference=usual_pad,
        max_thread_difference=threads or pad,
        max_task_drop=drop,
        max_bytes_per_parameter=size,
    )
    logits = value.model_copy(update={"max_mean_shift": None, "min_agreement": agreement, "max_kl": kl})
    # A softmax over all tokens of a row. Clean MobileBERT files of random weights: 1.2e-4 (fp16, 47 dB), .011 and .021
    # (int8, 27 and 24 dB).
    spans = logits.model_copy(update={"max_kl": spans_kl or kl})
    return {
        "embedding": embedding,
        "logits": logits,
        "value": value,
        "token_logits": logits,
        "spans": spans,
        "multi_label": logits,
        "values": value,
    }


def static_gates(
    *, cosine: float, worst: float, sqnr: float, agreement: float, kl: float, drop: float
) -> dict[OutputKind, Gates]:
    """Return the gates of linears in int8 over calibrated ranges."""
    return gates(
        cosine=cosine,
        worst=worst,
        sqnr=sqnr,
        agreement=agreement,
        kl=kl,
        error=None,
        drop=drop,
        pad=5e-2,
        size=1.2,
        shift=0.15,
        spans_kl=5 * kl,
    )


def int4_gates(*, pad: float) -> dict[OutputKind, Gates]:
    """Return the gates of linears with int4 blocks."""
    # Real MiniLM without training: .989 on average, .868 for a text in a script that its vocabulary spells letter by
    # letter.
    return gates(
        cosine=0.98,
        worst=0.75,
        sqnr=12,
        agreement=0.92,
        kl=3e-2,
        error=None,
        drop=0.01,
        pad=pad,
        # Tables keep eight bits, and of a small student they are nearly all.
        size=1.2,
        shift=0.15,
        spans_kl=0.15,
    )
