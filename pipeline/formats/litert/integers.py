"""Put a checkpoint's codes and scales into a LiteRT file unchanged.

litert-torch folds a LayerNorm's weight and bias into the linear behind it, and ai-edge-quantizer rounds again: either
would change the codes. A pair of `quantize` and `dequantize` around a weight stops the converter, which takes the value
between them for int8 of another quantiser. So codes go through the conversion that way. Their scale there is the
weight's number, by which it is found again in the file and given its own codes and scales.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers the operations
from torch import nn
from torch.nn import functional

from pipeline.architectures import layers
from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.errors import StudentError, ToolchainError
from pipeline.formats.litert import container
from pipeline.formats.litert.scales import packed

_OPERATIONS = torch.ops.quantized_decomposed


class _Codes(nn.Module):
    """A weight of codes times its number, which the converter keeps as int8."""

    def __init__(self, codes: torch.Tensor, number: int) -> None:
        """Scale the codes; products of two such integers are exact in single precision, and so are their quotients."""
        super().__init__()
        self.register_buffer("codes", codes.float() * number)
        self.register_buffer("scales", torch.full((len(codes),), float(number)))
        self.register_buffer("zeros", torch.zeros(len(codes), dtype=torch.int64))

    def forward(self) -> torch.Tensor:
        """Return the codes times the number, from between the pair."""
        axis = (self.scales, self.zeros, 0, LOWEST[8], HIGHEST[8], torch.int8)
        codes = _OPERATIONS.quantize_per_channel(self.codes, *axis)
        result: torch.Tensor = _OPERATIONS.dequantize_per_channel(codes, *axis)
        return result


class _Linear(nn.Module):
    def __init__(self, linear: nn.Linear, codes: _Codes) -> None:
        super().__init__()
        self.codes, self.bias = codes, linear.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self.codes(), self.bias)


class _Table(nn.Module):
    def __init__(self, codes: _Codes) -> None:
        super().__init__()
        self.codes = codes

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self.codes())


def insert(model: nn.Module, integers: Mapping[str, Integers]) -> None:
    """Replace the linears and tables of a model whose weights are integers; its outputs are wrong after that.

    Args:
        model: a Hugging Face model with dequantised weights. An architecture's patches may have changed its names, so a
            weight is identified by its numbers.
        integers: integers by weight name, whose order numbers them.

    Raises:
        StudentError: the model has no linear or table with such a weight.
    """
    waiting = [one for one in model.modules() if isinstance(one, nn.Linear | nn.Embedding)]
    for number, (name, one) in enumerate(integers.items(), 1):
        numbers = torch.from_numpy(one.dense())
        weight = next((module.weight for module in waiting if torch.equal(module.weight, numbers)), None)
        if weight is None:
            raise StudentError(f"no linear and no table of {type(model).__name__} has what the codes of {name} give.")
        codes = _Codes(torch.from_numpy(one.codes), number)
        # Two modules may have one weight.
        for module in [found for found in waiting if found.weight is weight]:
            layers.replace(model, module, _Linear(module, codes) if isinstance(module, nn.Linear) else _Table(codes))
            waiting.remove(module)


def put_in(source: Path, path: Path, integers: Mapping[str, Integers]) -> None:
    """Give each weight of a converted file its own codes and scales, and let linears and look-ups read them directly.

    Args:
        source: the converted file of a model that `insert` changed.
        path: the file to write.
        integers: the integers that `insert` was given.

    Raises:
        ToolchainError: a weight is not in the file, its codes differ, or another kind of operation reads it.
    """
    from ai_edge_litert import schema_py_generated as schema

    model, contents = container.read_model(source)
    filling = _Filling(contents, schema, integers)
    kinds, operators = container.kinds_of(model), schema.BuiltinOperator
    for graph in model.subgraphs:
        found = filling.fill(graph)
        if missing := [name for name in integers if name not in found.values()]:
            raise ToolchainError(f"the converter left no codes of {missing[0]} in {_label(graph)}.")
        container.leave_out(
            graph,
            [kinds[one.opcodeIndex] == operators.DEQUANTIZE and one.inputs[0] in found for one in graph.operators],
        )
        for operation in graph.operators:
            read = [(place, found[int(number)]) for place, number in enumerate(operation.inputs) if number in found]
            kind = kinds[operation.opcodeIndex]
            if read and (read[0][0] != 1 or kind not in (operators.FULLY_CONNECTED, operators.EMBEDDING_LOOKUP)):
                raise ToolchainError(f"the converter let builtin {kind} read {read[0][1]}, which is kept as integers.")
    container.drop_unread(model)
    container.write_model(model, contents, path)


def _label(graph: Any) -> str:
    return bytes(graph.name or b"?").decode()


class _Filling:
    """Puts codes and scales in place of the stand-ins of a converted file, each stored once for all graphs."""

    def __init__(self, contents: list[memoryview], schema: Any, integers: Mapping[str, Integers]) -> None:
        self._contents, self._schema, self._integers = contents, schema, integers
        self._names = {float(number): name for number, name in enumerate(integers, 1)}
        self._buffers: dict[tuple[str, str], int] = {}

    def fill(self, graph: Any) -> dict[int, str]:
        """Give the weights of a graph their own codes and scales, and return their names by tensor."""
        found = {number: name for number, tensor in enumerate(graph.tensors) if (name := self._name(tensor))}
        for number, name in found.items():
            self._fill(graph, graph.tensors[number], name)
        return found

    def _name(self, tensor: Any) -> str | None:
        content = self._contents[tensor.buffer]
        if tensor.type != self._schema.TensorType.INT8 or not len(content):
            return None
        scales = () if tensor.quantization.scale is None else set(tensor.quantization.scale.tolist())
        name = self._names.get(next(iter(scales))) if len(scales) == 1 else None
        if name is None:
            raise ToolchainError(f"the converter made an int8 constant {bytes(tensor.name).decode()} of its own.")
        if bytes(content) != self._integers[name].codes.tobytes():
            raise ToolchainError(f"the converter changed the codes of {name}.")
        return name

    def _fill(self, graph: Any, tensor: Any, name: str) -> None:
        one, schema = self._integers[name], self._schema
        tensor.quantization = found = schema.QuantizationParametersT()
        if one.bits == 8:
            if one.scales.shape[1] != 1:
                raise ToolchainError(f"{name} has int8 codes with several scales a row, which LiteRT does not have.")
            found.scale, found.zeroPoint = one.scales[:, 0], np.zeros(len(one.scales), np.int64)
            return
        scales = schema.TensorT()
        scales.type, scales.shape = schema.TensorType.FLOAT16, np.array(one.scales.shape, np.int32)
        scales.name = bytes(tensor.name) + b"_scales"
        scales.buffer = self._buffer(name, "scales", one.scales.astype("<f2").tobytes())
        graph.tensors.append(scales)
        tensor.type = schema.TensorType.INT4
        tensor.buffer = self._buffer(name, "codes", packed(one.codes))
        blocks = schema.BlockwiseQuantizationT()
        # There are no zero points: the index of their tensor would stand there.
        blocks.scales, blocks.zeroPoints, blocks.blockSize = len(graph.tensors) - 1, -1, one.block
        found.detailsType, found.details = schema.QuantizationDetails.BlockwiseQuantization, blocks

    def _buffer(self, name: str, what: str, content: bytes) -> int:
        if (name, what) not in self._buffers:
            self._buffers[name, what] = len(self._contents)
            self._contents.append(memoryview(content))
        return self._buffers[name, what]
