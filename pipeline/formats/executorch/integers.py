"""Put a checkpoint's integers into a graph with their codes and scales unchanged.

torchao has a tensor for integers of few bits, from which executorch makes XNNPACK's linears and its int8 embedding
kernel. Its own choice of scales, by a block's largest number, is not used. 4-bit tables call their kernel by name:
executorch's fusion would keep their scales in single precision, a tenth of such a table.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checkpoint.integers import HIGHEST, LOWEST, Integers
from pipeline.checkpoint.parameters import content_digest
from pipeline.errors import ToolchainError
from pipeline.formats.executorch import codes, reader

GROUP = 32
"""XNNPACK's 4-bit blocks have this many columns, or a multiple of it."""


def insert(model: Any, integers: Mapping[str, Integers]) -> None:
    """Replace a model's weights by their integers; inputs of such linears are rounded per token at run time.

    A weight is recognised by its content, the dequantised integers: patches for export rename modules.

    Args:
        model: a Hugging Face model; its weights are replaced.
        integers: integers by parameter name.

    Raises:
        ToolchainError: the model lacks a weight, or no kernel supports its integers.
    """
    import torch

    by_content: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for name, one in integers.items():
        by_content.setdefault((one.codes.shape, content_digest(one.dense())), []).append(name)
    done: dict[str, Any] = {}
    tables: dict[torch.nn.Module, Any] = {}
    for module in list(model.modules()):
        if not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            continue
        names = by_content.get((tuple(module.weight.shape), content_digest(module.weight.detach().numpy())), [])
        for name in names[:1]:
            table = isinstance(module, torch.nn.Embedding)
            _check_kernel(name, integers[name], table=table)
            few = table and integers[name].bits == 4
            if name not in done:
                made = _table(integers[name]) if few else _parameter(integers[name], table=table)
                done |= dict.fromkeys(names, made)
            if few:
                tables[module] = done[name]
            else:
                module.weight = done[name]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in tables:
                setattr(parent, name, tables[child])
    missing = sorted(integers.keys() - done)
    if missing:
        raise ToolchainError(f"the graph has no linear and no table whose weight is {missing[0]}, which has codes.")


def _table(integers: Integers) -> Any:
    """Return a module that looks up rows of 4-bit codes with scales in half precision."""
    import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401  registers the operator
    import torch

    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = torch.nn.Buffer(torch.from_numpy(codes.packed_table(integers.codes)))
            self.scales = torch.nn.Buffer(torch.from_numpy(integers.scales).half())

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            look_up = torch.ops.quantized_decomposed.embedding_4bit.dtype
            found: torch.Tensor = look_up(
                self.codes, self.scales, None, LOWEST[4], HIGHEST[4], ids, dtype=torch.float32
            )
            return found

    return Table()


def _parameter(integers: Integers, *, table: bool) -> Any:
    import torch
    from torchao.quantization import IntxUnpackedToInt8Tensor
    from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
        IntxUnpackedToInt8TensorActivationQuantization,
    )

    by_token = IntxUnpackedToInt8TensorActivationQuantization.INT8_ASYM_PER_TOKEN
    tensor = IntxUnpackedToInt8Tensor(
        qdata=torch.from_numpy(integers.codes.copy()),
        scale=torch.from_numpy(integers.scales.copy()),
        zero_point=torch.zeros(integers.scales.shape, dtype=torch.int8),
        target_dtype=getattr(torch, f"int{integers.bits}"),
        block_size=(1, integers.block),
        dtype=torch.float32,
        activation_quantization=None if table else by_token,
    )
    return torch.nn.Parameter(tensor, requires_grad=False)


def _check_kernel(name: str, integers: Integers, *, table: bool) -> None:
    """Refuse integers that executorch would leave in floats, or fail on later."""
    columns = integers.codes.shape[1]
    problem = None
    if table:
        problem = f"{columns} columns, two to a byte" if integers.bits == 4 and columns % 2 else None
    elif integers.bits == 4 and integers.block % GROUP:
        problem = f"blocks of {integers.block} columns; XNNPACK has blocks of {GROUP} and multiples"
    elif integers.bits == 8 and integers.block != columns:
        problem = f"8 bits and blocks of {integers.block} columns; XNNPACK has a scale per row there"
    if problem:
        raise ToolchainError(f"ExecuTorch has no kernel for {name}: it has {problem}.")


def check(file: Path, integers: Mapping[str, Integers]) -> None:
    """Check that a file holds each weight's integers in their bits: executorch silently skips unsupported ones.

    Raises:
        ToolchainError: a weight is in floats, or has other codes.
    """
    held = [constant for constant in reader.structure(file).constants if constant.stored in ("int4", "int8")]
    for name, one in integers.items():
        stored, values = f"int{one.bits}", one.dense()
        if not any(row.stored == stored and np.array_equal(row.values, values) for row in held):
            raise ToolchainError(
                f"{file.name} does not hold the codes of {name} {list(values.shape)} in {one.bits} bits: the toolchain "
                "left them out, or rounded anew."
            )
