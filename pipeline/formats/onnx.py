"""An `.onnx` file in onnxruntime. PocketBERT writes none; it judges those of other tools.

onnxruntime is no part of the environment: the extra `peers` has it.
"""

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, ToolchainError
from pipeline.formats.checked import checked
from pipeline.formats.ports import Array, Entry, Port, as_floats
from pipeline.formats.structure import Constant, Structure
from pipeline.schemes import Arithmetic, Stored

SUFFIX = ".onnx"
_ENTRY = "main"
_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({name})": name for name in ("int8", "uint8", "int32", "int64")},
}


class OpenONNX:
    """An ONNX graph on onnxruntime's CPU provider."""

    stands_in: str | None = None

    def __init__(self, file: Path) -> None:
        """Open a graph, with weights in files beside it if it has such.

        Raises:
            ToolchainError: onnxruntime is not installed, or refuses the file.
        """
        if importlib.util.find_spec("onnxruntime") is None:
            raise ToolchainError(
                f"{file} is run by onnxruntime, which is not installed. It is in the extra `peers`: "
                "`make peers` installs it, and so does `pip install -e '.[peers]'` in PocketBERT's folder."
            )
        import onnxruntime

        self.runtime = f"ONNX Runtime (onnxruntime {importlib.metadata.version('onnxruntime')})"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session: Any = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of its own for each of its faults, all from Exception
            raise ToolchainError(f"onnxruntime cannot open {file}: {' '.join(str(error).split())[:300]}") from error
        inputs, outputs = (
            tuple(map(_port, rows)) for rows in (self._session.get_inputs(), self._session.get_outputs())
        )
        self.entries: tuple[Entry, ...] = (Entry(_ENTRY, inputs, outputs),)

    def run(self, entry: Entry, inputs: Sequence[Array]) -> list[Array]:
        """Run the graph, see `OpenFile`."""
        given = {port.name: array for port, array in zip(entry.inputs, inputs, strict=True)}
        try:
            found = self._session.run([port.name for port in entry.outputs], given)
        except Exception as error:  # as above
            raise InputError(f"the graph refused its inputs: {' '.join(str(error).split())[:300]}") from error
        return [as_floats(one) for one in found]


def _port(row: Any) -> Port:
    return Port(
        row.name,
        _TYPES.get(row.type, row.type),
        tuple(size if isinstance(size, int) and size > 0 else None for size in row.shape or ()),
    )


# --- reading back --------------------------------------------------------------------------------------------------

_QUANTISED = "_quantized"
"""Suffix of a weight that onnxruntime's own quantisers rounded; its scale and zero point have suffixes of their own."""
_STORED: Mapping[str, Stored] = {"float32": "float32", "float16": "float16", "int8": "int8", "uint8": "int8"}
_DYNAMIC = ("MatMulInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLinear")
_STATIC = ("QLinearMatMul", "QGemm", "QuantizeLinear")


def structure(file: Path) -> Structure:
    """Read a graph's constants back, dequantised, and how its linears multiply.

    Raises:
        ToolchainError: the package onnx is not installed.
        ArtifactError: the file is damaged.
    """
    if importlib.util.find_spec("onnx") is None:
        raise ToolchainError("the package onnx, which reads constants, is not installed; the extra `peers` has it.")
    return _structure(file)


@checked
def _structure(file: Path) -> Structure:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(file)).graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    constants = [
        Constant(name, _dequantised(name, array, values), _STORED[array.dtype.name])
        for name, array in values.items()
        if array.dtype.name in _STORED and array.size > 1
    ]
    kinds = {node.op_type for node in graph.node}
    arithmetic: tuple[Arithmetic, ...] = ("float",)
    if kinds & set(_DYNAMIC):
        arithmetic = ("dynamic_int8",)
    elif kinds & set(_STATIC):
        arithmetic = ("static_int8",)
    return Structure(tuple(constants), (), (), (), (), arithmetic, (), ())


def _dequantised(name: str, array: Array, values: Mapping[str, Array]) -> Array:
    """Return a constant as floats; scales are of the whole, or of each column, as a product's weights have them."""
    stem = name.removesuffix(_QUANTISED)
    scale, zero = values.get(f"{stem}_scale"), values.get(f"{stem}_zero_point")
    if stem == name or scale is None:
        return array.astype(np.float32)
    whole = array.astype(np.float32) - (0.0 if zero is None else zero.astype(np.float32))
    return whole * scale.astype(np.float32)
