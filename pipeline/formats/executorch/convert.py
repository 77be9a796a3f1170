"""ExecuTorch's toolchain: quantised by torchao, exported with a free length, and lowered to XNNPACK.

A `.pte` stores neither names nor the lower bound of a length; constant methods beside `forward` carry them:
`get_input_names`, `get_output_names`, `get_min_seq_len`, and by ExecuTorch's own convention `get_max_seq_len` and
`get_vocab_size`. Another head NAME has its method `NAME_forward`, and `NAME_get_output_names`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.checkpoint import integers as stored_integers
from pipeline.formats import ConvertRequest
from pipeline.formats.executorch import integers, passes
from pipeline.formats.executorch.facts import METHOD, OUTPUT_NAMES, SHORTEST
from pipeline.formats.signature import prefixed
from pipeline.schemes import SCHEMES

VERSION = 2
FILE = "model.pte"
DISTRIBUTIONS = ("executorch", "torchao", "torch", "transformers")
BASE_SCHEME: str | None = None


def lengths_in_file(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest length: the length is free, and only its upper bound is in the file."""
    return lengths[-1:]


def convert(request: ConvertRequest, out: Path) -> dict[str, Any]:
    """Write one file with a dynamic length, and a method per head."""
    import torch

    from pipeline.checkpoint.loading import input_names

    methods: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    vocabulary = 0
    for head, own in request.every_head():
        methods[prefixed(METHOD, head)], vocabulary = _exported(own)
        outputs[prefixed(OUTPUT_NAMES, head)] = list(tasks.get(own.task).output_names)
    # The encoder is one, so what describes its inputs is there once.
    constants: dict[str, Any] = {
        "get_input_names": list(input_names(request.student)),
        **outputs,
        "get_min_seq_len": SHORTEST,
        "get_max_seq_len": request.lengths[-1],
        "get_vocab_size": vocabulary,
    }
    with torch.no_grad(), passes.fewer():
        program, total, delegated = _lower(methods, request.scheme, constants)
    (out / FILE).write_bytes(program)
    if SCHEMES[request.scheme].chosen:
        integers.check(out / FILE, stored_integers.read(request.student))
    return {"lengths": None, "ops_total": total, "ops_delegated": delegated}


def function_names(request: ConvertRequest, head: str | None) -> tuple[str, ...]:
    """Return the name of a head's one method."""
    return (prefixed(METHOD, head),)


def _exported(request: ConvertRequest) -> tuple[Any, int]:
    """Return the exported program of a student in a scheme, and the size of its vocabulary."""
    import torch

    from pipeline.checkpoint.loading import example_inputs, export_graph, input_names

    longest = request.lengths[-1]
    graph = export_graph(request.student, tasks.get(request.task), longest=longest, index_dtype=torch.int64)
    _quantize(graph, request.scheme, request.student)
    names = input_names(request.student)
    seq = torch.export.Dim("seq", min=SHORTEST, max=longest)
    with torch.no_grad():
        samples = example_inputs(names, max(SHORTEST, longest // 2))
        exported = torch.export.export(graph, samples, dynamic_shapes=tuple({1: seq} for _ in names))
    return exported, int(graph.model.config.vocab_size)


def operations(file: Path) -> dict[str, int]:
    """Return nothing: a delegate's blob has XNNPACK's own nodes, not the graph's operations that it took over."""
    return {}


def _quantize(graph: Any, scheme: str, student: Path) -> None:
    """Quantise embedding tables and linears; activations to int8 where the scheme says so."""
    import torch
    from torchao.quantization import quantize_

    linears = _LINEARS[scheme]
    if linears is None:
        return
    for module in graph.modules():
        if isinstance(module, torch.nn.Embedding):
            # The fusion into ExecuTorch's embedding kernel has no form with a padding index.
            module.padding_idx = None
    if not SCHEMES[scheme].chosen:
        quantize_(graph, _weight_only(), filter_fn=_once(torch.nn.Embedding))
    linears(graph, student)


def _weight_only() -> Any:
    import torch
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis

    return IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))


def _weight_only_linears(graph: Any, _: Path) -> None:
    import torch
    from torchao.quantization import quantize_

    _move_biases_out(graph, {})
    quantize_(graph, _weight_only(), filter_fn=_once(torch.nn.Linear))


def _dynamic_linears(graph: Any, _: Path) -> None:
    import torch
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, quantize_

    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))
    quantize_(graph, config, filter_fn=_once(torch.nn.Linear))


def _static_linears(graph: Any, student: Path) -> None:
    """Convert linears with ranges to int8; the others are heads, which stay in floats."""
    from pipeline.checkpoint import ranges, static

    static.insert(graph.model, ranges.read(student), "codes")


def _chosen_integers(graph: Any, student: Path) -> None:
    integers.insert(graph.model, stored_integers.read(student))


_LINEARS: Mapping[str, Callable[[Any, Path], None] | None] = {
    "fp32": None,
    "int8_weight_only": _weight_only_linears,
    "int8_dynamic": _dynamic_linears,
    "int8_static": _static_linears,
    "int4_dynamic": _chosen_integers,
}
"""Quantisation of a graph's linears, by scheme; tables are quantised by weight alone, unless integers were chosen."""
CONVERTS = frozenset(_LINEARS)


def _is_weight_only(scheme: str) -> bool:
    row = SCHEMES[scheme]
    return row.weights == "int8" and row.activations == "float"


def _once(kind: type[Any]) -> Callable[[Any, str], bool]:
    """Return a filter for torchao that takes each module of a kind once; torchao meets a shared one in each layer."""
    taken: dict[int, Any] = {}

    def takes(module: Any, _: str) -> bool:
        if not isinstance(module, kind) or id(module) in taken:
            return False
        taken[id(module)] = module  # kept, so that no other gets its identity
        return True

    return takes


def _move_biases_out(module: Any, done: dict[int, Any]) -> None:
    """Replace each linear with a bias by a linear and an addition.

    XNNPACK's kernel for float activations and int8 weights takes a bias, but executorch 1.4.1 refuses to serialise one
    beside a quantised weight and a float input (`QuantParams.from_bias`).

    Args:
        module: the module whose linears are replaced.
        done: replacement of each linear, by identity: layers that share a linear share its replacement.
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


def _lower(methods: dict[str, Any], scheme: str, constants: dict[str, Any]) -> tuple[bytes, int, int]:
    """Return the file's bytes, the number of its methods' operations, and the number of those that XNNPACK took.

    Equal constants are stored once: the program's by their bytes, and XNNPACK's under a digest of theirs.
    """
    import executorch.kernels.quantized  # noqa: F401  registers the operators that the fusion emits
    from executorch.backends.xnnpack.utils.configs import get_transform_passes
    from executorch.devtools.backend_debug import get_delegation_info
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(
        methods,
        transform_passes=get_transform_passes([_quantise_activations_once]),
        partitioner=[_partitioner(weight_only=_is_weight_only(scheme))],
        constant_methods=constants,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    infos = [get_delegation_info(edge.exported_program(name).graph_module) for name in methods]
    config = ExecutorchBackendConfig(
        extract_delegate_segments=True, do_quant_fusion_and_const_prop=_LINEARS[scheme] is not None
    )
    delegated = sum(info.num_delegated_nodes for info in infos)
    total = delegated + sum(info.num_non_delegated_nodes for info in infos)
    return bytes(edge.to_executorch(config).buffer), total, delegated


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
