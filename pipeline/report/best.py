"""Which file the headline is about: the fastest over real texts among those that passed and take a byte a parameter."""

from pipeline.report.data import Best, TargetReport, VariantReport
from pipeline.schemes import SCHEMES

_INT8_WEIGHT_BYTES = 1.0


def choose(targets: list[TargetReport], variants: list[VariantReport]) -> tuple[Best | None, str | None]:
    """Return the best int8 file at the lowest thread count, or None and why there is none."""
    by_name = {target.name: target for target in targets if SCHEMES[target.scheme].weight_bytes <= _INT8_WEIGHT_BYTES}
    if not by_name:
        return None, "The recipe asks for no int8 file."
    passed = {name for name, target in by_name.items() if target.parity.verdict == "passed"}
    if not passed:
        return None, "No int8 file passed here; the table below says why."
    threads = min((variant.threads for variant in variants), default=0)
    timed = [
        variant
        for variant in variants
        if variant.student is None and variant.target in passed and variant.threads == threads
    ]
    if not timed:
        return None, "Int8 files passed, but none of them was timed here."
    fastest = min(timed, key=lambda variant: variant.texts.mean_ms)
    reference = next((one for one in variants if one.reference and one.run_id == fastest.run_id), None)
    return _best(by_name[fastest.target or ""], fastest, reference), None


def _best(target: TargetReport, variant: VariantReport, reference: VariantReport | None) -> Best:
    longest = variant.longest
    theirs = reference.longest if reference else None
    measures = target.parity.measures
    return Best(
        target=target.name,
        label=variant.label,
        threads=variant.threads,
        file_bytes=target.parity.file_bytes,
        reference_bytes=reference.file_bytes if reference else None,
        seq_len=longest.seq_len if longest else None,
        p50_ms=longest.wall.p50 if longest else None,
        reference_p50_ms=theirs.wall.p50 if theirs else None,
        speedup_longest=longest.speedup if longest else None,
        mean_ms=variant.texts.mean_ms,
        reference_mean_ms=reference.texts.mean_ms if reference else None,
        speedup_texts=variant.texts.speedup,
        mean_score=measures.mean_score if measures else None,
        worst_score=measures.worst_score if measures else None,
        datasets=target.parity.datasets,
    )
