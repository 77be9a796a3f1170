"""Faults that belong to one kind of student or task: RoBERTa, ELECTRA, MobileBERT, ALBERT; tags, spans, values.

Planted as in `checkpoint_faults` and `graph_faults`: `plant(tensors, config)` or `plant(graph)`, by the row's level.
"""

import copy
from typing import Any

import torch
from torch import nn

from faults.checkpoint_faults import Config, Tensors, _exchange, _named
from faults.fault import Fault
from faults.graph_faults import _embeddings, _finish
from faults.students import Student

# --- checkpoints -------------------------------------------------------------------------------------------------


def padding_offset_lost(tensors: Tensors, config: Config) -> None:
    name = _named(tensors, "embeddings.position_embeddings.weight")
    tensors[name] = tensors[name].roll(2, dims=0)


def only_token_type_lost(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "embeddings.token_type_embeddings.weight")].zero_()


def projection_bias_dropped(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "embeddings_project.bias")].zero_()


def trigram_reversed(tensors: Tensors, config: Config) -> None:
    name = _named(tensors, "embeddings.embedding_transformation.weight")
    following, own, before = tensors[name].chunk(3, dim=1)
    tensors[name] = torch.cat([before, own, following], dim=1)


def no_norm_gain_lost(tensors: Tensors, config: Config) -> None:
    tensors[_named(tensors, "encoder.layer.0.bottleneck.input.LayerNorm.weight")].fill_(1.0)


def feed_forwards_exchanged(tensors: Tensors, config: Config) -> None:
    _exchange(tensors, "encoder.layer.0.ffn.0.intermediate.", "encoder.layer.0.intermediate.")


def tag_rows_rotated(tensors: Tensors, config: Config) -> None:
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name].roll(1, dims=0)


def head_bias_dropped(tensors: Tensors, config: Config) -> None:
    tensors["classifier.bias"].zero_()


# --- graphs ------------------------------------------------------------------------------------------------------


def positions_follow_padding_id(graph: Any) -> None:
    """Count from the padding id on, not from the next: what `cumsum(mask) + padding` less one gives."""
    embeddings = _embeddings(graph)
    clean = embeddings.position_embeddings.forward
    embeddings.position_embeddings.forward = lambda ids: clean((ids - 1).clamp(min=0))


def head_tanh_dropped(graph: Any) -> None:
    head = graph.model.classifier
    head.forward = lambda features, **more: head.out_proj(head.dense(features[:, 0]))


def head_of_bert(graph: Any) -> None:
    graph.model.classifier.activation = nn.Tanh()


def head_relu_dropped(graph: Any) -> None:
    model = graph.model

    def finish(output: Any, mask: Any) -> Any:
        first = output.hidden_states[-1][:, 0]
        return (model.classifier(model.pre_classifier(first)),)

    model.config.output_hidden_states = True
    _finish(graph, finish)


def padding_joined_to_last_token(graph: Any) -> None:
    embeddings = _embeddings(graph)
    embeddings.word_embeddings = embeddings.word_embeddings.table


def layers_nearly_shared(graph: Any) -> None:
    encoder = graph.model.base_model.encoder
    second = copy.deepcopy(encoder.albert_layer_groups[0])
    with torch.no_grad():
        for parameter in second.parameters():
            # Less than int8 can tell, and enough for no toolchain to store both as one.
            parameter.mul_(1.0 + 2.0**-18)
    encoder.albert_layer_groups.append(second)
    encoder.config.num_hidden_groups = 2


def tags_shifted(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.logits.roll(1, 1),))


def tags_averaged_with_next(graph: Any) -> None:
    _finish(graph, lambda output, mask: ((output.logits + output.logits.roll(-1, 1)) * 0.5,))


def start_and_end_exchanged(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.end_logits, output.start_logits))


def start_given_twice(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.start_logits, output.start_logits * 1.0))


def ends_one_late(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.start_logits, output.end_logits.roll(1, 1)))


def spans_after_softmax(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.start_logits.softmax(-1), output.end_logits.softmax(-1)))


def value_squashed(graph: Any) -> None:
    _finish(graph, lambda output, mask: (torch.sigmoid(output.logits),))


def value_of_another_scale(graph: Any) -> None:
    _finish(graph, lambda output, mask: (output.logits * 0.2,))


def relative_positions_turned(graph: Any) -> None:
    graph.score_bias = graph.score_bias.transpose(2, 3).contiguous()


def relative_positions_of_last_head(graph: Any) -> None:
    graph.score_bias = graph.score_bias.roll(1, 1).contiguous()


def relative_positions_one_off(graph: Any) -> None:
    graph.score_bias = graph.score_bias.roll(1, 3).contiguous()


def relative_positions_left_out(graph: Any) -> None:
    graph.score_bias = None


def _checkpoint(name: str, what: str, plant: Any, student: Student, **more: Any) -> Fault:
    return Fault(name, what, "checkpoint", plant, student, **more)


def _graph(name: str, what: str, plant: Any, student: Student, **more: Any) -> Fault:
    return Fault(name, what, "graph", plant, student, **more)


_TAGS = Student("roberta", "token_classification")
_SPANS = Student("mobilebert", "question_answering")
_VALUE = Student("electra", "regression")
_RELATIVE = Student("mpnet")
FAULTS = (
    _checkpoint(
        "padding_offset_lost",
        "RoBERTa's positions start at row 0 of the table instead of after the padding's",
        padding_offset_lost,
        _TAGS,
    ),
    _graph(
        "positions_follow_padding_id",
        "RoBERTa's positions start at the padding id instead of after it",
        positions_follow_padding_id,
        _TAGS,
    ),
    _checkpoint(
        "only_token_type_lost",
        "RoBERTa's one token type is left out, as if it said nothing",
        only_token_type_lost,
        _TAGS,
    ),
    _graph("head_tanh_dropped", "RoBERTa's head has no tanh", head_tanh_dropped, Student("roberta", "classification")),
    _graph(
        "head_relu_dropped", "DistilBERT's head has no relu", head_relu_dropped, Student("distilbert", "classification")
    ),
    _graph("head_of_bert", "ELECTRA's head has BERT's tanh instead of gelu", head_of_bert, _VALUE),
    _checkpoint(
        "projection_bias_dropped",
        "ELECTRA's map from embedding to hidden size has no bias",
        projection_bias_dropped,
        _VALUE,
    ),
    _checkpoint("trigram_reversed", "MobileBERT takes the token before for the one after", trigram_reversed, _SPANS),
    _checkpoint("no_norm_gain_lost", "the gain of one of MobileBERT's NoNorms is lost", no_norm_gain_lost, _SPANS),
    _checkpoint(
        "feed_forwards_exchanged",
        "two of MobileBERT's feed-forwards exchange their first linear",
        feed_forwards_exchanged,
        _SPANS,
    ),
    _graph(
        "padding_joined_to_last_token",
        "MobileBERT joins the last token with the embedding of padding",
        padding_joined_to_last_token,
        _SPANS,
    ),
    _graph(
        "layers_nearly_shared",
        "ALBERT's shared layer is stored twice, one copy off by less than int8's rounding",
        layers_nearly_shared,
        Student("albert"),
    ),
    _checkpoint("tag_rows_rotated", "each tag has its neighbour's column", tag_rows_rotated, _TAGS),
    _graph("tags_shifted", "each token has the tag of the token before", tags_shifted, _TAGS),
    _graph("tags_averaged_with_next", "tags are averaged over two tokens", tags_averaged_with_next, _TAGS),
    _graph("start_and_end_exchanged", "start and end of an answer are exchanged", start_and_end_exchanged, _SPANS),
    _graph(
        "start_given_twice",
        "the answer's start is given for its end too",
        start_given_twice,
        _SPANS,
        # LiteRT's converter finds the two equal and keeps one tensor, and its runtime misses the other.
        stops="Output tensor not found: end_logits",
    ),
    _graph("ends_one_late", "answers end one token late", ends_one_late, _SPANS),
    _graph("spans_after_softmax", "starts and ends come out as probabilities", spans_after_softmax, _SPANS),
    _graph("value_squashed", "the value goes through a sigmoid", value_squashed, _VALUE),
    _graph(
        "value_of_another_scale", "the value is given from 0 to 1 instead of 0 to 5", value_of_another_scale, _VALUE
    ),
    _checkpoint(
        "value_bias_dropped",
        "the regression head's bias is lost",
        head_bias_dropped,
        Student("distilbert", "regression"),
    ),
)
OF_RELATIVE_POSITIONS = (
    _graph(
        "relative_positions_turned", "MPNet takes tokens before for tokens behind", relative_positions_turned, _RELATIVE
    ),
    _graph(
        "relative_positions_of_last_head",
        "each head has its neighbour's relative positions",
        relative_positions_of_last_head,
        _RELATIVE,
    ),
    _graph(
        "relative_positions_one_off", "each token is taken for the one before it", relative_positions_one_off, _RELATIVE
    ),
    _graph(
        "relative_positions_left_out",
        "MPNet's scores know no relative positions",
        relative_positions_left_out,
        _RELATIVE,
    ),
)
