"""What structured pruning chooses among: the heads and the feed-forward rows of each layer. Imports nothing heavy.

A part that several layers share, as all of ALBERT's do, is one part that is passed several times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.checkpoint import layers
from pipeline.checkpoint.layers import Layer, Layout
from pipeline.errors import StudentError

if TYPE_CHECKING:
    from pipeline.checkpoint.source import Source

Kind = Literal["heads", "feed_forward"]
KINDS: tuple[Kind, ...] = ("heads", "feed_forward")
"""In the order in which tokens pass them."""
INNER: Mapping[Kind, tuple[str, ...]] = {"heads": ("query", "key", "value"), "feed_forward": ("widen",)}
"""The linears whose rows a kind of unit owns."""
OUTER: Mapping[Kind, str] = {"heads": "attended", "feed_forward": "narrow"}
"""The linear whose columns it owns, and which can make up for what is cut."""
SUMMED: Mapping[Kind, str] = {"heads": "attention_norm", "feed_forward": "norm"}
"""The norm whose input is the sum of what comes out of it and what goes past it."""
_STORED_OWNERS = {"heads": "attention", "feed_forward": "feed_forward"}


@dataclass(frozen=True)
class Part:
    """The heads, or the feed-forward rows, of one layer or of several that share them."""

    kind: Kind
    layer: int
    """The first layer that has it."""
    units: int
    """Heads or rows."""
    passes: int
    """How often a row of tokens goes through it."""


@dataclass(frozen=True)
class Outline:
    """The shape of an encoder."""

    parts: tuple[Part, ...]
    """In the order of their first use, heads before rows."""
    hidden: int
    head_size: int
    layers: int
    """Passes through any layer."""


@dataclass(frozen=True)
class Block:
    """A part with its modules."""

    part: Part
    layer: Layer

    @property
    def size(self) -> int:
        """Columns that one unit has in `outer`."""
        return self.layer.head_size if self.part.kind == "heads" else 1

    @property
    def outer(self) -> Any:
        """The linear whose columns the units own."""
        return self.layer.get(OUTER[self.part.kind])

    @property
    def inner(self) -> list[Any]:
        """The linears whose rows the units own."""
        return [self.layer.get(name) for name in INNER[self.part.kind]]


def blocks(model: Any) -> list[Block]:
    """Return the parts of a Hugging Face model, each once, in the order of their first use."""
    found = layers.layers(model)
    made = []
    for number, layer in enumerate(found):
        for kind in KINDS:
            units = layer.heads if kind == "heads" else layer.intermediate_size
            users = [other for other in found if other.get(OUTER[kind]) is layer.get(OUTER[kind])]
            if users[0] is layer:
                passes = sum(user.passes for user in users)
                made.append(Block(Part(kind, number, units, passes), layer))
    return made


def outline(model: Any) -> Outline:
    """Return the shape of a Hugging Face model's encoder."""
    found = layers.layers(model)
    chosen = blocks(model)
    hidden = int(chosen[0].outer.out_features)
    return Outline(
        tuple(block.part for block in chosen), hidden, found[0].head_size, sum(layer.passes for layer in found)
    )


def sequence(model: Any) -> list[Layer]:
    """Return the layers in the order in which tokens pass them, a shared one as often as it is passed."""
    return [layer for layer in layers.layers(model) for _ in range(layer.passes)]


def read(source: "Source") -> Outline:
    """Return the shape of a checkpoint's encoder from its config and the header of its weights.

    Raises:
        StudentError: its layers cannot be taken apart, or are factorised already.
    """
    layout = layers.layout_of(source.architecture.model_type)
    shapes = _shapes(source.folder, layout)
    said = source.config.get("pocketbert") or {}
    total = layer_count(source)
    groups = int(source.config.get("num_hidden_groups") or 1) if layout.inner else total
    layers.check_groups(layout, total, groups, int(source.config.get("inner_group_num") or 1))
    hidden = _shape(source, shapes, layout, 0, "attended")[0]
    head_size = int(said["head_size"]) if said else hidden // head_count(source.config)
    parts = []
    for layer in range(groups):
        for kind in KINDS:
            owners = said.get(_STORED_OWNERS[kind]) or list(range(groups))
            if owners[layer] == layer:
                inner = _shape(source, shapes, layout, layer, OUTER[kind])[1]
                units = inner // head_size if kind == "heads" else inner
                passes = owners.count(layer) * (total // groups)
                parts.append(Part(kind, layer, units, passes))
    # The config's, which a plan foretells where an earlier stage will take columns away.
    return Outline(tuple(parts), hidden_size(source) or hidden, head_size, total)


def layer_count(source: "Source") -> int:
    """Return the layers that a row passes, shared ones counted each time.

    Raises:
        StudentError: config.json does not tell.
    """
    found = source.config.get("num_hidden_layers") or source.config.get("n_layers")
    if not isinstance(found, int):
        raise StudentError(f"{source.origin}: config.json does not say how many layers it has (num_hidden_layers).")
    return found


def hidden_size(source: "Source") -> int:
    """Return the size of a hidden state by a checkpoint's config; 0 where it has its class's default."""
    return int(source.config.get("hidden_size") or source.config.get("dim") or 0)


def head_count(config: Mapping[str, Any]) -> int:
    """Return the heads of a layer by a checkpoint's config, which a compressed one's layers need not have."""
    # DistilBERT's own name; a config without either has its class's default of 12.
    return int(config.get("num_attention_heads") or config.get("n_heads") or 12)


def _shapes(folder: Path, layout: Layout) -> dict[str, Sequence[int]]:
    """Return the shapes of the encoder's tensors by their names from the stack on."""
    from safetensors import safe_open

    found = {}
    with safe_open(folder / "model.safetensors", framework="numpy") as handle:
        for name in handle.keys():  # noqa: SIM118  # not a dict
            _, stack, rest = f".{name}".partition(f".{layout.stack}.")
            if stack:
                found[rest] = handle.get_slice(name).get_shape()
    return found


def _shape(
    source: "Source", shapes: Mapping[str, Sequence[int]], layout: Layout, layer: int, name: str
) -> Sequence[int]:
    path = ".".join(filter(None, (str(layer), layout.inner, getattr(layout, name))))
    if f"{path}.0.weight" in shapes:
        raise StudentError(
            f"{source.origin}: {layout.stack}.{path} is factorised already; prune first, factorise what is left."
        )
    if f"{path}.weight" not in shapes:
        raise StudentError(f"{source.folder}/model.safetensors has no {layout.stack}.{path}.weight.")
    return shapes[f"{path}.weight"]
