"""Whether something else took the processor while times were taken: ratios from a busy machine need that said."""

from pipeline.devices.host import Machine
from pipeline.report.data import VariantReport

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
    return 1 - variant.texts.mean_cpu_ms / variant.texts.mean_ms if variant.texts.mean_ms > 0 else 0.0


def _loaded(variants: list[VariantReport], threads: int, cores: int) -> str | None:
    """Several threads wait for each other too, so what others took in the second before the run is what tells."""
    busy = max((one.busy_before_fraction for one in variants if one.busy_before_fraction is not None), default=0.0)
    if busy * cores + threads <= cores + _SPARE_CORES:
        return None
    return f"With {threads} threads, other work took {busy * 100:.0f} % of {cores} cores just before."
