"""What a head and a feed-forward row cost in milliseconds, measured in LiteRT on int8_dynamic files of one layer.

Three files differ in the number of heads, or of rows, alone; the embeddings and all overhead cancel in the difference.
In int8, which is what ships, products with weights are three times as fast as in fp32 and attention's own are not:
a head of MiniLM costs as much as 120 rows there at 128 tokens, as 81 in fp32, and as 75 by multiply-adds.
"""

import contextlib
import copy
import math
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from pipeline.backends import ConvertRequest, Inputs, Session, litert
from pipeline.backends.signature import Function, Signature
from pipeline.checkpoint import shapes
from pipeline.checkpoint.layers import layers, put
from pipeline.compress.prune import costs, cut, parts
from pipeline.compress.prune.parts import Kind, Outline
from pipeline.errors import ToolchainError

_WORDS = 128
"""Rows of the table in the small files; a look-up costs the same in any table."""
_SCHEME = "int8_dynamic"
_ROUNDS, _RUNS = 12, 5
"""Files take turns of so many runs, so that a moment in which the machine is busy is no file's alone; the fastest
counts, since whatever else runs only adds to it."""


def per_unit_ms(model: Any, *, length: int) -> dict[Kind, float]:
    """Return the milliseconds that one head and one feed-forward row of a layer take, on one thread.

    Args:
        model: a Hugging Face model, left as it is.
        length: tokens of the row that is timed.

    Raises:
        ToolchainError: half as many units did not take less time.
    """
    whole = _one_layer(model)
    found = parts.outline(whole).parts
    fewer = [max(1, part.units // 2) for part in found]
    smaller = [_with(whole, number, units) for number, units in enumerate(fewer)]
    with TemporaryDirectory() as name:
        files = [_file(one, length, Path(name, str(number))) for number, one in enumerate([whole, *smaller])]
        full, *less = _fastest_ms(files)
    measured: dict[Kind, float] = {}
    for part, units, took in zip(found, fewer, less, strict=True):
        if part.units == units:
            continue
        if took >= full:
            said = f"{part.units} {part.kind} took {full:.3f} ms in LiteRT and {units} no less"
            raise ToolchainError(f"{said}; measure on a quiet machine, or prune by costs = 'flops'.")
        measured[part.kind] = (full - took) / (part.units - units)
    return _with_single_units(measured, parts.outline(whole), length)


def _with_single_units(measured: dict[Kind, float], shape: Outline, length: int) -> dict[Kind, float]:
    """Price a kind of which the layer has one unit, that no smaller file tells, by multiply-adds beside the other."""
    adds = {part.kind: one for part, one in zip(shape.parts, costs.unit_costs(shape, length=length), strict=True)}
    if not measured:
        raise ToolchainError("the layers have one head and one row; there is nothing to time, nor to prune.")
    (known, ms), *_ = measured.items()
    return {kind: ms * adds[kind] / adds[known] for kind in parts.KINDS} | measured


def _one_layer(model: Any) -> Any:
    """Return a bare encoder with the layer that has most feed-forward rows alone, and with few words."""
    base = copy.deepcopy(model.base_model)
    found = layers(base)
    widest = max(range(len(found)), key=lambda number: found[number].intermediate_size)
    cut.layers(base, [widest])
    table = base.get_input_embeddings()
    # In front of the other factor, where it was put into two.
    table = table[0] if isinstance(table, nn.Sequential) else table
    assert isinstance(table, nn.Embedding)
    few = nn.Embedding.from_pretrained(table.weight.detach()[:_WORDS].clone(), freeze=False)
    put(base, next(path for path, module in base.named_modules() if module is table), few)
    base.config.vocab_size = _WORDS
    return base


def _with(whole: Any, number: int, units: int) -> Any:
    """Return a copy with only the first units of one part."""
    less = copy.deepcopy(whole)
    kept = [np.arange(part.units) for part in parts.outline(less).parts]
    kept[number] = np.arange(units)
    cut.units(less, parts.blocks(less), kept)
    return less


def _file(model: Any, length: int, place: Path) -> Path:
    """Write a model's file at one length, by way of the one that it is made from."""
    folder = place / "student"
    folder.mkdir(parents=True)
    shapes.save(model, folder)
    file = None
    for scheme in ("fp32", _SCHEME):
        out = place / scheme
        out.mkdir()
        request = ConvertRequest(
            folder, "embedding", scheme, (length,), minimum_ios=18, base=file, metadata={}, labels=None
        )
        litert.convert(request, out)
        file = out / litert.FILE
    assert file is not None
    return file


def _fastest_ms(files: Sequence[Path]) -> list[float]:
    """Return each file's fastest run of those that take turns."""
    fastest = [math.inf] * len(files)
    with contextlib.ExitStack() as stack:
        opened = [_open(file) for file in files]
        for session, _, _ in opened:
            stack.callback(session.close)
        for _ in range(_ROUNDS):
            for number, (session, function, inputs) in enumerate(opened):
                took = min(_once_ms(session, function, inputs) for _ in range(_RUNS))
                fastest[number] = min(fastest[number], took)
    return fastest


def _open(file: Path) -> tuple[Session, Function, Inputs]:
    (function,) = litert.inspect(file)
    inputs = {tensor.name: np.ones((1, function.max_length), np.int32) for tensor in function.inputs}
    signature = Signature(
        backend="litert",
        scheme=_SCHEME,
        task="embedding",
        output_kind="embedding",
        file=file.name,
        minimum_runtime=litert.MINIMUM_RUNTIME,
        pad_token_id=0,
        labels=None,
        functions=(function,),
        parameters=0,
    )
    return litert.load(file, signature, threads=1), function, inputs


def _once_ms(session: Session, function: Function, inputs: Inputs) -> float:
    started = time.perf_counter()
    session.run(function, inputs)
    return (time.perf_counter() - started) * 1e3
