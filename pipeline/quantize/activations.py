"""Inputs of linears on calibration text, in fp32 PyTorch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipeline.compress.prune.activations import batch_tensors
from pipeline.data.calibration import Batches

TOKENS = 4096
"""Most tokens kept of each input."""


@dataclass(frozen=True)
class LinearGroup:
    """Linears with a common input, such as query, key and value, and a sample of that input."""

    paths: tuple[str, ...]
    linears: tuple[nn.Linear, ...]
    inputs: torch.Tensor
    """`(tokens, columns)`, padding left out."""

    def outputs(self, number: int) -> torch.Tensor:
        """Return the output of one of the linears for the inputs, `(tokens, rows)`."""
        result: torch.Tensor = self.linears[number](self.inputs)
        return result


@torch.no_grad()
def linear_groups(model: Any, batches: Batches, *, seed: int) -> list[LinearGroup]:
    """Run the calibration set through a model, and return its linears and their inputs, in order of their first call.

    A linear that several layers share occurs once, with the inputs of all its calls.

    Args:
        model: a Hugging Face model.
        batches: the calibration set.
        seed: seed of the sample of tokens, where there are more than `TOKENS`.
    """
    groups = reading_alike(model, batch_tensors(batches, 0))
    share = max(1, TOKENS // len(batches))
    generator = torch.Generator().manual_seed(seed)
    kept: dict[nn.Linear, list[torch.Tensor]] = {}
    with _watched([linears[0] for _, linears in groups]) as calls:
        for number in range(len(batches)):
            tensors = batch_tensors(batches, number)
            model(**tensors)
            for linear, read in calls:
                kept.setdefault(linear, []).append(_some(read, tensors["attention_mask"] > 0, share, generator))
            calls.clear()
    return [LinearGroup(paths, linears, _limited(kept[linears[0]], generator)) for paths, linears in groups]


@torch.no_grad()
def reading_alike(
    model: Any, tensors: Mapping[str, torch.Tensor]
) -> list[tuple[tuple[str, ...], tuple[nn.Linear, ...]]]:
    """Return a model's linears in groups with the same input in every call, in the order of their first call.

    Args:
        model: a Hugging Face model.
        tensors: one batch of its inputs.

    Returns:
        For each group the paths of its linears, and the linears.
    """
    paths = {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    readers: dict[int, list[nn.Linear]] = {}
    with _watched(paths) as calls:
        model(**tensors)
        for linear, read in calls:
            readers.setdefault(id(read), []).append(linear)
    alike: dict[nn.Linear, set[nn.Linear]] = {}
    for group in readers.values():
        for linear in group:
            alike[linear] = alike.get(linear, set(group)) & set(group)
    order = list(alike)
    groups: dict[nn.Linear, list[nn.Linear]] = {}
    for linear in order:
        groups.setdefault(min(alike[linear], key=order.index), []).append(linear)
    return [(tuple(paths[linear] for linear in group), tuple(group)) for group in groups.values()]


@contextmanager
def _watched(linears: Iterable[nn.Linear]) -> Iterator[list[tuple[nn.Linear, torch.Tensor]]]:
    """Collect the calls of some linears with their inputs; kept tensors have distinct identities."""
    calls: list[tuple[nn.Linear, torch.Tensor]] = []
    hooks = [one.register_forward_pre_hook(lambda module, args: calls.append((module, args[0]))) for one in linears]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def of_tokens(read: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return a module's input without padding, `(tokens, ...)`; an input without a token axis is returned whole.

    Args:
        read: ids `(batch, seq_len)`, or vectors `(..., columns)`. A batch with as many vectors as a row has tokens has
            the shape of ids.
        present: tokens that are not padding, bool `(batch, seq_len)`.
    """
    vectors = read.is_floating_point()
    by_token = read.shape[: read.ndim - vectors] == present.shape
    return read[present] if by_token else read.reshape(-1, *read.shape[read.ndim - vectors :])


def _some(read: torch.Tensor, present: torch.Tensor, share: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random sample of up to `share` vectors of a batch, padding left out."""
    flat = of_tokens(read, present)
    if len(flat) > share:
        flat = flat[torch.randperm(len(flat), generator=generator)[:share]]
    return flat.clone()


def _limited(parts: Sequence[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    whole = torch.cat(list(parts))
    return whole if len(whole) <= TOKENS else whole[torch.randperm(len(whole), generator=generator)[:TOKENS]]
