"""Reader of Core ML packages: functions, constants and attributes, read from the package itself."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipeline import mil
from pipeline.errors import ToolchainError
from pipeline.formats.checked import checked
from pipeline.formats.coreml import static
from pipeline.formats.coreml.convert import METADATA_PREFIX
from pipeline.formats.signature import Function, Tensor
from pipeline.formats.structure import Activation, Constant, Denied, Flow, Role, StaticScales, Structure
from pipeline.mil import Package
from pipeline.mil.constants import Source, Weight, constants, decode, is_constant, parameter, weights
from pipeline.mil.package import Operation
from pipeline.mil.values import Value
from pipeline.schemes import Arithmetic, Stored

_STORED: dict[str, Stored] = {name.replace("palette", "lut"): name for name in get_args(Stored)}
_SPARSE = "sparse "
"""Prefix of the description of a sparse weight, see `Weight.stored`."""
_GELU: dict[str, Activation] = {"EXACT": "gelu", "TANH_APPROXIMATION": "gelu_tanh"}
_NAMED: dict[str, Activation] = {name: name for name in get_args(Activation) if not name.startswith("gelu")}
_DENIED: dict[str, Denied] = {
    "cond": "control flow",
    "while_loop": "control flow",
    "custom_layer": "a custom operator",
}
_RANDOM = "random_"
"""Prefix of the names of all operations that draw random numbers."""
_ROLES: dict[str, dict[str, Role]] = {
    "layer_norm": {"gamma": "weight", "beta": "bias"},
    "linear": {"weight": "weight", "bias": "bias"},
    "mul": {"x": "weight", "y": "weight"},
    "add": {"x": "bias", "y": "bias"},
}
_TOOLS = {
    "com.github.apple.coremltools.version": r"[0-9][0-9a-z.]*",
    "com.github.apple.coremltools.source": r"torch==[0-9][0-9a-z.+]*",
    "com.github.apple.coremltools.source_dialect": r"TorchExport::ATEN",
}
"""Metadata that coremltools writes about itself into a function that is saved alone: no claims of ours."""
_LAYER_NORM_EPSILON = 1e-5
"""Default epsilon of MIL's `layer_norm`."""
_DTYPES = {65568: "float32", 65552: "float16", 131104: "int32"}
"""Names of `ArrayFeatureType.ArrayDataType` in the model's protobuf."""


@checked
def inspect(file: Path) -> tuple[Function, ...]:
    """Read the functions back from a package, shortest first."""
    description = mil.read(file).spec.description
    if description.functions:
        functions = [_function(row.name, row.input, row.output) for row in description.functions]
    else:
        functions = [_function("main", description.input, description.output)]
    return tuple(sorted(functions, key=lambda function: function.max_length))


def _function(name: str, inputs: Any, outputs: Any) -> Function:
    tensors = tuple(_tensor(row) for row in inputs)
    length = int(tensors[0].shape[1] or 0)
    return Function(
        name=name, min_length=length, max_length=length, inputs=tensors, outputs=tuple(_tensor(row) for row in outputs)
    )


def _tensor(row: Any) -> Tensor:
    array = row.type.multiArrayType
    return Tensor.model_validate({"name": row.name, "dtype": _DTYPES[array.dataType], "shape": tuple(array.shape)})


@checked
def claims(file: Path) -> dict[str, str]:
    """Return a package's own metadata: the entries that `convert` wrote, and the default function."""
    description = mil.read(file).spec.description
    metadata = description.metadata
    own = {
        name.removeprefix(METADATA_PREFIX): value
        for name, value in metadata.userDefined.items()
        if not (name in _TOOLS and re.fullmatch(_TOOLS[name], value))
    }
    shown = {"author": metadata.author, "licence": metadata.license, "summary": metadata.shortDescription}
    shown["version"] = metadata.versionString
    for name, value in shown.items():
        # Each stands in two places: where Xcode shows it, and among our own fields.
        own[name] = " and ".join(sorted({own.get(name, "nothing"), value}))
    return own | {"default function": description.defaultFunctionName or "main"}


@checked
def structure(file: Path, functions: Collection[str] | None = None) -> Structure:
    """Read back the constants and attributes that can be compared with the checkpoint without running the file.

    coremltools raises an epsilon of 1e-12 to 5.96e-8, the smallest half, in half-precision models.

    Args:
        file: the package.
        functions: names of functions, to read them alone; None for all.

    Raises:
        ArtifactError: the package is damaged.
        ToolchainError: it has a weight or an activation that `Structure` cannot represent.
    """
    package = mil.read(file)
    names = [name for name in package.functions if functions is None or name in functions]
    epsilons: list[float] = []
    activations: list[Activation] = []
    arithmetic: list[Arithmetic] = []
    static_scales: list[StaticScales] = []
    by_linear: dict[str, dict[str, StaticScales | None]] = {}
    denied: list[tuple[str, Denied]] = []
    for name in names:
        program = package.program(name)
        sources = constants(program)
        denied += [(one.kind, why) for one in program.operations if (why := _denied(one.kind))]
        linears = tuple(static.static_scales(package, program, sources))
        called = (operation.name for operation in program.operations if operation.kind == "linear")
        by_linear[name] = dict(zip(called, linears, strict=True))
        arithmetic += ["float" if one is None else "static_int8" for one in linears]
        static_scales += [one for one in linears if one is not None]
        for operation in program.operations:
            if operation.kind == "layer_norm":
                epsilon = parameter(package, sources, operation, "epsilon")
                epsilons.append(_LAYER_NORM_EPSILON if epsilon is None else float(np.asarray(epsilon)))
            elif operation.kind == "gelu":
                activations += _gelu(parameter(package, sources, operation, "mode"))
            elif operation.kind in _NAMED:
                activations.append(_NAMED[operation.kind])
    every = [row for row in weights(package) if functions is None or any(one.function in names for one in row.readers)]
    counted = [row for row in every if _counts(row)]
    order: dict[object, int] = {id(row): number for number, row in enumerate(counted)}
    return Structure(
        constants=tuple(_constant(package, row) for row in counted),
        epsilons=tuple(epsilons),
        activations=tuple(activations),
        uses=tuple(_flow(package, name, every, by_linear[name]).numbered(order) for name in names),
        arithmetic=tuple(arithmetic),
        static_scales=tuple(static_scales),
        denied=tuple(denied),
        numbers=tuple(_number(package, row) for row in every if _floats(row) == 1),
    )


def _flow(
    package: Package, function: str, every: Sequence[Weight], static_scales: Mapping[str, StaticScales | None]
) -> Flow:
    """Follow the values of a function; weights are keyed by identity, `static_scales` by linear."""
    flow = Flow()
    sources = constants(package.program(function))
    by_reader: dict[str, list[Weight]] = {}
    for weight in every:
        for reader in weight.readers:
            if reader.function == function:
                by_reader.setdefault(reader.name, []).append(weight)
    for operation in package.program(function).operations:
        if is_constant(operation):
            continue
        held = by_reader.get(operation.name, [])
        for weight in held:
            flow.constant(id(weight), id(weight))
        values = [one for given in operation.arguments.values() for one in given if isinstance(one, str)]
        roles: dict[object, Role | None] = {id(weight): _role(operation, weight, sources) for weight in held}
        flow.operation(
            [*values, *map(id, held)],
            [output.name for output in operation.outputs],
            roles,
            static_scales.get(operation.name),
        )
    return flow


def _denied(kind: str) -> Denied | None:
    return "randomness" if kind.startswith(_RANDOM) else _DENIED.get(kind)


def _gelu(mode: Value | None) -> list[Activation]:
    """Return the form of a gelu; none for the sigmoid approximation, which coremltools makes of that formula."""
    return [_GELU[str(mode)]] if str(mode) in _GELU else [] if mode is not None else ["gelu"]


def _role(operation: Operation, weight: Weight, sources: Mapping[str, Source]) -> Role | None:
    """Return the role of a weight in an operation, by the argument that it is."""
    roles = _ROLES.get(operation.kind, {})
    for name, role in roles.items():
        for argument in operation.arguments.get(name, ()):
            source = sources.get(argument) if isinstance(argument, str) else argument
            if source is not None and source.key == weight.source.key:
                return role
    return None


def _floats(weight: Weight) -> int:
    """Return the number of floats in a weight; 0 for other types."""
    return weight.type.size if weight.type is not None and weight.type.dtype.floating else 0


def _counts(weight: Weight) -> bool:
    return _floats(weight) >= 2


def _number(package: Package, weight: Weight) -> float:
    return float(np.asarray(decode(package, weight.source, rounded=True)).ravel()[0])


def _constant(package: Package, weight: Weight) -> Constant:
    stored = weight.stored.removeprefix(_SPARSE)
    if stored not in _STORED:
        raise ToolchainError(
            f"{weight.name} is stored as {weight.stored}, and nothing compares that with a checkpoint."
        )
    values = decode(package, weight.source, rounded=True)
    sparse = weight.stored.startswith(_SPARSE)
    return Constant(weight.name, np.asarray(values, np.float32), _STORED[stored], sparse)
