"""Measure the latency of one attention head and of one intermediate neuron in LiteRT, on int8_dynamic files.

Each file has one layer, and the files differ only in the number of heads or of neurons, so that the embeddings and all
overhead cancel in the difference. In int8, which is shipped, products with weights are three times as fast as in fp32,
but the products within attention are not: at 128 tokens a head of MiniLM costs as much as 120 neurons in int8, 81 in
fp32, and 75 by MACs.
"""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipeline.architectures.layers import layers
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
from pipeline.convert import timing
from pipeline.errors import ToolchainError

_FORMAT, _SCHEME = "litert", "int8_dynamic"


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
        files = [
            timing.convert(one, _FORMAT, _SCHEME, length=length, parent=Path(name, str(number)))
            for number, one in enumerate([whole, *smaller])
        ]
        full, *less = timing.fastest_ms(files)
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
    timing.keep_few_tokens(base)
    return base


def _with_fewer(whole: Any, number: int, size: int) -> Any:
    """Return a copy of the model with only the first `size` structures of sublayer `number`."""
    copied = copy.deepcopy(whole)
    kept = [np.arange(shape.size) for shape in encoder_shape(copied).sublayers]
    kept[number] = np.arange(size)
    keep_structures(copied, sublayers(copied), kept)
    return copied
