"""Measure the latency of one attention head and of one intermediate neuron in LiteRT, on int8_dynamic files.

Each file has one layer, and the files differ only in the number of heads or of neurons, so that the embeddings and all
overhead cancel in the difference. In int8, which is shipped, products with weights are three times as fast as in fp32,
but the products within attention are not: at 128 tokens a head of MiniLM costs as much as 120 neurons in int8, 81 in
fp32, and 75 by MACs.
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

from pipeline.architectures.layers import layers, put
from pipeline.checkpoint import shapes
from pipeline.compress.prune.removal import keep_layers, keep_structures
from pipeline.compress.prune.structure import (
    KINDS,
    STRUCTURES,
    EncoderShape,
    SublayerKind,
    encoder_shape,
    structure_macs,
    sublayers,
)
from pipeline.errors import ToolchainError
from pipeline.formats import ConvertRequest, Inputs, Session, litert
from pipeline.formats.signature import Function, Signature

_VOCABULARY_SIZE = 128
"""Vocabulary size of the timed files; a look-up costs the same in an embedding table of any size."""
_SCHEME = "int8_dynamic"
_ROUNDS, _RUNS = 12, 5
"""Rounds, and runs per file in each round. The files take turns, so that a busy moment of the machine hits all of
them; the fastest run counts, since other processes can only slow a run down."""


def measure_structures_ms(model: Any, *, length: int) -> dict[SublayerKind, float]:
    """Return the milliseconds of one structure of each kind of sublayer, a head and a neuron, on one thread.

    Args:
        model: a Hugging Face model, left as it is.
        length: sequence length of the timed runs.

    Raises:
        ToolchainError: a layer with half as many structures did not take less time.
    """
    whole = _one_layer(model)
    shapes_of_sublayers = encoder_shape(whole).sublayers
    fewer = [max(1, shape.size // 2) for shape in shapes_of_sublayers]
    smaller = [_with_fewer(whole, number, size) for number, size in enumerate(fewer)]
    with TemporaryDirectory() as name:
        files = [_convert(one, length, Path(name, str(number))) for number, one in enumerate([whole, *smaller])]
        full, *less = _fastest_ms(files)
    measured: dict[SublayerKind, float] = {}
    for shape, size, took in zip(shapes_of_sublayers, fewer, less, strict=True):
        if shape.size == size:
            continue
        if took >= full:
            raise ToolchainError(
                f"{shape.size} {STRUCTURES[shape.kind]} took {full:.3f} ms in LiteRT and {size} no less; measure on a "
                "quiet machine, or prune by costs = 'macs'."
            )
        measured[shape.kind] = (full - took) / (shape.size - size)
    return _with_single_structures(measured, encoder_shape(whole), length)


def _with_single_structures(
    measured: dict[SublayerKind, float], encoder: EncoderShape, length: int
) -> dict[SublayerKind, float]:
    """Add the latency of a kind with a single structure, which cannot be measured: estimated from the ratio of MACs."""
    macs = {
        shape.kind: one for shape, one in zip(encoder.sublayers, structure_macs(encoder, length=length), strict=True)
    }
    if not measured:
        raise ToolchainError("the layers have one head and one neuron; there is nothing to time, nor to prune.")
    (known, ms), *_ = measured.items()
    return {kind: ms * macs[kind] / macs[known] for kind in KINDS} | measured


def _one_layer(model: Any) -> Any:
    """Return a bare encoder with a small vocabulary and only the layer of the largest intermediate size."""
    base = copy.deepcopy(model.base_model)
    every = layers(base)
    widest = max(range(len(every)), key=lambda number: every[number].intermediate_size)
    keep_layers(base, [widest])
    keep_few_tokens(base)
    return base


def keep_few_tokens(base: Any) -> None:
    """Leave a bare encoder the first tokens of its vocabulary: a look-up costs the same in a table of any size."""
    table = base.get_input_embeddings()
    # A factorised table is followed by its second factor.
    table = table[0] if isinstance(table, nn.Sequential) else table
    assert isinstance(table, nn.Embedding)
    few = nn.Embedding.from_pretrained(table.weight.detach()[:_VOCABULARY_SIZE].clone(), freeze=False)
    put(base, next(path for path, module in base.named_modules() if module is table), few)
    base.config.vocab_size = _VOCABULARY_SIZE


def _with_fewer(whole: Any, number: int, size: int) -> Any:
    """Return a copy of the model with only the first `size` structures of sublayer `number`."""
    copied = copy.deepcopy(whole)
    kept = [np.arange(shape.size) for shape in encoder_shape(copied).sublayers]
    kept[number] = np.arange(size)
    keep_structures(copied, sublayers(copied), kept)
    return copied


def _convert(model: Any, length: int, parent: Path) -> Path:
    """Convert a model at one sequence length, first to fp32 and from that file to int8_dynamic."""
    folder = parent / "student"
    folder.mkdir(parents=True)
    shapes.save(model, folder)
    file = None
    for scheme in ("fp32", _SCHEME):
        out = parent / scheme
        out.mkdir()
        request = ConvertRequest(
            folder, "embedding", scheme, (length,), minimum_ios=None, base=file, metadata={}, labels=None
        )
        litert.convert(request, out)
        file = out / litert.FILE
    assert file is not None
    return file


def _fastest_ms(files: Sequence[Path]) -> list[float]:
    """Return the milliseconds of each file's fastest run; the files take turns."""
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
