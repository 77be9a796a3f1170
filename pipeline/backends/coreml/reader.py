"""What a Core ML package holds, read from the package itself."""

from collections.abc import Mapping
from typing import get_args

import numpy as np

from pipeline.backends.structure import Activation, Constant, Stored, Structure
from pipeline.errors import ToolchainError
from pipeline.mil import Package
from pipeline.mil.constants import Source, Weight, constants, decode, weights
from pipeline.mil.package import Operation
from pipeline.mil.values import Value

_STORED: dict[str, Stored] = {name: name for name in get_args(Stored)}
_SPARSE = "sparse "
"""Begins what is said of a weight that is stored without its zeros, see `Weight.stored`."""
_GELU: dict[str, Activation] = {"EXACT": "gelu", "TANH_APPROXIMATION": "gelu_tanh"}
_NAMED: dict[str, Activation] = {name: name for name in get_args(Activation) if not name.startswith("gelu")}
_LAYER_NORM_EPSILON = 1e-5
"""MIL's default."""


def read_structure(package: Package) -> Structure:
    """Return a package's constants, epsilons and activations.

    coremltools raises an epsilon of 1e-12 to 5.96e-8, the smallest half, in half-precision models.

    Raises:
        ArtifactError: it is damaged.
        ToolchainError: it has a weight or an activation for which `Structure` has no word.
    """
    epsilons: list[float] = []
    activations: list[Activation] = []
    for name in package.functions:
        program = package.program(name)
        sources = constants(program)
        for operation in program.operations:
            if operation.kind == "layer_norm":
                epsilon = _parameter(package, sources, operation, "epsilon")
                epsilons.append(_LAYER_NORM_EPSILON if epsilon is None else float(np.asarray(epsilon)))
            elif operation.kind == "gelu":
                activations.append(_gelu(_parameter(package, sources, operation, "mode")))
            elif operation.kind in _NAMED:
                activations.append(_NAMED[operation.kind])
    return Structure(
        constants=tuple(_constant(package, row) for row in weights(package) if _counts(row)),
        epsilons=tuple(epsilons),
        activations=tuple(activations),
    )


def _parameter(package: Package, sources: Mapping[str, Source], operation: Operation, name: str) -> Value | None:
    """Return a constant argument; None where the operation was not given it."""
    if name not in operation.arguments:
        return None
    (argument,) = operation.arguments[name]
    return decode(package, sources[argument] if isinstance(argument, str) else argument, rounded=False)


def _gelu(mode: Value | None) -> Activation:
    if mode is None:
        return "gelu"
    if mode not in _GELU:
        raise ToolchainError(f"a gelu of mode {mode} is none that a checkpoint can ask for.")
    return _GELU[str(mode)]


def _counts(weight: Weight) -> bool:
    return weight.type is not None and weight.type.dtype.floating and weight.type.size >= 2


def _constant(package: Package, weight: Weight) -> Constant:
    stored = weight.stored.removeprefix(_SPARSE)
    if stored not in _STORED:
        raise ToolchainError(
            f"{weight.name} is stored as {weight.stored}, and nothing compares that with a checkpoint."
        )
    values = decode(package, weight.source, rounded=True)
    sparse = weight.stored.startswith(_SPARSE)
    return Constant(weight.name, np.asarray(values, np.float32), _STORED[stored], sparse)
