"""The tools that make the files of `make foreign`, each as its own documentation shows it; called in workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.foreign_modules import LENGTH, samples

NAMES = ("input_ids", "attention_mask", "token_type_ids")


# --- LiteRT -------------------------------------------------------------------------------------------------------


def litert(module: nn.Module, count: int, out: Path) -> None:
    """`litert_torch.convert(module, samples)`: one length, int64 inputs called `args_0` and so on."""
    import litert_torch

    litert_torch.convert(module.eval(), samples(count, LENGTH)).export(str(out))


def litert_int8_dynamic(module: nn.Module, count: int, out: Path) -> None:
    """The same, and ai_edge_quantizer's recipe for weights alone, computed with dynamic int8."""
    _quantised(module, count, out, "dynamic_wi8_afp32")


def litert_int8_weights(module: nn.Module, count: int, out: Path) -> None:
    """The same, and ai_edge_quantizer's recipe for weights that are dequantised."""
    _quantised(module, count, out, "weight_only_wi8_afp32")


def litert_int8_static(module: nn.Module, count: int, out: Path) -> None:
    """The same, and ai_edge_quantizer's static recipe, calibrated on a few rows."""
    _quantised(module, count, out, "static_wi8_ai8")


def _quantised(module: nn.Module, count: int, out: Path, recipe: str) -> None:
    from ai_edge_quantizer import quantizer as quantizers
    from ai_edge_quantizer import recipe as recipes

    plain = out.with_name(f"plain-{out.name}")
    litert(module, count, plain)
    quantizer = quantizers.Quantizer(str(plain), getattr(recipes, recipe)())
    calibrated = None
    if quantizer.need_calibration:
        # litert-torch narrows the samples' int64.
        rows = [{name: one.astype("int32") for name, one in row.items()} for row in _calibration(count)]
        calibrated = quantizer.calibrate({"serving_default": rows})
    quantizer.quantize(calibrated).export_model(str(out), overwrite=True)
    plain.unlink()


def _calibration(count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(8):
        ids, mask, types = samples(3, LENGTH)
        ids = (ids * (7 + number)) % 1500 + 200
        mask[:, LENGTH - 5 * number :] = 0
        rows.append({f"args_{at}": one.numpy() for at, one in enumerate((ids, mask, types)[:count])})
    return rows


# --- Core ML ------------------------------------------------------------------------------------------------------


def coreml(module: nn.Module, count: int, out: Path) -> None:
    """`coremltools.convert` of a traced module with named int32 inputs; half precision is its default."""
    _converted(module, count).save(str(out))


def coreml_float32(module: nn.Module, count: int, out: Path) -> None:
    """The same in single precision."""
    import coremltools as ct

    _converted(module, count, compute_precision=ct.precision.FLOAT32).save(str(out))


def coreml_flexible(module: nn.Module, count: int, out: Path) -> None:
    """The same with listed lengths, in single precision."""
    import coremltools as ct

    shape = ct.EnumeratedShapes(shapes=[[1, 16], [1, LENGTH]], default=[1, LENGTH])
    # Several inputs with listed shapes need this release.
    target = ct.target.iOS18
    _converted(module, count, shape, target=target, compute_precision=ct.precision.FLOAT32).save(str(out))


def coreml_int8(module: nn.Module, count: int, out: Path) -> None:
    """The same, and coremltools.optimize's linear int8 weights."""
    import coremltools.optimize.coreml as cto

    config = cto.OptimizationConfig(
        global_config=cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=512)
    )
    cto.linear_quantize_weights(_converted(module, count), config).save(str(out))


def _converted(module: nn.Module, count: int, shape: Any = None, *, target: Any = None, **options: Any) -> Any:
    import coremltools as ct
    import numpy as np

    given = tuple(one.to(torch.int32) for one in samples(count, LENGTH))
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), given, check_trace=False)
    return ct.convert(
        traced,
        inputs=[
            ct.TensorType(name=name, shape=shape or one.shape, dtype=np.int32)
            for name, one in zip(NAMES, given, strict=False)
        ],
        minimum_deployment_target=target or ct.target.iOS16,
        **options,
    )


# --- ExecuTorch ---------------------------------------------------------------------------------------------------


def executorch(module: nn.Module, count: int, out: Path) -> None:
    """The documented lowering to XNNPACK: fp32, one length."""
    _lowered(torch.export.export(module.eval(), samples(count, LENGTH)), out)


def executorch_dynamic(module: nn.Module, count: int, out: Path) -> None:
    """The same with a free length."""
    length = torch.export.Dim("length", min=2, max=LENGTH)
    shapes = tuple({1: length} for _ in range(count))
    exported = torch.export.export(_named(module, count), samples(count, LENGTH // 2), dynamic_shapes=shapes)
    _lowered(exported, out)


def executorch_int8_dynamic(module: nn.Module, count: int, out: Path) -> None:
    """The same, and XNNPACKQuantizer with dynamic activations."""
    _xnnpack_int8(module, count, out, dynamic=True)


def executorch_int8_static(module: nn.Module, count: int, out: Path) -> None:
    """The same, and XNNPACKQuantizer with calibrated activations."""
    _xnnpack_int8(module, count, out, dynamic=False)


def _xnnpack_int8(module: nn.Module, count: int, out: Path, *, dynamic: bool) -> None:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    given = samples(count, LENGTH)
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    quantizer = XNNPACKQuantizer().set_global(config)
    prepared = prepare_pt2e(torch.export.export(module.eval(), given).module(), quantizer)
    for row in _calibration(count):
        prepared(*(torch.from_numpy(array) for array in row.values()))
    _lowered(torch.export.export(convert_pt2e(prepared), given), out)


def _lowered(exported: Any, out: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    out.write_bytes(program.buffer)


# --- ONNX ---------------------------------------------------------------------------------------------------------


class _Two(nn.Module):
    """Gives a module's inputs names of their own, for exporters that read them from the signature."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Return the module's output."""
        return self.module(input_ids, attention_mask)


class _Three(_Two):
    """The same for three inputs."""

    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> Any:
        """Return the module's output."""
        return self.module(input_ids, attention_mask, token_type_ids)


def _named(module: nn.Module, count: int) -> nn.Module:
    return (_Three if count == 3 else _Two)(module).eval()


def onnx(module: nn.Module, count: int, out: Path) -> None:
    """`torch.onnx.export`, with a free length."""
    _exported(module, count, out, ["output"])


def onnx_spans(module: nn.Module, count: int, out: Path) -> None:
    """The same with the outputs of question answering."""
    _exported(module, count, out, ["start_logits", "end_logits"])


def onnx_fixed(module: nn.Module, count: int, out: Path) -> None:
    """`torch.onnx.export` with one length and names that say nothing."""
    torch.onnx.export(
        module.eval(),
        samples(count, LENGTH),
        str(out),
        input_names=[f"x{number}" for number in range(count)],
        output_names=["y"],
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def onnx_int8(module: nn.Module, count: int, out: Path) -> None:
    """The same as `onnx`, and onnxruntime's dynamic int8 with a scale for each column of a weight."""
    _dynamic_int8(module, count, out, per_channel=True)


def onnx_int8_default(module: nn.Module, count: int, out: Path) -> None:
    """The same as `onnx`, and onnxruntime's dynamic int8 as it is: one scale for each weight."""
    _dynamic_int8(module, count, out)


def _dynamic_int8(module: nn.Module, count: int, out: Path, **options: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = out.with_name(f"plain-{out.name}")
    _exported(module, count, plain, ["output"])
    quantize_dynamic(plain, out, weight_type=QuantType.QInt8, **options)
    plain.unlink()


def _exported(module: nn.Module, count: int, out: Path, outputs: Sequence[str]) -> None:
    length = torch.export.Dim("length", min=2, max=128)
    torch.onnx.export(
        _named(module, count),
        samples(count, 24),
        str(out),
        input_names=list(NAMES[:count]),
        output_names=list(outputs),
        dynamic_shapes=tuple({1: length} for _ in range(count)),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
