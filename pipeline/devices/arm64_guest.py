"""Runs one `.tflite` or `.pte` file inside the emulated machine. A plain script: Python 3.9, NumPy and the runtime.

    python arm64_guest.py JOB.json

The job names the runtime, the file, the inputs (.npz), the calls, where outputs (.npz) go, and how often each call is
counted. In a machine whose clock moves by one nanosecond an instruction, a time is a count.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import json
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MARK = "POCKETBERT "
"""Prefix of the console lines that hold results for the host."""

Arrays = dict[str, np.ndarray]
Prepared = Callable[[], Arrays]
"""A prepared run of a function on its inputs; the arrays that it returns may belong to the runtime."""


def main(path: str) -> None:
    """Do the job."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    arrays = np.load(job["inputs"], allow_pickle=False)
    prepare = {"litert": litert, "executorch": executorch}[job["runtime"]](job["model"])
    outputs = {}
    for number, call in enumerate(job["calls"]):
        inputs = {name: arrays[key] for name, key in call["inputs"].items()}
        run = prepare(call["function"], inputs, call["outputs"])
        # The first run packs weights, and is not counted.
        found = run()
        for name in job["names"]:
            # A copy: the next call writes over what the runtime owns.
            outputs[f"o{number}-{name}"] = np.array(found[name])
        counts = []
        for _ in range(job["repeats"]):
            began = time.perf_counter_ns()
            run()
            counts.append(time.perf_counter_ns() - began)
        said = {"call": number, "counts": counts, "page_size": mmap.PAGESIZE}
        print(MARK + json.dumps(said), flush=True)
    if job.get("outputs"):
        np.savez(job["outputs"], **outputs)  # type: ignore[arg-type]  # the stub takes the names for its own options
    print(MARK + json.dumps({"done": True}), flush=True)


def litert(model: str) -> Callable[[str, Arrays, Sequence[str]], Prepared]:
    """Open a `.tflite`; return a function that prepares a run of one of its signatures."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=model, num_threads=1)

    def prepare(function: str, inputs: Arrays, names: Sequence[str]) -> Prepared:
        runner = interpreter.get_signature_runner(function)
        return lambda: runner(**inputs)

    return prepare


def executorch(model: str) -> Callable[[str, Arrays, Sequence[str]], Prepared]:
    """Open a `.pte`; return a function that prepares a run of one of its methods."""
    sys.meta_path.insert(0, _WithoutDistributed)
    import torch
    from executorch.extension.pybindings import _portable_lib

    # Kernels of quantised embedding tables. The package around them imports ExecuTorch's exporter as well.
    (kernels,) = (Path(_portable_lib.__file__).parents[2] / "kernels" / "quantized").glob("*.so")
    ctypes.CDLL(str(kernels))
    _portable_lib._unsafe_reset_threadpool(1)
    program = _portable_lib._load_for_executorch(model)

    def prepare(function: str, inputs: Arrays, names: Sequence[str]) -> Prepared:
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values())
        return lambda: {
            name: result.numpy()
            for name, result in zip(names, program.run_method(function, tensors))  # noqa: B905
        }

    return prepare


class _WithoutDistributed(importlib.machinery.PathFinder):
    """Imports PyTorch as one built without `torch.distributed`, which makes objects of CUDA's when it is imported."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Find PyTorch's native module alone."""
        if fullname != "torch._C":
            return None
        spec: Any = super().find_spec(fullname, path)
        load = spec.loader.exec_module

        def load_without(module: Any) -> None:
            load(module)
            # PyTorch looks for these names to find out what it was built with.
            for name in ("_c10d_init", "_rpc_init", "_dist_autograd_init"):
                delattr(module, name)

        spec.loader.exec_module = load_without
        return spec


if __name__ == "__main__":
    main(sys.argv[1])
