"""Outputs of the checkpoint in PyTorch with the weights of a file: the reference for the file's own graph.

Hugging Face's own forward runs, so nothing of an export takes part; only the weights are the file's, rounded as they
are there. The remaining difference is the rounding of single precision, some 110 dB below the outputs.
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
from pipeline.heads import sentence
from pipeline.metrics.outputs import RowOutputs
from pipeline.student.outputs import reference_outputs
from pipeline.text.encoding import Row
from pipeline.verify.weights import Expected, Form
from pipeline.verify.wiring import MatchedFunction, TensorConstant

Array = NDArray[np.float32]


def outputs(
    student: Path,
    task: str,
    expected: Expected,
    stored: Structure,
    followed: Sequence[MatchedFunction],
    rows: Sequence[Row],
) -> RowOutputs:
    """Run a checkpoint with a file's weights over unpadded rows.

    Args:
        student: the checkpoint in Hugging Face layout.
        task: its task.
        expected: the checkpoint's tensors.
        stored: the file's structure.
        followed: each function of the file matched with the checkpoint; that with the longest position table is used,
            since the others' tables are its first rows.
        rows: the rows to run.

    Returns:
        The outputs, as `reference_outputs` gives them.
    """
    from pipeline.checkpoint.loading import load_checkpoint

    found = tasks.get(task)
    model = load_checkpoint(student, found)
    places = max((one.places for one in followed), key=lambda one: _numbers_read(one, stored))
    with _FileWeights(expected, stored, places).read_by(model):
        return reference_outputs(model, found, rows)


def _numbers_read(places: Mapping[int, Mapping[str, TensorConstant]], stored: Structure) -> int:
    return sum(stored.constants[place.constant].values.size for read in places.values() for place in read.values())


@dataclass
class _FileWeights:
    """Forward hooks that give each call of a module the file's weights for that call."""

    expected: Expected
    stored: Structure
    places: Mapping[int, Mapping[str, TensorConstant]]
    _calls: int = 0
    """Number of module calls that have begun in this forward pass."""
    _plain: dict[str, Any] = field(default_factory=dict)
    """Output of a module's last call before its scale and shift, by the module's name."""
    _tensors: dict[tuple[int, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = (part for read in self.places.values() for place in read.values() for part in place.form.parts)
        self._folded = {part.rpartition(".")[0] for part in parts}
        """Modules whose scale or shift the file multiplies into the linears behind them."""

    @contextmanager
    def read_by(self, model: Any) -> Iterator[None]:
        """Run a model's modules with the file's weights inside the context; the last weights stay in the model."""
        from pipeline.checkpoint.parameters import is_called

        self._put_head(model)
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

    def _put_head(self, model: Any) -> None:
        """Put the file's weights into an embedding's head, whose reference reads them and calls no module."""
        import torch

        for call, (name, _) in enumerate(self.expected.calls):
            if not name.startswith(f"{sentence.NAME}."):
                continue
            self._put(model.get_submodule(name), call, name)
            parts = {part for place in self.places.get(call, {}).values() for part in place.form.parts}
            for maker in {part.rpartition(".")[0] for part in parts}:
                before = model.get_submodule(maker)
                before.bias.data = torch.zeros_like(before.bias)
                if f"{maker}.weight" in parts and isinstance(before, torch.nn.LayerNorm):
                    before.weight.data = torch.ones_like(before.weight)

    def _begin(self, model: Any, inputs: Any) -> None:
        self._calls = 0
        self._plain.clear()

    def _calling(self, module: Any, inputs: tuple[Any, ...]) -> Any:
        """Put the file's weights for this call into a module; return its new input if norms are folded, else None."""
        call, self._calls = self._calls, self._calls + 1
        name, _ = self.expected.calls[call]
        self._put(module, call, name)
        parts = {part for place in self.places.get(call, {}).values() for part in place.form.parts}
        return (self._without(parts),) if parts else None

    def _put(self, module: Any, call: int, name: str) -> None:
        for kind in ("weight", "bias"):
            if getattr(module, kind, None) is not None:
                getattr(module, kind).data = self._tensor(call, f"{name}.{kind}")

    def _called(self, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep a module's output without its scale and its shift."""
        import torch
        from torch.nn import functional

        if isinstance(module, torch.nn.LayerNorm):
            self._plain[name] = functional.layer_norm(inputs[0], module.normalized_shape, eps=module.eps)
        else:
            self._plain[name] = output - module.bias if isinstance(module, torch.nn.Linear) else inputs[0]

    def _without(self, parts: Set[str]) -> Any:
        """Return a linear's input, where its weight and bias contain the scale and shift of the module before it."""
        import torch

        (maker,) = {part.rpartition(".")[0] for part in parts}
        plain, gain = self._plain[maker], self.expected.tensors[f"{maker}.weight"]
        # A linear's own weight is no factor of what it gives.
        whole = f"{maker}.weight" in parts or gain.ndim > 1
        return plain if whole else plain * torch.from_numpy(gain)

    def _tensor(self, call: int, name: str) -> Any:
        """Return a tensor in the file's numbers, or in the checkpoint's where the file has none of its own."""
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
    """Return a constant in the layout of its tensor; rows of a table that the file lacks are the checkpoint's."""
    if form.places is not None:
        table = own.copy()
        table.ravel()[form.places[..., : values.shape[-1], : values.shape[-1]]] = values
        return table
    reference = form.values.squeeze()
    if form.prefix and values.ndim == 2 and len(values) < len(reference):
        return np.concatenate([values, reference[len(values) :]])
    if values.ndim != 2 or values.shape != reference.shape[::-1]:
        return values
    if values.shape != reference.shape:
        return values.T
    straight, turned = (float(np.abs(one - reference).sum(dtype=np.float64)) for one in (values, values.T))
    return values if straight <= turned else values.T
