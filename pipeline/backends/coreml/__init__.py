"""Core ML: ML Programs in `.mlpackage`, converted with coremltools on any machine.

Core ML itself runs them on macOS alone. Elsewhere `load` runs them in the reference interpreter, see `pipeline.mil`.
"""

import functools
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from pipeline import mil, tasks
from pipeline.backends import ConvertRequest, Evaluator, Inputs, Outputs, Session, sparsity
from pipeline.backends.coreml.reader import read_structure
from pipeline.backends.signature import Function, Signature, Tensor
from pipeline.backends.structure import Structure
from pipeline.errors import ToolchainError
from pipeline.mil.listing import count_operations
from pipeline.schemes import SUPPORTED, Support

TITLE = "Core ML"
VERSION = 4
FILE = "model.mlpackage"
DISTRIBUTIONS = ("coremltools", "torch", "transformers")
BASE_SCHEME = None
MINIMUM_RUNTIME = "iOS 18 / macOS 15 (recipe: minimum_ios)"

_FUNCTIONS_FROM_IOS = 18
_INT8_FROM_IOS = 16
_SPARSE_FROM_IOS = {"fp32": 16, "fp16": 16, "int8_weight_only": 18}
"""By scheme: matrices that are mostly zeros are stored without them."""
_DTYPES = {65568: "float32", 65552: "float16", 131104: "int32"}
"""`ArrayFeatureType.ArrayDataType` of the model's protobuf."""


def support(scheme: str, *, minimum_ios: int) -> Support:
    """Answer for a scheme: supported, or why not."""
    if scheme == "int8_dynamic":
        return Support(
            "Core ML has no activations that are quantised at run time; its int8 activations need calibrated ranges."
        )
    if scheme.startswith("int8") and minimum_ios < _INT8_FROM_IOS:
        return Support(f"ML Programs hold int8 weights from iOS {_INT8_FROM_IOS} on, and minimum_ios is {minimum_ios}.")
    return SUPPORTED


def lengths_in_file(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Each length is a function of its own."""
    return lengths


def no_runtime() -> str | None:
    """Core ML's runtime is part of macOS."""
    return None if sys.platform == "darwin" else "Core ML runs on macOS only."


def import_runtime() -> None:
    """Import the runtime, so that opening a file can be timed without it."""
    import coremltools  # noqa: F401


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one package: a function per length from iOS 18 on, else the longest length alone."""
    lengths = request.lengths if request.minimum_ios >= _FUNCTIONS_FROM_IOS else request.lengths[-1:]
    dropped = [length for length in request.lengths if length not in lengths]
    file = out / FILE
    if len(lengths) == 1:
        _convert_one(request, lengths[0]).save(str(file))
    else:
        _merge(request, lengths, out)
    _drop_machine_facts(file)
    metrics: dict[str, Any] = {"lengths": list(lengths), "ops_total": _count_ops(file)}
    if dropped:
        metrics["lengths_left_out"] = dropped
        metrics["lengths_left_out_reason"] = (
            f"several lengths in one package need iOS {_FUNCTIONS_FROM_IOS}; minimum_ios is {request.minimum_ios}"
        )
    return metrics


def _convert_one(request: ConvertRequest, length: int) -> Any:
    """Return a Core ML model of one fixed length."""
    precision = "fp32" if request.scheme == "fp32" else "fp16"
    model = _float_model(request.student, request.task, precision, length, request.minimum_ios)
    able = request.minimum_ios >= _SPARSE_FROM_IOS[request.scheme]
    sparse = able and bool(sparsity.of_checkpoint(request.student))
    if sparse:
        model = _leave_zeros_out(model)
    if request.scheme == "int8_weight_only":
        model = _compress_int8(model, of_sparse=sparse)
    _describe(model, request)
    return model


@functools.lru_cache(maxsize=16)
def _float_model(student: Path, task_name: str, precision: str, length: int, minimum_ios: int) -> Any:
    """Convert without compression. Kept for the next scheme of the same run: int8 starts from the fp16 model."""
    import coremltools as ct
    import torch

    from pipeline.checkpoint.loading import example_inputs, input_names

    graph = _graph(student, task_name)
    examples = example_inputs(input_names(student), length)
    exported = torch.export.export(graph, examples, strict=False).run_decompositions({})
    _drop_aliases(exported)
    _give_gelu_its_form(exported)
    return ct.convert(
        exported,
        convert_to="mlprogram",
        compute_precision=ct.precision.FLOAT16 if precision == "fp16" else ct.precision.FLOAT32,
        minimum_deployment_target=getattr(ct.target, f"iOS{minimum_ios}"),
        # Without a dtype, half-precision models give float16 outputs from iOS 16 on.
        outputs=[ct.TensorType(name=name, dtype=np.float32) for name in tasks.get(task_name).output_names],
        skip_model_load=True,
    )


def _drop_aliases(exported: Any) -> None:
    """Remove `aten.alias`, which coremltools 9.0 lacks: a slice of positions that takes all of them becomes one."""
    import torch

    graph = exported.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.alias.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    exported.graph_module.recompile()


class _Form(str):
    """A string that answers as a constant node does."""

    __slots__ = ()

    @property
    def val(self) -> str:
        return str(self)


def _give_gelu_its_form(exported: Any) -> None:
    """Hand gelu's form over by position: coremltools 9.0 drops the keyword, and writes the erf form for tanh.

    Its `gelu` then asks the form for a `val`, as if it were a node of the graph.
    """
    import torch

    for node in exported.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default):
        if "approximate" in node.kwargs:
            node.args, node.kwargs = (node.args[0], _Form(node.kwargs["approximate"])), {}


@functools.lru_cache(maxsize=1)
def _graph(student: Path, task_name: str) -> Any:
    """Load the student once for all lengths."""
    from pipeline.checkpoint.loading import export_graph

    return export_graph(student, tasks.get(task_name))


def _leave_zeros_out(model: Any) -> Any:
    """Store matrices that are mostly zeros as a bit for each place and the numbers that are not zero."""
    import coremltools.optimize as cto

    config = cto.coreml.OpThresholdPrunerConfig(
        minimum_sparsity_percentile=sparsity.LEAST, weight_threshold=sparsity.SMALL
    )
    return cto.coreml.prune_weights(model, config=cto.coreml.OptimizationConfig(global_config=config))


def _compress_int8(model: Any, *, of_sparse: bool) -> Any:
    """Store all weights and tables as int8 with a scale per row; small ones stay as they are.

    So do those whose rows would have one scale together: the positions, which were folded to `(1, length, hidden)`. As
    int8 they were most of a file's error (MiniLM at 32 tokens: mean cosine .9980, and .9994 with them in fp16).

    Args:
        model: of coremltools.
        of_sparse: whether zeros were left out of some, which then become int8 too.
    """
    import coremltools.optimize as cto

    config = cto.coreml.OpLinearQuantizerConfig(
        mode="linear_symmetric", granularity="per_channel", weight_threshold=2048
    )
    wanted = cto.coreml.OptimizationConfig(global_config=config, op_name_configs=dict.fromkeys(_in_one_row(model)))
    return cto.coreml.linear_quantize_weights(model, config=wanted, joint_compression=of_sparse)


def _in_one_row(model: Any) -> Iterator[str]:
    """Yield the names of constants of several axes of which the first, along which scales lie, has one place."""
    for function in model._mil_program.functions.values():
        for operation in function.find_ops(op_type="const"):
            shape = operation.outputs[0].shape
            if len(shape) > 1 and shape[0] == 1:
                yield operation.name


def _describe(model: Any, request: ConvertRequest) -> None:
    """Fill in the metadata that Xcode shows."""
    model.author = request.metadata.get("author", "")
    model.license = request.metadata.get("licence", "")
    model.short_description = request.metadata.get("summary", "")
    model.version = request.metadata.get("version", "")
    for key, value in request.metadata.items():
        model.user_defined_metadata[f"com.pocketbert.{key}"] = value
    if request.labels:
        model.user_defined_metadata["classes"] = ",".join(request.labels)


def _merge(request: ConvertRequest, lengths: tuple[int, ...], out: Path) -> None:
    """Join one package per length into one whose functions share their weights; the longest is the default."""
    import coremltools as ct

    parts = out / "parts"
    descriptor = ct.utils.MultiFunctionDescriptor()
    for length in lengths:
        part = parts / f"{length}.mlpackage"
        _convert_one(request, length).save(str(part))
        descriptor.add_function(str(part), src_function_name="main", target_function_name=f"seq_{length}")
    descriptor.default_function_name = f"seq_{lengths[-1]}"
    ct.utils.save_multifunction(descriptor, str(out / FILE))
    shutil.rmtree(parts)


def _drop_machine_facts(file: Path) -> None:
    """Fix the identifiers in the package's manifest: coremltools draws random ones, and equal models be equal files."""
    path = file / "Manifest.json"
    manifest = json.loads(path.read_text())
    names = {"model.mlmodel": "00000000-0000-4000-8000-000000000001", "weights": "00000000-0000-4000-8000-000000000002"}
    entries = {names[Path(item["path"]).name]: item for item in manifest["itemInfoEntries"].values()}
    manifest["itemInfoEntries"] = dict(sorted(entries.items()))
    manifest["rootModelIdentifier"] = names["model.mlmodel"]
    path.write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")


def _count_ops(file: Path) -> int:
    """Return the number of operations of the longest function, constants apart."""
    package = mil.read(file)
    return max(count_operations(package.program(name)) for name in package.functions)


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


ComputeUnits = Literal["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"]
"""Members of `coremltools.ComputeUnit`: where Core ML may run a model."""


class _CoreMLSession:
    """Core ML's own runtime, on macOS."""

    def __init__(self, file: Path, signature: Signature, *, compute_units: ComputeUnits) -> None:
        import coremltools as ct

        several = len(signature.functions) > 1
        self._models = {
            function.name: ct.models.MLModel(
                str(file),
                function_name=function.name if several else None,
                compute_units=getattr(ct.ComputeUnit, compute_units),
            )
            for function in signature.functions
        }

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        result = self._models[function.name].predict(dict(inputs))
        return {tensor.name: np.asarray(result[tensor.name], np.float32) for tensor in function.outputs}

    def close(self) -> None:
        """Free the models."""
        self._models.clear()


class _InterpreterSession:
    """The reference interpreter; what the program declares half precision is rounded to it."""

    def __init__(self, file: Path, signature: Signature) -> None:
        package = mil.read(file)
        self._functions = {
            function.name: mil.Interpreter(package, function.name, precision="fp16") for function in signature.functions
        }

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        result = self._functions[function.name].run(inputs)
        return {tensor.name: result[tensor.name] for tensor in function.outputs}

    def close(self) -> None:
        """Free the constants."""
        self._functions.clear()


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a package in Core ML, which chooses its threads itself, or off macOS in the reference interpreter."""
    if no_runtime():
        return load_interpreter(file, signature)
    return load_compute_unit(file, signature, "ALL")


def load_interpreter(file: Path, signature: Signature) -> Session:
    """Open a package in the reference interpreter, on any machine."""
    return _InterpreterSession(file, signature)


def load_compute_unit(file: Path, signature: Signature, compute_units: ComputeUnits) -> Session:
    """Open a package in Core ML, on some of a machine's compute units.

    Raises:
        ToolchainError: this is not macOS.
    """
    reason = no_runtime()
    if reason:
        raise ToolchainError(f"{file} cannot be run on {compute_units} here: {reason}")
    return _CoreMLSession(file, signature, compute_units=compute_units)


def structure(file: Path) -> Structure:
    """Read back what a package holds, as far as it can be compared with the checkpoint."""
    return read_structure(mil.read(file))


_STANDS_IN = (
    "It does not exercise Core ML's compiler, kernels and compute units, nor their speed: only a Mac or an iPhone does."
)


def evaluators() -> list[Evaluator]:
    """The reference interpreter gives the verdict everywhere; on macOS, Core ML runs on each compute unit beside it."""
    interpreter = Evaluator(
        f"PocketBERT's reference interpreter for ML Programs, version {mil.VERSION}",
        lambda file, signature, threads: load_interpreter(file, signature),
        uses_threads=False,
        stands_in=_STANDS_IN,
    )
    return [interpreter] if no_runtime() else [interpreter, *(_on(units) for units in get_args(ComputeUnits))]


def _on(units: ComputeUnits) -> Evaluator:
    return Evaluator(
        f"Core ML {units} (macOS {platform.mac_ver()[0]})",
        lambda file, signature, threads: load_compute_unit(file, signature, units),
        uses_threads=False,
    )
