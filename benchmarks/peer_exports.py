"""The files that a user gets from each toolchain's own defaults; made once, in a worker."""

from pathlib import Path

import torch
from transformers import AutoModel


class SentenceEncoder(torch.nn.Module):
    """What a user writes first: Hugging Face's model with its own mask, mean pooling and L2 norm."""

    def __init__(self, student: Path, *, attention: str = "sdpa") -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(student, attn_implementation=attention).eval()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        mask = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2, dim=1)


def _samples(length: int) -> tuple[torch.Tensor, ...]:
    ids = torch.arange(length)[None] % 1000 + 1000
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    return ids, mask, torch.zeros_like(ids)


def litert_default(student: Path, out: Path, length: int) -> None:
    """`litert_torch.convert(model, samples)`: fp32, one length."""
    import litert_torch

    encoder = SentenceEncoder(student).eval()
    litert_torch.convert(encoder, _samples(length)).export(str(out))


def executorch_default(student: Path, out: Path, length: int) -> None:
    """The documented lowering to XNNPACK: fp32, one length."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    encoder = SentenceEncoder(student).eval()
    exported = torch.export.export(encoder, _samples(length))
    program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    out.write_bytes(program.buffer)


def onnx_dynamic(student: Path, out: Path, length: int) -> None:
    """ONNX with a dynamic length up to this one, and onnxruntime's own dynamic int8 beside it as `.int8.onnx`."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    encoder = SentenceEncoder(student).eval()
    dynamic = torch.export.Dim("length", min=2, max=length)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        encoder,
        _samples(length // 2),
        str(out),
        input_names=names,
        output_names=["sentence_embedding"],
        dynamic_shapes={name: {1: dynamic} for name in names},
        dynamo=True,
        external_data=False,
    )
    quantize_dynamic(out, out.with_suffix(".int8.onnx"), per_channel=True, weight_type=QuantType.QInt8)
