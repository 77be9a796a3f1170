"""Where an encoder keeps the parts that compression works on: one row per layout. Imports nothing heavy.

A layout serves several architectures: RoBERTa, XLM-R and ELECTRA have BERT's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import StudentError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Layout:
    """Module paths: the stack from the base model, the others from a layer of it."""

    stack: str
    """Module list of layers; of a shared layer, of groups of one layer."""
    query: str
    key: str
    value: str
    attended: str
    """The linear that joins the heads' results."""
    attention_norm: str
    widen: str
    """From hidden to feed-forward size."""
    narrow: str
    norm: str
    """After the feed-forward."""
    heads: str
    """The module that knows `attention_head_size`."""
    inner: str = ""
    """From an entry of the stack to the layer itself."""

    @property
    def attention(self) -> tuple[str, ...]:
        """Paths of what belongs to the attention, its LayerNorm included."""
        return self.query, self.key, self.value, self.attended, self.attention_norm

    @property
    def feed_forward(self) -> tuple[str, ...]:
        """Paths of what belongs to the feed-forward, its LayerNorm included."""
        return self.widen, self.narrow, self.norm


_BERT = Layout(
    "encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attended="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    widen="intermediate.dense",
    narrow="output.dense",
    norm="output.LayerNorm",
    heads="attention.self",
)
_DISTILBERT = Layout(
    "transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attended="attention.out_lin",
    attention_norm="sa_layer_norm",
    widen="ffn.lin1",
    narrow="ffn.lin2",
    norm="output_layer_norm",
    heads="attention",
)
_ALBERT = Layout(
    "encoder.albert_layer_groups",
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attended="attention.dense",
    attention_norm="attention.LayerNorm",
    widen="ffn",
    narrow="ffn_output",
    norm="full_layer_layer_norm",
    heads="attention",
    inner="albert_layers.0",
)
LAYOUTS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _BERT),
    "distilbert": _DISTILBERT,
    "albert": _ALBERT,
}
UNSUPPORTED = {"mobilebert": "its layers have bottlenecks and several feed-forwards, and are thin already"}
"""Architectures whose layers cannot be taken apart here, with the reason."""


class Layer:
    """One layer with parameters of its own. Modules are read and replaced by the names of `Layout`."""

    def __init__(self, module: "nn.Module", layout: Layout, passes: int) -> None:
        """Take an encoder's layer; `passes` is how often a row goes through it, more than once where it is shared."""
        self.module = module
        self.layout = layout
        self.passes = passes

    def get(self, part: str) -> Any:
        """Return the module of a part, such as `query`."""
        return self.module.get_submodule(getattr(self.layout, part))

    def put(self, part: str, module: "nn.Module") -> None:
        """Replace the module of a part."""
        put(self.module, getattr(self.layout, part), module)

    @property
    def head_size(self) -> int:
        """Columns of one head."""
        return int(self.get("heads").attention_head_size)

    @property
    def heads(self) -> int:
        """Heads that the layer has."""
        return int(width(self.get("query")) // self.head_size)

    @property
    def feed_forward_size(self) -> int:
        """Rows of the feed-forward."""
        return width(self.get("widen"))


def layout_of(model_type: str) -> Layout:
    """Return the layout of an architecture.

    Raises:
        StudentError: its layers cannot be taken apart, with the reason.
    """
    if model_type not in LAYOUTS:
        known = ", ".join(sorted(LAYOUTS))
        raise StudentError(f"{model_type} cannot be compressed here: {UNSUPPORTED[model_type]}. There are: {known}.")
    return LAYOUTS[model_type]


def check_groups(layout: Layout, total: int, groups: int, inner: int) -> None:
    """Refuse an ALBERT whose groups are not passed equally often, or have several layers in them.

    Raises:
        StudentError: with the numbers of its config.
    """
    if layout.inner and (total % groups or inner != 1):
        raise StudentError(
            f"config.json has num_hidden_layers {total} in num_hidden_groups {groups} with inner_group_num {inner}; "
            "layers can be taken apart here where groups of one layer are passed equally often."
        )


def layers(model: Any) -> list[Layer]:
    """Return the layers of a Hugging Face model, each once.

    Raises:
        StudentError: its architecture's layers cannot be taken apart.
    """
    layout = layout_of(model.config.model_type)
    stack = list(_entries(model, layout))
    total = int(model.config.num_hidden_layers)
    check_groups(layout, total, len(stack), int(getattr(model.config, "inner_group_num", 1)))
    return [Layer(entry, layout, total // len(stack) if layout.inner else 1) for entry in stack]


def _entries(model: Any, layout: Layout) -> Iterator[Any]:
    for entry in model.base_model.get_submodule(layout.stack):
        yield entry.get_submodule(layout.inner) if layout.inner else entry


def width(linear: Any) -> int:
    """Return the outputs of a linear, or of two in a row."""
    last = linear[-1] if hasattr(linear, "__getitem__") else linear
    return int(last.out_features)


def put(root: "nn.Module", path: str, module: "nn.Module") -> None:
    """Replace the module at a dotted path."""
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent) if parent else root, name, module)
