"""What the operations of a LiteRT file do with int8 when it runs, see `formats.rounded`."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import ToolchainError
from pipeline.formats.rounded import Grid, Rounded, What

_WHAT: Mapping[str, What] = {
    "QUANTIZE": "rounds",
    "FULLY_CONNECTED": "linear",
    "DEQUANTIZE": "multiplies out",
    # The converter rounds before what joins MobileBERT's neighbours.
    **dict.fromkeys(("RESHAPE", "TRANSPOSE", "SLICE", "PAD", "CONCATENATION"), "moves"),
}


def grid(tensor: Any) -> Grid:
    """Return the scale and the zero point of what is int8 when the file runs.

    Raises:
        ToolchainError: it has none, or several.
    """
    found = tensor.Quantization()
    if found is None or found.ScaleLength() != 1 or found.ZeroPointLength() != 1:
        raise ToolchainError("the .tflite has int8 without one scale when it runs, which is not read here.")
    return float(found.Scale(0)), int(found.ZeroPoint(0))


def follow(rounded: Rounded, kind: str, read: Iterable[int], made: Iterable[int], tensors: Mapping[int, Any]) -> None:
    """Add an operation to what is followed of int8.

    Args:
        rounded: of the subgraph.
        kind: of the operation.
        read: the numbers of the tensors that it reads.
        made: those of the tensors that it makes.
        tensors: those that are int8 when the file runs, by their numbers.
    """
    int8 = [{number: grid(tensors[number]) for number in numbers if number in tensors} for numbers in (read, made)]
    rounded.operation(kind, _WHAT.get(kind, "other"), *int8)
