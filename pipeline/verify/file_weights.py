"""The checkpoint in PyTorch with the numbers that a file has for its tensors: what the file's graph has to give.

Hugging Face's own forward runs, so nothing of an export takes part; only what each module reads is the file's, rounded
as it is there. What is left between the two is single precision's own rounding, some 110 dB below the outputs.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import tasks
from pipeline.formats.structure import Structure
from pipeline.metrics.outputs import RowOutputs
from pipeline.student.truth import true_outputs
from pipeline.text.encoding import Row
from pipeline.verify.weights import Expected, Form
from pipeline.verify.wiring import Followed, Place

Array = NDArray[np.float32]


def outputs(
    student: Path, task: str, expected: Expected, stored: Structure, followed: Sequence[Followed], rows: Sequence[Row]
) -> RowOutputs:
    """Run a checkpoint with a file's weights over unpadded rows.

    Args:
        student: the checkpoint in Hugging Face layout.
        task: its task.
        expected: its tensors.
        stored: what the file holds.
        followed: each function of the file beside the checkpoint; that with the longest table of positions counts, for
            the others' tables are the beginnings of its.
        rows: what to run.

    Returns:
        The outputs, as `true_outputs` gives them.
    """
    from pipeline.checkpoint.loading import load_checkpoint

    found = tasks.get(task)
    model = load_checkpoint(student, found)
    places = max((one.places for one in followed), key=lambda one: _numbers_read(one, stored))
    with _FileWeights(expected, stored, places).read_by(model):
        return true_outputs(model, found, rows)


def _numbers_read(places: Mapping[int, Mapping[str, Place]], stored: Structure) -> int:
    return sum(stored.constants[place.constant].values.size for read in places.values() for place in read.values())


@dataclass
class _FileWeights:
    """Hooks that let each call of a module read what the file has for it."""

    expected: Expected
    stored: Structure
    places: Mapping[int, Mapping[str, Place]]
    _calls: int = 0
    """How many calls of the forward pass have begun."""
    _plain: dict[str, Any] = field(default_factory=dict)
    """What the last call of a module gave before its gain and its shift, by its name."""
    _tensors: dict[tuple[int, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = (part for read in self.places.values() for place in read.values() for part in place.form.parts)
        self._folded = {part.rpartition(".")[0] for part in parts}
        """Modules whose gain or shift the file multiplies into the linears behind them."""

    @contextmanager
    def read_by(self, model: Any) -> Iterator[None]:
        """Let the modules of a model read the file's numbers; it keeps those that it had last."""
        from pipeline.checkpoint.parameters import is_called

        hooks = [model.register_forward_pre_hook(self._begin)]
        for name, module in model.named_modules():
            if is_called(module):
                hooks.append(module.register_forward_pre_hook(self._calling))
                hooks += [module.register_forward_hook(partial(self._called, name))] if name in self._folded else []
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, model: Any, inputs: Any) -> None:
        self._calls = 0
        self._plain.clear()

    def _calling(self, module: Any, inputs: tuple[Any, ...]) -> Any:
        """Give a module what the file has for this call of it; return what it reads, if that is another."""
        call, self._calls = self._calls, self._calls + 1
        name, _ = self.expected.calls[call]
        for kind in ("weight", "bias"):
            if getattr(module, kind, None) is not None:
                getattr(module, kind).data = self._tensor(call, f"{name}.{kind}")
        parts = {part for place in self.places.get(call, {}).values() for part in place.form.parts}
        return (self._without(parts),) if parts else None

    def _called(self, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what a module gives without its gain and its shift."""
        import torch
        from torch.nn import functional

        if isinstance(module, torch.nn.LayerNorm):
            self._plain[name] = functional.layer_norm(inputs[0], module.normalized_shape, eps=module.eps)
        else:
            self._plain[name] = output - module.bias if isinstance(module, torch.nn.Linear) else inputs[0]

    def _without(self, parts: Set[str]) -> Any:
        """Return what a linear reads whose weight and bias hold the gain and the shift of the module before it."""
        import torch

        (maker,) = {part.rpartition(".")[0] for part in parts}
        plain, gain = self._plain[maker], self.expected.tensors[f"{maker}.weight"]
        # A linear's own weight is no factor of what it gives.
        whole = f"{maker}.weight" in parts or gain.ndim > 1
        return plain if whole else plain * torch.from_numpy(gain)

    def _tensor(self, call: int, name: str) -> Any:
        """Return the file's numbers for a tensor, or the checkpoint's where the file has none of its own."""
        import torch

        place = self.places.get(call, {}).get(name)
        key = (-1, name) if place is None else (place.constant, place.form.label)
        if key not in self._tensors:
            own = self.expected.tensors[name]
            values = own if place is None else self.stored.constants[place.constant].values.squeeze()
            laid_out = values if place is None else _laid_out(values, place.form, own)
            self._tensors[key] = torch.from_numpy(np.array(laid_out)).reshape(own.shape)
        return self._tensors[key]


def _laid_out(values: Array, form: Form, own: Array) -> Array:
    """Return a constant in the layout of its tensor; what a file lacks of a table is the checkpoint's own."""
    if form.places is not None:
        table = own.copy()
        table.ravel()[form.places[..., : values.shape[-1], : values.shape[-1]]] = values
        return table
    wanted = form.values.squeeze()
    if form.prefix and values.ndim == 2 and len(values) < len(wanted):
        return np.concatenate([values, wanted[len(values) :]])
    if values.ndim != 2 or values.shape != wanted.shape[::-1]:
        return values
    if values.shape != wanted.shape:
        return values.T
    straight, turned = (float(np.abs(one - wanted).sum(dtype=np.float64)) for one in (values, values.T))
    return values if straight <= turned else values.T
