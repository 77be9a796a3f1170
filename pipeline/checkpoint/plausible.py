"""Compare config.json with the header of the weights before any model is built: a wrong number there costs hours."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.architectures.architecture import Architecture
from pipeline.errors import StudentError

ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu", "relu",
    "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu",
)  # fmt: skip
"""Names of the activations in `transformers.activations.ACT2FN`, listed here since that import takes seconds."""
_LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)\.")
_WORDS = re.compile(r"(?:^|\.)word_embeddings\.weight$")
_MOST_REPEATS = 1000
"""Layers that share their tensors are told by no header; ALBERT has up to 24."""


def check(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    architecture: Architecture,
    *,
    compressed: bool,
) -> None:
    """Refuse a config.json that cannot be that of the weights.

    Args:
        folder: the checkpoint, for the message.
        config: its config.json.
        tensors: shapes by name, from the header.
        architecture: the checkpoint's.
        compressed: whether config.json describes layers that share tensors or differ in shape.

    Raises:
        StudentError: a key says what no such tensors have; the message names it, what was found and what exists.
    """
    problem = next(_problems(config, tensors, architecture, compressed=compressed), None)
    if problem is not None:
        raise StudentError(f"{folder}/config.json has {problem}.")


def _problems(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], architecture: Architecture, *, compressed: bool
) -> Iterator[str]:
    keys = architecture.keys
    activation = config.get(keys.activation, ACTIVATIONS[0])
    if activation not in ACTIVATIONS:
        yield f"{keys.activation} {_short(activation)}, which is no activation; there are: {', '.join(ACTIVATIONS)}"
    yield from architecture.problems(config)
    yield from _wrong_layers(config, tensors, architecture, compressed=compressed)
    if compressed:
        return
    width, heads = config.get(keys.hidden_size), config.get(keys.attention_heads)
    for key, value in ((keys.hidden_size, width), (keys.attention_heads, heads)):
        if key in config and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            yield f"{key} {_short(value)}, and it has to be a whole number from 1 on"
    divides = architecture.heads_divide_hidden_size
    if divides and isinstance(width, int) and isinstance(heads, int) and width % heads:
        yield f"{keys.attention_heads} {heads}, which does not divide {keys.hidden_size} {width}"
    yield from _wrong_width(config, tensors, keys.embedding_size or keys.hidden_size)


def _wrong_layers(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], architecture: Architecture, *, compressed: bool
) -> Iterator[str]:
    found = 1 + max((int(match.group(1)) for name in tensors if (match := _LAYER.search(name))), default=-1)
    shared = compressed or architecture.shares_layers
    most = max(found, _MOST_REPEATS) if shared or not found else found
    for key in dict.fromkeys((architecture.keys.layers, "num_hidden_layers")):
        layers = config.get(key, 1)
        if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
            yield f"{key} {_short(layers)}, and it has to be a whole number from 1 on"
        elif layers > most:
            yield f"{key} {_short(layers)}, and the weights have " + (
                f"{found} layers" if most == found else f"layers that share tensors; at most {most} are taken"
            )
    for key in architecture.keys.repeats:
        times = config.get(key, 1)
        if not isinstance(times, int) or times > _MOST_REPEATS:
            yield f"{key} {_short(times)}, and at most {_MOST_REPEATS} are taken"


def _wrong_width(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], key: str) -> Iterator[str]:
    """Compare the width of the table of words; where the config leaves its key out, the class has a default."""
    table = next(((name, shape) for name, shape in sorted(tensors.items()) if _WORDS.search(name)), None)
    declared = config.get(key)
    if table is not None and declared is not None and len(table[1]) == 2 and table[1][1] != declared:
        yield f"{key} {_short(declared)}, and {table[0]} has shape {table[1]}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
