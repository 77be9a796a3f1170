"""A `.tflite` that another tool made, in LiteRT's interpreter: with signatures or without, of fixed or free lengths."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, ToolchainError
from pipeline.formats import native_log_hidden
from pipeline.formats.checked import check_identifier
from pipeline.formats.litert.facts import TITLE
from pipeline.formats.ports import Array, Entry, Port, as_floats

SUFFIX = ".tflite"
_IDENTIFIER = b"TFL3"
_WHOLE = "the file's only graph"


class OpenLiteRT:
    """A `.tflite` in the interpreter, with XNNPACK as it is by default."""

    stands_in: str | None = None

    def __init__(self, file: Path) -> None:
        """Open a file.

        Raises:
            ArtifactError: it is no `.tflite`.
            ToolchainError: the runtime refuses it, such as for operators that it lacks.
        """
        check_identifier(file, _IDENTIFIER)
        from ai_edge_litert.interpreter import Interpreter

        self.runtime = f"{TITLE} (ai-edge-litert {importlib.metadata.version('ai-edge-litert')})"
        try:
            with native_log_hidden():
                self._interpreter: Any = Interpreter(model_path=str(file), num_threads=1)
                names = list(self._interpreter.get_signature_list())
                self._runners = {name: self._interpreter.get_signature_runner(name) for name in names}
                if not names:
                    self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError, OSError) as error:
            raise ToolchainError(f"LiteRT cannot open {file}: {' '.join(str(error).split())[:300]}") from error
        self.entries = tuple(self._entry(name) for name in names) or (self._whole(),)

    def _entry(self, name: str) -> Entry:
        runner = self._runners[name]
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        return Entry(name, _ports(inputs), _ports(outputs))

    def _whole(self) -> Entry:
        inputs, outputs = (
            {str(row["name"]): row for row in rows}
            for rows in (self._interpreter.get_input_details(), self._interpreter.get_output_details())
        )
        return Entry(_WHOLE, _ports(inputs), _ports(outputs))

    def run(self, entry: Entry, inputs: Sequence[Array]) -> list[Array]:
        """Run a signature, see `OpenFile`."""
        try:
            with native_log_hidden():
                if entry.name in self._runners:
                    given = {port.name: array for port, array in zip(entry.inputs, inputs, strict=True)}
                    found = self._runners[entry.name](**given)
                    rows = self._runners[entry.name].get_output_details()
                    return [_dequantised(found[port.name], rows[port.name]) for port in entry.outputs]
                return self._run_whole(inputs)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{entry.name} refused its inputs: {' '.join(str(error).split())[:300]}") from error

    def _run_whole(self, inputs: Sequence[Array]) -> list[Array]:
        rows = self._interpreter.get_input_details()
        for row, array in zip(rows, inputs, strict=True):
            if tuple(row["shape"]) != array.shape:
                self._interpreter.resize_tensor_input(row["index"], array.shape)
        self._interpreter.allocate_tensors()
        for row, array in zip(rows, inputs, strict=True):
            self._interpreter.set_tensor(row["index"], array)
        self._interpreter.invoke()
        outputs = self._interpreter.get_output_details()
        return [_dequantised(self._interpreter.get_tensor(row["index"]), row) for row in outputs]


def _dequantised(array: Array, row: Any) -> Array:
    """Return an output as floats; a static quantiser may leave integers with a scale and a zero point."""
    scale, zero = row["quantization"]
    if array.dtype.kind == "f" or not scale:
        return as_floats(array)
    return np.asarray((array.astype(np.float32) - zero) * scale, np.float32)


def _ports(details: Mapping[str, Any]) -> tuple[Port, ...]:
    return tuple(_port(name, row) for name, row in details.items())


def _port(name: str, row: Any) -> Port:
    # A free size is -1 in the signature of the shape, and 1 in the shape.
    known = row.get("shape_signature")
    sizes = row["shape"] if known is None or not len(known) else known
    shape = tuple(None if size < 0 else int(size) for size in sizes)
    return Port(name, np.dtype(row["dtype"]).name, shape)
