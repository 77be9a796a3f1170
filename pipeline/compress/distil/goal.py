"""The training loop's goal in distillation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.compress.distil import cache, checks, masked, material, models
from pipeline.compress.distil.batching import Batcher, Pair
from pipeline.compress.distil.models import Work
from pipeline.compress.distil.seen import Seen, Watched
from pipeline.compress.distil.terms import LABELS, TERMS, WHOLE_UPDATES, Need
from pipeline.compress.distil.values import Frame, Values, check_shown
from pipeline.errors import RecipeError, StudentError
from pipeline.train import examples
from pipeline.train.evaluation import DevSet
from pipeline.train.examples import Batch
from pipeline.train.objectives import TASK_LOSSES

_MEASURED = 16
"""Blocks of a batch when the perplexity is measured."""


class Pupil(nn.Module):
    """The student with what is learnt beside it; its forward gives the losses, so that processes share gradients."""

    def __init__(self, work: Work, student: Any, values: Values) -> None:
        """Take a student over."""
        super().__init__()
        self.student = student
        self.values = values
        self._hard = TASK_LOSSES[work.task.output_kind].loss if work.section.alpha > 0 else None
        self._watched = Watched(student, _needs(work, of_teacher=False), work.task, masked_lm=_masked_lm(work))

    def see(self, inputs: Mapping[str, Tensor]) -> Seen:
        """Return what the student shows."""
        return self._watched.see(inputs)

    def forward(self, batch: Batch, teacher: Seen, frame: Frame) -> dict[str, Tensor]:
        """Return each term's sum over its items."""
        seen = self.see(batch.inputs)
        found = dict(self.values(seen, teacher, frame))
        if self._hard is not None:
            found[LABELS] = self._hard(seen.output, batch)
        return found


class DistilGoal:
    """A teacher's outputs, states and relations, and perhaps labels."""

    uses_all_parameters = False

    def __init__(self, work: Work, accelerator: Accelerator, tell: Callable[[str, float], None]) -> None:
        """Load both models, encode the rows and run the teacher where its outputs are kept; all processes call this."""
        self.work = work
        self.section = work.section
        self._accelerator = accelerator
        if accelerator.num_processes > 1 and (whole := [name for name in WHOLE_UPDATES if name in work.section.losses]):
            raise RecipeError(
                f"distil.losses.{whole[0]} compares the rows of an update with each other: use 1 process."
            )
        student, self.new_tensors, self.labels = models.load_student(work)
        teacher = models.load_teacher(work) if work.teacher and checks.needs_teacher(work.section) else None
        configs = (student.config, None if teacher is None else teacher.config)
        self.batches = Batcher(work, self.labels, configs, accelerator, tell)
        self.lengths = self.batches.lengths
        self.mapping = self._mapping(*configs)
        values = Values(work.section, work.task.output_kind, self.mapping)
        values.project(*(None if one is None else int(one.hidden_size) for one in configs))
        self.model = Pupil(work, student, values).to(accelerator.device)
        self.dev = self._dev()
        self._teacher = self._watch(teacher)
        self._kept: Any = None
        self._check_teacher()
        self._keep(tell)

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the losses, and of the hard labels where there are some."""
        alpha = self.section.alpha
        soft = {name: (1 - alpha) * weight for name, weight in self.section.losses.items()}
        return soft | {LABELS: alpha} if alpha > 0 else soft

    @property
    def cached(self) -> bool:
        """Whether the teacher's outputs were computed once."""
        return self._kept is not None

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _mapping(self, student: Any, teacher: Any) -> tuple[int, ...]:
        if teacher is None or not any(TERMS[name].by_layer for name in self.section.losses):
            return ()
        return checks.mapping(self.section, int(student.num_hidden_layers), int(teacher.num_hidden_layers))

    def _dev(self) -> DevSet | None:
        dataset, task, side = self.work.material.dataset, self.work.task, self.batches.student
        if dataset is None or _masked_lm(self.work) or dataset.absent():
            return None
        if not material.fits(dataset, self.section, task):
            return None
        if task.has_labels and isinstance(dataset.label_ids(self.labels), str):
            return None
        return DevSet(task, dataset, self.labels, side.encoder, input_names=side.names, pad_token_id=side.pad_token_id)

    def _watch(self, teacher: Any) -> Watched | None:
        if teacher is None:
            return None
        needs = _needs(self.work, of_teacher=True)
        return Watched(teacher.to(self._accelerator.device), needs, self.work.task, masked_lm=_masked_lm(self.work))

    def _check_teacher(self) -> None:
        """Compare both models on a row, and refuse a masked-LM head that knows nothing."""
        if self._teacher is None:
            return
        pair = self._on_device(self.batches.pair(np.arange(1), 0))
        self.model.eval()
        with torch.no_grad():
            mine, theirs = self.model.see(pair.student.inputs), self._teacher.see(pair.teacher)
        self.model.train()
        check_shown(self.section, mine, theirs, self.mapping)
        if _masked_lm(self.work) and theirs.logits is not None:
            found, size = self._perplexity(self._teacher, of_teacher=True), int(theirs.logits.shape[-1])
            if not found < masked.UNTRAINED * size:
                raise StudentError(
                    f"the teacher's masked-LM head was never trained: its perplexity is {found:.0f} on the texts, and "
                    f"guessing among its {size} tokens has {size}. Train the head on plain text first."
                )

    def _keep(self, tell: Callable[[str, float], None]) -> None:
        """Compute the teacher's outputs once where they can be kept; the first process does it for all."""
        names = cache.what(self.section, self.work.task)
        side = self.batches.teacher
        if self._teacher is None or side is None or not names:
            return
        width = sum(int(getattr(self._see(np.arange(1)), name).shape[-1]) for name in names)
        if not cache.fits(len(side.data), width):
            return
        folder = self.work.cache / f"teacher-{cache.key(self.work.teacher_digest, side.data, names)}"
        if self._accelerator.is_main_process:
            cache.write(folder, examples.lengths(side.data), names, self._see, tell)
        self._accelerator.wait_for_everyone()
        self._kept = cache.read(folder)

    def _see(self, rows: NDArray[np.int64]) -> Seen:
        assert self._teacher is not None
        with torch.no_grad():
            return self._teacher.see(self._on_device(self.batches.pair(rows, 0)).teacher)

    # --- the loop's questions ----------------------------------------------------------------------------------------

    def count_items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return the items of each term in all rows of an update."""
        lengths = self.batches.row_lengths(rows)
        by_token = _masked_lm(self.work) or self.work.task.output_kind == "token_logits"
        counts = {"rows": len(rows), "tokens": int(lengths.sum()), "pairs": int((lengths**2).sum())}
        counts["logits"] = counts["tokens" if by_token else "rows"]
        if "masked_lm" in self.section.losses:
            counts["masked"] = self.batches.masked_tokens(rows, step)
        found = {name: counts[TERMS[name].items] for name in self.section.losses}
        if self.section.alpha > 0:
            targets = examples.targets(self.batches.student.data, rows)
            found[LABELS] = TASK_LOSSES[self.work.task.output_kind].count_items(targets)
        return found

    def losses(self, model: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, Tensor]:
        """Return each term's sum over some rows."""
        pair = self._on_device(self.batches.pair(rows, step))
        found: Mapping[str, Tensor] = model(pair.student, self._shown(rows, pair, device), pair.frame)
        return found

    def _shown(self, rows: NDArray[np.int64], pair: Pair, device: torch.device) -> Seen:
        if self._kept is not None:
            return cache.seen(self._kept, rows, device)
        if self._teacher is None:
            return Seen()
        with torch.no_grad(), self._accelerator.autocast():
            return self._teacher.see(pair.teacher)

    def dev_metric(self, device: torch.device) -> float | None:
        """Return the data set's metric, or the perplexity on blocks that are not learnt on."""
        if _masked_lm(self.work):
            self.model.eval()
            needs: set[Need] = {"logits"}
            found = self._perplexity(
                Watched(self.model.student, needs, self.work.task, masked_lm=True), of_teacher=False
            )
            self.model.train()
            return found
        return None if self.dev is None else self.dev.metric(self.model.student, device)

    def _perplexity(self, watched: Watched, *, of_teacher: bool) -> float:
        """Return exp of the mean loss over masked tokens; finite, since a record holds no infinity."""
        total, count = 0.0, 0
        for start in range(0, len(self.batches.held), _MEASURED):
            numbers = np.arange(start, min(start + _MEASURED, len(self.batches.held)))
            pair = self._on_device(self.batches.held_out(numbers))
            assert pair.frame.masked is not None
            with torch.no_grad():
                logits = watched.see(pair.teacher if of_teacher else pair.student.inputs).logits
            assert logits is not None
            chosen = pair.frame.masked != examples.IGNORED
            losses = nn.functional.cross_entropy(logits[chosen].float(), pair.frame.masked[chosen], reduction="sum")
            total, count = total + losses.item(), count + int(chosen.sum())
        return math.exp(min(total / max(count, 1), 100.0))

    def _on_device(self, pair: Pair) -> Pair:
        device = self._accelerator.device
        frame = replace(
            pair.frame,
            mask=pair.frame.mask.to(device),
            masked=None if pair.frame.masked is None else pair.frame.masked.to(device),
            order=None if pair.frame.order is None else pair.frame.order.to(device),
        )
        return Pair(pair.student.to(device), {name: one.to(device) for name, one in pair.teacher.items()}, frame)


def _masked_lm(work: Work) -> bool:
    return work.section.head == "masked_lm"


def _needs(work: Work, *, of_teacher: bool) -> set[Need]:
    rows = [TERMS[name] for name in work.section.losses]
    return {need for row in rows if row.teacher or not of_teacher for need in row.needs}
