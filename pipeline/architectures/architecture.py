"""What PocketBERT knows of one `model_type` of transformers: the object that other rooms ask."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.architectures.layout import Layout

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

Patch = Callable[["torch.nn.Module"], None]
"""Changes a model in place."""

WITH_TYPES = ("input_ids", "attention_mask", "token_type_ids")
WITHOUT_TYPES = ("input_ids", "attention_mask")
NO_POOLER: Mapping[str, Any] = {"add_pooling_layer": False}

_FAIRSEQ_PADDING = 1
"""`pad_token_id` of architectures that count positions from it, where config.json leaves it out."""


@dataclass(frozen=True)
class ConfigKeys:
    """What an architecture's config.json calls its sizes."""

    hidden_size: str = "hidden_size"
    attention_heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    intermediate_size: str = "intermediate_size"
    activation: str = "hidden_act"
    max_positions: str = "max_position_embeddings"
    """The number of rows of the table of positions."""
    embedding_size: str | None = None
    """The width of the table of words; None where it is the hidden size."""
    repeats: tuple[str, ...] = ()
    """What is built several times over beside the layers."""


@dataclass(frozen=True)
class Start:
    """How a smaller student of this architecture is made of a teacher of another one."""

    teachers: tuple[str, ...]
    """The teachers' model types."""
    make: Callable[..., Any]
    """Returns the student of the teacher's model, the numbers of the kept layers, and the embedding size or None."""


@dataclass(frozen=True)
class Architecture:
    """Everything that is known of a model type. Model code stays Hugging Face's; what an export changes is a patch."""

    model_type: str
    students: str
    """What students of it are called, and what a user has to know of them."""
    inputs: tuple[str, ...]
    """Names of the int32 inputs, each `(batch, seq_len)`, in the order of the exported graph."""
    tiny_config: Mapping[str, Any]
    """Keyword arguments of the config class for a small random model, used by tests."""
    layout: Layout | str
    """Where the modules of a layer are; or the reason why layers cannot be compressed."""
    keys: ConfigKeys = ConfigKeys()
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments of the bare encoder, such as leaving out a pooler that no task reads."""
    patches: tuple[Patch, ...] = ()
    """Applied before an export, in this order."""
    training_patch: Patch | None = None
    """What training needs so that the export computes the same; tensors keep their names."""
    positions_after_padding: bool = False
    """Whether positions start at the padding id plus one and skip padding, as in fairseq."""
    graph_inputs: "Callable[[torch.Tensor, torch.Tensor, int], dict[str, torch.Tensor]] | None" = None
    """Inputs of Hugging Face's model that the graph computes from ids and mask, each `(batch, seq_len)` of one integer
    type, and the padding id."""
    score_bias: "Callable[[torch.nn.Module, int], torch.Tensor] | None" = None
    """Addend of the attention scores, a constant `(1, heads, length, length)`, for the longest length of a graph."""
    gathered: "Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, NDArray[np.int64]]] | None" = None
    """Takes the tensors' shapes; says which tensors a graph holds looked up already: by name, for each number of the
    constant its place in the tensor. A file has the corner of it that its length needs."""
    seen_behind: Callable[[Mapping[str, Any]], int] = lambda config: 0
    """How many tokens behind it a token sees before any mask applies; the graph gives padding zeros for it."""
    register: Callable[[], None] | None = None
    """Makes the class known to transformers' auto classes; None where transformers has it."""
    headless: str = ""
    """Why no head of a task goes behind it; empty where every one does."""
    special_tokens: bool = True
    """Whether special tokens stand around a text, as the tokenizer of a checkpoint puts them."""
    states_are_rows: bool = False
    """Whether a token's state is its row of the table of words, so that there are no layers and no linears."""
    heads_divide_hidden_size: bool = True
    shares_layers: bool = False
    """Whether layers share their tensors, so that the weights do not tell their number."""
    projects_unless_equal: bool = False
    """Whether a projection stands between tables and layers wherever their widths differ, and only there."""
    plain_norms: tuple[str, ...] = ()
    """Names of classes of norms that have a weight and a bias, and neither mean, variance nor epsilon."""
    without_masked_lm: tuple[str, ...] = ()
    """Names of `…ForPreTraining` classes that predict no masked tokens."""
    start: Start | None = None
    """How a student is made of a teacher of another architecture; None where there is no way."""
    problems: Callable[[Mapping[str, Any]], Iterator[str]] = lambda config: iter(())
    """Yields what a config.json has that Hugging Face's code would pass over in silence."""

    def max_length(self, config: Mapping[str, Any]) -> int:
        """Return the longest row that a checkpoint takes, special tokens included.

        Args:
            config: its config.json; RoBERTa's table of 514 positions serves 512 tokens.
        """
        unused = 1 + self.padding_id(config) if self.positions_after_padding else 0
        return int(config[self.keys.max_positions]) - unused

    def padding_id(self, config: Mapping[str, Any]) -> int:
        """Return a checkpoint's padding id; where config.json has none, that of its class."""
        given = config.get("pad_token_id")
        return (_FAIRSEQ_PADDING if self.positions_after_padding else 0) if given is None else int(given)

    @property
    def kept_whole(self) -> str:
        """Which parts cannot be made smaller, and why; empty where every part can."""
        if isinstance(self.layout, str):
            return f"layers; {self.layout}"
        return f"attention heads; {self.layout.fixed_heads}" if self.layout.fixed_heads else ""

    def table_width(self, config: Any) -> int:
        """Return the width of the table of words, of transformers' config object."""
        return int(getattr(config, self.keys.embedding_size or self.keys.hidden_size))
