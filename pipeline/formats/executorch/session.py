"""ExecuTorch's runtime: a `.pte` loaded into the process, run through XNNPACK."""

import gc
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, ToolchainError
from pipeline.formats import Evaluator, Inputs, Outputs, Session, native_log_hidden, runtime_evaluator
from pipeline.formats.executorch.control import write_control
from pipeline.formats.executorch.facts import MINIMUM_RUNTIME, TITLE
from pipeline.formats.signature import Function, Signature
from pipeline.runtimes import require_version


def no_runtime() -> str | None:
    """Return None: the runtime's wheels exist for every platform that PocketBERT runs on."""
    return None


def import_runtime() -> None:
    """Import the runtime with the kernels of quantised embedding tables, which are not in its core."""
    runtime_library()


def runtime_library() -> Any:
    """Return the runtime's own library.

    `executorch.runtime` is a layer above it that imports the whole exporter for one class of warnings: 5 of the 8
    seconds of opening a file in a new process.
    """
    # The library is linked to torch's, which have to be loaded first.
    import torch  # noqa: F401, I001
    import executorch.kernels.quantized  # noqa: F401
    from executorch.extension.pybindings import _portable_lib

    return _portable_lib


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a file in ExecuTorch.

    Raises:
        ArtifactError: the file is damaged.
        ToolchainError: the runtime is absent or too old, or the file is not a program.
    """
    require_version("executorch", MINIMUM_RUNTIME)
    require_version("executorch", signature.minimum_runtime)
    return _ExecuTorchSession(file, [function.name for function in signature.functions], threads=threads)


def load_control(file: Path, signature: Signature, scratch: Path) -> Session:
    """Open a file's own graph and weights in single precision, see `Backend`."""
    copy = scratch / file.name
    return load(copy if write_control(file, copy) else file, signature, threads=1)


def evaluators() -> list[Evaluator]:
    """Return one evaluator, the real runtime."""
    return [runtime_evaluator(TITLE, "executorch", load)]


_open: "weakref.WeakSet[_ExecuTorchSession]" = weakref.WeakSet()
_opening = threading.Lock()


def _set_threads(runtime: Any, threads: int, file: Path) -> None:
    """Set the number of threads of the process's one pool; changing it destroys the pool and makes a new one.

    Open sessions keep a pointer to the old pool: their next run crashed or hung in five of six trials of 1.4.1.

    Raises:
        InputError: a file is open with another count.
    """
    now = runtime._threadpool_get_thread_count()
    if now == threads:
        return
    # A session without references may wait for the collector, for example in a traceback's cycle.
    if len(_open):
        gc.collect()
    if others := len(_open):
        raise InputError(
            f"{file} cannot be opened with {threads} threads: ExecuTorch has one pool of threads for a process, and "
            f"{others} of its files {'is' if others == 1 else 'are'} open with {now}. Close them first, open this one "
            f"with {now}, or give it a process of its own (`pocketbert.load(…, isolated=True)`)."
        )
    runtime._unsafe_reset_threadpool(threads)


class _ExecuTorchSession:
    """A loaded `.pte` with methods planned and their weights packed."""

    def __init__(self, file: Path, methods: Sequence[str], *, threads: int) -> None:
        with native_log_hidden():
            runtime = runtime_library()
            with _opening:
                _set_threads(runtime, threads, file)
                _open.add(self)
        try:
            # The program has to outlive its methods.
            self._program = runtime._load_program(
                str(file), program_verification=runtime.Verification.InternalConsistency
            )
            self._methods = {name: self._program.load_method(name) for name in methods}
            self._vocabulary = int(self._program.load_method("get_vocab_size")([])[0])
        except RuntimeError as error:
            _open.discard(self)
            raise ToolchainError(f"ExecuTorch cannot open {file}: {error}") from error

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        import torch

        ids = inputs["input_ids"]
        # An id outside an int8 table ends the whole process in the kernel.
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            raise InputError(f"input_ids span {ids.min()} to {ids.max()}; the table has {self._vocabulary} rows.")
        rows = [torch.from_numpy(np.ascontiguousarray(inputs[tensor.name])) for tensor in function.inputs]
        try:
            results = self._methods[function.name](rows)
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in inputs.items())
            raise InputError(f"{function.name} refused {shapes}: {error}") from error
        return {tensor.name: result.numpy() for tensor, result in zip(function.outputs, results, strict=True)}

    def close(self) -> None:
        """Free the methods, then the program."""
        del self._methods, self._program
        _open.discard(self)
