"""What ML Programs had better lack, because some unit of a chip hands it over or computes it wrongly."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pipeline.mil import Package
from pipeline.mil.constants import Expression, Source, constants, decode, is_constant
from pipeline.mil.package import Literal, Operation, Program
from pipeline.mil.values import SMALLEST_NORMAL, TensorType

WIDEST = 16_384
"""The most places that an axis has on the Neural Engine."""
_FLOORS = {
    "clip": ("alpha",),
    "maximum": ("x", "y"),
    "inverse": ("epsilon",),
    "log": ("epsilon",),
    "rsqrt": ("epsilon",),
    "threshold": ("alpha",),
}
"""Arguments that alone keep a number from zero. The epsilon of `layer_norm` is none: the variance to which it is added
is that of an embedding or a hidden state, 6.8e-4 and more in tiny students and MiniLM, and 2^-14 there would be an
error of several percent."""


def integers_before_gathers(program: Program) -> Counter[str]:
    """Count, by kind, the operations that make what gathers take for ids."""
    makers = {output.name: operation for operation in program.operations for output in operation.outputs}
    found: dict[str, str] = {}
    names = [
        one for operation in program.operations if "gather" in operation.kind for one in _read(operation, "indices")
    ]
    while names:
        maker = makers.get(names.pop())
        if maker is not None and not is_constant(maker) and maker.name not in found:
            found[maker.name] = maker.kind
            names += _read(maker)
    return Counter(found.values())


def subnormal_floors(package: Package, program: Program) -> list[str]:
    """Return the floors in half precision that are zero where a unit flushes subnormal numbers."""
    sources = constants(program)
    found = []
    for operation in program.operations:
        for name in _FLOORS.get(operation.kind, ()):
            for source in _constants(operation, sources, name):
                declared = _type(source)
                value = np.abs(np.asarray(decode(package, source, rounded=False), np.float64))
                if declared and declared.dtype.name == "fp16" and ((value > 0) & (value < SMALLEST_NORMAL)).any():
                    found.append(f"{operation.kind} {operation.name}: {name} is {value.max():.3g}")
    return found


def unbounded_clips(package: Package, program: Program) -> list[str]:
    """Return the operations that bound something by infinity."""
    sources = constants(program)
    return [
        operation.name
        for operation in program.operations
        if operation.kind == "clip"
        for name in ("alpha", "beta")
        for source in _constants(operation, sources, name)
        if np.isinf(np.asarray(decode(package, source, rounded=False), np.float64)).any()
    ]


def done_twice(program: Program) -> list[str]:
    """Return operations that compute what another one has computed from the same values."""
    sources = constants(program)
    seen: set[object] = set()
    found = []
    for operation in program.operations:
        if not is_constant(operation):
            arguments = [
                (
                    name,
                    tuple(one if isinstance(one, str) and one not in sources else _key(one, sources) for one in given),
                )
                for name, given in sorted(operation.arguments.items())
            ]
            key = (operation.kind, tuple(arguments))
            found += [operation.name] if key in seen else []
            seen.add(key)
    return found


def too_wide(program: Program) -> list[str]:
    """Return the kinds of operations that read or give a tensor with an axis which is too long."""
    sources = constants(program)
    types = {output.name: output.type for operation in program.operations for output in operation.outputs}
    return [
        operation.kind
        for operation in program.operations
        if not is_constant(operation)
        and any(
            declared is not None and max((size or 0 for size in declared.shape or ()), default=0) > WIDEST
            for declared in (
                *(output.type for output in operation.outputs),
                *(types.get(name) for name in _read(operation)),
                *(_type(source) for name in operation.arguments for source in _constants(operation, sources, name)),
            )
        )
    ]


def _read(operation: Operation, *names: str) -> list[str]:
    return [one for name in names or operation.arguments for one in operation.arguments[name] if isinstance(one, str)]


def _constants(operation: Operation, sources: dict[str, Source], name: str) -> Iterator[Source]:
    for one in operation.arguments.get(name, ()):
        if isinstance(one, Literal):
            yield one
        elif one in sources:
            yield sources[one]


def _type(source: Source) -> TensorType | None:
    return source.output.type if isinstance(source, Expression) else source.type


def _key(one: object, sources: dict[str, Source]) -> object:
    source = sources[one] if isinstance(one, str) else one
    assert isinstance(source, Literal | Expression)
    return source.key
