"""A `.tflite` file's own graph with its linears in single precision, so that it can be held to single precision.

A dynamic int8 file quantises what each linear reads, and a last bit that falls otherwise there is a whole step after a
few layers: two runs that are both right differ by 30 dB. Without that step the same graph has to agree to 100 dB, and
nothing that is wrong in it can hide.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.litert.container import kinds_of, read_model, write_model


def write_control(file: Path, path: Path) -> bool:
    """Write a copy of a file in which the linears that quantise their input read the same weights as floats.

    Args:
        file: the file, which stays as it is.
        path: where the copy goes.

    Returns:
        Whether there was such a linear; without one nothing is written, for the file computes in floats by itself.
    """
    from ai_edge_litert import schema_py_generated as schema

    model, contents = read_model(file)
    buffers: dict[tuple[Any, ...], int] = {}
    for graph, operation in _quantising(model, schema):
        weights = graph.tensors[operation.inputs[1]]
        scales = weights.quantization.scale
        key = (weights.buffer, scales.tobytes(), tuple(weights.shape))
        if key not in buffers:
            integers = np.frombuffer(contents[weights.buffer], np.int8).reshape(weights.shape)
            by_row = np.broadcast_to(scales.reshape(-1, 1), (len(integers), 1))
            buffers[key] = len(contents)
            contents.append(memoryview((integers * by_row).astype("<f4").tobytes()))
        floats = schema.TensorT()
        floats.shape, floats.type, floats.buffer = weights.shape, schema.TensorType.FLOAT32, buffers[key]
        floats.name = bytes(weights.name) + b" in floats"
        graph.tensors.append(floats)
        rows, _, *rest = operation.inputs
        operation.inputs = np.array([rows, len(graph.tensors) - 1, *rest], np.int32)
    if buffers:
        write_model(model, contents, path)
    return bool(buffers)


def _quantising(model: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each linear of floats and int8 weights, with its graph."""
    kinds = kinds_of(model)
    for graph in model.subgraphs:
        for operation in graph.operators or []:
            if kinds[operation.opcodeIndex] == schema.BuiltinOperator.FULLY_CONNECTED:
                rows, weights = (graph.tensors[operation.inputs[place]] for place in (0, 1))
                if weights.type == schema.TensorType.INT8 and rows.type == schema.TensorType.FLOAT32:
                    yield graph, operation
