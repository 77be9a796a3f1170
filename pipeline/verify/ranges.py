"""Judge whether the calibrated ranges of static linears fit their inputs and outputs on real text.

A file has the ranges of its checkpoint to the last bit, but no number in the checkpoint tells whether a range is the
linear's own, and was measured after SmoothQuant scales were applied. Two linears with exchanged ranges, and ranges from
before the scales, are found by this gate alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import ranges
from pipeline.student.outputs import reference_outputs
from pipeline.text.encoding import Row
from pipeline.verify.record import GateResult

_ERROR = 1000.0
"""Largest squared error of rounding over a range, as a multiple of that of the best range for the same texts. Inputs
unlike the calibration set are clipped: MiniLM, calibrated on 64 texts, has 31 at most, tiny random students 8 and, for
a pooler, which has one row per text, 200; with another linear's range it is 1,600."""
_WIDTH = 5.0
"""Largest width of a range, as a multiple of that of the occurring values: at most 1.02 on MiniLM and on tiny students;
7 for a range from before the SmoothQuant scales."""
_EXACT = 1e-9
"""A relative error below this counts as none."""


def check(quantised: Path, task: str, rows: Sequence[Row], *, outputs: bool) -> GateResult:
    """Compare the range of each linear's input and output with the best range for its fp32 values.

    Args:
        quantised: a checkpoint with ranges.
        task: the student's task.
        rows: encoded texts.
        outputs: whether outputs are int8 as well.
    """
    import torch

    from pipeline.checkpoint import static
    from pipeline.checkpoint.loading import load_checkpoint

    found_task = tasks.get(task)
    model = load_checkpoint(quantised, found_task)
    kept: dict[tuple[str, str], list[Any]] = {}
    known: dict[tuple[str, str], ranges.Activation] = {}

    def keep(path: str, read: Any, made: Any) -> None:
        for what, values in (("reads", read), ("gives", made)):
            if (path, what) in known:
                kept.setdefault((path, what), []).append(values.reshape(-1))

    for row, linear in static.linears(model, ranges.read(quantised)):
        assert row.input
        assert row.output
        known |= {(row.path, "reads"): row.input} | ({(row.path, "gives"): row.output} if outputs else {})
        linear.register_forward_hook(lambda _, read, made, path=row.path: keep(path, read[0], made))
    reference_outputs(model, found_task, rows)
    shares = {which: _share(torch.cat(values), known[which]) for which, values in kept.items()}
    worst = max(shares, key=shares.__getitem__, default=None)
    found = shares[worst] if worst else 0.0
    detail = f"on {len(rows)} texts, the ranges reach {found:.2g} of how far off they may be"
    if worst and not found <= 1:
        detail = f"the range of what {worst[0]} {worst[1]} is {found:.3g} times as far off as other texts explain"
    return GateResult(name="ranges_fit", bound=1.0, found=found, passed=found <= 1, detail=detail)


def _share(values: Any, kept: ranges.Activation) -> float:
    """Return how far a range is off: its rounding error or its width as a share of the bound, whichever is larger."""
    from pipeline.quantize import observers
    from pipeline.quantize.rounding import by_tensor

    best = observers.mse(observers.Histogram.of(values.numpy()))
    size = float(values.square().mean()) or 1.0
    own, least = (
        float((by_tensor(values, one) - values).square().mean()) / size for one in ((kept.low, kept.high), best)
    )
    wide = max(float(values.max()), 0.0) - min(float(values.min()), 0.0)
    return max((own + _EXACT) / (least + _EXACT) / _ERROR, (kept.high - kept.low) / (wide or 1.0) / _WIDTH)
