"""A teacher's outputs for each row, computed once, in memory-mapped Arrow files."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.artifact import digest_of
from pipeline.compress.distil import inparts
from pipeline.compress.distil.inparts import Part
from pipeline.compress.distil.seen import Seen
from pipeline.compress.distil.terms import TERMS
from pipeline.recipe.compression import DistilSection
from pipeline.tasks import Task

_KEPT = ("logits", "sentence")
_LARGEST_BYTES = 2**30
"""Beyond, the teacher runs beside the student."""
_BATCH = 64
_PART = 4096
"""Rows of a file."""
_ENDING = ".arrow"


def what(section: DistilSection, task: Task) -> tuple[str, ...]:
    """Return what of the teacher is kept for each row; empty where it has to run beside the student.

    Hidden states and scores are too large to keep, and masked tokens change in each pass.
    """
    needs = {need for name in section.losses if TERMS[name].teacher for need in TERMS[name].needs}
    fixed_width = task.output_kind in ("embedding", "logits", "value")
    if section.head != "task" or not fixed_width or not needs <= set(_KEPT):
        return ()
    return tuple(sorted(needs))


def fits(rows: int, width: int) -> bool:
    """Return whether so many rows of so many numbers are kept."""
    return rows * width * 4 <= _LARGEST_BYTES


def key(teacher_digest: str, data: Any, names: tuple[str, ...]) -> str:
    """Return what decides the content: the teacher, its rows, and what is kept of it."""
    digest = hashlib.sha256()
    for column in ("ids", "types"):
        values = data.data.column(column).combine_chunks()
        for part in (values.flatten(), values.value_lengths()):
            digest.update(np.ascontiguousarray(part.to_numpy()).tobytes())
    return digest_of([teacher_digest, digest.hexdigest(), names])


def write(
    folder: Path,
    lengths: NDArray[np.int64],
    names: tuple[str, ...],
    see: Callable[[NDArray[np.int64]], Seen],
    tell: Callable[[str, float], None],
) -> None:
    """Run the teacher over all rows and write what it showed, but for parts that are there.

    Args:
        folder: of the parts.
        lengths: tokens of each row; rows of like lengths run together.
        names: of `what`.
        see: what the teacher shows of some rows.
        tell: hears how far it is.
    """
    for part in inparts.parts(folder, len(lengths), _PART, _ENDING):
        if not part.path.is_file():
            _write(part, lengths[part.first : part.behind], names, see)
        tell(f"the teacher's outputs, {part.behind} of {len(lengths)}", 0.0)


def _write(
    part: Part, lengths: NDArray[np.int64], names: tuple[str, ...], see: Callable[[NDArray[np.int64]], Seen]
) -> None:
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    order = np.argsort(lengths, kind="stable")
    found: dict[str, list[NDArray[np.float32] | None]] = {name: [None] * len(lengths) for name in names}
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        with torch.no_grad():
            seen = see(part.first + rows)
        for name in names:
            values = getattr(seen, name).float().cpu().numpy()
            for number, value in zip(rows, values, strict=True):
                found[name][number] = value
    features = Features({name: List(Value("float32")) for name in names})
    with inparts.whole(part.path) as aside, ArrowWriter(path=str(aside), features=features) as writer:
        for number in range(len(lengths)):
            writer.write({name: found[name][number] for name in names})
        writer.finalize()


def read(folder: Path) -> Any:
    """Open what `write` left."""
    import datasets

    found = [datasets.Dataset.from_file(str(path)) for path in sorted(folder.glob(f"*{_ENDING}"))]
    return datasets.concatenate_datasets(found).with_format("numpy")


def seen(data: Any, rows: NDArray[np.int64], device: torch.device) -> Seen:
    """Return what the teacher showed of some rows."""
    found: Mapping[str, Any] = data[rows.tolist()]
    tensors: dict[str, Tensor] = {
        name: torch.from_numpy(np.array(value, np.float32)).to(device) for name, value in found.items()
    }
    return Seen(logits=tensors.get("logits"), sentence=tensors.get("sentence"))
