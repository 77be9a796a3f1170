"""ExecuTorch: one `.pte` whose method `forward` takes any length up to the longest, lowered to XNNPACK.

A `.pte` stores neither names nor the lower bound of a length; constant methods beside `forward` carry them:
`get_input_names`, `get_output_names`, `get_min_seq_len`, and by ExecuTorch's own convention `get_max_seq_len` and
`get_vocab_size`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends import ConvertRequest, Evaluator, Inputs, Outputs, Session, own_runtime
from pipeline.backends.executorch.reader import read_structure
from pipeline.backends.signature import Function, Signature, Tensor
from pipeline.backends.structure import Structure
from pipeline.errors import InputError, ToolchainError
from pipeline.schemes import SUPPORTED, Support

TITLE = "ExecuTorch"
VERSION = 1
FILE = "model.pte"
DISTRIBUTIONS = ("executorch", "torchao", "torch", "transformers")
BASE_SCHEME: str | None = None
MINIMUM_RUNTIME = "1.4.1"
"""The release that wrote the file: older runtimes are not promised to read it."""

_SHORTEST = 3
"""Bounds that torch.export accepts for every architecture; a row of [CLS] and [SEP] alone is padded by one."""
_MAGIC = b"ET12"
_SCALAR_TYPES = {3: "int32", 4: "int64", 6: "float32"}
"""executorch/exir/scalar_type.py."""


def support(scheme: str, *, minimum_ios: int) -> Support:
    """Answer for a scheme: supported, or why not."""
    if scheme == "fp16":
        return Support(
            "layer_norm in half precision is wrong in ExecuTorch 1.4.1 from 256 columns on (cosine .78 to .98)."
        )
    return SUPPORTED


def lengths_in_file(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The length is free: only its upper bound is in the file."""
    return lengths[-1:]


def no_runtime() -> str | None:
    """The runtime's wheels exist for every platform that PocketBERT runs on."""
    return None


def import_runtime() -> None:
    """Import the runtime with the kernels of quantised embedding tables, which are not in its core."""
    import executorch.kernels.quantized
    import executorch.runtime  # noqa: F401


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one file with a dynamic length."""
    import torch

    from pipeline import tasks
    from pipeline.checkpoint.loading import example_inputs, export_graph, input_names

    longest = request.lengths[-1]
    task = tasks.get(request.task)
    graph = export_graph(request.student, task, index_dtype=torch.int64)
    _quantize(graph, request.scheme)
    names = input_names(request.student)
    constants: dict[str, Any] = {
        "get_input_names": list(names),
        "get_output_names": list(task.output_names),
        "get_min_seq_len": _SHORTEST,
        "get_max_seq_len": longest,
        "get_vocab_size": int(graph.model.config.vocab_size),
    }
    seq = torch.export.Dim("seq", min=_SHORTEST, max=longest)
    with torch.no_grad():
        samples = example_inputs(names, max(_SHORTEST, longest // 2))
        exported = torch.export.export(graph, samples, dynamic_shapes=tuple({1: seq} for _ in names))
        program, total, delegated = _lower(exported, request.scheme, constants)
    (out / FILE).write_bytes(program)
    return {"lengths": None, "ops_total": total, "ops_delegated": delegated}


def _quantize(graph: Any, scheme: str) -> None:
    """Quantise embedding tables and linears per row; activations to int8 per token where the scheme says so."""
    import torch
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, PerAxis, quantize_

    if scheme == "fp32":
        return
    for module in graph.modules():
        if isinstance(module, torch.nn.Embedding):
            # The fusion into ExecuTorch's embedding kernel has no form with a padding index.
            module.padding_idx = None
    weight_only = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    dynamic = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))
    quantize_(graph, weight_only, filter_fn=_once(torch.nn.Embedding))
    if scheme == "int8_weight_only":
        _move_biases_out(graph, {})
    linear = weight_only if scheme == "int8_weight_only" else dynamic
    quantize_(graph, linear, filter_fn=_once(torch.nn.Linear))


def _once(kind: type[Any]) -> Callable[[Any, str], bool]:
    """Return torchao's filter for modules of a kind; one that layers share is met at each of its places."""
    met: dict[int, Any] = {}

    def wanted(module: Any, _: str) -> bool:
        if not isinstance(module, kind) or id(module) in met:
            return False
        met[id(module)] = module  # kept, so that no other gets its identity
        return True

    return wanted


def _move_biases_out(module: Any, done: dict[int, Any]) -> None:
    """Turn each linear with a bias into a linear and an addition.

    XNNPACK's kernel for float activations and int8 weights takes a bias, but executorch 1.4.1 refuses to serialise one
    beside a quantised weight and a float input (`QuantParams.from_bias`).

    Args:
        module: whose linears are replaced.
        done: what was made of a linear, by its identity: layers that share one share what it becomes.
    """
    import torch

    from pipeline.checkpoint.loading import BiasAfter

    for name, child in list(module.named_children()):
        if id(child) in done:
            setattr(module, name, done[id(child)])
        elif isinstance(child, torch.nn.Linear) and child.bias is not None:
            done[id(child)] = BiasAfter(child)
            setattr(module, name, done[id(child)])
        elif not isinstance(child, BiasAfter):
            _move_biases_out(child, done)


def _lower(exported: Any, scheme: str, constants: dict[str, Any]) -> tuple[bytes, int, int]:
    """Return the file's bytes, all graph operations, and how many of them XNNPACK took."""
    import executorch.kernels.quantized  # noqa: F401  registers the operators that the fusion emits
    from executorch.backends.xnnpack.utils.configs import get_transform_passes
    from executorch.devtools.backend_debug import get_delegation_info
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(
        exported,
        transform_passes=get_transform_passes([_quantise_activations_once]),
        partitioner=[_partitioner(weight_only=scheme == "int8_weight_only")],
        constant_methods=constants,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    info = get_delegation_info(edge.exported_program().graph_module)
    config = ExecutorchBackendConfig(extract_delegate_segments=True, do_quant_fusion_and_const_prop=scheme != "fp32")
    total = info.num_delegated_nodes + info.num_non_delegated_nodes
    return bytes(edge.to_executorch(config).buffer), total, info.num_delegated_nodes


def _quantise_activations_once(module: Any) -> Any:
    """Merge common subexpressions: Q, K and V quantise the same activations once, not three times (3 to 5 % faster).

    Weights are left alone: a dequantised weight that ALBERT's layers share would tie their partitions into a cycle.
    """
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    targets = {node.target for node in module.graph.nodes if "dequantize" in str(node.target)}
    packets = {getattr(target, "overloadpacket", target) for target in targets}
    return CSEPass(targets | packets)(module)


def _partitioner(*, weight_only: bool) -> Any:
    """Return XNNPACK's partitioner; for weight-only one whose linears pair float activations with int8 weights.

    The stock one of executorch 1.4.1 has no such case: it folds float weights into the file, and the result is silently
    wrong (cosine 0). Verify guards against the day that this changes.
    """
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    if not weight_only:
        return XnnpackPartitioner()

    class WeightOnlyLinear(LinearConfig):  # type: ignore[misc]  # the library is untyped
        def _get_act_deps(self, node: Any, ep: Any, precision: Any) -> tuple[bool, list[Any]]:
            return True, []

        def _get_output_deps(self, node: Any, ep: Any, precision: Any) -> tuple[bool, list[Any]]:
            return True, []

    configs = [WeightOnlyLinear if config is LinearConfig else config for config in ALL_PARTITIONER_CONFIGS]
    return XnnpackPartitioner(configs=configs)


def inspect(file: Path) -> tuple[Function, ...]:
    """Read names, types, shapes and bounds back from a file, without loading or running it.

    Raises:
        ToolchainError: the file is not a `.pte`.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary

    content = file.read_bytes()
    if content[4:8] != _MAGIC:
        raise ToolchainError(
            f"{file} is not a .pte: it has {content[4:8]!r} at byte 4, not {_MAGIC!r}. Convert it again."
        )
    plans = {plan.name: plan for plan in deserialize_pte_binary(content).program.execution_plan}
    forward = plans["forward"]
    inputs = _tensors(forward, forward.inputs, _constants(plans["get_input_names"]))
    outputs = _tensors(forward, forward.outputs, _constants(plans["get_output_names"]))
    bounds = [int(_constants(plans[f"get_{bound}_seq_len"])[0]) for bound in ("min", "max")]
    return (Function(name="forward", min_length=bounds[0], max_length=bounds[1], inputs=inputs, outputs=outputs),)


def structure(file: Path) -> Structure:
    """Read back what can be compared with the checkpoint without running the file."""
    return read_structure(file)


def _tensors(plan: Any, indices: list[int], names: list[Any]) -> tuple[Tensor, ...]:
    tensors = []
    for index, name in zip(indices, names, strict=True):
        value = plan.values[index].val
        dynamic = int(value.shape_dynamism) != 0
        shape = [None if dynamic and axis == 1 else size for axis, size in enumerate(value.sizes)]
        dtype = _SCALAR_TYPES[int(value.scalar_type)]
        tensors.append(Tensor.model_validate({"name": name, "dtype": dtype, "shape": tuple(shape)}))
    return tuple(tensors)


def _constants(plan: Any) -> list[Any]:
    """Return the numbers and strings that a constant method gives."""
    values = [plan.values[index].val for index in plan.outputs]
    return [value.int_val if hasattr(value, "int_val") else value.string_val for value in values]


class _ExecuTorchSession:
    """A loaded `.pte`. The thread count belongs to the process: the session opened last sets it for all."""

    def __init__(self, file: Path, *, threads: int) -> None:
        import_runtime()
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        with _native_noise_dropped():
            portable_lib._unsafe_reset_threadpool(threads)
        try:
            # The program has to outlive its methods.
            self._program = Runtime.get().load_program(file)
            self._method = self._program.load_method("forward")
            self._vocabulary = int(self._program.load_method("get_vocab_size").execute([])[0])
        except RuntimeError as error:
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
            results = self._method.execute(rows)
        except RuntimeError as error:
            shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in inputs.items())
            raise InputError(f"{function.name} refused {shapes}: {error}") from error
        return {tensor.name: result.numpy() for tensor, result in zip(function.outputs, results, strict=True)}

    def close(self) -> None:
        """Free the method, then the program."""
        del self._method, self._program


@contextlib.contextmanager
def _native_noise_dropped() -> Iterator[None]:
    """Drop nine lines that cpuinfo and the thread pool write to descriptor 2 at first use; no setting stops them."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a file in ExecuTorch.

    Raises:
        ToolchainError: the runtime is absent or too old, or the file is not a program.
    """
    from pipeline.convert.model import require_version

    require_version("executorch", MINIMUM_RUNTIME)
    return _ExecuTorchSession(file, threads=threads)


def evaluators() -> list[Evaluator]:
    """The runtime itself."""
    return own_runtime("executorch")
