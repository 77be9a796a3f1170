"""Unusual settings that are right: odd widths, one layer, tied layers, other epsilons and activations, 16-bit weights.

A file of such a student that fails is a false alarm. They stand beside a page of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is other than in the tiny students of `students`."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json."""
    architecture: str = "bert"
    task: str = "embedding"
    pieces: str = "wordpiece"
    labels: tuple[str, ...] = ()
    dtype: str = "float32"
    """In which the checkpoint is saved."""
    lengths: tuple[int, ...] = (16, 32)
    calibrated: bool = False
    """Whether it is there for schemes that are calibrated, and for these alone."""
    training_steps: int = 0
    """Updates by which its quantised checkpoints are trained."""
    edit: Callable[[Tensors], Tensors] | None = None
    """What is done to the tensors before they are saved."""


def _gains_of_three(tensors: Tensors) -> Tensors:
    return {name: tensor * 0 + 3.0 if name.endswith("LayerNorm.weight") else tensor for name, tensor in tensors.items()}


def _layers_tied(tensors: Tensors) -> Tensors:
    first, second = "encoder.layer.0.", "encoder.layer.1."
    return {name: tensors[name.replace(second, first)].clone() for name in tensors}


def _pruned(tensors: Tensors) -> Tensors:
    """Take a head of 16 and 27 neurons from the first layer."""
    pruned = dict(tensors)
    for name, tensor in tensors.items():
        if "encoder.layer.0." not in name:
            continue
        if any(f".self.{part}." in name for part in ("query", "key", "value")):
            pruned[name] = tensor[:48]
        elif name.endswith("attention.output.dense.weight"):
            pruned[name] = tensor[:, :48]
        elif ".intermediate." in name:
            pruned[name] = tensor[:101]
        elif name.endswith("0.output.dense.weight"):
            pruned[name] = tensor[:, :101]
    return pruned


def _half_are_zero(tensors: Tensors) -> Tensors:
    """Set the smaller half of each matrix of the encoder to zero, as unstructured pruning does."""
    return {
        name: tensor * (tensor.abs() >= tensor.abs().median()) if tensor.dim() == 2 and "encoder" in name else tensor
        for name, tensor in tensors.items()
    }


def _outliers(tensors: Tensors) -> Tensors:
    """Make a channel behind each norm but the last ones larger, as trained encoders have it: gains are taken there."""
    for name, tensor in tensors.items():
        if "LayerNorm" in name and name.endswith("weight") and ".1.output." not in name:
            tensor[3] *= 8.0
    return tensors


SETTINGS: dict[str, Setting] = {
    "": Setting(),
    "width_36": Setting({"hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 77}),
    "width_60": Setting({"hidden_size": 60, "num_attention_heads": 5, "intermediate_size": 131}),
    "one_head": Setting({"num_attention_heads": 1}),
    "sixteen_heads": Setting({"num_attention_heads": 16}),
    "one_layer": Setting({"num_hidden_layers": 1}),
    "five_layers": Setting({"num_hidden_layers": 5}),
    "gains_of_three": Setting(edit=_gains_of_three),
    "layers_tied": Setting(edit=_layers_tied),
    "pruned": Setting({"pocketbert": {"version": 1, "head_size": 16}}, edit=_pruned),
    "half_are_zero": Setting(edit=_half_are_zero),
    "epsilon_1e5": Setting({"layer_norm_eps": 1e-5}),
    "epsilon_1e6": Setting({"layer_norm_eps": 1e-6}),
    "relu": Setting({"hidden_act": "relu"}),
    "gelu_new": Setting({"hidden_act": "gelu_new"}),
    "gelu_pytorch_tanh": Setting({"hidden_act": "gelu_pytorch_tanh"}),
    "silu": Setting({"hidden_act": "silu"}),
    "mish": Setting({"hidden_act": "mish"}),
    "quick_gelu": Setting({"hidden_act": "quick_gelu"}),
    "relu2": Setting({"hidden_act": "relu2"}),
    "rows_to_spare": Setting({"vocab_size": 30_528}),
    "positions_40": Setting({"max_position_embeddings": 40}),
    "three_token_types": Setting({"type_vocab_size": 3}),
    "bfloat16": Setting(dtype="bfloat16"),
    "float16": Setting(dtype="float16"),
    "unicode_labels": Setting(task="classification", labels=("négatif ✗", "中立", "Ñandú 🙂")),
    "two_labels": Setting(task="classification", labels=("no", "yes")),
    "seventeen_tags": Setting(task="token_classification", labels=tuple(f"tag {number}" for number in range(17))),
    "lengths_7_33": Setting(lengths=(7, 33)),
    "one_length": Setting(lengths=(24,)),
    "albert_groups": Setting({"num_hidden_groups": 2}, "albert"),
    "albert_six_layers": Setting({"num_hidden_layers": 6, "embedding_size": 16}, "albert"),
    "distilbert_odd": Setting({"dim": 36, "n_heads": 3, "hidden_dim": 77, "n_layers": 1}, "distilbert"),
    "roberta_odd": Setting({"hidden_size": 36, "num_attention_heads": 3}, "roberta", pieces="byte_bpe"),
    "electra_wide_table": Setting({"embedding_size": 64}, "electra", "regression"),
    "outliers": Setting(edit=_outliers, calibrated=True),
    "outliers_trained": Setting(edit=_outliers, calibrated=True, training_steps=40),
    "mobilebert_three_ffns": Setting({"num_feedforward_networks": 3}, "mobilebert"),
}
"""By name. The tokenizer's 30,522 tokens bound the vocabulary of most from below."""
