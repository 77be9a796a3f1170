"""The loop: updates by AdamW with a linear warm-up and decay, on whatever devices `accelerate` finds.

An update's gradient is that of the mean loss over its items, whatever the number of processes and parts.
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
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, set_seed
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.recipe.fields import Updates
from pipeline.recipe.schema import TrainSection
from pipeline.train import batches, checkpoints, model, record
from pipeline.train.checks import needs_gpu
from pipeline.train.goal import Goal
from pipeline.train.job import Job
from pipeline.train.labelled import LabelledGoal
from pipeline.train.sparsity import FixedZeros, zeros_in_training

Tell = Callable[[str, float], None]
"""Hears what to show and which fraction is done."""

_LONGEST_WAIT = timedelta(days=2)
"""Of the other processes for the first one, which encodes rows, replaces words and runs the teacher for all; the
library's own 10 minutes end such a run at the same place each time."""
_LARGEST_GRADIENT = 1.0
"""Norm to which a larger gradient is cut. Source: google-research/bert, optimization.py."""
_POINTS = 200
"""Of the loss curve, at most."""
_TELL_EVERY_S = 0.5


@dataclass(frozen=True)
class Plan:
    """How a goal is worked towards."""

    key: str
    """Of the run: a checkpoint of another key is not used."""
    checkpoints: Path
    settings: TrainSection | Updates
    section: str
    """The recipe's name of the settings, for errors."""
    epochs: float | None
    """Passes over the rows, or None where the settings give steps."""


@dataclass
class Notes:
    """What became of a run; a checkpoint carries it besides states."""

    seconds: float = 0.0
    resumed_at: list[int] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    dev: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """A run that came to its end."""

    notes: Notes
    steps: int
    epochs: float


def train(job: Job, tell: Tell) -> tuple[Any, record.Training]:
    """Fine-tune a student.

    Returns:
        The trained model on the CPU, and the record.

    Raises:
        InputError: the precision is not to be had here, or the loss is no number.
        StudentError: the checkpoint does not load.
    """
    plan = Plan(job.key, job.checkpoints, job.settings, "train", job.settings.passes)
    with prepared(plan) as accelerator:
        goal = LabelledGoal(job, accelerator)
        finished = run(goal, plan, accelerator, tell, zeros_in_training(goal.model, job.settings.sparse))
        return goal.model.cpu().eval(), _record(job, goal, finished, accelerator)


@contextlib.contextmanager
def prepared(plan: Plan) -> Iterator[Accelerator]:
    """Hold the checkpoints for this run; the other processes wait until the first one does."""
    accelerator = _accelerator(plan)
    hold = checkpoints.alone(plan.checkpoints) if accelerator.is_main_process else contextlib.nullcontext()
    with hold:
        accelerator.wait_for_everyone()
        yield accelerator


def _accelerator(plan: Plan) -> Accelerator:
    asked = f"{plan.section}.precision = {plan.settings.precision!r}"
    try:
        accelerator = Accelerator(
            mixed_precision=plan.settings.precision, kwargs_handlers=[InitProcessGroupKwargs(timeout=_LONGEST_WAIT)]
        )
    except ValueError as error:
        raise InputError(f"{asked}: {error}.") from error
    if plan.settings.precision == "fp16" and accelerator.device.type == "cpu":
        raise needs_gpu(plan.section)
    return accelerator


def run(goal: Goal, plan: Plan, accelerator: Accelerator, tell: Tell, zeros: FixedZeros | None = None) -> Finished:
    """Work towards a goal, from the start or from a checkpoint; `goal.model` is what changes, but for its `zeros`."""
    return _Run(goal, plan, accelerator, tell, zeros).go()


class _Run:
    """One run of the loop."""

    def __init__(self, goal: Goal, plan: Plan, accelerator: Accelerator, tell: Tell, zeros: FixedZeros | None) -> None:
        self.goal = goal
        self.zeros = zeros
        self.plan = plan
        self.settings = plan.settings
        self.accelerator = accelerator
        self.tell = tell
        self.parts = self._prepare()
        self.notes = Notes()

    def _prepare(self) -> checkpoints.Parts:
        from transformers import get_linear_schedule_with_warmup

        if self.settings.dropout is not None:
            model.set_dropout(self.goal.model, self.settings.dropout)
        groups = model.decay_groups(self.goal.model, self.settings.weight_decay)
        # One pass over each tensor; the default's eight over an embedding table are a third of an update on a CPU.
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate, fused=True)
        warmup = round(self.settings.warmup_fraction * self.total)
        # The scheduler counts updates, whatever the number of processes, so accelerate does not get it.
        scheduler = get_linear_schedule_with_warmup(optimizer, warmup, self.total)
        if not self.goal.uses_all:
            self.accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
        self.wrapped, self.optimizer = self.accelerator.prepare(self.goal.model, optimizer)
        return checkpoints.Parts(self.goal.model, optimizer, scheduler, self.accelerator, self.zeros)

    @cached_property
    def per_epoch(self) -> int:
        """Updates of an epoch."""
        return math.ceil(len(self.goal.lengths) / self.settings.batch_size)

    @cached_property
    def total(self) -> int:
        """Updates of the run."""
        return self.settings.steps or math.ceil((self.plan.epochs or 0.0) * self.per_epoch)

    def go(self) -> Finished:
        """Train to the end."""
        set_seed(self.settings.seed, device_specific=True)
        if self.zeros:
            self.zeros.begin(self.total)
        first = self._resume()
        self.wrapped.train()
        self._before = self.notes.seconds
        self._saved = time.perf_counter()
        self._started = self._saved - self._before
        told = 0.0
        done_since: list[tuple[torch.Tensor, torch.Tensor]] = []
        every = max(1, math.ceil(self.total / _POINTS))
        for step, rows in self._updates(first):
            done_since.append(self._update(rows, step))
            done = step + 1
            if done % every == 0 or done == self.total:
                self._point(done, done_since)
                done_since = []
            if done % self.per_epoch == 0 or done == self.total:
                self._score(done)
            if time.perf_counter() - told > _TELL_EVERY_S:
                told = time.perf_counter()
                self._say(done, first)
            # Between two points the losses since the last would be lost.
            if not done_since and done < self.total:
                self._save_if_due(done)
        self.notes.seconds = round(time.perf_counter() - self._started, 3)
        return Finished(self.notes, self.total, self.total / self.per_epoch)

    def _resume(self) -> int:
        found = checkpoints.load(self.plan.checkpoints, self.plan.key, self.parts)
        if found is None:
            return 0
        step, notes = found
        self.notes = Notes(**notes)
        self.notes.resumed_at.append(step)
        return step

    def _updates(self, first: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the number and the rows of each update that is still to do."""
        step = first
        while step < self.total:
            number, place = divmod(step, self.per_epoch)
            order = batches.epoch(self.goal.lengths, self.settings.batch_size, seed=self.settings.seed, number=number)
            for rows in order[place : place + self.total - step]:
                yield step, rows
                step += 1

    def _update(self, rows: NDArray[np.int64], step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Do one update.

        Returns:
            This process's share of the mean loss over items, then of each term before its weight, `(1 + terms,)`; and
            the norm of the gradient of all processes before it is cut, `()`. Not fetched from the device yet.
        """
        processes = self.accelerator.num_processes
        count = self.settings.gradient_accumulation
        shares = [batches.parts(rows, process=one, processes=processes, count=count) for one in range(processes)]
        # A part may be empty for some processes: they take part all the same, with a row of no weight.
        used = [number for number in range(count) if any(len(share[number]) for share in shares)]
        items = {name: max(number, 1) for name, number in self.goal.items(rows, step).items()}
        total = torch.zeros(1 + len(self.goal.weights), device=self.accelerator.device)
        for number in used:
            own = shares[self.accelerator.process_index][number]
            present = 1.0 if len(own) else 0.0
            waits = number != used[-1]
            with self.accelerator.no_sync(self.wrapped) if waits else contextlib.nullcontext():
                found = self.goal.terms(self.wrapped, own if len(own) else rows[:1], step, self.accelerator.device)
                terms = [found[name] * (present / items[name]) for name in self.goal.weights]
                weighted = [term * weight for term, weight in zip(terms, self.goal.weights.values(), strict=True)]
                loss = torch.stack(weighted).sum()
                # The gradients of the processes are averaged, and have to be summed.
                self.accelerator.backward(loss * processes)
            total += torch.stack([loss, *terms]).detach()
        norm = self.accelerator.clip_grad_norm_(self.goal.model.parameters(), _LARGEST_GRADIENT)
        if self.zeros:
            self.zeros.before_update(float(self.parts.scheduler.get_last_lr()[0]), float(norm))
        self.optimizer.step()
        if self.zeros:
            self.zeros.after_update(step + 1)
        # With fp16 a fused optimizer skips an update by itself, and accelerate does not hear of it.
        overflowed = self.settings.precision == "fp16" and not math.isfinite(float(norm))
        if not (overflowed or self.accelerator.optimizer_step_was_skipped):
            self.parts.scheduler.step()
        self.optimizer.zero_grad()
        return total, norm.detach()

    # --- what is told and kept ---------------------------------------------------------------------------------------

    def _point(self, step: int, since: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add a point to the loss curve, of the updates since the one before."""
        losses, norms = zip(*since, strict=True)
        # One column after the other: a mean over rows adds in another order.
        means = torch.stack([column.contiguous().mean() for column in torch.stack(losses).unbind(1)])
        mean, *terms = self.accelerator.reduce(means, "sum").tolist()
        if not math.isfinite(mean):
            raise InputError(
                f"the loss is {mean} after {step} updates. Lower {self.plan.section}.learning_rate, "
                f"or set {self.plan.section}.precision to 'no'."
            )
        rate = float(self.parts.scheduler.get_last_lr()[0])
        norm = float(torch.stack(norms).mean())
        # With fp16 the scale is too large at times; that update is skipped.
        point = {"step": step, "loss": mean, "learning_rate": rate}
        point["gradient_norm"] = norm if math.isfinite(norm) else None
        if len(self.goal.weights) > 1:
            point["terms"] = dict(zip(self.goal.weights, terms, strict=True))
        self.notes.curve.append(point)

    def _score(self, step: int) -> None:
        """Add the dev metric; the first process computes it."""
        if self.accelerator.is_main_process:
            value = self.goal.score(self.accelerator.device)
            if value is not None:
                self.notes.dev.append({"step": step, "epoch": step / self.per_epoch, "value": value})
        self.accelerator.wait_for_everyone()

    def _say(self, step: int, first: int) -> None:
        passed = time.perf_counter() - self._started - self._before
        rate = (step - first) / passed
        loss = f"loss {self.notes.curve[-1]['loss']:.4f}, " if self.notes.curve else ""
        metric = f"dev metric {self.notes.dev[-1]['value']:.4f}, " if self.notes.dev else ""
        left = round((self.total - step) / rate)
        progress = f"step {step} of {self.total}, {loss}{metric}{rate:.1f} steps/s, {left // 60}:{left % 60:02d} left"
        self.tell(progress, step / self.total)

    def _save_if_due(self, step: int) -> None:
        """Write a checkpoint when the clock of any process says so."""
        if time.perf_counter() - self._saved > 60 * self.settings.checkpoint_minutes:
            self.accelerator.set_trigger()
        if not self.accelerator.check_trigger():
            return
        self.notes.seconds = time.perf_counter() - self._started
        checkpoints.save(self.plan.checkpoints, self.plan.key, step, self.parts, asdict(self.notes))
        self._saved = time.perf_counter()


def _record(job: Job, goal: LabelledGoal, finished: Finished, accelerator: Accelerator) -> record.Training:
    kept = {"train_file", "dev_file", "checkpoint_minutes"}
    return record.Training(
        task=job.task_name,
        dataset=job.dataset.name,
        metric=job.dataset.metric,
        settings=job.settings.model_dump(exclude=kept),
        labels=list(job.labels),
        new_tensors=goal.new_tensors,
        train_rows=goal.train_rows,
        encoded_rows=len(goal.lengths),
        dev_rows=len(goal.dev.labels.gold),
        steps=finished.steps,
        epochs=finished.epochs,
        seconds=finished.notes.seconds,
        resumed_at=finished.notes.resumed_at,
        device=str(accelerator.device),
        processes=accelerator.num_processes,
        curve=[record.Point.model_validate(point) for point in finished.notes.curve],
        dev=[record.Score.model_validate(score) for score in finished.notes.dev],
    )
