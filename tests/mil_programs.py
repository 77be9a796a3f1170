"""Core ML packages for the tests of `pipeline.mil`, built with coremltools in a worker."""

import functools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm import session

from pipeline.execution.worker import Worker


def in_worker(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker that other tests use as well: coremltools takes some ten seconds to import."""
    with session().one(_log()) as worker:
        return worker.call(function, *arguments)


def schema_orders() -> dict[str, bool]:
    """Return whether the schema was coremltools' own, loaded before and after it, and came without it.

    Has to be the first that a process does.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        with Worker(_log()) as worker:
            return worker.call(_load_schema_in_both_orders)


@functools.cache
def _log() -> Path:
    return Path(tempfile.mkdtemp(prefix="pocketbert-mil-")) / "coremltools.log"


def _load_schema_in_both_orders() -> dict[str, bool]:
    """Load the schema, then coremltools, then the schema again; has to be the first that a process does."""
    from pipeline.mil.package import model_class

    first = model_class()
    alone = "coremltools" not in sys.modules
    from coremltools.proto import Model_pb2

    model_class.cache_clear()
    return {"alone": alone, "before": first is Model_pb2.Model, "after": model_class() is Model_pb2.Model}


@dataclass(frozen=True)
class Call:
    """One operation with its arguments: tensors that are computed, and constants."""

    op: str
    name: str
    tensors: dict[str, Any]
    constants: dict[str, Any]


def write_calls(calls: list[Call], out: Path, precision: str = "fp32", ios: int = 18) -> None:
    """Write one program that makes each call on inputs of its own, `<name>__<parameter>`; passes change nothing."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    inputs = {name: array for call in calls for name, array in input_arrays(call).items()}
    kinds = {"f": types.fp32, "i": types.int32, "b": types.int32}
    specs = {name: mb.TensorSpec(array.shape, kinds[array.dtype.kind]) for name, array in inputs.items()}

    def body(**given):
        results = []
        for call in calls:
            arguments = dict(call.constants)
            for parameter, value in call.tensors.items():
                if parameter == "values":
                    arguments[parameter] = [given[f"{call.name}__{i}"] for i in range(len(value))]
                else:
                    variable = given[f"{call.name}__{parameter}"]
                    whole = np.asarray(value).dtype.kind == "b"
                    arguments[parameter] = mb.cast(x=variable, dtype="bool") if whole else variable
            found = getattr(mb, call.op)(**arguments)
            for index, value in enumerate(found if isinstance(found, list | tuple) else [found]):
                plain = value if value.dtype in (types.fp32, types.int32) else mb.cast(x=value, dtype="int32")
                results.append(mb.identity(x=plain, name=f"{call.name}__out{index}"))
        return tuple(results)

    # The builder reads a function's parameter names.
    names = ", ".join(specs)
    scope = {"body": body}
    exec(f"def main({names}): return body({', '.join(f'{n}={n}' for n in specs)})", scope)
    target = getattr(ct.target, f"iOS{ios}")
    program = mb.program(input_specs=list(specs.values()), opset_version=target)(scope["main"])
    _convert(program, out, precision, target, ct.PassPipeline.EMPTY if precision == "fp32" else None)


def _convert(program: Any, out: Path, precision: str, target: Any, passes: Any) -> None:
    _converted(program, precision, target, passes).save(str(out))


def _converted(program: Any, precision: str, target: Any, passes: Any) -> Any:
    import coremltools as ct

    options = {"pass_pipeline": passes} if passes else {}
    width = ct.precision.FLOAT16 if precision == "fp16" else ct.precision.FLOAT32
    return ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=target,
        compute_precision=width,
        skip_model_load=True,
        **options,
    )


def input_arrays(call: Call) -> dict[str, np.ndarray]:
    """Return what a call's tensors are named and hold as inputs of its program."""
    arrays: dict[str, np.ndarray] = {}
    for parameter, value in call.tensors.items():
        if parameter == "values":
            arrays |= {f"{call.name}__{i}": np.asarray(array) for i, array in enumerate(value)}
        else:
            arrays[f"{call.name}__{parameter}"] = np.asarray(value)
    return {name: array.astype(np.int32) if array.dtype.kind in "bi" else array for name, array in arrays.items()}


COMPRESSIONS: dict[str, tuple[int, list[tuple[str, dict[str, Any]]], bool]] = {
    "int8 per channel": (16, [("quantize", {"mode": "linear_symmetric", "dtype": "int8"})], False),
    "uint8 per channel": (16, [("quantize", {"mode": "linear", "dtype": "uint8"})], False),
    "int8 per tensor": (16, [("quantize", {"mode": "linear", "dtype": "int8", "granularity": "per_tensor"})], False),
    "palette of 1 bit": (16, [("palettize", {"mode": "uniform", "nbits": 1})], False),
    "palette of 2 bits": (16, [("palettize", {"mode": "uniform", "nbits": 2})], False),
    "palette of 4 bits": (16, [("palettize", {"mode": "kmeans", "nbits": 4})], False),
    "palette of 6 bits": (16, [("palettize", {"mode": "uniform", "nbits": 6})], False),
    "palette of 8 bits": (16, [("palettize", {"mode": "uniform", "nbits": 8})], False),
    "sparse": (16, [("prune", {"target_sparsity": 0.6})], False),
    "int8 per block": (18, [("quantize", {"dtype": "int8", "granularity": "per_block", "block_size": 8})], False),
    "int4 per block": (18, [("quantize", {"dtype": "int4", "granularity": "per_block", "block_size": 16})], False),
    "int4 per channel": (18, [("quantize", {"dtype": "int4"})], False),
    "uint4 per block": (
        18,
        [("quantize", {"mode": "linear", "dtype": "uint4", "granularity": "per_block", "block_size": 8})],
        False,
    ),
    "palettes of groups, 3 bits": (
        18,
        [
            (
                "palettize",
                {"mode": "kmeans", "nbits": 3, "granularity": "per_grouped_channel", "group_size": 8},
            )
        ],
        False,
    ),
    "palette of vectors": (18, [("palettize", {"mode": "kmeans", "nbits": 4, "cluster_dim": 2})], False),
    "palette with scales": (
        18,
        [("palettize", {"mode": "kmeans", "nbits": 4, "enable_per_channel_scale": True})],
        False,
    ),
    "sparse, iOS 18": (18, [("prune", {"target_sparsity": 0.6})], False),
    "sparse int8": (
        18,
        [("prune", {"target_sparsity": 0.6}), ("quantize", {"mode": "linear_symmetric", "dtype": "int8"})],
        True,
    ),
    "sparse int4": (18, [("prune", {"target_sparsity": 0.6}), ("quantize", {"dtype": "int4"})], True),
    "sparse palette": (18, [("prune", {"target_sparsity": 0.6}), ("palettize", {"mode": "kmeans", "nbits": 4})], True),
    "palette of int8": (
        18,
        [
            ("palettize", {"mode": "kmeans", "nbits": 4}),
            ("quantize", {"mode": "linear_symmetric", "dtype": "int8", "granularity": "per_tensor"}),
        ],
        True,
    ),
}
"""Deployment target, steps of `coremltools.optimize`, and whether a step compresses what the one before left."""


def write_compressed(out: Path, precision: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Write a package per compression, and return what coremltools decodes each weight to; None where it cannot."""
    return {name: _compressed(out / f"{name}.mlpackage", precision, *COMPRESSIONS[name]) for name in names}


def _compressed(out: Path, precision: str, ios: int, steps: list[tuple[str, dict[str, Any]]], joint: bool) -> Any:
    import coremltools.optimize.coreml as cto

    model = _weights(precision, ios)
    kinds = {
        "quantize": (cto.OpLinearQuantizerConfig, cto.linear_quantize_weights),
        "palettize": (cto.OpPalettizerConfig, cto.palettize_weights),
        "prune": (cto.OpMagnitudePrunerConfig, cto.prune_weights),
    }
    for index, (step, options) in enumerate(steps):
        config, apply = kinds[step]
        settings = cto.OptimizationConfig(global_config=config(weight_threshold=100, **options))
        model = apply(model, settings, joint_compression=True) if joint and index else apply(model, settings)
    model.save(str(out))
    return _decoded(model)


def _decoded(model: Any) -> dict[str, Any]:
    """Return what coremltools' own decoders make of each output of a `constexpr_*` operation."""
    found: dict[str, Any] = {}
    for op in model._mil_program.functions["main"].operations:
        if op.op_type.startswith("constexpr_"):
            try:
                value = op.materialized_val_inference()
            except Exception:  # coremltools 9.0 cannot evaluate a chain of them; its first link is compared alone
                value = None
            several = len(op.outputs) > 1 and value is not None
            parts = value if several else [value] * len(op.outputs)
            found |= {variable.name: _plain(part) for variable, part in zip(op.outputs, parts, strict=True)}
    return found


def _plain(value: Any) -> Any:
    """Return an array without what coremltools hangs on its type, which cannot be sent between processes."""
    return None if value is None else np.ascontiguousarray(value).view(np.dtype(value.dtype.str))


def write_weights(out: Path, precision: str, ios: int) -> None:
    """Write a program with a table, a matrix and a kernel, over tokens 0 … 47 of shape `(1, 4)`."""
    _weights(precision, ios).save(str(out))


@functools.cache
def _weights(precision: str, ios: int) -> Any:
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    table, matrix, kernel = weight_arrays()
    target = getattr(ct.target, f"iOS{ios}")

    @mb.program(input_specs=[mb.TensorSpec((1, 4), types.int32)], opset_version=target)
    def program(tokens):
        rows = mb.gather(x=table, indices=tokens, axis=0)
        wide = mb.linear(x=rows, weight=matrix, bias=np.arange(64, dtype=np.float32) / 64)
        image = mb.expand_dims(x=mb.transpose(x=wide, perm=[0, 2, 1]), axes=[2])
        return mb.conv(x=image, weight=kernel, name="result")

    return _converted(program, precision, target, None)


def weight_arrays() -> list[np.ndarray]:
    """Return the table, the matrix and the kernel of `write_weights`."""
    generator = np.random.default_rng(5)
    return [generator.normal(size=shape).astype(np.float32) for shape in ((48, 32), (64, 32), (16, 64, 1, 1))]


def write_masked(out: Path) -> None:
    """Write attention over scores `(1, 4)` whose mask is as low as single precision goes: −inf in half precision."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    lowest = np.finfo(np.float32).min

    @mb.program(input_specs=[mb.TensorSpec((1, 4)), mb.TensorSpec((1, 4))], opset_version=ct.target.iOS16)
    def program(scores, mask):
        hidden = mb.mul(x=mb.sub(x=1.0, y=mask), y=lowest, name="hidden")
        return mb.softmax(x=mb.add(x=mb.mul(x=scores, y=2.0), y=hidden), axis=-1, name="shares")

    _convert(program, out, "fp16", ct.target.iOS16, None)


def write_small(out: Path) -> None:
    """Write a program that adds 2^-20, which is subnormal in half precision, to `x` of shape `(1, 4)`."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((1, 4))], opset_version=ct.target.iOS16)
    def program(x):
        return mb.add(x=x, y=np.float32(2.0**-20), name="result")

    _convert(program, out, "fp16", ct.target.iOS16, None)


def write_classifier(out: Path) -> None:
    """Write a classifier of three labels over logits `(1, 3)`."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((1, 3))], opset_version=ct.target.iOS16)
    def program(logits):
        return mb.softmax(x=logits, axis=-1)

    labels = ct.ClassifierConfig(["no", "so so", "yes"])
    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS16,
        classifier_config=labels,
        skip_model_load=True,
    )
    model.save(str(out))


def write_flexible(student: Path, out: Path) -> None:
    """Write an embedding student with the lengths 8, 16 and 24 enumerated."""
    import coremltools as ct
    import torch

    from pipeline import tasks
    from pipeline.checkpoint.loading import example_inputs, export_graph, input_names

    names = input_names(student)
    length = torch.export.Dim("length", min=3, max=64)
    exported = torch.export.export(
        export_graph(student, tasks.get("embedding")),
        example_inputs(names, 16),
        dynamic_shapes=({1: length},) * len(names),
        strict=False,
    ).run_decompositions({})
    lengths = ct.EnumeratedShapes([[1, 8], [1, 16], [1, 24]], default=[1, 16])
    model = ct.convert(
        exported,
        convert_to="mlprogram",
        inputs=[ct.TensorType(name=name, shape=lengths, dtype=np.int32) for name in names],
        outputs=[ct.TensorType(name="sentence_embedding", dtype=np.float32)],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(out))
