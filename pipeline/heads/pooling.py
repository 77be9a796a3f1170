"""Pooling: one vector of the vectors of all tokens, in each of sentence-transformers' modes.

Source: Reimers and Gurevych 2019 (Sentence-BERT); sentence-transformers 6.2, `Pooling`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipeline.kinds import PoolingMode

if TYPE_CHECKING:
    import torch

MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
_LOWEST = 1e4
"""Taken from padding before a maximum; hidden states are far smaller, and half precision holds it."""


class Pooling(BaseModel):
    """The modes of a Pooling module; their vectors are joined in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    modes: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled."""

    def outputs(self, hidden: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the pooled vectors, `(batch, modes × hidden)`; a mean over no token is zero.

        Args:
            hidden: `(batch, seq_len, hidden)`, padded on the right.
            mask: 1 for tokens, 2 for tokens of a prompt that is not pooled, 0 for padding; float, `(batch, seq_len)`.
        """
        import torch

        pooled = mask if self.include_prompt else mask * (2.0 - mask)
        attended = mask if self.include_prompt else mask.clamp(max=1.0)
        vectors = [_GRAPHS[mode](hidden, pooled, attended) for mode in self.modes]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)

    def reference(self, hidden: NDArray[np.float64], unpooled: int) -> NDArray[np.float64]:
        """Return the pooled vectors, `(batch, modes × hidden)`, of rows without padding.

        Args:
            hidden: `(batch, tokens, hidden)`.
            unpooled: how many tokens at the start of each row belong to a prompt that is not pooled.
        """
        return np.concatenate([_REFERENCES[mode](hidden, unpooled) for mode in self.modes], axis=-1)


def _first(hidden: "torch.Tensor", pooled: "torch.Tensor", attended: "torch.Tensor") -> "torch.Tensor":
    if pooled is attended:
        return hidden[:, 0] * attended[:, :1]
    import torch

    before = torch.cat((torch.zeros_like(pooled[:, :1]), pooled[:, :-1]), 1)
    return (hidden * (pooled * (1.0 - before))[:, :, None]).sum(1)


def _largest(hidden: "torch.Tensor", pooled: "torch.Tensor", attended: "torch.Tensor") -> "torch.Tensor":
    return (hidden + (pooled - 1.0)[:, :, None] * _LOWEST).amax(1)


def _mean(hidden: "torch.Tensor", pooled: "torch.Tensor", attended: "torch.Tensor") -> "torch.Tensor":
    total = (hidden * pooled[:, :, None]).sum(1)
    return total / pooled.sum(1, keepdim=True).clamp(min=1.0)


def _mean_of_root(hidden: "torch.Tensor", pooled: "torch.Tensor", attended: "torch.Tensor") -> "torch.Tensor":
    total = (hidden * pooled[:, :, None]).sum(1)
    return total * pooled.sum(1, keepdim=True).clamp(min=1.0).rsqrt()


def _weighted_mean(hidden: "torch.Tensor", pooled: "torch.Tensor", attended: "torch.Tensor") -> "torch.Tensor":
    """Weigh each token by its position, which is divided by their number: half precision cannot count to 130,000."""
    weights = attended.cumsum(1) / attended.sum(1, keepdim=True).clamp(min=1.0) * pooled
    return (hidden * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1e-3)


def _last(hidden: "torch.Tensor", pooled: "torch.Tensor", attended: "torch.Tensor") -> "torch.Tensor":
    import torch

    after = torch.cat((pooled[:, 1:], torch.zeros_like(pooled[:, :1])), 1)
    return (hidden * (pooled * (1.0 - after))[:, :, None]).sum(1)


_GRAPHS: Mapping[PoolingMode, Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_of_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}
"""Each takes hidden states, the mask of pooled tokens, and the mask of all tokens of a row."""


def _weights(hidden: Any, unpooled: int) -> NDArray[np.float64]:
    return np.arange(1 + unpooled, 1 + hidden.shape[1], dtype=np.float64)[None, :, None]


_REFERENCES: Mapping[PoolingMode, Callable[[NDArray[np.float64], int], NDArray[np.float64]]] = {
    "cls": lambda hidden, unpooled: hidden[:, unpooled],
    "max": lambda hidden, unpooled: hidden[:, unpooled:].max(1),
    "mean": lambda hidden, unpooled: hidden[:, unpooled:].mean(1),
    "mean_sqrt_len_tokens": lambda hidden, unpooled: hidden[:, unpooled:].sum(1) / np.sqrt(hidden.shape[1] - unpooled),
    "weightedmean": lambda hidden, unpooled: (
        (hidden[:, unpooled:] * _weights(hidden, unpooled)).sum(1) / _weights(hidden, unpooled).sum(1)
    ),
    "lasttoken": lambda hidden, unpooled: hidden[:, -1],
}
