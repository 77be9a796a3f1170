"""Effects of a LiteRT file's operations on int8 at run time, see `formats.rounded`."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import ToolchainError
from pipeline.formats.rounded import Rounded, ScaleZeroPoint, What

_WHAT: Mapping[str, What] = {
    "QUANTIZE": "rounds",
    "FULLY_CONNECTED": "linear",
    "DEQUANTIZE": "multiplies out",
    # The converter rounds before operations that join MobileBERT's neighbouring layers.
    **dict.fromkeys(("RESHAPE", "TRANSPOSE", "SLICE", "PAD", "CONCATENATION"), "moves"),
}


def scale_zero_point(tensor: Any) -> ScaleZeroPoint:
    """Return the scale and the zero point of a tensor that is int8 at run time.

    Raises:
        ToolchainError: it has no scale, or several.
    """
    found = tensor.Quantization()
    if found is None or found.ScaleLength() != 1 or found.ZeroPointLength() != 1:
        raise ToolchainError("the .tflite has int8 without one scale when it runs, which is not read here.")
    return float(found.Scale(0)), int(found.ZeroPoint(0))


def follow(rounded: Rounded, kind: str, read: Iterable[int], made: Iterable[int], tensors: Mapping[int, Any]) -> None:
    """Add an operation to the int8 values that `rounded` follows.

    Args:
        rounded: the state of the subgraph.
        kind: the operator's name.
        read: indices of the operation's inputs.
        made: indices of its outputs.
        tensors: the tensors that are int8 at run time, by index.
    """
    int8 = [
        {number: scale_zero_point(tensors[number]) for number in numbers if number in tensors}
        for numbers in (read, made)
    ]
    rounded.operation(kind, _WHAT.get(kind, "other"), *int8)
