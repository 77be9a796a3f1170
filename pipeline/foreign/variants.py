"""References that make one error each, in PyTorch: what a file would give that ignores the mask, pools otherwise, ...

Each is Hugging Face's own forward pass with other inputs, another table or another head. A file that is nearer to one
of them than to the reference makes that error, however it was made.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import architectures, heads
from pipeline.errors import StudentError
from pipeline.foreign.record import Variant
from pipeline.formats.ports import Array
from pipeline.heads.pooling import MODES, Pooling
from pipeline.heads.sentence import NAME, SentenceHead
from pipeline.heads.steps import Normalize, Step
from pipeline.kinds import KINDS
from pipeline.metrics import measures
from pipeline.tasks import Task
from pipeline.text.encoding import Row

_CUTS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Lengths to which a file may cut its rows."""
_SHIFTS = (-2, -1, 1, 2)
"""By how much positions may be off; RoBERTa's offset is 2."""
_POOLER = "pooler.dense"
_MODE_WORDS = {
    "cls": "the first token's vector",
    "max": "the maximum over tokens",
    "mean": "the mean over tokens",
    "mean_sqrt_len_tokens": "the sum over tokens, divided by the root of their number",
    "weightedmean": "the mean weighted by position",
    "lasttoken": "the last token's vector",
}


@dataclass(frozen=True)
class Run:
    """A row and the length at which the file ran it."""

    row: Row
    length: int


@dataclass(frozen=True)
class Hidden:
    """A model's output, as far as the head of an embedding reads it."""

    last_hidden_state: torch.Tensor


def all_of(model: Any, task: Task, head: SentenceHead, runs: Sequence[Run], weights: Path) -> Iterator[Variant]:
    """Yield every reference that makes an error which the checkpoint allows."""
    checkpoint = _Checkpoint(model, task)
    yield from _of_masks(checkpoint, runs)
    yield from _of_types(checkpoint, runs)
    yield from _of_tables(checkpoint, runs)
    if not KINDS[task.output_kind].per_token:
        yield from _of_length(checkpoint, runs)
    if task.output_kind == "embedding":
        yield from _of_head(checkpoint, head, runs, weights)
    else:
        yield from _of_outputs(checkpoint, runs)


class _Checkpoint:
    """A loaded checkpoint that runs one row at a time, with errors."""

    def __init__(self, model: Any, task: Task) -> None:
        self.model = model
        self.task = task
        self.head = heads.of(task, model)
        self.architecture = architectures.get(model.config.model_type)
        self.padding = self.architecture.padding_id(model.config.to_dict())

    def forward(self, row: Row, length: int | None = None, *, attend_padding: bool = False, types: bool = True) -> Any:
        """Return Hugging Face's output for a row; of its own length, or padded to another one."""
        tokens, length = len(row), length or len(row)
        mask = torch.zeros(1, length, dtype=torch.int64)
        mask[0, : length if attend_padding else tokens] = 1
        ids = torch.full((1, length), self.padding)
        ids[0, :tokens] = torch.tensor(row.ids)
        segments = torch.zeros(1, length, dtype=torch.int64)
        if types:
            segments[0, :tokens] = torch.tensor(row.types)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        with torch.no_grad():
            return self.model(**{name: inputs[name] for name in self.architecture.inputs})

    def read(self, output: Any, row: Row, tokens: int | None = None) -> Array:
        """Return the task's `(items, width)` of an output; an embedding pools the first `tokens` vectors."""
        tokens = len(row) if tokens is None else tokens
        if self.task.output_kind == "embedding":
            output = Hidden(output.last_hidden_state[:, :tokens])
        items: Array = self.head.reference(output, row.unpooled)[0]
        return items[: len(row)]

    def outputs(self, runs: Sequence[Run], **errors: Any) -> list[Array]:
        """Return the outputs of unpadded rows."""
        return [self.read(self.forward(run.row, **errors), run.row) for run in runs]


def _of_masks(checkpoint: _Checkpoint, runs: Sequence[Run]) -> Iterator[Variant]:
    """Yield references that see padding: in the attention, in the pooling, or in both."""
    if all(run.length == len(run.row) for run in runs):
        return
    ignoring = [checkpoint.forward(run.row, run.length, attend_padding=True) for run in runs]
    rows = [run.row for run in runs]
    yield Variant(
        "mask_ignored",
        "attention ignores the mask: padding is attended to as if it were text",
        [checkpoint.read(output, row) for output, row in zip(ignoring, rows, strict=True)],
    )
    if checkpoint.task.output_kind != "embedding":
        return
    keeping = [checkpoint.forward(run.row, run.length) for run in runs]
    for name, words, outputs in (
        ("pooled_padding", "padding is pooled with the text", keeping),
        ("mask_ignored_everywhere", "the mask is ignored in attention and pooling: padding counts as text", ignoring),
    ):
        yield Variant(
            name, words, [checkpoint.read(one, run.row, run.length) for one, run in zip(outputs, runs, strict=True)]
        )


def _of_types(checkpoint: _Checkpoint, runs: Sequence[Run]) -> Iterator[Variant]:
    if "token_type_ids" in checkpoint.architecture.inputs and any(any(run.row.types) for run in runs):
        yield Variant(
            "types_dead",
            "token types are dead: the second text of a pair counts as the first",
            checkpoint.outputs(runs, types=False),
        )


def _of_tables(checkpoint: _Checkpoint, runs: Sequence[Run]) -> Iterator[Variant]:
    """Yield references that look up other rows of a table."""
    offset = 1 + checkpoint.padding if checkpoint.architecture.positions_after_padding else 0
    for shift in _SHIFTS:
        dropped = (
            "; they start at 0, the offset behind the padding id is dropped" if offset and shift == -offset else ""
        )
        words = f"positions are off by {shift:+d}{dropped}"
        yield from _edited(checkpoint, runs, "position_embeddings", _shifted(shift), f"positions_off:{shift:+d}", words)
    yield from _edited(
        checkpoint, runs, "position_embeddings", torch.zeros_like, "positions_dead", "positions are left out"
    )
    yield from _edited(
        checkpoint,
        runs,
        "relative_attention_bias",
        torch.zeros_like,
        "relative_positions_dead",
        "relative positions are left out",
    )
    for shift in (-1, 1):
        row = "lower" if shift < 0 else "higher"
        words = f"ids are those of another vocabulary: each reads the row of the id one {row}"
        yield from _edited(checkpoint, runs, "word_embeddings", _shifted(shift), f"vocabulary_off:{shift:+d}", words)


def _shifted(by: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def shift(table: torch.Tensor) -> torch.Tensor:
        return table[(torch.arange(len(table)) + by).clamp(0, len(table) - 1)]

    return shift


def _edited(
    checkpoint: _Checkpoint,
    runs: Sequence[Run],
    table: str,
    edit: Callable[[torch.Tensor], torch.Tensor],
    name: str,
    words: str,
) -> Iterator[Variant]:
    found = [module for path, module in checkpoint.model.named_modules() if path.rpartition(".")[2] == table]
    weights = [module.weight for module in found if getattr(module, "weight", None) is not None]
    if weights:
        with _replaced(weights, edit):
            outputs = checkpoint.outputs(runs)
        yield Variant(name, words, outputs)


@contextlib.contextmanager
def _replaced(weights: Sequence[Any], edit: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    before = [weight.data for weight in weights]
    for weight in weights:
        weight.data = edit(weight.data)
    try:
        yield
    finally:
        for weight, kept in zip(weights, before, strict=True):
            weight.data = kept


def _of_length(checkpoint: _Checkpoint, runs: Sequence[Run]) -> Iterator[Variant]:
    """Yield references that cut their rows, wherever two rows are longer."""
    lengths = sorted(len(run.row) for run in runs)
    for cut in _CUTS:
        if len(lengths) > 1 and lengths[-2] > cut:
            rows = [Row(run.row.ids[:cut], run.row.types[:cut], run.row.unpooled) for run in runs]
            words = f"rows are cut to {cut} tokens inside the file, whatever it is given"
            yield Variant(f"truncated:{cut}", words, checkpoint.outputs([Run(row, len(row)) for row in rows]))


# --- heads -------------------------------------------------------------------------------------------------------


def _of_outputs(checkpoint: _Checkpoint, runs: Sequence[Run]) -> Iterator[Variant]:
    """Yield references with the right outputs in another form."""
    right = checkpoint.outputs(runs)
    match KINDS[checkpoint.task.output_kind].decision:
        case "span":
            exchanged = [np.ascontiguousarray(one[:, ::-1]) for one in right]
            yield Variant("start_end_exchanged", "the logits of starts and of ends are exchanged", exchanged)
        case "one":
            outputs = [measures.softmax(one).astype(np.float32) for one in right]
            yield Variant("probabilities", "the outputs are probabilities, and the checkpoint gives logits", outputs)
        case _:
            outputs = [measures.sigmoid(one).astype(np.float32) for one in right]
            yield Variant("probabilities", "a sigmoid is applied to the outputs", outputs)


def _of_head(checkpoint: _Checkpoint, head: SentenceHead, runs: Sequence[Run], weights: Path) -> Iterator[Variant]:
    """Yield references with the right vectors of tokens and another head."""
    rows = [run.row for run in runs]
    hidden = [checkpoint.forward(row).last_hidden_state for row in rows]
    own: Any = getattr(checkpoint.model, NAME, None)
    own = head.module() if own is None else own
    modules = list(own)
    for name, words, changed, kept in _heads(head, modules):
        try:
            changed.check(hidden[0].shape[-1])
        except StudentError:
            # A dense layer takes the vector of the checkpoint's own pooling alone.
            continue
        outputs = [changed.reference(kept, one, row.unpooled) for one, row in zip(hidden, rows, strict=True)]
        yield Variant(name, words, outputs)
    yield from _of_pooler(hidden, weights)


def _heads(head: SentenceHead, modules: Sequence[Any]) -> Iterator[tuple[str, str, SentenceHead, list[Any]]]:
    """Yield other heads: another pooling, another end, steps left out, the prompt pooled."""
    steps, plain = head.steps, list(modules)
    ends = bool(steps) and isinstance(steps[-1], Normalize)
    other: tuple[Step, ...] = steps[:-1] if ends else (*steps, Normalize())
    others = plain[:-1] if ends else [*plain, torch.nn.Module()]
    scaled = "normalised to length 1, and the checkpoint's is not"
    norm, words = ("not_normalised", "not normalised to length 1") if ends else ("normalised", scaled)
    yield norm, f"the embedding is {words}", head.model_copy(update={"steps": other}), others
    for mode in MODES:
        if (mode,) == head.pooling.modes:
            continue
        pooling = Pooling(modes=(mode,), include_prompt=head.pooling.include_prompt)
        said = f"the pooling is another: {_MODE_WORDS[mode]}, and the checkpoint has {', '.join(head.pooling.modes)}"
        yield f"pooling:{mode}", said, head.model_copy(update={"pooling": pooling}), plain
        both = head.model_copy(update={"pooling": pooling, "steps": other})
        yield f"pooling:{mode}+{norm}", f"{said}; and the embedding is {words}", both, others
    kept = [(step, module) for step, module in zip(steps, plain, strict=True) if isinstance(step, Normalize)]
    if len(kept) < len(steps):
        left_out = head.model_copy(update={"steps": tuple(step for step, _ in kept)})
        said = f"the modules behind the pooling are left out: {head.chain}"
        yield "head_left_out", said, left_out, [module for _, module in kept]
    if not head.pooling.include_prompt:
        pooling = Pooling(modes=head.pooling.modes)
        said = "the prompt's tokens are pooled, and the checkpoint leaves them out"
        yield "prompt_pooled", said, head.model_copy(update={"pooling": pooling}), plain


def _of_pooler(hidden: Sequence[torch.Tensor], weights: Path) -> Iterator[Variant]:
    """Yield BERT's pooler, which many exports give beside the vectors of tokens."""
    tensors = _pooler(weights)
    if tensors is None:
        return
    weight, bias = tensors
    outputs = [np.tanh(one[:, 0].numpy() @ weight.T + bias).astype(np.float32) for one in hidden]
    words = "the output is BERT's pooler (tanh of a dense layer on the first token), and the checkpoint pools otherwise"
    yield Variant("pooler", words, outputs)


def _pooler(weights: Path) -> tuple[Array, Array] | None:
    from safetensors import safe_open

    if not weights.is_file():
        return None
    with safe_open(weights, framework="numpy") as handle:
        found = [name for name in handle.keys() if name.endswith(f"{_POOLER}.weight")]  # noqa: SIM118 (not a dict)
        if not found:
            return None
        prefix = found[0].removesuffix("weight")
        return tuple(handle.get_tensor(f"{prefix}{kind}").astype(np.float64) for kind in ("weight", "bias"))
