"""What linears read and give on calibration text, in fp32 PyTorch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipeline.compress.prune.activations import batch_tensors
from pipeline.data.calibration import Batches

TOKENS = 4096
"""Most tokens that are kept of each tensor."""


@dataclass(frozen=True)
class LinearGroup:
    """Linears that read the same tensor, such as query, key and value, with what they read."""

    paths: tuple[str, ...]
    linears: tuple[nn.Linear, ...]
    inputs: torch.Tensor
    """`(tokens, columns)`, padding left out."""

    def outputs(self, number: int) -> torch.Tensor:
        """Return what one of the linears gives for the inputs, `(tokens, rows)`."""
        result: torch.Tensor = self.linears[number](self.inputs)
        return result


@torch.no_grad()
def linear_groups(model: Any, batches: Batches, *, seed: int) -> list[LinearGroup]:
    """Run calibration batches through a model, and return its linears in the order of their first call.

    A linear that several layers share is one, with the inputs of all its calls.

    Args:
        model: a Hugging Face model.
        batches: the calibration set.
        seed: seed of the choice of tokens, where there are more than `TOKENS`.
    """
    paths = {id(module): name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    modules = {paths[id(module)]: module for module in model.modules() if id(module) in paths}
    share = max(1, TOKENS // len(batches))
    generator = torch.Generator().manual_seed(seed)
    kept: dict[str, list[torch.Tensor]] = {}
    readers: dict[int, list[str]] = {}
    with _watched(modules.values()) as calls:
        for number in range(len(batches)):
            tensors = batch_tensors(batches, number)
            model(**tensors)
            present = tensors["attention_mask"] > 0
            chosen: dict[int, torch.Tensor] = {}
            for module, read in calls:
                path = paths[id(module)]
                if number == 0:
                    readers.setdefault(id(read), []).append(path)
                if id(read) not in chosen:
                    chosen[id(read)] = _some(read, present, share, generator)
                kept.setdefault(path, []).append(chosen[id(read)])
            if number == 0:
                first = _first_of_each(readers)
            calls.clear()
    groups: dict[str, list[str]] = {}
    for path in kept:
        groups.setdefault(first[path], []).append(path)
    return [
        LinearGroup(tuple(group), tuple(modules[path] for path in group), _limited(kept[owner], generator))
        for owner, group in groups.items()
    ]


@contextmanager
def _watched(modules: Any) -> Iterator[list[tuple[nn.Module, torch.Tensor]]]:
    """Collect calls with what they read; keeping the tensors keeps their identities apart."""
    calls: list[tuple[nn.Module, torch.Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args: calls.append((module, args[0]))) for module in modules
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _first_of_each(readers: dict[int, list[str]]) -> dict[str, str]:
    """Return for each linear the first of those with which it shares what it reads in every call."""
    sharing: dict[str, set[str]] = {}
    for group in readers.values():
        for path in group:
            sharing[path] = sharing.get(path, set(group)) & set(group)
    order = {path: number for number, path in enumerate(sharing)}
    return {path: min(others, key=order.__getitem__) for path, others in sharing.items()}


def of_tokens(read: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Return what a module reads without padding, `(tokens, ...)`; of what has no axis of tokens, all.

    Args:
        read: ids `(batch, seq_len)`, or vectors `(..., columns)`, of which a batch of as many as there are tokens in a
            row has the shape of ids.
        present: tokens that are not padding, bool `(batch, seq_len)`.
    """
    vectors = read.is_floating_point()
    by_token = read.shape[: read.ndim - vectors] == present.shape
    return read[present] if by_token else read.reshape(-1, *read.shape[read.ndim - vectors :])


def _some(read: torch.Tensor, present: torch.Tensor, share: int, generator: torch.Generator) -> torch.Tensor:
    """Return up to `share` of the vectors of a batch, those of padding left out."""
    flat = of_tokens(read, present)
    if len(flat) > share:
        flat = flat[torch.randperm(len(flat), generator=generator)[:share]]
    return flat.clone()


def _limited(parts: Sequence[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    whole = torch.cat(list(parts))
    return whole if len(whole) <= TOKENS else whole[torch.randperm(len(whole), generator=generator)[:TOKENS]]
