"""The kinds of operations of a function, and the bounds that it sets, as `Structure` reports them.

MIL has one name for an operation on floats and on integers. Among floats a product is ordinary; among ids it can pick
one of them out. So a kind says which integers it is about, and a cast from what to what.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.backends.structure import Limit
from pipeline.mil import Package
from pipeline.mil.constants import Source, decode, is_constant
from pipeline.mil.package import Argument, Literal, Operation, Program
from pipeline.mil.values import TensorType, Value

_DATA = ("x", "a", "values", "input")
"""The arguments of which the first that an operation has says what it works on."""
_OTHER = "_other"
"""Ends the kind of a comparison or cast that is not the one which clean conversions have."""
_LIMITS: dict[str, tuple[str | None, str | None]] = {"clip": ("alpha", "beta"), "rsqrt": ("epsilon", None)}
"""By operation: what bounds it below and above. An epsilon under a root keeps it from zero, as a bound does."""
_GREATEST = float(np.finfo(np.float32).max)


def kinds(package: Package, program: Program, sources: Mapping[str, Source]) -> tuple[str, ...]:
    """Return the kinds of a function's operations, in order: `mul` of floats, `mul_int32`, `cast_int32_to_fp16`."""
    types: dict[str, TensorType | None] = {row.name: row.type for row in program.inputs}
    for operation in program.operations:
        types |= {output.name: output.type for output in operation.outputs}
    # Clean conversions compare with the padding id, and with nothing else.
    compared = {
        str(parameter(package, sources, operation, "y"))
        for operation in program.operations
        if operation.kind == "not_equal"
    }
    found = []
    for operation in program.operations:
        if is_constant(operation):
            continue
        kind = _typed(operation, types)
        if operation.kind == "not_equal":
            ordinary = len(compared) == 1 and _single(parameter(package, sources, operation, "y"))
        elif operation.kind == "cast":
            # What it declares is what it was asked for, so that nothing computes on integers under a float's name.
            made = operation.outputs[0].type
            ordinary = made is not None and parameter(package, sources, operation, "dtype") == made.dtype.name
        else:
            ordinary = True
        found.append(kind if ordinary else kind + _OTHER)
    return tuple(found)


def _single(value: Value | None) -> bool:
    return value is not None and np.size(np.asarray(value)) == 1


def _typed(operation: Operation, types: Mapping[str, TensorType | None]) -> str:
    given = next((operation.arguments[name] for name in _DATA if name in operation.arguments), ())
    read = [_type_of(one, types) for one in given]
    made = [output.type for output in operation.outputs]
    if operation.kind == "cast":
        return f"cast_{_name(read)}_to_{_name(made)}"
    if all(one is not None and one.dtype.floating for one in (*read, *made)):
        return operation.kind
    return f"{operation.kind}_{_name(read)}"


def _type_of(argument: Argument, types: Mapping[str, TensorType | None]) -> TensorType | None:
    return argument.type if isinstance(argument, Literal) else types.get(argument)


def _name(types: Sequence[TensorType | None]) -> str:
    return types[0].dtype.name if types and types[0] is not None else "nothing"


def limits(package: Package, program: Program, sources: Mapping[str, Source]) -> list[Limit]:
    """Return the bounds by constants that a function sets, on floats or integers."""
    found = []
    for operation in program.operations:
        if operation.kind in _LIMITS:
            lowest, highest = _LIMITS[operation.kind]
            found.append(_limit(*(parameter(package, sources, operation, name) for name in (lowest, highest))))
        elif operation.kind in ("maximum", "minimum"):
            bounds = [parameter(package, sources, operation, name) for name in ("x", "y")]
            for bound in (one for one in bounds if one is not None):
                found.append(_limit(bound, None) if operation.kind == "maximum" else _limit(None, bound))
    return found


def _limit(low: Value | None, high: Value | None) -> Limit:
    """Return bounds as numbers, the narrowest of each; the greatest number of a type is none."""
    least = -np.inf if low is None else float(np.max(np.asarray(low, np.float64)))
    most = np.inf if high is None else float(np.min(np.asarray(high, np.float64)))
    return (least, most) if most < _GREATEST else (least, np.inf)


def parameter(package: Package, sources: Mapping[str, Source], operation: Operation, name: str | None) -> Value | None:
    """Return a constant argument; None where the operation was not given it, or given what it computes."""
    if name is None or name not in operation.arguments:
        return None
    (argument,) = operation.arguments[name]
    source = sources.get(argument) if isinstance(argument, str) else argument
    return None if source is None else decode(package, source, rounded=False)
