"""The layers of an encoder, whatever its architecture calls their modules. Imports nothing heavy."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline import architectures
from pipeline.architectures.layout import Layout
from pipeline.errors import StudentError

if TYPE_CHECKING:
    from torch import nn


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


def layout_of(model_type: str) -> Layout:
    """Return the layout of an architecture.

    Raises:
        StudentError: its layers cannot be compressed here, with the reason.
    """
    layout = architectures.get(model_type).layout
    if isinstance(layout, str):
        known = ", ".join(sorted(architectures.COMPRESSIBLE))
        raise StudentError(f"{model_type} cannot be compressed here: {layout}. There are: {known}.")
    return layout


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


def layers(model: Any) -> list[Layer]:
    """Return the layers of a Hugging Face model, each once.

    Raises:
        StudentError: the architecture's layers cannot be compressed here.
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
