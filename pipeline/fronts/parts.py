"""Count the parts of a checkpoint that decide a file's size and its latency. Imports nothing heavy."""

from typing import Any

from pydantic import BaseModel, ConfigDict

LINEARS = ("query", "key", "value", "attention_output", "intermediate", "output")


class Parts(BaseModel):
    """The parts of a checkpoint, at one sequence length."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: int
    """Parameters of the table of words; of a factorised one, of its first factor."""
    others: int
    """All other parameters, each shared one once."""
    layers: int
    """Layers of the forward pass."""
    linear_macs: int
    """Multiply-adds of the layers' linears."""
    attention_macs: int
    """Multiply-adds of scores and weighted sums: two products of activations."""
    activations: int
    """Numbers that pass through an activation function: tokens × intermediate neurons, over all layers."""
    states: int
    """Numbers that norms and residuals pass over: tokens × hidden size, over all layers."""

    @property
    def macs(self) -> int:
        """All multiply-adds of the layers."""
        return self.linear_macs + self.attention_macs

    @property
    def features(self) -> tuple[float, ...]:
        """What a latency is explained by, see `costs`."""
        return (1.0, float(self.layers), self.linear_macs / 1e6, self.attention_macs / 1e6, self.activations / 1e6)


def count(model: Any, *, length: int) -> dict[str, int]:
    """Return the `Parts` of a Hugging Face model as JSON values; a student without layers has none to count.

    Args:
        model: the model.
        length: tokens of a row.
    """
    from pipeline import architectures
    from pipeline.architectures import layers

    parameters = {id(one): one for one in model.parameters()}
    rows = int(getattr(model.config, "vocab_size", 0))
    table = max((one.numel() for one in parameters.values() if one.dim() == 2 and one.shape[0] == rows), default=0)
    others = sum(one.numel() for one in parameters.values()) - table
    row = architectures.get(model.config.model_type)
    every = [] if isinstance(row.layout, str) else layers.layers(model)
    linear = attention = activations = states = depth = 0
    for layer in every:
        modules = [layer.get(name) for name in LINEARS]
        weights = sum(one.numel() for module in modules for one in module.parameters() if one.dim() == 2)
        depth += layer.passes
        linear += weights * length * layer.passes
        attention += 2 * length**2 * layer.heads * layer.head_size * layer.passes
        activations += length * layer.intermediate_size * layer.passes
        states += length * int(model.config.hidden_size) * layer.passes
    return Parts(
        table=table,
        others=others,
        layers=depth,
        linear_macs=linear,
        attention_macs=attention,
        activations=activations,
        states=states,
    ).model_dump()
