"""Distillation as an objective of the training loop: the student's losses against a teacher, and perhaps labels."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.compress.distil import checks, masked_lm, models, outputs, targets
from pipeline.compress.distil.batches import DistilBatches, ModelInputs, PairedBatch
from pipeline.compress.distil.dataset import has_task_labels
from pipeline.compress.distil.losses import DistillationLosses, LossContext
from pipeline.compress.distil.models import DistilJob
from pipeline.compress.distil.outputs import ModelOutputs, ObservedModel
from pipeline.errors import RecipeError, StudentError
from pipeline.recipe.losses import HARD_LABELS, LOSSES, WITHIN_UPDATE, Output
from pipeline.train import examples
from pipeline.train.evaluation import DevSet
from pipeline.train.examples import Batch, Neighbourhoods
from pipeline.train.objectives import TASK_LOSSES

_BLOCKS_AT_ONCE = 16
"""Held-out blocks of a batch when the perplexity is measured."""
_CANDIDATES = 4
"""Neighbours that are known of a text, as a multiple of those that share its update: others may have been taken."""
_PARTS, _SPLIT_FROM = 4, 32
"""Parts of like lengths in which the student reads an update of neighbours, from so many rows on."""


class StudentWithLosses(nn.Module):
    """The student with the losses' projections; `forward` returns the losses, so that processes share all gradients."""

    def __init__(self, job: DistilJob, student: Any, losses: DistillationLosses) -> None:
        """Take over a student."""
        super().__init__()
        self.student = student
        self.losses = losses
        self._hard = TASK_LOSSES[job.task.output_kind].loss if job.section.alpha > 0 else None
        self._observed = ObservedModel(
            student, _needed_outputs(job, of_teacher=False), job.task, masked_lm=job.masked_lm
        )
        self._by_length = job.section.neighbours is not None

    def outputs(self, inputs: Mapping[str, Tensor]) -> ModelOutputs:
        """Return the student's outputs for a batch."""
        if not self._by_length or len(inputs["attention_mask"]) < _SPLIT_FROM:
            return self._observed.run(inputs)
        # Neighbours differ in length; read together, nearly half of an update would be padding.
        lengths = inputs["attention_mask"].sum(1)
        order = lengths.argsort(stable=True)
        parts = []
        for rows in order.chunk(_PARTS):
            longest = int(lengths[rows[-1]])
            some = self._observed.run({name: one[rows, :longest] for name, one in inputs.items()})
            assert some.sentence is not None
            parts.append(some.sentence)
        return ModelOutputs(sentence=torch.cat(parts)[order.argsort()])

    def forward(self, batch: Batch, teacher: ModelOutputs, context: LossContext) -> dict[str, Tensor]:
        """Return the sum of each loss over its items."""
        mine = self.outputs(batch.inputs)
        sums = dict(self.losses(mine, teacher, context))
        if self._hard is not None:
            sums[HARD_LABELS] = self._hard(mine.raw, batch)
        return sums


class DistilObjective:
    """The losses of `[distil]` on its data; satisfies `pipeline.train.objectives.Objective`."""

    uses_all_parameters = False

    def __init__(self, job: DistilJob, accelerator: Accelerator, tell: Callable[[str, float], None]) -> None:
        """Load both models, encode the rows and fill the teacher's cache; every process has to call this.

        Raises:
            RecipeError: the losses do not fit the two models or several processes.
            StudentError: a checkpoint does not load, or the teacher's masked-LM head is untrained.
        """
        self.job = job
        self.section = job.section
        self._accelerator = accelerator
        within = [name for name in WITHIN_UPDATE if name in job.section.losses]
        if accelerator.num_processes > 1 and within:
            raise RecipeError(
                f"distil.losses.{within[0]} compares the rows of an update with each other: use 1 process."
            )
        student, self.new_tensors, self.labels = models.load_student(job)
        teacher = None
        self.teacher_layers: tuple[int, ...] = ()
        if job.teacher and checks.needs_teacher(job.section):
            teacher = models.load_teacher(job.teacher, job.task, job.section)
            self.teacher_layers = checks.check_models(job.section, student, teacher)
        own = models.load_own(job) if job.own else None
        configs = (student.config, getattr(teacher, "config", None), getattr(own, "config", None))
        self.batches = DistilBatches(job, self.labels, configs, accelerator, tell)
        self.lengths = self.batches.lengths
        losses = DistillationLosses(job.section, job.task.output_kind, self.teacher_layers)
        losses.add_projections(*(None if one is None else int(one.hidden_size) for one in configs[:2]))
        self.model = StudentWithLosses(job, student, losses).to(accelerator.device)
        self.dev = self._dev_set()
        self._teacher = self._observe(teacher)
        self._cache: Any = None
        self._targets: NDArray[np.float32] | None = None
        self._check_masked_lm_head()
        self._fill_cache(tell)
        if own is not None:
            self._blend(self._observe(own), tell)
        self.near = self._neighbourhoods(tell)

    @property
    def weights(self) -> Mapping[str, float]:
        """Weight of each loss, and of the hard labels if they are used."""
        alpha = self.section.alpha
        soft = {name: (1 - alpha) * weight for name, weight in self.section.losses.items()}
        return soft | {HARD_LABELS: alpha} if alpha > 0 else soft

    @property
    def _precision(self) -> str | None:
        """In what teachers run; None for single precision."""
        return None if self.section.precision == "no" else self.section.precision

    @property
    def cached(self) -> bool:
        """Whether the teacher's outputs were computed once."""
        return self._cache is not None

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _dev_set(self) -> DevSet | None:
        dataset, task, inputs = self.job.data.dataset, self.job.task, self.batches.student
        if dataset is None or self.job.masked_lm or dataset.absent():
            return None
        if not has_task_labels(dataset, self.section, task):
            return None
        if task.has_labels and isinstance(dataset.label_ids(self.labels), str):
            return None
        return DevSet(
            task,
            dataset,
            self.labels,
            inputs.encoder,
            input_names=inputs.input_names,
            pad_token_id=inputs.pad_token_id,
        )

    def _observe(self, teacher: Any) -> ObservedModel | None:
        if teacher is None:
            return None
        needed = _needed_outputs(self.job, of_teacher=True)
        return ObservedModel(teacher.to(self._accelerator.device), needed, self.job.task, masked_lm=self.job.masked_lm)

    def _check_masked_lm_head(self) -> None:
        """Refuse an untrained masked-LM head of the teacher."""
        if (
            self._teacher is None
            or not self.job.masked_lm
            or "logits" not in _needed_outputs(self.job, of_teacher=True)
        ):
            return
        size = int(self._teacher.model.config.vocab_size)
        perplexity = self._perplexity(self._teacher, of_teacher=True)
        if not perplexity < masked_lm.UNTRAINED_FROM * size:
            raise StudentError(
                f"the teacher's masked-LM head was never trained: its perplexity on the texts is {perplexity:.0f}, "
                f"and uniform guessing among its {size} tokens has {size}. Train the head on plain text first."
            )

    def _fill_cache(self, tell: Callable[[str, float], None]) -> None:
        """Compute the teacher's outputs once if they can be cached; the first process does it for all."""
        names = outputs.cached_names(self.section, self.job.task)
        if self._teacher is None or self.batches.teacher is None or not names:
            return
        self._cache = self._cached(self._teacher, self.batches.teacher, self.job.teacher_digest, names, tell)

    def _cached(
        self,
        model: ObservedModel,
        inputs: ModelInputs,
        digest: str,
        names: tuple[str, ...],
        tell: Callable[[str, float], None],
    ) -> Any:
        """Return a model's outputs for all rows, which are computed if they are not there; None if they do not fit."""

        def run(rows: NDArray[np.int64]) -> ModelOutputs:
            with torch.no_grad(), self._accelerator.autocast():
                return model.run(inputs.batch(rows, per_token=False).to(self._accelerator.device).inputs)

        first = run(np.arange(1))
        width = sum(int(getattr(first, name).shape[-1]) for name in names)
        if not outputs.fits_cache(len(inputs.examples), width):
            return None
        folder = self.job.cache / f"teacher-{outputs.cache_key(digest, inputs.examples, names, self._precision)}"
        if self._accelerator.is_main_process:
            outputs.write_cache(folder, examples.lengths(inputs.examples), names, run, tell)
        self._accelerator.wait_for_everyone()
        return outputs.read_cache(folder, len(inputs.examples))

    def _blend(self, own: ObservedModel | None, tell: Callable[[str, float], None]) -> None:
        """Make the targets of `space = "own"` of both models' embeddings.

        Raises:
            RecipeError: they do not fit into the cache, and hence not into memory.
        """
        assert own is not None
        assert self.batches.own is not None
        mine = self._cached(own, self.batches.own, self.job.own_digest, ("sentence",), tell)
        if mine is None or self._cache is None:
            raise self._too_many("distil.space = 'own'")
        vectors, theirs = (np.asarray(cache[:]["sentence"], np.float32) for cache in (mine, self._cache))
        self._targets = targets.blend(vectors, theirs, self.section.teacher_weight)

    def _neighbourhoods(self, tell: Callable[[str, float], None]) -> Neighbourhoods | None:
        """Find the texts that should share an update, by the embeddings that the student learns.

        Raises:
            RecipeError: these do not fit into the cache, and hence not into memory.
        """
        count = self.section.neighbours
        if count is None:
            return None
        if self._cache is None:
            raise self._too_many("distil.neighbours")
        tell("neighbours of each text", 0.0)
        aims = self._targets if self._targets is not None else np.asarray(self._cache[:]["sentence"], np.float32)
        return Neighbourhoods(targets.nearest(aims, _CANDIDATES * count, seed=self.section.seed), 1 + count)

    def _too_many(self, key: str) -> RecipeError:
        return RecipeError(
            f"{key} keeps the embeddings of all texts in memory, and {len(self.lengths)} texts are too many. Set "
            "distil.max_rows."
        )

    # --- what the loop calls -----------------------------------------------------------------------------------------

    def count_items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return for each loss the number of items in all rows of an update."""
        lengths = self.batches.row_lengths(rows)
        by_token = self.job.masked_lm or self.job.task.output_kind == "token_logits"
        counts = {"rows": len(rows), "tokens": int(lengths.sum()), "pairs": int((lengths**2).sum())}
        counts["logits"] = counts["tokens" if by_token else "rows"]
        if "masked_lm" in self.section.losses:
            counts["masked"] = self.batches.masked_tokens(rows, step)
        items = {name: counts[LOSSES[name].items] for name in self.section.losses}
        if self.section.alpha > 0:
            targets = examples.targets(self.batches.student.examples, rows)
            items[HARD_LABELS] = TASK_LOSSES[self.job.task.output_kind].count_items(targets)
        return items

    def losses(self, wrapped: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, Tensor]:
        """Return for each loss its sum over some rows of an update."""
        pair = self.batches.pair(rows, step).to(device)
        sums: Mapping[str, Tensor] = wrapped(pair.student, self._teacher_outputs(rows, pair, device), pair.context)
        return sums

    def _teacher_outputs(self, rows: NDArray[np.int64], pair: PairedBatch, device: torch.device) -> ModelOutputs:
        if self._targets is not None:
            return ModelOutputs(sentence=torch.from_numpy(self._targets[rows]).to(device))
        if self._cache is not None:
            return outputs.cached_outputs(self._cache, rows, device)
        if self._teacher is None:
            return ModelOutputs()
        with torch.no_grad(), self._accelerator.autocast():
            return self._teacher.run(pair.teacher)

    def dev_metric(self, device: torch.device) -> float | None:
        """Return the dataset's metric, or the perplexity on held-out blocks."""
        if self.job.masked_lm:
            self.model.eval()
            needed: set[Output] = {"logits"}
            student = ObservedModel(self.model.student, needed, self.job.task, masked_lm=True)
            perplexity = self._perplexity(student, of_teacher=False)
            self.model.train()
            return perplexity
        return None if self.dev is None else self.dev.metric(self.model.student, device)

    def _perplexity(self, model: ObservedModel, *, of_teacher: bool) -> float:
        """Return exp of the mean loss over masked tokens; it is bounded, since a record holds no infinity."""
        total, count = 0.0, 0
        for start in range(0, len(self.batches.held_out), _BLOCKS_AT_ONCE):
            blocks = np.arange(start, min(start + _BLOCKS_AT_ONCE, len(self.batches.held_out)))
            pair = self.batches.held_out_pair(blocks).to(self._accelerator.device)
            target = pair.context.masked_tokens
            assert target is not None
            with torch.no_grad():
                logits = model.run(pair.teacher if of_teacher else pair.student.inputs).logits
            assert logits is not None
            chosen = target != examples.IGNORED
            losses = nn.functional.cross_entropy(logits[chosen].float(), target[chosen], reduction="sum")
            total, count = total + losses.item(), count + int(chosen.sum())
        return math.exp(min(total / max(count, 1), 100.0))


def _needed_outputs(job: DistilJob, *, of_teacher: bool) -> set[Output]:
    losses = [LOSSES[name] for name in job.section.losses]
    return {output for loss in losses if loss.needs_teacher or not of_teacher for output in loss.outputs}
