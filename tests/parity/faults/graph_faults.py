"""Faults in the graph that is exported, or in the samples that it is traced with.

`plant(graph)` edits a `checkpoint.loading.ExportGraph` in place, before the toolchain sees it. `plant(samples)` of
level "samples" returns other sample inputs.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from faults.fault import Fault
from faults.students import LENGTHS, Student
from pipeline.checkpoint.loading import MASKED

_RANDOM_OP = "rand_like|native_dropout|bernoulli|dropout"
"""Toolchains have no random operation, and say so."""
_ONE_GRAPH = "one graph serves every length"
_FITS_FLOAT = "in single precision the value is finite, and the numbers are right"


def _layers(graph: Any) -> Any:
    return graph.model.base_model.encoder.layer


def _embeddings(graph: Any) -> Any:
    return graph.model.base_model.embeddings


def _before_model(graph: Any, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit the arguments of the Hugging Face model, its additive mask `(batch, 1, 1, seq_len)` among them."""

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        edit(kwargs)
        return args, kwargs

    graph.model.register_forward_pre_hook(hook, with_kwargs=True)


def _finish(graph: Any, finish: Callable[[Any, Any], Any]) -> None:
    graph.head = replace(graph.head, outputs=finish)


# --- masks -------------------------------------------------------------------------------------------------------


def mask_ignored(graph: Any) -> None:
    _before_model(graph, lambda given: given.update(attention_mask=given["attention_mask"] * 0.0))


def mask_inverted(graph: Any) -> None:
    _before_model(graph, lambda given: given.update(attention_mask=MASKED - given["attention_mask"]))


def mask_added_as_ones(graph: Any) -> None:
    _before_model(graph, lambda given: given.update(attention_mask=1.0 - given["attention_mask"] / MASKED))


def mask_too_weak(graph: Any) -> None:
    _before_model(graph, lambda given: given.update(attention_mask=given["attention_mask"] * (5.0 / -MASKED)))


def mask_of_finfo_min(graph: Any) -> None:
    lowest = torch.finfo(torch.float32).min
    _before_model(graph, lambda given: given.update(attention_mask=given["attention_mask"] / MASKED * lowest))


def token_types_dead(graph: Any) -> None:
    _before_model(graph, lambda given: given.update(token_type_ids=given["token_type_ids"] * 0))


def mask_read_as_token_types(graph: Any) -> None:
    def edit(given: dict[str, Any]) -> None:
        ones = 1.0 - given["attention_mask"][:, 0, 0, :] / MASKED
        given["token_type_ids"] = given["token_type_ids"] * 0 + ones.to(given["token_type_ids"].dtype)

    _before_model(graph, edit)


# --- positions and lengths ---------------------------------------------------------------------------------------


def positions_off_by_one(graph: Any) -> None:
    _embeddings(graph).position_ids += 1


def positions_stop_at_calibrated_length(graph: Any) -> None:
    _embeddings(graph).position_ids.clamp_(max=LENGTHS[0] - 1)


def one_length_wrong(graph: Any) -> None:
    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs["input_ids"].shape[1] == LENGTHS[0]:
            kwargs["position_ids"] = module.position_ids[:, 1 : LENGTHS[0] + 1]
        return args, kwargs

    _embeddings(graph).register_forward_pre_hook(hook, with_kwargs=True)


# --- attention ---------------------------------------------------------------------------------------------------

Weigh = Callable[[Any, Any], Any]
"""`(scores (batch, heads, queries, keys), additive mask) -> weights` of the same shape."""


def _attention(module: Any, weigh: Weigh, *, transposed: bool = True) -> None:
    """Give a self-attention module a forward of our own."""

    def forward(hidden: Any, attention_mask: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, None]:
        batch, length, width = hidden.shape
        shape = (batch, length, module.num_attention_heads, module.attention_head_size)
        query, key, value = (f(hidden).view(shape).transpose(1, 2) for f in (module.query, module.key, module.value))
        weights = weigh(query @ key.transpose(2, 3) * module.scaling, attention_mask)
        mixed = weights @ value  # (batch, heads, seq_len, head size)
        return (mixed.transpose(1, 2) if transposed else mixed).reshape(batch, length, width), None

    module.forward = forward


def _first_attention(graph: Any) -> Any:
    return _layers(graph)[0].attention.self


def _softmax(scores: Any, mask: Any) -> Any:
    return torch.softmax(scores + mask, dim=-1)


def scale_missing(graph: Any) -> None:
    _first_attention(graph).scaling = 1.0


def scale_of_hidden_size(graph: Any) -> None:
    for layer in _layers(graph):
        layer.attention.self.scaling = graph.model.config.hidden_size**-0.5


def softmax_over_queries(graph: Any) -> None:
    _attention(_first_attention(graph), lambda scores, mask: torch.softmax(scores + mask, dim=-2))


def softmax_twice(graph: Any) -> None:
    _attention(_first_attention(graph), lambda scores, mask: torch.softmax(_softmax(scores, mask) + mask, dim=-1))


def mask_after_softmax(graph: Any) -> None:
    _attention(_first_attention(graph), lambda scores, mask: torch.softmax(scores, dim=-1) * (1.0 - mask / MASKED))


def heads_not_transposed(graph: Any) -> None:
    _attention(_first_attention(graph), _softmax, transposed=False)


def head_dropped(graph: Any) -> None:
    attention = _first_attention(graph)
    keep = torch.ones(attention.all_head_size)
    keep[-attention.attention_head_size :] = 0.0
    attention.register_forward_hook(lambda module, args, output: (output[0] * keep, *output[1:]))


# --- layers ------------------------------------------------------------------------------------------------------


def residual_missing(graph: Any) -> None:
    part = _layers(graph)[1].attention.output
    part.forward = lambda hidden, given: part.LayerNorm(part.dense(hidden))


def embedding_norm_skipped(graph: Any) -> None:
    _embeddings(graph).LayerNorm = nn.Identity()


def activation_missing(graph: Any) -> None:
    _layers(graph)[1].intermediate.intermediate_act_fn = nn.Identity()


class _UnbiasedNorm(nn.Module):
    """LayerNorm with the sample's variance, by n - 1."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.share = norm.normalized_shape[0] / (norm.normalized_shape[0] - 1)

    def forward(self, hidden: Any) -> Any:
        centred = hidden - hidden.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True) * self.share
        return centred * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def norm_by_n_minus_one(graph: Any) -> None:
    part = _layers(graph)[0].output
    part.LayerNorm = _UnbiasedNorm(part.LayerNorm)


class _Dropout(nn.Module):
    """Dropout that never learnt that training is over."""

    def forward(self, hidden: Any) -> Any:
        return nn.functional.dropout(hidden, 0.1, training=True)


def dropout_left_on(graph: Any) -> None:
    _layers(graph)[1].output.dropout = _Dropout()


def albert_copy_stale(graph: Any) -> None:
    encoder = graph.model.base_model.encoder
    stale = copy.deepcopy(encoder.albert_layer_groups[0])
    with torch.no_grad():
        for parameter in stale.parameters():
            parameter.mul_(0.97)
    encoder.albert_layer_groups.append(stale)
    encoder.config.num_hidden_groups = 2


# --- output ------------------------------------------------------------------------------------------------------


def pooled_before_last_layer(graph: Any) -> None:
    kept: list[Any] = []
    _layers(graph)[-1].register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    clean = graph.head.outputs

    def finish(output: Any, mask: Any) -> Any:
        output.last_hidden_state = kept.pop()
        return clean(output, mask)

    _finish(graph, finish)


def pooled_over_pads(graph: Any) -> None:
    clean = graph.head.outputs
    _finish(graph, lambda output, mask: clean(output, mask * 0.0 + 1.0))


def cls_for_mean(graph: Any) -> None:
    def first_token(output: Any, mask: Any) -> Any:
        vector = output.last_hidden_state[:, 0] * mask[:, :1]
        return (vector * torch.rsqrt((vector * vector).sum(1, keepdim=True).clamp(min=1e-12)),)

    _finish(graph, first_token)


def special_tokens_left_out(graph: Any) -> None:
    clean = graph.head.outputs

    def finish(output: Any, mask: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, 1:]
        return clean(output, mask[:, 1:])

    _finish(graph, finish)


def norm_missing(graph: Any) -> None:
    def mean(output: Any, mask: Any) -> Any:
        return ((output.last_hidden_state * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0),)

    _finish(graph, mean)


def nan_on_all_pad(graph: Any) -> None:
    def unguarded(output: Any, mask: Any) -> Any:
        mean = (output.last_hidden_state * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return (mean * torch.rsqrt((mean * mean).sum(1, keepdim=True)),)

    _finish(graph, unguarded)


def softmax_in_graph(graph: Any) -> None:
    _finish(graph, lambda output, mask: (torch.softmax(output.logits, dim=-1),))


def columns_exchanged(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.logits.flip(1),))


# --- samples -----------------------------------------------------------------------------------------------------


def samples_are_one_object(samples: tuple[Any, ...]) -> tuple[Any, ...]:
    return (samples[0],) * len(samples)


def _fault(name: str, what: str, plant: Any, student: Student = Student(), **more: Any) -> Fault:  # noqa: B008
    return Fault(name, what, more.pop("level", "graph"), plant, student, **more)


_CLASSES = Student(task="classification")
_FP16_CORE_ML = {"coreml": ("fp16", "int8_weight_only")}
_FIXED = {"litert": ("fp32", "int8_dynamic"), "coreml": ("fp32", "fp16", "int8_weight_only")}
FAULTS = (
    _fault("mask_ignored", "attention sees the padding", mask_ignored),
    _fault("mask_inverted", "attention sees the padding alone", mask_inverted),
    _fault("mask_added_as_ones", "the mask's ones and zeros are added to the scores as they are", mask_added_as_ones),
    _fault("mask_too_weak", "padding is masked with -5", mask_too_weak),
    _fault(
        "mask_of_finfo_min",
        "padding is masked with float32's lowest number, infinite in half precision",
        mask_of_finfo_min,
        cells=_FP16_CORE_ML,
        not_for={"litert": _FITS_FLOAT, "coreml-fp32": _FITS_FLOAT, "executorch": _FITS_FLOAT},
        stops="gives NaN or infinity",
    ),
    _fault("mask_after_softmax", "weights are masked after the softmax and do not add up to one", mask_after_softmax),
    _fault("token_types_dead", "token types are read as zeros", token_types_dead),
    _fault("mask_read_as_token_types", "the mask is read as token types", mask_read_as_token_types),
    _fault("positions_off_by_one", "position ids start at one", positions_off_by_one),
    _fault(
        "positions_stop_at_calibrated_length",
        "positions beyond the calibrated length repeat its last one",
        positions_stop_at_calibrated_length,
    ),
    _fault(
        "one_length_wrong",
        "the shorter length's graph has its positions off by one",
        one_length_wrong,
        cells=_FIXED,
        not_for={"executorch": _ONE_GRAPH},
    ),
    _fault("scale_missing", "attention scores of one layer are not scaled", scale_missing),
    _fault("scale_of_hidden_size", "attention is scaled by the hidden size, not the head's", scale_of_hidden_size),
    _fault("softmax_over_queries", "the softmax runs over the wrong axis", softmax_over_queries),
    _fault("softmax_twice", "attention weights go through a second softmax", softmax_twice),
    _fault(
        "heads_not_transposed",
        "heads are merged without being transposed back",
        heads_not_transposed,
        # Lengths and heads are mixed, so torch.export finds lengths that the graph cannot take.
        stops="Constraints violated",
    ),
    _fault("head_dropped", "one head gives zeros", head_dropped),
    _fault("residual_missing", "one residual connection is missing", residual_missing),
    _fault("embedding_norm_skipped", "the embeddings' LayerNorm is skipped", embedding_norm_skipped),
    _fault("activation_missing", "one layer has no activation", activation_missing),
    _fault("norm_by_n_minus_one", "a LayerNorm divides by n - 1", norm_by_n_minus_one),
    _fault(
        "dropout_left_on",
        "dropout is left on at export",
        dropout_left_on,
        stops=_RANDOM_OP,
        undone={"coreml": "coremltools leaves dropout out of every graph, and the file passes"},
    ),
    _fault(
        "albert_copy_stale", "ALBERT's layers no longer share: one copy is stale", albert_copy_stale, Student("albert")
    ),
    _fault("pooled_before_last_layer", "pooling reads the layer before the last", pooled_before_last_layer),
    _fault("pooled_over_pads", "the mean counts padding", pooled_over_pads),
    _fault("cls_for_mean", "the first token's vector instead of the mean", cls_for_mean),
    _fault("special_tokens_left_out", "the mean leaves the first token out", special_tokens_left_out),
    _fault("norm_missing", "the embedding is not normalised", norm_missing),
    _fault("nan_on_all_pad", "a row of padding alone divides zero by zero", nan_on_all_pad),
    _fault("softmax_in_graph", "the file gives probabilities instead of logits", softmax_in_graph, _CLASSES),
    _fault(
        "columns_exchanged",
        "the logits come out in the opposite order",
        columns_exchanged,
        _CLASSES,
    ),
    _fault(
        "samples_are_one_object",
        "the sample inputs are one tensor",
        samples_are_one_object,
        level="samples",
    ),
)
