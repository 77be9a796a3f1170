"""Rows of both sides as padded tensors: the student's, and the teacher's where it cuts texts in its own way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor

from pipeline.checkpoint import architectures
from pipeline.compress.distil import augment, checks, masked, rows
from pipeline.compress.distil.models import Work
from pipeline.compress.distil.values import Frame
from pipeline.data.datasets import Labelled
from pipeline.text import tokenizers
from pipeline.text.encoding import Encoder
from pipeline.train import examples
from pipeline.train.examples import Batch, EncodedExample

Numbers = NDArray[np.int64]


@dataclass
class Side:
    """How one of the two models reads."""

    folder: Path
    encoder: Encoder
    names: tuple[str, ...]
    """The architecture's inputs."""
    pad_token_id: int
    data: Any = None
    """Of `examples.read`."""

    @classmethod
    def of(cls, folder: Path, config: Any, max_length: int) -> "Side":
        """Read a checkpoint's tokenizer."""
        tokenizer = tokenizers.load_tokenizer(folder)
        tokenizers.check_size(tokenizer, folder, vocab_size=config.vocab_size)
        names = architectures.get(config.model_type).inputs
        return cls(folder, Encoder(tokenizer, max_length), names, int(config.pad_token_id or 0))

    def batch(self, numbers: Numbers, *, per_token: bool) -> Batch:
        """Return some rows, padded."""
        chosen = examples.take(self.data, numbers)
        return examples.collate(chosen, self.names, pad_token_id=self.pad_token_id, per_token=per_token)


@dataclass(frozen=True)
class Pair:
    """A batch for both sides."""

    student: Batch
    teacher: dict[str, Tensor]
    frame: Frame


class Batcher:
    """The rows of a distillation, encoded once by the first process for all."""

    def __init__(
        self,
        work: Work,
        labels: Sequence[str],
        configs: tuple[Any, Any],
        accelerator: Accelerator,
        tell: Callable[[str, float], None],
    ) -> None:
        """Encode the rows; `configs` are the student's and the teacher's, None where there is none."""
        self.work = work
        self.masked = work.section.head == "masked_lm"
        self.labels = labels
        self.student = Side.of(work.source, configs[0], work.section.max_length)
        self.teacher = None if configs[1] is None or work.teacher is None else self._teacher(work.teacher, configs[1])
        self.segments = "sentence_order" in work.section.losses
        self.shape = self._shape() if self.masked else None
        self.augmented_rows = 0
        if accelerator.is_main_process:
            self._write(accelerator.device, tell)
        accelerator.wait_for_everyone()
        for number, side in enumerate(self._sides()):
            side.data = examples.read(self._path(number))
        if self.teacher and len(self._sides()) == 1:
            self.teacher.data = self.student.data
        lengths = examples.lengths(self.student.data)
        self.learnt, self.held = masked.split(len(lengths)) if self.masked else (np.arange(len(lengths)), lengths[:0])
        self.lengths: Numbers = lengths[self.learnt]

    def _teacher(self, folder: Path, config: Any) -> Side:
        return Side.of(folder, config, self.work.section.max_length)

    def _shape(self) -> masked.Shape:
        mask = checks.mask_token_id(self.work.source)
        assert mask is not None
        tokenizer = tokenizers.load_tokenizer(self.work.source)
        # A table may have rows beyond the tokenizer's pieces, and the teacher's fewer of them.
        return masked.Shape.of(tokenizer, mask, tokenizer.get_vocab_size())

    def _sides(self) -> list[Side]:
        """Return the sides that have rows of their own."""
        if self.teacher is None or self.masked or _same(self.student.encoder, self.teacher.encoder):
            return [self.student]
        return [self.student, self.teacher]

    def _path(self, number: int) -> Path:
        return self.work.checkpoints / f"rows-{number}.arrow"

    def _write(self, device: torch.device, tell: Callable[[str, float], None]) -> None:
        section, task = self.work.section, self.work.task
        texts = rows.texts(section, task, self.work.material)
        if section.augment is not None:
            before = len(texts)
            texts = augment.extended(self.work, section.augment, texts, device=device, tell=tell)
            self.augmented_rows = len(texts) - before
        kind = task.output_kind
        if self.shape is not None:
            lines = [text for row in texts for text in (row.first, row.second) if text]
            tokenizer = tokenizers.load_tokenizer(self.work.source)
            found = [masked.blocks(tokenizer, lines, self.shape, length=section.max_length)]
        else:
            found = self._encoded(texts)
        if len(found) > 1 and self.teacher is not None and checks.token_losses(section, task):
            # Encoded once more, since millions of rows need not fit into memory.
            both = zip(*self._encoded(texts), strict=True)
            rows.check_same_tokens(self.student.encoder, self.teacher.encoder, both)
        for number, one in enumerate(found):
            examples.write(one, self._path(number), kind)

    def _encoded(self, texts: Sequence[Labelled]) -> list[Iterator[EncodedExample]]:
        """Encode texts for each side."""
        section, task, dataset = self.work.section, self.work.task, self.work.material.dataset
        return [rows.encode(side.encoder, section, task, dataset, texts, labels=self.labels) for side in self._sides()]

    def pair(self, numbers: Numbers, step: int) -> Pair:
        """Return some rows for both sides; masking hangs on seed, update and row alone."""
        if self.masked:
            return self._masked(self.learnt[numbers], step)
        per_token = self.work.section.alpha > 0 and self.work.task.output_kind == "token_logits"
        mine = self.student.batch(numbers, per_token=per_token)
        theirs = self.teacher.batch(numbers, per_token=per_token).inputs if self.teacher else {}
        return Pair(mine, theirs, Frame(mine.inputs["attention_mask"].float()))

    def held_out(self, numbers: Numbers) -> Pair:
        """Return some blocks that are not learnt on, always masked alike."""
        return self._masked(self.held[numbers], 0)

    def _masked(self, numbers: Numbers, step: int) -> Pair:
        found = self._rows(numbers, step)
        arrays = {
            "input_ids": np.stack([row.ids for row in found]),
            "token_type_ids": np.stack([row.types for row in found]),
        }
        inputs = {name: torch.from_numpy(value) for name, value in arrays.items()}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        frame = Frame(
            inputs["attention_mask"].float(),
            torch.from_numpy(np.stack([row.target for row in found])),
            torch.tensor([row.swapped for row in found]),
        )
        mine = Batch({name: inputs[name] for name in self.student.names}, torch.zeros(0))
        return Pair(mine, {name: inputs[name] for name in self.teacher.names} if self.teacher else {}, frame)

    def _rows(self, numbers: Numbers, step: int) -> list[masked.Masked]:
        assert self.shape is not None
        blocks = examples.take(self.student.data, numbers)
        draws = [np.random.default_rng((self.work.section.seed, step, int(number))) for number in numbers]
        return [
            masked.row(block["ids"].astype(np.int64), self.shape, draw, segments=self.segments)
            for block, draw in zip(blocks, draws, strict=True)
        ]

    def masked_tokens(self, numbers: Numbers, step: int) -> int:
        """Return how many tokens of some rows are masked."""
        found = self._rows(self.learnt[numbers], step)
        return sum(int((row.target != examples.IGNORED).sum()) for row in found)

    def row_lengths(self, numbers: Numbers) -> Numbers:
        """Return the tokens of some rows, special ones included."""
        around = 0 if self.shape is None else self.shape.around - (0 if self.segments else len(self.shape.middle))
        found: Numbers = self.lengths[numbers] + around
        return found


def _same(one: Encoder, other: Encoder) -> bool:
    return one.document() == other.document()
