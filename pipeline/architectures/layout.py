"""Where an encoder has the modules that compression works on, and its layers by that; architectures share layouts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import StudentError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Layout:
    """Module paths: the stack's starts at the base model, the others start at a layer."""

    stack: str
    """Module list of layers; in ALBERT, of groups of one layer each."""
    query: str
    key: str
    value: str
    attention_output: str
    """The linear that projects the joined outputs of the attention heads."""
    attention_norm: str
    intermediate: str
    """The linear from hidden size to intermediate size."""
    output: str
    """The linear from intermediate size to hidden size."""
    output_norm: str
    """The LayerNorm after the feed-forward network."""
    heads: str
    """The module that has `attention_head_size`."""
    inner: str = ""
    """Path from an entry of the stack to the layer itself."""
    fixed_heads: str = ""
    """Why heads can be neither removed nor put into another order; empty where they can."""

    @property
    def attention(self) -> tuple[str, ...]:
        """Paths of the attention's modules, its LayerNorm included."""
        return self.query, self.key, self.value, self.attention_output, self.attention_norm

    @property
    def feed_forward(self) -> tuple[str, ...]:
        """Paths of the feed-forward network's modules, its LayerNorm included."""
        return self.intermediate, self.output, self.output_norm


_PARTS = ("query", "key", "value", "attention_output", "attention_norm", "intermediate", "output", "output_norm")


class Layer:
    """One layer with parameters of its own, whose modules go by the names of `Layout`'s fields."""

    def __init__(self, module: "nn.Module", layout: Layout, passes: int) -> None:
        """Wrap an encoder's layer; `passes` is how often each row passes it, more than once where it is shared."""
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
        """Width of one attention head."""
        return int(self.get("heads").attention_head_size)

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return int(width(self.get("query")) // self.head_size)

    @property
    def intermediate_size(self) -> int:
        """Number of intermediate neurons."""
        return width(self.get("intermediate"))


def check_groups(layout: Layout, total: int, groups: int, inner: int) -> None:
    """Refuse an ALBERT whose groups are not passed equally often, or have several layers each.

    Raises:
        StudentError: the config's numbers say so.
    """
    if layout.inner and (total % groups or inner != 1):
        raise StudentError(
            f"config.json has num_hidden_layers {total} in num_hidden_groups {groups} with inner_group_num {inner}; "
            "layers can be compressed here where each group has one layer and all are passed equally often."
        )


def layers_in(model: Any, layout: Layout) -> list[Layer]:
    """Return the layers of a Hugging Face model of a layout, each once.

    Raises:
        StudentError: the layers cannot be compressed here.
    """
    stack = list(_entries(model, layout))
    total = int(model.config.num_hidden_layers)
    check_groups(layout, total, len(stack), int(getattr(model.config, "inner_group_num", 1)))
    return [Layer(entry, layout, total // len(stack) if layout.inner else 1) for entry in stack]


def _entries(model: Any, layout: Layout) -> Iterator[Any]:
    for entry in model.base_model.get_submodule(layout.stack):
        yield entry.get_submodule(layout.inner) if layout.inner else entry


def width(linear: Any) -> int:
    """Return the output width of a linear, or of the two that factorise one."""
    last = linear[-1] if hasattr(linear, "__getitem__") else linear
    return int(last.out_features)


def replace(root: "nn.Module", old: "nn.Module", new: "nn.Module") -> None:
    """Replace a module wherever it is, since several layers may share it."""
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if child is old and parent is not new:
                setattr(parent, name, new)


def put(root: "nn.Module", path: str, module: "nn.Module") -> None:
    """Replace the module at a dotted path."""
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent) if parent else root, name, module)


def copy_layer(source: Layer, target: Layer) -> None:
    """Copy the tensors of one layer to another of the same shape, whatever their architectures call them."""
    for part in _PARTS:
        target.get(part).load_state_dict(source.get(part).state_dict())
