"""The training loop: updates by AdamW with linear warm-up and decay, on the devices that `accelerate` finds.

The gradient of an update is that of the mean loss over its items, for any number of processes and any gradient
accumulation.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, set_seed
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.recipe.fields import Updates
from pipeline.recipe.schema import TrainSection
from pipeline.train import checkpoints, examples, model
from pipeline.train.checks import gpu_required
from pipeline.train.objectives import Objective
from pipeline.train.sparsity import FixedZeros

Tell = Callable[[str, float], None]
"""Is called with a message and the fraction that is done."""

_LONGEST_WAIT = timedelta(days=2)
"""How long processes wait for the first one, which encodes rows, replaces words and runs the teacher for all of them;
the library's default of 10 minutes would end such a run at the same point each time."""
_MAX_GRADIENT_NORM = 1.0
"""Larger gradients are clipped to this norm. Source: google-research/bert, optimization.py."""
_CURVE_POINTS = 200
"""Points of the loss curve, at most."""
_TELL_EVERY_S = 0.5
_SLOWER = 1.1
"""How many times as long a product has to take in bf16 before a run says so: less than that is noise."""


@dataclass(frozen=True)
class RunPlan:
    """How an objective is optimised."""

    key: str
    """Key of the run; a checkpoint of another key is not used."""
    checkpoints: Path
    settings: TrainSection | Updates
    section: str
    """The recipe's name of the settings, for errors."""
    epochs: float | None
    """Number of epochs, or None if the settings give steps."""
    precision_key: str | None = None
    """The recipe's key of the precision, where it is not `precision` of the section, which has no learning rate then
    and is itself a number of updates."""

    @property
    def remedy(self) -> str:
        """What to change where the loss is not finite."""
        if self.precision_key is not None:
            return f"Set {self.precision_key} to 'no', or {self.section} to 0."
        return f"Lower {self.section}.learning_rate, or set {self.section}.precision to 'no'."


@dataclass
class RunHistory:
    """The history of a run, saved in its checkpoints."""

    seconds: float = 0.0
    resumed_at: list[int] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    dev: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class FinishedRun:
    """A run that did all its updates."""

    history: RunHistory
    steps: int
    epochs: float


@contextlib.contextmanager
def open_accelerator(plan: RunPlan) -> Iterator[Accelerator]:
    """Yield the accelerator and lock the checkpoints; the other processes wait until the first one has the lock."""
    accelerator = _accelerator(plan)
    lock = checkpoints.locked(plan.checkpoints) if accelerator.is_main_process else contextlib.nullcontext()
    with lock:
        accelerator.wait_for_everyone()
        yield accelerator


def _accelerator(plan: RunPlan) -> Accelerator:
    # Of all accelerators of a process accelerate keeps the first one's precision, and a worker may train twice.
    AcceleratorState._reset_state()
    try:
        accelerator = Accelerator(
            mixed_precision=plan.settings.precision, kwargs_handlers=[InitProcessGroupKwargs(timeout=_LONGEST_WAIT)]
        )
    except ValueError as error:
        key = plan.precision_key or f"{plan.section}.precision"
        raise InputError(f"{key} = {plan.settings.precision!r}: {error}.") from error
    if plan.settings.precision == "fp16" and accelerator.device.type == "cpu":
        raise gpu_required(plan.section)
    return accelerator


def _attention(accelerator: Accelerator) -> contextlib.AbstractContextManager[None]:
    """Return what chooses the attention of a forward and its backward pass.

    On a CPU the fused attention's backward pass in bf16 takes two to seven times as long as plain products (LOG.md).
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH) if _bf16_on_cpu(accelerator) else contextlib.nullcontext()


def _bf16_on_cpu(accelerator: Accelerator) -> bool:
    return bool(accelerator.device.type == "cpu" and accelerator.mixed_precision == "bf16")


def bf16_slowdown() -> float:
    """Return how many times as long a matrix product takes in bf16 as in single precision on this processor.

    Instructions for bf16 need not be faster: an Intel Xeon with AVX512-BF16 and without AMX multiplies at 80 GFLOP/s in
    bf16 and at 150 in single precision (LOG.md).
    """

    def seconds(dtype: torch.dtype) -> float:
        rows, weight = torch.ones(512, 384, dtype=dtype), torch.ones(1536, 384, dtype=dtype)
        took = []
        for _ in range(6):
            began = time.perf_counter()
            torch.nn.functional.linear(rows, weight)
            took.append(time.perf_counter() - began)
        # The first one chooses a kernel.
        return min(took[1:])

    return seconds(torch.bfloat16) / seconds(torch.float32)


def run(
    objective: Objective, plan: RunPlan, accelerator: Accelerator, tell: Tell, zeros: FixedZeros | None = None
) -> FinishedRun:
    """Optimise an objective, from the start or from a checkpoint.

    Args:
        objective: its model is trained in place.
        plan: settings, key and folder of checkpoints.
        accelerator: of `open_accelerator`.
        tell: called with a message and the fraction that is done.
        zeros: the weights that stay or become zero, if any.

    Raises:
        InputError: the loss is not finite.
    """
    return _Run(objective, plan, accelerator, tell, zeros).go()


class _Run:
    """One run of the loop."""

    def __init__(
        self, objective: Objective, plan: RunPlan, accelerator: Accelerator, tell: Tell, zeros: FixedZeros | None
    ) -> None:
        self.objective = objective
        self.zeros = zeros
        self.plan = plan
        self.settings = plan.settings
        self.accelerator = accelerator
        self.tell = tell
        self.state = self._prepare()
        self.history = RunHistory()
        self._advice = self._advice_on_precision()

    def _advice_on_precision(self) -> str:
        """Return what each line of progress says besides, where the precision costs time instead of saving it."""
        if not _bf16_on_cpu(self.accelerator):
            return ""
        times = bf16_slowdown()
        if times < _SLOWER:
            return ""
        key = self.plan.precision_key or f"{self.plan.section}.precision"
        return f" (products in bf16 take {times:.1f} times as long as in fp32 here: take {key} out)"

    def _prepare(self) -> checkpoints.TrainingState:
        from transformers import get_linear_schedule_with_warmup

        if self.settings.dropout is not None:
            model.set_dropout(self.objective.model, self.settings.dropout)
        groups = model.decay_groups(self.objective.model, self.settings.weight_decay)
        # One pass over each tensor; the default's eight over an embedding table are a third of an update on a CPU.
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate, fused=True)
        warmup = round(self.settings.warmup_fraction * self.total)
        # The scheduler counts updates, whatever the number of processes, so accelerate does not get it.
        scheduler = get_linear_schedule_with_warmup(optimizer, warmup, self.total)
        if not self.objective.uses_all_parameters:
            self.accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
        self.wrapped, self.optimizer = self.accelerator.prepare(self.objective.model, optimizer)
        return checkpoints.TrainingState(self.objective.model, optimizer, scheduler, self.accelerator, self.zeros)

    @cached_property
    def per_epoch(self) -> int:
        """Updates of an epoch."""
        return math.ceil(len(self.objective.lengths) / self.settings.batch_size)

    @cached_property
    def total(self) -> int:
        """Updates of the run."""
        return self.settings.steps or math.ceil((self.plan.epochs or 0.0) * self.per_epoch)

    def go(self) -> FinishedRun:
        """Train to the end."""
        set_seed(self.settings.seed, device_specific=True)
        if self.zeros:
            self.zeros.begin(self.total)
        first = self._resume()
        self.wrapped.train()
        self._seconds_before = self.history.seconds
        self._saved = time.perf_counter()
        self._started = self._saved - self._seconds_before
        told = 0.0
        since_point: list[tuple[torch.Tensor, torch.Tensor]] = []
        every = max(1, math.ceil(self.total / _CURVE_POINTS))
        for step, rows in self._updates(first):
            since_point.append(self._update(rows, step))
            done = step + 1
            if done % every == 0 or done == self.total:
                self._add_point(done, since_point)
                since_point = []
            if done % self.per_epoch == 0 or done == self.total:
                self._add_dev_metric(done)
            if time.perf_counter() - told > _TELL_EVERY_S:
                told = time.perf_counter()
                self._tell_progress(done, first)
            # Between two points, a checkpoint would lose the losses since the last one.
            if not since_point and done < self.total:
                self._save_if_due(done)
        self.history.seconds = round(time.perf_counter() - self._started, 3)
        return FinishedRun(self.history, self.total, self.total / self.per_epoch)

    def _resume(self) -> int:
        """Restore the latest checkpoint, if there is one, and return the number of updates that are done."""
        loaded = checkpoints.load(self.plan.checkpoints, self.plan.key, self.state)
        if loaded is None:
            return 0
        step, history = loaded
        self.history = RunHistory(**history)
        self.history.resumed_at.append(step)
        return step

    def _updates(self, first: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the number and the rows of each update that is still to do."""
        step = first
        while step < self.total:
            number, offset = divmod(step, self.per_epoch)
            order = examples.epoch_batches(
                self.objective.lengths,
                self.settings.batch_size,
                seed=self.settings.seed,
                number=number,
                near=self.objective.near,
            )
            for rows in order[offset : offset + self.total - step]:
                yield step, rows
                step += 1

    def _update(self, rows: NDArray[np.int64], step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Do one update.

        Returns:
            This process's share of the mean loss over items, followed by that of each loss before its weight,
            `(1 + losses,)`; and the norm of the gradient of all processes before clipping, `()`. Both stay on the
            device.
        """
        processes = self.accelerator.num_processes
        count = self.settings.gradient_accumulation
        shares = [
            examples.process_batches(rows, process=one, processes=processes, count=count) for one in range(processes)
        ]
        # A batch may be empty in some processes: they take part all the same, with a row of no weight.
        used = [number for number in range(count) if any(len(share[number]) for share in shares)]
        items = {name: max(number, 1) for name, number in self.objective.count_items(rows, step).items()}
        weights = self.objective.weights
        total = torch.zeros(1 + len(weights), device=self.accelerator.device)
        for number in used:
            batch = shares[self.accelerator.process_index][number]
            present = 1.0 if len(batch) else 0.0
            waits = number != used[-1]
            with self.accelerator.no_sync(self.wrapped) if waits else contextlib.nullcontext():
                with _attention(self.accelerator):
                    sums = self.objective.losses(
                        self.wrapped, batch if len(batch) else rows[:1], step, self.accelerator.device
                    )
                means = [sums[name] * (present / items[name]) for name in weights]
                loss = torch.stack([mean * weight for mean, weight in zip(means, weights.values(), strict=True)]).sum()
                # The gradients of the processes are averaged, and have to be summed.
                self.accelerator.backward(loss * processes)
            total += torch.stack([loss, *means]).detach()
        norm = self.accelerator.clip_grad_norm_(self.objective.model.parameters(), _MAX_GRADIENT_NORM)
        self._step(step, norm)
        return total, norm.detach()

    def _step(self, step: int, norm: torch.Tensor) -> None:
        """Let optimizer and scheduler step, and keep zeros zero."""
        if self.zeros:
            self.zeros.before_update(float(self.state.scheduler.get_last_lr()[0]), float(norm))
        self.optimizer.step()
        if self.zeros:
            self.zeros.after_update(step + 1)
        # With fp16 a fused optimizer skips an update by itself, and accelerate does not learn of it.
        overflowed = self.settings.precision == "fp16" and not math.isfinite(float(norm))
        if not (overflowed or self.accelerator.optimizer_step_was_skipped):
            self.state.scheduler.step()
        self.optimizer.zero_grad()

    # --- history, progress, checkpoints ------------------------------------------------------------------------------

    def _add_point(self, step: int, since: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add a point to the loss curve, over the updates since the previous one."""
        losses, norms = zip(*since, strict=True)
        # One column after the other: a mean over rows adds in another order.
        means = torch.stack([column.contiguous().mean() for column in torch.stack(losses).unbind(1)])
        mean, *each = self.accelerator.reduce(means, "sum").tolist()
        if not math.isfinite(mean):
            raise InputError(f"the loss is {mean} after {step} updates. {self.plan.remedy}")
        rate = float(self.state.scheduler.get_last_lr()[0])
        norm = float(torch.stack(norms).mean())
        # With fp16 the loss scale is too large at times; that update is skipped.
        point = {"step": step, "loss": mean, "learning_rate": rate}
        point["gradient_norm"] = norm if math.isfinite(norm) else None
        if len(self.objective.weights) > 1:
            point["terms"] = dict(zip(self.objective.weights, each, strict=True))
        self.history.curve.append(point)

    def _add_dev_metric(self, step: int) -> None:
        """Add the dev metric; the first process computes it."""
        if self.accelerator.is_main_process:
            value = self.objective.dev_metric(self.accelerator.device)
            if value is not None:
                self.history.dev.append({"step": step, "epoch": step / self.per_epoch, "value": value})
        self.accelerator.wait_for_everyone()

    def _tell_progress(self, step: int, first: int) -> None:
        passed = time.perf_counter() - self._started - self._seconds_before
        rate = (step - first) / passed
        loss = f"loss {self.history.curve[-1]['loss']:.4f}, " if self.history.curve else ""
        metric = f"dev metric {self.history.dev[-1]['value']:.4f}, " if self.history.dev else ""
        left = round((self.total - step) / rate)
        progress = f"step {step} of {self.total}, {loss}{metric}{rate:.1f} steps/s, {left // 60}:{left % 60:02d} left"
        self.tell(progress + self._advice, step / self.total)

    def _save_if_due(self, step: int) -> None:
        """Write a checkpoint when the clock of any process says so."""
        if time.perf_counter() - self._saved > 60 * self.settings.checkpoint_minutes:
            self.accelerator.set_trigger()
        if not self.accelerator.check_trigger():
            return
        self.history.seconds = time.perf_counter() - self._started
        checkpoints.save(self.plan.checkpoints, self.plan.key, step, self.state, asdict(self.history))
        self._saved = time.perf_counter()
