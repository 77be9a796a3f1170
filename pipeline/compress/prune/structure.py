"""Prunable structures, attention heads and intermediate neurons, and their costs.

An encoder layer has two sublayers, attention and feed-forward. A sublayer that several layers share, as all of ALBERT's
do, counts once and is passed several times. Imports nothing heavy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline import tasks
from pipeline.architectures import layers
from pipeline.architectures.layers import Layer
from pipeline.recipe.compression import COST_LENGTH

if TYPE_CHECKING:
    from pipeline.checkpoint.source import Source

SublayerKind = Literal["attention", "feed_forward"]
KINDS: tuple[SublayerKind, ...] = ("attention", "feed_forward")
"""The kinds of sublayers in the order of the forward pass."""
STRUCTURES: Mapping[SublayerKind, str] = {"attention": "attention heads", "feed_forward": "intermediate neurons"}
"""Name of the structures of each kind of sublayer."""
INPUT_LINEARS: Mapping[SublayerKind, tuple[str, ...]] = {
    "attention": ("query", "key", "value"),
    "feed_forward": ("intermediate",),
}
"""The linears whose output rows belong to single structures."""
OUTPUT_LINEAR: Mapping[SublayerKind, str] = {"attention": "attention_output", "feed_forward": "output"}
"""The linear whose input columns belong to single structures, and whose other columns can compensate for removal."""
RESIDUAL_NORM: Mapping[SublayerKind, str] = {"attention": "attention_norm", "feed_forward": "output_norm"}
"""The norm that takes the sum of the sublayer's output and its input."""


@dataclass(frozen=True)
class SublayerShape:
    """The size of one sublayer, which one or several layers use."""

    kind: SublayerKind
    layer: int
    """The first layer that uses it."""
    size: int
    """Attention heads or intermediate neurons."""
    passes: int
    """Number of times that the sublayer is applied in one forward pass."""


@dataclass(frozen=True)
class EncoderShape:
    """The sizes of an encoder."""

    sublayers: tuple[SublayerShape, ...]
    """The sublayers in the order of their first use, a layer's attention before its feed-forward."""
    hidden_size: int
    head_size: int
    layers: int
    """Number of layers in the forward pass; a shared layer counts once for each use."""


@dataclass(frozen=True)
class Sublayer:
    """A sublayer of a model: its shape and the layer that holds its modules."""

    shape: SublayerShape
    layer: Layer

    @property
    def columns_each(self) -> int:
        """Columns of `output_linear` that belong to one structure: the head size, or 1 for a neuron."""
        return self.layer.head_size if self.shape.kind == "attention" else 1

    @property
    def output_linear(self) -> Any:
        """The linear whose input columns belong to single structures."""
        return self.layer.get(OUTPUT_LINEAR[self.shape.kind])

    @property
    def input_linears(self) -> list[Any]:
        """The linears whose output rows belong to single structures."""
        return [self.layer.get(name) for name in INPUT_LINEARS[self.shape.kind]]


# --- shapes of models -----------------------------------------------------------------------------------------------


def sublayers(model: Any) -> list[Sublayer]:
    """Return the sublayers of a Hugging Face model, each once, in the order of their first use."""
    every = layers.layers(model)
    result = []
    for number, layer in enumerate(every):
        for kind in KINDS:
            size = layer.heads if kind == "attention" else layer.intermediate_size
            users = [other for other in every if other.get(OUTPUT_LINEAR[kind]) is layer.get(OUTPUT_LINEAR[kind])]
            if users[0] is layer:
                passes = sum(user.passes for user in users)
                result.append(Sublayer(SublayerShape(kind, number, size, passes), layer))
    return result


def encoder_shape(model: Any) -> EncoderShape:
    """Return the shape of a Hugging Face model's encoder."""
    every, parts = layers.layers(model), sublayers(model)
    return EncoderShape(
        tuple(part.shape for part in parts),
        hidden_size=int(parts[0].output_linear.out_features),
        head_size=every[0].head_size,
        layers=sum(layer.passes for layer in every),
    )


def layer_sequence(model: Any) -> list[Layer]:
    """Return the layers in the order of the forward pass; a shared layer is repeated for each pass."""
    return [layer for layer in layers.layers(model) for _ in range(layer.passes)]


def stored_shape(source: "Source") -> EncoderShape:
    """Return the shape of a checkpoint's encoder, from its config and the header of its weights alone.

    Raises:
        StudentError: the checkpoint does not load, or its layers cannot be taken apart.
    """
    from pipeline.checkpoint.loading import load_checkpoint

    return encoder_shape(load_checkpoint(source, tasks.get("embedding")))


# --- costs -----------------------------------------------------------------------------------------------------------


def macs_each(sublayer: SublayerShape, encoder: EncoderShape, *, length: int) -> int:
    """Return the MACs of one structure at a sequence length, over all passes.

    A head: query, key, value and output 4·L·d·k, scores and weighted sum 2·L²·k. An intermediate neuron: 2·L·d.

    Source: Vaswani et al. 2017, section 3.2; biases, norms and softmax are left out, as is usual.
    """
    hidden, size = encoder.hidden_size, encoder.head_size
    head, neuron = 4 * length * hidden * size + 2 * length**2 * size, 2 * length * hidden
    return (head if sublayer.kind == "attention" else neuron) * sublayer.passes


def parameters_each(sublayer: SublayerShape, encoder: EncoderShape) -> int:
    """Return the parameters of one structure, the biases of its input linears included."""
    hidden, size = encoder.hidden_size, encoder.head_size
    return 4 * hidden * size + 3 * size if sublayer.kind == "attention" else 2 * hidden + 1


def structure_macs(encoder: EncoderShape, *, length: int = COST_LENGTH) -> list[float]:
    """Return the MACs of one structure of each sublayer, one of the two kinds of costs of the search."""
    return [float(macs_each(sublayer, encoder, length=length)) for sublayer in encoder.sublayers]


def total_cost(encoder: EncoderShape, costs: Sequence[float]) -> float:
    """Return the cost of an encoder, given the cost of one structure of each sublayer."""
    return sum(sublayer.size * cost for sublayer, cost in zip(encoder.sublayers, costs, strict=True))


def encoder_macs(encoder: EncoderShape, *, length: int = COST_LENGTH) -> int:
    """Return the MACs of all layers at a sequence length."""
    return int(total_cost(encoder, structure_macs(encoder, length=length)))


def least_cost(sublayers: Sequence[SublayerShape], costs: Sequence[float], *, intermediate_multiple: int) -> float:
    """Return the cost of the smallest encoder: a head in each attention, a multiple of neurons in each feed-forward."""
    return sum(
        cost * (1 if sublayer.kind == "attention" else min(intermediate_multiple, sublayer.size))
        for sublayer, cost in zip(sublayers, costs, strict=True)
    )
