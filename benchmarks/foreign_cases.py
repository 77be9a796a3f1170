"""The files of `make foreign`: which student, which tool, which mistake, and what has to be said of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from benchmarks import foreign_tools as tools
from benchmarks.foreign_modules import Headed, Sentence, Tokens

Tool = Callable[[nn.Module, int, Path], None]
_CLASSES = {
    "classifier": "AutoModelForSequenceClassification",
    "tagger": "AutoModelForTokenClassification",
    "reader": "AutoModelForQuestionAnswering",
}
_PLAIN_MASK = (tools.executorch_int8_dynamic, tools.executorch_int8_static)
"""Tools that quantise sums of whole numbers in Hugging Face's code for the mask; Core ML's does not take that code."""
_TWO_INPUTS = ("roberta", "distilbert", "tagger")


@dataclass(frozen=True)
class Case:
    """One file."""

    name: str
    """Plain, and part of its file's name."""
    student: str
    tool: Tool
    suffix: str
    verdict: Literal["same", "rounded", "another"]
    cause: str = ""
    """How the name of the error begins; empty for a right file, and `*` where any error may be named."""
    mistake: str = ""
    tokens: bool = False
    """Whether the module gives the vectors of tokens."""
    plain_mask: bool = False
    """Whether a mask of -1e4 is computed in the module."""

    @property
    def inputs(self) -> int:
        """How many inputs the module takes."""
        return 2 if self.student in _TWO_INPUTS else 3

    def module(self, student: Path) -> nn.Module:
        """Return the module that the tool gets."""
        if self.student in _CLASSES:
            return Headed(student, _CLASSES[self.student], self.mistake)
        if self.tokens:
            return Tokens(student)
        mistake = self.mistake or ("cls" if self.student.endswith("cls") else "")
        plain_mask = self.suffix == ".mlpackage" or self.tool in _PLAIN_MASK or self.plain_mask
        return Sentence(student, mistake, plain_mask=plain_mask)

    def make(self, student: Path, out: Path) -> None:
        """Make the file."""
        self.tool(self.module(student), self.inputs, out)


def _right(name: str, student: str, tool: Tool, suffix: str, *, rounded: bool = False, **more: Any) -> Case:
    return Case(name, student, tool, suffix, "rounded" if rounded else "same", **more)


def _wrong(name: str, student: str, tool: Tool, suffix: str, mistake: str, cause: str) -> Case:
    return Case(name, student, tool, suffix, "another", cause=cause, mistake=mistake)


CASES = (
    # Right files, as each tool makes them by default.
    _right("onnx-free-length", "bert", tools.onnx, ".onnx"),
    _right("onnx-nameless", "bert", tools.onnx_fixed, ".onnx"),
    _right("onnx-token-vectors", "bert", tools.onnx, ".onnx", tokens=True),
    _right("onnx-int8", "bert", tools.onnx_int8, ".onnx", rounded=True),
    _right("onnx-cls", "bert-cls", tools.onnx, ".onnx"),
    _right("onnx-prompts", "bert-prompts", tools.onnx, ".onnx"),
    _right("onnx-roberta", "roberta", tools.onnx, ".onnx"),
    _right("onnx-classifier", "classifier", tools.onnx, ".onnx"),
    _right("onnx-spans", "reader", tools.onnx_spans, ".onnx"),
    _right("litert-fp32", "bert", tools.litert, ".tflite"),
    _right("litert-token-vectors", "bert", tools.litert, ".tflite", tokens=True),
    _right("litert-int8-dynamic", "bert", tools.litert_int8_dynamic, ".tflite", rounded=True),
    _right("litert-int8-weights", "bert", tools.litert_int8_weights, ".tflite", rounded=True),
    _right("litert-int8-static-mild", "bert", tools.litert_int8_static, ".tflite", rounded=True, plain_mask=True),
    _right("litert-tagger", "tagger", tools.litert, ".tflite"),
    _right("coreml-half", "bert", tools.coreml, ".mlpackage", rounded=True),
    _right("coreml-single", "distilbert", tools.coreml_float32, ".mlpackage"),
    _right("coreml-lengths", "distilbert", tools.coreml_flexible, ".mlpackage"),
    _right("coreml-int8", "bert", tools.coreml_int8, ".mlpackage", rounded=True),
    _right("executorch-fp32", "bert", tools.executorch, ".pte"),
    _right("executorch-free-length", "bert", tools.executorch_dynamic, ".pte"),
    _right("executorch-int8-dynamic", "bert", tools.executorch_int8_dynamic, ".pte", rounded=True),
    _right("executorch-int8-static", "bert", tools.executorch_int8_static, ".pte", rounded=True),
    _right("onnx-int8-trained", "minilm", tools.onnx_int8, ".onnx", rounded=True),
    _right("litert-int8-dynamic-trained", "minilm", tools.litert_int8_dynamic, ".tflite", rounded=True),
    _right("coreml-int8-trained", "minilm", tools.coreml_int8, ".mlpackage", rounded=True),
    _right("executorch-int8-dynamic-trained", "minilm", tools.executorch_int8_dynamic, ".pte", rounded=True),
    # The same recipe on Hugging Face's own mask of -3.4e38: one scale for mask and scores leaves nothing of either.
    _wrong("litert-int8-static", "bert", tools.litert_int8_static, ".tflite", "", "mask_ignored"),
    # One scale for a whole weight, onnxruntime's default, leaves MiniLM's embeddings a mean cosine of .951.
    _wrong("onnx-int8-default-trained", "minilm", tools.onnx_int8_default, ".onnx", "", "scale"),
    # Files with one mistake, and sometimes rounding on top.
    _wrong("onnx-mask-ignored", "bert", tools.onnx, ".onnx", "mask", "mask_ignored"),
    _wrong("litert-mask-ignored", "bert", tools.litert, ".tflite", "mask", "mask_ignored"),
    _wrong("coreml-mask-ignored", "bert", tools.coreml, ".mlpackage", "mask", "mask_ignored"),
    _wrong("onnx-padding-pooled", "bert", tools.onnx, ".onnx", "padding", "pooled_padding"),
    _wrong("executorch-padding-pooled", "bert", tools.executorch, ".pte", "padding", "pooled_padding"),
    _wrong("onnx-offset-dropped", "roberta", tools.onnx, ".onnx", "offset", "positions_off"),
    _wrong("litert-offset-dropped", "roberta", tools.litert, ".tflite", "offset", "positions_off"),
    _wrong("onnx-positions-dead", "bert", tools.onnx, ".onnx", "positions dead", "positions_dead"),
    _wrong("onnx-types-dead", "bert", tools.onnx, ".onnx", "types", "types_dead"),
    _wrong("onnx-types-dead-int8", "bert", tools.onnx_int8, ".onnx", "types", "types_dead"),
    _wrong("executorch-types-dead", "bert", tools.executorch, ".pte", "types", "types_dead"),
    _wrong("onnx-types-dead-classifier", "classifier", tools.onnx, ".onnx", "types", "types_dead"),
    _wrong("onnx-cls-for-mean", "bert", tools.onnx, ".onnx", "cls", "pooling:cls"),
    _wrong("onnx-max-for-mean", "bert", tools.onnx, ".onnx", "max", "pooling:max"),
    _wrong("onnx-mean-for-cls", "bert-cls", tools.onnx, ".onnx", "mean", "pooling:mean"),
    _wrong("onnx-cls-and-no-norm", "bert", tools.onnx, ".onnx", "cls norm", "pooling:cls+not_normalised"),
    _wrong("onnx-pooler", "bert", tools.onnx, ".onnx", "pooler", "pooler"),
    _wrong("onnx-no-norm", "bert", tools.onnx, ".onnx", "no norm", "not_normalised"),
    _wrong("coreml-no-norm", "bert", tools.coreml, ".mlpackage", "no norm", "not_normalised"),
    _wrong("onnx-prompt-missing", "bert-prompts", tools.onnx, ".onnx", "prompt missing", "prompt_missing"),
    _wrong("onnx-weight-scaled", "bert", tools.onnx, ".onnx", "scaled", "weights_scaled"),
    _wrong("litert-weight-scaled", "bert", tools.litert, ".tflite", "scaled", "weights_scaled"),
    _wrong("onnx-vocabulary", "bert", tools.onnx, ".onnx", "vocabulary", "vocabulary"),
    _wrong("onnx-vocabulary-off", "bert", tools.onnx, ".onnx", "vocabulary off", "vocabulary_off"),
    _wrong("onnx-truncated", "bert", tools.onnx_fixed, ".onnx", "truncated", "truncated:16"),
    _wrong("onnx-probabilities", "classifier", tools.onnx, ".onnx", "softmax", "probabilities"),
    _wrong("onnx-label-order", "classifier", tools.onnx, ".onnx", "order", "label_order"),
    _wrong("onnx-spans-exchanged", "reader", tools.onnx_spans, ".onnx", "exchanged", "start_end_exchanged"),
    _wrong("onnx-mask-ignored-int8-trained", "minilm", tools.onnx_int8_default, ".onnx", "mask", "mask_ignored"),
    _wrong("onnx-types-dead-int8-trained", "minilm", tools.onnx_int8_default, ".onnx", "types", "types_dead"),
    _wrong("onnx-positions-int8-trained", "minilm", tools.onnx_int8, ".onnx", "positions dead", "positions_dead"),
    _wrong("onnx-padding-int8-trained", "minilm", tools.onnx_int8, ".onnx", "padding", "pooled_padding"),
    _wrong("onnx-cls-int8-trained", "minilm", tools.onnx_int8_default, ".onnx", "cls", "pooling:cls"),
    _wrong("onnx-no-norm-int8-trained", "minilm", tools.onnx_int8, ".onnx", "no norm", "not_normalised"),
    _wrong("onnx-another-checkpoint", "bert", tools.onnx, ".onnx", "another", "unrelated"),
)


def make(name: str, student: Path, out: Path) -> None:
    """Make the file of a case. Runs in a worker, since tools print much and may abort."""
    next(case for case in CASES if case.name == name).make(student, out)
