"""Where an encoder has the modules that compression works on. Several architectures share a layout."""

from dataclasses import dataclass


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
