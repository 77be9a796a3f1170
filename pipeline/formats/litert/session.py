"""LiteRT's runtime: a file opened as one compiled model, run through XNNPACK on the CPU."""

import atexit
import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, ToolchainError
from pipeline.formats import Evaluator, Inputs, Outputs, Session, native_log_hidden, runtime_evaluator
from pipeline.formats.litert.control import write_control
from pipeline.formats.litert.facts import MINIMUM_RUNTIME, TITLE
from pipeline.formats.signature import Function, Signature, Tensor
from pipeline.runtimes import require_version

_IN_MEMORY = ":memory:"


def no_runtime() -> str | None:
    """Return None: the runtime's wheels exist for every platform that PocketBERT runs on."""
    return None


def import_runtime() -> None:
    """Import the runtime, so that opening a file can be timed without the import."""
    import ai_edge_litert.compiled_model
    import ai_edge_litert.interpreter  # noqa: F401


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a file in LiteRT.

    Raises:
        ArtifactError: the file is damaged.
        ToolchainError: the runtime is absent or too old, or the file is not a model.
    """
    require_version("ai-edge-litert", MINIMUM_RUNTIME)
    require_version("ai-edge-litert", signature.minimum_runtime)
    return _LiteRTSession(file, signature, threads=threads)


def load_control(file: Path, signature: Signature, scratch: Path) -> Session:
    """Open a file's own graph and weights in single precision, see `Backend`."""
    copy = scratch / file.name
    return load(copy if write_control(file, copy) else file, signature, threads=1)


def evaluators() -> list[Evaluator]:
    """Return one evaluator, the real runtime."""
    return [runtime_evaluator(TITLE, "ai-edge-litert", load)]


class _LiteRTSession:
    """One compiled model whose signatures share one packed copy of the weights; not for several threads at once."""

    def __init__(self, file: Path, signature: Signature, *, threads: int) -> None:
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.cpu_options import CpuOptions
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import Options

        # Without a cache each signature packs its own copy: 138 MB for a 24 MB file instead of 35. Not in a file: that
        # is not checked against the model, and another model of the same shape would give wrong numbers silently.
        cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=_IN_MEMORY)
        options = Options(hardware_accelerators=HardwareAccelerator.CPU, cpu_options=cpu)
        try:
            with native_log_hidden():
                self._model = CompiledModel.from_file(str(file), environment=_environment(), options=options)
                # A part of opening, and of its time: the first run then is a run like any other.
                self._buffers = {function.name: self._create(function) for function in signature.functions}
        except (RuntimeError, ValueError, OSError) as error:
            raise ToolchainError(f"LiteRT cannot open {file}: {error}") from error

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        sources, sinks = self._buffers[function.name]
        for tensor in function.inputs:
            array = inputs[tensor.name]
            # The buffer would take any dtype, and anything shorter than itself, without a word.
            if array.dtype != np.dtype(tensor.dtype) or array.shape != tensor.shape:
                taken = f"{function.name} takes {tensor.dtype} {tensor.shape}"
                raise InputError(f"{tensor.name} is {array.dtype} {array.shape}; {taken}.")
            sources[tensor.name].write(array)
        self._model.run_by_name(function.name, sources, sinks)
        return {tensor.name: _read(sinks[tensor.name], tensor) for tensor in function.outputs}

    def _create(self, function: Function) -> tuple[dict[str, Any], dict[str, Any]]:
        sources = {t.name: self._model.create_input_buffer_by_name(function.name, t.name) for t in function.inputs}
        sinks = {t.name: self._model.create_output_buffer_by_name(function.name, t.name) for t in function.outputs}
        return sources, sinks

    def close(self) -> None:
        """Free the model and its buffers."""
        self._buffers.clear()
        self._model.close()


@cache
def _environment() -> Any:
    """Return the process's environment, which registers the accelerators; without it each model creates another."""
    from ai_edge_litert.environment import Environment
    from ai_edge_litert.tensor_buffer import TensorBuffer

    environment = Environment.create()
    # The runtime creates a second one at the first write, and logs that: better now than in a run.
    TensorBuffer.create_from_host_memory(np.zeros(16, np.float32)).write(np.zeros(16, np.float32))
    # It also tells of its end, after Python's own; what was registered later is called earlier: this closes its log.
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.close, ctypes.c_void_p), ctypes.c_void_p(2), None)
    atexit.register(_close, environment)
    return environment


def _close(environment: Any) -> None:
    with native_log_hidden():
        environment.close()


def _read(buffer: Any, tensor: Tensor) -> Any:
    count = int(np.prod([size or 1 for size in tensor.shape]))
    return buffer.read(count, np.float32).reshape(tensor.shape)
