"""A `.pte` that another tool made, in ExecuTorch's runtime. Its inputs and outputs have no names, only an order."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ArtifactError, InputError, ToolchainError
from pipeline.formats import native_log_hidden
from pipeline.formats.checked import check_identifier
from pipeline.formats.executorch.facts import TITLE
from pipeline.formats.executorch.reader import IDENTIFIER, method_tensors
from pipeline.formats.executorch.session import runtime_library
from pipeline.formats.ports import Array, Entry, Port, as_floats, numbered

SUFFIX = ".pte"
_METHOD = "forward"


class OpenExecuTorch:
    """A `.pte` in the runtime, with the kernels of quantised tables."""

    stands_in: str | None = None

    def __init__(self, file: Path) -> None:
        """Load a program and its method `forward`.

        Raises:
            ArtifactError: it is no `.pte`, or has no such method.
            ToolchainError: the runtime refuses it, such as for kernels or delegates that it lacks.
        """
        check_identifier(file, IDENTIFIER)
        self.entries: tuple[Entry, ...] = (_entry(file),)
        self.runtime = f"{TITLE} (executorch {importlib.metadata.version('executorch')})"
        with native_log_hidden():
            runtime = runtime_library()
            try:
                # The program has to outlive its method.
                self._program = runtime._load_program(
                    str(file), program_verification=runtime.Verification.InternalConsistency
                )
                self._method = self._program.load_method(_METHOD)
            except RuntimeError as error:
                raise ToolchainError(f"ExecuTorch cannot open {file}: {error}") from error

    def run(self, entry: Entry, inputs: Sequence[Array]) -> list[Array]:
        """Run `forward`, see `OpenFile`."""
        import torch

        try:
            with native_log_hidden():
                results = self._method([torch.from_numpy(np.ascontiguousarray(array)) for array in inputs])
        except RuntimeError as error:
            raise InputError(f"{entry.name} refused its inputs: {' '.join(str(error).split())[:300]}") from error
        return [as_floats(result.numpy()) for result in results if hasattr(result, "numpy")]


def _entry(file: Path) -> Entry:
    found = method_tensors(file)
    if _METHOD not in found:
        raise ArtifactError(f"{file} has no method {_METHOD!r}; it has {', '.join(found) or 'none'}.")
    inputs, outputs = found[_METHOD]
    return Entry(_METHOD, _ports("input", inputs), _ports("output", outputs), named=False)


def _ports(kind: str, tensors: Sequence[tuple[str, tuple[int, ...], bool]]) -> tuple[Port, ...]:
    names = numbered(kind, len(tensors))
    return tuple(_port(name, *tensor) for name, tensor in zip(names, tensors, strict=True))


def _port(name: str, dtype: str, sizes: tuple[int, ...], dynamic: bool) -> Port:
    """Return a port: of a dynamic tensor the file has the largest sizes, and does not say which axis is free."""
    if not dynamic or len(sizes) < 2:
        return Port(name, dtype, sizes)
    shape: tuple[Any, ...] = (sizes[0], None, *sizes[2:])
    return Port(name, dtype, shape, most=sizes[1])
