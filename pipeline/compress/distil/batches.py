"""Batches of a distillation: padded rows for the student, and for the teacher if its tokenizer is another one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from pipeline import architectures
from pipeline.compress.distil import augmentation, checks, dataset, masked_lm
from pipeline.compress.distil.losses import LossContext
from pipeline.compress.distil.models import DistilJob
from pipeline.data.datasets import Labelled
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder
from pipeline.train import examples
from pipeline.train.examples import Batch, EncodedExample

Numbers = NDArray[np.int64]
"""Numbers of rows."""


@dataclass
class ModelInputs:
    """The training rows as encoded for one of the two models."""

    encoder: Encoder
    input_names: tuple[str, ...]
    """Inputs of the architecture."""
    pad_token_id: int
    examples: Any = None
    """The encoded rows, as `pipeline.train.examples.read` opens them."""

    @classmethod
    def of(cls, folder: Path, config: Any, max_length: int) -> "ModelInputs":
        """Read a checkpoint's tokenizer."""
        tokenizer = tokenizers.load_tokenizer(folder)
        tokenizers.check_size(tokenizer, folder, vocab_size=config.vocab_size)
        input_names = architectures.get(config.model_type).inputs
        return cls(Encoder(tokenizer, max_length), input_names, int(config.pad_token_id or 0))

    def batch(self, rows: Numbers, *, per_token: bool) -> Batch:
        """Return the given rows as a padded batch."""
        chosen = examples.take(self.examples, rows)
        return examples.collate(chosen, self.input_names, pad_token_id=self.pad_token_id, per_token=per_token)


@dataclass(frozen=True)
class PairedBatch:
    """One batch as both models read it."""

    student: Batch
    teacher: dict[str, Tensor]
    context: LossContext

    def to(self, device: torch.device) -> "PairedBatch":
        """Return the batch on a device."""
        masked_tokens, segment_order = self.context.masked_tokens, self.context.segment_order
        context = LossContext(
            self.context.mask.to(device),
            None if masked_tokens is None else masked_tokens.to(device),
            None if segment_order is None else segment_order.to(device),
        )
        return PairedBatch(
            self.student.to(device), {name: one.to(device) for name, one in self.teacher.items()}, context
        )


class DistilBatches:
    """The rows of a distillation, encoded once by the first process for all."""

    def __init__(
        self,
        job: DistilJob,
        labels: Sequence[str],
        configs: tuple[Any, Any, Any],
        accelerator: Accelerator,
        tell: Callable[[str, float], None],
    ) -> None:
        """Encode the rows.

        Args:
            job: the distillation.
            labels: labels in the order of the head's outputs.
            configs: the student's, the teacher's, and that of the checkpoint before compression; None without one.
            accelerator: knows the processes.
            tell: called with a message and the fraction that is done.
        """
        self._job = job
        self._labels = labels
        max_length = job.section.max_length
        self.student = ModelInputs.of(job.source, configs[0], max_length)
        teacher = None if configs[1] is None else job.teacher
        self.teacher = ModelInputs.of(teacher, configs[1], max_length) if teacher else None
        self.own = None if configs[2] is None or job.own is None else ModelInputs.of(job.own, configs[2], max_length)
        self._segments = "sentence_order" in job.section.losses
        self.block_format = self._block_format() if job.masked_lm else None
        self.augmented_rows = 0
        if accelerator.is_main_process:
            self._write(accelerator.device, tell)
        accelerator.wait_for_everyone()
        read = self._encodings()
        for number, inputs in enumerate(read):
            inputs.examples = examples.read(self._path(number))
        for other in (self.teacher, self.own):
            if other is not None and other.examples is None:
                # Masked tokens are drawn on the student's rows, for both models.
                other.examples = (_alike(other, read) or self.student).examples
        lengths = examples.lengths(self.student.examples)
        everything = np.arange(len(lengths)), lengths[:0]
        self.training_rows, self.held_out = masked_lm.split_blocks(len(lengths)) if job.masked_lm else everything
        self.lengths: Numbers = lengths[self.training_rows]

    def _block_format(self) -> masked_lm.BlockFormat:
        mask_token_id = checks.mask_token_id(self._job.source)
        assert mask_token_id is not None
        tokenizer = tokenizers.load_tokenizer(self._job.source)
        # An embedding table may have rows beyond the tokenizer's tokens, and the teacher's table fewer of them.
        return masked_lm.BlockFormat.of(tokenizer, mask_token_id, tokenizer.get_vocab_size())

    def _encodings(self) -> list[ModelInputs]:
        """Return the models for which the rows are encoded: one of those that read alike."""
        found = [self.student]
        for other in (self.teacher, self.own):
            if other is not None and not self._job.masked_lm:
                found += [] if _alike(other, found) else [other]
        return found

    def _path(self, number: int) -> Path:
        return self._job.checkpoints / f"rows-{number}.arrow"

    def _write(self, device: torch.device, tell: Callable[[str, float], None]) -> None:
        job, section, task = self._job, self._job.section, self._job.task
        texts = dataset.training_texts(section, task, job.data)
        if section.augment is not None:
            before = len(texts)
            texts = augmentation.with_copies(job, section.augment, texts, device=device, tell=tell)
            self.augmented_rows = len(texts) - before
        if self.block_format is not None:
            lines = [text for row in texts for text in (row.first, row.second) if text]
            tokenizer = tokenizers.load_tokenizer(job.source)
            encoded = [masked_lm.text_blocks(tokenizer, lines, self.block_format, length=section.max_length)]
        else:
            encoded = self._encoded(texts)
        if len(encoded) > 1 and self.teacher is not None and checks.token_losses(section, task):
            # Encoded once more, since millions of rows need not fit into memory.
            both = zip(*self._encoded(texts)[:2], strict=True)
            dataset.check_same_tokens(self.student.encoder, self.teacher.encoder, both)
        for number, one in enumerate(encoded):
            examples.write(one, self._path(number), task.output_kind)

    def _encoded(self, texts: Sequence[Labelled]) -> list[Iterator[EncodedExample]]:
        """Encode texts for each model that reads in its own way."""
        section, task, rows = self._job.section, self._job.task, self._job.data.dataset
        return [
            dataset.encode(inputs.encoder, section, task, rows, texts, labels=self._labels)
            for inputs in self._encodings()
        ]

    def pair(self, rows: Numbers, step: int) -> PairedBatch:
        """Return some rows for both models; masking depends on seed, update and row alone."""
        if self._job.masked_lm:
            return self._masked_pair(self.training_rows[rows], step)
        per_token = self._job.section.alpha > 0 and self._job.task.output_kind == "token_logits"
        mine = self.student.batch(rows, per_token=per_token)
        theirs = self.teacher.batch(rows, per_token=per_token).inputs if self.teacher else {}
        return PairedBatch(mine, theirs, LossContext(mine.inputs["attention_mask"].float()))

    def held_out_pair(self, blocks: Numbers) -> PairedBatch:
        """Return some held-out blocks, masked alike each time."""
        return self._masked_pair(self.held_out[blocks], 0)

    def _masked_pair(self, rows: Numbers, step: int) -> PairedBatch:
        blocks = self._masked_blocks(rows, step)
        inputs = {
            "input_ids": torch.from_numpy(np.stack([block.ids for block in blocks])),
            "token_type_ids": torch.from_numpy(np.stack([block.types for block in blocks])),
        }
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        context = LossContext(
            inputs["attention_mask"].float(),
            torch.from_numpy(np.stack([block.target for block in blocks])),
            torch.tensor([block.swapped for block in blocks]),
        )
        mine = Batch({name: inputs[name] for name in self.student.input_names}, torch.zeros(0))
        theirs = {name: inputs[name] for name in self.teacher.input_names} if self.teacher else {}
        return PairedBatch(mine, theirs, context)

    def _masked_blocks(self, rows: Numbers, step: int) -> list[masked_lm.MaskedBlock]:
        assert self.block_format is not None
        blocks = examples.take(self.student.examples, rows)
        draws = [np.random.default_rng((self._job.section.seed, step, int(row))) for row in rows]
        return [
            masked_lm.masked_block(block["ids"].astype(np.int64), self.block_format, draw, segments=self._segments)
            for block, draw in zip(blocks, draws, strict=True)
        ]

    def masked_tokens(self, rows: Numbers, step: int) -> int:
        """Return the number of masked tokens in some rows."""
        blocks = self._masked_blocks(self.training_rows[rows], step)
        return sum(int((block.target != examples.IGNORED).sum()) for block in blocks)

    def row_lengths(self, rows: Numbers) -> Numbers:
        """Return the tokens of some rows, special tokens included."""
        special = 0
        if self.block_format is not None:
            special = self.block_format.special_tokens - (0 if self._segments else len(self.block_format.middle))
        lengths: Numbers = self.lengths[rows] + special
        return lengths


def _alike(inputs: ModelInputs, among: Sequence[ModelInputs]) -> ModelInputs | None:
    """Return the first model that gives each text the same ids."""
    return next((one for one in among if same_encoding(one.encoder, inputs.encoder)), None)


def same_encoding(one: Encoder, other: Encoder) -> bool:
    """Return whether two encoders give each text the same ids."""
    return one.document() == other.document()
