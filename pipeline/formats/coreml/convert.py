"""Core ML's toolchain: ML Programs in `.mlpackage`, converted and compressed by coremltools on any machine."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import mil, tasks
from pipeline.formats import ConvertRequest, sparsity
from pipeline.formats.coreml import passes, quantised
from pipeline.formats.signature import prefixed
from pipeline.mil.listing import count_operations
from pipeline.mil.values import SMALLEST_NORMAL
from pipeline.schemes import FUNCTIONS_FROM_IOS, NEWEST_IOS, SCHEMES

VERSION = 7
FILE = "model.mlpackage"
DISTRIBUTIONS = ("coremltools", "torch", "transformers")
BASE_SCHEME: str | None = None

_EPSILONS_IN_FP32_FROM_IOS = 17
SPECIFICATION = "Data/com.apple.CoreML/model.mlmodel"
_CONVERSION_DATE = "com.github.apple.coremltools.conversion_date"
METADATA_PREFIX = "com.pocketbert."
_MAIN = "main"
"""Name of the function in a package of one."""


def lengths_in_file(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return all lengths: each is a function of its own."""
    return lengths


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one package: from iOS 18 on with a function per length and head, else with the longest length only."""
    ios = request.minimum_ios or NEWEST_IOS
    lengths = _lengths(request)
    dropped = [length for length in request.lengths if length not in lengths]
    file = out / FILE
    with passes.fewer():
        if _is_single(request):
            _convert_one(request, lengths[0], ios).save(str(file))
        else:
            _merge(request, lengths, ios, out)
    _describe(file, request)
    _fix_identifiers(file)
    metrics: dict[str, Any] = {"lengths": list(lengths)}
    if dropped:
        metrics["lengths_left_out"] = dropped
        metrics["lengths_left_out_reason"] = (
            f"several lengths in one package need iOS {FUNCTIONS_FROM_IOS}; minimum_ios is {ios}"
        )
    return metrics


def _lengths(request: ConvertRequest) -> tuple[int, ...]:
    """Return the lengths that the package has functions for."""
    several = (request.minimum_ios or NEWEST_IOS) >= FUNCTIONS_FROM_IOS
    return request.lengths if several else request.lengths[-1:]


def _is_single(request: ConvertRequest) -> bool:
    return len(_lengths(request)) == 1 and not request.heads


def function_names(request: ConvertRequest, head: str | None) -> tuple[str, ...]:
    """Return the names of a head's functions, shortest first; a single function of a package is called `main`."""
    if _is_single(request):
        return (_MAIN,)
    return tuple(prefixed(f"seq_{length}", head) for length in _lengths(request))


def _convert_one(request: ConvertRequest, length: int, ios: int) -> Any:
    """Return a Core ML model for one fixed length."""
    scheme = SCHEMES[request.scheme]
    support = scheme.support["coreml"]
    static = scheme.activations == "static_int8"
    model = _float_model(request.student, request.task, support.base.upper(), length, request.lengths[-1], ios, static)
    sparse = support.sparse_ios is not None and ios >= support.sparse_ios
    sparse = sparse and bool(sparsity.sparse_matrices(request.student))
    if sparse:
        model = _leave_zeros_out(model)
    compress = _COMPRESSION[request.scheme]
    if compress:
        model = compress(model, sparse)
    if scheme.chosen:
        model = quantised.put_in(model, quantised.read(request.student, scheme))
    return model


@functools.lru_cache(maxsize=16)
def _float_model(
    student: Path, task_name: str, precision: str, length: int, longest: int, minimum_ios: int, static: bool
) -> Any:
    """Convert without compression. Cached for the next scheme of the same run: int8 starts from the fp16 model.

    With `static`, inputs of linears are rounded to int8 over the checkpoint's ranges.
    """
    import coremltools as ct
    import torch

    from pipeline.checkpoint.loading import example_inputs, input_names

    graph = _graph(student, task_name, longest, static)
    examples = example_inputs(input_names(student), length)
    exported = torch.export.export(graph, examples, strict=False).run_decompositions({})
    _drop_aliases(exported)
    _give_gelu_its_form(exported)
    _round_once(exported)
    _hold_floors_up(exported, half=precision == "FLOAT16", ios=minimum_ios)
    return ct.convert(
        exported,
        convert_to="mlprogram",
        compute_precision=getattr(ct.precision, precision),
        minimum_deployment_target=getattr(ct.target, f"iOS{minimum_ios}"),
        # Without a dtype, half-precision models give float16 outputs from iOS 16 on.
        outputs=[ct.TensorType(name=name, dtype=np.float32) for name in tasks.get(task_name).output_names],
        skip_model_load=True,
        pass_pipeline=passes.pipeline(),
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
    """A string with the `val` attribute of a constant node."""

    __slots__ = ()

    @property
    def val(self) -> str:
        return str(self)


def _give_gelu_its_form(exported: Any) -> None:
    """Pass gelu's form by position: coremltools 9.0 drops the keyword, and writes the erf form for tanh.

    Its `gelu` then asks the form for a `val`, as if it were a node of the graph.
    """
    import torch

    for node in exported.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default):
        if "approximate" in node.kwargs:
            node.args, node.kwargs = (node.args[0], _Form(node.kwargs["approximate"])), {}


def _round_once(exported: Any) -> None:
    """Round a tensor once for all linears that read it, such as query, key and value."""
    graph = exported.graph_module.graph
    made: dict[Any, Any] = {}
    for node in list(graph.nodes):
        if getattr(node.target, "namespace", "") != "quantized_decomposed":
            continue
        first = made.setdefault((node.target, node.args), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    exported.graph_module.recompile()


def _hold_floors_up(exported: Any, *, half: bool, ios: int) -> None:
    """Keep epsilons and lower bounds normal numbers of half precision, and `clamp` one-sided.

    coremltools rounds 1e-12 up to 2^-24, which is subnormal: on a processor that flushes it to zero, the norm of an
    embedding of padding alone is infinite after `rsqrt`, and zero times infinity is NaN. Its `clamp` has a second bound
    of infinity. Before iOS 17 the epsilon of `rsqrt` is in half precision too; there it divides by a square root.
    """
    import torch

    aten = torch.ops.aten
    graph = exported.graph_module.graph
    for node in list(graph.nodes):
        if node.target is aten.clamp.default and len(node.args) == 2 and not node.kwargs and _is_float(node):
            floor = SMALLEST_NORMAL if half and 0 < node.args[1] < SMALLEST_NORMAL else node.args[1]
            with graph.inserting_before(node):
                least = graph.call_function(aten.full.default, ([], float(floor)))
                new = graph.call_function(aten.maximum.default, (node.args[0], least))
        elif node.target is aten.rsqrt.default and half and ios < _EPSILONS_IN_FP32_FROM_IOS:
            with graph.inserting_before(node):
                one = graph.call_function(aten.full.default, ([], 1.0))
                new = graph.call_function(aten.div.Tensor, (one, graph.call_function(aten.sqrt.default, node.args)))
        else:
            continue
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    exported.graph_module.recompile()


def _is_float(node: Any) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


@functools.lru_cache(maxsize=1)
def _graph(student: Path, task_name: str, longest: int, static: bool) -> Any:
    """Return the student's graph for export, loaded once for all lengths."""
    from pipeline.checkpoint import ranges
    from pipeline.checkpoint.loading import export_graph
    from pipeline.checkpoint.static import insert

    loaded = export_graph(student, tasks.get(task_name), longest=longest)
    if static:
        insert(loaded.model, ranges.read(student), "later")
    return loaded


def _leave_zeros_out(model: Any) -> Any:
    """Store matrices that are mostly zeros as a bit mask and the nonzero numbers."""
    import coremltools.optimize as cto

    config = cto.coreml.OpThresholdPrunerConfig(
        minimum_sparsity_percentile=sparsity.LEAST, weight_threshold=sparsity.SMALL
    )
    return passes.compress(model, "prune_weights", {"global_config": config}, joint=False)


def _compress_int8(model: Any, sparse: bool) -> Any:
    """Store all weights and tables as int8 with a scale per row; small ones stay in floats.

    So do those that would get one scale for all rows: positions, which were folded to `(1, length, hidden)`. As int8
    they were most of a file's error (MiniLM at 32 tokens: mean cosine .9980, and .9994 with them in fp16).

    Args:
        model: a model of coremltools.
        sparse: whether some weights are stored sparsely, which then become int8 too.
    """
    import coremltools.optimize as cto

    config = cto.coreml.OpLinearQuantizerConfig(
        mode="linear_symmetric", granularity="per_channel", weight_threshold=2048
    )
    options = {"global_config": config, "op_name_configs": dict.fromkeys(_in_one_row(model))}
    return passes.compress(model, "linear_quantize_weights", options, joint=sparse)


_COMPRESSION: Mapping[str, Callable[[Any, bool], Any] | None] = {
    "fp32": None,
    "fp16": None,
    "int8_weight_only": _compress_int8,
    "int8_static": _compress_int8,
    "int4_weight_only": None,
    "palettize_6bit": None,
    "palettize_4bit": None,
}
"""Compression of a float model, by scheme; the float model's precision is the row's `base`. None for no compression, or
where the checkpoint has palettes or integers."""
CONVERTS = frozenset(_COMPRESSION)


def _in_one_row(model: Any) -> Iterator[str]:
    """Yield the names of constants with several axes whose first axis, along which scales lie, has size 1."""
    for function in model._mil_program.functions.values():
        for operation in function.find_ops(op_type="const"):
            shape = operation.outputs[0].shape
            if len(shape) > 1 and shape[0] == 1:
                yield operation.name


def _describe(file: Path, request: ConvertRequest) -> None:
    """Fill in the metadata that Xcode shows; coremltools drops it when it joins several functions."""
    path = file / SPECIFICATION
    spec = mil.read(file).spec
    metadata = spec.description.metadata
    metadata.author = request.metadata.get("author", "")
    metadata.license = request.metadata.get("licence", "")
    metadata.shortDescription = request.metadata.get("summary", "")
    metadata.versionString = request.metadata.get("version", "")
    for key, value in request.metadata.items():
        metadata.userDefined[f"{METADATA_PREFIX}{key}"] = value
    # coremltools writes the date into single functions, and equal models have to be equal files.
    metadata.userDefined.pop(_CONVERSION_DATE, None)
    if request.labels:
        metadata.userDefined["classes"] = ",".join(request.labels)
    path.write_bytes(spec.SerializeToString(deterministic=True))


def _merge(request: ConvertRequest, lengths: tuple[int, ...], ios: int, out: Path) -> None:
    """Join one package per length and head into one whose functions share their weights.

    The longest of the student's own head is the default.
    """
    import coremltools as ct

    parts = out / "parts"
    descriptor = ct.utils.MultiFunctionDescriptor()
    for head, own in request.every_head():
        for length, name in zip(lengths, function_names(request, head), strict=True):
            part = parts / f"{name}.mlpackage"
            _convert_one(own, length, ios).save(str(part))
            descriptor.add_function(str(part), src_function_name=_MAIN, target_function_name=name)
    descriptor.default_function_name = function_names(request, None)[-1]
    ct.utils.save_multifunction(descriptor, str(out / FILE))
    shutil.rmtree(parts)


def _fix_identifiers(file: Path) -> None:
    """Fix the identifiers in the manifest: coremltools draws random ones, and equal models have to be equal files."""
    path = file / "Manifest.json"
    manifest = json.loads(path.read_text())
    names = {"model.mlmodel": "00000000-0000-4000-8000-000000000001", "weights": "00000000-0000-4000-8000-000000000002"}
    entries = {names[Path(item["path"]).name]: item for item in manifest["itemInfoEntries"].values()}
    manifest["itemInfoEntries"] = dict(sorted(entries.items()))
    manifest["rootModelIdentifier"] = names["model.mlmodel"]
    path.write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")


def operations(file: Path) -> dict[str, int]:
    """Count the operations of the longest function without constants; the iPhone decides which unit runs them."""
    package = mil.read(file)
    return {"ops_total": max(count_operations(package.program(name)) for name in package.functions)}
