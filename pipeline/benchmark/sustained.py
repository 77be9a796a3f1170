"""Results of a sustained run: the slowdown of a warm phone, and the energy of an inference.

The charge counter counts the whole phone, including its screen. Its step is coarse, so the figure has a resolution.
"""

import itertools

from pydantic import BaseModel, ConfigDict

from pipeline.benchmark.record import BenchmarkRecord, Sustained

_JOULES_IN_UAH_MV = 3600 * 1e-9
_LEAST_STEPS = 10
"""Least number of counter steps within a run; with fewer the energy could be wrong by more than a tenth."""


class Energy(BaseModel):
    """Energy of one inference, as the battery counted it for the whole phone."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    millijoules: float
    resolution_millijoules: float
    """What one step of the counter stands for, spread over the same inferences."""
    runs: int


def slowdown(sustained: Sustained) -> float | None:
    """Return the median of the run's last part over that of its first; None if a part has too few runs."""
    first, last = sustained.parts[0].p50_ms, sustained.parts[-1].p50_ms
    return last / first if first and last else None


def energy(record: BenchmarkRecord) -> Energy | str:
    """Return the energy of an inference at the longest length, or a sentence that says why it was not measured.

    The first part is left out: the counter's last step may lie before the run.
    """
    sustained, conditions = record.timing.sustained, record.conditions
    if sustained is None:
        return "no sustained run was asked for"
    if conditions.charging is None:
        return "the phone does not tell whether it was charging"
    if conditions.charging:
        return "the phone was charging; measure it through the network, with its cable out"
    charges = [part.battery_charge_uah for part in sustained.parts]
    voltages = [part.battery_mv for part in sustained.parts]
    known = [charge for charge in charges if charge is not None]
    volts = [voltage for voltage in voltages if voltage is not None]
    if len(known) < len(charges) or len(volts) < len(voltages):
        return "the phone has no charge counter, or does not tell its voltage"
    steps = [before - after for before, after in itertools.pairwise(known) if before != after]
    used, runs = known[0] - known[-1], sum(part.runs for part in sustained.parts[1:])
    step = min(map(abs, steps), default=0)
    if step == 0 or used < _LEAST_STEPS * step:
        return f"the charge counter moved by {used / step if step else 0:.0f} steps, and {_LEAST_STEPS} are the least"
    per_uah = _JOULES_IN_UAH_MV * sum(volts) / len(volts) * 1e3 / runs
    return Energy(millijoules=used * per_uah, resolution_millijoules=step * per_uah, runs=runs)
