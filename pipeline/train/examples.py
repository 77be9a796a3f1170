"""Labelled rows as ids and targets, in a memory-mapped Arrow file.

===============  =====================================================================
kind of output   target
===============  =====================================================================
`logits`         the class's number
`value`          the number
`token_logits`   for each token the tag of the word that it begins, else `IGNORED`
`spans`          the answer's first and last token; 0 and 0 in a window without it
===============  =====================================================================
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.datasets import Labelled, Placed
from pipeline.errors import InputError
from pipeline.metrics.outputs import first_tokens, overlap, word_spans
from pipeline.schemes import OutputKind
from pipeline.tasks import Task
from pipeline.text.encoding import Encoder, Row, Window

IGNORED = -100
"""A token without a target: special ones, and all but the first of a word. Source: torch's `ignore_index`."""


@dataclass(frozen=True)
class Example:
    """One encoded row with what is right for it."""

    row: Row
    target: tuple[float, ...]


def encode(encoder: Encoder, task: Task, rows: Sequence[Labelled], ids: Sequence[int]) -> Iterator[Example]:
    """Encode rows as verification does.

    Args:
        encoder: of the student, with the length to which rows are cut.
        task: decides what a target is.
        rows: in the order of the data set.
        ids: the head's number of each of the data set's labels.

    Raises:
        InputError: a question leaves no room for its passage.
    """
    for number, row in enumerate(rows, 1):
        if task.output_kind == "token_logits":
            yield _tagged(encoder, row, ids)
        elif task.output_kind == "spans":
            yield from _asked(encoder, row, number)
        else:
            label = float(ids[int(row.label)]) if task.has_labels else row.label
            yield Example(encoder.encode(row.first, row.second), (label,))


def _tagged(encoder: Encoder, labelled: Labelled, ids: Sequence[int]) -> Example:
    """Put each word's tag on its first token. Source: Devlin et al. 2019, section 5.3."""
    row, offsets = encoder.encode_with_offsets(labelled.first)
    target = [float(IGNORED)] * len(row)
    firsts = first_tokens(word_spans(labelled.first), offsets)
    for at, tag in zip(firsts, labelled.tags, strict=True):
        if at is not None:
            target[at] = float(ids[tag])
    return Example(row, tuple(target))


def _asked(encoder: Encoder, labelled: Labelled, number: int) -> Iterator[Example]:
    """Cut the passage into windows; one that lacks the answer points to the first token.

    Source: google-research/bert, run_squad.py, `out_of_span`.
    """
    passage = labelled.second or ""
    start = labelled.answer_start if isinstance(labelled, Placed) else passage.find(labelled.answers[0])
    if start < 0:
        raise InputError(f"question {number}: answer {labelled.answers[0][:40]!r} is not in its passage.")
    # Tokens are without the spaces around them.
    answer = labelled.answers[0]
    start += len(answer) - len(answer.lstrip())
    end = start + len(answer.strip())
    try:
        windows = encoder.windows(labelled.first, passage, stride=overlap(encoder.max_length))
    except InputError as error:
        raise InputError(f"training question {number}: {error}") from error
    for window in windows:
        yield Example(window.row, _place(window, start, end))


def _place(window: Window, start: int, end: int) -> tuple[float, float]:
    tokens = [
        token
        for token, place in enumerate(window.offsets)
        if place and place[1] > place[0] and place[0] < end and place[1] > start
    ]
    if not tokens:
        return 0.0, 0.0
    first, last = window.offsets[tokens[0]], window.offsets[tokens[-1]]
    whole = first is not None and last is not None and first[0] <= start and last[1] >= end
    return (float(tokens[0]), float(tokens[-1])) if whole else (0.0, 0.0)


def write(examples: Iterator[Example], path: Path, kind: OutputKind) -> None:
    """Write examples to an Arrow file: a big data set need not fit into memory, and processes share it."""
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    number = Value("float32" if kind == "value" else "int32")
    features = Features({"ids": List(Value("int32")), "types": List(Value("int32")), "target": List(number)})
    cast = float if kind == "value" else int
    # Aside: the run before this one may still have the file mapped.
    aside = path.with_suffix(".new")
    with ArrowWriter(path=str(aside), features=features) as writer:
        for one in examples:
            row = {"ids": list(one.row.ids), "types": list(one.row.types), "target": list(map(cast, one.target))}
            writer.write(row)
        writer.finalize()
    aside.replace(path)


def read(path: Path) -> Any:
    """Open an Arrow file, memory-mapped, with rows as NumPy arrays."""
    import datasets

    return datasets.Dataset.from_file(str(path)).with_format("numpy")


def lengths(data: Any) -> NDArray[np.int64]:
    """Return the tokens of each row of `read`."""
    from pyarrow import compute

    found: NDArray[np.int64] = compute.list_value_length(data.data.column("ids")).to_numpy().astype(np.int64)
    return found


def take(data: Any, rows: NDArray[np.int64]) -> list[dict[str, NDArray[Any]]]:
    """Return some rows of `read`: `ids`, `types` and `target` of each."""
    found = data[rows.tolist()]
    return [{name: found[name][number] for name in found} for number in range(len(rows))]


def targets(data: Any, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the targets of some rows of `read`."""
    return [row["target"] for row in take(data, rows)]
