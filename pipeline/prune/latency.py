"""What a head and a feed-forward row cost in milliseconds, measured in LiteRT on files of one layer.

Three files differ in the number of heads, or of rows, alone; the embeddings and all overhead cancel in the difference.
"""

import copy
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from pipeline import shapes
from pipeline.backends import ConvertRequest, litert
from pipeline.errors import ToolchainError
from pipeline.layers import layers, put
from pipeline.prune import cut, parts
from pipeline.prune.parts import Kind
from pipeline.signature import Signature

_WORDS = 128
"""Rows of the table in the small files; a look-up costs the same in any table."""
_RUNS = 60
"""The fastest of so many counts: whatever else runs on the machine only adds to it."""


def per_unit_ms(model: Any, *, length: int) -> dict[Kind, float]:
    """Return the milliseconds that one head and one feed-forward row of a layer take, on one thread.

    Args:
        model: a Hugging Face model, left as it is.
        length: tokens of the row that is timed.

    Raises:
        ToolchainError: half as many units did not take less time.
    """
    whole = _one_layer(model)
    full = _timed_ms(whole, length)
    costs: dict[Kind, float] = {}
    for number, part in enumerate(parts.outline(whole).parts):
        kept = [np.arange(one.units) for one in parts.outline(whole).parts]
        kept[number] = np.arange(max(1, part.units // 2))
        less = copy.deepcopy(whole)
        cut.units(less, parts.blocks(less), kept)
        spared = full - _timed_ms(less, length)
        if spared <= 0:
            found = f"{part.units} {part.kind} took {full:.3f} ms in LiteRT and {len(kept[number])} no less"
            raise ToolchainError(f"{found}; measure on a quiet machine, or prune by costs = 'flops'.")
        costs[part.kind] = spared / (part.units - len(kept[number]))
    return costs


def _one_layer(model: Any) -> Any:
    """Return a bare encoder with the layer that has most feed-forward rows alone, and with few words."""
    base = copy.deepcopy(model.base_model)
    found = layers(base)
    widest = max(range(len(found)), key=lambda number: found[number].feed_forward_size)
    cut.layers(base, [widest])
    table = base.get_input_embeddings()
    few = nn.Embedding.from_pretrained(table.weight.detach()[:_WORDS].clone(), freeze=False)
    put(base, next(path for path, module in base.named_modules() if module is table), few)
    base.config.vocab_size = _WORDS
    return base


def _timed_ms(model: Any, length: int) -> float:
    """Return the fastest run of a model at a length, on one thread."""
    with TemporaryDirectory() as name:
        folder, out = Path(name, "student"), Path(name, "file")
        folder.mkdir()
        out.mkdir()
        shapes.save(model, folder)
        litert.convert(
            ConvertRequest(folder, "embedding", "fp32", (length,), minimum_ios=18, base=None, metadata={}, labels=None),
            out,
        )
        return _fastest_ms(out / litert.FILE)


def _fastest_ms(file: Path) -> float:
    (function,) = litert.inspect(file)
    shape = (1, function.max_length)
    inputs = {tensor.name: np.ones(shape, np.int32) for tensor in function.inputs}
    signature = Signature(
        backend="litert",
        scheme="fp32",
        task="embedding",
        output_kind="embedding",
        file=file.name,
        minimum_runtime=litert.MINIMUM_RUNTIME,
        pad_token_id=0,
        labels=None,
        functions=(function,),
        parameters=0,
    )
    session = litert.load(file, signature, threads=1)
    try:
        return min(_once_ms(session, function, inputs) for _ in range(_RUNS))
    finally:
        session.close()


def _once_ms(session: Any, function: Any, inputs: Any) -> float:
    started = time.perf_counter()
    session.run(function, inputs)
    return (time.perf_counter() - started) * 1e3
