"""A `.mlpackage` that another tool made, in the reference interpreter: fixed, listed or bounded lengths."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline import mil
from pipeline.errors import InputError, ToolchainError
from pipeline.formats.coreml.session import INTERPRETER, STANDS_IN
from pipeline.formats.ports import Array, Entry, Port
from pipeline.mil import interface

SUFFIX = ".mlpackage"


class OpenCoreML:
    """A package in `pipeline.mil`, which gives the verdict on every machine, as it does for our own files."""

    def __init__(self, file: Path) -> None:
        """Open a package.

        Raises:
            ArtifactError: it is damaged, or no ML Program.
            UnknownOp: a function has operations that the interpreter does not know.
        """
        package = mil.read(file)
        self.runtime = INTERPRETER
        self.stands_in: str | None = STANDS_IN
        self._functions = {name: mil.Interpreter(package, name) for name in package.functions}
        self.entries = tuple(
            Entry(name, tuple(map(_port, found.inputs)), tuple(map(_port, found.outputs)))
            for name, found in self._functions.items()
        )

    def run(self, entry: Entry, inputs: Sequence[Array]) -> list[Array]:
        """Run a function, see `OpenFile`."""
        given = {port.name: array for port, array in zip(entry.inputs, inputs, strict=True)}
        try:
            found = self._functions[entry.name].run(given)
        except ToolchainError as error:
            # An operation that cannot be computed on these arrays, such as another length than was traced.
            raise InputError(str(error)) from error
        # A classifier's label and dictionary of probabilities are no arrays of numbers.
        return [np.asarray(found[port.name]) for port in entry.outputs]


def _port(one: interface.Port) -> Port:
    if one.shapes:
        return Port(one.name, one.dtype, one.shape, sizes=tuple(sorted({shape[-1] for shape in one.shapes})))
    free = [bounds for size, bounds in zip(one.shape, one.bounds, strict=False) if size is None]
    if not free:
        return Port(one.name, one.dtype, one.shape)
    least, most = free[-1]
    return Port(one.name, one.dtype, one.shape, least=least, most=most)
