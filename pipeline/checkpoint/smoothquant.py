"""SmoothQuant scales: vectors that multiply a linear's input or output so that it quantises better.

An activation channel a hundred times as large as the others leaves them a hundredth of the int8 range. If it is divided
by its size before the linear, and the weight's column multiplied by it, the linear's result is unchanged. In a
checkpoint of `pipeline.quantize`, the weights hold one of the two factors, and `gains.safetensors` the other. The file,
its keys and the class `Gain` call such a vector a gain; the class's name is in converted files.

Source: Xiao et al. 2023 (SmoothQuant) for inputs, Wei et al. 2022 (Outlier Suppression) for why post-norm encoders need
them; the scale of an output is the same for the linear's rows.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from pipeline.architectures import layers
from pipeline.checkpoint.ranges import INPUT_GAIN, OUTPUT_GAIN
from pipeline.checkpoint.weights import GAINS
from pipeline.errors import StudentError

_GROUPS = "groups"


class _Memory:
    """The last tensor that a `Gain` multiplied, and the product: torch.export warns of tensors as attributes."""

    read: torch.Tensor | None = None
    product: torch.Tensor | None = None


class Gain(nn.Module):
    """Multiplies the last axis by a SmoothQuant scale."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Take the vector, `(columns,)`."""
        super().__init__()
        self.weight = nn.Parameter(weight)
        self._memory = _Memory()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `hidden` times the scale."""
        return hidden * self.weight

    def once(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `self(hidden)`, computed once for linears that read the same tensor, such as query, key and value."""
        if self._memory.read is not hidden or self._memory.product is None:
            self._memory.read, self._memory.product = hidden, self(hidden)
        return self._memory.product


class ScaledLinear(nn.Module):
    """A linear with a SmoothQuant scale on its input, on its output, or on both."""

    def __init__(self, linear: nn.Linear, before: Gain | None, after: Gain | None) -> None:
        """Wrap a linear; a scale that several linears share is one module."""
        super().__init__()
        self.input_gain, self.linear, self.output_gain = before, linear, after

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `(linear(hidden · input_gain)) · output_gain`."""
        if self.input_gain is not None:
            hidden = self.input_gain.once(hidden)
        result: torch.Tensor = self.linear(hidden)
        return result if self.output_gain is None else self.output_gain(result)


def insert(model: nn.Module, gains: Mapping[str, torch.Tensor], groups: Mapping[str, str]) -> None:
    """Insert scales around the linears of a model whose weights hold the inverse scales.

    Args:
        model: a Hugging Face model.
        gains: vectors by the path of a linear with `INPUT_GAIN` or `OUTPUT_GAIN` behind it. Linears that read one
            tensor have one scale, stored for the first of them.
        groups: for a linear that shares the input scale of another, the other's path.

    Raises:
        StudentError: a path leads to no linear, or a vector has another width.
    """
    shared: dict[str, Gain] = {}
    for path in dict.fromkeys([*(name.rpartition(".")[0] for name in gains), *groups]):
        linear = _linear(model, path)
        owner = groups.get(path, path)
        before, after = gains.get(f"{owner}.{INPUT_GAIN}"), gains.get(f"{path}.{OUTPUT_GAIN}")
        for vector, width in ((before, linear.in_features), (after, linear.out_features)):
            if vector is not None and tuple(vector.shape) != (width,):
                raise StudentError(
                    f"the scale of {path} has shape {tuple(vector.shape)}, and the linear needs ({width},)."
                )
        if before is not None and owner not in shared:
            shared[owner] = Gain(before)
        scaled = ScaledLinear(linear, shared.get(owner), None if after is None else Gain(after))
        layers.replace(model, linear, scaled)


def _linear(model: nn.Module, path: str) -> nn.Linear:
    try:
        found = model.get_submodule(path)
    except AttributeError:
        found = None
    if not isinstance(found, nn.Linear):
        raise StudentError(f"{GAINS} has a scale for {path}, which is no linear of {type(model).__name__}.")
    return found


def read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
    """Return a checkpoint's scales and the groups of linears that share one; None for a checkpoint without scales."""
    from safetensors import safe_open

    if not (folder / GAINS).is_file():
        return None
    with safe_open(folder / GAINS, "pt") as file:
        groups = json.loads((file.metadata() or {}).get(_GROUPS, "{}"))
        return {name: file.get_tensor(name) for name in file.keys()}, groups  # noqa: SIM118


def write(gains: Mapping[str, torch.Tensor], groups: Mapping[str, str], folder: Path) -> None:
    """Write scales beside the checkpoint, whose weights hold the inverse scales."""
    from safetensors.torch import save_file

    # One entry: safetensors writes several in an order that changes from process to process.
    metadata = {_GROUPS: json.dumps(groups, sort_keys=True)}
    save_file({name: one.contiguous() for name, one in gains.items()}, folder / GAINS, metadata=metadata)
