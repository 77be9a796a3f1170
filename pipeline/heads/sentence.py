"""The head of an embedding model: what a sentence-transformers folder computes behind its encoder, and its prompts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipeline.errors import StudentError
from pipeline.heads.head import Floats, Head
from pipeline.heads.pooling import Pooling
from pipeline.heads.steps import Normalize, Step, Truncate
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Similarity, compared_by

if TYPE_CHECKING:
    import torch

NAME = "sentence_head"
"""Attribute of a model, prefix of its tensors in a checkpoint, and key of config.json."""


class SentenceHead(BaseModel):
    """Everything that a sentence-transformers folder says beside its Transformer."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    pooling: Pooling = Pooling()
    steps: tuple[Step, ...] = (Normalize(),)
    prompts: dict[str, str] = {}
    """Texts that are put before a text, by name; none of them is empty."""
    default_prompt: str | None = None
    """Name of the prompt of a text that comes without one; None for none."""
    max_seq_length: int | None = None
    """Tokens at which sentence-transformers truncates a text; None for the encoder's own limit."""
    lower_case: bool = False
    """Whether texts are lower-cased before the tokenizer, which keeps capitals by itself."""
    similarity: Similarity = "cosine"
    """How near two embeddings are, as sentence-transformers' `similarity` computes it."""
    widths: tuple[int, ...] = ()
    """Numbers of leading dimensions that are worth keeping by themselves, falling, all below the whole width."""

    def width(self, hidden_size: int) -> int:
        """Return the width of the embedding of an encoder with a hidden size."""
        width = hidden_size * len(self.pooling.modes)
        for step in self.steps:
            width = step.width(width)
        return width

    def cut(self, dimension: int) -> "SentenceHead":
        """Return the head of an embedding's first numbers, scaled to unit length if the whole embedding is.

        The number of a step that has tensors stays, since their names have it.
        """
        at = len(self.steps) - self.normalizes
        return self.model_copy(update={"steps": (*self.steps[:at], Truncate(dimension=dimension), *self.steps[at:])})

    @property
    def normalizes(self) -> bool:
        """Whether the last step scales to unit length."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)

    @property
    def compared_by(self) -> Similarity:
        """How embeddings are compared in a search."""
        return compared_by(self.similarity, unit_length=self.normalizes)

    @property
    def wanted(self) -> Prompts:
        """The prompts as an encoder takes them."""
        return Prompts(self.prompts, self.default_prompt, self.pooling.include_prompt)

    @property
    def chain(self) -> str:
        """The modules in their order, for people."""
        return " → ".join((f"Pooling ({', '.join(self.pooling.modes)})", *(step.kind for step in self.steps)))

    def check(self, hidden_size: int) -> None:
        """Refuse steps that do not fit each other, or an encoder of that hidden size; see `attach`."""
        width = hidden_size * len(self.pooling.modes)
        for step in self.steps:
            if not step.fits(width):
                raise StudentError(
                    f"the head is {self.chain}: its {step.kind} takes {step.takes} numbers, and what comes before it "
                    f"gives {width}. Does it belong to another encoder, or was the hidden size made smaller?"
                )
            width = step.width(width)

    def module(self) -> "torch.nn.Module":
        """Return the steps' modules, with uninitialised tensors, to be an attribute of the model."""
        import torch

        modules: Any = torch.nn.ModuleList([step.module() for step in self.steps])
        modules.settings = self
        result: torch.nn.Module = modules
        return result

    def outputs(self, modules: Any, hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the embedding, `(batch, width)`; exactly zero for a row of padding.

        Args:
            modules: of `module`, with the checkpoint's tensors.
            hidden: the encoder's last hidden state, `(batch, seq_len, hidden)`.
            mask: see `Pooling.outputs`.
        """
        vectors = self.pooling.outputs(hidden, mask)
        for step, module in zip(self.steps, modules, strict=True):
            vectors = step.outputs(module, vectors)
        if "max" in self.pooling.modes or not all(step.keeps_zero for step in self.steps):
            vectors = vectors * mask[:, :1].clamp(max=1.0)
        return vectors

    def reference(self, modules: Any, hidden: Any, unpooled: int) -> Floats:
        """Return the embeddings of unpadded rows, `(batch, width)`, computed by NumPy in float64.

        A row without a token is zero, as one that is all padding, whatever the steps would add.
        """
        if not hidden.shape[1]:
            return np.zeros((len(hidden), self.width(hidden.shape[2])), np.float32)
        vectors = self.pooling.reference(hidden.numpy().astype(np.float64), unpooled)
        for step, module in zip(self.steps, modules, strict=True):
            tensors = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
            vectors = step.reference(tensors, vectors)
        return vectors.astype(np.float32)


DEFAULT = SentenceHead()
"""The mean over tokens, scaled to unit length: the head of an encoder that comes without modules."""


def settings(model: Any) -> SentenceHead:
    """Return the head of a model that was loaded as an encoder."""
    modules = getattr(model, NAME, None)
    found: SentenceHead = DEFAULT if modules is None else modules.settings
    return found


def hidden_size(config: Any) -> int:
    """Return the hidden size of transformers' config; DistilBERT calls it otherwise."""
    return int(getattr(config, "hidden_size", 0) or config.dim)


def attach(model: Any, head: SentenceHead, tensors: Mapping[str, Any] | None) -> None:
    """Give an encoder its head, unless that is the default one.

    Args:
        model: the bare encoder.
        head: its head.
        tensors: the steps' tensors by name, such as `0.linear.weight`; None on torch's meta device.

    Raises:
        StudentError: a step takes vectors of another width than the step before it gives.
    """
    if head == DEFAULT:
        return
    head.check(hidden_size(model.config))
    module = head.module()
    if tensors is None:
        module.to("meta")
    else:
        module.load_state_dict(dict(tensors), strict=True)
    model.add_module(NAME, module.eval())
    setattr(model.config, NAME, head.model_dump(mode="json"))


def of_text(model: Any) -> Head:
    """Return the head of an embedding model."""
    head, modules = settings(model), getattr(model, NAME, None)
    parts = head.module() if modules is None else modules
    return Head(
        lambda output, mask: (head.outputs(parts, output.last_hidden_state, mask),),
        lambda output, unpooled: head.reference(parts, output.last_hidden_state, unpooled)[:, None, :],
    )
