"""Run a function of a package, operation by operation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from pipeline.errors import ArtifactError, InputError, ToolchainError, UnknownOp
from pipeline.mil import constants, ops_activation, ops_arithmetic, ops_neural, ops_tensor
from pipeline.mil import package as packages
from pipeline.mil.constexpr import EXPRESSIONS
from pipeline.mil.interface import Port, check_inputs, port
from pipeline.mil.ops_tensor import KEEPS_ROUNDING
from pipeline.mil.package import VARIADIC, Argument, Operation, Output, Package, Program
from pipeline.mil.values import Array, Value, flush, to_half

VERSION = 1
"""Raised when the same program gives other outputs, so that verdicts are made again."""
Precision: TypeAlias = Literal["fp16", "fp32", "mixed"]
Watch: TypeAlias = Callable[[str, str, Array], None]
"""Called after each operation with its type, the name of a value and the value, which it must not change."""
OPS: Mapping[str, Callable[..., Any]] = {
    **ops_activation.OPS,
    **ops_arithmetic.OPS,
    **ops_neural.OPS,
    **ops_tensor.OPS,
}
"""Every operation that the interpreter knows, by its MIL type.

Each takes the parameters of its MIL name: arrays with floats in single precision, texts as str.
"""


@dataclass(frozen=True)
class _Reference:
    """Reference to a value that an earlier step computes."""

    name: str


@dataclass(frozen=True)
class _Step:
    """An operation, ready to run."""

    operation: Operation
    compute: Callable[..., Any]
    constants: Mapping[str, Any]
    computed: tuple[tuple[str, str], ...]
    """Pairs of a parameter and the name of the computed value for it."""
    several: tuple[_Reference | Value, ...] | None
    """Arguments of the variadic parameter; None if the operation has no such parameter."""
    rounded: bool
    """Whether the step rounds its values to half precision, as the program declares them."""
    passes: bool
    """Whether the step returns its input unchanged, whatever type is declared."""
    last_uses: list[str] = field(default_factory=list)
    """Values that no later step reads."""

    def reads(self) -> Iterator[str]:
        """Yield the names of the computed values that the step reads."""
        yield from (name for _, name in self.computed)
        yield from (item.name for item in self.several or () if isinstance(item, _Reference))

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter."""
        given = dict(self.constants)
        for parameter, name in self.computed:
            given[parameter] = values[name]
        if self.several is not None:
            given[VARIADIC] = [values[item.name] if isinstance(item, _Reference) else item for item in self.several]
        return given


class Interpreter:
    """One function of a package, ready to run."""

    def __init__(
        self,
        package: Path | Package,
        function: str | None = None,
        *,
        precision: Precision = "fp16",
        flush_subnormals: bool = False,
    ) -> None:
        """Look up a function's operations, and decode its constants.

        Args:
            package: a `.mlpackage`; interpreters of one `Package` share its constants.
            function: name of the function; None for the default function.
            precision: with "fp16", values declared half precision are rounded to it after each operation; with "fp32",
                none are; with "mixed", constants are, and computed values are not, neither to half precision nor to
                integers between `quantize` and `dequantize`.
            flush_subnormals: replace numbers below 2^-14 by zeros of their sign in all half-precision inputs and
                results of operations, constants among them. Intermediate results inside an operation are not flushed.

        Raises:
            ArtifactError: the package is damaged.
            InputError: there is no such package or function, or subnormal numbers of another precision than fp16 are
                to be flushed.
            UnknownOp: the function has operations that the interpreter does not know.
        """
        if precision not in get_args(Precision):
            raise InputError(f"precision {precision} is not known; there are {', '.join(get_args(Precision))}.")
        if flush_subnormals and precision != "fp16":
            raise InputError(
                f"subnormal numbers are flushed in precision fp16, and {precision} was asked for, which rounds nothing "
                "that operations give to half precision."
            )
        self.package = packages.read(package) if isinstance(package, Path) else package
        self._program: Program = self.package.program(function)
        self.function = self._program.name
        self._rounded = precision == "fp16"
        self._flushed = flush_subnormals
        self._constants_rounded = precision != "fp32"
        self._passed_through = ops_neural.PAIR if precision == "mixed" else frozenset()
        _refuse_unknown(self.package, self._program)
        self.inputs: tuple[Port, ...] = tuple(port(row) for row in self._program.description.input)
        self.outputs: tuple[Port, ...] = tuple(port(row) for row in self._program.description.output)
        self._constants = constants.constants(self._program)
        self._steps = tuple(self._step(row) for row in self._program.operations if not constants.is_constant(row))
        self._note_last_uses()

    @property
    def _where(self) -> str:
        return f"{self.package.path.name}, function {self.function}"

    def _step(self, operation: Operation) -> _Step:
        constants: dict[str, Any] = {}
        computed: list[tuple[str, str]] = []
        several: tuple[_Reference | Value, ...] | None = None
        for parameter, given in operation.arguments.items():
            bound = tuple(self._bind(argument) for argument in given)
            if parameter == VARIADIC:
                several = bound
            elif isinstance(bound[0], _Reference):
                computed.append((parameter, bound[0].name))
            else:
                constants[parameter] = bound[0]
        rounded = self._rounded and operation.kind not in KEEPS_ROUNDING
        passes = operation.kind in self._passed_through
        compute = ops_neural.pass_through if passes else OPS[operation.kind]
        return _Step(operation, compute, constants, tuple(computed), several, rounded, passes)

    def _bind(self, argument: Argument) -> _Reference | Value:
        """Return a constant's value, or a reference to a computed value."""
        source = self._constants.get(argument) if isinstance(argument, str) else argument
        if source is None:
            return _Reference(str(argument))
        return constants.decoded(self.package, source, rounded=self._constants_rounded, flushed=self._flushed)

    def _note_last_uses(self) -> None:
        """Note after which step each value can be freed, and check that each is computed before it is read."""
        ready = {row.name for row in self._program.inputs}
        last = {}
        for step in self._steps:
            for name in step.reads():
                if name not in ready:
                    raise ArtifactError(f"{self._where}: {step.operation.name} reads {name}, which nothing computes.")
                last[name] = step
            for output in step.operation.outputs:
                ready.add(output.name)
                last[output.name] = step
        for name, step in last.items():
            if name not in self._program.outputs:
                step.last_uses.append(name)

    def run(self, inputs: Mapping[str, Array], *, watch: Watch | None = None) -> dict[str, Any]:
        """Compute the outputs.

        Args:
            inputs: an array per input, integers in any width.
            watch: called after each operation with each of its values.

        Returns:
            An array per output, floats in single precision; for a classifier, the label as an array of one string and a
                dictionary of probabilities by label.

        Raises:
            InputError: the inputs do not fit the function, or an index is out of its table.
            ToolchainError: an operation cannot be computed, or gives another shape than declared.
        """
        values: dict[str, Any] = {}
        given = check_inputs(self.inputs, inputs, self._where)
        for row in self._program.inputs:
            values[row.name] = self._conform(given[row.name], row, rounded=self._rounded)
        # Infinity and NaN are results here, as they are on a device.
        with np.errstate(all="ignore"):
            for step in self._steps:
                self._take(step, values, watch)
        return {name: self._finished(name, values) for name in self._program.outputs}

    def _finished(self, name: str, values: Mapping[str, Any]) -> Any:
        """Return a copy of an output for the caller; it may be a constant, if the converter folded all operations."""
        value = values[name] if name in values else self._bind(name)
        return np.array(value) if isinstance(value, np.ndarray) else value

    def _take(self, step: _Step, values: dict[str, Any], watch: Watch | None) -> None:
        """Compute one step, and free the values that no later step reads."""
        operation = step.operation
        try:
            result = step.compute(**step.arguments(values))
        except IndexError as error:
            raise InputError(f"{self._where}: {operation.kind} {operation.name}: {error}.") from error
        except (ArithmeticError, AttributeError, KeyError, MemoryError, TypeError, ValueError) as error:
            raise ToolchainError(
                f"{self._where}: {operation.kind} {operation.name} cannot be computed: {error}."
            ) from error
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(operation.outputs):
            raise ToolchainError(f"{self._where}: {operation.kind} {operation.name} gives {len(results)} values.")
        for value, output in zip(results, operation.outputs, strict=True):
            values[output.name] = value if step.passes else self._conform(value, output, rounded=step.rounded)
            if watch is not None and output.type is not None:
                watch(operation.kind, output.name, values[output.name])
        for name in step.last_uses:
            values.pop(name, None)

    def _conform(self, value: Any, output: Output, *, rounded: bool) -> Any:
        """Return a value in its declared type, with floats in single precision."""
        if output.type is None:
            return value
        dtype = output.type.dtype
        array = np.asarray(value)
        if dtype.floating:
            array = array.astype(np.float32, copy=False)
            if rounded and dtype.name == "fp16":
                array = to_half(array)
                if self._flushed:
                    array = flush(array)
        elif dtype.numpy is not None:
            array = array.astype(dtype.numpy, copy=False)
        if not output.type.fits(array.shape):
            raise ToolchainError(
                f"{self._where}: {output.name} is declared {output.type.shape}, and {array.shape} was computed."
            )
        return array


def _refuse_unknown(package: Package, program: Program) -> None:
    known = {"const", *OPS, *EXPRESSIONS}
    kinds = {row.kind for row in program.operations if row.kind not in known or row.nested}
    if kinds:
        raise UnknownOp(
            f"{package.path}: function {program.name} has operations that the interpreter does not know: "
            f"{', '.join(sorted(kinds))}. Add them to pipeline/mil, or run the package on macOS."
        )
