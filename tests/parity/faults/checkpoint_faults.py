"""Faults in the checkpoint that is converted; the truth comes from the clean one.

`plant(tensors, config)` edits the tensors by name, as torch holds them, and the config's dict, both in place. What
ships beside the file stays the clean student's, so that the numbers have to give the fault away.
"""

from typing import Any

from faults.fault import Fault
from faults.students import BUNDLED, Student

Tensors = dict[str, Any]
Config = dict[str, Any]

_RARE_ROW = -100
_NO_TANH = "XNNPACK computes the erf form for either, and the file passes"


def _layer(number: int) -> str:
    return f"encoder.layer.{number}."


def _exchange(tensors: Tensors, first: str, second: str) -> None:
    """Exchange all tensors whose names contain `first` with those that contain `second` instead."""
    for name in [name for name in tensors if first in name]:
        other = name.replace(first, second)
        tensors[name], tensors[other] = tensors[other], tensors[name]


def _named(tensors: Tensors, ending: str) -> str:
    """Return the one name with this ending; prefixes differ by task."""
    (name,) = (name for name in tensors if name.endswith(ending))
    return name


def layers_swapped(tensors: Tensors, config: Config) -> None:
    _exchange(tensors, _layer(0), _layer(1))


def layers_swapped_deep(tensors: Tensors, config: Config) -> None:
    _exchange(tensors, _layer(3), _layer(4))


def layer_skipped(tensors: Tensors, config: Config) -> None:
    config["num_hidden_layers"] -= 1


def layer_repeated(tensors: Tensors, config: Config) -> None:
    for name in [name for name in tensors if _layer(1) in name]:
        tensors[name] = tensors[name.replace(_layer(1), _layer(0))].clone()


def query_key_exchanged(tensors: Tensors, config: Config) -> None:
    _exchange(tensors, _layer(1) + "attention.self.query", _layer(1) + "attention.self.key")


def query_key_exchanged_distilbert(tensors: Tensors, config: Config) -> None:
    _exchange(tensors, "layer.0.attention.q_lin", "layer.0.attention.k_lin")


def weight_transposed(tensors: Tensors, config: Config) -> None:
    name = _named(tensors, _layer(0) + "attention.output.dense.weight")
    tensors[name] = tensors[name].T.contiguous()


def bias_dropped(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, _layer(1) + "intermediate.dense.bias")].zero_()


def gamma_missing(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, _layer(0) + "output.dense.weight").replace("dense", "LayerNorm")].fill_(1.0)


def beta_missing(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "embeddings.LayerNorm.bias")].zero_()


def epsilon_of_torch(tensors: Tensors, config: Config) -> None:
    config["layer_norm_eps"] = 1e-5


def tanh_for_erf(tensors: Tensors, config: Config) -> None:
    config["hidden_act"] = "gelu_pytorch_tanh"


def erf_for_tanh(tensors: Tensors, config: Config) -> None:
    config["hidden_act"] = "gelu"


def relu_for_gelu(tensors: Tensors, config: Config) -> None:
    config["hidden_act"] = "relu"


def quick_gelu(tensors: Tensors, config: Config) -> None:
    config["hidden_act"] = "quick_gelu"


def wrong_number_of_heads(tensors: Tensors, config: Config) -> None:
    config["num_attention_heads"] //= 2


def positions_shifted(tensors: Tensors, config: Config) -> None:
    name = _named(tensors, "embeddings.position_embeddings.weight")
    tensors[name] = tensors[name].roll(-1, dims=0)


def token_types_swapped(tensors: Tensors, config: Config) -> None:
    name = _named(tensors, "embeddings.token_type_embeddings.weight")
    tensors[name] = tensors[name].flip(0)


def rare_row_corrupted(tensors: Tensors, config: Config) -> None:
    row = tensors[_named(tensors, "embeddings.word_embeddings.weight")][_RARE_ROW]
    row.copy_(row.roll(1))


def common_row_corrupted(tensors: Tensors, config: Config) -> None:
    table = tensors[_named(tensors, "embeddings.word_embeddings.weight")]
    table[1996] = table[1037]


def unknown_row_zero(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "embeddings.word_embeddings.weight")][100] = 0.0


def weight_nudged(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, _layer(1) + "attention.self.value.weight")][3, 5] += 0.05


def rounded_to_half(tensors: Tensors, config: Config) -> None:
    for name, tensor in tensors.items():
        tensors[name] = tensor.half().float()


def rounded_to_bfloat16(tensors: Tensors, config: Config) -> None:
    for name, tensor in tensors.items():
        tensors[name] = tensor.bfloat16().float()


def another_checkpoint(tensors: Tensors, config: Config) -> None:
    import torch

    generator = torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        tensors[name] = tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].reshape(tensor.shape)


def head_of_another_run(tensors: Tensors, config: Config) -> None:
    import torch

    weight = tensors["classifier.weight"]
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))
    weight.copy_(noise * weight.std())


def label_rows_exchanged(tensors: Tensors, config: Config) -> None:
    order = [2, 1, 0]
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][order].clone()


def pooler_bias_dropped(tensors: Tensors, config: Config) -> None:
    tensors["bert.pooler.dense.bias"].zero_()


def factor_bias_dropped(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "embedding_hidden_mapping_in.bias")].zero_()


def last_position_zero(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "embeddings.position_embeddings.weight")][31:] = 0.0


def _fault(name: str, what: str, plant: Any, student: Student = Student(), **more: Any) -> Fault:  # noqa: B008
    return Fault(name, what, "checkpoint", plant, student, **more)


_CLASSES = Student(task="classification")
_ALBERT = Student("albert")
FAULTS = (
    _fault("layers_swapped", "two layers are exchanged", layers_swapped),
    _fault("layer_skipped", "the last layer is left out", layer_skipped, stops="that BertModel has no place for"),
    _fault("layer_repeated", "the second layer has the first one's weights", layer_repeated),
    _fault("query_key_exchanged", "query and key of one layer are exchanged", query_key_exchanged),
    _fault(
        "query_key_exchanged_distilbert",
        "query and key are exchanged under DistilBERT's own names",
        query_key_exchanged_distilbert,
        Student("distilbert"),
    ),
    _fault("weight_transposed", "a square weight is stored transposed", weight_transposed),
    _fault("bias_dropped", "the bias of one linear is lost", bias_dropped),
    _fault("gamma_missing", "the gain of one LayerNorm is lost", gamma_missing),
    _fault("beta_missing", "the shift of one LayerNorm is lost", beta_missing),
    _fault("epsilon_of_torch", "LayerNorm has torch's epsilon, 1e-5, instead of the config's 1e-12", epsilon_of_torch),
    _fault(
        "tanh_for_erf",
        "gelu by tanh where the config says by erf",
        tanh_for_erf,
        undone={"executorch": _NO_TANH},
    ),
    _fault(
        "erf_for_tanh",
        "gelu by erf where the config says gelu_new",
        erf_for_tanh,
        _ALBERT,
        undone={"executorch": _NO_TANH},
    ),
    _fault("quick_gelu", "gelu is the sigmoid approximation", quick_gelu),
    _fault("relu_for_gelu", "relu instead of gelu", relu_for_gelu),
    _fault("wrong_number_of_heads", "two heads of 32 instead of four of 16", wrong_number_of_heads),
    _fault("positions_shifted", "the position table starts one row late", positions_shifted),
    _fault("token_types_swapped", "the rows of the token type table are exchanged", token_types_swapped),
    _fault("last_position_zero", "the position table is cut one short of the longest text", last_position_zero),
    _fault("common_row_corrupted", "'the' has the embedding of 'a'", common_row_corrupted),
    _fault("unknown_row_zero", "[UNK] has no embedding", unknown_row_zero),
    _fault("rare_row_corrupted", "one embedding row that no text uses is shifted", rare_row_corrupted),
    _fault("weight_nudged", "one weight is off by 0.05", weight_nudged),
    _fault("rounded_to_half", "weights went through half precision under the fp32 name", rounded_to_half),
    _fault("rounded_to_bfloat16", "weights went through bfloat16 under the fp32 name", rounded_to_bfloat16),
    _fault("another_checkpoint", "the weights are another run's", another_checkpoint),
    _fault("head_of_another_run", "the classifier is initialised again", head_of_another_run, _CLASSES),
    _fault(
        "label_rows_exchanged", "the classifier's first and last column are exchanged", label_rows_exchanged, _CLASSES
    ),
    _fault("pooler_bias_dropped", "the pooler's bias is lost before the classifier", pooler_bias_dropped, _CLASSES),
    _fault(
        "factor_bias_dropped", "ALBERT's map from embedding to hidden size has no bias", factor_bias_dropped, _ALBERT
    ),
    _fault(
        "layers_swapped_trained", "layers 4 and 5 of the trained student are exchanged", layers_swapped_deep, BUNDLED
    ),
    _fault("weight_nudged_trained", "one weight of the trained student is off by 0.05", weight_nudged, BUNDLED),
)
