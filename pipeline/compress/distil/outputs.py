"""The outputs of a model for a batch, and a teacher's outputs for all rows, computed once and kept in shards.

Shards let an interrupted computation continue after the last complete one.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import heads
from pipeline.architectures import layers
from pipeline.artifact import digest_of, sha256_file
from pipeline.atomic import write_aside, write_text
from pipeline.execution import cache
from pipeline.execution.node import versions
from pipeline.kinds import KINDS
from pipeline.recipe.distillation import DistilSection
from pipeline.recipe.losses import LOSSES, Output
from pipeline.tasks import Task

_PROJECTIONS = ("query", "key", "value")
_CACHEABLE = ("logits", "sentence")
_MOST_BYTES = 2**30
"""Beyond this size the teacher runs beside the student in each update."""
_BATCH = 64
_ROWS_OF_SHARD = 4096
_SUFFIX, _DIGEST = ".arrow", ".sha256"
_VERSION = 1
"""Version of this module's outputs. The key of a cached folder counts it, and the versions of `_DISTRIBUTIONS`."""
_DISTRIBUTIONS = ("torch", "transformers")


# --- outputs of a batch ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projection:
    """Queries, keys or values of one layer."""

    features: Tensor
    """`(batch, seq_len, heads · head size)`."""
    heads: int


@dataclass(frozen=True)
class ModelOutputs:
    """A model's outputs for one batch; an output that no loss needs is empty."""

    logits: Tensor | None = None
    """`(batch, classes)`, `(batch, seq_len, classes)`, or for spans `(batch, 2, seq_len)`."""
    hidden_states: tuple[Tensor, ...] = ()
    """Output of the embedding layer and of each layer, `(batch, seq_len, hidden)`."""
    projections: Mapping[str, list[Projection]] = field(default_factory=dict)
    """`query`, `key` and `value` of each layer, in the order of the forward pass."""
    sentence: Tensor | None = None
    """Sentence embeddings of length one, `(batch, hidden)`."""
    raw: Any = None
    """The model's own output object."""


class ObservedModel:
    """A model whose queries, keys and values are recorded as it runs: its own output has no attention scores."""

    def __init__(self, model: Any, needed: Collection[Output], task: Task, *, masked_lm: bool) -> None:
        """Observe a model.

        Args:
            model: with the head that is compared.
            needed: the outputs to return.
            task: turns the model's output into logits or an embedding.
            masked_lm: whether the head is the masked-LM head instead of the task's.
        """
        self.model = model
        self._needed = needed
        self._task = task
        self._head = heads.of(task, model)
        self._masked_lm = masked_lm
        self._recording: dict[str, list[Projection]] | None = None
        if "projections" in needed:
            self._register_hooks()

    def _register_hooks(self) -> None:
        hooked: set[int] = set()
        for layer in layers.layers(self.model):
            for name in _PROJECTIONS:
                module = layer.get(name)
                # A shared module runs once for each layer that uses it, and has one hook.
                if id(module) not in hooked:
                    hooked.add(id(module))
                    module.register_forward_hook(self._hook(name, layer.heads))

    def _hook(self, name: str, heads: int) -> Any:
        def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
            # None while others run the model, such as the dev metric.
            if self._recording is not None:
                self._recording.setdefault(name, []).append(Projection(output, heads))

        return record

    def run(self, inputs: Mapping[str, Tensor]) -> ModelOutputs:
        """Run the model on a batch and return the outputs that are needed."""
        self._recording = {}
        output = self.model(**inputs, output_hidden_states="hidden_states" in self._needed)
        projections, self._recording = self._recording, None
        mask = inputs["attention_mask"]
        return ModelOutputs(
            self._logits(output, mask) if "logits" in self._needed else None,
            tuple(output.hidden_states) if "hidden_states" in self._needed else (),
            projections,
            self._head.outputs(output, mask.float())[0] if "sentence" in self._needed else None,
            output,
        )

    def _logits(self, output: Any, mask: Tensor) -> Tensor:
        if self._masked_lm or self._task.output_kind != "spans":
            logits: Tensor = output.logits
            return logits
        start_and_end = torch.stack(self._head.outputs(output, mask.float()), 1)
        # The softmax over tokens leaves padding out.
        return start_and_end.float().masked_fill((mask == 0)[:, None], torch.finfo(torch.float32).min / 4)


# --- shards ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """A range of rows, and the file of their results."""

    path: Path
    start: int
    stop: int
    """The first row after it."""


def shards(folder: Path, count: int, size: int, suffix: str) -> list[Shard]:
    """Return the shards of `count` rows, `size` in each but the last.

    The boundaries depend on nothing else, since rows of a batch influence the last bits of each other's results.
    """
    starts = range(0, count, size)
    return [
        Shard(folder / f"{number:05}{suffix}", start, min(start + size, count)) for number, start in enumerate(starts)
    ]


# --- a teacher's outputs, computed once ------------------------------------------------------------------------------


def cached_names(section: DistilSection, task: Task) -> tuple[str, ...]:
    """Return the teacher's outputs to keep for each row; empty if the teacher has to run in each update.

    Hidden states and projections are too large to keep, and masked tokens change in each pass.
    """
    needed = {output for name in section.losses if LOSSES[name].needs_teacher for output in LOSSES[name].outputs}
    fixed_width = not KINDS[task.output_kind].per_token
    if section.head != "task" or not fixed_width or not needed <= set(_CACHEABLE):
        return ()
    return tuple(sorted(needed))


def fits_cache(rows: int, width: int) -> bool:
    """Return whether the cache takes this many rows of this many numbers."""
    return rows * width * 4 <= _MOST_BYTES


def cache_key(teacher_digest: str, examples: Any, names: tuple[str, ...], precision: str | None = None) -> str:
    """Return the key of the teacher's cached outputs: of teacher, input rows, outputs, and a precision below single."""
    digest = hashlib.sha256()
    for column in ("ids", "types"):
        values = examples.data.column(column).combine_chunks()
        for part in (values.flatten(), values.value_lengths()):
            digest.update(np.ascontiguousarray(part.to_numpy()).tobytes())
    tools = [_VERSION, versions(*_DISTRIBUTIONS)]
    return digest_of([tools, teacher_digest, digest.hexdigest(), names, *([precision] if precision else [])])


def write_cache(
    folder: Path,
    lengths: NDArray[np.int64],
    names: tuple[str, ...],
    run_teacher: Callable[[NDArray[np.int64]], ModelOutputs],
    tell: Callable[[str, float], None],
) -> None:
    """Run the teacher on all rows whose shards do not exist, and write its outputs.

    Args:
        folder: of the shards.
        lengths: tokens of each row; rows of similar lengths run together.
        names: of `cached_names`.
        run_teacher: returns the teacher's outputs for some rows.
        tell: called with a message and the fraction that is done.
    """
    with cache.using(folder):
        for shard in shards(folder, len(lengths), _ROWS_OF_SHARD, _SUFFIX):
            if not _is_whole(shard):
                _write_shard(shard, lengths[shard.start : shard.stop], names, run_teacher)
                write_text(shard.path.with_suffix(_DIGEST), sha256_file(shard.path))
            tell(f"the teacher's outputs, {shard.stop} of {len(lengths)}", 0.0)


def _is_whole(shard: Shard) -> bool:
    """Return whether a shard is there as it was written."""
    digest = shard.path.with_suffix(_DIGEST)
    return shard.path.is_file() and digest.is_file() and digest.read_text() == sha256_file(shard.path)


def _write_shard(
    shard: Shard,
    lengths: NDArray[np.int64],
    names: tuple[str, ...],
    run_teacher: Callable[[NDArray[np.int64]], ModelOutputs],
) -> None:
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    order = np.argsort(lengths, kind="stable")
    columns: dict[str, list[NDArray[np.float32] | None]] = {name: [None] * len(lengths) for name in names}
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        with torch.no_grad():
            outputs = run_teacher(shard.start + rows)
        for name in names:
            values = getattr(outputs, name).float().cpu().numpy()
            for number, value in zip(rows, values, strict=True):
                columns[name][number] = value
    features = Features({name: List(Value("float32")) for name in names})
    with write_aside(shard.path) as aside, ArrowWriter(path=str(aside), features=features) as writer:
        for number in range(len(lengths)):
            writer.write({name: columns[name][number] for name in names})
        writer.finalize()


def read_cache(folder: Path, count: int) -> Any:
    """Open the shards of `write_cache` for so many rows, memory-mapped."""
    import datasets

    paths = [shard.path for shard in shards(folder, count, _ROWS_OF_SHARD, _SUFFIX)]
    parts = [datasets.Dataset.from_file(str(path)) for path in paths]
    return datasets.concatenate_datasets(parts).with_format("numpy")


def cached_outputs(cache: Any, rows: NDArray[np.int64], device: torch.device) -> ModelOutputs:
    """Return the teacher's outputs for some rows from the cache."""
    columns: Mapping[str, Any] = cache[rows.tolist()]
    tensors: dict[str, Tensor] = {
        name: torch.from_numpy(np.array(value, np.float32)).to(device) for name, value in columns.items()
    }
    return ModelOutputs(logits=tensors.get("logits"), sentence=tensors.get("sentence"))
