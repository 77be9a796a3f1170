"""Which rows make an update, and their padded tensors.

The order is a function of seed and epoch alone, so the number of updates says where a run was stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.train.examples import IGNORED

_CHUNK = 50
"""Batches that are sorted together. Source: transformers, `LengthGroupedSampler`: enough to pad little, and to mix."""


@dataclass(frozen=True)
class Batch:
    """Padded rows with their targets."""

    inputs: dict[str, torch.Tensor]
    """The architecture's inputs, each `(batch, seq_len)`."""
    target: torch.Tensor
    """`(batch, 1)`, `(batch, seq_len)` or `(batch, 2)`, see `examples`."""

    def to(self, device: torch.device) -> "Batch":
        """Return the same on a device."""
        return Batch({name: value.to(device) for name, value in self.inputs.items()}, self.target.to(device))


def epoch(lengths: NDArray[np.int64], batch_size: int, *, seed: int, number: int) -> list[NDArray[np.int64]]:
    """Return the rows of each update of an epoch, each row once.

    Args:
        lengths: tokens of each row.
        batch_size: rows of an update; the last may have fewer.
        seed: of the run.
        number: of the epoch, from 0.
    """
    draw = np.random.default_rng((seed, number))
    order = draw.permutation(len(lengths))
    chunk = _CHUNK * batch_size
    chunks = [order[start : start + chunk] for start in range(0, len(order), chunk)]
    ordered = np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in chunks])
    batches = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [batches[at] for at in draw.permutation(len(batches))]


def parts(rows: NDArray[np.int64], *, process: int, processes: int, count: int) -> list[NDArray[np.int64]]:
    """Return what one process runs of an update, in so many parts; some may be empty."""
    return np.array_split(rows[process::processes], count)


def collate(rows: Sequence[dict[str, Any]], names: tuple[str, ...], *, pad_token_id: int, per_token: bool) -> Batch:
    """Pad rows to the longest of them.

    Args:
        rows: of `examples.read`.
        names: inputs of the architecture.
        pad_token_id: id of padding, whose mask and type are 0.
        per_token: whether there is a target for each token.
    """
    ids = _padded([row["ids"] for row in rows], pad_token_id)
    found = {
        "input_ids": ids,
        "attention_mask": _padded([np.ones_like(row["ids"]) for row in rows], 0),
        "token_type_ids": _padded([row["types"] for row in rows], 0),
    }
    target = _padded([row["target"] for row in rows], IGNORED) if per_token else np.stack([r["target"] for r in rows])
    whole = torch.float32 if target.dtype == np.float32 else torch.int64
    return Batch({name: torch.from_numpy(found[name]).long() for name in names}, torch.from_numpy(target).to(whole))


def _padded(rows: Sequence[NDArray[Any]], value: int) -> NDArray[Any]:
    result = np.full((len(rows), max(map(len, rows))), value, rows[0].dtype)
    for number, row in enumerate(rows):
        result[number, : len(row)] = row
    return result
