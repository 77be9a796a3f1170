"""Sessions for Core ML: its runtime on macOS, and elsewhere the reference interpreter of `pipeline.mil`."""

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from pipeline import mil
from pipeline.devices.headless import ComputeUnits
from pipeline.errors import InputError, ToolchainError
from pipeline.formats import Evaluator, Inputs, Outputs, Session
from pipeline.formats.signature import Function, Signature
from pipeline.mil.constants import Expression, constants

STANDS_IN = (
    "It does not exercise Core ML's compiler, kernels and compute units, nor their speed: only a Mac or an iPhone does."
)


INTERPRETER = f"PocketBERT's reference interpreter for ML Programs, version {mil.VERSION}"


def no_runtime() -> str | None:
    """Return why this machine lacks Core ML's runtime, which is part of macOS, or None."""
    return None if sys.platform == "darwin" else "Core ML runs on macOS only."


def import_runtime() -> None:
    """Import the runtime, so that opening a file can be timed without the import."""
    import coremltools  # noqa: F401


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a package in Core ML, which chooses its threads itself; off macOS, in the reference interpreter."""
    if no_runtime():
        return load_interpreter(file, signature)
    return load_compute_unit(file, signature, "ALL")


def load_interpreter(file: Path, signature: Signature) -> Session:
    """Open a package in the reference interpreter, on any machine."""
    return _InterpreterSession(file, signature)


def load_control(file: Path, signature: Signature, scratch: Path) -> Session:
    """Open a file's own graph and weights in single precision, in the reference interpreter; see `Backend`."""
    return _InterpreterSession(file, signature, precision="mixed")


def load_compute_unit(file: Path, signature: Signature, compute_units: ComputeUnits) -> Session:
    """Open a package in Core ML on the given compute units.

    Raises:
        ToolchainError: this is not macOS.
    """
    reason = no_runtime()
    if reason:
        raise ToolchainError(f"{file} cannot be run on {compute_units} here: {reason}")
    return _CoreMLSession(file, signature, compute_units=compute_units)


def evaluators() -> list[Evaluator]:
    """Return the reference interpreter, which gives the verdict, and on macOS Core ML on each compute unit."""
    interpreter = Evaluator(
        INTERPRETER,
        lambda file, signature, threads: load_interpreter(file, signature),
        uses_threads=False,
        stands_in=STANDS_IN,
        load_flushed=lambda file, signature: _InterpreterSession(file, signature, flush_subnormals=True),
    )
    return [interpreter] if no_runtime() else [interpreter, *(_on(units) for units in get_args(ComputeUnits))]


def _on(units: ComputeUnits) -> Evaluator:
    return Evaluator(
        f"Core ML {units} (macOS {platform.mac_ver()[0]})",
        lambda file, signature, threads: load_compute_unit(file, signature, units),
        uses_threads=False,
        unit=units,
    )


class _CoreMLSession:
    """A package in Core ML's own runtime, on macOS."""

    def __init__(self, file: Path, signature: Signature, *, compute_units: ComputeUnits) -> None:
        import coremltools as ct

        package = mil.read(file)
        several = len(package.functions) > 1
        self._models = {
            function.name: ct.models.MLModel(
                str(file),
                function_name=function.name if several else None,
                compute_units=getattr(ct.ComputeUnit, compute_units),
            )
            for function in signature.functions
        }
        self._tables = {function.name: _tables(package, function.name) for function in signature.functions}

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        _check_ids(self._tables[function.name], inputs)
        result = self._models[function.name].predict(dict(inputs))
        return {tensor.name: np.asarray(result[tensor.name], np.float32) for tensor in function.outputs}

    def close(self) -> None:
        """Free the models."""
        self._models.clear()


class _InterpreterSession:
    """A package in the reference interpreter, at a precision of `pipeline.mil`."""

    def __init__(
        self,
        file: Path,
        signature: Signature,
        *,
        precision: mil.Precision = "fp16",
        flush_subnormals: bool = False,
    ) -> None:
        package = mil.read(file)
        self._functions = {
            function.name: mil.Interpreter(
                package, function.name, precision=precision, flush_subnormals=flush_subnormals
            )
            for function in signature.functions
        }
        self._tables = {function.name: _tables(package, function.name) for function in signature.functions}

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        _check_ids(self._tables[function.name], inputs)
        result = self._functions[function.name].run(inputs)
        return {tensor.name: result[tensor.name] for tensor in function.outputs}

    def close(self) -> None:
        """Free the interpreters with their constants."""
        self._functions.clear()


def _tables(package: mil.Package, function: str) -> dict[str, int]:
    """Return the number of rows of the table that each input of ids indexes."""
    program = package.program(function)
    sources = constants(program)
    rows: dict[str, int] = {}
    for operation in program.operations:
        if operation.kind == "gather":
            (ids,), (table,) = operation.arguments["indices"], operation.arguments["x"]
            source = sources.get(table) if isinstance(table, str) else table
            declared = source.output.type if isinstance(source, Expression) else source.type if source else None
            if isinstance(ids, str) and declared is not None:
                rows[ids] = min(rows.get(ids, declared.fixed_shape[0]), declared.fixed_shape[0])
    return {row.name: rows[row.name] for row in program.inputs if row.name in rows}


def _check_ids(tables: Mapping[str, int], inputs: Inputs) -> None:
    """Refuse ids outside of their table: a program does not, and its outputs are then undefined.

    Raises:
        InputError: the range of the ids, and the number of rows.
    """
    for name, rows in tables.items():
        ids = inputs[name]
        if ids.min() < 0 or ids.max() >= rows:
            raise InputError(f"{name} span {ids.min()} to {ids.max()}; the table has {rows} rows.")
