"""ExecuTorch: one `.pte` whose method `forward` takes any length up to the longest, lowered to XNNPACK."""

from pathlib import Path
from typing import Any

from pipeline.backends import ConvertRequest, Inputs, Outputs, Session
from pipeline.quantize import SUPPORTED, Support
from pipeline.signature import Function, Signature, Tensor

TITLE = "ExecuTorch"
FILE = "model.pte"
DISTRIBUTIONS = ("executorch", "torchao", "torch", "transformers")
BASE_SCHEME: str | None = None
MINIMUM_RUNTIME = "1.4.1"

_SHORTEST = 2
"""[CLS] and [SEP]; torch.export takes 0 and 1 for special cases."""


def support(scheme: str, *, minimum_ios: int) -> Support:
    """Answer for a scheme: supported, or why not."""
    if scheme == "fp16":
        return Support(
            "layer_norm in half precision is wrong in ExecuTorch 1.4.1 from 256 columns on (cosine .78 to .98)."
        )
    if scheme == "int8_weight_only":
        return Support(
            "XNNPACK's int8 linears want int8 activations; weights alone stay a slow dequantise op in ExecuTorch 1.4.1."
        )
    return SUPPORTED


def not_runnable() -> str | None:
    """The runtime's wheels exist for every platform that PocketBERT runs on."""
    return None


def import_runtime() -> None:
    """Import the runtime, so that opening a file can be timed without it."""
    import executorch.kernels.quantized
    import executorch.runtime  # noqa: F401


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one file with a dynamic length."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.utils.configs import get_transform_passes
    from executorch.devtools.backend_debug import get_delegation_info
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    from pipeline import tasks
    from pipeline.checkpoint import example_inputs, export_graph, input_names

    graph = export_graph(request.student, tasks.get(request.task), index_dtype=torch.int64)
    int8 = request.scheme == "int8_dynamic"
    if int8:
        _quantize(graph)
    names = input_names(request.student)
    seq = torch.export.Dim("seq", min=_SHORTEST, max=request.lengths[-1])
    with torch.no_grad():
        exported = torch.export.export(
            graph, example_inputs(names, request.lengths[-1]), dynamic_shapes=({1: seq},) * len(names)
        )
    edge = to_edge_transform_and_lower(
        exported,
        transform_passes=get_transform_passes(),
        partitioner=[XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    info = get_delegation_info(edge.exported_program().graph_module)
    program = edge.to_executorch(
        ExecutorchBackendConfig(extract_delegate_segments=True, do_quant_fusion_and_const_prop=int8)
    )
    with (out / FILE).open("wb") as handle:
        program.write_to_file(handle)
    total = info.num_delegated_nodes + info.num_non_delegated_nodes
    return {"lengths": None, "ops_total": total, "ops_delegated": info.num_delegated_nodes, "input_names": list(names)}


def _quantize(graph: Any) -> None:
    """Quantise linears per row with dynamic activations, and embedding tables per row."""
    import torch
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, PerAxis, quantize_

    for module in graph.modules():
        if isinstance(module, torch.nn.Embedding):
            # The fusion into ExecuTorch's embedding kernel has no form with a padding index.
            module.padding_idx = None
    rows = PerAxis(0)
    quantize_(
        graph,
        IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=rows),
        lambda m, _: isinstance(m, torch.nn.Embedding),
    )
    quantize_(
        graph,
        Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=rows),
        lambda m, _: isinstance(m, torch.nn.Linear),
    )


def inspect(file: Path) -> tuple[Function, ...]:
    """Read the methods back from a file."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(file)
    meta = program.load_method("forward").metadata
    names = ("input_ids", "attention_mask", "token_type_ids")[: meta.num_inputs()]
    inputs = tuple(Tensor(name=name, dtype="int32", shape=(1, None)) for name in names)
    longest = meta.input_tensor_meta(0).sizes()[1]
    output = meta.output_tensor_meta(0)
    outputs = (Tensor(name="sentence_embedding", dtype="float32", shape=tuple(output.sizes())),)
    return (Function(name="forward", min_length=_SHORTEST, max_length=longest, inputs=inputs, outputs=outputs),)


class _ExecuTorchSession:
    def __init__(self, file: Path, *, threads: int) -> None:
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        portable_lib._unsafe_reset_threadpool(threads)
        self._program = Runtime.get().load_program(file)
        self._methods: dict[str, Any] = {}

    def run(self, function: Function, inputs: Inputs) -> Outputs:
        """Run one function, see `Session`."""
        import torch

        if function.name not in self._methods:
            self._methods[function.name] = self._program.load_method(function.name)
        tensors = [torch.from_numpy(inputs[tensor.name]) for tensor in function.inputs]
        results = self._methods[function.name].execute(tensors)
        return {tensor.name: result.numpy().copy() for tensor, result in zip(function.outputs, results, strict=True)}

    def close(self) -> None:
        """Free the program."""
        self._methods.clear()


def load(file: Path, signature: Signature, *, threads: int) -> Session:
    """Open a file in ExecuTorch."""
    return _ExecuTorchSession(file, threads=threads)
