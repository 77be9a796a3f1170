"""Faults of operators that int8's own rounding hides, each of which has to be caught in the int8 file alone.

`plant(graph)` edits a `checkpoint.loading.ExportGraph` in place, before the toolchain sees it, as in `graph_faults`.
Those that an embedding can have are planted in the bundled student as well: it is trained, and what people ship.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from faults.fault import INT8, Cells, Fault
from faults.graph_faults import (
    _attention,
    _before_model,
    _embeddings,
    _finish,
    _first_attention,
    _layers,
    _softmax,
)
from faults.students import BUNDLED, LENGTHS, Student
from pipeline.checkpoint.loading import MASKED

Plant = Callable[[Any], None]


def _between(number: Any, low: float, high: float) -> Any:
    """Return 1.0 where whole numbers lie between two bounds, inclusive, and 0.0 elsewhere."""
    return (1.0 - (low - number).clamp(min=0.0) - (number - high).clamp(min=0.0)).clamp(min=0.0)


def _places(graph: Any, length: int) -> Any:
    """Return the positions of a row as floats, `(1, seq_len)`."""
    return _embeddings(graph).position_ids[:, :length].to(torch.float32)


def _after(module: Any, edit: Callable[[Any], Any]) -> None:
    """Edit a module's output, the first one where it has several."""

    def hook(_module: Any, _args: Any, output: Any) -> Any:
        return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)

    module.register_forward_hook(hook)


# --- attention ---------------------------------------------------------------------------------------------------


def temperature_off_5(graph: Any) -> None:
    _first_attention(graph).scaling *= 1.05


def temperature_off_2(graph: Any) -> None:
    _first_attention(graph).scaling *= 1.02


def temperature_of_head_size_plus_one(graph: Any) -> None:
    for layer in _layers(graph):
        attention = layer.attention.self
        attention.scaling = (attention.attention_head_size + 1) ** -0.5


def head_louder(graph: Any) -> None:
    attention = _first_attention(graph)
    gain = torch.ones(attention.all_head_size)
    gain[: attention.attention_head_size] = 1.1
    _after(attention, lambda output: output * gain)


def head_sharper(graph: Any) -> None:
    attention = _first_attention(graph)
    gain = torch.ones(1, attention.num_attention_heads, 1, 1)
    gain[:, 0] = 1.1
    _attention(attention, lambda scores, mask: _softmax(scores * gain, mask))


def heads_of_last_layer_exchanged(graph: Any) -> None:
    attention = _layers(graph)[-1].attention.self
    size = attention.attention_head_size

    def edit(output: Any) -> Any:
        first, second, rest = output.split([size, size, output.shape[-1] - 2 * size], dim=-1)
        return torch.cat([second, first, rest], dim=-1)

    _after(attention, edit)


def _mask_of(value: float) -> Plant:
    def plant(graph: Any) -> None:
        _before_model(graph, lambda given: given.update(attention_mask=given["attention_mask"] * (value / -MASKED)))

    return plant


mask_minus_10 = _mask_of(10.0)
mask_minus_15 = _mask_of(15.0)


def mask_missing_in_one_layer(graph: Any) -> None:
    _attention(_layers(graph)[-1].attention.self, lambda scores, mask: torch.softmax(scores + mask * 0.0, dim=-1))


def mask_weak_in_one_head(graph: Any) -> None:
    attention = _first_attention(graph)
    strength = torch.ones(1, attention.num_attention_heads, 1, 1)
    strength[:, -1] = -8.0 / MASKED
    _attention(attention, lambda scores, mask: _softmax(scores, mask * strength))


def last_key_always_seen(graph: Any) -> None:
    def edit(given: dict[str, Any]) -> None:
        length = given["input_ids"].shape[1]
        seen = _between(_places(graph, length), LENGTHS[-1] - 1, LENGTHS[-1] - 1)
        given["attention_mask"] = given["attention_mask"] * (1.0 - seen)

    _before_model(graph, edit)


def softmax_plus_one(graph: Any) -> None:
    def weigh(scores: Any, mask: Any) -> Any:
        shares = torch.exp((scores + mask).clamp(max=60.0) - 8.0)
        return shares / (shares.sum(-1, keepdim=True) + 2.0**-12)

    _attention(_first_attention(graph), weigh)


def scores_clipped(graph: Any) -> None:
    _attention(_first_attention(graph), lambda scores, mask: _softmax(scores.clamp(-2.0, 2.0), mask))


# --- ids, positions, token types ---------------------------------------------------------------------------------


def _edit_ids(graph: Any, edit: Callable[[Any], Any]) -> None:
    _before_model(graph, lambda given: given.update(input_ids=edit(given["input_ids"])))


def ids_clamped(graph: Any) -> None:
    last = graph.model.config.vocab_size - 1
    _edit_ids(graph, lambda ids: ids.clamp(max=last - 1))


def ids_clamped_to_30000(graph: Any) -> None:
    _edit_ids(graph, lambda ids: ids.clamp(max=30_000))


def first_id_read_as_second(graph: Any) -> None:
    _edit_ids(graph, lambda ids: ids.clamp(min=1))


def types_ignored_late(graph: Any) -> None:
    def edit(given: dict[str, Any]) -> None:
        types = given["token_type_ids"]
        early = _between(_places(graph, types.shape[1]), 0, 19)
        given["token_type_ids"] = (types.to(torch.float32) * early).to(types.dtype)

    _before_model(graph, edit)


def positions_stop_at_24(graph: Any) -> None:
    _embeddings(graph).position_ids.clamp_(max=24)


def late_positions_off_by_one(graph: Any) -> None:
    _embeddings(graph).position_ids[:, 20:] -= 1


def two_positions_exchanged(graph: Any) -> None:
    numbers = _embeddings(graph).position_ids
    numbers[:, 25], numbers[:, 26] = 26, 25


# --- layers ------------------------------------------------------------------------------------------------------


def _norm_epsilon(epsilon: float) -> Plant:
    def plant(graph: Any) -> None:
        _layers(graph)[0].output.LayerNorm.eps = epsilon

    return plant


norm_epsilon_1e3 = _norm_epsilon(1e-3)
norm_epsilon_1e5 = _norm_epsilon(1e-5)


def _activation(function: Callable[[Any], Any]) -> Plant:
    class Act(nn.Module):
        """The activation of one layer."""

        def forward(self, hidden: Any) -> Any:
            return function(hidden)

    def plant(graph: Any) -> None:
        _layers(graph)[-1].intermediate.intermediate_act_fn = Act()

    return plant


tanh_gelu_in_one_layer = _activation(lambda hidden: nn.functional.gelu(hidden, approximate="tanh"))
quick_gelu_in_one_layer = _activation(lambda hidden: hidden * torch.sigmoid(1.702 * hidden))
relu_in_one_layer = _activation(torch.relu)
silu_in_one_layer = _activation(nn.functional.silu)
activation_clipped = _activation(lambda hidden: nn.functional.gelu(hidden).clamp(max=1.5))


def residual_weaker(graph: Any) -> None:
    part = _layers(graph)[0].output
    part.forward = lambda hidden, given: part.LayerNorm(part.dense(hidden) + given * 0.99)


def layer_runs_twice(graph: Any) -> None:
    layer = _layers(graph)[-1]
    clean = layer.forward

    def forward(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        once = clean(hidden, *args, **kwargs)
        again = clean(once[0] if isinstance(once, tuple) else once, *args, **kwargs)
        return again

    layer.forward = forward


def first_token_attends_to_nothing(graph: Any) -> None:
    attention = _layers(graph)[-1].attention.self
    _after(attention, lambda output: output * _places(graph, output.shape[1]).clamp(max=1.0)[:, :, None])


def one_position_attends_to_nothing(graph: Any) -> None:
    attention = _first_attention(graph)
    _after(attention, lambda output: output * (1.0 - _between(_places(graph, output.shape[1]), 21, 21))[:, :, None])


def noise_left_in(graph: Any) -> None:
    noise = torch.randn(graph.model.config.hidden_size, generator=torch.Generator().manual_seed(7)) * 0.01
    _after(_layers(graph)[0].output.dense, lambda output: output + noise)


def hidden_states_clipped(graph: Any) -> None:
    _after(_layers(graph)[0], lambda output: output.clamp(-2.0, 2.0))


# --- outputs -----------------------------------------------------------------------------------------------------


def _pooled(weights: Callable[[Any, Any], Any]) -> Plant:
    """Pool with other weights than the mask, which are made from places and mask, both `(batch, seq_len)`."""

    def plant(graph: Any) -> None:
        clean = graph.head.outputs
        _finish(graph, lambda output, mask: clean(output, weights(_places(graph, mask.shape[1]), mask)))

    return plant


first_token_counts_twice = _pooled(lambda places, mask: mask * (2.0 - places.clamp(max=1.0)))
late_tokens_left_out = _pooled(lambda places, mask: mask * _between(places, 0, 26))
last_token_left_out = _pooled(
    lambda places, mask: mask * (mask.sum(1, keepdim=True) - 1.0 - places + 1e-6).clamp(min=0.0, max=1.0)
)


def pooled_over_pads_when_short(graph: Any) -> None:
    clean = graph.head.outputs

    def finish(output: Any, mask: Any) -> Any:
        return clean(output, torch.ones_like(mask) if mask.shape[1] == LENGTHS[0] else mask)

    _finish(graph, finish)


def final_epsilon_of_1(graph: Any) -> None:
    def mean(output: Any, mask: Any) -> Any:
        vector = (output.last_hidden_state * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1.0)
        return (vector * torch.rsqrt((vector * vector).sum(1, keepdim=True) + 1.0),)

    _finish(graph, mean)


def _on_logits(edit: Callable[[Any, Any], Any]) -> Plant:
    def plant(graph: Any) -> None:
        _finish(graph, lambda output, mask: (edit(output.logits, mask.sum(1, keepdim=True)),))

    return plant


logits_louder = _on_logits(lambda logits, count: logits * 1.02)
first_class_favoured = _on_logits(lambda logits, count: logits + torch.tensor([0.05, 0.0, 0.0]))
log_softmax_in_graph = _on_logits(lambda logits, count: torch.log_softmax(logits, dim=-1))
logits_clipped = _on_logits(lambda logits, count: logits.clamp(-1.5, 1.5))
value_shifted = _on_logits(lambda logits, count: logits + torch.tensor([0.25]))
value_shifted_slightly = _on_logits(lambda logits, count: logits + torch.tensor([0.05]))
value_clipped = _on_logits(lambda logits, count: logits.clamp(-0.5, 0.5))
value_rectified = _on_logits(lambda logits, count: torch.relu(logits))
tags_louder = _on_logits(lambda logits, count: logits * 1.02)


def pooler_without_tanh(graph: Any) -> None:
    graph.model.base_model.pooler.activation = nn.Hardtanh()


def span_ends_favour_the_first(graph: Any) -> None:
    def finish(output: Any, mask: Any) -> Any:
        return output.start_logits, output.end_logits + 0.1 * _between(_places(graph, mask.shape[1]), 0, 0)

    _finish(graph, finish)


# --- the catalogue -----------------------------------------------------------------------------------------------

_REFUSED: dict[Plant, str] = {
    softmax_plus_one: "gives NaN or infinity",
    first_id_read_as_second: "index 30528 is out of bounds",
}
"""How some files are refused where they are converted or first run.

Core ML clamps ids in half precision, and its exponents overflow without a softmax's shift.
"""
_ONE_GRAPH = {"executorch": "one graph serves every length"}
_ONE_GELU = {"executorch": "XNNPACK computes the erf form for either, and the file passes"}
_FIXED: Cells = {name: INT8[name] for name in ("litert", "coreml")}
_EMBEDDINGS: dict[Plant, tuple[str, str]] = {
    temperature_off_5: ("temperature_off_5", "one layer's attention scores are 5 % too large"),
    temperature_off_2: ("temperature_off_2", "one layer's attention scores are 2 % too large"),
    temperature_of_head_size_plus_one: ("temperature_of_head_size_plus_one", "attention divides by √(head size + 1)"),
    head_louder: ("head_louder", "one head's output is 10 % too large"),
    head_sharper: ("head_sharper", "one head's scores are 10 % too large"),
    heads_of_last_layer_exchanged: ("heads_of_last_layer_exchanged", "two heads' outputs are exchanged"),
    mask_minus_10: ("mask_minus_10", "padding is masked with -10"),
    mask_minus_15: ("mask_minus_15", "padding is masked with -15"),
    mask_missing_in_one_layer: ("mask_missing_in_one_layer", "the last layer has no mask"),
    mask_weak_in_one_head: ("mask_weak_in_one_head", "one head masks padding with -8"),
    last_key_always_seen: ("last_key_always_seen", "the last position of the longest length is never masked"),
    softmax_plus_one: ("softmax_plus_one", "the softmax divides by a little more than its sum"),
    scores_clipped: ("scores_clipped", "attention scores are clipped to ±2, a calibrated range that was too narrow"),
    ids_clamped: ("ids_clamped", "the last id is read as the one before it"),
    ids_clamped_to_30000: ("ids_clamped_to_30000", "ids beyond 30,000 are read as 30,000"),
    first_id_read_as_second: ("first_id_read_as_second", "id 0 is read as id 1"),
    types_ignored_late: ("types_ignored_late", "token types from position 20 on are read as zeros"),
    positions_stop_at_24: ("positions_stop_at_24", "positions beyond 24 repeat it"),
    late_positions_off_by_one: ("late_positions_off_by_one", "positions from 20 on are one too low"),
    two_positions_exchanged: ("two_positions_exchanged", "positions 25 and 26 are exchanged"),
    norm_epsilon_1e3: ("norm_epsilon_1e3", "one LayerNorm has an epsilon of 1e-3"),
    norm_epsilon_1e5: ("norm_epsilon_1e5", "one LayerNorm has torch's epsilon of 1e-5"),
    tanh_gelu_in_one_layer: ("tanh_gelu_in_one_layer", "the last layer has gelu by tanh"),
    quick_gelu_in_one_layer: ("quick_gelu_in_one_layer", "the last layer has the sigmoid's gelu"),
    relu_in_one_layer: ("relu_in_one_layer", "the last layer has relu"),
    silu_in_one_layer: ("silu_in_one_layer", "the last layer has silu"),
    activation_clipped: ("activation_clipped", "the last layer's activations end at 1.5"),
    residual_weaker: ("residual_weaker", "one residual is scaled by 0.99"),
    layer_runs_twice: ("layer_runs_twice", "the last layer runs twice"),
    first_token_attends_to_nothing: ("first_token_attends_to_nothing", "[CLS] attends to nothing in the last layer"),
    one_position_attends_to_nothing: ("one_position_attends_to_nothing", "position 21 attends to nothing in the first"),
    noise_left_in: ("noise_left_in", "a fixed noise of 0.01 is added in the first layer"),
    hidden_states_clipped: ("hidden_states_clipped", "the first layer's output is clipped to ±2"),
    first_token_counts_twice: ("first_token_counts_twice", "the mean counts the first token twice"),
    late_tokens_left_out: ("late_tokens_left_out", "the mean leaves out tokens beyond the 27th"),
    last_token_left_out: ("last_token_left_out", "the mean leaves out each text's last token"),
    pooled_over_pads_when_short: ("pooled_over_pads_when_short", "at the shorter length the mean counts padding"),
    final_epsilon_of_1: ("final_epsilon_of_1", "the embedding is divided by a length with an epsilon of 1"),
}
"""By `plant`: name, and what went wrong."""
_UNDONE: dict[Plant, dict[str, str]] = {tanh_gelu_in_one_layer: _ONE_GELU}
_NOT_FOR: dict[Plant, dict[str, str]] = {pooled_over_pads_when_short: _ONE_GRAPH}
_CLASSES, _VALUE = Student(task="classification"), Student(task="regression")
_TAGS, _SPANS = Student(task="token_classification"), Student(task="question_answering")
_TASKS: tuple[tuple[str, str, Plant, Student], ...] = (
    ("logits_louder", "logits are 2 % too large", logits_louder, _CLASSES),
    ("first_class_favoured", "the first class's logit is 0.05 too high", first_class_favoured, _CLASSES),
    ("log_softmax_in_graph", "the file gives logarithms of probabilities", log_softmax_in_graph, _CLASSES),
    ("logits_clipped", "logits are clipped to ±1.5", logits_clipped, _CLASSES),
    ("pooler_without_tanh", "the pooler has a hard tanh", pooler_without_tanh, _CLASSES),
    ("value_shifted", "the value is 0.25 too high", value_shifted, _VALUE),
    ("value_shifted_slightly", "the value is 0.05 too high", value_shifted_slightly, _VALUE),
    ("value_clipped", "the value is clipped to ±0.5", value_clipped, _VALUE),
    ("value_rectified", "negative values are zero", value_rectified, _VALUE),
    ("tags_louder", "tags' logits are 2 % too large", tags_louder, _TAGS),
    ("span_ends_favour_the_first", "the first token's end logit is 0.1 too high", span_ends_favour_the_first, _SPANS),
)  # fmt: skip


def _embeddings_faults(plants: Iterable[Plant], student: Student, ending: str = "") -> Iterator[Fault]:
    for plant in plants:
        name, what = _EMBEDDINGS[plant]
        not_for = _NOT_FOR.get(plant, {})
        cells = _FIXED if "executorch" in not_for else INT8
        undone = _UNDONE.get(plant, {})
        stops = _REFUSED.get(plant)
        yield Fault(
            f"{name}{ending}", what, "graph", plant, student, cells, not_for, undone=undone, alone=True, stops=stops
        )


FAULTS = (
    *_embeddings_faults(_EMBEDDINGS, Student()),
    *(
        Fault(name, what, "graph", plant, student, INT8, alone=True, stops=_REFUSED.get(plant))
        for name, what, plant, student in _TASKS
    ),
)
OF_TRAINED = tuple(_embeddings_faults(_EMBEDDINGS, BUNDLED, "_trained"))
