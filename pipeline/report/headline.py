"""What follows from the records alone: the file to ship on each system, and whether the times were disturbed."""

import math
import shlex
from collections.abc import Sequence

from pipeline import formats
from pipeline.devices.host import Machine
from pipeline.report import wording
from pipeline.report.record import (
    Clock,
    HeadlineFile,
    PhoneReport,
    Recommendation,
    TargetReport,
    VariantReport,
)
from pipeline.schemes import SCHEMES

_SYSTEMS = {"android": "Android", "ios": "iOS"}
"""The systems of the formats' `APPS`, as people write them."""
_INT8_WEIGHT_BYTES = 1.0


def choose_best(
    targets: Sequence[TargetReport], variants: Sequence[VariantReport], clock: Clock
) -> tuple[HeadlineFile | None, str | None]:
    """Return the fastest of the smaller files that passed, at the lowest thread count; or None and why there is none.

    Args:
        targets: files of the report's own student.
        variants: all times, the reference's among them.
        clock: what times are compared by.
    """
    passed = smaller_that_passed(targets)
    if not passed:
        return None, "No file passed here; the table below says why."
    found = _fastest(passed, variants, clock)
    if found is None:
        return None, "Files passed, but none of them was timed here."
    target, fastest = found
    reference = next((one for one in variants if one.reference and one.run_id == fastest.run_id), None)
    return _headline(target, fastest, reference, clock), None


def smaller_that_passed(targets: Sequence[TargetReport]) -> list[TargetReport]:
    """Return the files that passed: those of int8 weights or fewer bits, or all of them if there are none such."""
    passed = [target for target in targets if target.parity.verdict == "passed"]
    return [one for one in passed if SCHEMES[one.scheme].weight_bytes <= _INT8_WEIGHT_BYTES] or passed


def recommend(
    named: str,
    recipe: str,
    targets: Sequence[TargetReport],
    variants: Sequence[VariantReport],
    phones: Sequence[PhoneReport],
    clock: Clock,
) -> list[Recommendation]:
    """Return one recommendation for each system: the file that was fastest on its phone, or may be expected to be.

    A format whose runtime comes with the system goes before those that the app has to bring along, unless it was timed
    beside them.

    Args:
        named: the recipe as a command names it.
        recipe: its name, which is that of its folder.
        targets: files of the report's own student.
        variants: times on this machine.
        phones: times on phones.
        clock: what times on this machine are compared by.
    """
    found = []
    for system, title in _SYSTEMS.items():
        files = [one for one in targets if system in formats.get(one.parity.backend).APPS]
        here = [phone for phone in phones if any(machine.platform == system for machine in phone.machines)]
        passed = smaller_that_passed(files)
        if not passed:
            why = f"None of its {len(files)} files passed; the table below says why." if files else "No file asked for."
            found.append(Recommendation(system=title, target=None, file=None, reason=why, command=None))
            continue
        target, reason = _on_phone(passed, here) or _untimed_of_system(title, passed, variants) or _here(
            passed, variants, clock
        )  # fmt: skip
        if SCHEMES[target.scheme].weight_bytes > _INT8_WEIGHT_BYTES:
            reason += " No int8 file passed."
        if target.parity.evaluator_stands_in:
            reason += " Its verdict is a simulation's."
        found.append(
            Recommendation(
                system=title,
                target=target.name,
                file=f"{recipe}/{target.name}/model/{target.file}",
                reason=reason,
                command=f"pocketbert ship {shlex.quote(named)} --target {target.parity.backend}:{target.scheme}",
            )
        )
    return found


def _fastest(
    targets: Sequence[TargetReport], variants: Sequence[VariantReport], clock: Clock
) -> tuple[TargetReport, VariantReport] | None:
    """Return the file with the least time per text at the lowest thread count that was measured, with its record."""
    threads = min((variant.threads for variant in variants), default=0)
    by_digest = {target.digest: target for target in targets}
    timed = [one for one in variants if one.threads == threads and one.digest in by_digest and not one.throttled]
    best = min(timed, key=lambda one: mean_ms(one, clock), default=None)
    return (by_digest[best.digest or ""], best) if best else None


def mean_ms(variant: VariantReport, clock: Clock) -> float:
    """Return the mean time per real text by a clock; wall clock for a record without processor time."""
    cpu = variant.texts.mean_cpu_ms
    return cpu if clock == "cpu" and cpu is not None else variant.texts.mean_ms


def _on_phone(targets: list[TargetReport], phones: list[PhoneReport]) -> tuple[TargetReport, str] | None:
    for phone in phones:
        found = _fastest(targets, phone.variants, "wall")
        if found:
            return found[0], f"The fastest on {phone.device}: {wording.ms(found[1].texts.mean_ms)} ms per text."
    return None


def _untimed_of_system(
    title: str, targets: list[TargetReport], variants: Sequence[VariantReport]
) -> tuple[TargetReport, str] | None:
    """Return the file whose runtime comes with the system, unless such files were timed here like the others."""
    own = [one for one in targets if formats.get(one.parity.backend).RUNTIME is None]
    if not own or any(variant.digest == one.digest for one in own for variant in variants):
        return None
    return _first_to_ship(own), f"Not timed, since its runtime is not on this machine. It comes with {title}."


def _here(targets: list[TargetReport], variants: Sequence[VariantReport], clock: Clock) -> tuple[TargetReport, str]:
    found = _fastest(targets, variants, clock)
    if found is None:
        return _first_to_ship(targets), "Not timed; the first to ship of those that passed."
    target, fastest = found
    said = f"{wording.ms(mean_ms(fastest, clock))} ms per text on this machine"
    timed = [one for one in targets if any(variant.digest == one.digest for variant in variants)]
    small = all(SCHEMES[one.scheme].weight_bytes <= _INT8_WEIGHT_BYTES for one in timed)
    kind = "files of int8 or less" if small else "files"
    lead = f"The fastest of the {len(timed)} {kind} that passed" if len(timed) > 1 else "The only one timed"
    if clock == "wall":
        return target, f"{lead}: {said}; not yet timed on a phone."
    if fastest.texts.mean_cpu_ms is None:
        return target, f"{lead}: {said}. The machine was busy and tells no processor time: measure again."
    return target, f"{lead}, by processor time, since the machine was busy: {said}; not yet timed on a phone."


def _first_to_ship(targets: Sequence[TargetReport]) -> TargetReport:
    return min(targets, key=lambda one: SCHEMES[one.scheme].shipping_rank)


def _headline(
    target: TargetReport, variant: VariantReport, reference: VariantReport | None, clock: Clock
) -> HeadlineFile:
    longest, theirs = variant.longest, reference.longest if reference else None
    p50, reference_p50 = ((one.wall if clock == "wall" else one.cpu).p50 if one else None for one in (longest, theirs))
    mean, reference_mean = mean_ms(variant, clock), mean_ms(reference, clock) if reference else None
    measures = target.parity.measures
    return HeadlineFile(
        target=target.name,
        label=variant.label,
        threads=variant.threads,
        clock=clock,
        file_bytes=target.parity.file_bytes,
        reference_bytes=reference.file_bytes if reference else None,
        seq_len=longest.seq_len if longest else None,
        p50_ms=p50,
        reference_p50_ms=reference_p50,
        speedup_longest=ratio(reference_p50, p50),
        mean_ms=mean,
        reference_mean_ms=reference_mean,
        speedup_texts=ratio(reference_mean, mean),
        mean_score=measures.mean_score if measures else None,
        worst_score=measures.worst_score if measures else None,
        datasets=target.parity.datasets,
    )


def ratio(reference: float | None, value: float | None) -> float | None:
    """Return the speed ratio of two times; None if either is absent or too small for the clock."""
    if reference is None or value is None or not value > 0 or not math.isfinite(reference / value):
        return None
    return reference / value


_WAITING_FRACTION = 0.1
"""On an idle machine one thread waits for nothing: wall clock and processor time differ by a percent or two."""
_SPARE_CORES = 0.5
"""So much more than the cores have free is not the machine's own housekeeping."""


def disturbances(variants: list[VariantReport], machines: list[Machine]) -> list[str]:
    """Return a sentence for each thread count whose times were disturbed, with the figure that shows it."""
    cores = min((machine.cores for machine in machines), default=0)
    found = []
    for threads in sorted({variant.threads for variant in variants}):
        mine = [variant for variant in variants if variant.threads == threads]
        sentence = _waited(mine) if threads == 1 else _loaded(mine, threads, cores)
        found += [sentence] if sentence else []
    return found


def _waited(variants: list[VariantReport]) -> str | None:
    """One thread: wall clock beyond processor time is time in which others ran."""
    worst = max(variants, key=_waiting)
    if _waiting(worst) <= _WAITING_FRACTION:
        return None
    return f"With 1 thread, {worst.label} waited for a core during {_waiting(worst) * 100:.0f} % of its wall clock."


def _waiting(variant: VariantReport) -> float:
    texts = variant.texts
    return 0.0 if texts.mean_cpu_ms is None or texts.mean_ms <= 0 else 1 - texts.mean_cpu_ms / texts.mean_ms


def _loaded(variants: list[VariantReport], threads: int, cores: int) -> str | None:
    """Several threads wait for each other too, so what others took in the second before the run is what tells."""
    busy = max((one.busy_before_fraction for one in variants if one.busy_before_fraction is not None), default=0.0)
    if busy * cores + threads <= cores + _SPARE_CORES:
        return None
    return f"With {threads} threads, other work took {busy * 100:.0f} % of {cores} cores just before."
