"""Labelled rows as token ids and targets in a memory-mapped Arrow file, and the padded batches of an update.

===============  =====================================================================
kind of output   target
===============  =====================================================================
`logits`         the number of the class
`value`          the number
`multi_label`    for each label 1 if it is given, else 0
`values`         the numbers
`token_logits`   for each token the tag of the word that it begins, else `IGNORED`
`spans`          the answer's first and last token; 0 and 0 in a window without it
===============  =====================================================================

The order of rows is a function of seed and epoch alone, so the number of updates says where a run was interrupted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.atomic import write_aside
from pipeline.data.datasets import Labelled, LocatedAnswer
from pipeline.errors import InputError
from pipeline.kinds import KINDS, OutputKind
from pipeline.metrics.outputs import first_tokens, overlap, word_spans
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder, Row, Window

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Target of special tokens and of all tokens but the first of a word. Source: torch's `ignore_index`."""
_SORTED_TOGETHER = 50
"""Batches whose rows are sorted by length together: enough to pad little, and to mix.

Source: transformers, `LengthGroupedSampler`."""


@dataclass(frozen=True)
class EncodedExample:
    """One encoded row with its target."""

    row: Row
    target: tuple[float, ...]


def encode(
    encoder: Encoder, task: Task, rows: Sequence[Labelled], ids: Sequence[int], *, width: int = 0
) -> Iterator[EncodedExample]:
    """Encode rows as verification does.

    Args:
        encoder: of the student, with the length at which rows are truncated.
        task: decides what a target is.
        rows: in the order of the dataset.
        ids: the number of the head's output for each label of the dataset.
        width: number of the head's outputs, where a text has a target for each.

    Raises:
        InputError: a question leaves no room for its passage.
    """
    for number, row in enumerate(rows, 1):
        if task.output_kind == "token_logits":
            yield _with_tags(encoder, row, ids)
        elif task.output_kind == "spans":
            yield from _answer_windows(encoder, row, number)
        elif KINDS[task.output_kind].several_targets:
            yield EncodedExample(encoder.encode(row.first, row.second), row.by_output(ids, width))
        else:
            label = float(ids[int(row.label)]) if task.has_labels else row.label
            yield EncodedExample(encoder.encode(row.first, row.second), (label,))


def _with_tags(encoder: Encoder, labelled: Labelled, ids: Sequence[int]) -> EncodedExample:
    """Put the tag of each word on its first token. Source: Devlin et al. 2019, section 5.3."""
    row, offsets = encoder.encode_with_offsets(labelled.first)
    target = [float(IGNORED)] * len(row)
    firsts = first_tokens(word_spans(labelled.first), offsets)
    for at, tag in zip(firsts, labelled.tags, strict=True):
        if at is not None:
            target[at] = float(ids[tag])
    return EncodedExample(row, tuple(target))


def _answer_windows(encoder: Encoder, labelled: Labelled, number: int) -> Iterator[EncodedExample]:
    """Cut the passage into windows; the target of a window without the answer is its first token.

    Source: google-research/bert, run_squad.py, `out_of_span`.
    """
    passage = labelled.second or ""
    start = labelled.answer_start if isinstance(labelled, LocatedAnswer) else passage.find(labelled.answers[0])
    if start < 0:
        raise InputError(f"question {number}: answer {labelled.answers[0][:40]!r} is not in its passage.")
    # Tokens do not cover the spaces around them.
    answer = labelled.answers[0]
    start += len(answer) - len(answer.lstrip())
    end = start + len(answer.strip())
    try:
        windows = encoder.windows(labelled.first, passage, stride=overlap(encoder.max_length))
    except InputError as error:
        raise InputError(f"training question {number}: {error}") from error
    for window in windows:
        yield EncodedExample(window.row, _answer_tokens(window, start, end))


def _answer_tokens(window: Window, start: int, end: int) -> tuple[float, float]:
    """Return the first and last token of the answer, both 0 if the window does not hold all of it."""
    tokens = [
        token
        for token, offsets in enumerate(window.offsets)
        if offsets and offsets[1] > offsets[0] and offsets[0] < end and offsets[1] > start
    ]
    if not tokens:
        return 0.0, 0.0
    first, last = window.offsets[tokens[0]], window.offsets[tokens[-1]]
    whole = first is not None and last is not None and first[0] <= start and last[1] >= end
    return (float(tokens[0]), float(tokens[-1])) if whole else (0.0, 0.0)


# --- the Arrow file --------------------------------------------------------------------------------------------------


def write(examples: Iterator[EncodedExample], path: Path, kind: OutputKind) -> None:
    """Write examples to an Arrow file: a large dataset need not fit into memory, and processes share it."""
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    real = KINDS[kind].real_targets
    number = Value("float32" if real else "int32")
    features = Features({"ids": List(Value("int32")), "types": List(Value("int32")), "target": List(number)})
    cast = float if real else int
    # An earlier run may still have the old file mapped.
    with write_aside(path) as aside, ArrowWriter(path=str(aside), features=features) as writer:
        for one in examples:
            row = {"ids": list(one.row.ids), "types": list(one.row.types), "target": list(map(cast, one.target))}
            writer.write(row)
        writer.finalize()


def read(path: Path) -> Any:
    """Open an Arrow file, memory-mapped, with rows as NumPy arrays."""
    import datasets

    return datasets.Dataset.from_file(str(path)).with_format("numpy")


def lengths(examples: Any) -> NDArray[np.int64]:
    """Return the number of tokens of each row of `read`."""
    from pyarrow import compute

    result: NDArray[np.int64] = compute.list_value_length(examples.data.column("ids")).to_numpy().astype(np.int64)
    return result


def take(examples: Any, rows: NDArray[np.int64]) -> list[dict[str, NDArray[Any]]]:
    """Return some rows of `read`: `ids`, `types` and `target` of each."""
    columns = examples[rows.tolist()]
    return [{name: columns[name][number] for name in columns} for number in range(len(rows))]


def targets(examples: Any, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the targets of some rows of `read`."""
    return [row["target"] for row in take(examples, rows)]


# --- the batches of an update ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Padded rows with their targets."""

    inputs: dict[str, "torch.Tensor"]
    """The architecture's inputs, each `(batch, seq_len)`."""
    target: "torch.Tensor"
    """`(batch, 1)`, `(batch, outputs)`, `(batch, seq_len)` or `(batch, 2)`, see the table above."""

    def to(self, device: "torch.device") -> "Batch":
        """Return the batch on a device."""
        return Batch({name: value.to(device) for name, value in self.inputs.items()}, self.target.to(device))


@dataclass(frozen=True)
class Neighbourhoods:
    """Rows that an update should hold together, for losses that compare the rows of an update with each other."""

    nearest: NDArray[np.int64]
    """For each row the numbers of the rows nearest to it, nearest first, `(rows, candidates)`."""
    size: int
    """Number of rows that come together: one, and its nearest of those that the epoch has not had yet."""

    def ordered(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return the rows of an epoch neighbourhood by neighbourhood, and for each row its neighbourhood's longest.

        Args:
            order: the rows in the order in which they ask for their neighbours.
            lengths: tokens of each row.

        Returns:
            Rows in order, `(rows,)`; and by row number the most tokens of its neighbourhood, `(rows,)`.
        """
        taken = np.zeros(len(order), bool)
        groups, longest = [], np.zeros_like(lengths)
        for row in order:
            if taken[row]:
                continue
            taken[row] = True
            near = self.nearest[row]
            group = np.append(row, near[~taken[near]][: self.size - 1])
            taken[group] = True
            longest[group] = lengths[group].max()
            groups.append(group)
        return np.concatenate(groups), longest


def epoch_batches(
    lengths: NDArray[np.int64], batch_size: int, *, seed: int, number: int, near: Neighbourhoods | None = None
) -> list[NDArray[np.int64]]:
    """Return the rows of each update of an epoch, each row once.

    Args:
        lengths: tokens of each row.
        batch_size: rows of an update; the last one may have fewer.
        seed: of the run.
        number: of the epoch, from 0.
        near: rows that should share an update; None for any.
    """
    draw = np.random.default_rng((seed, number))
    order = draw.permutation(len(lengths))
    if near is not None:
        # Sorting is stable, so that rows of a neighbourhood stay beside each other among those that are as long.
        order, lengths = near.ordered(order, lengths)
    chunk = _SORTED_TOGETHER * batch_size
    chunks = [order[start : start + chunk] for start in range(0, len(order), chunk)]
    ordered = np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in chunks])
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [batches[at] for at in draw.permutation(len(batches))]


def process_batches(rows: NDArray[np.int64], *, process: int, processes: int, count: int) -> list[NDArray[np.int64]]:
    """Return the rows of an update that one process runs, as `count` batches; some may be empty."""
    return np.array_split(rows[process::processes], count)


def collate(
    rows: Sequence[dict[str, Any]], input_names: tuple[str, ...], *, pad_token_id: int, per_token: bool
) -> Batch:
    """Pad rows to the longest of them.

    Args:
        rows: of `take`.
        input_names: inputs of the architecture.
        pad_token_id: id of padding, whose mask and type are 0.
        per_token: whether each token has a target.
    """
    import torch

    arrays = {
        "input_ids": _padded([row["ids"] for row in rows], pad_token_id),
        "attention_mask": _padded([np.ones_like(row["ids"]) for row in rows], 0),
        "token_type_ids": _padded([row["types"] for row in rows], 0),
    }
    target = _padded([row["target"] for row in rows], IGNORED) if per_token else np.stack([r["target"] for r in rows])
    dtype = torch.float32 if target.dtype == np.float32 else torch.int64
    return Batch(
        {name: torch.from_numpy(arrays[name]).long() for name in input_names}, torch.from_numpy(target).to(dtype)
    )


def _padded(rows: Sequence[NDArray[Any]], value: int) -> NDArray[Any]:
    result = np.full((len(rows), max(map(len, rows))), value, rows[0].dtype)
    for number, row in enumerate(rows):
        result[number, : len(row)] = row
    return result
