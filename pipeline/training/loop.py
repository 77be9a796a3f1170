"""The loop: updates by AdamW with a linear warm-up and decay, on whatever devices `accelerate` finds.

An update's gradient is that of the mean loss over its items, whatever the number of processes and parts.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from numpy.typing import NDArray

from pipeline import architectures, tokenization
from pipeline.encoding import Encoder
from pipeline.errors import InputError
from pipeline.training import batches, checkpoints, examples, model
from pipeline.training.batches import Batch
from pipeline.training.checks import training_rows
from pipeline.training.evaluation import Dev
from pipeline.training.job import Job
from pipeline.training.objectives import OBJECTIVES
from pipeline.training.record import Point, Score, Training

Tell = Callable[[str, float], None]
"""Hears what to show and which fraction is done."""

_LARGEST_GRADIENT = 1.0
"""Norm to which a larger gradient is cut. Source: google-research/bert, optimization.py."""
_POINTS = 200
"""Of the loss curve, at most."""
_TELL_EVERY_S = 0.5


@dataclass
class _Notes:
    """What a checkpoint carries besides states."""

    seconds: float = 0.0
    resumed_at: list[int] = field(default_factory=list)
    curve: list[dict[str, float]] = field(default_factory=list)
    dev: list[dict[str, float]] = field(default_factory=list)


def train(job: Job, tell: Tell) -> tuple[Any, Training]:
    """Fine-tune a student.

    Returns:
        The trained model on the CPU, and the record.

    Raises:
        InputError: the precision is not to be had here, or the loss is no number.
        StudentError: the checkpoint does not load.
    """
    with _main_alone(job, _accelerator(job)) as accelerator:
        return _Run(job, accelerator, tell).go()


def _accelerator(job: Job) -> Accelerator:
    precision = job.settings.precision
    try:
        accelerator = Accelerator(mixed_precision=precision)
    except ValueError as error:
        raise InputError(f"train.precision = {precision!r}: {error}.") from error
    # accelerate takes it on a CPU, where its loss scaler is off and gradients underflow.
    if precision == "fp16" and accelerator.device.type == "cpu":
        raise InputError("train.precision = 'fp16' needs a GPU, and there is none here; 'bf16' and 'no' run on a CPU.")
    return accelerator


@contextlib.contextmanager
def _main_alone(job: Job, accelerator: Accelerator) -> Iterator[Accelerator]:
    """Hold the checkpoints for this run; the other processes wait until the first one does."""
    hold = checkpoints.alone(job.checkpoints) if accelerator.is_main_process else contextlib.nullcontext()
    with hold:
        accelerator.wait_for_everyone()
        yield accelerator


class _Run:
    """One run of the loop, from the start or from a checkpoint."""

    def __init__(self, job: Job, accelerator: Accelerator, tell: Tell) -> None:
        self.job = job
        self.settings = job.settings
        self.accelerator = accelerator
        self.tell = tell
        self.objective = OBJECTIVES[job.task.output_kind]
        self.model, self.new_tensors = model.load(job)
        self.names = architectures.get(self.model.config.model_type).inputs
        self.pad_token_id = int(self.model.config.pad_token_id or 0)
        tokenizer = tokenization.load_tokenizer(job.source)
        tokenization.check_size(tokenizer, job.source, vocab_size=self.model.config.vocab_size)
        self.encoder = Encoder(tokenizer, job.settings.max_length)
        self.train_rows = 0
        self.data = self._encoded()
        self.lengths = examples.lengths(self.data)
        self.dev = Dev(job, self.encoder, self.names, pad_token_id=self.pad_token_id)
        self.parts = self._prepare()
        self.notes = _Notes()

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _encoded(self) -> Any:
        """Return the encoded rows; the first process writes them for all."""
        path = self.job.checkpoints / "rows.arrow"
        rows = training_rows(self.job.dataset, self.settings)
        self.train_rows = len(rows)
        if self.accelerator.is_main_process:
            names = self.job.labels
            ids = self.job.dataset.label_ids(names) if self.job.task.has_labels else []
            assert not isinstance(ids, str)
            examples.write(examples.encode(self.encoder, self.job.task, rows, ids), path, self.job.task.output_kind)
        self.accelerator.wait_for_everyone()
        return examples.read(path)

    def _prepare(self) -> checkpoints.Parts:
        from transformers import get_linear_schedule_with_warmup

        groups = model.decay_groups(self.model, self.settings.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate)
        warmup = round(self.settings.warmup_fraction * self.total)
        # The scheduler counts updates, whatever the number of processes, so accelerate does not get it.
        scheduler = get_linear_schedule_with_warmup(optimizer, warmup, self.total)
        self.wrapped, self.optimizer = self.accelerator.prepare(self.model, optimizer)
        return checkpoints.Parts(self.model, optimizer, scheduler, self.accelerator)

    @cached_property
    def per_epoch(self) -> int:
        """Updates of an epoch."""
        return math.ceil(len(self.lengths) / self.settings.batch_size)

    @cached_property
    def total(self) -> int:
        """Updates of the run."""
        epochs = self.job.epochs
        return self.settings.steps or math.ceil((epochs or 0.0) * self.per_epoch)

    # --- the run -----------------------------------------------------------------------------------------------------

    def go(self) -> tuple[Any, Training]:
        """Train to the end."""
        set_seed(self.settings.seed, device_specific=True)
        first = self._resume()
        self.wrapped.train()
        self._before = self.notes.seconds
        self._saved = time.perf_counter()
        self._started = self._saved - self._before
        told = 0.0
        losses: list[torch.Tensor] = []
        every = max(1, math.ceil(self.total / _POINTS))
        for step, rows in self._updates(first):
            losses.append(self._update(rows))
            done = step + 1
            if done % every == 0 or done == self.total:
                self._point(done, losses)
                losses = []
            if done % self.per_epoch == 0 or done == self.total:
                self._score(done)
            if time.perf_counter() - told > _TELL_EVERY_S:
                told = time.perf_counter()
                self._say(done, first)
            # Between two points the losses since the last would be lost.
            if not losses and done < self.total:
                self._save_if_due(done)
        return self.model.cpu().eval(), self._finished()

    def _resume(self) -> int:
        found = checkpoints.load(self.job.checkpoints, self.job.key, self.parts)
        if found is None:
            return 0
        step, notes = found
        self.notes = _Notes(**notes)
        self.notes.resumed_at.append(step)
        return step

    def _updates(self, first: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the number and the rows of each update that is still to do."""
        step = first
        while step < self.total:
            number, place = divmod(step, self.per_epoch)
            order = batches.epoch(self.lengths, self.settings.batch_size, seed=self.settings.seed, number=number)
            for rows in order[place : place + self.total - step]:
                yield step, rows
                step += 1

    def _update(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Do one update; return this process's share of the mean loss over items, not fetched from the device yet."""
        processes = self.accelerator.num_processes
        count = self.settings.gradient_accumulation
        shares = [batches.parts(rows, process=one, processes=processes, count=count) for one in range(processes)]
        # A part may be empty for some processes: they take part all the same, with a row of no weight.
        used = [number for number in range(count) if any(len(share[number]) for share in shares)]
        items = max(self.objective.items(examples.targets(self.data, rows)), 1)
        total = torch.zeros((), device=self.accelerator.device)
        for number in used:
            own = shares[self.accelerator.process_index][number]
            weight = 1.0 if len(own) else 0.0
            waits = number != used[-1]
            with self.accelerator.no_sync(self.wrapped) if waits else contextlib.nullcontext():
                batch = self._batch(own if len(own) else rows[:1])
                loss = self.objective.loss(self.wrapped(**batch.inputs), batch) * (weight / items)
                # The gradients of the processes are averaged, and have to be summed.
                self.accelerator.backward(loss * processes)
            total += loss.detach()
        self.accelerator.clip_grad_norm_(self.model.parameters(), _LARGEST_GRADIENT)
        self.optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self.parts.scheduler.step()
        self.optimizer.zero_grad()
        return total

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        per_token = self.job.task.output_kind == "token_logits"
        chosen = examples.take(self.data, rows)
        batch = batches.collate(chosen, self.names, pad_token_id=self.pad_token_id, per_token=per_token)
        return batch.to(self.accelerator.device)

    # --- what is told and kept ---------------------------------------------------------------------------------------

    def _point(self, step: int, losses: list[torch.Tensor]) -> None:
        """Add a point to the loss curve."""
        mean = self.accelerator.reduce(torch.stack(losses).mean(), "sum").item()
        if not math.isfinite(mean):
            raise InputError(
                f"the loss is {mean} after {step} updates. Lower train.learning_rate, or set train.precision to 'no'."
            )
        rate = float(self.parts.scheduler.get_last_lr()[0])
        self.notes.curve.append({"step": step, "loss": mean, "learning_rate": rate})

    def _score(self, step: int) -> None:
        """Add the dev metric; the first process computes it."""
        if self.accelerator.is_main_process:
            value = self.dev.score(self.model, self.accelerator.device)
            self.notes.dev.append({"step": step, "epoch": step / self.per_epoch, "value": value})
        self.accelerator.wait_for_everyone()

    def _say(self, step: int, first: int) -> None:
        passed = time.perf_counter() - self._started - self._before
        rate = (step - first) / passed
        loss = f"loss {self.notes.curve[-1]['loss']:.4f}, " if self.notes.curve else ""
        left = round((self.total - step) / rate)
        self.tell(f"{loss}{rate:.1f} steps/s, {left // 60}:{left % 60:02d} left", step / self.total)

    def _save_if_due(self, step: int) -> None:
        """Write a checkpoint when the clock of any process says so."""
        if time.perf_counter() - self._saved > 60 * self.settings.checkpoint_minutes:
            self.accelerator.set_trigger()
        if not self.accelerator.check_trigger():
            return
        self.notes.seconds = time.perf_counter() - self._started
        checkpoints.save(self.job.checkpoints, self.job.key, step, self.parts, asdict(self.notes))
        self._saved = time.perf_counter()

    def _finished(self) -> Training:
        kept = {"train_file", "dev_file", "checkpoint_minutes"}
        return Training(
            task=self.job.task_name,
            dataset=self.job.dataset.name,
            metric=self.job.dataset.metric,
            settings=self.settings.model_dump(exclude=kept),
            labels=list(self.job.labels),
            new_tensors=self.new_tensors,
            train_rows=self.train_rows,
            encoded_rows=len(self.lengths),
            dev_rows=len(self.dev.labels.gold),
            steps=self.total,
            epochs=self.total / self.per_epoch,
            seconds=round(time.perf_counter() - self._started, 3),
            resumed_at=self.notes.resumed_at,
            device=str(self.accelerator.device),
            processes=self.accelerator.num_processes,
            curve=[Point.model_validate(point) for point in self.notes.curve],
            dev=[Score.model_validate(score) for score in self.notes.dev],
        )
