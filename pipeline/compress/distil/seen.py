"""What a model shows of a batch: its outputs, hidden states, queries, keys and values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.checkpoint import layers
from pipeline.compress.distil.terms import Need
from pipeline.tasks import Task

_PARTS = ("query", "key", "value")


@dataclass(frozen=True)
class Projected:
    """Queries, keys or values of one layer."""

    columns: Tensor
    """`(batch, seq_len, heads · head size)`."""
    heads: int


@dataclass(frozen=True)
class Seen:
    """What a model showed; empty where it was not asked for."""

    logits: Tensor | None = None
    """`(batch, classes)`, `(batch, seq_len, classes)`, or for spans `(batch, 2, seq_len)`."""
    states: tuple[Tensor, ...] = ()
    """Embeddings and each layer's result, `(batch, seq_len, hidden)`."""
    parts: Mapping[str, list[Projected]] = field(default_factory=dict)
    """`query`, `key` and `value` of each layer, in the order of the forward pass."""
    sentence: Tensor | None = None
    """`(batch, hidden)`, of length one."""
    output: Any = None
    """The model's own output."""


class Watched:
    """A model whose queries, keys and values are kept while it runs: attention scores are not in its outputs."""

    def __init__(self, model: Any, needs: Collection[Need], task: Task, *, masked_lm: bool) -> None:
        """Watch a model; `task` says how its output becomes logits or an embedding, unless it has a masked-LM head."""
        self.model = model
        self._needs = needs
        self._task = task
        self._masked_lm = masked_lm
        self._found: dict[str, list[Projected]] | None = None
        if "scores" in needs:
            self._hook()

    def _hook(self) -> None:
        known: set[int] = set()
        for layer in layers.layers(self.model):
            for part in _PARTS:
                module = layer.get(part)
                # A shared module runs once for each layer that uses it, and has one hook.
                if id(module) not in known:
                    known.add(id(module))
                    module.register_forward_hook(self._keeper(part, layer.heads))

    def _keeper(self, part: str, heads: int) -> Any:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            # None while somebody else runs the model, a dev split for instance.
            if self._found is not None:
                self._found.setdefault(part, []).append(Projected(output, heads))

        return keep

    def see(self, inputs: Mapping[str, Tensor]) -> Seen:
        """Run the model and return what was asked for."""
        self._found = {}
        output = self.model(**inputs, output_hidden_states="states" in self._needs)
        parts, self._found = self._found, None
        return Seen(
            self._logits(output, inputs["attention_mask"]) if "logits" in self._needs else None,
            tuple(output.hidden_states) if "states" in self._needs else (),
            parts,
            self._task.finish(output, inputs["attention_mask"].float())[0] if "sentence" in self._needs else None,
            output,
        )

    def _logits(self, output: Any, mask: Tensor) -> Tensor:
        if self._masked_lm or self._task.output_kind != "spans":
            found: Tensor = output.logits
            return found
        both = torch.stack(self._task.finish(output, mask.float()), 1)
        # Padding takes no part in the softmax over tokens.
        return both.float().masked_fill((mask == 0)[:, None], torch.finfo(torch.float32).min / 4)
