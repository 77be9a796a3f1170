"""LiteRT: one `.tflite` file with a signature per length, all reading the same weights, run through XNNPACK.

The longest length is `serving_default`, the convention of the ecosystem; the others are `seq_<length>`.
"""

import contextlib
import io
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipeline.backends import ConvertRequest, Evaluator, Inputs, Outputs, Session, own_runtime
from pipeline.backends.litert.deduplicate import share_constants
from pipeline.backends.litert.reader import read_structure
from pipeline.backends.signature import Function, Signature, Tensor
from pipeline.backends.structure import Structure
from pipeline.errors import InputError, ToolchainError
from pipeline.schemes import SUPPORTED, Support

TITLE = "LiteRT"
VERSION = 2
FILE = "model.tflite"
DISTRIBUTIONS = ("ai-edge-litert", "litert-torch", "ai-edge-quantizer", "torch", "transformers")
BASE_SCHEME: str | None = "fp32"
MINIMUM_RUNTIME = "1.2.0"
"""tflite-runtime 2.14 computes int8_dynamic silently wrong, LiteRT 1.0.1 outside its gates and seven times slower."""
RIGHT_FROM: dict[str, dict[str, str | None]] = {
    "int8_dynamic": {"ai-edge-litert": MINIMUM_RUNTIME, "tflite-runtime": None},
}
"""By scheme and the runtime's distribution: the oldest release that keeps the scheme's gates, None for no release.

What is not listed is right on every runtime tried; `pocketbert compat` measures it.
"""

DEFAULT_SIGNATURE = "serving_default"
_IN_MEMORY = ":memory:"
_STORED_AS = {"fp16": "FLOAT16", "int8_weight_only": "INT8", "int8_dynamic": "INT8"}


def support(scheme: str, *, minimum_ios: int) -> Support:
    """Answer for a scheme: supported, or why not."""
    return SUPPORTED


def lengths_in_file(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Each length is a function of its own."""
    return lengths


def no_runtime() -> str | None:
    """The runtime's wheels exist for every platform that PocketBERT runs on."""
    return None


def import_runtime() -> None:
    """Import the runtime, so that opening a file can be timed without it."""
    import ai_edge_litert.compiled_model
    import ai_edge_litert.interpreter  # noqa: F401


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one file with a signature per length.

    Raises:
        ToolchainError: the quantizer left every weight as it was.
    """
    file = out / FILE
    with TemporaryDirectory(dir=out) as scratch, _quiet():
        source = Path(scratch) / "source.tflite"
        if request.scheme == "fp32":
            _export_float(request, source)
        elif request.base is None:
            raise ToolchainError(
                f"LiteRT makes {request.scheme} from its {BASE_SCHEME} file, and none was handed over."
            )
        else:
            _quantize(request.base, source, request.scheme)
        share_constants(source, file)
    wanted = _STORED_AS.get(request.scheme)
    if wanted and wanted not in _constant_dtypes(file):
        raise ToolchainError(
            f"the LiteRT quantizer left no {wanted} constant for {request.scheme}: it matched no operation."
        )
    total, delegated = _delegation(file)
    return {"lengths": list(request.lengths), "ops_total": total, "ops_delegated": delegated}


def signature_name(length: int, lengths: Sequence[int]) -> str:
    """Name a length's signature; the longest is the default one."""
    return DEFAULT_SIGNATURE if length == max(lengths) else f"seq_{length}"


def _export_float(request: ConvertRequest, path: Path) -> None:
    """Convert the student in single precision."""
    import litert_torch

    from pipeline import tasks
    from pipeline.checkpoint.loading import example_inputs, export_graph, input_names, named_outputs

    task = tasks.get(request.task)
    graph = named_outputs(export_graph(request.student, task))
    names = input_names(request.student)
    converter: Any = litert_torch
    # Longest first: the runtime's whole-file calls see the first subgraph only.
    for length in sorted(request.lengths, reverse=True):
        samples = dict(zip(names, example_inputs(names, length), strict=True))
        converter = converter.signature(signature_name(length, request.lengths), graph, sample_kwargs=samples)
    converter.convert().export(str(path))


def _quantize(source: Path, path: Path, scheme: str) -> None:
    """Apply a scheme to a float file; the quantizer's defaults cover linears and embedding tables."""
    from ai_edge_quantizer import quantizer, recipe

    recipes = {
        "fp16": _fp16_recipe,
        "int8_weight_only": recipe.weight_only_wi8_afp32,
        "int8_dynamic": recipe.dynamic_wi8_afp32,
    }
    named = path.with_suffix(".named.tflite")
    share_constants(source, named, unique_names=True)
    quantizer.Quantizer(str(named), recipes[scheme]()).quantize().export_model(str(path))


def _fp16_recipe() -> Any:
    from ai_edge_quantizer import qtyping, recipe_manager

    manager = recipe_manager.RecipeManager()
    manager.add_quantization_config(
        regex=".*",
        operation_name=qtyping.TFLOperationName.ALL_SUPPORTED,
        op_config=qtyping.OpQuantizationConfig(
            weight_tensor_config=qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT),
            compute_precision=qtyping.ComputePrecision.FLOAT,
            explicit_dequantize=True,
        ),
        algorithm_key="float_casting",
    )
    return manager.get_quantization_recipe()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tools' progress bars and size tables out of the log."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _schema_model(file: Path) -> Iterator[Any]:
    """Open a file as the flatbuffer that it is, without a runtime."""
    from ai_edge_litert import schema_py_generated as schema

    # The map is closed by the collector: the generated accessors keep views of it.
    with file.open("rb") as handle:
        yield schema.Model.GetRootAs(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), 0)


def inspect(file: Path) -> tuple[Function, ...]:
    """Read the signatures back from a file, shortest first."""
    dtypes = _dtype_names()
    with _schema_model(file) as model:
        rows = [model.SignatureDefs(number) for number in range(model.SignatureDefsLength())]
        functions = [_function(model, row, dtypes) for row in rows]
    return tuple(sorted(functions, key=lambda function: function.max_length))


def structure(file: Path) -> Structure:
    """Read back what can be compared with the checkpoint without running the file."""
    return read_structure(file)


def _dtype_names() -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    return {value: key for key, value in vars(schema.TensorType).items() if isinstance(value, int)}


def _function(model: Any, row: Any, dtypes: dict[int, str]) -> Function:
    graph = model.Subgraphs(row.SubgraphIndex())
    inputs = tuple(_tensor(row.Inputs(number), graph, dtypes) for number in range(row.InputsLength()))
    outputs = tuple(_tensor(row.Outputs(number), graph, dtypes) for number in range(row.OutputsLength()))
    length = int(inputs[0].shape[1] or 0)
    return Function(
        name=row.SignatureKey().decode(), min_length=length, max_length=length, inputs=inputs, outputs=outputs
    )


def _tensor(entry: Any, graph: Any, dtypes: dict[int, str]) -> Tensor:
    tensor = graph.Tensors(entry.TensorIndex())
    shape = tuple(int(tensor.Shape(number)) for number in range(tensor.ShapeLength()))
    return Tensor.model_validate(
        {"name": entry.Name().decode(), "dtype": dtypes[tensor.Type()].lower(), "shape": shape}
    )


def _constant_dtypes(file: Path) -> set[str]:
    """Return the types of all constants in a file."""
    dtypes = _dtype_names()
    found = set()
    with _schema_model(file) as model:
        for graph in (model.Subgraphs(number) for number in range(model.SubgraphsLength())):
            for tensor in (graph.Tensors(number) for number in range(graph.TensorsLength())):
                buffer = model.Buffers(tensor.Buffer())
                if buffer.Size() or buffer.DataLength():
                    found.add(dtypes[tensor.Type()])
    return found


def _delegation(file: Path) -> tuple[int, int]:
    """Return all operations of the longest signature, and how many of them run inside XNNPACK.

    A delegated operation keeps its node but is not run any more: walking back from the outputs, a tensor that a
    DELEGATE node makes is made there, and what else is reached runs on the built-in kernels.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file), num_threads=1)
    total = interpreter._interpreter.NumNodes()
    interpreter.allocate_tensors()
    native = interpreter._interpreter
    # DELEGATE nodes are appended, so the later maker of a tensor is the one that runs.
    maker = {int(tensor): node for node in range(native.NumNodes()) for tensor in native.NodeOutputs(node)}
    waiting = [int(tensor) for tensor in native.OutputIndices()]
    seen: set[int] = set()
    left: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor not in maker:
            continue
        seen.add(tensor)
        if native.NodeName(maker[tensor]) != "DELEGATE":
            left.add(maker[tensor])
        waiting.extend(int(source) for source in native.NodeInputs(maker[tensor]))
    return total, total - len(left)


class _LiteRTSession:
    """One compiled model whose signatures share one packed copy of the weights; for one thread of control at a time."""

    def __init__(self, file: Path, *, threads: int) -> None:
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.cpu_options import CpuOptions
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import Options

        # Without a cache each signature packs its own copy: 138 MB for a 24 MB file instead of 35. Not in a file: that
        # is not checked against the model, and another model of the same shape would give wrong numbers silently.
        cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=_IN_MEMORY)
        options = Options(hardware_accelerators=HardwareAccelerator.CPU, cpu_options=cpu)
        try:
            self._model = CompiledModel.from_file(str(file), options=options)
        except (RuntimeError, ValueError, OSError) as error:
            raise ToolchainError(f"LiteRT cannot open {file}: {error}") from error
        self._buffers: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        if function.name not in self._buffers:
            self._buffers[function.name] = self._create(function)
        sources, sinks = self._buffers[function.name]
        for tensor in function.inputs:
            array = inputs[tensor.name]
            # The buffer would take any dtype, and anything shorter than itself, without a word.
            if array.dtype != np.dtype(tensor.dtype) or array.shape != tensor.shape:
                wanted = f"{function.name} takes {tensor.dtype} {tensor.shape}"
                raise InputError(f"{tensor.name} is {array.dtype} {array.shape}; {wanted}.")
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


def _read(buffer: Any, tensor: Tensor) -> Any:
    count = int(np.prod([size or 1 for size in tensor.shape]))
    return buffer.read(count, np.float32).reshape(tensor.shape)


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a file in LiteRT.

    Raises:
        ToolchainError: the runtime is absent or too old, or the file is not a model.
    """
    from pipeline.convert.model import require_version

    require_version("ai-edge-litert", MINIMUM_RUNTIME)
    return _LiteRTSession(file, threads=threads)


def evaluators() -> list[Evaluator]:
    """The runtime itself."""
    return own_runtime("litert")
