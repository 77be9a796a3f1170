"""Rewrite a `.tflite` file so that its own graph runs in single precision and can be compared tightly.

An int8 file quantises the input of each linear, and a last bit that rounds otherwise there is a whole scale after a few
layers: two runs that are both right differ by 30 dB. Without this rounding the same graph has to agree to 100 dB, which
leaves no room for faults.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.litert.container import blocks_of, kinds_of, leave_out, read_model, write_model
from pipeline.formats.litert.scales import by_axis, by_blocks


def write_control(file: Path, path: Path) -> bool:
    """Write a copy of a file with int8 activations as floats, and with linears that read the same weights dequantised.

    Args:
        file: the file, which is not changed.
        path: the file to write.

    Returns:
        Whether a linear had integer weights; without one nothing is written, for the file computes in floats already.
    """
    from ai_edge_litert import schema_py_generated as schema

    model, contents = read_model(file)
    widened = _Widened(model, contents, schema)
    for graph, operation in _quantising(model, schema):
        operation.inputs = np.array([operation.inputs[0], *widened.constants(graph, operation.inputs[1:])], np.int32)
    if widened.buffers:
        for graph in model.subgraphs:
            _widen_activations(graph, kinds_of(model), contents, schema)
        write_model(model, contents, path)
    return bool(widened.buffers)


class _Widened:
    """Weights and biases dequantised to floats, each stored once."""

    def __init__(self, model: Any, contents: list[memoryview], schema: Any) -> None:
        self.buffers: dict[tuple[Any, ...], int] = {}
        self._contents, self._schema = contents, schema

    def constants(self, graph: Any, numbers: Any) -> Iterator[int]:
        """Yield float tensors in place of a linear's integer weight and bias; float or absent ones stay as they are."""
        types = self._schema.TensorType
        for number in map(int, numbers):
            tensor = graph.tensors[number] if number >= 0 else None
            if tensor is None or tensor.type not in (types.INT4, types.INT8, types.INT32):
                yield number
                continue
            blocks = blocks_of(tensor)
            scales = tensor.quantization.scale.tobytes() if blocks is None else graph.tensors[blocks.scales].buffer
            key = (tensor.buffer, scales, tuple(tensor.shape))
            if key not in self.buffers:
                self.buffers[key] = len(self._contents)
                self._contents.append(memoryview(self._multiplied_out(graph, tensor).astype("<f4").tobytes()))
            floats = self._schema.TensorT()
            floats.shape, floats.type, floats.buffer = tensor.shape, types.FLOAT32, self.buffers[key]
            floats.name = bytes(tensor.name) + b" in floats"
            graph.tensors.append(floats)
            yield len(graph.tensors) - 1

    def _multiplied_out(self, graph: Any, tensor: Any) -> NDArray[np.floating[Any]]:
        content, blocks = self._contents[tensor.buffer], blocks_of(tensor)
        if blocks is not None:
            return by_blocks(content, self._contents[graph.tensors[blocks.scales].buffer], tensor.shape)
        code = "i1" if tensor.type == self._schema.TensorType.INT8 else "<i4"
        integers = np.frombuffer(content, code).reshape(tensor.shape)
        return by_axis(integers, tensor.quantization.scale, np.zeros(1, np.int64), 0)


def _quantising(model: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each linear with integer weights, with its graph."""
    kinds, types = kinds_of(model), schema.TensorType
    for graph in model.subgraphs:
        for operation in graph.operators or []:
            if kinds[operation.opcodeIndex] == schema.BuiltinOperator.FULLY_CONNECTED:
                rows, weights = (graph.tensors[operation.inputs[place]] for place in (0, 1))
                if weights.type in (types.INT4, types.INT8) and rows.type in (types.FLOAT32, types.INT8):
                    yield graph, operation


def _widen_activations(graph: Any, kinds: list[int], contents: list[memoryview], schema: Any) -> None:
    """Turn a graph's int8 activations into floats, and remove operations that convert between the two."""
    int8 = {
        number
        for number, tensor in enumerate(graph.tensors)
        if tensor.type == schema.TensorType.INT8 and not len(contents[tensor.buffer])
    }
    if not int8:
        return
    turning = (schema.BuiltinOperator.QUANTIZE, schema.BuiltinOperator.DEQUANTIZE)
    leave_out(
        graph,
        [
            kinds[operation.opcodeIndex] in turning and not int8.isdisjoint({*operation.inputs[:1], *operation.outputs})
            for operation in graph.operators
        ],
    )
    for number in int8:
        graph.tensors[number].type, graph.tensors[number].quantization = schema.TensorType.FLOAT32, None
