"""LiteRT's toolchain: exported by litert-torch, quantised by ai-edge-quantizer, and written with shared constants.

The longest length is `serving_default`, the convention of the ecosystem; the others are `seq_<length>`.
"""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline import tasks
from pipeline.errors import ToolchainError
from pipeline.formats import ConvertRequest, native_log_hidden, replaced
from pipeline.formats.litert import passes
from pipeline.formats.litert.deduplicate import share_constants
from pipeline.formats.litert.reader import constant_dtypes
from pipeline.formats.signature import prefixed
from pipeline.schemes import SCHEMES

VERSION = 2
FILE = "model.tflite"
DISTRIBUTIONS = ("ai-edge-litert", "litert-torch", "ai-edge-quantizer", "torch", "transformers")
BASE_SCHEME: str | None = "fp32"
DEFAULT_SIGNATURE = "serving_default"


def lengths_in_file(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return all lengths: each is a function of its own."""
    return lengths


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one file with a signature per length and head.

    Raises:
        ToolchainError: the quantizer changed no weight, or an integer weight of the checkpoint is not in the file.
    """
    file = out / FILE
    with TemporaryDirectory(dir=out) as scratch, _quiet():
        source = Path(scratch) / "source.tflite"
        if request.scheme == BASE_SCHEME:
            _export(request, source)
        elif request.scheme in _OF_INTEGERS:
            _export_integers(request, source)
        else:
            # A checkpoint that was quantised for the scheme has numbers of its own, so no other file is its base.
            base = request.base or Path(scratch) / "base.tflite"
            if request.base is None:
                _export(request, base)
            _quantize(base, source, request.scheme)
        share_constants(source, file, one_scale=SCHEMES[request.scheme].one_scale)
    stored = SCHEMES[request.scheme].weights.upper()
    # Integer weights were each looked for, and all may have 8 bits.
    if request.scheme not in _OF_INTEGERS and stored not in constant_dtypes(file):
        raise ToolchainError(
            f"the LiteRT quantizer left no {stored} constant for {request.scheme}: it matched no operation."
        )
    return {"lengths": list(request.lengths)}


def signature_name(length: int, lengths: Sequence[int], head: str | None = None) -> str:
    """Return the name of a length's signature; the longest is the default one."""
    return prefixed(DEFAULT_SIGNATURE if length == max(lengths) else f"seq_{length}", head)


def function_names(request: ConvertRequest, head: str | None) -> tuple[str, ...]:
    """Return the names of a head's signatures, shortest first."""
    return tuple(signature_name(length, request.lengths, head) for length in request.lengths)


@contextlib.contextmanager
def _int8_between_pairs() -> Iterator[None]:
    """Make litert-torch 0.10 keep int8 between pairs of `quantize` and `dequantize`.

    Its converter can, and it asks for it only where PT2E's quantiser made the graph: else the pairs become float
    arithmetic. Strict, since otherwise constants between other operations are folded to floats.
    """
    from litert_torch._convert import litert_converter

    extension: Any = litert_converter.converter_api_ext
    make = extension.ConvertToTFLConfig

    def config() -> Any:
        found = make()
        found.qdq_conversion_mode, found.strict_qdq_mode = "STATIC", True
        return found

    with replaced(extension, "ConvertToTFLConfig", config):
        yield


def _export(request: ConvertRequest, path: Path, change: Callable[[Any], object] | None = None) -> None:
    """Convert the student in single precision.

    Args:
        request: the conversion.
        path: the file to write.
        change: puts pairs of `quantize` and `dequantize` into the model; by default there are none, except around
            linears with ranges in a static scheme.
    """
    import litert_torch

    from pipeline.checkpoint import ranges, static
    from pipeline.checkpoint.loading import example_inputs, export_graph, input_names, named_outputs

    if SCHEMES[request.scheme].activations == "static_int8":
        change = partial(static.insert, ranges=ranges.read(request.student), weights="floats")
    converter: Any = litert_torch
    # The converter stores equal constants once, so the heads' encoders become one.
    for head, own in request.every_head():
        loaded = export_graph(own.student, tasks.get(own.task), longest=own.lengths[-1])
        if change is not None:
            change(loaded.model)
        graph = named_outputs(loaded)
        names = input_names(own.student)
        # Longest first: the runtime's whole-file calls see the first subgraph only.
        for length in sorted(own.lengths, reverse=True):
            samples = dict(zip(names, example_inputs(names, length), strict=True))
            converter = converter.signature(signature_name(length, own.lengths, head), graph, sample_kwargs=samples)
    with passes.fewer(), contextlib.nullcontext() if change is None else _int8_between_pairs():
        converter.convert().export(str(path))


def _export_integers(request: ConvertRequest, path: Path) -> None:
    """Convert a student with integer weights, keeping their codes and scales."""
    from pipeline.checkpoint.integers import read
    from pipeline.formats.litert import integers

    chosen = read(request.student)
    pairs = path.with_suffix(".pairs.tflite")
    _export(request, pairs, partial(integers.insert, integers=chosen))
    integers.put_in(pairs, path, chosen)


def _quantize(source: Path, path: Path, scheme: str) -> None:
    """Quantise a float file for a scheme; the quantizer's defaults cover linears and embedding tables."""
    from ai_edge_quantizer import quantizer

    named = path.with_suffix(".named.tflite")
    share_constants(source, named, unique_names=True)
    quantizer.Quantizer(str(named), _RECIPES[scheme]()).quantize().export_model(str(path))


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


def _weight_only_recipe() -> Any:
    from ai_edge_quantizer import recipe

    return recipe.weight_only_wi8_afp32()


def _dynamic_recipe() -> Any:
    from ai_edge_quantizer import recipe

    return recipe.dynamic_wi8_afp32()


def _tables_recipe() -> Any:
    """Return a recipe for embedding tables only: linears are already int8, or stay in floats."""
    from ai_edge_quantizer import qtyping, recipe

    (everything,) = recipe.dynamic_wi8_afp32()
    return [{**everything, "operation": qtyping.TFLOperationName.EMBEDDING_LOOKUP}]


def _tables_of_one_scale_recipe() -> Any:
    """Return a recipe for embedding tables only, with one scale per table."""
    from ai_edge_quantizer import qtyping

    (tables,) = _tables_recipe()
    config = {**tables["op_config"]}
    config["weight_tensor_config"] = {
        **config["weight_tensor_config"],
        "granularity": qtyping.QuantGranularity.TENSORWISE,
    }
    return [{**tables, "op_config": config}]


_RECIPES: Mapping[str, Callable[[], Any]] = {
    "fp16": _fp16_recipe,
    "int8_weight_only": _weight_only_recipe,
    "int8_dynamic": _dynamic_recipe,
    "int8_static": _tables_recipe,
    "int8_static_per_tensor": _tables_of_one_scale_recipe,
}
"""Recipe for the quantizer, by scheme."""
_OF_INTEGERS = frozenset({"int4_dynamic"})
"""Schemes with integer weights from the checkpoint."""
CONVERTS = frozenset({"fp32", *_RECIPES, *_OF_INTEGERS})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tools' progress bars and size tables out of the log."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def operations(file: Path) -> dict[str, int]:
    """Count all operations of the longest signature, and those of them that run inside XNNPACK.

    A delegated operation keeps its node but is not run any more: walking back from the outputs, a tensor that a
    DELEGATE node makes is made there, and what else is reached runs on the built-in kernels.
    """
    from ai_edge_litert.interpreter import Interpreter

    with native_log_hidden():
        interpreter = Interpreter(model_path=str(file), num_threads=1)
        total = interpreter._interpreter.NumNodes()
        interpreter.allocate_tensors()
    native = interpreter._interpreter
    # DELEGATE nodes are appended, so the later maker of a tensor is the one that runs.
    maker = {int(tensor): node for node in range(native.NumNodes()) for tensor in native.NodeOutputs(node)}
    waiting = [int(tensor) for tensor in native.OutputIndices()]
    visited: set[int] = set()
    left: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor in visited or tensor not in maker:
            continue
        visited.add(tensor)
        if native.NodeName(maker[tensor]) != "DELEGATE":
            left.add(maker[tensor])
        waiting.extend(int(source) for source in native.NodeInputs(maker[tensor]))
    return {"ops_total": total, "ops_delegated": total - len(left)}
