"""Static int8 inputs of linears in ML Programs: a `quantize` and a `dequantize` before each.

ML Programs have no integer products of activations that are quantised at run time.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.errors import ToolchainError
from pipeline.formats.structure import StaticScales
from pipeline.mil import Package
from pipeline.mil.constants import Source, parameter
from pipeline.mil.package import Operation, Program

_READ_BY = {"quantize": ("dequantize", "input"), "dequantize": ("linear", "x")}
"""The only reader of each rounding operation's output, and the argument that reads it."""
_ABOVE = {"int8": 0, "uint8": 128}
"""Offset of a type's codes from int8's. coremltools takes uint8 where that makes the zero point 0."""


def static_scales(package: Package, program: Program, sources: Mapping[str, Source]) -> Iterator[StaticScales | None]:
    """Yield scale and zero point of each linear's input, or None for an input that is not rounded.

    Raises:
        ToolchainError: a rounded value has another reader than a linear, or is dequantised with another scale.
    """
    makers = {output.name: operation for operation in program.operations for output in operation.outputs}
    kinds = {name: maker.kind for name, maker in makers.items() if maker.kind in _READ_BY}
    for operation in program.operations:
        read = [(one, name) for name, given in operation.arguments.items() for one in given if isinstance(one, str)]
        if any(one in kinds and _READ_BY[kinds[one]] != (operation.kind, name) for one, name in read):
            raise ToolchainError(f"{operation.kind} {operation.name} reads what was rounded, and is no linear.")
        if operation.kind == "linear":
            multiplied_out = _maker(operation, "x", makers)
            yield _static_scales(package, sources, multiplied_out, makers) if multiplied_out else None
    if kinds.keys() & set(program.outputs):
        raise ToolchainError(f"{program.name} gives what was rounded, and is no linear.")


def _maker(operation: Operation, argument: str, makers: Mapping[str, Operation]) -> Operation | None:
    """Return the `quantize` or `dequantize` that makes an operation's input, or None."""
    (value,) = operation.arguments[argument]
    found = makers.get(value) if isinstance(value, str) else None
    return found if found and found.kind in _READ_BY else None


def _static_scales(
    package: Package, sources: Mapping[str, Source], multiplied_out: Operation, makers: Mapping[str, Operation]
) -> StaticScales:
    rounded = _maker(multiplied_out, "input", makers)
    declared = rounded.outputs[0].type if rounded else None
    dtype = declared.dtype.name if declared else None
    if rounded is None or dtype not in _ABOVE or parameter(package, sources, rounded, "output_dtype") != dtype:
        raise ToolchainError(f"{multiplied_out.name} multiplies out what is not rounded as it declares.")
    one, other = (_scale_zero_point(package, sources, operation) for operation in (rounded, multiplied_out))
    if one is None or one != other:
        raise ToolchainError(
            f"{multiplied_out.name} dequantises with another scale or zero point than {rounded.name} rounds with."
        )
    scale, zero_point = one
    return scale, zero_point - _ABOVE[dtype]


def _scale_zero_point(
    package: Package, sources: Mapping[str, Source], operation: Operation
) -> tuple[float, int] | None:
    """Return the scale and zero point of an operation; None if it has several."""
    scale, zero_point = (parameter(package, sources, operation, name) for name in ("scale", "zero_point"))
    if np.ndim(scale) or np.ndim(zero_point) or "axis" in operation.arguments:  # type: ignore[arg-type]
        return None
    return float(np.asarray(scale)), int(np.asarray(0 if zero_point is None else zero_point))
