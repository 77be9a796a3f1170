"""The class that transformers lacks: the rows of a table, as the last hidden state of an encoder without layers."""

from typing import Any

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput


class StaticConfig(transformers.PreTrainedConfig):
    """The sizes of the table."""

    model_type = "static"
    vocab_size: int = 30522
    hidden_size: int = 256
    max_position_embeddings: int = 8192
    pad_token_id: int | None = 0

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers, which is not stored."""
        return 0


class _Embeddings(torch.nn.Module):
    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.word_embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)


class StaticModel(transformers.PreTrainedModel):
    """A table, whose parameters and outputs have the names that other encoders here give them."""

    config_class = StaticConfig
    base_model_prefix = "static"
    main_input_name = "input_ids"

    def __init__(self, config: StaticConfig) -> None:
        """Make an uninitialised table."""
        super().__init__(config)
        self.embeddings = _Embeddings(config)
        self.post_init()  # type: ignore[no-untyped-call]  # transformers'

    def get_input_embeddings(self) -> Any:
        """Return the table."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the table."""
        self.embeddings.word_embeddings = value

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **unused: Any
    ) -> BaseModelOutput:
        """Return the rows of the ids, `(batch, seq_len, hidden)`; no token sees another, so no mask is needed."""
        return BaseModelOutput(last_hidden_state=self.embeddings.word_embeddings(input_ids))


def register() -> None:
    """Let transformers' auto classes find the two."""
    transformers.AutoConfig.register(StaticConfig.model_type, StaticConfig, exist_ok=True)
    transformers.AutoModel.register(StaticConfig, StaticModel, exist_ok=True)
